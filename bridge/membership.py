"""Which edge nodes there are: heartbeats in `headwater.nodes`, and the view of them that every node keeps.

`NodeView` is pure: time is an argument, on the caller's monotonic clock. `Membership` is its thin I/O part: it appends
this node's heartbeat every 2 s, tails the Kafka topic and feeds the view.

Lifecycle: 1. `start` appends the first heartbeat and reads the Kafka topic up to it, so the view is whole when it
returns. 2. A heartbeat every 2 s. 3. `leave` appends a tombstone: the others forget the node at once. A node that dies
leaves its last heartbeat, which is stale 6 s after it was received.

Who hears nothing judges nobody: when our own heartbeat does not come back either (this process was stopped, or Kafka is
away), the view's time stands still. So a node that was paused for a minute does not take all others for dead.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from bridge.kafka_clock import KafkaClock
from bridge.log import Headers, Log, LogConsumer, LogError, LogTruncated, Position, Record
from bridge.partitioning import Destination
from schemas.catalogue import NODES
from schemas.errors import RecordError
from schemas.nodes import HEARTBEAT_INTERVAL_S, HEARTBEAT_STALE_S, NodeHeartbeat

logger = logging.getLogger(__name__)

POSITION: Position = (NODES, 0)  # the catalogue gives it one partition: heartbeats are few and their order matters
NODES_MAX = 10_000  # far above any cluster: a stranger who writes node ids must not fill the memory
LEAVE_TIMEOUT_S = 2.0  # a tombstone that cannot be written in time is replaced by going stale
_FETCH_TIMEOUT_S = 1.0
_RETRY_S = 0.5

ChangeKind = Literal["joined", "restarted", "left", "returned", "stale"]


class AppendFuture(Protocol):
    """`Publisher.append_future`: the future is the record's offset."""

    def __call__(self, destination: Destination, value: bytes | None, headers: Headers) -> asyncio.Future[int]: ...


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What a heartbeat, a tombstone or the passing of time changed; `heartbeat` is the node's last one."""

    kind: ChangeKind
    heartbeat: NodeHeartbeat


@dataclass(slots=True)
class _Entry:
    heartbeat: NodeHeartbeat
    seen_at: float
    is_stale: bool = False


class NodeView:
    """The nodes by their last heartbeats. Stale is judged by when a heartbeat was received, never by a node's clock."""

    def __init__(self, stale_after_s: float = HEARTBEAT_STALE_S) -> None:
        self._stale_after_s = stale_after_s
        self._entries: dict[str, _Entry] = {}
        self._unreadable = 0
        self._refused = 0

    def apply(self, key: bytes | None, value: bytes | None, now: float) -> NodeChange | None:
        """Take one record of `headwater.nodes`, received at `now`; None when nothing but the age changed.

        A record that cannot be read is counted and skipped: another node's fault must not stop this one.
        """
        node_id = (key or b"").decode("utf-8", "replace")
        if value is None:
            gone = self._entries.pop(node_id, None)
            return NodeChange("left", gone.heartbeat) if gone is not None else None
        try:
            heartbeat = NodeHeartbeat.from_json(value)
        except RecordError:
            self._unreadable += 1
            return None
        if heartbeat.node_id != node_id:
            self._unreadable += 1
            return None
        return self._apply_heartbeat(heartbeat, now)

    def _apply_heartbeat(self, heartbeat: NodeHeartbeat, now: float) -> NodeChange | None:
        entry = self._entries.get(heartbeat.node_id)
        if entry is None:
            if len(self._entries) >= NODES_MAX:
                self._refused += 1
                return None
            self._entries[heartbeat.node_id] = _Entry(heartbeat, now)
            return NodeChange("joined", heartbeat)
        is_restart = entry.heartbeat.incarnation != heartbeat.incarnation
        was_stale = entry.is_stale or self._is_stale(entry, now)
        entry.heartbeat, entry.seen_at, entry.is_stale = heartbeat, now, False
        if is_restart:
            return NodeChange("restarted", heartbeat)
        return NodeChange("returned", heartbeat) if was_stale else None

    def expire(self, now: float) -> tuple[NodeChange, ...]:
        """The nodes that went stale since the last call, each told once until it returns."""
        changes: list[NodeChange] = []
        for entry in self._entries.values():
            if not entry.is_stale and self._is_stale(entry, now):
                entry.is_stale = True
                changes.append(NodeChange("stale", entry.heartbeat))
        return tuple(changes)

    def live(self, now: float) -> tuple[NodeHeartbeat, ...]:
        """The nodes whose last heartbeat is fresh, by node id."""
        return tuple(entry.heartbeat for entry in self._sorted() if not self._is_stale(entry, now))

    def stale(self, now: float) -> tuple[NodeHeartbeat, ...]:
        """The nodes that fell silent without leaving, by node id."""
        return tuple(entry.heartbeat for entry in self._sorted() if self._is_stale(entry, now))

    def is_live(self, node_id: str, now: float) -> bool:
        entry = self._entries.get(node_id)
        return entry is not None and not self._is_stale(entry, now)

    def get(self, node_id: str) -> NodeHeartbeat | None:
        """The node's last heartbeat, fresh or not."""
        entry = self._entries.get(node_id)
        return entry.heartbeat if entry is not None else None

    def age_s(self, node_id: str, now: float) -> float | None:
        entry = self._entries.get(node_id)
        return max(0.0, now - entry.seen_at) if entry is not None else None

    def statistics(self, now: float) -> dict[str, int]:
        stale = sum(self._is_stale(entry, now) for entry in self._entries.values())
        return {
            "live": len(self._entries) - stale,
            "stale": stale,
            "unreadable": self._unreadable,
            "refused": self._refused,
        }

    def _is_stale(self, entry: _Entry, now: float) -> bool:
        return now - entry.seen_at > self._stale_after_s

    def _sorted(self) -> Iterable[_Entry]:
        return (self._entries[node_id] for node_id in sorted(self._entries))


