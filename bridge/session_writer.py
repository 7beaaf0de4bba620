"""All writes of an edge to `headwater.sessions`, with the QoS 2 messages that belong to them: group commits.

One transaction at a time holds all writes that wait; what comes meanwhile gathers for the next. Outcomes come to the
sinks in the order of the writes, then ``after_batch`` runs once. What happens to a write, exactly one of::

    stored(token, offsets)       committed; offsets are -1 when that was found out only later
    store_refused(token, error)  definite: nothing of it is in the log
    store_lost(token)            the session has another owner (or none): nothing of it is in the log
    store_unknown(token)         nobody knows after 30 s: close the connection without an answer

Who may write: the transactional id is this node's. Before another node goes on with a session that we have not released
it takes the id from us, after its claim is in the log. From then on our commits fail; to get the id back we `start`,
and only then read the claims to their end. So we know of every claim for whose sake we were fenced, and renounce what
it superseded: these sessions' writes are dropped. The same is done after every other `start`, whatever it was for.
Between two starts a superseded owner may store what its connection has come to: who wants to go on without waiting for
its release must fence us first.

Each transaction has a record with its number in it, so that a commit without an answer is settled: start again, read to
the end, and see whether the number is there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from math import inf
from typing import Any, Protocol, TypeAlias

from bridge.log import (
    GroupMarks,
    LogError,
    MarksRefused,
    PendingRecord,
    Position,
    ProducerFenced,
    RecordRefused,
    TransactionAborted,
    TransactionalProducer,
)

logger = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 2_000  # completing one holds the loop for about 2 ms
BATCH_BYTES_MAX = 1024 * 1024
BUFFER_BYTES_MAX = 64 * 1024 * 1024  # what an edge keeps while Kafka does not answer
UNKNOWN_AFTER_S = 30.0  # design section 5
TICK_S = 0.5  # how often the age of what waits is looked at
LINGER_SHARE = 0.05  # of a transaction's time: so long the next one waits for what clients answer to this one
LINGER_S_MIN, LINGER_S_MAX = 0.001, 0.05  # only where Kafka is far away
RETRY_S_MIN, RETRY_S_MAX = 0.05, 1.0
RECORD_OVERHEAD_BYTES = 96

Records = Sequence[tuple[Position, PendingRecord]]


class SessionLost(LogError):  # noqa: N818
    """The session has another owner now, or was released or forgotten: nothing was written."""


class HandoverRefused(RecordRefused):
    """The group cannot give the message to the session now: nothing was written, and it is still the group's."""


class MarksSource(Protocol):
    """A shared subscription's group on this node: it knows its marks at the moment of the transaction."""

    def marks_with(self, steps: Sequence[MarksStep]) -> GroupMarks | None:
        """What to store if these steps happen; None: nothing can be stored now."""
        ...

    def marks_stored(self, marks: GroupMarks) -> None:
        """They are committed."""
        ...

    def marks_refused(self, marks: GroupMarks) -> None:
        """The group does not know the member in that generation."""
        ...

    def marks_doubtful(self) -> None:
        """A step's outcome will never be known."""
        ...


class MarksStep(Protocol):
    """What a write changes in a group's marks: `bridge.shared.group.Handover`."""

    @property
    def source(self) -> MarksSource: ...
    def is_possible(self) -> bool:
        """Whether it may still happen."""
        ...


class JustMarks:
    """The step that is none: what has moved is to be stored."""

    def __init__(self, source: MarksSource) -> None:
        self.source = source

    def is_possible(self) -> bool:
        return True


Place: TypeAlias = Callable[[Position, bytes | None], Position]


class StoreSink(Protocol):
    """Who wants to know what became of a write."""

    def stored(self, token: Any, offsets: list[int]) -> None:
        """It is committed; ``offsets`` in the order of its records, -1 when they are not known."""
        ...

    def store_refused(self, token: Any, error: RecordRefused) -> None: ...

    def store_lost(self, token: Any) -> None: ...

    def store_unknown(self, token: Any) -> None: ...


