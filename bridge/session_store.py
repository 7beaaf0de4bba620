"""The sessions in `headwater.sessions`: followed by every edge into a `SessionView`, written through a `SessionWriter`.

How a session moves (`bridge.ownership` has the claims): 1. the new owner's claim is in the log; 2. the old owner has
committed its state and released it, or is fenced here; 3. `load` reads up to the end that was asked for after that, so
it has whatever the old owner has committed, and the old owner commits nothing for this session any more; 4. the first
`write` stores the session under the new epoch, with tombstones for `stale_keys`.

Order for callers: state, then release, when `stored` was heard; tombstones, then forget, likewise.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from bridge.log import Log, LogUnavailable, PendingRecord, Position, Record, RecordRefused
from bridge.murmur2 import partition_for_key
from bridge.ownership import Ownership
from bridge.session_view import SessionView
from bridge.session_writer import (
    UNKNOWN_AFTER_S,
    JustMarks,
    MarksSource,
    MarksStep,
    Place,
    Records,
    SessionLost,
    SessionWriter,
    StoreSink,
)
from bridge.topic_tail import LOAD_TIMEOUT_S, SharedAnswer, TopicTail
from schemas.catalogue import SESSIONS, catalogue
from schemas.errors import RecordError
from schemas.sessions import (
    KIND_INCOMING,
    KIND_OUTGOING,
    KIND_PROGRESS,
    MARKER_PREFIX,
    StoredSession,
    decode_progress,
    deletion_records,
    marker_key,
    parse_session_key,
    session_key,
)

__all__ = ["SessionLost", "SessionStore", "StoreSink", "session_position", "transactional_id"]

logger = logging.getLogger(__name__)

FENCE_LINE_S = 60.0
PARTITIONS = next(spec.partitions for spec in catalogue() if spec.name == SESSIONS)
OPEN_TIMEOUT_S = 15.0  # for one session: longer than Kafka lets the open transaction of a dead node hold up readers
_PROGRESS_END = b"\0" + KIND_PROGRESS


def session_position(client_id: str) -> Position:
    """Where the records of the client's session go."""
    return SESSIONS, partition_for_key(client_id.encode(), PARTITIONS)


def transactional_id(node_id: str) -> str:
    """Under which a node commits; taking it fences the node."""
    return f"headwater.edge.{node_id}"


