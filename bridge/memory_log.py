"""The log in memory: for unit tests and simulation only, held to the same suite as Kafka.

Besides the interface it has what a test needs to make trouble: ``pause`` (no answer, like a stopped Kafka),
``fail_next``, ``poison``, ``truncate``, ``compact``, ``put`` (a record as any Kafka client could have written it),
``fail_next_commit`` and ``hold_commits`` (transactions stay open, with their records in the log).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bridge.log import (
    CommitUnknown,
    GroupMarks,
    Headers,
    LogError,
    LogTruncated,
    LogUnavailable,
    MarksRefused,
    PendingRecord,
    Position,
    ProducerFenced,
    ProducerPoisoned,
    Record,
    RecordRefused,
    TransactionAborted,
)
from bridge.shared.memory_lease import MemoryGroups, MemoryLeases

FETCH_RECORDS_MAX = 500  # per answer: what the pump handles without giving way to the loop
BATCH_BYTES_MAX = 2 * 1024 * 1024  # max.message.bytes of the mqtt.* topics


@dataclass(slots=True, eq=False)
class _Transaction:
    """What one transaction has written; it is neither committed nor aborted while it is open."""

    is_open: bool = True
    is_aborted: bool = False
    partitions: set[Position] = field(default_factory=set)


@dataclass(slots=True)
class MemoryRecord:
    """A stored record, or a transaction's marker: it has an offset, and no reader ever gets it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    transaction: _Transaction | None = field(default=None, repr=False, compare=False)
    is_marker: bool = False
    is_compacted: bool = False  # a later record of its key made it go

    def is_for(self, *, read_committed: bool) -> bool:
        """Whether a reader gets it, once it may read so far."""
        transaction = self.transaction
        if self.is_marker or self.is_compacted:
            return False
        return not (read_committed and transaction is not None and transaction.is_aborted)


@dataclass(slots=True)
class _Partition:
    start: int = 0
    records: list[MemoryRecord] = field(default_factory=list)
    open: dict[_Transaction, int] = field(default_factory=dict)  # open transactions and their first offsets

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    @property
    def stable_end(self) -> int:
        """How far a read-committed reader may read (Kafka: the last stable offset)."""
        return min(self.open.values(), default=self.end)


