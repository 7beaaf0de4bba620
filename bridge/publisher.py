"""Appends messages to the log in batches: the way in.

One list per partition (a lane) gathers what is published while the lane's previous batch is on its way; at most one
batch per lane is in flight, so order needs no more thought. ``append`` neither waits nor makes a future: the outcome of
each record comes to its sink, in order, when its batch is done, then ``after_batch`` runs once so that an edge writes
all the answers of a batch together.

What happens to a record, exactly one of::

    record_appended(token, offset)   it is in the log on all in-sync replicas
    record_refused(token, error)     definite: it is not in the log and never will be
    record_unknown(token)            nobody knows after 30 s of trying: close the connection without an answer

A run (``append_run``: records of one destination that came together) is one entry from end to end and has one outcome,
``records_appended``, unless something went wrong with it: then each of its records has its own.

A record with sink None (QoS 0) is fire and forget; when the buffer is full the newest of these is dropped and counted.

The supervisor: when the log says that its producer is poisoned, or keeps a batch longer than 30 s, the producer is
renewed and what is pending is sent again, in order. Batches that were in flight may then be in the log twice: they are
counted as ``resent_records``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Any, Protocol, TypeAlias, runtime_checkable

from bridge.log import Headers, Log, LogError, LogUnavailable, PendingRecord, Position, ProducerPoisoned, RecordRefused
from bridge.partitioning import Destination

log = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 2_000  # completing one batch holds the loop for about 1 ms
BATCH_BYTES_MAX = 256 * 1024  # FACTS: beyond it aiokafka gains nothing, and a lost answer costs more
BUFFER_BYTES_MAX = 64 * 1024 * 1024  # what an edge keeps while Kafka does not answer
UNKNOWN_AFTER_S = 30.0  # design §5
TICK_S = 0.5  # how often the age of what is outstanding is looked at
RETRY_S_MIN, RETRY_S_MAX = 0.05, 1.0
HOLD_S, HOLD_AGAIN_S = 0.01, 0.1  # `hold`: an answer takes 2 ms; a tenth of the time at most
RECORD_OVERHEAD_BYTES = 96  # framing in the log, our own tuples
PLAIN_HEADERS = (
    3  # Topic Name, client id, QoS: shared by all records of a session and Topic Name, so not counted one by one
)
HEADER_OVERHEAD_BYTES = 16


class AppendSink(Protocol):
    """Who wants to know what became of a record."""

    def record_appended(self, token: Any, offset: int) -> None:
        """It is in the log; ``offset`` is -1 when Kafka knew it already but not where."""
        ...

    def record_refused(self, token: Any, error: RecordRefused) -> None: ...

    def record_unknown(self, token: Any) -> None: ...


@runtime_checkable
class MovableSink(AppendSink, Protocol):
    """Who has to know where its records are."""

    def record_moved(self, token: Any, destination: Destination) -> None:
        """It was not sent yet, and goes to another partition than it was appended to."""
        ...


class RunSink(AppendSink, Protocol):
    """Who appends runs."""

    def records_appended(self, tokens: list[Any], base_offset: int) -> None:
        """All records of a run are in the log, from ``base_offset`` on; -1 as above."""
        ...


_Entry: TypeAlias = tuple[Any, Sequence[Any], float, int, int]
"""What completion needs of a record or a run: (sink, tokens, appended at, size, records). ``inf`` as the time: already
reported. The sink is None, an AppendSink, or, with more than one record, a RunSink; a token for each record."""


class _Batch:
    __slots__ = ("entries", "generation", "records")

    def __init__(self, records: list[PendingRecord], entries: list[_Entry]) -> None:
        self.records = records
        self.entries = entries
        self.generation = 0


class _Lane:
    """One partition: what waits, what must go again first, what is in flight."""

    __slots__ = (
        "again",
        "dirty",
        "entries",
        "future",
        "hold_again_at",
        "in_flight",
        "is_held",
        "known_end",
        "position",
        "records",
        "size_bytes",
    )

    def __init__(self, position: Position) -> None:
        self.position = position
        self.records: list[PendingRecord] = []
        self.entries: list[_Entry] = []
        self.size_bytes = 0  # of what waits
        self.again: deque[_Batch] = deque()
        self.in_flight: _Batch | None = None
        self.future: asyncio.Future[int] | None = None
        self.dirty = False
        self.is_held = False
        self.hold_again_at = 0.0
        self.known_end = 0

    @property
    def idle(self) -> bool:
        return self.in_flight is None and not self.again and not self.records


class Publisher:
    """Batches records per partition onto a log. Belongs to one event loop; starts by itself, ends with ``stop``."""

    def __init__(
        self,
        target: Log,
        after_batch: Callable[[], None] | None = None,
        *,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        unknown_after_s: float = UNKNOWN_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = target
        self._after_batch = after_batch
        self._buffer_bytes_max = buffer_bytes_max
        self._unknown_after_s = unknown_after_s
        self._clock = clock
        self._now_s = clock()  # as of the last tick, or of the first record after nothing was open
        self._lanes: dict[Position, _Lane] = {}
        self._dirty: list[_Lane] = []
        self._resting: list[_Lane] = []  # dirty ones that wait for the next try
        self._buffered_bytes = 0
        self._flush_handle: asyncio.Handle | None = None
        self._retry_handle: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_S_MIN
        self._tick_handle: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._generation = 1
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._frozen: set[str] = set()  # Kafka topics of which nothing new is sent
        self._leased: frozenset[str] = frozenset()  # of these nothing at all is sent without a lease
        self._lease_until_s = inf
        self._still_waiters: list[tuple[str, asyncio.Future[None]]] = []
        self._stopped = False
        self._counts = dict.fromkeys(
            (
                "appended_records",
                "appended_batches",
                "refused_records",
                "unknown_records",
                "dropped_records",
                "resent_records",
                "renewals",
                "sink_errors",
            ),
            0,
        )

    def append(
        self, destination: Destination, value: bytes | None, headers: Headers, sink: AppendSink | None, token: Any
    ) -> None:
        """Put one record in line; what became of it comes to ``sink`` with ``token``. Never waits."""
        record = (destination.key, value, headers)
        size = _size_of(record)
        if sink is None and self._buffered_bytes + size > self._buffer_bytes_max:
            self._counts["dropped_records"] += 1
            return
        lane = self._lane_for(destination.position, size)
        lane.records.append(record)
        lane.entries.append((sink, (token,), self._now_s, size, 1))

    def append_run(
        self,
        destination: Destination,
        values: Sequence[bytes],
        headers: Headers,
        sink: RunSink | None,
        tokens: list[Any],
    ) -> None:
        """The same for records that came together and share all but their values; a token for each, none for None."""
        key, count = destination.key, len(values)
        size = _size_of((key, None, headers)) * count + sum(map(len, values))
        if (
            count > BATCH_RECORDS_MAX
            or size > BATCH_BYTES_MAX
            or (sink is None and self._buffered_bytes + size > self._buffer_bytes_max)
        ):
            for index, value in enumerate(values):
                self.append(destination, value, headers, sink, tokens[index] if sink is not None else None)
            return
        lane = self._lane_for(destination.position, size)
        lane.records += [(key, value, headers) for value in values]
        lane.entries.append((sink, tokens, self._now_s, size, count))

    def _lane_for(self, position: Position, size: int) -> _Lane:
        """The lane, which is about to have that much more in it."""
        lane = self._lanes.get(position)
        if lane is None:
            lane = self._lanes[position] = _Lane(position)
        if not self._buffered_bytes:
            self._now_s = self._clock()
        lane.size_bytes += size
        self._buffered_bytes += size
        if not lane.dirty and lane.in_flight is None:
            lane.dirty = True
            self._dirty.append(lane)
            if self._flush_handle is None:
                self._schedule_flush()
        return lane

    def hold(self, positions: Iterable[Position]) -> Callable[[], None]:
        """Send nothing more of these partitions until the function that this returns is called, 10 ms at most.

        For whoever is about to ask where they end: what comes here meanwhile will be behind that. A partition is not
        held again for 100 ms, so that many who ask do not keep those waiting who publish.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        held: list[_Lane] = []
        for position in positions:
            lane = self._lanes.get(position)
            if lane is None:
                lane = self._lanes[position] = _Lane(position)
            if now_s >= lane.hold_again_at:
                lane.is_held, lane.hold_again_at = True, now_s + HOLD_AGAIN_S
                held.append(lane)

        def release() -> None:
            timer.cancel()
            for lane in held:
                lane.is_held = False
                if not lane.idle and lane.in_flight is None and not lane.dirty:
                    lane.dirty = True
                    self._dirty.append(lane)
            held.clear()
            if self._dirty and self._flush_handle is None and not self._stopped:
                self._schedule_flush()

        timer = loop.call_later(HOLD_S, release)
        return release

    def lease(self, kafka_topics: frozenset[str], until_s: float) -> None:
        """Records of these Kafka topics may be sent until then, on this publisher's clock; what waited goes now."""
        self._leased, self._lease_until_s = kafka_topics, until_s
        for lane in self._lanes.values():
            if not lane.idle and lane.in_flight is None and not lane.dirty and lane.position[0] in kafka_topics:
                lane.dirty = True
                self._dirty.append(lane)
        if self._dirty and self._flush_handle is None and not self._stopped:
            self._schedule_flush()

    @property
    def has_lease(self) -> bool:
        return self._clock() <= self._lease_until_s

    async def freeze(self, kafka_topic: str) -> None:
        """Send nothing new of this Kafka topic until `thaw`; returns when what was on its way is settled."""
        self._frozen.add(kafka_topic)
        if not self._is_still(kafka_topic):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._still_waiters.append((kafka_topic, waiter))
            await waiter

    def thaw(self, kafka_topic: str, place: Callable[[Position, bytes | None], Position]) -> None:
        """Go on; what waits goes where ``place`` says of its position and key. Records of one key keep their order."""
        self._frozen.discard(kafka_topic)
        waiting: list[tuple[_Entry, list[PendingRecord], Position]] = []
        for lane in self._lanes.values():
            if lane.position[0] == kafka_topic:
                at = 0
                for entry in lane.entries:
                    waiting.append((entry, lane.records[at : at + entry[4]], lane.position))
                    at += entry[4]
                lane.records, lane.entries, lane.size_bytes = [], [], 0
        waiting.sort(key=lambda each: each[0][2])  # by age, as `expire` needs it
        for entry, records, position in waiting:
            self._requeue(entry, records, position, place(position, records[0][0]))
        for lane in self._lanes.values():
            if lane.position[0] == kafka_topic and not lane.idle and lane.in_flight is None and not lane.dirty:
                lane.dirty = True
                self._dirty.append(lane)
        if self._dirty and self._flush_handle is None and not self._stopped:
            self._schedule_flush()

    def _requeue(self, entry: _Entry, records: list[PendingRecord], old: Position, new: Position) -> None:
        lane = self._lanes.get(new)
        if lane is None:
            lane = self._lanes[new] = _Lane(new)
        lane.records += records
        lane.entries.append(entry)
        lane.size_bytes += entry[3]
        sink = entry[0]
        if new != old and isinstance(sink, MovableSink):
            for token in entry[1]:
                sink.record_moved(token, Destination(*new, records[0][0] or b""))

    def _is_still(self, kafka_topic: str) -> bool:
        return not any(
            lane.position[0] == kafka_topic and (lane.in_flight is not None or lane.again)
            for lane in self._lanes.values()
        )

    def _tell_still(self) -> None:
        for each in list(self._still_waiters):
            kafka_topic, waiter = each
            if waiter.done() or self._is_still(kafka_topic):
                self._still_waiters.remove(each)
                if not waiter.done():
                    waiter.set_result(None)

    def append_future(self, destination: Destination, value: bytes | None, headers: Headers) -> asyncio.Future[int]:
        """The same for the few records that a task waits for (heartbeats, claims): the future is the offset.

        It fails with RecordRefused, or with LogUnavailable when nobody knows.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.append(destination, value, headers, FUTURE_SINK, future)
        return future

    @property
    def is_full(self) -> bool:
        """The buffer is full: read no more from publishers until a batch is done."""
        return self._buffered_bytes >= self._buffer_bytes_max

    def known_end(self, kafka_topic: str, partition: int) -> int:
        """One more than the highest offset that was acknowledged to us in the partition; 0 when none was."""
        lane = self._lanes.get((kafka_topic, partition))
        return lane.known_end if lane is not None else 0

    async def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is outstanding, at most ``timeout_s``; whether that is so."""
        if not self._buffered_bytes:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle_waiters.append(waiter)
        await asyncio.wait([waiter], timeout=timeout_s)
        return waiter.done()

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Give what is outstanding ``timeout_s``, then report the rest as unknown."""
        await self.flush(timeout_s)
        self._stopped = True
        self.expire(inf)
        for handle in (self._flush_handle, self._retry_handle, self._tick_handle):
            if handle is not None:
                handle.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

    def statistics(self) -> dict[str, Any]:
        return {
            **self._counts,
            "buffered_bytes": self._buffered_bytes,
            "in_flight_batches": sum(lane.in_flight is not None for lane in self._lanes.values()),
            "lanes": len(self._lanes),
        }

    def expire(self, now_s: float) -> None:
        """Report as unknown every record that has been outstanding for 30 s at ``now_s``.

        What was never sent is thrown away with that; a batch in flight whose last record is given up has the producer
        renewed, for it will not come back by itself (FACTS: a future once hung 27.7 s). What came to the partition from
        the same sink later goes the same way: a publisher's later message must not be in the log without the earlier
        one, which comes again (invariant I3). Its connection is about to be closed.
        """
        if now_s != inf:
            self._now_s = now_s
        limit_s = now_s - self._unknown_after_s
        before = self._counts["unknown_records"]
        for lane in list(self._lanes.values()):
            late: set[int] = set()  # sinks
            if lane.in_flight is not None and self._expire_entries(lane.in_flight.entries, limit_s, late):
                self._start_renewal()
            if lane.again:
                for batch in lane.again:
                    self._expire_entries(batch.entries, limit_s, late)
                lane.again = deque(kept for batch in lane.again if (kept := self._without_reported(batch)) is not None)
            self._drop_expired(lane, limit_s, late)
        if self._counts["unknown_records"] != before and self._after_batch is not None:
            self._after_batch()
        self._wake_if_idle()
        self._tell_still()

    # Sending

    def _schedule_flush(self) -> None:
        loop = asyncio.get_running_loop()
        self._flush_handle = loop.call_soon(self._flush)
        if self._tick_handle is None:
            self._tick_handle = loop.call_later(TICK_S, self._tick)

    def _flush(self) -> None:
        self._flush_handle = None
        if self._renewal is not None or self._stopped:
            return  # the end of the renewal flushes
        lanes, self._dirty = self._dirty, []
        for lane in lanes:
            lane.dirty = False
            if lane.in_flight is None:
                self._submit(lane)

    def _submit(self, lane: _Lane) -> None:
        if lane.is_held:
            return  # `release` comes back to it
        if lane.position[0] in self._leased and self._clock() > self._lease_until_s:
            return  # `lease` comes back to it
        if lane.again:
            batch: _Batch | None = lane.again.popleft()
        else:
            batch = self._next_batch(lane) if lane.position[0] not in self._frozen else None
        if batch is None:
            return
        batch.generation = self._generation
        lane.in_flight = batch
        lane.future = self._log.submit(lane.position[0], lane.position[1], batch.records)
        lane.future.add_done_callback(lambda future: self._completed(lane, future))

    def _next_batch(self, lane: _Lane) -> _Batch | None:
        if not lane.records:
            return None
        if len(lane.records) <= BATCH_RECORDS_MAX and lane.size_bytes <= BATCH_BYTES_MAX:
            batch = _Batch(lane.records, lane.entries)
            lane.records, lane.entries, lane.size_bytes = [], [], 0
            return batch
        taken = count = size = 0
        for entry in lane.entries:
            if taken and (count + entry[4] > BATCH_RECORDS_MAX or size + entry[3] > BATCH_BYTES_MAX):
                break  # a record larger than a batch goes alone
            taken, count, size = taken + 1, count + entry[4], size + entry[3]
        batch = _Batch(lane.records[:count], lane.entries[:taken])
        del lane.records[:count], lane.entries[:taken]
        lane.size_bytes -= size
        return batch

    # Completion

    def _completed(self, lane: _Lane, future: asyncio.Future[int]) -> None:
        error = LogUnavailable("cancelled") if future.cancelled() else future.exception()
        if lane.future is not future:
            return
        batch = lane.in_flight
        assert batch is not None, "a lane has a future exactly while a batch is in flight"
        lane.in_flight = lane.future = None
        if error is None:
            self._appended(lane, batch, future.result())
        elif isinstance(error, RecordRefused):
            self._refused(lane, batch, error)
        else:
            self._failed(lane, batch, error)
        if not self._stopped and self._renewal is None and (lane.records or lane.again) and not lane.dirty:
            if error is None or isinstance(error, RecordRefused | ProducerPoisoned):
                self._submit(lane)
            else:
                self._retry_later(lane)
        if self._idle_waiters:
            self._wake_if_idle()
        if self._still_waiters:
            self._tell_still()

    def _appended(self, lane: _Lane, batch: _Batch, base_offset: int) -> None:
        released = 0
        offset = base_offset
        is_known = base_offset >= 0
        for sink, tokens, _, size, count in batch.entries:
            released += size
            if sink is not None:
                try:
                    if count == 1:
                        sink.record_appended(tokens[0], offset)
                    else:
                        sink.records_appended(tokens, offset)
                except Exception:
                    self._sink_failed()
            if is_known:
                offset += count
        self._buffered_bytes -= released
        self._retry_s = RETRY_S_MIN
        lane.known_end = max(lane.known_end, offset)
        self._counts["appended_records"] += len(batch.records)
        self._counts["appended_batches"] += 1
        if self._after_batch is not None:
            self._after_batch()

    def _refused(self, lane: _Lane, batch: _Batch, error: RecordRefused) -> None:
        if error.divisible and len(batch.records) > 1:
            # One of them spoilt the batch: each gets its own try, in order, before anything later.
            lane.again.extendleft(reversed(list(_singles(batch))))
            return
        for sink, tokens, _, size, _ in batch.entries:
            self._buffered_bytes -= size
            for token in tokens if sink is not None else ():
                try:
                    sink.record_refused(token, error)
                except Exception:
                    self._sink_failed()
        self._counts["refused_records"] += len(batch.records)
        if self._after_batch is not None:
            self._after_batch()

    def _failed(self, lane: _Lane, batch: _Batch, error: BaseException) -> None:
        """The batch goes again, before anything later, without the records that were given up meanwhile."""
        if isinstance(error, ProducerPoisoned):
            if batch.generation == self._generation:
                self._start_renewal()
        elif not isinstance(error, LogError):
            log.error("appending to %s[%d] failed", *lane.position, exc_info=error)
        kept = self._without_reported(batch)
        if kept is not None:
            lane.again.appendleft(kept)
            self._counts["resent_records"] += len(kept.records)

    def _without_reported(self, batch: _Batch) -> _Batch | None:
        if all(entry[2] != inf for entry in batch.entries):
            return batch
        records: list[PendingRecord] = []
        entries: list[_Entry] = []
        at = 0
        for entry in batch.entries:
            if entry[2] == inf:
                self._buffered_bytes -= entry[3]
            else:
                entries.append(entry)
                records += batch.records[at : at + entry[4]]
            at += entry[4]
        return _Batch(records, entries) if entries else None

    def _sink_failed(self) -> None:
        self._counts["sink_errors"] += 1
        log.exception("a sink raised; its record's outcome is lost to it")

    # Trouble

    def _retry_later(self, lane: _Lane) -> None:
        lane.dirty = True
        self._resting.append(lane)
        if self._retry_handle is None:
            self._retry_handle = asyncio.get_running_loop().call_later(self._retry_s, self._retry)
            self._retry_s = min(self._retry_s * 2, RETRY_S_MAX)

    def _retry(self) -> None:
        self._retry_handle = None
        self._dirty += self._resting
        self._resting.clear()
        self._flush()

    def _start_renewal(self) -> None:
        if self._renewal is None and not self._stopped:
            self._renewal = asyncio.get_running_loop().create_task(self._renew(), name="headwater-producer-renewal")

    async def _renew(self) -> None:
        """Until it works: a producer is not optional. Bounded by ``stop``; what waits is bounded by ``expire``."""
        wait_s = RETRY_S_MIN
        while not self._stopped:
            try:
                await self._log.renew_producer()
                break
            except LogError as error:
                log.warning("the producer could not be renewed: %s", error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
        self._generation += 1
        self._counts["renewals"] += 1
        self._renewal = None
        for lane in self._lanes.values():
            if not lane.idle and not lane.dirty:
                lane.dirty = True
                self._dirty.append(lane)
        self._flush()

    def _tick(self) -> None:
        self._tick_handle = None
        if self._stopped or not self._buffered_bytes:
            return  # the next append starts it again
        self._tick_handle = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.expire(self._clock())

    def _expire_entries(self, entries: list[_Entry], limit_s: float, late: set[int]) -> bool:
        """Report what is too old, and what is behind it of the same sinks; whether nothing is left that anybody waits
        for."""
        is_waited_for = False
        for index, (sink, tokens, at_s, size, count) in enumerate(islice(entries, len(entries))):  # sinks may append
            if at_s == inf:
                continue
            if at_s > limit_s and not late:
                return False  # the rest is younger
            if at_s > limit_s and id(sink) not in late:
                is_waited_for = True
                continue
            if sink is not None and sink is not FUTURE_SINK:
                late.add(id(sink))
            entries[index] = (None, (), inf, size, count)
            self._report_unknown(sink, tokens, count)
        return not is_waited_for

    def _drop_expired(self, lane: _Lane, limit_s: float, late: set[int]) -> None:
        """The same for what was never sent."""
        if not lane.entries or (lane.entries[0][2] > limit_s and not late):
            return
        self._expire_entries(lane.entries, limit_s, late)
        kept = self._without_reported(_Batch(lane.records, lane.entries))
        lane.records, lane.entries = (kept.records, kept.entries) if kept is not None else ([], [])
        lane.size_bytes = sum(entry[3] for entry in lane.entries)

    def _report_unknown(self, sink: AppendSink | None, tokens: Sequence[Any], count: int) -> None:
        if sink is None:
            self._counts["dropped_records"] += count
            return
        self._counts["unknown_records"] += count
        for token in tokens:
            try:
                sink.record_unknown(token)
            except Exception:
                self._sink_failed()

    def _wake_if_idle(self) -> None:
        if not self._buffered_bytes:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def _size_of(record: PendingRecord) -> int:
    """What a record counts for in a batch and in the buffer."""
    key, value, headers = record
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if len(headers) > PLAIN_HEADERS:
        for header in headers:
            size += HEADER_OVERHEAD_BYTES + len(header[1] or b"")
    return size


def _singles(batch: _Batch) -> Iterator[_Batch]:
    """Each record of a batch as a batch of its own."""
    records = iter(batch.records)
    for sink, tokens, at_s, _, count in batch.entries:
        for index, record in enumerate(islice(records, count)):
            yield _Batch([record], [(sink, tokens[index : index + 1], at_s, _size_of(record), 1)])


class _FutureSink:
    """Turns an outcome into a future's: the token is the future."""

    def record_appended(self, token: asyncio.Future[int], offset: int) -> None:
        if not token.done():
            token.set_result(offset)

    def record_refused(self, token: asyncio.Future[int], error: RecordRefused) -> None:
        if not token.done():
            token.set_exception(error)

    def record_unknown(self, token: asyncio.Future[int]) -> None:
        if not token.done():
            token.set_exception(LogUnavailable("no answer in time: the record may or may not be in the log"))


FUTURE_SINK = _FutureSink()
