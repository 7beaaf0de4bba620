"""What replay's tests share: a log with messages in it, and a sink that keeps what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.memory_log import MemoryLog
from bridge.partitioning import RouteTable
from bridge.replay.selection import Item
from schemas.message import Message
from schemas.records import encode_headers
from schemas.routes import DEFAULT_ROUTES

TABLE = RouteTable(DEFAULT_ROUTES)
FIRST_MS = 1_795_248_000_000


class Clock:
    """Every reading is a millisecond later."""

    def __init__(self) -> None:
        self.now_ms = FIRST_MS

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def put(log: MemoryLog, topic_name: str, payload: bytes = b"x", **more: Any) -> None:
    """A message as an edge appends it."""
    message = Message(topic_name, payload, client_id=more.pop("client_id", "c"), **more)
    to = TABLE.destination(topic_name)
    if message.qos == 2:
        to = to.twin()
    log.put(to.kafka_topic, to.partition, to.key, payload, encode_headers(message))


def filled_log(count: int = 100, devices: int = 10) -> MemoryLog:
    """Messages of several devices, of QoS 0, 1 and 2 in turn; each payload says its number."""
    log = MemoryLog(Clock())
    for number in range(count):
        put(log, f"sensors/s/{number % devices}/temp", b'{"n":%d}' % number, qos=number % 3)
    return log


def numbers(items: Sequence[Item]) -> list[int]:
    """The numbers in the payloads of `filled_log`."""
    return [int((item[2].value or b"")[5:-1]) for item in items]


class ListSink:
    """Keeps what it is given; ``fail_after`` records it raises ``error``."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.end: dict[str, Any] | None = None
        self.fail_after: int | None = None
        self.error: BaseException = RuntimeError("the test says so")

    async def open(self, saved: dict[str, Any] | None) -> None:
        if saved is not None:
            del self.items[int(saved["kept"]) :]

    async def write(self, items: Sequence[Item]) -> None:
        self.items += items
        if self.fail_after is not None and len(self.items) >= self.fail_after:
            raise self.error

    async def checkpoint(self) -> dict[str, Any]:
        return {"kept": len(self.items)}

    async def finish(self, end: dict[str, Any]) -> None:
        self.end = end

    async def close(self) -> None: ...
