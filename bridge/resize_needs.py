"""Who still needs the oldest generation of a Kafka topic's partitions: stored sessions and shared subscriptions.

A session needs what is before the next generation's first records in those partitions that its filters needed then. It
has them in its stored positions, or began later (`RouteTable.begins`). What Kafka's retention has deleted nobody needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from bridge.log import Log, Position, Record
from bridge.partitioning import RouteTable
from bridge.session_view import SessionView
from bridge.shared.lease import group_id_of
from bridge.shared.shared_subscriptions import partitions_of
from bridge.topic_tail import TopicTail
from schemas.catalogue import SESSIONS, catalogue
from schemas.errors import RecordError
from schemas.layouts import Layout, offset_of
from schemas.routes import Q2_SUFFIX
from schemas.sessions import MARKER_PREFIX, StoredSession, parse_session_key
from schemas.topics import BESIDE_PREFIXES, EXCLUSIVE_PREFIX, SHARE_PREFIX, parse_shared

if TYPE_CHECKING:
    from bridge.shared.lease import Lease

NAMED_MAX: Final = 5  # of those who need it: enough to know whom to ask
_PARTITIONS: Final = next(spec.partitions for spec in catalogue() if spec.name == SESSIONS)


class Needs:
    """Follows `headwater.sessions` between `start` and `stop`; `routes` have the layout in question."""

    def __init__(self, log: Log, routes: RouteTable, kafka_topic: str) -> None:
        self._log = log
        self._routes = routes
        self._kafka_topic = kafka_topic
        self._view = SessionView()
        self._tail = TopicTail(log, SESSIONS, _PARTITIONS, self._take, read_committed=True)

    async def start(self) -> None:
        """Read every stored session. Raises LogUnavailable."""
        await self._tail.start()

    async def stop(self) -> None:
        await self._tail.stop()

    async def of_first(self) -> tuple[str, ...]:
        """Some of those who need the oldest generation. Raises LogUnavailable."""
        await self._tail.caught_up()
        layout = self._routes.layout(self._kafka_topic)
        first = set(self._positions(range(layout.kafka_partitions)))
        starts = await self._log.start_offsets(first)
        found = [
            f"session {client_id}"
            for client_id in self._view
            if (stored := self._view.get(client_id)) is not None
            and session_needs_first(stored, self._routes, layout, starts)
        ]
        for share_filter in self._share_filters():
            if await self._group_needs_first(share_filter, layout, starts):
                found.append(share_filter)
        return tuple(found[:NAMED_MAX])

    async def begin_groups(self) -> int:
        """Shared subscriptions that nobody is connected to begin in the partitions that are new: their marks are
        stored here. How many there were. Raises LogUnavailable."""
        await self._tail.caught_up()
        begun = 0
        for share_filter in self._share_filters():
            topic_filter = _topic_filter_of(share_filter)
            marks = (await self._lease(share_filter).committed()).keys()
            begins = self._routes.begins(topic_filter)
            new = {position: begins[position] for position in begins if position not in marks}
            if marks and new:
                consumer = self._log.consumer(group_id_of(share_filter))
                try:
                    await consumer.commit(new)
                finally:
                    await consumer.stop()
                begun += 1
        return begun

    async def _group_needs_first(self, share_filter: str, layout: Layout, starts: Mapping[Position, int]) -> bool:
        marks = {position: mark.offset for position, mark in (await self._lease(share_filter).committed()).items()}
        return needs_first(_topic_filter_of(share_filter), marks, self._routes, layout, starts) if marks else False

    def _lease(self, share_filter: str) -> Lease:
        positions = partitions_of(self._routes, _topic_filter_of(share_filter))
        return self._log.leases().lease(group_id_of(share_filter), positions)

    def _share_filters(self) -> list[str]:
        found = {
            each.topic_filter
            for client_id in self._view
            if (stored := self._view.get(client_id)) is not None
            for each in stored.state.subscriptions
            if each.topic_filter.startswith(SHARE_PREFIX)
        }
        return sorted(found)

    def _positions(self, partitions: Iterable[int]) -> Iterable[Position]:
        names = (self._kafka_topic, self._kafka_topic + Q2_SUFFIX)
        return ((name, partition) for partition in partitions for name in names)

    def _take(self, partition: int, record: Record) -> None:
        if record.key is None or record.key.startswith(MARKER_PREFIX):
            return
        try:
            client_id, epoch, kind = parse_session_key(record.key)
            self._view.apply(client_id, epoch, kind, record.value)
        except RecordError:
            return  # the edges have counted it


def session_needs_first(
    stored: StoredSession, routes: RouteTable, layout: Layout, starts: Mapping[Position, int]
) -> bool:
    """Whether the session is due something from before the layout's second generation; pure."""
    if not stored.state.expiry_s:
        return False  # it ends with its connection
    at = dict(stored.progress.positions)
    for entry in stored.progress.outgoing.values():
        position = (entry.kafka_topic, entry.partition)
        if not entry.shared and entry.topic_name is None:
            at[position] = min(at.get(position, entry.offset), entry.offset)
    return any(
        needs_first(each.topic_filter.removeprefix(EXCLUSIVE_PREFIX), at, routes, layout, starts)
        for each in stored.state.subscriptions
        if not each.topic_filter.startswith(BESIDE_PREFIXES)
    )


def needs_first(
    topic_filter: str,
    at: Mapping[Position, int],
    routes: RouteTable,
    layout: Layout,
    starts: Mapping[Position, int],
) -> bool:
    """Whether a reader of the filter that has come to these positions is due something from before the layout's second
    generation; ``starts`` is where the log begins. Pure."""
    first, second = layout.generations[0], layout.generations[1]
    begins = routes.begins(topic_filter)
    for partition in routes.partitions_by(layout.kafka_topic, topic_filter, first.partitions):
        names = (layout.kafka_topic, layout.kafka_topic + Q2_SUFFIX)
        for name, since in zip(names, second.since, strict=True):
            position = (name, partition)
            need = at.get(position, begins.get(position, 0))
            if max(need, starts.get(position, 0)) < offset_of(since, partition):
                return True
    return False


def _topic_filter_of(share_filter: str) -> str:
    shared = parse_shared(share_filter)
    assert shared is not None, share_filter
    return shared.topic_filter