class _Write:
    __slots__ = ("at_s", "client_id", "count", "epoch", "records", "sink", "size_bytes", "step", "token")

    def __init__(
        self,
        client_id: str,
        epoch: int,
        records: Records,
        count: int,
        sink: StoreSink | None,
        token: Any,
        at_s: float,
        step: MarksStep | None,
    ) -> None:
        self.client_id = client_id
        self.epoch = epoch
        self.records = records
        self.count = count  # of the records whose offsets the sink is told
        self.sink = sink
        self.token = token
        self.step = step
        self.at_s = at_s  # inf: its outcome was told
        self.size_bytes = sum(
            RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") for _, (key, value, _) in records
        )


class SessionWriter:
    """Belongs to one event loop.

    Args:
        producer: with this node's transactional id.
        may_write: whether (client id, epoch) may be stored.
        renounce_superseded: reads the claims to their end as of now; what was superseded may not be stored any more.
        marker: makes the record of a number, for a transaction that writes to these partitions.
        was_committed: reads to the end as of now; whether the number is there, in the partition of its record.
        after_batch: runs once when the outcomes of a transaction have been told.
        place: where a record of a position and key goes, asked right before it is sent.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        may_write: Callable[[str, int], bool],
        renounce_superseded: Callable[[], Awaitable[None]],
        marker: Callable[[int, Records], tuple[Position, PendingRecord]],
        was_committed: Callable[[int, Position], Awaitable[bool]],
        after_batch: Callable[[], None] | None = None,
        *,
        unknown_after_s: float = UNKNOWN_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        place: Place | None = None,
    ) -> None:
        self._place = place
        self._may_go_on = asyncio.Event()  # cleared while `pause`d
        self._may_go_on.set()
        self._producer = producer
        self._may_write = may_write
        self._renounce_superseded = renounce_superseded
        self._marker = marker
        self._was_committed = was_committed
        self._after_batch = after_batch
        self._unknown_after_s = unknown_after_s
        self._clock = clock
        self._waiting: deque[_Write] = deque()
        self._waiting_bytes = 0
        self._in_hand: list[_Write] = []  # of the transaction under way, without those whose outcome was told
        self._number = 0
        self._unsettled: tuple[int, Position] | None = None  # the marker of a commit that nobody has answered
        self._needs_start = True
        self._work = asyncio.Event()
        self._settled = asyncio.Event()  # set while no transaction is under way
        self._settled.set()
        self._task: asyncio.Task[None] | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._counts = dict.fromkeys(
            (
                "transactions",
                "writes",
                "records",
                "lost_writes",
                "refused_writes",
                "unknown_writes",
                "fenced",
                "starts",
                "aborted",
                "found_committed",
                "sink_errors",
            ),
            0,
        )

    async def start(self) -> None:
        """Take the transactional id: an earlier process of this node is fenced, its open transaction ended.

        Raises:
            LogUnavailable: Kafka does not answer.
        """
        await self._producer.start()
        self._counts["starts"] += 1
        self._needs_start = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="headwater-sessions")

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Give what waits ``timeout_s``, then report the rest as unknown."""
        if self._task is None:
            return
        self.go_on()
        try:
            async with asyncio.timeout(timeout_s):
                while self._waiting or self._in_hand:
                    await self._settled.wait()
                    await asyncio.sleep(0)
        except TimeoutError:
            pass
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.expire(inf)
        self._in_hand = []
        self._settled.set()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        await self._producer.stop()

    def write(
        self,
        client_id: str,
        epoch: int,
        records: Records,
        count: int,
        sink: StoreSink | None,
        token: Any,
        step: MarksStep | None = None,
    ) -> None:
        """Put a write in line: all of its records or none. ``count``: the sink is told the offsets of so many.

        With a ``step`` the marks of its group are stored in the same transaction, as if it had been done. Without a
        client id it is nobody's, and nothing but the step.
        """
        write = _Write(client_id, epoch, records, count, sink, token, self._clock(), step)
        self._waiting.append(write)
        self._waiting_bytes += write.size_bytes
        self._work.set()
        if self._tick_handle is None:
            self._tick_handle = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    async def settled(self) -> None:
        """Until the transaction that is under way now, if any, has an outcome."""
        if self._in_hand:
            await self._settled.wait()

    @property
    def is_full(self) -> bool:
        """So much waits that nobody should add to it. Nothing is refused: who answers to a client decides."""
        return self._waiting_bytes >= BUFFER_BYTES_MAX

    def statistics(self) -> dict[str, int]:
        return {
            **self._counts,
            "waiting_writes": len(self._waiting),
            "waiting_bytes": self._waiting_bytes,
            "in_hand": len(self._in_hand),
        }

    def expire(self, now_s: float) -> None:
        """Report as unknown what has waited for 30 s at ``now_s``. What was not sent yet is thrown away with that.

        So is what came from the same sink behind it: a later message of a publisher must not be in the log without the
        earlier one, which comes again (invariant I3). Its connection is about to be closed.
        """
        limit_s = now_s - self._unknown_after_s
        if not any(write.at_s <= limit_s for write in (*self._in_hand, *islice(self._waiting, 1))):
            return
        before = self._counts["unknown_writes"]
        late: set[tuple[str, int, int]] = set()
        kept: deque[_Write] = deque()
        for write in (*self._in_hand, *self._waiting):
            if write.at_s == inf:
                continue
            source = (write.client_id, write.epoch, id(write.sink))
            if write.at_s <= limit_s or (write.sink is not None and source in late):
                late.add(source)
                self._tell_unknown(write)
        for write in self._waiting:
            if write.at_s == inf:
                self._waiting_bytes -= write.size_bytes
            else:
                kept.append(write)
        self._waiting = kept
        if self._counts["unknown_writes"] != before:
            self._end_batch()

    async def pause(self) -> None:
        """Begin no transaction until `go_on`; returns when the one under way is settled."""
        self._may_go_on.clear()
        await self._settled.wait()

    def go_on(self) -> None:
        """Undo `pause`."""
        self._may_go_on.set()

    # Transactions

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            await self._may_go_on.wait()
            self._in_hand = self._next_batch()
            if not self._waiting:
                self._work.clear()
            self._settled.clear()
            began_s = self._clock()
            await self._settle(self._in_hand)  # cancelled only by `stop`, which reports what is in hand
            self._in_hand = []
            self._settled.set()
            linger_s = min((self._clock() - began_s) * LINGER_SHARE, LINGER_S_MAX)
            if linger_s >= LINGER_S_MIN:  # a PUBREL that comes now need not wait for a whole transaction
                await asyncio.sleep(linger_s)

    def _next_batch(self) -> list[_Write]:
        """As many writes as fit, at least one."""
        batch: list[_Write] = []
        count = size_bytes = 0
        while self._waiting:
            write = self._waiting[0]
            count += len(write.records)
            size_bytes += write.size_bytes
            if batch and (count > BATCH_RECORDS_MAX or size_bytes > BATCH_BYTES_MAX):
                break
            batch.append(self._waiting.popleft())
            self._waiting_bytes -= write.size_bytes
        return batch

    async def _settle(self, batch: list[_Write], *, is_part: bool = False) -> None:
        """Until each write of the batch has its outcome."""
        retry_s = RETRY_S_MIN
        while batch := [write for write in batch if write.at_s != inf]:
            try:
                if self._needs_start:
                    await self._start_again()
                if self._unsettled is not None and await self._is_committed(*self._unsettled):
                    self._counts["found_committed"] += 1
                    self._tell_stored(batch, None)
                    break
                batch = self._without_lost(batch)
                batch, marks = self._with_marks(batch)
                if not batch:
                    break
                try:
                    offsets = await self._commit(batch, [each for _, each in marks])
                except MarksRefused as error:
                    batch = self._without_refused(batch, marks, error)
                    continue
                for source, stored in marks:
                    source.marks_stored(stored)
                self._tell_stored(batch, offsets)
                break
            except RecordRefused as error:
                if len(batch) == 1:
                    self._tell_refused(batch[0], error)
                else:
                    for write in batch:
                        await self._settle([write], is_part=True)
                break
            except LogError as error:
                logger.warning("sessions are not stored yet: %s", error)
                self._counts["aborted"] += isinstance(error, TransactionAborted)
                self._counts["fenced"] += isinstance(error, ProducerFenced)
            except Exception:
                logger.exception("a transaction failed unexpectedly; trying again")
                self._needs_start = True
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, RETRY_S_MAX)
        self._unsettled = None
        if not is_part:
            self._end_batch()

    async def _start_again(self) -> None:
        """Get the transactional id (back), then know of every claim that was there when it was not ours."""
        await self._producer.start()
        self._counts["starts"] += 1
        await self._renounce_superseded()
        self._needs_start = False

    async def _is_committed(self, number: int, position: Position) -> bool:
        if await self._was_committed(number, position):
            return True
        self._unsettled = None
        return False

    async def _commit(self, batch: list[_Write], marks: Sequence[GroupMarks]) -> list[int]:
        records = [record for write in batch for record in write.records]
        if (place := self._place) is not None:
            records = [(place(position, record[0]), record) for position, record in records]
        self._number += 1
        marker = self._marker(self._number, records)
        records.append(marker)
        self._needs_start = True  # unless it turns out to be definite
        self._unsettled = (self._number, marker[0])
        try:
            offsets = await self._producer.commit(records, marks)
        except (RecordRefused, TransactionAborted):
            self._needs_start, self._unsettled = False, None
            raise
        self._needs_start, self._unsettled = False, None
        self._counts["transactions"] += 1
        self._counts["records"] += len(records)
        return offsets

    def _without_lost(self, batch: list[_Write]) -> list[_Write]:
        kept = []
        for write in batch:
            if not write.client_id or self._may_write(write.client_id, write.epoch):
                kept.append(write)
            elif self._take_outcome(write, "lost_writes"):
                self._call(write, lambda sink, token: sink.store_lost(token))
        return kept

    def _with_marks(self, batch: list[_Write]) -> tuple[list[_Write], list[tuple[MarksSource, GroupMarks]]]:
        """The writes that can happen now, with the marks to be stored: as of this moment, for a batch may wait long."""
        steps: dict[MarksSource, list[MarksStep]] = {}
        for write in batch:
            if write.step is not None and write.step.is_possible():
                steps.setdefault(write.step.source, []).append(write.step)
        found = {source: source.marks_with(of_source) for source, of_source in steps.items()}
        kept = []
        for write in batch:
            step = write.step
            if step is None or (step.is_possible() and found.get(step.source) is not None):
                kept.append(write)
            else:
                self._tell_refused(write, HandoverRefused("the group's partition is not served here at this moment"))
        return kept, [(source, marks) for source, marks in found.items() if marks is not None and marks.marks]

    def _without_refused(
        self, batch: list[_Write], marks: list[tuple[MarksSource, GroupMarks]], error: MarksRefused
    ) -> list[_Write]:
        refused = {source: each for source, each in marks if each.group_id in error.group_ids}
        for source, each in refused.items():
            source.marks_refused(each)
        for write in batch:
            if write.step is not None and write.step.source in refused:
                self._tell_refused(write, HandoverRefused(error.reason))
        return [write for write in batch if write.at_s != inf]

    # Outcomes

    def _tell_stored(self, batch: list[_Write], offsets: list[int] | None) -> None:
        start = 0
        for write in batch:
            if self._take_outcome(write, "writes"):
                sink = write.sink
                if sink is not None:
                    told = [-1] * write.count if offsets is None else offsets[start : start + write.count]
                    try:
                        sink.stored(write.token, told)
                    except Exception:
                        self._sink_failed()
            start += len(write.records)

    def _tell_refused(self, write: _Write, error: RecordRefused) -> None:
        if self._take_outcome(write, "refused_writes"):
            self._call(write, lambda sink, token: sink.store_refused(token, error))

    def _tell_unknown(self, write: _Write) -> None:
        if self._take_outcome(write, "unknown_writes"):
            self._call(write, lambda sink, token: sink.store_unknown(token))

    def _take_outcome(self, write: _Write, count: str) -> bool:
        """Whether this is the write's first outcome: it is told one only."""
        if write.at_s == inf:
            return False
        write.at_s = inf
        self._counts[count] += 1
        return True

    def _call(self, write: _Write, tell: Callable[[StoreSink, Any], None]) -> None:
        if write.sink is not None:
            try:
                tell(write.sink, write.token)
            except Exception:
                self._sink_failed()

    def _sink_failed(self) -> None:
        self._counts["sink_errors"] += 1
        logger.exception("a sink raised; its write's outcome is lost to it")

    def _end_batch(self) -> None:
        if self._after_batch is not None:
            self._after_batch()

    def _tick(self) -> None:
        self._tick_handle = None
        if self._waiting or self._in_hand:  # else the next write starts it again
            self._tick_handle = asyncio.get_running_loop().call_later(TICK_S, self._tick)
            self.expire(self._clock())
