"""The log as one edge reaches it: the shared log in memory behind a network with delays, losses and cuts.

What Kafka's clients do about trouble is done here as they do it (`bridge.kafka_producer`, `bridge.kafka_transactions`,
`bridge.kafka_connection`): a produce request is repeated with its number until it is answered, so it is in the log
once; a transaction that was not written in time is aborted, a commit without an answer is unknown; a question fails
after ten seconds; a transaction that a dead edge has left open is aborted by the log after ten.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence, Set
from contextlib import contextmanager
from random import Random
from typing import Any

from support.simulation_leases import NodeLeases, SimulatedGroups
from support.simulation_loop import Process

from bridge.log import (
    CommitUnknown,
    GroupMarks,
    LogUnavailable,
    PendingRecord,
    Position,
    ProducerFenced,
    ProducerPoisoned,
    Record,
    RecordRefused,
    TransactionAborted,
)
from bridge.memory_log import MemoryLog, MemoryLogConsumer, _Transaction

ANSWER_S = 10.0  # as the clients of Kafka: a question is repeated for so long
WRITE_S, END_S, START_S = 8.0, 10.0, 20.0  # a transaction's writing, its commit, taking the id
TRANSACTION_TIMEOUT_S = 10.0


class NodeLog:
    """One edge's connections to the log. `delay_s` draws how long the next step takes."""

    def __init__(self, log: MemoryLog, process: Process, rng: Random, faults: Counter[str]) -> None:
        self.log = log
        self.process = process
        self.faults = faults
        self.is_cut = False  # neither requests nor answers pass
        self.loses_answers = False  # requests pass, answers do not
        self.slowness = 1.0
        self.trouble = 0.0  # how likely a commit or an append has trouble of its own
        self.consumers: list[NodeConsumer] = []
        self._rng = rng
        self._waiting: list[asyncio.Future[None]] = []
        self._open: dict[asyncio.Future[int], tuple[Position, list[PendingRecord]]] = {}
        self._arrived: set[asyncio.Future[int]] = set()
        self._generation = 0

    # Trouble

    def cut(self) -> None:
        self.is_cut = True

    def lose_answers(self) -> None:
        self.loses_answers = True

    def heal(self) -> None:
        self.is_cut = self.loses_answers = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        for consumer in self.consumers:
            consumer.wake()

    def delay_s(self) -> float:
        return self._rng.uniform(0.0005, 0.004) * self.slowness

    def strikes(self, name: str, weight: float = 1.0) -> bool:
        """Whether this step has trouble of its own."""
        if self.trouble and self._rng.random() < self.trouble * weight:
            self.faults[name] += 1
            return True
        return False

    async def way_there(self) -> None:
        """Until a request has come to the log."""
        await asyncio.sleep(self.delay_s())
        while self.is_cut:
            await self._healed()

    async def way_back(self) -> None:
        """Until its answer has come back."""
        await asyncio.sleep(self.delay_s())
        while self.is_cut or self.loses_answers:
            await self._healed()

    async def _healed(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    # Log

    async def start(self) -> None:
        """Nothing to connect."""

    async def stop(self) -> None:
        for consumer in list(self.consumers):
            await consumer.stop()

    def submit(self, kafka_topic: str, partition: int, records: list[PendingRecord]) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._open[future] = ((kafka_topic, partition), records)
        future.add_done_callback(self._done)
        asyncio.get_running_loop().create_task(
            self._submit((kafka_topic, partition), records, future, self._generation)
        )
        return future

    def _done(self, future: asyncio.Future[int]) -> None:
        self._open.pop(future, None)
        self._arrived.discard(future)

    async def _submit(
        self, position: Position, records: list[PendingRecord], future: asyncio.Future[int], generation: int
    ) -> None:
        await self.way_there()
        if generation != self._generation:
            return  # its producer is gone
        if position[0].startswith("mqtt.") and self.strikes("append refused", 0.2):
            await self.way_back()
            if not future.done():
                future.set_exception(RecordRefused("refused by the simulation", divisible=False))
            return
        offset = self.log.append(position, records)
        self._arrived.add(future)
        if self.strikes("append answered late"):
            await asyncio.sleep(self._rng.uniform(0.1, 3.0))
        await self.way_back()
        if not future.done():
            future.set_result(offset)

    async def renew_producer(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.way_there()
                await self.way_back()
        except TimeoutError:
            raise LogUnavailable("no producer id") from None
        self._generation += 1
        self.faults["producer renewed"] += 1
        for future in list(self._open):
            if not future.done():
                future.set_exception(ProducerPoisoned("the producer was renewed"))

    async def end_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        return await self._ask(lambda: {position: self.log.partition(position).end for position in partitions})

    async def start_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        return await self._ask(lambda: {position: self.log.partition(position).start for position in partitions})

    async def _ask(self, answer: Callable[[], dict[Position, int]]) -> dict[Position, int]:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.way_there()
                answered = answer()
                await self.way_back()
                return answered
        except TimeoutError:
            raise LogUnavailable("no answer") from None

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> NodeConsumer:
        consumer = NodeConsumer(self, group_id, read_committed=read_committed)
        self.log.add_consumer(consumer)
        self.consumers.append(consumer)
        return consumer

    def transactional_producer(self, transactional_id: str) -> NodeTransactionalProducer:
        return NodeTransactionalProducer(self, transactional_id)

    def leases(self) -> NodeLeases:
        assert isinstance(self.log.groups, SimulatedGroups)
        return NodeLeases(self, self.log.groups)

    def statistics(self) -> dict[str, Any]:
        return {}

    def kill(self) -> None:
        """The process is gone: what was under way to the log comes there or not, and nothing listens any more."""
        for future, (position, records) in self._open.items():
            if future not in self._arrived and not self.is_cut and self._rng.random() < 0.5:
                self.log.append(position, records)
        for consumer in list(self.consumers):
            self.log.consumer_stopped(consumer)
        self.consumers.clear()


class NodeConsumer(MemoryLogConsumer):
    """Reads what is in the log a little later, and nothing while the edge is cut off."""

    def __init__(self, node: NodeLog, group_id: str | None, *, read_committed: bool) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._moved = False
        super().__init__(node.log, group_id, read_committed=read_committed)
        self._node = node

    async def fetch(self, timeout_s: float) -> list[tuple[Position, Sequence[Record]]]:
        if self._stopped:
            raise LogUnavailable("the reader was stopped")
        loop = self._node.process.loop
        deadline = loop.time() + timeout_s
        while not self._stopped:
            self._moved = False
            if (fetched := self._take()) or self._moved:
                return fetched
            if loop.time() >= deadline:
                break
            self._waiter = loop.create_future()
            timer = loop.call_at(deadline, _resolve, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return []

    def wake(self) -> None:
        """Something came: it is read a little later."""
        if self._waiter is not None:
            process = self._node.process
            process.call_at(process.loop.time() + self._node.delay_s(), _resolve, self._waiter)

    def _take(self) -> list[tuple[Position, Sequence[Record]]]:
        if self._node.is_cut or self._node.loses_answers:
            return []
        before = sum(self._positions.values())
        fetched = super()._take()
        self._moved = sum(self._positions.values()) != before
        return fetched

    async def stop(self) -> None:
        if not self._stopped and self in self._node.consumers:
            self._node.consumers.remove(self)
        await super().stop()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class NodeTransactionalProducer:
    """Transactions from one edge. `end_transaction` is what `MemoryLog.take_over` asks of the former holder."""

    def __init__(self, node: NodeLog, transactional_id: str) -> None:
        self._node = node
        self._log = node.log
        self._transactional_id = transactional_id
        self._transaction: _Transaction | None = None
        self._usable = False
        self._busy = False

    async def start(self) -> None:
        with self._alone():
            self._usable = False
            try:
                async with asyncio.timeout(START_S):
                    await self._node.way_there()
                    self._log.take_over(self._transactional_id, self)  # type: ignore[arg-type]
                    await self._node.way_back()
            except TimeoutError:
                raise LogUnavailable(f"{self._transactional_id} was not taken") from None
            self._usable = True

    async def commit(
        self, records: Sequence[tuple[Position, PendingRecord]], marks: Sequence[GroupMarks] = ()
    ) -> list[int]:
        with self._alone():
            assert self._usable, "start the producer first"
            self._usable = False
            try:
                offsets = await self._write(records, marks)
                await self._end()
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
    def _alone(self) -> Any:
        assert not self._busy, "one start or commit at a time"
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def _write(self, records: Sequence[tuple[Position, PendingRecord]], marks: Sequence[GroupMarks]) -> list[int]:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._node.way_there()
                self._check_held()
                self.end_transaction(aborted=True)  # what an earlier try has left open
                transaction = self._transaction = _Transaction()
                offsets = [self._log.append_in(transaction, position, record) for position, record in records]
                try:
                    self._log.store_marks(transaction, marks)
                except TransactionAborted:
                    self.end_transaction(aborted=True)
                    raise
                outside = self._node.process.loop.outside
                outside.call_at(outside.loop.time() + TRANSACTION_TIMEOUT_S, self._expire, transaction)
                await self._node.way_back()
        except TimeoutError:
            raise TransactionAborted("not written in time") from None
        if self._node.strikes("transaction aborted"):
            self._check_held()
            self.end_transaction(aborted=True)
            raise TransactionAborted("by the simulation")
        return offsets

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(END_S):
                if self._node.strikes("commit not asked"):
                    await asyncio.sleep(END_S)
                await self._node.way_there()
                self._check_held()
                if self._transaction is None:
                    raise ProducerFenced("the log has timed the transaction out")
                self.end_transaction(aborted=False)
                if self._node.strikes("commit not answered"):
                    await asyncio.sleep(END_S)
                await self._node.way_back()
        except TimeoutError:
            raise CommitUnknown("the commit was not answered") from None

    def _expire(self, transaction: _Transaction) -> None:
        """The log's own time-out."""
        if self._transaction is transaction:
            self._node.faults["transaction timed out"] += 1
            self.end_transaction(aborted=True)

    def _check_held(self) -> None:
        if not self._log.holds(self._transactional_id, self):  # type: ignore[arg-type]
            raise ProducerFenced(f"another producer has started as {self._transactional_id}")