class MemoryLog:
    """Partitions come into being when they are first used. ``clock_ms`` gives the records their timestamps."""

    def __init__(self, clock_ms: Callable[[], int] | None = None) -> None:
        self.groups = MemoryGroups()
        self._clock_ms = clock_ms or (lambda: int(time.time() * 1000))
        self._partitions: dict[Position, _Partition] = {}
        self._waiting: deque[tuple[Position, list[PendingRecord], asyncio.Future[int]]] = deque()
        self._failures: deque[LogError] = deque()
        self._paused = False
        self._poisoned = False
        self._consumers: list[MemoryLogConsumer] = []
        self._holders: dict[str, MemoryTransactionalProducer] = {}  # by transactional id
        self._commit_failures: deque[tuple[LogError, bool]] = deque()
        self._commits_held = False
        self._going_on: deque[asyncio.Future[None]] = deque()  # those who wait for resume or release_commits
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
        while self._going_on:
            self._going_on.popleft().cancel()

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

    async def start_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        await asyncio.sleep(0)
        return {position: self.partition(position).start for position in partitions}

    async def offsets_for_times(self, times_ms: Mapping[Position, int]) -> dict[Position, int]:
        await asyncio.sleep(0)
        found: dict[Position, int] = {}
        for position, time_ms in times_ms.items():
            held = self.partition(position)
            found[position] = next((each.offset for each in held.records if each.timestamp >= time_ms), held.end)
        return found

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> MemoryLogConsumer:
        return self.add_consumer(MemoryLogConsumer(self, group_id, read_committed=read_committed))

    def transactional_producer(self, transactional_id: str) -> MemoryTransactionalProducer:
        return MemoryTransactionalProducer(self, transactional_id)

    def leases(self) -> MemoryLeases:
        return self.groups.node()

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
        self._wake((kafka_topic, partition))
        return record

    def records(self, kafka_topic: str, partition: int) -> Sequence[MemoryRecord]:
        """What the partition holds for read-committed readers, now or as soon as they may read so far."""
        return tuple(
            record
            for record in self.partition((kafka_topic, partition)).records
            if record.is_for(read_committed=True) and not (record.transaction and record.transaction.is_open)
        )

    def truncate(self, kafka_topic: str, partition: int, start: int) -> None:
        """Delete everything before ``start`` (Kafka's DeleteRecords)."""
        held = self.partition((kafka_topic, partition))
        del held.records[: max(0, start - held.start)]
        held.start = max(start, held.start)
        self._wake((kafka_topic, partition))

    def compact(self, kafka_topic: str, partition: int, before_ms: int) -> int:
        """Keep the last record of each key, and what is not older than ``before_ms`` (Kafka's log cleaner); how many
        went. Tombstones stay, as they do for delete.retention.ms; nothing behind an open transaction is looked at."""
        held = self.partition((kafka_topic, partition))
        seen: set[bytes | None] = set()
        count = 0
        for record in reversed(held.records[: held.stable_end - held.start]):
            if not record.is_for(read_committed=True):
                continue
            if record.key in seen and record.timestamp < before_ms:
                record.is_compacted = True
                count += 1
            seen.add(record.key)
        return count

    def pause(self) -> None:
        """Answer nothing and append nothing until ``resume``."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._append_waiting()
        self._go_on()
        self._wake()

    def fail_next(self, error: LogError) -> None:
        """Fail one coming ``submit`` with this error; nothing of it is appended."""
        self._failures.append(error)

    def poison(self) -> None:
        """Fail every ``submit`` until the producer is renewed."""
        self._poisoned = True

    def fail_next_commit(self, error: LogError, *, happened: bool = False) -> None:
        """Fail one coming ``commit`` with this error, as Kafka would have come to it.

        CommitUnknown: with ``happened`` the transaction is committed, else it stays open until someone starts.
        ProducerFenced: a rival has started. RecordRefused, TransactionAborted: the records were written and aborted.
        """
        assert not happened or isinstance(error, CommitUnknown), "a definite error says that it did not happen"
        self._commit_failures.append((error, happened))

    def hold_commits(self) -> None:
        """Let commits write their records and wait, their transactions open, until ``release_commits``."""
        self._commits_held = True

    def release_commits(self) -> None:
        self._commits_held = False
        self._go_on()

    @property
    def paused(self) -> bool:
        return self._paused

    def partition(self, position: Position) -> _Partition:
        held = self._partitions.get(position)
        if held is None:
            held = self._partitions[position] = _Partition()
        return held

    def add_consumer(self, consumer: MemoryLogConsumer) -> MemoryLogConsumer:
        """It is woken when something comes to a partition that it reads."""
        self._consumers.append(consumer)
        return consumer

    def append(self, position: Position, records: list[PendingRecord]) -> int:
        """Append a batch now; returns the first offset."""
        return self._append(position, records)

    def consumer_stopped(self, consumer: MemoryLogConsumer) -> None:
        self._consumers.remove(consumer)

    # For the transactional producers

    async def reachable(self) -> None:
        """Wait as long as the log is paused; every other task has a turn in any case."""
        await asyncio.sleep(0)
        while self._paused:
            await self._wait_to_go_on()

    async def commits_released(self) -> None:
        """Wait as long as commits are held."""
        await asyncio.sleep(0)
        while self._commits_held or self._paused:
            await self._wait_to_go_on()

    def take_over(self, transactional_id: str, producer: MemoryTransactionalProducer) -> None:
        """Fence the holder of the id and abort its open transaction."""
        former = self._holders.get(transactional_id)
        if former is not None:
            former.end_transaction(aborted=True)
        self._holders[transactional_id] = producer

    def holds(self, transactional_id: str, producer: MemoryTransactionalProducer) -> bool:
        return self._holders.get(transactional_id) is producer

    def fence(self, transactional_id: str) -> None:
        self.take_over(transactional_id, MemoryTransactionalProducer(self, transactional_id))

    def next_commit_failure(self) -> tuple[LogError | None, bool]:
        return self._commit_failures.popleft() if self._commit_failures else (None, False)

    def append_in(self, transaction: _Transaction, position: Position, record: PendingRecord) -> int:
        """Append one record of an open transaction; returns its offset."""
        held = self.partition(position)
        offset = held.end
        held.open.setdefault(transaction, offset)
        held.records.append(MemoryRecord(offset, self._clock_ms(), *record, transaction))
        transaction.partitions.add(position)
        self.appended += 1
        self._wake(position)
        return offset

    def end(self, transaction: _Transaction, *, aborted: bool) -> None:
        """Commit or abort: the marker takes an offset in every partition of the transaction."""
        transaction.is_open, transaction.is_aborted = False, aborted
        for position in transaction.partitions:
            held = self.partition(position)
            del held.open[transaction]
            held.records.append(MemoryRecord(held.end, self._clock_ms(), None, None, (), transaction, is_marker=True))
            self._wake(position)
        self.groups.end_transaction(transaction, aborted=aborted)

    def store_marks(self, transaction: _Transaction, marks: Sequence[GroupMarks]) -> None:
        """As a part of the transaction. Raises MarksRefused, TransactionAborted."""
        if marks and self.groups.is_away:
            raise TransactionAborted("no coordinator")
        if strangers := {each.group_id for each in marks if not self.groups.accepts(each)}:
            raise MarksRefused(strangers, "not a member")
        self.groups.pending += [(transaction, each) for each in marks]

    async def _wait_to_go_on(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._going_on.append(future)
        await future

    def _go_on(self) -> None:
        while self._going_on:
            future = self._going_on.popleft()
            if not future.done():
                future.set_result(None)

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
        self._wake(position)
        return base

    def _wake(self, position: Position | None = None) -> None:
        """Those who read the partition, or all."""
        for consumer in self._consumers:
            if position is None or consumer.position_of(position) is not None:
                consumer.wake()


class MemoryTransactionalProducer:
    """Transactions in the log in memory."""

    def __init__(self, log: MemoryLog, transactional_id: str) -> None:
        self._log = log
        self._transactional_id = transactional_id
        self._transaction: _Transaction | None = None
        self._usable = False
        self._busy = False

    async def start(self) -> None:
        with self._alone():
            await self._log.reachable()
            self._log.take_over(self._transactional_id, self)
            self._usable = True

    async def commit(
        self, records: Sequence[tuple[Position, PendingRecord]], marks: Sequence[GroupMarks] = ()
    ) -> list[int]:
        with self._alone():
            assert self._usable, "start the producer first"
            self._usable = False  # until it is known to be
            try:
                offsets = await self._commit(records, marks)
            except (RecordRefused, TransactionAborted):
                self._usable = True
                raise
            self._usable = True
            return offsets

    async def stop(self) -> None:
        self._usable = False

    def end_transaction(self, *, aborted: bool) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            self._log.end(transaction, aborted=aborted)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        assert not self._busy, "one start or commit at a time"
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def _commit(
        self, records: Sequence[tuple[Position, PendingRecord]], marks: Sequence[GroupMarks]
    ) -> list[int]:
        if any(len(value or b"") > BATCH_BYTES_MAX for _, (_, value, _) in records):
            raise RecordRefused("a record is larger than the topic allows", divisible=True)
        await self._log.reachable()
        self._check_held()
        self._transaction = transaction = _Transaction()
        offsets = [self._log.append_in(transaction, position, record) for position, record in records]
        try:
            self._log.store_marks(transaction, marks)
        except TransactionAborted:
            self.end_transaction(aborted=True)
            raise
        error, happened = self._log.next_commit_failure()
        await self._log.commits_released()
        if isinstance(error, ProducerFenced):
            self._log.fence(self._transactional_id)
        self._check_held()
        if isinstance(error, CommitUnknown) and not happened:
            raise error
        self.end_transaction(aborted=error is not None and not happened)
        if error is not None:
            raise error
        return offsets

    def _check_held(self) -> None:
        if not self._log.holds(self._transactional_id, self):
            raise ProducerFenced(f"another producer has started as {self._transactional_id}")


class MemoryLogConsumer:
    """Reads the log in memory."""

    def __init__(self, log: MemoryLog, group_id: str | None, *, read_committed: bool) -> None:
        self._log = log
        self._group_id = group_id
        self._read_committed = read_committed
        self._positions: dict[Position, int] = {}
        self._followed: dict[Position, int] = {}  # where the records that were handed out end: skipped ones may follow
        self._ends: dict[Position, int] = {}
        self._event = asyncio.Event()
        self._stopped = False
        self.assignments = 0

    def assign(self, positions: Mapping[Position, int]) -> None:
        self._positions = {
            position: self._positions[position] if offset == self._followed.get(position) else offset
            for position, offset in positions.items()
        }
        self._followed = dict(positions)
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
                    before = dict(self._positions)
                    if (fetched := self._take()) or self._positions != before:
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

    def position_of(self, partition: Position) -> int | None:
        return self._positions.get(partition)

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
        served: dict[Position, int] = {}
        room = FETCH_RECORDS_MAX
        for position, offset in self._positions.items():
            held = self._log.partition(position)
            end = held.start + len(held.records)
            if not held.start <= offset <= end:
                raise LogTruncated(position, offset, min(max(offset, held.start), end))
            stable_end = self._ends[position] = held.stable_end if self._read_committed else end
            if offset == end:
                continue
            passed = held.records[offset - held.start : min(stable_end - held.start, offset - held.start + room)]
            if not passed:
                continue
            served[position] = passed[-1].offset + 1
            if records := [record for record in passed if record.is_for(read_committed=self._read_committed)]:
                fetched.append((position, records))
                self._followed[position] = records[-1].offset + 1
                room -= len(records)
            if not room:
                break
        for position, next_offset in served.items():
            # The served ones go to the back of the line: a busy partition starves nobody.
            del self._positions[position]
            self._positions[position] = next_offset
        return fetched
