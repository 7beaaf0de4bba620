"""Reads the leased partitions of all shared subscriptions of a node, through one consumer. A second one of these reads
what the node's replay subscriptions want (`bridge.history`).

Why a reader of its own and not the deliverer's records: the deliverer reads every partition that a local filter can
match, from its end; a group reads what it has leased, from its low-water mark. So a shared subscription costs the edge
only the partitions that it serves, however many edges and members there are, and a group whose members are busy stops
reading without anybody else noticing. It reads committed: that costs nothing where there are no transactions, and it is
what the QoS 2 twins need.

Several groups that serve one partition ride on the same scan as long as they are at the same place. Otherwise those
that are behind take turns; what is at the end waits for nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from bridge.delivery import Delivery, read_delivery, read_topic_name
from bridge.log import Log, LogConsumer, LogError, LogTruncated, Position, Record
from bridge.partitioning import RouteTable
from bridge.subscriptions import Subscription, SubscriptionTable
from schemas.errors import HeadwaterError

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 1.0  # how late a position behind a transaction's marker is seen
TURNS = 8  # a group that is behind is served for so many reads before another one has its turn: seeking costs a fetch
BUFFERED_BYTES_MAX = 32 * 1024 * 1024  # of messages that wait for a member, of all groups; what is above is read again
RETRY_S_MIN, RETRY_S_MAX = 0.05, 1.0

DeadLetter = Callable[[Position, Record, Exception], None]


class Fed(Protocol):
    """What is fed: a `ShareGroup`, a `bridge.history.feed.ReplayFeed`. Hashable."""

    @property
    def positions(self) -> Collection[Position]:
        """The partitions it has something to do with."""
        ...

    def wants(self, position: Position, /) -> int | None:
        """Where to read on; None: nothing is needed of the partition now."""
        ...

    def feed(self, position: Position, deliveries: Iterable[Delivery], read_offset: int, /) -> None:
        """What was read from `wants` on: the matching messages, and where to read on."""
        ...

    def skip_to(self, position: Position, offset: int, /) -> None:
        """The log has nothing before (or behind) ``offset``."""
        ...

    @property
    def buffered_bytes(self) -> int: ...

    def drop_buffers(self) -> None:
        """Memory is short: what waits is read again later."""
        ...

    def deliver(self, delivery: Any, grant: Any, /) -> object:
        """Never called: it stands in a subscription table."""
        ...


class SharedReader:
    """Feeds groups with what they want. `after_batch` runs before it gives way to the loop."""

    def __init__(
        self,
        source: Log,
        routes: RouteTable,
        after_batch: Callable[[], None],
        dead_letter: DeadLetter,
        *,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self._log = source
        self._routes = routes
        self._after_batch = after_batch
        self._dead_letter = dead_letter
        self._clock_ms = clock_ms or (lambda: int(time.time() * 1000))
        self._table = SubscriptionTable()
        self._groups: dict[Fed, str] = {}  # with their Topic Filters
        self._consumer: LogConsumer | None = None
        self._reading: dict[Position, int] = {}  # what the consumer is assigned, with the next offset
        self._turn = 0
        self._fetching = False
        self._changed = asyncio.Event()
        self._apply_handle: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._counts = dict.fromkeys(
            ("records", "matched", "unreadable_records", "truncations", "assignments", "pump_errors", "log_errors"), 0
        )

    def add(self, group: Fed, topic_filter: str) -> None:
        """Feed the group from now on. The reader starts with the first one."""
        self._groups[group] = topic_filter
        self._table.add(Subscription(group, topic_filter))
        if self._task is None and not self._stopped:
            self._consumer = self._log.consumer(None, read_committed=True)
            self._task = asyncio.get_running_loop().create_task(self._pump(), name="headwater-shared-reader")

    def remove(self, group: Fed) -> None:
        self._table.remove(self._groups.pop(group), group)
        self.changed()

    def changed(self) -> None:
        """A group wants something, or something else."""
        self._changed.set()
        if self._fetching and self._apply_handle is None:
            self._apply_handle = asyncio.get_running_loop().call_soon(self._apply)

    async def stop(self) -> None:
        self._stopped = True
        if self._apply_handle is not None:
            self._apply_handle.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._consumer is not None:
            await self._consumer.stop()

    def statistics(self) -> dict[str, Any]:
        return {**self._counts, "partitions": len(self._reading), "groups": len(self._groups)}

    # What is wanted

    def _wanted(self) -> dict[Position, int]:
        """Where to read on, by partition."""
        offsets: dict[Position, set[int]] = {}
        for group in self._groups:
            for position in group.positions:
                if (offset := group.wants(position)) is not None:
                    offsets.setdefault(position, set()).add(offset)
        return {position: self._pick(position, sorted(wanted)) for position, wanted in offsets.items()}

    def _pick(self, position: Position, offsets: list[int]) -> int:
        """Where nothing is known to be, nothing is read while others are behind."""
        if len(offsets) > 1 and self._consumer is not None:
            end = self._consumer.end_of(position)
            offsets = [offset for offset in offsets if end is None or offset < end] or offsets
        return offsets[self._turn // TURNS % len(offsets)]

    def _apply(self) -> None:
        """While records are in the pump's hand it assigns itself, later."""
        self._apply_handle = None
        if self._fetching:
            self._assign(self._wanted())

    def _assign(self, wanted: Mapping[Position, int]) -> None:
        assert self._consumer is not None
        if wanted != self._reading:
            self._reading = dict(wanted)
            self._counts["assignments"] += 1
            self._consumer.assign(wanted)

    # The pump

    async def _pump(self) -> None:
        wait_s = RETRY_S_MIN
        while not self._stopped:
            try:
                await self._read_once()
                wait_s = RETRY_S_MIN
            except LogTruncated as error:
                self._truncated(error)
                await asyncio.sleep(0)
            except LogError as error:
                self._counts["log_errors"] += 1
                log.warning("nothing can be read for shared subscriptions now: %s", error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
            except Exception:
                # A fault of ours must not end all delivery: groups want what they were not given
                self._counts["pump_errors"] += 1
                log.exception("the shared reader goes on after an unexpected error")
                self._assign({})
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)

    async def _read_once(self) -> None:
        assert self._consumer is not None
        self._changed.clear()
        wanted = self._wanted()
        self._assign(wanted)
        if not wanted:
            await self._changed.wait()
            return
        self._turn += 1
        self._fetching = True
        try:
            fetched = await self._consumer.fetch(FETCH_TIMEOUT_S)
        finally:
            self._fetching = False
        for position, records in fetched:
            start = self._reading[position]
            following = self._reading[position] = records[-1].offset + 1
            self._feed(position, start, records, following)
            self._after_batch()
            await asyncio.sleep(0)
        self._pass_markers()
        self._bound_buffers()

    def _feed(self, position: Position, start: int, records: Sequence[Record], following: int) -> None:
        """The groups that want something of this: each gets what matches from where it is."""
        places = {
            group: offset
            for group in self._groups
            if (offset := group.wants(position)) is not None and start <= offset < following
        }
        found: dict[Fed, list[Delivery]] = {group: [] for group in places}
        self._counts["records"] += len(records)
        for record in records:
            for group, delivery in self._matching(position, record):
                if group in places and record.offset >= places[group]:
                    found[group].append(delivery)
                    self._counts["matched"] += 1
        for group, deliveries in found.items():
            if group.wants(position) == places[group]:  # else something happened while another group was fed
                group.feed(position, deliveries, following)

    def _matching(self, position: Position, record: Record) -> list[tuple[Fed, Delivery]]:
        kafka_topic, partition = position
        try:
            name = read_topic_name(kafka_topic, record, self._routes.topic_name_from_key)
            shards = self._table.match_bytes(name)
            if not shards:
                return []
            delivery = read_delivery(kafka_topic, partition, record, name)
        except HeadwaterError as error:
            self._counts["unreadable_records"] += 1
            self._dead_letter(position, record, error)
            return []
        groups = [grant.subscriber for shard in shards for grant in shard]
        return [(cast(Fed, group), delivery) for group in groups]  # the table has no others

    def _pass_markers(self) -> None:
        """Behind the last message there may be what no reader gets: transactions' markers, and what was aborted."""
        assert self._consumer is not None
        for position, at in list(self._reading.items()):
            passed = self._consumer.position_of(position)
            if passed is None or passed <= at:
                continue
            self._reading[position] = passed
            for group in list(self._groups):
                if group.wants(position) == at:
                    group.feed(position, (), passed)

    def _bound_buffers(self) -> None:
        """Once each: a replay keeps the next record of each partition, so there may be more all the same."""
        too_much = sum(group.buffered_bytes for group in self._groups) - BUFFERED_BYTES_MAX
        if too_much <= 0:
            return
        for group in sorted(self._groups, key=lambda group: group.buffered_bytes, reverse=True):
            before = group.buffered_bytes
            group.drop_buffers()
            too_much -= before - group.buffered_bytes
            if too_much <= 0:
                return

    def _truncated(self, error: LogTruncated) -> None:
        """Never a silent gap: counted and said aloud."""
        self._counts["truncations"] += 1
        log.error("%s", error)
        at = self._reading.pop(error.partition, None)
        for group in list(self._groups):
            if at is not None and group.wants(error.partition) == at:
                group.skip_to(error.partition, error.start)
