"""Delivers records to the subscribers of this node: the way out. One consumer per node, never one per client.

What is read is exactly the union of the local filters' partitions. A filter's first subscriber adds its partitions at
their current end, the last one's leaving gives back those that no other filter needs. Changes are gathered: many of
them between two fetches make one assignment.

Over a resize of a Kafka topic's partitions (`schemas.layouts`) order per Topic Name is kept by two things: nothing of
the Kafka topic is handed out while writers change over (`pause`), and then no partition's new part before all the
partitions' old parts are through (`go_on`).

``positions`` is the truth about where this node is: the offset of the next record to hand out, per partition. It moves
when a record has been handed to every matching subscriber (or when the loop gets a turn), so a filter that is added
meanwhile knows exactly which records are before it.

The pump never awaits a subscriber. It gives way to the loop every 500 records and between the shards of a hot filter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from bridge.delivery import Delivery, following, read_delivery, read_topic_name
from bridge.log import Log, LogError, LogTruncated, Position, Record
from bridge.partitioning import Destination, RouteTable
from schemas.errors import HeadwaterError
from schemas.records import HEADER_DEAD_LETTER_REASON, HEADER_DEAD_LETTER_SOURCE, HEADER_TOPIC
from schemas.routes import DEAD_LETTER, Q2_SUFFIX

if TYPE_CHECKING:
    from bridge.publisher import Publisher
    from bridge.subscriptions import Grant, Shards, SubscriptionTable

log = logging.getLogger(__name__)

GROUP_PREFIX = "headwater.node."
YIELD_RECORDS = 500  # about 1 ms of work at 2 us per record: what others wait for at most
COMMIT_INTERVAL_S = 5.0  # how fresh the lag in Kafka's group tools is
STOP_COMMIT_S = 2.0  # a node that leaves while Kafka is away does not wait for its tools
FETCH_TIMEOUT_S = 10.0  # only how often an idle pump looks around
RETRY_S_MIN, RETRY_S_MAX = 0.05, 1.0
REASON_BYTES_MAX = 512


class Deliverer:
    """Reads what the local filters need and hands it to their subscribers.

    ``after_batch`` runs before the pump gives way, once for many deliveries: an edge flushes its writes there.
    ``publisher`` serves the dead-letter topic and knows ends that no fetch has shown yet. ``exactly_once`` makes it the
    second deliverer of a node, which reads the QoS 2 twins, committed, under a group of its own.
    """

    def __init__(
        self,
        source: Log,
        routes: RouteTable,
        table: SubscriptionTable,
        node_id: str,
        after_batch: Callable[[], None] | None = None,
        *,
        publisher: Publisher | None = None,
        exactly_once: bool = False,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self._log = source
        self._routes = routes
        self._table = table
        self._after_batch = after_batch or _nothing
        self._publisher = publisher
        self._partitions_of = routes.twin_partitions if exactly_once else routes.partitions
        self._clock_ms = clock_ms or (lambda: int(time.time() * 1000))
        self.group_id = GROUP_PREFIX + node_id + (Q2_SUFFIX if exactly_once else "")
        self._consumer = source.consumer(self.group_id, read_committed=exactly_once)
        self._commit_interval_s = commit_interval_s

        self._filters: Counter[str] = Counter()
        self._filter_partitions: dict[str, frozenset[Position]] = {}  # as of when it was added: routes may change
        self._references: Counter[Position] = Counter()
        self._positions: dict[Position, int] = {}
        self._paused: set[str] = set()  # Kafka topics of which nothing is handed out
        self._limits: dict[Position, int] = {}  # from here on nothing is handed out until all have come to theirs
        self._fresh: set[Position] = set()  # added by `relayout`, and not confirmed yet
        self.on_passed: Callable[[], None] = _nothing  # all limits of a Kafka topic were come to, nothing is past them
        self._unresolved: dict[Position, int] = {}  # new partitions whose end is asked for, with the asking's number
        self._asking = 0
        self._waiters: list[tuple[set[Position], asyncio.Future[None]]] = []
        self._resolver: asyncio.Task[None] | None = None
        self._fetching = False
        self._assignment_changed = False
        self._apply_handle: asyncio.Handle | None = None

        self._committed: dict[Position, int] = {}
        self._commit_event = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False
        self._since_yield = 0
        self._in_hand: Position | None = None
        self._counts = dict.fromkeys(
            (
                "records",
                "deliveries",
                "expired_records",
                "unreadable_records",
                "truncations",
                "truncated_records",
                "subscriber_errors",
                "pump_errors",
                "log_errors",
                "assignments",
            ),
            0,
        )

    async def start(self) -> None:
        """Start reading. Offsets that an earlier life of this node left in its group are deleted in the background."""
        assert not self._tasks, "started once"
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._pump(), name="headwater-deliverer"),
            loop.create_task(self._commit_regularly(), name="headwater-deliverer-commits"),
        ]

    async def stop(self) -> None:
        """Stop reading, store the positions, let the consumer go."""
        self._stopped = True
        tasks = [*self._tasks, *([self._resolver] if self._resolver is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for _, waiter in self._waiters:
            waiter.cancel()
        if self._apply_handle is not None:
            self._apply_handle.cancel()
        if self._tasks:
            try:
                async with asyncio.timeout(STOP_COMMIT_S):
                    await self._commit()
            except TimeoutError:
                log.warning("stopped without storing the positions of group %s", self.group_id)
        await self._consumer.stop()

    # Filters

    def add_filter(self, topic_filter: str) -> asyncio.Future[None] | None:
        """Read what ``topic_filter`` can match. Counted: each call needs its ``remove_filter``.

        Returns None when the node's positions on all its partitions are known, else a future that resolves when they
        are. A message published after that is delivered.
        """
        self._filters[topic_filter] += 1
        partitions = self._filter_partitions.get(topic_filter)
        if partitions is None:
            partitions = self._filter_partitions[topic_filter] = self._partitions_of(topic_filter)
            for position in partitions:
                self._refer(position)
        return self._known(partitions)

    def _known(self, partitions: Iterable[Position]) -> asyncio.Future[None] | None:
        """When the positions on all of them are known; None: they are."""
        missing = {position for position in partitions if position in self._unresolved}
        if not missing:
            return None
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append((missing, waiter))
        if self._resolver is None:
            self._resolver = loop.create_task(self._resolve_positions(), name="headwater-deliverer-positions")
        return waiter

    def remove_filter(self, topic_filter: str) -> None:
        """Undo one ``add_filter``; the last one gives back the partitions that no other filter needs."""
        assert self._filters[topic_filter] > 0, f"{topic_filter!r} was not added"
        self._filters[topic_filter] -= 1
        if self._filters[topic_filter]:
            return
        del self._filters[topic_filter]
        for position in self._filter_partitions.pop(topic_filter):
            self._give_back(position)

    def _refer(self, position: Position) -> bool:
        """One more filter needs it; whether it is read from now on."""
        self._references[position] += 1
        if position in self._positions or position in self._unresolved:
            return False
        self._asking += 1
        self._unresolved[position] = self._asking
        return True

    def _give_back(self, position: Position) -> None:
        self._references[position] -= 1
        if not self._references[position]:
            del self._references[position]
            self._unresolved.pop(position, None)
            self._fresh.discard(position)
            self._settle(position)
            if self._positions.pop(position, None) is not None:
                self._change_assignment()
            if self._limits.pop(position, None) is not None:
                self._pass_limits()

    # Resize

    def relayout(self) -> asyncio.Future[None] | None:
        """The routes' layouts have changed: read what each filter needs now. The future, if any, is that of
        `add_filter`."""
        for topic_filter, before in list(self._filter_partitions.items()):
            after = self._partitions_of(topic_filter)
            if after == before:
                continue
            self._filter_partitions[topic_filter] = after
            self._fresh.update(position for position in after - before if self._refer(position))
            for position in before - after:
                self._give_back(position)
        return self._known(self._references)

    def confirm(self) -> None:
        """The partitions that `relayout` added are read from where they ended before anybody wrote by the layout."""
        self._fresh.clear()

    def restart_fresh(self, begins: Callable[[Position], int]) -> None:
        """The same was not so: they are read from where they begin."""
        for position in self._fresh & self._references.keys():
            self._unresolved.pop(position, None)
            self._positions[position] = begins(position)
            self._settle(position)
            self._change_assignment()
        self._fresh.clear()

    async def pause(self, kafka_topic: str) -> None:
        """Hand out nothing of this Kafka topic until `go_on`; returns when nothing of it is in hand."""
        self._paused.add(kafka_topic)
        while self._in_hand is not None and self._in_hand[0] == kafka_topic:  # noqa: ASYNC110
            await asyncio.sleep(0)  # a shard per turn of the loop: soon done
        self._change_assignment()

    def go_on(self, kafka_topic: str, since: Callable[[int], int] | None) -> None:
        """Undo `pause`. ``since`` says where in each partition the new part begins: nothing of it is handed out before
        all is that was before it."""
        self._paused.discard(kafka_topic)
        if since is not None:
            for position in self._positions:
                if position[0] == kafka_topic:
                    self._limits[position] = since(position[1])
            self._pass_limits()
        self._change_assignment()

    def is_paused(self, kafka_topic: str) -> bool:
        return kafka_topic in self._paused

    def is_limited(self, kafka_topic: str) -> bool:
        """Whether what was written before the last `go_on` is not all handed out yet."""
        return any(position[0] == kafka_topic for position in self._limits)

    def _limit_of(self, position: Position) -> float:
        return 0 if position[0] in self._paused else self._limits.get(position, inf)

    def _pass_limits(self) -> None:
        """To be called when all that was fetched has been handed out, as far as it may be."""
        for kafka_topic in {position[0] for position in self._limits} - self._paused:
            limits = {position: limit for position, limit in self._limits.items() if position[0] == kafka_topic}
            if all(self._has_come_to(position, limit) for position, limit in limits.items()):
                for position, limit in limits.items():
                    del self._limits[position]
                    self._positions[position] = max(self._positions[position], limit)
                self._change_assignment()
                self.on_passed()

    def _has_come_to(self, position: Position, limit: int) -> bool:
        """Behind the last record there may be what nobody gets: transactions' markers."""
        at = self._positions[position]
        return at >= limit or (not self._assignment_changed and (self._consumer.position_of(position) or 0) >= limit)

    def partitions_of(self, topic_filter: str) -> frozenset[Position]:
        """What is read for a filter that was added; empty for any other."""
        return self._filter_partitions.get(topic_filter, frozenset())

    def start_positions(self, topic_filter: str) -> dict[Position, int]:
        """Where a subscription that begins now begins, per partition: for its ``not_before``.

        What this node knows to be in the log already is before it: our own position, the end as of the last fetch,
        and what our publisher has had acknowledged.
        """
        starts: dict[Position, int] = {}
        for position in self._filter_partitions.get(topic_filter) or self._partitions_of(topic_filter):
            start = max(self._positions.get(position, 0), self._consumer.end_of(position) or 0)
            if self._publisher is not None:
                start = max(start, self._publisher.known_end(*position))
            starts[position] = start
        return starts

    def positions(self) -> dict[Position, int]:
        """The next offset to hand out, per partition that is read."""
        return dict(self._positions)

    def position_of(self, position: Position) -> int | None:
        """The next offset to hand out of one partition; None when it is not read."""
        return self._positions.get(position)

    def is_in_hand(self, position: Position) -> bool:
        """Whether a record of the partition, the one before its position, has been handed to a part of its shards."""
        return self._in_hand == position

    def statistics(self) -> dict[str, Any]:
        lag = {
            position: max(0, (self._consumer.end_of(position) or 0) - at) for position, at in self._positions.items()
        }
        return {
            **self._counts,
            "filters": len(self._filters),
            "partitions": len(self._positions),
            "lag_records": sum(lag.values()),
            "lag": lag,
            "consumer": self._consumer.statistics(),
        }

    # Positions of new partitions, assignment

    async def _resolve_positions(self) -> None:
        wait_s = RETRY_S_MIN
        while self._unresolved:
            asked = dict(self._unresolved)
            try:
                ends = await self._log.end_offsets(frozenset(asked))
            except LogError as error:
                self._counts["log_errors"] += 1
                log.warning("the ends of %d partitions are not known yet: %s", len(asked), error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
                continue
            for position, end in ends.items():
                if self._unresolved.get(position) == asked[position]:  # else given back meanwhile, perhaps asked anew
                    del self._unresolved[position]
                    self._positions[position] = end
                    self._settle(position)
                    self._change_assignment()
        self._resolver = None

    def _settle(self, position: Position) -> None:
        still: list[tuple[set[Position], asyncio.Future[None]]] = []
        for missing, waiter in self._waiters:
            missing.discard(position)
            if missing:
                still.append((missing, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = still

    def _change_assignment(self) -> None:
        self._assignment_changed = True
        if self._apply_handle is None and not self._stopped:
            self._apply_handle = asyncio.get_running_loop().call_soon(self._apply_if_fetching)

    def _apply_if_fetching(self) -> None:
        """While records are in the pump's hand the consumer is ahead of us: then the pump itself assigns, later."""
        self._apply_handle = None
        if self._fetching and self._assignment_changed:
            self._assign()

    def _assign(self) -> None:
        self._assignment_changed = False
        self._counts["assignments"] += 1
        assigned = self._positions
        if self._limits or self._paused:
            assigned = {position: at for position, at in assigned.items() if at < self._limit_of(position)}
        self._consumer.assign(assigned)
        self._commit_event.set()

    # The pump

    async def _pump(self) -> None:
        wait_s = RETRY_S_MIN
        while not self._stopped:
            try:
                if self._assignment_changed:
                    self._assign()
                self._fetching = True
                try:
                    fetched = await self._consumer.fetch(FETCH_TIMEOUT_S)
                finally:
                    self._fetching = False
                for position, records in fetched:
                    await self._deliver_partition(position, records)
                if self._limits:
                    self._pass_limits()
                self._after_batch()
                wait_s = RETRY_S_MIN
            except LogTruncated as error:
                self._truncated(error)
            except LogError as error:
                self._counts["log_errors"] += 1
                log.warning("nothing can be read now: %s", error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
            except Exception:
                # A fault of ours must not end all delivery: go on from what has been handed out.
                self._counts["pump_errors"] += 1
                log.exception("the deliverer goes on after an unexpected error")
                self._assignment_changed = True
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)

    async def _deliver_partition(self, position: Position, records: Sequence[Record]) -> None:
        index = 0
        while index < len(records):
            if self._positions.get(position, -1) > records[index].offset or position not in self._positions:
                return  # given back, and perhaps added anew further on, while others had their turn
            if (self._limits or self._paused) and records[-1].offset >= self._limit_of(position):
                limit = self._limit_of(position)
                records = [record for record in records if record.offset < limit]
                self._assignment_changed = True  # what is left out comes again
                continue
            index, delivery, shards = self._deliver_some(position, records, index)
            self._positions[position] = records[index - 1].offset + 1
            if delivery is not None:
                self._in_hand = position
                try:
                    await self._deliver_shards(delivery, shards)
                finally:
                    self._in_hand = None
            elif self._since_yield >= YIELD_RECORDS:
                await self._give_way()

    def _deliver_some(
        self, position: Position, records: Sequence[Record], start: int
    ) -> tuple[int, Delivery | None, tuple[list[Grant], ...]]:
        """Hand out records until it is time to give way, or until one has more than one shard of subscribers.

        Returns the index to go on at, and the delivery with its shards in the second case. Records that follow one
        another with the same headers (a client's that came together) go to their only subscriber as one run.
        """
        now_ms = self._clock_ms()
        deliveries = 0
        stop = min(len(records), start + YIELD_RECORDS - min(self._since_yield, YIELD_RECORDS - 1))
        index = start
        try:
            while index < stop:
                record = records[index]
                index += 1
                matched = self._match(position, record, now_ms)
                if matched is None:
                    continue
                delivery, shards = matched
                if len(shards) > 1:
                    return index, delivery, shards
                headers = record.headers
                if index < stop and records[index].headers == headers and _may_run(delivery, position, shards[0]):
                    first = index
                    while index < stop and records[index].headers == headers:
                        index += 1
                    deliveries += self._deliver_run(following(delivery, records[first:index]), shards[0][0])
                    continue
                for grant in shards[0]:
                    if grant.not_before and self._is_before(grant.not_before, position, record.offset):
                        continue
                    try:
                        grant.subscriber.deliver(delivery, grant)
                    except Exception:
                        self._subscriber_failed(delivery)
                    deliveries += 1
        finally:
            self._since_yield += index - start
            self._counts["records"] += index - start
            self._counts["deliveries"] += deliveries
        return index, None, ()

    def _match(self, position: Position, record: Record, now_ms: int) -> tuple[Delivery, Shards] | None:
        """The record as a delivery and who gets it; None: nobody."""
        kafka_topic, partition = position
        try:
            headers = record.headers
            if 0 < len(headers) < 4 and headers[0][0] == HEADER_TOPIC and headers[0][1]:
                name = headers[0][1]
            else:
                name = read_topic_name(kafka_topic, record, self._routes.topic_name_from_key)
            shards = self._table.match_bytes(name)
            if not shards:
                return None
            grants = shards[0]
            frames: dict[Any, Any] | None = {} if len(grants) > 1 else None  # encoded packets to share
            delivery = read_delivery(kafka_topic, partition, record, name, frames)
        except HeadwaterError as error:
            self.dead_letter(position, record, error)
            return None
        expiry_s = delivery.expiry_s
        if expiry_s is not None and delivery.timestamp_ms + expiry_s * 1000 <= now_ms:
            self._counts["expired_records"] += 1  # I15 [MQTT5-3.3.2-5]
            return None
        return delivery, shards

    def _deliver_run(self, run: list[Delivery], grant: Grant) -> int:
        subscriber: Any = grant.subscriber
        try:
            subscriber.deliver_run(run, grant)
        except Exception:
            self._subscriber_failed(run[0])
        return len(run)

    async def _deliver_shards(self, delivery: Delivery, shards: tuple[list[Grant], ...]) -> None:
        """A shard per turn of the loop. Who unsubscribes meanwhile gets no more [MQTT5-3.10.4-2]."""
        position = (delivery.kafka_topic, delivery.partition)
        for index, shard in enumerate(shards):
            if index:
                await self._give_way()
                current = self._table.match_bytes(delivery.topic_name_utf8)
                if current is not shards:
                    staying = {id(grant.subscriber) for part in current for grant in part}
                    shard = [grant for grant in shard if id(grant.subscriber) in staying]
            for grant in shard:
                if grant.not_before and self._is_before(grant.not_before, position, delivery.offset):
                    continue
                try:
                    grant.subscriber.deliver(delivery, grant)
                except Exception:
                    self._subscriber_failed(delivery)
            self._counts["deliveries"] += len(shard)
        await self._give_way()

    async def _give_way(self) -> None:
        self._since_yield = 0
        self._after_batch()
        await asyncio.sleep(0)

    def _is_before(self, not_before: dict[Position, int], position: Position, offset: int) -> bool:
        start = not_before.get(position)
        if start is None:
            return False
        if offset < start:
            return True
        del not_before[position]  # passed: from here on this costs nothing
        return False

    def _subscriber_failed(self, delivery: Delivery) -> None:
        self._counts["subscriber_errors"] += 1
        log.exception("a subscriber raised on %r; it did not get it", delivery)

    def dead_letter(self, position: Position, record: Record, error: Exception) -> None:
        self._counts["unreadable_records"] += 1
        log.warning("%s[%d]@%d cannot be read and is skipped: %s", *position, record.offset, error)
        if self._publisher is None:
            return
        source = f"{position[0]}/{position[1]}/{record.offset}".encode()
        reason = str(error).encode(errors="backslashreplace")[:REASON_BYTES_MAX]
        headers = [*record.headers, (HEADER_DEAD_LETTER_REASON, reason), (HEADER_DEAD_LETTER_SOURCE, source)]
        destination = Destination(DEAD_LETTER, 0, record.key if record.key is not None else source)
        self._publisher.append(destination, record.value, headers, None, None)

    def _truncated(self, error: LogTruncated) -> None:
        """Never a silent gap: counted and said aloud; reading goes on where the log begins."""
        self._counts["truncations"] += 1
        self._counts["truncated_records"] += max(0, error.start - error.position)
        log.error("%s", error)
        if error.partition in self._positions:
            self._positions[error.partition] = error.start
        self._assignment_changed = True

    # Committed positions, for Kafka's group tools

    async def _commit_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        await self._adopt_committed()
        while not self._stopped:
            timer = loop.call_later(self._commit_interval_s, self._commit_event.set)
            try:
                await self._commit_event.wait()
            finally:
                timer.cancel()
            self._commit_event.clear()
            await self._commit()

    async def _adopt_committed(self) -> None:
        """What an earlier life of this node has committed and we do not read is to be forgotten like our own."""
        try:
            self._committed = {**await self._consumer.committed(), **self._committed}
        except LogError as error:
            self._counts["log_errors"] += 1
            log.warning("offsets left in group %s, if any, stay there: %s", self.group_id, error)

    async def _commit(self) -> None:
        changed: Mapping[Position, int] = {
            position: at for position, at in self._positions.items() if self._committed.get(position) != at
        }
        gone = frozenset(self._committed.keys() - self._positions.keys())
        try:
            if gone:
                await self._consumer.forget(gone)
                for position in gone:
                    self._committed.pop(position, None)
            if changed:
                await self._consumer.commit(changed)
                self._committed.update(changed)
        except LogError as error:
            self._counts["log_errors"] += 1
            log.warning("the positions of group %s could not be stored: %s", self.group_id, error)


def _may_run(delivery: Delivery, position: Position, grants: Sequence[Grant]) -> bool:
    """Whether records with the same headers that follow it go the same way: these say all, and who gets them, alone,
    is due everything."""
    grant, headers = grants[0], delivery.headers
    return (
        len(grants) == 1
        and grant.takes_runs
        and delivery.expiry_s is None
        and 0 < len(headers) < 4
        and headers[0] == (HEADER_TOPIC, delivery.topic_name_utf8)
        and (grant.not_before is None or position not in grant.not_before)
    )


def _nothing() -> None:
    """No one wants to know."""
