"""Logs for tests: one that does what the test says, sinks that write down what they are told, a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from bridge.log import LogConsumer, LogError, LogUnavailable, PendingRecord, Position, ProducerPoisoned, RecordRefused
from bridge.partitioning import Destination


@dataclass(slots=True)
class Submission:
    """One call of ``submit``: the test completes or fails it."""

    kafka_topic: str
    partition: int
    records: list[PendingRecord]
    future: asyncio.Future[int]

    @property
    def values(self) -> list[bytes | None]:
        return [value for _, value, _ in self.records]


class ScriptedLog:
    """A log whose every answer the test gives."""

    def __init__(self) -> None:
        self.submissions: list[Submission] = []
        self.renewals = 0
        self.renewal_errors: list[LogError] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def submit(self, kafka_topic: str, partition: int, records: list[PendingRecord]) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.submissions.append(Submission(kafka_topic, partition, list(records), future))
        return future

    async def renew_producer(self) -> None:
        await asyncio.sleep(0)
        if self.renewal_errors:
            raise self.renewal_errors.pop(0)
        self.renewals += 1
        for submission in self.submissions:
            if not submission.future.done():
                submission.future.set_exception(ProducerPoisoned("renewed"))

    async def end_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        raise LogUnavailable("not scripted")

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> LogConsumer:
        raise NotImplementedError

    def statistics(self) -> dict[str, Any]:
        return {}

    @property
    def open(self) -> list[Submission]:
        return [submission for submission in self.submissions if not submission.future.done()]


@dataclass(slots=True)
class RecordingSink:
    """Writes down every outcome, in order."""

    outcomes: list[tuple[Any, ...]] = field(default_factory=list)

    def record_appended(self, token: Any, offset: int) -> None:
        self.outcomes.append(("appended", token, offset))

    def record_refused(self, token: Any, error: RecordRefused) -> None:
        self.outcomes.append(("refused", token, error.reason))

    def record_unknown(self, token: Any) -> None:
        self.outcomes.append(("unknown", token))

    def tokens(self, outcome: str) -> list[Any]:
        return [entry[1] for entry in self.outcomes if entry[0] == outcome]


@dataclass(slots=True)
class VirtualClock:
    """A clock that stands still until the test moves it."""

    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


async def turns(count: int = 5) -> None:
    """Let the event loop go round; what is ready then has happened."""
    for _ in range(count):
        await asyncio.sleep(0)


def destination(partition: int = 0, kafka_topic: str = "mqtt.messages", key: bytes = b"k") -> Destination:
    return Destination(kafka_topic, partition, key)