class SessionStore:
    """All stored sessions, and the way to store one. Belongs to one event loop.

    ``kafka_topic`` and ``partitions`` are the catalogue's unless a test says otherwise. ``place`` says where messages
    go (`RouteTable.place`).
    """

    def __init__(
        self,
        source: Log,
        node_id: str,
        ownership: Ownership,
        after_batch: Callable[[], None] | None = None,
        *,
        kafka_topic: str = SESSIONS,
        partitions: int = PARTITIONS,
        unknown_after_s: float = UNKNOWN_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        place: Place | None = None,
    ) -> None:
        self.view = SessionView()
        self._log = source
        self._node_id = node_id
        self._ownership = ownership
        self._clock = clock
        self._kafka_topic = kafka_topic
        self._partitions = partitions
        self._marker_key = marker_key(transactional_id(node_id))
        self._marker_prefix = ownership.incarnation.encode() + b":"
        self._last_marker = 0
        self._tail = TopicTail(
            source, kafka_topic, partitions, self._take, on_truncated=self._truncated, read_committed=True
        )
        self._writer = SessionWriter(
            source.transactional_producer(transactional_id(node_id)),
            ownership.may_write,
            ownership.renounce_superseded,
            self._marker,
            self._was_committed,
            after_batch,
            unknown_after_s=unknown_after_s,
            clock=clock,
            place=place,
        )
        self._quiet_until: dict[str, float] = {}  # nodes that a line was written about
        self._fences: dict[str, SharedAnswer[None]] = {}
        self._counts = dict.fromkeys(("loads", "fences", "unreadable"), 0)
        self.load_ms = 0

    # Lifecycle

    async def start(self, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Take this node's transactional id, load the whole Kafka topic, then follow it.

        To be called before this node's first heartbeat and first claim: whoever sees these may rely on it that an
        earlier process of this node writes nothing more.

        Raises:
            LogUnavailable: Kafka does not answer, or the Kafka topic could not be read to its end in time.
        """
        began_s = time.monotonic()
        await self._writer.start()
        try:
            await self._tail.start(timeout_s)
        except BaseException:
            await self._writer.stop(0)
            raise
        self.load_ms = round((time.monotonic() - began_s) * 1000)
        logger.info("%d sessions loaded in %d ms", len(self.view), self.load_ms)

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Give what waits to be written ``timeout_s``, then report the rest as unknown."""
        await self._writer.stop(timeout_s)
        for fence in list(self._fences.values()):
            await fence.stop()
        await self._tail.stop()

    def statistics(self) -> dict[str, int]:
        return {
            **self.view.statistics(),
            **{f"writer_{name}": count for name, count in self._writer.statistics().items()},
            **self._counts,
            "log_errors": self._tail.errors,
            "load_ms": self.load_ms,
        }

    def position(self, client_id: str) -> Position:
        """Where the records of the client's session go."""
        return self._kafka_topic, partition_for_key(client_id.encode(), self._partitions)

    @property
    def is_full(self) -> bool:
        """So much waits that nobody should add to it: read no more from clients until a transaction is done."""
        return self._writer.is_full

    # Reading a session

    async def load(self, client_id: str, fence: Collection[str] = ()) -> StoredSession | None:
        """What is stored of the client's session once the nodes in ``fence`` can write nothing more for it.

        To be called by the owner, whose claim every node can see: what a fenced node still has to write for this
        session is dropped there, and everything else goes on.

        Raises:
            LogUnavailable: Kafka does not answer.
        """
        self._counts["loads"] += 1
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                others = set(fence) - {self._node_id}
                if others:
                    await asyncio.gather(*(self._fence(node_id) for node_id in others))
                self._ownership.renounce(client_id)  # an earlier connection here that has not released in time
                await self._writer.settled()
                await self._tail.caught_up((self.position(client_id)[1],))
        except TimeoutError:
            raise LogUnavailable(f"the session could not be read within {OPEN_TIMEOUT_S:.0f} s") from None
        return self.view.get(client_id)

    async def caught_up(self) -> None:
        """Until the view has everything that was committed, on any edge, before this call.

        Raises:
            LogUnavailable: Kafka does not answer.
        """
        await self._tail.caught_up()

    def stale_keys(self, client_id: str, epoch: int) -> list[bytes]:
        """The keys of earlier epochs: tombstones for them go along with the first state of this epoch.

        With an epoch above the session's own these are all its keys: what is to be deleted when it is over.
        """
        return self.view.stale_keys(client_id, epoch)

    # Writing

    def write(
        self,
        client_id: str,
        epoch: int,
        records: Records,
        sink: StoreSink | None,
        token: Any,
        step: MarksStep | None = None,
    ) -> None:
        """Store the records, all or none, after what was written before; the sink hears once. Never waits.

        With a ``step`` a shared subscription's marks are stored with them, and `HandoverRefused` is an outcome.

        A progress record must speak of every earlier write of its epoch, whether it is committed yet or not: behind it
        the session's journal is deleted.
        """
        swept = self._swept(client_id, epoch, records)
        self._writer.write(client_id, epoch, [*records, *swept] if swept else records, len(records), sink, token, step)

    async def write_now(self, client_id: str, epoch: int, records: Records) -> list[int]:
        """The same for a task that waits; the records' offsets (-1: not known).

        Raises:
            SessionLost: the session has another owner now.
            RecordRefused: definite, nothing is stored.
            LogUnavailable: nobody knows after 30 s of trying.
        """
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.write(client_id, epoch, records, _FUTURE_SINK, future)
        return await future

    async def write_marks(self, source: MarksSource) -> None:
        """Store a shared subscription's marks, in their turn.

        Raises:
            HandoverRefused: nothing is stored.
            LogUnavailable: nobody knows after 30 s of trying.
        """
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._writer.write("", 0, (), 0, _FUTURE_SINK, future, JustMarks(source))
        await future

    async def pause(self) -> None:
        """Write nothing until `go_on`; returns when what is under way is settled."""
        await self._writer.pause()

    def go_on(self) -> None:
        """Undo `pause`."""
        self._writer.go_on()

    def _swept(self, client_id: str, epoch: int, records: Records) -> list[tuple[Position, PendingRecord]]:
        """Tombstones for the journal, if a progress record is among the records."""
        progress = next(
            (value for _, (key, value, _) in records if key and value and key.endswith(_PROGRESS_END)), None
        )
        if progress is None:
            return []
        position = self.position(client_id)
        written = {key for _, (key, _, _) in records}
        if b'"unsettled' in progress:
            decoded = decode_progress(progress)
            for kind, packet_ids in ((KIND_INCOMING, decoded.unsettled), (KIND_OUTGOING, decoded.unsettled_outgoing)):
                written |= {session_key(client_id, epoch, b"%b%d" % (kind, each)) for each in packet_ids}
        keys = [key for key in self.view.journal_keys(client_id, epoch) if key not in written]
        return [(position, record) for record in deletion_records(keys)]

    def _marker(self, number: int, records: Records) -> tuple[Position, PendingRecord]:
        """Into a partition that the transaction writes to anyway."""
        positions = (position for position, _ in records if position[0] == self._kafka_topic)
        position = next(positions, (self._kafka_topic, 0))
        return position, (self._marker_key, self._marker_prefix + b"%d" % number, ())

    async def _was_committed(self, number: int, position: Position) -> bool:
        await self._tail.caught_up((position[1],))
        return self._last_marker == number

    # Fencing

    async def _fence(self, node_id: str) -> None:
        """Take the node's transactional id; concurrent loads share it."""
        fence = self._fences.get(node_id)
        if fence is None:
            fence = self._fences[node_id] = SharedAnswer(lambda: self._take_id(node_id))
        try:
            await fence.get()
        finally:
            if not fence.is_busy:
                self._fences.pop(node_id, None)

    async def _take_id(self, node_id: str) -> None:
        self._counts["fences"] += 1
        producer = self._log.transactional_producer(transactional_id(node_id))
        try:
            await producer.start()
        finally:
            await producer.stop()
        self._say_fenced(node_id)

    def _say_fenced(self, node_id: str) -> None:
        """Once a node and minute: it is fenced again and again while its sessions come here one by one."""
        now_s = self._clock()
        self._quiet_until = {node: until_s for node, until_s in self._quiet_until.items() if until_s > now_s}
        if node_id not in self._quiet_until:
            self._quiet_until[node_id] = now_s + FENCE_LINE_S
            logger.warning("node %s does not release its sessions and is fenced", node_id)

    # Following

    def _take(self, partition: int, record: Record) -> None:
        key = record.key
        if key is not None and key.startswith(MARKER_PREFIX):
            self._take_marker(key, record.value)
            return
        try:
            client_id, epoch, kind = parse_session_key(key)
            self.view.apply(client_id, epoch, kind, record.value)
        except RecordError as error:
            self._counts["unreadable"] += 1
            logger.warning("%s[%d]@%d is skipped: %s", self._kafka_topic, partition, record.offset, error)

    def _truncated(self, partition: int) -> None:
        """The Kafka topic was made anew: what was known of the partition is gone."""
        self.view.discard(lambda client_id: self.position(client_id)[1] == partition)

    def _take_marker(self, key: bytes, value: bytes | None) -> None:
        if key == self._marker_key and value is not None and value.startswith(self._marker_prefix):
            number = value[len(self._marker_prefix) :]
            if number.isdigit():
                self._last_marker = max(self._last_marker, int(number))


class _FutureSink:
    """Turns an outcome into a future's: the token is the future."""

    def stored(self, token: asyncio.Future[list[int]], offsets: list[int]) -> None:
        if not token.done():
            token.set_result(offsets)

    def store_refused(self, token: asyncio.Future[list[int]], error: RecordRefused) -> None:
        self._fail(token, error)

    def store_lost(self, token: asyncio.Future[list[int]]) -> None:
        self._fail(token, SessionLost("the session has another owner"))

    def store_unknown(self, token: asyncio.Future[list[int]]) -> None:
        self._fail(token, LogUnavailable("no answer in time: the session may or may not be stored"))

    def _fail(self, token: asyncio.Future[list[int]], error: Exception) -> None:
        if not token.done():
            token.set_exception(error)


_FUTURE_SINK = _FutureSink()
