"""Reads the log again for subscribers that are behind: the slow way out, beside the deliverer's fast one.

A subscriber whose buffer is full does not keep what comes then: it is *behind* on that partition from that record on.
It gets nothing of the partition live until it is through; the log holds what it needs. One reader per node, without a
group, serves all who are behind:

* a *need* is the offset of the next record that a subscriber is due on a partition where it is behind;
* each partition is read from the lowest need of those who have room, and whoever needs a record that passes gets it: a
  thousand subscribers that are behind at one place cost one scan;
* who has no room any more keeps its need; `CatchUp.wake` says that it has some again;
* a need that has come to where the deliverer is ends in the same step: everything below has been handed out live,
  nothing at or above. So live delivery takes over with the next record, without a gap and without a duplicate.

Order per Topic Name outlives a resize of a Kafka topic's partitions (`schemas.layouts`): what was written after it
waits until the subscriber needs nothing that was written before (`keep_order`, `_is_early`).

What was read is held for a while, for those who have no room for it yet and those who come to it later: bounded,
whoever is behind and however far.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bridge.deliverer import Deliverer
from bridge.delivery import Delivery, read_delivery, read_topic_name
from bridge.log import Log, LogConsumer, LogError, LogTruncated, Position, Record
from bridge.partitioning import RouteTable
from bridge.subscriptions import Grant, Shards, Subscriber, SubscriptionTable
from schemas.errors import HeadwaterError
from schemas.layouts import offset_of

log = logging.getLogger(__name__)

TURN_RECORDS_MAX = 100  # of a partition in one go: at most 0.5 ms, then those who keep up have their turn
FETCH_TIMEOUT_S = 0.5  # Kafka does not answer: who needs another partition waits no longer than this
GATHER_S = 0.005  # who has room within this time rides on the same scan
NAMES_MAX = 4_096  # remembered with those behind who match: 1 MiB
HELD_CHUNKS_MAX = 64  # looked through in every turn
HELD_RECORDS_MAX = 16_384  # 32 full places where somebody goes on without reading again
HELD_BYTES_MAX = 8 * 1024 * 1024  # of payloads; one answer of the log may be larger
RETRY_S_MIN, RETRY_S_MAX = 0.05, 1.0


class LateSubscriber(Subscriber, Protocol):
    """A subscriber that can be behind. While it is, it passes over what is delivered live of that partition."""

    def deliver_late(self, delivery: Delivery, grant: Grant, /) -> bool:
        """Take a delivery that was read again, now and without waiting; False: no room, it comes again after `wake`."""
        ...

    def fall_behind(self, position: Position, offset: int, /) -> None:
        """Nothing of the partition is to come live from `offset` on: `CatchUp.fall_behind`, and so on."""
        ...

    def caught_up(self, position: Position, /) -> None:
        """Live delivery of the partition takes over with the next record."""
        ...

    def records_lost(self, position: Position, first: int, following: int, /) -> None:
        """The records from `first` up to `following` were deleted from the log before they could be read again."""
        ...


@dataclass(slots=True, eq=False)
class _Late:
    """One subscriber that is behind; where to go on, by partition."""

    subscriber: LateSubscriber
    needs: dict[Position, int] = field(default_factory=dict)
    has_room: bool = False


_Chunk = tuple[Position, int, Sequence[Record]]
"""Records of a partition, with the offset from which on they are all there are."""


class CatchUp:
    """Serves the subscribers of one deliverer that are behind. `after_batch` runs before the pump gives way.

    `exactly_once`: the deliverer is that of the QoS 2 twins.
    """

    def __init__(
        self,
        source: Log,
        table: SubscriptionTable,
        routes: RouteTable,
        deliverer: Deliverer,
        after_batch: Callable[[], None],
        *,
        exactly_once: bool = False,
        gather_s: float = GATHER_S,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self._log = source
        self._table = table
        self._routes = routes
        self._partitions_of = routes.twin_partitions if exactly_once else routes.partitions
        self._deliverer = deliverer
        self._after_batch = after_batch
        self._read_committed = exactly_once
        self._gather_s = gather_s
        self._clock_ms = clock_ms or (lambda: int(time.time() * 1000))
        self._late: dict[Subscriber, _Late] = {}
        self._partitions: dict[Position, dict[Subscriber, _Late]] = {}
        self._consumer: LogConsumer | None = None
        self._reading: dict[Position, int] = {}  # what the reader is assigned, with its next offset
        self._held: OrderedDict[tuple[Position, int], Sequence[Record]] = OrderedDict()  # the one used last at its end
        self._held_records = 0
        self._held_bytes = 0
        self._names: dict[bytes, tuple[Shards, list[Grant]]] = {}  # who of those behind matches a name
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stopped = False
        self.passed_over = 0  # live deliveries that subscribers behind did not take; they count them here
        self._counts = dict.fromkeys(
            (
                "fallen_behind",
                "records",
                "deliveries",
                "passes",
                "expired_records",
                "truncations",
                "truncated_records",
                "subscriber_errors",
                "pump_errors",
                "log_errors",
            ),
            0,
        )

    async def stop(self) -> None:
        """Read nothing more."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._consumer is not None:
            await self._consumer.stop()

    # What subscribers say

    def fall_behind(self, subscriber: LateSubscriber, position: Position, offset: int) -> None:
        """The subscriber needs the partition from `offset` on; while it is behind there, the first call counts.

        It has no room now: nothing comes before `wake`.
        """
        late = self._late.get(subscriber)
        if late is None:
            late = self._late[subscriber] = _Late(subscriber)
            self._names.clear()
        late.has_room = False
        if position in late.needs:
            return
        self._counts["fallen_behind"] += 1
        late.needs[position] = offset
        self._partitions.setdefault(position, {})[subscriber] = late
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._pump(), name="headwater-catch-up")

    def need_of(self, subscriber: LateSubscriber, position: Position) -> int | None:
        """From where on the subscriber needs the partition; None: it is not behind there."""
        late = self._late.get(subscriber)
        return late.needs.get(position) if late is not None else None

    def wake(self, subscriber: LateSubscriber) -> None:
        """The subscriber has room again."""
        late = self._late.get(subscriber)
        if late is not None and not late.has_room:
            late.has_room = True
            self._woken.set()

    def keep_order(self, subscriber: LateSubscriber | None = None) -> None:
        """The subscriber (None: each one) that still needs something from before a resize falls behind on the other
        partitions of the Kafka topic, too, where what came after it would be live."""
        if not self._routes.barriers:
            return
        lates = [self._late.get(subscriber)] if subscriber is not None else list(self._late.values())
        for late in filter(None, lates):
            for topic_filter in self._table.filters_of(late.subscriber):
                for position in self._partitions_of(topic_filter):
                    live = self._deliverer.position_of(position)
                    if position not in late.needs and live is not None and self._is_early(late, position, live):
                        had_room = late.has_room
                        late.subscriber.fall_behind(position, live)
                        late.has_room = had_room

    def passed_barriers(self, kafka_topic: str) -> int:
        """How many of the Kafka topic's barriers (`RouteTable.barriers`) everybody who is behind has passed."""
        barriers = self._routes.barriers.get(kafka_topic, ())
        for number, barrier in enumerate(barriers):
            for (name, partition), there in self._partitions.items():
                since = offset_of(barrier, partition)
                if name == kafka_topic and any(late.needs[name, partition] < since for late in there.values()):
                    return number
        return len(barriers)

    def _is_early(self, late: _Late, position: Position, offset: int) -> bool:
        """Whether the subscriber is due something of another partition before what is here: from before a resize."""
        for barrier in reversed(self._routes.barriers.get(position[0], ())):
            if offset >= offset_of(barrier, position[1]):
                return any(
                    need < offset_of(barrier, partition)
                    for (kafka_topic, partition), need in late.needs.items()
                    if kafka_topic == position[0]
                )
        return False

    def filters_removed(self, subscriber: LateSubscriber) -> None:
        """The subscriber has given up subscriptions: it is behind only where another one of them can match."""
        late = self._late.get(subscriber)
        if late is None:
            return
        needed: set[Position] = set()
        for topic_filter in self._table.filters_of(subscriber):
            needed |= self._partitions_of(topic_filter)
        for position in late.needs.keys() - needed:
            self._release(late, position)

    def forget(self, subscriber: LateSubscriber) -> None:
        """The subscriber is gone."""
        late = self._late.get(subscriber)
        if late is not None:
            for position in list(late.needs):
                self._drop(late, position)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics; `records` and `deliveries` are what was read and handed over again."""
        return {
            **self._counts,
            "passed_over": self.passed_over,
            "subscribers_behind": len(self._late),
            "partitions_behind": len(self._partitions),
            "held_records": self._held_records,
            "held_bytes": self._held_bytes,
        }

    def _release(self, late: _Late, position: Position) -> None:
        self._drop(late, position)
        try:
            late.subscriber.caught_up(position)
        except Exception:
            self._subscriber_failed()

    def _drop(self, late: _Late, position: Position) -> None:
        del late.needs[position]
        if not late.needs:
            del self._late[late.subscriber]
            self._names.clear()
        there = self._partitions[position]
        del there[late.subscriber]
        if not there:
            del self._partitions[position]
        self._woken.set()  # the pump may be through

    # The pump

    async def _pump(self) -> None:
        wait_s = RETRY_S_MIN
        while self._late:
            try:
                await self._turn()
                wait_s = RETRY_S_MIN
            except LogTruncated as error:
                self._truncated(error)
                await asyncio.sleep(0)
            except LogError as error:
                self._counts["log_errors"] += 1
                log.warning("nothing can be read again now: %s", error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
            except Exception:
                # A fault of ours must not end catch-up: a need moves only behind what was handed over
                self._counts["pump_errors"] += 1
                log.exception("catch-up goes on after an unexpected error")
                self._reading.clear()
                self._let_go_of_all()
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
        self._task = None
        self._let_go_of_all()
        self._assign({})

    async def _turn(self) -> None:
        """Read once, hand over, give way; or wait until somebody has room."""
        self._woken.clear()
        wanted = self._wanted()
        if not wanted:
            await self._wait()
            return
        for position, start, records in self._take_held(wanted) or await self._fetch(wanted):
            self._hand_over(position, start, records)
        self._skip_gaps()
        self._after_batch()
        await asyncio.sleep(0)

    async def _wait(self) -> None:
        for position in list(self._partitions):
            self._release_where_live(position)
        if any(map(self._deliverer.is_in_hand, self._partitions)):
            await asyncio.sleep(0)  # a shard per turn of the loop: soon done
        elif self._late:
            await self._woken.wait()
            await asyncio.sleep(self._gather_s if len(self._late) > 1 else 0)
            self._counts["passes"] += 1

    def _wanted(self) -> dict[Position, int]:
        """Where to read on, by partition: the lowest need of those who have room."""
        wanted: dict[Position, int] = {}
        for position, there in self._partitions.items():
            live = self._deliverer.position_of(position)
            due = [late for late in there.values() if late.has_room]
            if position[0] in self._routes.barriers:
                due = [late for late in due if not self._is_early(late, position, late.needs[position])]
            lowest = min((late.needs[position] for late in due), default=None)
            if lowest is not None and live is not None and lowest < live:
                wanted[position] = lowest
        return wanted

    def _release_where_live(self, position: Position) -> None:
        """Those who have come to where the deliverer is go on live; all, when the node reads the partition no more."""
        if self._deliverer.is_in_hand(position):
            return  # some have passed over the record that is being handed out in shards, others have not seen it yet
        live = self._deliverer.position_of(position)
        there = self._partitions[position].values()
        for late in [each for each in there if live is None or each.needs[position] >= live]:
            if live is None or not self._is_early(late, position, live):
                self._release(late, position)

    def _take_held(self, wanted: Mapping[Position, int]) -> list[_Chunk]:
        """What was fetched before and is wanted now."""
        taken: list[_Chunk] = []
        for key, records in list(self._held.items()):
            position, start = key
            offset = wanted.get(position, -1)
            if start <= offset <= records[-1].offset:
                self._held.move_to_end(key)
                taken.append((position, offset, [record for record in records if record.offset >= offset]))
                wanted = {each: at for each, at in wanted.items() if each != position}
        return taken

    def _hold(self, position: Position, start: int, records: Sequence[Record]) -> None:
        key = (position, start)
        if key in self._held:
            self._let_go(key)
        self._held[key] = records
        self._held_records += len(records)
        self._held_bytes += _size(records)
        while len(self._held) > 1 and (
            len(self._held) > HELD_CHUNKS_MAX
            or self._held_records > HELD_RECORDS_MAX
            or self._held_bytes > HELD_BYTES_MAX
        ):
            self._let_go(next(iter(self._held)))

    def _let_go(self, key: tuple[Position, int]) -> None:
        records = self._held.pop(key)
        self._held_records -= len(records)
        self._held_bytes -= _size(records)

    def _let_go_of_all(self) -> None:
        self._held.clear()
        self._held_records = self._held_bytes = 0

    async def _fetch(self, wanted: Mapping[Position, int]) -> list[_Chunk]:
        if wanted != self._reading:
            self._assign(wanted)
        if self._consumer is None:
            self._consumer = self._log.consumer(None, read_committed=self._read_committed)
            self._consumer.assign(wanted)
        chunks: list[_Chunk] = []
        for position, records in await self._consumer.fetch(FETCH_TIMEOUT_S):
            start = self._reading[position]
            self._counts["records"] += len(records)
            self._reading[position] = records[-1].offset + 1
            self._hold(position, start, records)
            chunks.append((position, start, records))
        return chunks

    def _skip_gaps(self) -> None:
        """Where the reader has passed transaction markers, aborted or compacted records, the needs follow."""
        if self._consumer is None:
            return
        for position, start in self._reading.items():
            at, live = self._consumer.position_of(position), self._deliverer.position_of(position)
            if at is None or live is None or at <= start or position not in self._partitions:
                continue
            self._reading[position] = at
            for late in self._partitions[position].values():
                if start <= late.needs[position] < at:
                    late.needs[position] = max(late.needs[position], min(at, live))
            self._release_where_live(position)

    def _assign(self, wanted: Mapping[Position, int]) -> None:
        self._reading = dict(wanted)
        if self._consumer is not None:
            self._consumer.assign(wanted)

    def _truncated(self, error: LogTruncated) -> None:
        """Never a silent gap: counted, said aloud, and told to those who lose something."""
        self._counts["truncations"] += 1
        log.error("%s", error)
        self._reading.clear()
        self._let_go_of_all()
        position, start = error.partition, error.start
        for late in list(self._partitions.get(position, {}).values()):
            first = late.needs[position]
            if start < error.position:  # cut at its end: nothing that it holds is lost
                late.needs[position] = min(first, start)
            elif first < start:
                late.needs[position] = start
                self._counts["truncated_records"] += start - first
                try:
                    late.subscriber.records_lost(position, first, start)
                except Exception:
                    self._subscriber_failed()

    # Handing over

    def _hand_over(self, position: Position, start: int, records: Sequence[Record]) -> None:
        """Give the records, which are all from `start` on, to those who need them, as far as the deliverer has come."""
        there = self._partitions.get(position)
        live = self._deliverer.position_of(position)
        if there is None or live is None:
            return
        records = records[:TURN_RECORDS_MAX]  # the rest is held
        end = min(records[-1].offset + 1, live)
        riders = {
            subscriber: late for subscriber, late in there.items() if late.has_room and late.needs[position] >= start
        }
        for barrier in self._routes.barriers.get(position[0], ()):
            if start < (since := offset_of(barrier, position[1])):
                end = min(end, since)
        if position[0] in self._routes.barriers:
            riders = {each: late for each, late in riders.items() if not self._is_early(late, position, start)}
        now_ms = self._clock_ms()
        for record in records:
            if record.offset >= end or not riders:
                break
            self._hand_over_record(position, record, riders, now_ms)
        for late in riders.values():
            if position in late.needs:
                late.needs[position] = max(late.needs[position], end)
        if position in self._partitions:
            self._release_where_live(position)
        lowest = min((late.needs[position] for late in there.values()), default=None)
        for key in [key for key in self._held if key[0] == position]:
            if lowest is None or self._held[key][-1].offset < lowest:
                self._let_go(key)

    def _hand_over_record(
        self, position: Position, record: Record, riders: dict[Subscriber, _Late], now_ms: int
    ) -> None:
        kafka_topic, partition = position
        try:
            name = read_topic_name(kafka_topic, record, self._routes.topic_name_from_key)
            grants = self._grants(name)
            if not grants:
                return
            delivery = read_delivery(kafka_topic, partition, record, name, {} if len(grants) > 1 else None)
        except HeadwaterError:
            return  # the deliverer has put it aside
        if not delivery.qos:
            return
        if delivery.expiry_s is not None and delivery.timestamp_ms + delivery.expiry_s * 1000 <= now_ms:
            self._counts["expired_records"] += 1  # I15 [MQTT5-3.3.2-5]
            return
        offset = record.offset
        for grant in grants:
            late = riders.get(grant.subscriber)
            if late is None or not grant.qos or offset < late.needs.get(position, offset + 1):
                continue
            if grant.begins is not None and offset < grant.begins.get(position, 0):
                continue
            if self._hand(late, delivery, grant):
                late.needs[position] = offset + 1
            else:
                late.has_room = False
                late.needs[position] = offset
                del riders[late.subscriber]

    def _hand(self, late: _Late, delivery: Delivery, grant: Grant) -> bool:
        try:
            taken = late.subscriber.deliver_late(delivery, grant)
        except Exception:
            self._subscriber_failed()
            return True
        self._counts["deliveries"] += taken
        return taken

    def _grants(self, name: bytes) -> list[Grant]:
        """Who matches the name and is behind somewhere."""
        shards = self._table.match_bytes(name)
        known = self._names.get(name)
        if known is not None and known[0] is shards:
            return known[1]
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        grants = [grant for shard in shards for grant in shard if grant.subscriber in self._late]
        self._names[name] = (shards, grants)
        return grants

    def _subscriber_failed(self) -> None:
        self._counts["subscriber_errors"] += 1
        log.exception("a subscriber that is behind raised; it did not get what it was told")


def _size(records: Sequence[Record]) -> int:
    return sum(len(record.value or b"") for record in records)