class Membership:
    """This node's heartbeats and its view of all nodes. Belongs to one event loop.

    Args:
        log: where the Kafka topic is read.
        append: `Publisher.append_future`.
        heartbeat: makes this node's heartbeat of now; called every 2 s; node id and incarnation never change.
        on_change: called with each change of another node or of this one, also while `start` reads.
        on_beat: called when a heartbeat is in the log, with the time when it was sent, on the monotonic clock.
        on_clock: called with what to add to ``clock`` to have Kafka's time in ms, when a heartbeat of ours came back.
    """

    def __init__(
        self,
        log: Log,
        append: AppendFuture,
        heartbeat: Callable[[], NodeHeartbeat],
        on_change: Callable[[NodeChange], None] | None = None,
        on_clock: Callable[[float], None] | None = None,
        *,
        on_beat: Callable[[float], None] = lambda sent_s: None,
        interval_s: float = HEARTBEAT_INTERVAL_S,
        stale_after_s: float = HEARTBEAT_STALE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view = NodeView(stale_after_s)
        self._log = log
        self._append = append
        self._heartbeat = heartbeat
        self._on_change = on_change
        self._on_beat = on_beat
        self._on_clock = on_clock
        self._kafka_clock = KafkaClock((time.time() - clock()) * 1000)
        self._sent: tuple[bytes, float] = (b"", 0.0)  # our last heartbeat, and when it was sent
        self._interval_s = interval_s
        self._stale_after_s = stale_after_s
        self._clock = clock
        self._heard_at = -math.inf  # when our own heartbeat came back last
        self._view_now = 0.0  # the view's time then
        self._consumer: LogConsumer | None = None
        self._next_offset = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._own: NodeHeartbeat | None = None
        self._rival: NodeHeartbeat | None = None
        self._rival_at = 0.0
        self._news = asyncio.Event()
        self._counts = {"heartbeats": 0, "heartbeats_failed": 0}

    @property
    def rival(self) -> NodeHeartbeat | None:
        """Another process that sends heartbeats under our node id, as long as it is heard; None is the normal case."""
        return self._rival

    def live(self) -> tuple[NodeHeartbeat, ...]:
        return self.view.live(self._now())

    def stale(self) -> tuple[NodeHeartbeat, ...]:
        return self.view.stale(self._now())

    def is_live(self, node_id: str) -> bool:
        return self.view.is_live(node_id, self._now())

    def announce(self) -> None:
        """Send the next heartbeat now: it has something to say that others wait for."""
        self._news.set()

    def silence_s(self, now: float) -> float:
        """For how long our own heartbeat has not come back: appending and reading both work if it does."""
        return now - self._heard_at

    async def start(self, timeout_s: float = 30.0) -> None:
        """Announce this node and read what the others said.

        Raises:
            LogError: the first heartbeat was refused or nobody knows what became of it.
            TimeoutError: the Kafka topic could not be read up to our own heartbeat in time.
        """
        assert self._consumer is None, "already started"
        async with asyncio.timeout(timeout_s):
            own_offset = await self._send()
            self._consumer = self._log.consumer(None)
            self._consumer.assign({POSITION: self._next_offset})
            try:
                await self._load(own_offset)
            except BaseException:
                await self._consumer.stop()
                self._consumer = None
                raise
        self._counts["heartbeats"] += 1
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._tail())]

    async def leave(self) -> None:
        """Stop, and tell the others by a tombstone."""
        was_member = self._consumer is not None
        await self.stop()
        if was_member:
            with suppress(LogError, TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._append(self._destination(), None, ())

    async def stop(self) -> None:
        """Stop without a word, as a crash would: the others see this node go stale."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None

    def statistics(self) -> dict[str, Any]:
        return self.view.statistics(self._now()) | self._counts | {"rival": int(self._rival is not None)}

    def _now(self) -> float:
        """The view's time."""
        return self._view_now + min(self._clock() - self._heard_at, self._stale_after_s / 2)

    def _heard(self) -> None:
        self._heard_at, self._view_now = self._clock(), self._now()

    def _destination(self) -> Destination:
        assert self._own is not None
        return Destination(*POSITION, self._own.node_id.encode())

    async def _load(self, own_offset: int) -> None:
        """Records that were appended long before ours are old: they get their age on Kafka's own clock."""
        history: list[Record] = []
        while self._next_offset <= own_offset:
            history += await self._fetch()
        own_ms = max(record.timestamp for record in history)  # ours was appended last
        self._heard()
        now = self._now()
        for record in history:
            age_s = max(0.0, (own_ms - record.timestamp) / 1000)
            self._tell(self.view.apply(record.key, record.value, now - age_s))
            self._learn_time(record)

    async def _fetch(self) -> list[Record]:
        assert self._consumer is not None
        try:
            fetched = await self._consumer.fetch(_FETCH_TIMEOUT_S)
        except (
            LogTruncated
        ) as error:  # the Kafka topic was made anew, or old records were deleted: go on where it starts
            self._next_offset = error.start
            self._consumer.assign({POSITION: error.start})
            return []
        records = [record for _, part in fetched for record in part]
        if records:
            self._next_offset = records[-1].offset + 1
        return records

    async def _tail(self) -> None:
        while True:
            try:
                records = await self._fetch()
            except LogError as error:
                logger.debug("reading %s: %s", NODES, error)
                await asyncio.sleep(_RETRY_S)
                continue
            for record in records:
                self._take(record)
            if self._rival is not None and self._clock() - self._rival_at > self._stale_after_s:
                self._rival = None
            for change in self.view.expire(self._now()):
                self._tell(change)

    def _take(self, record: Record) -> None:
        assert self._own is not None
        change = self.view.apply(record.key, record.value, self._now())
        if record.key == self._own.node_id.encode():
            self._heard()
            self._learn_time(record)
        if not self._is_rivalry(change, self._clock()):
            self._tell(change)

    async def _send(self) -> int:
        """A heartbeat of now; its offset. Raises LogError."""
        self._own = self._heartbeat()
        value = self._own.to_json()
        self._sent = value, self._clock()
        return await self._append(self._destination(), value, ())

    def _learn_time(self, record: Record) -> None:
        """Of the last heartbeat only: of an earlier one it is not known when it was sent."""
        value, sent_s = self._sent
        if record.value == value and self._on_clock is not None:
            self._on_clock(self._kafka_clock.observe(sent_s, self._clock(), record.timestamp))

    def _is_rivalry(self, change: NodeChange | None, now: float) -> bool:
        """Two processes under one node id look like one that restarts with each heartbeat."""
        assert self._own is not None
        if change is None or change.kind != "restarted" or change.heartbeat.node_id != self._own.node_id:
            return False
        if change.heartbeat.incarnation != self._own.incarnation:
            if self._rival is None:
                logger.error("another process runs under our node id: %s", change.heartbeat)
            self._rival, self._rival_at = change.heartbeat, now
        return True

    async def _beat(self) -> None:
        """One heartbeat in flight at most: while Kafka is away none pile up, and the next one tells the latest."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._news.wait()
            self._news.clear()
            try:
                sent_s = self._clock()
                await self._send()
                self._counts["heartbeats"] += 1
                self._on_beat(sent_s)
                if self._clock() - sent_s > self._interval_s:
                    self.announce()  # Kafka was away: what was said is old already
            except LogError as error:
                self._counts["heartbeats_failed"] += 1
                logger.warning("our heartbeat did not reach Kafka: %s", error)

    def _tell(self, change: NodeChange | None) -> None:
        if change is None:
            return
        logger.info("node %s %s", change.heartbeat.node_id, change.kind)
        if self._on_change is not None:
            self._on_change(change)
