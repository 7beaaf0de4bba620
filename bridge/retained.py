"""Retained messages on the log: stored by the edge that appended them, read by every edge into a `RetainedView`.

How a message with RETAIN 1 is published (`RetainedMessages.publish`): 1. its record is appended like any other's;
2. Kafka has told its offset: the retained record is appended to `headwater.retained`, with that position; 3. Kafka has
acknowledged that, too: only now the publisher's sink hears of success. So a retained message that was acknowledged
survives the edge; an edge that dies in between has acknowledged nothing, and the device sends again.

The view follows the log alone, never what this node has only asked for, so that all nodes see the same.
`caught_up` is how a subscription is sure to see what was acknowledged before it.

A record that a plain Kafka producer writes into a message topic with the header ``mqtt.retain`` is delivered with that
flag, but nobody materialises it: its producer may write the record of `schemas.retained` itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from bridge.log import (
    Headers,
    Log,
    LogConsumer,
    LogError,
    LogTruncated,
    LogUnavailable,
    Position,
    Record,
    RecordRefused,
)
from bridge.murmur2 import murmur2, partition_for_key
from bridge.partitioning import Destination
from bridge.publisher import AppendSink, Publisher
from bridge.retained_view import RetainedView
from schemas.catalogue import RETAINED, catalogue
from schemas.errors import RecordError
from schemas.records import HEADER_DEAD_LETTER_REASON, HEADER_TOPIC
from schemas.retained import RetainedMessage, decode_retained, encode_retained, own_headers
from schemas.routes import DEAD_LETTER

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 120.0  # 100,000 Topic Names load in 2.4 s, a million in about 25
TICK_S = 1.0  # how often an idle view looks at expiry and repairs
RETRY_S = 0.5
GAP_S = 1.0  # nothing came for that long while loading: is there anything left before the end?
REPAIR_SPREAD_MS = 500  # nodes repair at different moments, so that mostly one of them does
REPAIR_AGAIN_MS = 5_000  # a repair that has not come back by then is written again
REPAIRS_PER_TICK_MAX = 1_000
EXPIRY_MARGIN_MS = 10_000  # a clock that runs ahead by less clears nothing early for the others


@dataclass(slots=True, eq=False)
class _Publish:
    """A retained publish on its way: the message record first, then the retained record."""

    number: int
    destination: Destination
    value: bytes
    headers: Sequence[tuple[str, bytes]]
    sink: AppendSink | None
    token: Any
    offset: int = -1


class RetainedMessages:
    """This node's view, kept up to date, and the way to retain a message. Belongs to one event loop.

    ``kafka_topic`` and ``partitions`` are the catalogue's unless a test says otherwise.
    """

    def __init__(
        self,
        source: Log,
        publisher: Publisher,
        node_id: str,
        *,
        view: RetainedView | None = None,
        kafka_topic: str = RETAINED,
        partitions: int | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.view = view if view is not None else RetainedView()
        self._log = source
        self._publisher = publisher
        self._node_id = node_id.encode()
        self._kafka_topic = kafka_topic
        self._partitions = partitions or next(spec.partitions for spec in catalogue() if spec.name == RETAINED)
        self._clock_ms = clock_ms
        self._positions: dict[Position, int] = dict.fromkeys(
            ((kafka_topic, partition) for partition in range(self._partitions)), 0
        )
        self._consumer: LogConsumer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._publishes: dict[int, _Publish] = {}  # by number, so in the order of their beginning
        self._last_number = 0
        self._publish_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._position_waiters: list[tuple[dict[Position, int], asyncio.Future[None]]] = []
        self._asked: set[Position] = set()
        self._next_ends: asyncio.Future[dict[Position, int] | None] | None = None
        self._repairs: dict[bytes, int] = {}  # misplaced Topic Names with the time of their next repair
        self._repair_sink = _RepairSink(self)
        self._counts = dict.fromkeys(
            ("published", "publish_failures", "repairs", "repair_failures", "expired", "unreadable", "log_errors"), 0
        )
        self.load_ms = 0
        self.on_stored: Callable[[RetainedMessage], None] | None = None  # called with what the view takes

    # Lifecycle

    async def start(self, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Load the whole Kafka topic, then follow it.

        Raises:
            LogUnavailable: it could not be read to its end in time.
        """
        assert self._consumer is None, "started once"
        began_s = time.monotonic()
        self._consumer = self._log.consumer(None)
        self._consumer.assign(self._positions)
        try:
            async with asyncio.timeout(timeout_s):
                await self._load(await self._log.end_offsets(frozenset(self._positions)))
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise LogUnavailable(f"{self._kafka_topic} could not be read within {timeout_s:.0f} s") from None
            raise
        self.load_ms = round((time.monotonic() - began_s) * 1000)
        logger.info("%d retained messages loaded in %d ms", len(self.view), self.load_ms)
        self._spawn(self._follow(), "headwater-retained")

    async def stop(self) -> None:
        """Follow no longer. What is being published is the publisher's to finish."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, waiter in (*self._publish_waiters, *self._position_waiters):
            waiter.cancel()
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.stop()

    def statistics(self) -> dict[str, int]:
        return {
            **self.view.statistics(),
            **self._counts,
            "publishing": len(self._publishes),
            "load_ms": self.load_ms,
        }

    # Publishing

    def has_room_for(self, topic_name_utf8: bytes, payload: bytes) -> bool:
        """Whether the message may be retained: a new Topic Name is refused when the view is full."""
        return not payload or self.view.has_room_for(topic_name_utf8, len(topic_name_utf8) + len(payload))

    def publish(
        self,
        destination: Destination,
        value: bytes,
        headers: Sequence[tuple[str, bytes]],
        sink: AppendSink | None,
        token: Any,
    ) -> None:
        """Append a message with RETAIN 1 and retain it; ``sink`` hears once, when both are done or one has failed.

        The offset it hears is the message's. ``headers`` are the message record's, the Topic Name first.
        """
        assert headers[0][0] == HEADER_TOPIC, headers
        self._last_number += 1
        publish = _Publish(self._last_number, destination, value, headers, sink, token)
        self._publishes[publish.number] = publish
        self._publisher.append(destination, value, headers, _MESSAGE_SINK, (self, publish))

    def retain(
        self,
        destination: Destination,
        offset: int,
        value: bytes,
        headers: Sequence[tuple[str, bytes]],
        sink: AppendSink | None,
        token: Any,
    ) -> None:
        """Retain a message that is in the log already: a QoS 2 one, which was committed in a transaction."""
        self._last_number += 1
        publish = _Publish(self._last_number, destination, value, headers, sink, token)
        self._publishes[publish.number] = publish
        self.message_appended(publish, offset)

    def message_appended(self, publish: _Publish, offset: int) -> None:
        """The message is in the log: now its retained record."""
        destination = publish.destination
        if offset < 0:  # known to Kafka already, but not where: at least behind what was acknowledged before
            offset = self._publisher.known_end(destination.kafka_topic, destination.partition)
        publish.offset = offset
        message = RetainedMessage(
            publish.headers[0][1],
            publish.value,
            own_headers(publish.headers) if publish.value else (),
            destination.kafka_topic,
            destination.partition,
            offset,
            self._clock_ms(),
        )
        self._append(message, _RECORD_SINK, (self, publish))

    def publish_done(self, publish: _Publish, error: RecordRefused | None = None, *, known: bool = True) -> None:
        """Both records are acknowledged, or one was refused, or nobody knows."""
        del self._publishes[publish.number]
        self._counts["published" if known and error is None else "publish_failures"] += 1
        if self._publish_waiters:
            oldest = next(iter(self._publishes), self._last_number + 1)
            while self._publish_waiters and self._publish_waiters[0][0] < oldest:
                _resolve(self._publish_waiters.popleft()[1])
        sink = publish.sink
        if sink is None:
            return
        if not known:
            sink.record_unknown(publish.token)
        elif error is not None:
            sink.record_refused(publish.token, error)
        else:
            sink.record_appended(publish.token, publish.offset)

    def _append(self, message: RetainedMessage, sink: AppendSink, token: Any) -> None:
        key, value, headers = encode_retained(message)
        destination = Destination(self._kafka_topic, partition_for_key(key, self._partitions), key)
        self._publisher.append(destination, value, headers, sink, token)

    # Being sure

    async def caught_up(self, also: Set[Position]) -> tuple[int, dict[Position, int]]:
        """Until the view has every retained message that was acknowledged, on any edge, before this call, and those
        of this edge's QoS 0 publishes that began before it.

        Returns the view's change number and the ends of the partitions ``also``, both as of one moment of the call: a
        message that was in the view by then is before those ends.

        Many callers share one question to Kafka.

        Raises:
            LogUnavailable: Kafka does not answer.
        """
        loop = asyncio.get_running_loop()
        if self._publishes:
            done: asyncio.Future[None] = loop.create_future()
            self._publish_waiters.append((self._last_number, done))
            await done
        changes = self.view.changes
        ends = await self._ends(also)
        missing = {position: ends[position] for position, at in self._positions.items() if at < ends[position]}
        if missing:
            read: asyncio.Future[None] = loop.create_future()
            self._position_waiters.append((missing, read))
            await read
        return changes, {position: ends[position] for position in also}

    async def _ends(self, also: Set[Position]) -> dict[Position, int]:
        self._asked |= also
        if self._next_ends is None:
            self._next_ends = asyncio.get_running_loop().create_future()
            if not any(task.get_name() == "headwater-retained-ends" and not task.done() for task in self._tasks):
                self._spawn(self._ask_ends(), "headwater-retained-ends")
        ends = await asyncio.shield(self._next_ends)
        if ends is None:
            raise LogUnavailable("the ends are not known")
        return ends

    async def _ask_ends(self) -> None:
        """One question at a time; who comes meanwhile is in the next one, for an answer must not be older than it."""
        while self._next_ends is not None:
            waiter, self._next_ends = self._next_ends, None
            asked, self._asked = self._asked, set()
            try:
                waiter.set_result(await self._log.end_offsets(frozenset(asked | self._positions.keys())))
            except LogError:
                self._counts["log_errors"] += 1
                waiter.set_result(None)
            except asyncio.CancelledError:
                waiter.cancel()
                raise

    # Reading

    async def _load(self, ends: dict[Position, int]) -> None:
        while any(at < ends[position] for position, at in self._positions.items()):
            if not await self._read(GAP_S):
                await self._skip_gaps(ends)

    async def _skip_gaps(self, ends: dict[Position, int]) -> None:
        """Compaction may leave nothing between our position and the end. Asked anew, Kafka tells the end without a
        record: then there is none."""
        assert self._consumer is not None
        self._consumer.assign({})  # forgets the ends that it knows
        self._consumer.assign(self._positions)
        if await self._read(GAP_S):
            return
        for position, at in self._positions.items():
            if at < ends[position] and (self._consumer.end_of(position) or 0) >= ends[position]:
                self._positions[position] = ends[position]

    async def _follow(self) -> None:
        while True:
            try:
                await self._read(self._wait_s())
                self._tick()
            except LogError as error:
                self._counts["log_errors"] += 1
                logger.warning("%s cannot be read now: %s", self._kafka_topic, error)
                await asyncio.sleep(RETRY_S)

    async def _read(self, timeout_s: float) -> bool:
        """Take what comes within the time; whether anything did."""
        assert self._consumer is not None
        try:
            fetched = await self._consumer.fetch(timeout_s)
        except LogTruncated as error:  # made anew, or deleted: go on where it starts
            logger.warning("%s", error)
            self._positions[error.partition] = error.start
            self._consumer.assign(self._positions)
            return True
        for position, records in fetched:
            for record in records:
                self._take(position, record)
            self._positions[position] = records[-1].offset + 1
        if fetched and self._position_waiters:
            self._wake_position_waiters()
        await asyncio.sleep(0)  # what is fetched already comes without waiting: others have their turn
        return bool(fetched)

    def _take(self, position: Position, record: Record) -> None:
        try:
            message = decode_retained(record.key, record.value, record.headers, record.timestamp, record.offset)
        except RecordError as error:
            self._dead_letter(position, record, error)
            return
        name = message.topic_name_utf8
        outcome = self.view.apply(message)
        if outcome == "older" and name not in self._repairs:
            self._repairs[name] = self._clock_ms() + self._spread_ms(name)
        elif outcome == "stored" and self.on_stored is not None:
            self.on_stored(message)

    def _wake_position_waiters(self) -> None:
        still = []
        for missing, waiter in self._position_waiters:
            if all(self._positions[position] >= end for position, end in missing.items()):
                _resolve(waiter)
            elif not waiter.done():
                still.append((missing, waiter))
        self._position_waiters = still

    def _dead_letter(self, position: Position, record: Record, error: RecordError) -> None:
        self._counts["unreadable"] += 1
        logger.warning("%s[%d]@%d cannot be read and is skipped: %s", *position, record.offset, error)
        headers: Headers = [*record.headers, (HEADER_DEAD_LETTER_REASON, str(error).encode()[:512])]
        self._publisher.append(Destination(DEAD_LETTER, 0, record.key or b""), record.value, headers, None, None)

    # Read-repair and expiry

    def _wait_s(self) -> float:
        if not self._repairs:
            return TICK_S
        due_ms = min(self._repairs.values()) - self._clock_ms()
        return min(TICK_S, max(0.01, due_ms / 1000))

    def _tick(self) -> None:
        now_ms = self._clock_ms()
        expired = self.view.expire(now_ms - EXPIRY_MARGIN_MS)
        self._counts["expired"] += expired
        if expired:
            for name in self.view.misplaced - self._repairs.keys():
                self._repairs[name] = now_ms + self._spread_ms(name)
        self.view.forget_cleared(now_ms)
        if self._repairs:
            due = [name for name, at in self._repairs.items() if at <= now_ms]
            for name in due[:REPAIRS_PER_TICK_MAX]:
                self._repair(name, now_ms)

    def _repair(self, name: bytes, now_ms: int) -> None:
        """Write what counts behind the older record, unless another node has done so meanwhile."""
        message = self.view.latest(name)
        if message is None or name not in self.view.misplaced:
            del self._repairs[name]
            return
        self._repairs[name] = now_ms + REPAIR_AGAIN_MS
        self._counts["repairs"] += 1
        self._append(message, self._repair_sink, None)

    def repair_failed(self) -> None:
        """It stays misplaced, so it is tried again."""
        self._counts["repair_failures"] += 1

    def _spread_ms(self, name: bytes) -> int:
        return (murmur2(self._node_id + name) & 0x7FFF_FFFF) % REPAIR_SPREAD_MS

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _MessageSink:
    """Hears of message records; the token is (RetainedMessages, publish)."""

    def record_appended(self, token: tuple[RetainedMessages, _Publish], offset: int) -> None:
        retained, publish = token
        retained.message_appended(publish, offset)

    def record_refused(self, token: tuple[RetainedMessages, _Publish], error: RecordRefused) -> None:
        token[0].publish_done(token[1], error)

    def record_unknown(self, token: tuple[RetainedMessages, _Publish]) -> None:
        token[0].publish_done(token[1], known=False)

    def record_moved(self, token: tuple[RetainedMessages, _Publish], destination: Destination) -> None:
        token[1].destination = destination


class _RecordSink(_MessageSink):
    """Hears of retained records."""

    def record_appended(self, token: tuple[RetainedMessages, _Publish], offset: int) -> None:
        token[0].publish_done(token[1])


class _RepairSink:
    """Hears of repairs; success is seen when the record comes back."""

    def __init__(self, retained: RetainedMessages) -> None:
        self._retained = retained

    def record_appended(self, token: None, offset: int) -> None:
        """Seen by everybody soon."""

    def record_refused(self, token: None, error: RecordRefused) -> None:
        self._retained.repair_failed()

    def record_unknown(self, token: None) -> None:
        self._retained.repair_failed()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_MESSAGE_SINK = _MessageSink()
_RECORD_SINK = _RecordSink()
