"""Leases of shared subscriptions in the simulation: a coordinator beside the log, and each edge's way to it.

What Kafka's group protocol and `bridge.shared.kafka_lease` come to, without their messages: a member says once a second
what it serves, and hears what it is to serve; it is given up when nothing was heard of it for six seconds; a partition
that moves is first given up by who has it; marks are taken of members only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bridge.log import GroupMarks, LogUnavailable, Mark, Position
from bridge.shared.assignor import NodeClaim, assign
from bridge.shared.lease import LeaseHolder, LeaseLost
from bridge.shared.memory_lease import MemoryGroups

if TYPE_CHECKING:
    from support.simulation_log import NodeLog

SESSION_TIMEOUT_S = 6.0
HEARTBEAT_S = 1.0
ANSWER_S = 10.0


@dataclass(slots=True)
class _Member:
    claim: NodeClaim
    seen_at: float
    held: frozenset[Position] = frozenset()  # what it serves, or may be taking over


@dataclass(slots=True)
class _Group:
    members: dict[str, _Member] = field(default_factory=dict)
    generation: int = 0


class SimulatedGroups(MemoryGroups):
    """The coordinator. `outside` is the loop beside all edges; `lets_strangers_store` is a fault to be planted."""

    def __init__(self, outside: Any, lets_strangers_store: bool = False) -> None:
        super().__init__()
        self._outside = outside
        self._groups: dict[str, _Group] = {}
        self._names = 0
        self.lets_strangers_store = lets_strangers_store

    def now(self) -> float:
        return float(self._outside.loop.time())

    def sync(self, group_id: str, member_id: str | None, claim: NodeClaim) -> tuple[str, int, frozenset[Position]]:
        """Who it is now, and what it is to serve. Raises LeaseLost: it was given up."""
        group = self._groups.setdefault(group_id, _Group())
        self._expire(group)
        if member_id is None:
            self._names += 1
            member_id = f"member-{self._names:05}"
            group.members[member_id] = _Member(claim, self.now())
            group.generation += 1
        elif member_id not in group.members:
            raise LeaseLost("given up")
        member = group.members[member_id]
        member.claim, member.seen_at, member.held = claim, self.now(), claim.owned
        claims = {
            name: NodeClaim(each.claim.weight, each.claim.partitions, each.held, 1)
            for name, each in group.members.items()
        }
        assigned = assign(claims)[member_id]
        member.held |= assigned
        return member_id, group.generation, assigned

    def heard(self, group_id: str, member_id: str) -> None:
        """A heartbeat. Raises LeaseLost."""
        group = self._groups.setdefault(group_id, _Group())
        self._expire(group)
        if member_id not in group.members:
            raise LeaseLost("given up")
        group.members[member_id].seen_at = self.now()

    def leave(self, group_id: str, member_id: str) -> None:
        group = self._groups.get(group_id)
        if group is not None and group.members.pop(member_id, None) is not None:
            group.generation += 1

    def accepts(self, marks: GroupMarks) -> bool:
        group = self._groups.get(marks.group_id)
        if group is None:
            return False
        self._expire(group)
        return marks.member_id in group.members or self.lets_strangers_store

    def has_members(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        if group is not None:
            self._expire(group)
        return group is not None and bool(group.members)

    def _expire(self, group: _Group) -> None:
        limit = self.now() - SESSION_TIMEOUT_S
        late = [name for name, member in group.members.items() if member.seen_at < limit]
        for name in late:
            del group.members[name]
        group.generation += bool(late)


class NodeLeases:
    """One edge's leases."""

    def __init__(self, node: NodeLog, groups: SimulatedGroups) -> None:
        self.node = node
        self.groups = groups

    def lease(self, group_id: str, partitions: Set[Position]) -> NodeLease:
        return NodeLease(self, group_id, frozenset(partitions))

    async def ask(self, answer: Callable[[], Any]) -> Any:
        """Raises LogUnavailable, and what `answer` raises."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.node.way_there()
                answered = answer()
                await self.node.way_back()
                return answered
        except TimeoutError:
            raise LogUnavailable("the coordinator does not answer") from None

    async def delete(self, group_id: str) -> bool:
        return bool(await self.ask(lambda: self._delete(group_id)))

    def _delete(self, group_id: str) -> bool:
        if self.groups.has_members(group_id):
            return False
        self.groups.beyond.pop(group_id, None)
        return self.groups.marks.pop(group_id, None) is not None


class NodeLease:
    """As `KafkaLease`."""

    def __init__(self, leases: NodeLeases, group_id: str, partitions: frozenset[Position]) -> None:
        self._leases = leases
        self._groups = leases.groups
        self._group_id = group_id
        self._partitions = partitions
        self._owned: frozenset[Position] = frozenset()
        self._weight = 0
        self._member_id: str | None = None
        self._generation = 0
        self._valid_until = 0.0
        self._holder: LeaseHolder | None = None
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None

    def start(self, holder: LeaseHolder, weight: int) -> None:
        self._holder, self._weight = holder, weight
        self._task = asyncio.get_running_loop().create_task(self._run())

    def is_valid(self) -> bool:
        return asyncio.get_running_loop().time() < self._valid_until

    def reweigh(self, weight: int) -> None:
        self._weight = weight

    def membership(self) -> tuple[str, int] | None:
        return (self._member_id, self._generation) if self._member_id is not None else None

    def refused(self, generation: int) -> None:
        self._news.set()

    def forfeit(self) -> None:
        if self._member_id is not None:
            self._groups.leave(self._group_id, self._member_id)  # as if it were given up right now
            self._lose()

    async def commit(self, marks: Mapping[Position, Mark]) -> None:
        raise AssertionError("marks are stored in transactions")

    async def committed(self) -> dict[Position, Mark]:
        return dict(await self._leases.ask(self._committed))

    def _committed(self) -> dict[Position, Mark]:
        if any(marks.group_id == self._group_id for _, marks in self._groups.pending):
            raise LogUnavailable("a transaction is open")
        beyond = self._groups.beyond.get(self._group_id, {})
        marks = self._groups.marks.get(self._group_id, {})
        return {position: Mark(offset, beyond.get(position, "")) for position, offset in marks.items()}

    async def leave(self) -> None:
        for task in (self._task, self._settling):
            if task is not None:
                task.cancel()
        self._valid_until = 0.0
        member_id, self._member_id = self._member_id, None
        if member_id is not None:
            try:
                async with asyncio.timeout(2.0):
                    await self._leases.ask(lambda: self._groups.leave(self._group_id, member_id))
            except (LogUnavailable, TimeoutError):
                pass

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                await self._round()
            except LogUnavailable:
                pass
            except LeaseLost:
                self._lose()
                continue
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _round(self) -> None:
        assert self._holder is not None
        loop = asyncio.get_running_loop()
        sent_at, member_id = loop.time(), self._member_id
        if member_id is not None and self._settling is not None and not self._settling.done():
            await self._leases.ask(lambda: self._groups.heard(self._group_id, member_id))
            assigned = None
        else:
            claim = NodeClaim(self._weight, self._partitions, self._owned, 1)
            answer = await self._leases.ask(lambda: self._groups.sync(self._group_id, member_id, claim))
            if member_id != self._member_id:
                raise LeaseLost("forfeited meanwhile")
            self._member_id, self._generation, assigned = answer
        was_valid, self._valid_until = self.is_valid(), sent_at + SESSION_TIMEOUT_S
        if self._owned and not was_valid:
            self._holder.renewed()
        if assigned is not None:
            self._settling = loop.create_task(self._settle(assigned))

    async def _settle(self, assigned: frozenset[Position]) -> None:
        assert self._holder is not None
        gained, revoked = assigned - self._owned, self._owned - assigned
        if revoked:
            await self._holder.revoked(revoked)
            self._owned -= revoked
            self._news.set()
        if gained:
            await self._holder.gained(gained)
            self._owned |= gained
        self._holder.settled()

    def _lose(self) -> None:
        assert self._holder is not None
        if self._settling is not None:
            self._settling.cancel()
        self._member_id, self._owned, self._valid_until = None, frozenset(), 0.0
        self._holder.lost()
        self._news.set()
