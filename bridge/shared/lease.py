"""What a shared subscription needs of its group: a lease on partitions, told when it changes.

Kafka's group protocol gives it (`bridge.shared.kafka_lease`); tests have one in memory. The lease only says which node
serves which partition, and stores low-water marks; records come from the node's own reader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from typing import Protocol
from urllib.parse import quote

from bridge.log import LogError, Mark, Position
from schemas.topics import SharedFilter, parse_shared

GROUP_PREFIX = "headwater.share."
SHARE_NAME_MAX = 100  # characters of the share name in the group's; the hash tells apart what is cut off


class LeaseLost(LogError):  # noqa: N818
    """Definite: this node is (at this moment) no member of the group, nothing was stored."""


class LeaseHolder(Protocol):
    """Who serves the partitions. The coroutines are called one at a time and may be cancelled by `lost`."""

    async def gained(self, positions: frozenset[Position]) -> None:
        """These are ours now; nobody else serves them."""
        ...

    async def revoked(self, positions: frozenset[Position]) -> None:
        """These go to another node when this returns: until then they are ours, so store what was done."""
        ...

    def lost(self) -> None:
        """Everything is gone without notice: others may serve it already."""
        ...

    def settled(self) -> None:
        """This node is a member of the group, and has what it is to have for now."""
        ...

    def renewed(self) -> None:
        """`Lease.is_valid` is true again after it was false, and nothing has changed meanwhile."""
        ...


class Lease(Protocol):
    """This node's membership of one group."""

    def start(self, holder: LeaseHolder, weight: int) -> None:
        """Join; `holder` is told."""
        ...

    def is_valid(self) -> bool:
        """Whether nobody else can serve our partitions at this moment, as far as time tells."""
        ...

    def repartition(self, partitions: Set[Position]) -> None:
        """The group serves these from now on."""
        ...

    def reweigh(self, weight: int) -> None:
        """How many members this node has; the others hear of it when it makes a difference."""
        ...

    def membership(self) -> tuple[str, int] | None:
        """Member id and generation, under which marks may be stored in a transaction; None: at this moment none may."""
        ...

    def refused(self, generation: int) -> None:
        """The coordinator knows nothing of us in this generation: there is a new one, or we were given up."""
        ...

    def forfeit(self) -> None:
        """Nobody knows what was stored: give everything up as if it had been `lost`, and join again as another one."""
        ...

    async def commit(self, marks: Mapping[Position, Mark]) -> None:
        """Store low-water marks, without a transaction.

        Raises:
            LeaseLost: not stored.
            LogUnavailable: perhaps stored, perhaps not.
        """
        ...

    async def committed(self) -> dict[Position, Mark]:
        """Every low-water mark that is stored, by whatever node.

        Raises:
            LogUnavailable: no answer, or a transaction with marks of the group is still open.
        """
        ...

    async def leave(self) -> None:
        """Leave the group at once; `holder` is told nothing any more. Never raises."""
        ...


class Leases(Protocol):
    """Where leases come from."""

    def lease(self, group_id: str, partitions: Set[Position]) -> Lease:
        """A lease, not started yet, of a group that serves these partitions."""
        ...

    async def delete(self, group_id: str) -> bool:
        """Delete the group with its low-water marks; False: it has members, so it stays, or there is none.

        Raises:
            LogUnavailable: perhaps deleted, perhaps not.
        """
        ...


def shared_filter_of(share_filter: str) -> SharedFilter:
    """The parts of a (valid) shared subscription's filter."""
    shared = parse_shared(share_filter)
    assert shared is not None, share_filter
    return shared


def group_id_of(share_filter: str) -> str:
    """The Kafka group of a shared subscription: readable, and another one for every other subscription."""
    share_name = quote(shared_filter_of(share_filter).group, safe="")[:SHARE_NAME_MAX]
    return f"{GROUP_PREFIX}{share_name}.{hashlib.sha256(share_filter.encode()).hexdigest()[:16]}"
