"""The log in memory: for unit tests and simulation only, held to the same suite as Kafka.

Besides the interface it has what a test needs to make trouble: ``pause`` (no answer, like a stopped Kafka),
``fail_next``, ``poison``, ``truncate``, ``put`` (a record as any Kafka client could have written it).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from bridge.log import (
    Headers,
    LogConsumer,
    LogError,
    LogTruncated,
    LogUnavailable,
    PendingRecord,
    Position,
    ProducerPoisoned,
    Record,
    RecordRefused,
)

FETCH_RECORDS_MAX = 500  # per answer: what the pump handles without giving way to the loop
BATCH_BYTES_MAX = 2 * 1024 * 1024  # max.message.bytes of the mqtt.* topics


@dataclass(slots=True)
class MemoryRecord:
    """A stored record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(slots=True)
class _Partition:
    start: int = 0
    records: list[MemoryRecord] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.records)


class MemoryLog:
    """Partitions come into being when they are first used. ``clock_ms`` gives the records their timestamps."""

    def __init__(self, clock_ms: Callable[[], int] | None = None) -> None:
        self._clock_ms = clock_ms or (lambda: int(time.time() * 1000))
        self._partitions: dict[Position, _Partition] = {}
        self._waiting: deque[tuple[Position, list[PendingRecord], asyncio.Future[int]]] = deque()
        self._failures: deque[LogError] = deque()
        self._paused = False
        self._poisoned = False
        self._consumers: list[MemoryLogConsumer] = []
        self.committed: dict[str, dict[Position, int]] = {}
        self.appended = 0
        self.renewals = 0

    async def start(self) -> None:
        """Nothing to reach."""

    async def stop(self) -> None:
        for consumer in list(self._consumers):
            await consumer.stop()
        while self._waiting:
            self._waiting.popleft()[2].cancel()

    def submit(self, kafka_topic: str, partition: int, records: list[PendingRecord]) -> asyncio.Future[int]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        self._waiting.append(((kafka_topic, partition), list(records), future))
        loop.call_soon(self._append_waiting)
        return future

    async def renew_producer(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()[2]
            if not future.done():
                future.set_exception(ProducerPoisoned("the producer was renewed"))
        self._poisoned = False
        self.renewals += 1

    async def end_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        await asyncio.sleep(0)
        return {position: self.partition(position).end for position in partitions}

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> LogConsumer:
        consumer = MemoryLogConsumer(self, group_id)
        self._consumers.append(consumer)
        return consumer

    def statistics(self) -> dict[str, Any]:
        return {"appended": self.appended, "partitions": len(self._partitions), "renewals": self.renewals}

    # For tests

    def put(
        self, kafka_topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> MemoryRecord:
        """Append one record now, past pauses and failures: another client wrote it."""
        held = self.partition((kafka_topic, partition))
        record = MemoryRecord(held.end, self._clock_ms(), key, value, headers)
        held.records.append(record)
        self._wake()
        return record

    def records(self, kafka_topic: str, partition: int) -> Sequence[MemoryRecord]:
        """What the partition holds."""
        return tuple(self.partition((kafka_topic, partition)).records)

    def truncate(self, kafka_topic: str, partition: int, start: int) -> None:
        """Delete everything before ``start`` (Kafka's DeleteRecords)."""
        held = self.partition((kafka_topic, partition))
        del held.records[: max(0, start - held.start)]
        held.start = max(start, held.start)
        self._wake()

    def pause(self) -> None:
        """Answer nothing and append nothing until ``resume``."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._append_waiting()
        self._wake()

    def fail_next(self, error: LogError) -> None:
        """Fail one coming ``submit`` with this error; nothing of it is appended."""
        self._failures.append(error)

    def poison(self) -> None:
        """Fail every ``submit`` until the producer is renewed."""
        self._poisoned = True

    @property
    def paused(self) -> bool:
        return self._paused

    def partition(self, position: Position) -> _Partition:
        held = self._partitions.get(position)
        if held is None:
            held = self._partitions[position] = _Partition()
        return held

    def consumer_stopped(self, consumer: MemoryLogConsumer) -> None:
        self._consumers.remove(consumer)

    def _append_waiting(self) -> None:
        while self._waiting and not self._paused:
            position, records, future = self._waiting.popleft()
            if future.done():
                continue
            error = ProducerPoisoned("poisoned by the test") if self._poisoned else self._next_failure(records)
            if error is not None:
                future.set_exception(error)
                continue
            future.set_result(self._append(position, records))

    def _next_failure(self, records: list[PendingRecord]) -> LogError | None:
        if sum(len(value or b"") for _, value, _ in records) > BATCH_BYTES_MAX:
            return RecordRefused("the batch is larger than the topic allows", divisible=True)
        return self._failures.popleft() if self._failures else None

    def _append(self, position: Position, records: list[PendingRecord]) -> int:
        held = self.partition(position)
        base, now_ms = held.end, self._clock_ms()
        held.records.extend(
            MemoryRecord(base + index, now_ms, key, value, headers)
            for index, (key, value, headers) in enumerate(records)
        )
        self.appended += len(records)
        self._wake()
        return base

    def _wake(self) -> None:
        for consumer in self._consumers:
            consumer.wake()


class MemoryLogConsumer:
    """Reads the log in memory."""

    def __init__(self, log: MemoryLog, group_id: str | None) -> None:
        self._log = log
        self._group_id = group_id
        self._positions: dict[Position, int] = {}
        self._ends: dict[Position, int] = {}
        self._event = asyncio.Event()
        self._stopped = False
        self.assignments = 0

    def assign(self, positions: Mapping[Position, int]) -> None:
        self._positions = dict(positions)
        self.assignments += 1
        self.wake()

    async def fetch(self, timeout_s: float) -> list[tuple[Position, Sequence[Record]]]:
        stopped_before = self._stopped
        if stopped_before:
            raise LogUnavailable("the reader was stopped")
        try:
            async with asyncio.timeout(timeout_s):
                while not self._stopped:
                    self._event.clear()
                    if fetched := self._take():
                        return fetched
                    await self._event.wait()
        except TimeoutError:
            pass
        return []

    async def commit(self, positions: Mapping[Position, int]) -> None:
        assert self._group_id is not None, "a reader without a group commits nothing"
        await asyncio.sleep(0)
        self._log.committed.setdefault(self._group_id, {}).update(positions)

    async def forget(self, partitions: Set[Position]) -> None:
        assert self._group_id is not None, "a reader without a group forgets nothing"
        await asyncio.sleep(0)
        held = self._log.committed.get(self._group_id, {})
        for position in partitions:
            held.pop(position, None)

    async def committed(self) -> dict[Position, int]:
        assert self._group_id is not None, "a reader without a group has committed nothing"
        await asyncio.sleep(0)
        return dict(self._log.committed.get(self._group_id, {}))

    def end_of(self, partition: Position) -> int | None:
        return self._ends.get(partition)

    def statistics(self) -> dict[str, Any]:
        return {"partitions": len(self._positions), "assignments": self.assignments}

    async def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._log.consumer_stopped(self)
            self.wake()

    def wake(self) -> None:
        self._event.set()

    def _take(self) -> list[tuple[Position, Sequence[Record]]]:
        if self._log.paused:
            return []
        fetched: list[tuple[Position, Sequence[Record]]] = []
        room = FETCH_RECORDS_MAX
        for position, offset in self._positions.items():
            held = self._log.partition(position)
            if not held.start <= offset <= held.end:
                raise LogTruncated(position, offset, min(max(offset, held.start), held.end))
            records = held.records[offset - held.start : offset - held.start + room]
            self._ends[position] = held.end
            if records:
                fetched.append((position, records))
                room -= len(records)
            if not room:
                break
        for position, taken in fetched:
            # The served ones go to the back of the line: a busy partition starves nobody.
            del self._positions[position]
            self._positions[position] = taken[-1].offset + 1
        return fetched
