"""Leases of shared subscriptions in memory, beside the log in memory: for unit tests and simulation only.

Besides the interface it has what a test needs to make trouble: ``is_away`` (no coordinator), ``crash`` (a node's
session times out), ``expire``, ``gate``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set

from bridge.log import GroupMarks, LogUnavailable, Mark, Position
from bridge.shared.assignor import NodeClaim, assign
from bridge.shared.lease import LeaseHolder, LeaseLost


class MemoryGroups:
    """What Kafka's group coordinator does, for the nodes of one log: rebalances, and low-water marks."""

    def __init__(self) -> None:
        self.marks: dict[str, dict[Position, int]] = {}
        self.beyond: dict[str, dict[Position, str]] = {}  # what is stored beside a mark
        self.pending: list[tuple[object, GroupMarks]] = []  # of open transactions
        self.leases: dict[str, list[MemoryLease]] = {}
        self.deleted: list[str] = []
        self.is_away = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._dirty: set[str] = set()

    def node(self) -> MemoryLeases:
        return MemoryLeases(self)

    def changed(self, group_id: str) -> None:
        self._dirty.add(group_id)
        task = self._tasks.get(group_id)
        if task is None or task.done():
            self._tasks[group_id] = asyncio.get_running_loop().create_task(self._rebalance(group_id))

    def accepts(self, marks: GroupMarks) -> bool:
        """Whether the group knows the member in that generation."""
        leases = self.leases.get(marks.group_id, ())
        return any((each.name, each.generation) == (marks.member_id, marks.generation) for each in leases)

    def store(self, group_id: str, marks: Mapping[Position, Mark]) -> None:
        stored = self.marks.setdefault(group_id, {})
        beyond = self.beyond.setdefault(group_id, {})
        for position, mark in marks.items():
            stored[position], beyond[position] = mark

    def end_transaction(self, transaction: object, *, aborted: bool) -> None:
        """What was stored in the transaction holds from now on, or never did."""
        ended = [marks for each, marks in self.pending if each is transaction]
        self.pending = [entry for entry in self.pending if entry[0] is not transaction]
        for marks in ended:
            if not aborted:
                self.store(marks.group_id, marks.marks)

    async def quiet(self) -> None:
        """Until no rebalance goes on."""
        while any(not task.done() for task in self._tasks.values()):
            await asyncio.wait([task for task in self._tasks.values() if not task.done()])

    def owners(self, group_id: str) -> dict[Position, list[MemoryLease]]:
        found: dict[Position, list[MemoryLease]] = {}
        for lease in self.leases.get(group_id, []):
            for position in lease.owned:
                found.setdefault(position, []).append(lease)
        return found

    async def _rebalance(self, group_id: str) -> None:
        while group_id in self._dirty:
            self._dirty.remove(group_id)
            leases = list(self.leases.get(group_id, ()))
            claims = {lease.name: NodeClaim(lease.weight, lease.partitions, lease.owned, 1) for lease in leases}
            assigned = assign(claims)
            await asyncio.gather(*(lease.settle(assigned[lease.name]) for lease in leases))


class MemoryLeases:
    """One node's way to the groups."""

    def __init__(self, groups: MemoryGroups) -> None:
        self.groups = groups
        self.made: list[MemoryLease] = []

    def lease(self, group_id: str, partitions: Set[Position]) -> MemoryLease:
        lease = MemoryLease(self.groups, group_id, frozenset(partitions))
        self.made.append(lease)
        return lease

    async def delete(self, group_id: str) -> bool:
        await asyncio.sleep(0)
        if self.groups.is_away:
            raise LogUnavailable("no coordinator")
        if self.groups.leases.get(group_id):
            return False
        self.groups.beyond.pop(group_id, None)
        if self.groups.marks.pop(group_id, None) is None:
            return False
        self.groups.deleted.append(group_id)
        return True

    def crash(self) -> None:
        """The node dies: its session times out, and it stores nothing more."""
        for lease in self.made:
            lease.drop_out()


class MemoryLease:
    """A lease of `MemoryGroups`."""

    names = 0

    def __init__(self, groups: MemoryGroups, group_id: str, partitions: frozenset[Position]) -> None:
        MemoryLease.names += 1
        self.name = f"lease-{MemoryLease.names:06}"
        self.groups = groups
        self.group_id = group_id
        self.partitions = partitions
        self.owned: frozenset[Position] = frozenset()
        self.generation = 1
        self.weight = 0
        self.valid = True
        self.holder: LeaseHolder | None = None
        self.gate = asyncio.Event()  # cleared: this node hears nothing of what is stored
        self.gate.set()

    @property
    def is_member(self) -> bool:
        return self in self.groups.leases.get(self.group_id, ())

    def start(self, holder: LeaseHolder, weight: int) -> None:
        self.holder, self.weight = holder, weight
        self.groups.leases.setdefault(self.group_id, []).append(self)
        self.groups.changed(self.group_id)

    def is_valid(self) -> bool:
        return self.valid and self.is_member

    def repartition(self, partitions: Set[Position]) -> None:
        self.partitions = frozenset(partitions)
        self.groups.changed(self.group_id)

    def reweigh(self, weight: int) -> None:
        self.weight = weight
        self.groups.changed(self.group_id)

    def membership(self) -> tuple[str, int] | None:
        return (self.name, self.generation) if self.is_member else None

    def refused(self, generation: int) -> None:
        """The next rebalance says it."""

    def forfeit(self) -> None:
        if self.is_member:
            self.expire()

    async def commit(self, marks: Mapping[Position, Mark]) -> None:
        await asyncio.sleep(0)
        if self.groups.is_away:
            raise LogUnavailable("no coordinator")
        if not self.is_member:
            raise LeaseLost("not a member")
        stored = self.groups.marks.get(self.group_id, {})
        assert all(mark.offset >= stored.get(each, 0) for each, mark in marks.items()), "a mark goes back by itself"
        self.groups.store(self.group_id, marks)

    async def committed(self) -> dict[Position, Mark]:
        await asyncio.sleep(0)
        await self.gate.wait()
        if self.groups.is_away or any(marks.group_id == self.group_id for _, marks in self.groups.pending):
            raise LogUnavailable("no coordinator, or a transaction is open")
        beyond = self.groups.beyond.get(self.group_id, {})
        marks = self.groups.marks.get(self.group_id, {})
        return {position: Mark(offset, beyond.get(position, "")) for position, offset in marks.items()}

    async def leave(self) -> None:
        await asyncio.sleep(0)
        self.drop_out()

    def drop_out(self) -> None:
        if self.is_member:
            self.groups.leases[self.group_id].remove(self)
            self.groups.changed(self.group_id)

    def expire(self) -> None:
        """The others gave the node up, and it hears of it; it joins again."""
        assert self.holder is not None
        self.drop_out()
        self.owned = frozenset()
        self.generation += 1
        self.holder.lost()
        self.groups.leases[self.group_id].append(self)
        self.groups.changed(self.group_id)

    async def settle(self, assigned: frozenset[Position]) -> None:
        assert self.holder is not None
        if not self.is_member:
            return
        gained, revoked = assigned - self.owned, self.owned - assigned
        if revoked:
            await self.holder.revoked(revoked)
            self.owned -= revoked
            self.groups.changed(self.group_id)
        if gained:
            await self.holder.gained(gained)
            self.owned |= gained
        self.holder.settled()
