"""Records by their offsets: all that are there come, however long Kafka takes."""

from __future__ import annotations

from typing import Any

from bridge.memory_log import MemoryLog
from bridge.partitioning import RouteTable
from bridge.point_reads import PointReader
from schemas.routes import DEFAULT_ROUTES

PLACE = ("mqtt.messages", 0)


class LateConsumer:
    """A reader whose first answers do not come in time."""

    def __init__(self, reader: Any, late: int) -> None:
        self._reader = reader
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def fetch(self, timeout_s: float) -> Any:
        if self._late:
            self._late -= 1
            return []
        return await self._reader.fetch(timeout_s)


class LateLog:
    """A log with such readers."""

    def __init__(self, log: MemoryLog, late: int) -> None:
        self._log = log
        self._late = late

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> Any:
        return LateConsumer(self._log.consumer(group_id, read_committed=read_committed), self._late)


async def read(log: Any, *offsets: int) -> list[bytes]:
    reader = PointReader(log, RouteTable(DEFAULT_ROUTES))
    return [delivery.payload for delivery in await reader.read({PLACE: set(offsets)})]


def filled() -> MemoryLog:
    log = MemoryLog()
    for number in range(5):
        log.put(*PLACE, b"k", b"%d" % number, headers=(("mqtt.topic", b"t"),))
    return log


async def test_what_is_asked_for_comes_in_its_order() -> None:
    assert await read(filled(), 3, 1) == [b"1", b"3"]


async def test_what_does_not_come_in_time_is_asked_for_again() -> None:
    """It was taken for gone, and a QoS 2 message of a shared subscription was lost."""
    assert await read(LateLog(filled(), 3), 0, 4) == [b"0", b"4"]
