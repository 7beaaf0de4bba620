"""One shared subscription on one node with its lease: joins the pure group to Kafka's.

1. `start`: what an earlier life of the subscription left behind is deleted, and the node joins the group.
2. `gained`: what has no low-water mark yet gets one, the partition's end as of now, stored before anything else
   happens; then the reader feeds the group.
3. `ready` resolves when every partition of the filter has a stored mark, by whatever node: nothing that is published
   from then on is missed.
4. `commit` stores the marks, regularly; a hand-over of a QoS 2 message stores that of its partition. All marks go
   through one writer, one transaction after the other: so none that is late undoes a later one.
5. `revoked`: what is out is awaited for a moment, the marks are stored, the partitions are given up. `lost`: they are
   given up at once.
6. `close`: the same for everything, and the node leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from bridge.log import GroupMarks, Log, LogError, LogUnavailable, Mark, Position
from bridge.session_writer import JustMarks, MarksSource, MarksStep
from bridge.shared.group import Handover, ShareGroup
from bridge.shared.lease import Lease, LeaseLost, group_id_of
from bridge.shared.strategies import Strategy
from schemas.layouts import Offsets, offset_of

log = logging.getLogger(__name__)

DRAIN_S = 0.3  # what is on its way to a member is mostly acknowledged within this: then nobody gets it twice
RETRY_S = 0.2


class MarksWriter(Protocol):
    """Stores marks in transactions: `bridge.session_store.SessionStore`."""

    async def write_marks(self, source: MarksSource) -> None:
        """Raises RecordRefused: nothing is stored; LogUnavailable: nobody knows."""
        ...


class _Starts:
    """The marks of partitions that had none; a `MarksSource`."""

    def __init__(self, group_id: str, lease: Lease, marks: Mapping[Position, Mark]) -> None:
        self._group_id = group_id
        self._lease = lease
        self.marks = marks

    def marks_with(self, steps: Sequence[MarksStep]) -> GroupMarks | None:
        membership = self._lease.membership()
        return GroupMarks(self._group_id, *membership, self.marks) if membership is not None else None

    def marks_stored(self, marks: GroupMarks) -> None:
        """Who waits for them goes on."""

    def marks_refused(self, marks: GroupMarks) -> None:
        self._lease.refused(marks.generation)

    def marks_doubtful(self) -> None:
        """They are stored again, or found."""


class Share:
    """`$share/<share name>/<topic filter>` on this node. `group` is what members know."""

    def __init__(
        self,
        share_filter: str,
        partitions: frozenset[Position],
        source: Log,
        lease: Lease,
        strategy: Strategy,
        writer: MarksWriter | None = None,
        *,
        prepare: Callable[[], Coroutine[Any, Any, None]],
        on_hungry: Callable[[], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self.share_filter = share_filter
        self._partitions = partitions
        self._log = source
        self._lease = lease
        self.group = ShareGroup(
            share_filter,
            strategy,
            is_leased=lease.is_valid,
            may_give=lambda: lease.membership() is not None,
            on_hungry=on_hungry,
            clock_ms=clock_ms,
        )
        self.group.source = self
        self._group_id = group_id_of(share_filter)
        self._writer = writer
        self._prepare = prepare
        self._on_hungry = on_hungry
        self._committed: dict[Position, Mark] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: asyncio.Task[None] | None = None
        self._readying: asyncio.Task[None] | None = None
        self._barriers: dict[str, list[Offsets]] = {}  # those that the group has not passed yet, by Kafka topic
        self._ordering: asyncio.Task[None] | None = None
        self._counts = dict.fromkeys(("rebalances", "losses", "commits", "commit_errors"), 0)

    def start(self) -> None:
        self._starting = asyncio.get_running_loop().create_task(self._start(), name="headwater-share-start")

    async def ready(self) -> None:
        """Until nothing can be missed any more.

        Raises:
            LogUnavailable: the subscription was closed meanwhile.
        """
        await asyncio.shield(self._ready)

    def members_changed(self) -> None:
        self._lease.reweigh(self._weight)

    async def commit(self) -> None:
        """Store the low-water marks that have moved. Never raises: the next time will do."""
        if not self._moved():
            return
        try:
            await self._store(self)
        except LogError as error:
            self._counts["commit_errors"] += 1
            log.warning("%s: low-water marks could not be stored: %s", self.share_filter, error)

    async def close(self) -> None:
        """Give everything up and leave the group."""
        await self.revoked(frozenset(self.group.positions))
        for task in (self._starting, self._readying, self._ordering):
            if task is not None:
                task.cancel()
        await self._lease.leave()
        if not self._ready.done():
            self._ready.set_exception(LogUnavailable(f"{self.share_filter} was closed"))
            self._ready.exception()  # perhaps nobody waits

    # Resize

    def relayout(self, partitions: frozenset[Position]) -> None:
        """The filter's messages are, or may be, in these partitions: `ready` is when all of them have marks."""
        if partitions == self._partitions:
            return
        self._partitions = partitions
        if self._ready.done():
            self._ready = asyncio.get_running_loop().create_future()
            self._readying = None
        self._lease.repartition(partitions)

    def pause(self, names: Container[str]) -> None:
        """Read nothing more of these Kafka topics until `keep_order`."""
        paused = {position: 0 for position in self._partitions if position[0] in names}
        self.group.limits = {**self.group.limits, **paused}

    def keep_order(self, barriers: Mapping[str, Sequence[Offsets]]) -> None:
        """What was written after a resize waits until the group, on whatever node, is done with all before: by the
        marks, which all nodes can read. ``barriers`` are those of `RouteTable`."""
        names = {position[0] for position in self._partitions}
        self._barriers = {name: list(offsets) for name, offsets in barriers.items() if name in names}
        self._limit()
        if self._barriers and (self._ordering is None or self._ordering.done()):
            self._ordering = asyncio.get_running_loop().create_task(self._pass_barriers(), name="headwater-share-order")

    @property
    def is_ordering(self) -> bool:
        """Whether something from before a resize is not done yet, as far as is known."""
        return bool(self._barriers)

    def _limit(self) -> None:
        self.group.limits = {
            position: offset_of(self._barriers[position[0]][0], position[1])
            for position in self._partitions
            if position[0] in self._barriers
        }
        self._on_hungry()

    async def _pass_barriers(self) -> None:
        while self._barriers:
            await self.commit()
            try:
                marks = {position: mark.offset for position, mark in (await self._lease.committed()).items()}
            except LogError as error:
                log.warning("%s: how far the group has come is not known: %s", self.share_filter, error)
                marks = {}
            for name, barriers in list(self._barriers.items()):
                positions = [position for position in self._partitions if position[0] == name]
                while barriers and all(marks.get(each, -1) >= offset_of(barriers[0], each[1]) for each in positions):
                    del barriers[0]
                if not barriers:
                    del self._barriers[name]
            self._limit()
            if self._barriers:
                await asyncio.sleep(RETRY_S)

    def statistics(self) -> dict[str, int]:
        return {**self._counts, **self.group.statistics()}

    # The lease's holder

    async def gained(self, positions: frozenset[Position]) -> None:
        tries = 0
        while True:
            try:
                starts = await self._starts(positions)
                break
            except LogError as error:
                level = logging.DEBUG if tries else logging.WARNING
                log.log(level, "%s: where to begin is not known yet: %s", self.share_filter, error)
                tries += 1
                await asyncio.sleep(RETRY_S)
        self._counts["rebalances"] += 1
        for position, mark in starts.items():
            self._committed[position] = mark
            self.group.gain(position, mark)

    async def revoked(self, positions: frozenset[Position]) -> None:
        held = positions & frozenset(self.group.positions)
        self.group.revoke(held)
        try:
            await self._drained(held)
            await self.commit()
        finally:
            self.group.lose(held & frozenset(self.group.positions))

    def lost(self) -> None:
        self._counts["losses"] += 1
        self.group.lose(frozenset(self.group.positions))

    def settled(self) -> None:
        if self._readying is None:
            self._readying = asyncio.get_running_loop().create_task(self._become_ready(), name="headwater-share-ready")

    def renewed(self) -> None:
        self.group.hand_out()
        self._on_hungry()

    # The source of marks

    def marks_with(self, steps: Sequence[MarksStep]) -> GroupMarks | None:
        """What to store with these hand-overs, if they happen; without any: what has moved."""
        membership = self._lease.membership()
        if membership is None:
            return None
        given = [step for step in steps if isinstance(step, Handover)]
        marks = self.group.marks(given) if given else {}
        if len(given) < len(steps):
            marks = {**self._moved(), **marks}
        return GroupMarks(self._group_id, *membership, marks)

    def marks_stored(self, marks: GroupMarks) -> None:
        self._counts["commits"] += 1
        self._committed |= marks.marks

    def marks_refused(self, marks: GroupMarks) -> None:
        self._counts["commit_errors"] += 1
        self._lease.refused(marks.generation)

    def marks_doubtful(self) -> None:
        self._lease.forfeit()

    # How

    @property
    def _weight(self) -> int:
        return len(self.group.members)

    async def _start(self) -> None:
        await self._prepare()
        self._lease.start(self, self._weight)

    async def _starts(self, positions: frozenset[Position]) -> dict[Position, Mark]:
        """The stored marks; a partition without one begins at its end, and that is stored first."""
        marks = await self._lease.committed()
        starts = {position: marks[position] for position in positions if position in marks}
        if new := positions - starts.keys():
            ends = {position: Mark(offset) for position, offset in (await self._log.end_offsets(new)).items()}
            await self._store(_Starts(self._group_id, self._lease, ends))
            starts |= ends
        return starts

    async def _become_ready(self) -> None:
        """What other nodes serve has its marks a moment later: they, too, store them when they gain it."""
        while not self._ready.done():
            try:
                if self._partitions <= (await self._lease.committed()).keys():
                    self._ready.set_result(None)
                    return
            except LogError as error:
                log.warning("%s: whether all has begun is not known yet: %s", self.share_filter, error)
            await asyncio.sleep(RETRY_S)

    async def _drained(self, positions: frozenset[Position]) -> None:
        settled = asyncio.Event()
        self.group.on_settled = settled.set
        try:
            async with asyncio.timeout(DRAIN_S):
                while self.group.has_open(positions & frozenset(self.group.positions)):
                    settled.clear()
                    await settled.wait()
        except TimeoutError:
            log.info("%s: not all was acknowledged in time; the next node hands it out again", self.share_filter)
        finally:
            self.group.on_settled = None

    def _moved(self) -> dict[Position, Mark]:
        return {
            position: mark for position, mark in self.group.marks().items() if self._committed.get(position) != mark
        }

    async def _store(self, source: MarksSource) -> None:
        """Raises LogError."""
        if self._writer is not None:
            await self._writer.write_marks(source)
        elif (marks := source.marks_with([JustMarks(source)])) is None:
            raise LeaseLost(f"{self.share_filter}: not a member")
        else:
            await self._lease.commit(marks.marks)
            source.marks_stored(marks)
