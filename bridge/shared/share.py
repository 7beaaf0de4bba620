"""One shared subscription on one node with its lease: joins the pure group to Kafka's.

1. `start`: what an earlier life of the subscription left behind is deleted, and the node joins the group.
2. `gained`: what has no low-water mark yet gets one, the partition's end as of now, stored before anything else
   happens; then the reader feeds the group.
3. `ready` resolves when every partition of the filter has a stored mark, by whatever node: nothing that is published
   from then on is missed.
4. `commit` stores low-water marks, regularly.
5. `revoked`: what is out is awaited for a moment, the marks are stored, the partitions are given up. `lost`: they are
   given up at once.
6. `close`: the same for everything, and the node leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from bridge.log import Log, LogError, LogUnavailable, Position
from bridge.shared.group import ShareGroup
from bridge.shared.lease import Lease, LeaseLost
from bridge.shared.strategies import Strategy

log = logging.getLogger(__name__)

DRAIN_S = 0.3  # what is on its way to a member is mostly acknowledged within this: then nobody gets it twice
RETRY_S = 0.2


class Share:
    """`$share/<share name>/<topic filter>` on this node. `group` is what members know."""

    def __init__(
        self,
        share_filter: str,
        partitions: frozenset[Position],
        source: Log,
        lease: Lease,
        strategy: Strategy,
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
            share_filter, strategy, is_leased=lease.is_valid, on_hungry=on_hungry, clock_ms=clock_ms
        )
        self._prepare = prepare
        self._on_hungry = on_hungry
        self._committed: dict[Position, int] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: asyncio.Task[None] | None = None
        self._readying: asyncio.Task[None] | None = None
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
        await self._commit(self.group.positions)

    async def close(self) -> None:
        """Give everything up and leave the group."""
        await self.revoked(frozenset(self.group.positions))
        for task in (self._starting, self._readying):
            if task is not None:
                task.cancel()
        await self._lease.leave()
        if not self._ready.done():
            self._ready.set_exception(LogUnavailable(f"{self.share_filter} was closed"))
            self._ready.exception()  # perhaps nobody waits

    def statistics(self) -> dict[str, int]:
        return {**self._counts, **self.group.statistics()}

    # The lease's holder

    async def gained(self, positions: frozenset[Position]) -> None:
        while True:
            try:
                starts = await self._starts(positions)
                break
            except LogError as error:
                log.warning("%s: where to begin is not known yet: %s", self.share_filter, error)
                await asyncio.sleep(RETRY_S)
        self._counts["rebalances"] += 1
        for position, offset in starts.items():
            self._committed[position] = offset
            self.group.gain(position, offset)

    async def revoked(self, positions: frozenset[Position]) -> None:
        held = positions & frozenset(self.group.positions)
        self.group.revoke(held)
        try:
            await self._drained(held)
            await self._commit(held)
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

    # How

    @property
    def _weight(self) -> int:
        return len(self.group.members)

    async def _start(self) -> None:
        await self._prepare()
        self._lease.start(self, self._weight)

    async def _starts(self, positions: frozenset[Position]) -> dict[Position, int]:
        """The stored marks; a partition without one begins at its end, and that is stored first."""
        marks = await self._lease.committed()
        starts = {position: marks[position] for position in positions if position in marks}
        if new := positions - starts.keys():
            ends = await self._log.end_offsets(new)
            await self._lease.commit(ends)
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

    async def _commit(self, positions: Iterable[Position]) -> None:
        marks = self.group.low_water()
        moved = {
            position: marks[position]
            for position in positions
            if position in marks and self._committed.get(position) != marks[position]
        }
        if not moved:
            return
        try:
            await self._lease.commit(moved)
        except LeaseLost as error:
            self._counts["commit_errors"] += 1
            log.info("%s: low-water marks are not ours to store: %s", self.share_filter, error)
        except LogError as error:
            self._counts["commit_errors"] += 1
            log.warning("%s: low-water marks could not be stored: %s", self.share_filter, error)
        else:
            self._counts["commits"] += 1
            self._committed |= moved
