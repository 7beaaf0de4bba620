"""Which member of a shared subscription gets a message: the seven strategies. Pure.

A strategy chooses among the members of one group on one node; `None` says that the message has to wait. A member
without room is skipped, but for the two hash strategies: there a key has *its* member, and waits for it, so that the
order per key is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from bridge.delivery import Delivery
from schemas.errors import ConfigurationError

LOOKED_AT_MAX = 64  # members compared per message: the choice costs microseconds in a group of ten thousand, too
KEYS_MAX = 4_096  # remembered with their members: 1 MiB


class Candidate(Protocol):
    """What a strategy sees of a member."""

    @property
    def client_id(self) -> str: ...
    @property
    def inflight(self) -> int:
        """How many messages it has taken and not acknowledged, of all its subscriptions."""
        ...

    def has_room(self) -> bool:
        """Whether it can take one more message now."""
        ...


class Strategy:
    """Chooses a member. `by_key` says that what one message waits for need not hold up another one."""

    by_key = False

    def choose(self, members: Sequence[Candidate], delivery: Delivery) -> Candidate | None:
        """One of the members (in the order they joined), or None when the message has to wait."""
        raise NotImplementedError

    def handed(self, member: Candidate, delivery: Delivery) -> None:
        """The member has got it."""

    def settled(self, member: Candidate, delivery: Delivery) -> None:
        """The member has it no more: acknowledged, or taken back."""

    def members_changed(self) -> None:
        """A member has joined or left."""


class RoundRobin(Strategy):
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, members: Sequence[Candidate], delivery: Delivery) -> Candidate | None:
        for step in range(len(members)):
            index = (self._next + step) % len(members)
            if members[index].has_room():
                self._next = index + 1
                return members[index]
        return None


class Random(Strategy):
    """Any; `below(n)` gives a number from 0 to n - 1, as `random.Random.randrange` does."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below

    def choose(self, members: Sequence[Candidate], delivery: Delivery) -> Candidate | None:
        if not members:
            return None
        start = self._below(len(members))
        if members[start].has_room():
            return members[start]
        free = [member for member in members if member.has_room()]
        return free[self._below(len(free))] if free else None


class Sticky(Strategy):
    """The same one as long as it has room, then the next."""

    def __init__(self) -> None:
        self._rest = RoundRobin()
        self._current: Candidate | None = None

    def choose(self, members: Sequence[Candidate], delivery: Delivery) -> Candidate | None:
        if self._current is None or not self._current.has_room():
            self._current = self._rest.choose(members, delivery)
        return self._current

    def members_changed(self) -> None:
        self._current = None


class LeastInflight(Strategy):
    """The one with the fewest unacknowledged messages; of equals the one whose turn it is, so nobody starves."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, members: Sequence[Candidate], delivery: Delivery) -> Candidate | None:
        return self.choose_among(members, delivery)

    def choose_among(
        self, members: Sequence[Candidate], delivery: Delivery, *, prefer: Callable[[Candidate], bool] | None = None
    ) -> Candidate | None:
        """`choose` with the preferred ones first."""
        best: Candidate | None = None
        best_rank: tuple[bool, int] = (True, 0)
        best_index = 0
        for step in range(len(members)):
            if step >= LOOKED_AT_MAX and best is not None:
                break
            index = (self._next + step) % len(members)
            member = members[index]
            if not member.has_room():
                continue
            rank = (prefer is not None and not prefer(member), member.inflight)
            if best is None or rank < best_rank:
                best, best_rank, best_index = member, rank, index
                if rank == (False, 0):
                    break  # nobody is less busy
        self._next = best_index + 1 if best is not None else self._next
        return best


class Local(Strategy):
    """Members on the node where the message was published, where that is known; the least busy of them.

    A lease puts a partition's messages on one node, and so are all members that it chooses from: then this is
    `least_inflight`. It differs when a group's members reach it through several nodes.
    """

    def __init__(self, is_near: Callable[[Candidate, Delivery], bool]) -> None:
        self._is_near = is_near
        self._rest = LeastInflight()

    def choose(self, members: Sequence[Candidate], delivery: Delivery) -> Candidate | None:
        return self._rest.choose_among(members, delivery, prefer=lambda member: self._is_near(member, delivery))


class ByKey(Strategy):
    """The member that the key's hash names (rendezvous hashing: a member that leaves moves only its own keys).

    A key stays with its member as long as that has messages of it unacknowledged, even when somebody else would be
    named now, even when it has unsubscribed: nobody gets a later one before an earlier one is done.
    """

    by_key = True

    def __init__(self, key_of: Callable[[Delivery], bytes]) -> None:
        self._key_of = key_of
        self._known: dict[bytes, Candidate] = {}
        self._pinned: dict[bytes, tuple[Candidate, int]] = {}  # with how many are unacknowledged

    def choose(self, members: Sequence[Candidate], delivery: Delivery) -> Candidate | None:
        key = self._key_of(delivery)
        pinned = self._pinned.get(key)
        member = pinned[0] if pinned is not None else self._named(members, key)
        return member if member is not None and member in members and member.has_room() else None

    def handed(self, member: Candidate, delivery: Delivery) -> None:
        key = self._key_of(delivery)
        pinned = self._pinned.get(key)
        self._pinned[key] = (member, 1 if pinned is None else pinned[1] + 1)

    def settled(self, member: Candidate, delivery: Delivery) -> None:
        key = self._key_of(delivery)
        pinned, count = self._pinned[key]
        if count > 1:
            self._pinned[key] = (pinned, count - 1)
        else:
            del self._pinned[key]

    def members_changed(self) -> None:
        self._known.clear()

    def _named(self, members: Sequence[Candidate], key: bytes) -> Candidate | None:
        known = self._known.get(key)
        if known is None and members:
            if len(self._known) >= KEYS_MAX:
                self._known.clear()
            known = self._known[key] = max(members, key=lambda member: _weight(member.client_id, key))
        return known


def _weight(client_id: str, key: bytes) -> bytes:
    return blake2b(client_id.encode() + b"\0" + key, digest_size=8).digest()


STRATEGIES = ("least_inflight", "round_robin", "random", "sticky", "hash_topic", "hash_client_id", "local")
"""By name, as in the configuration; the first one is the default."""


def make_strategy(
    name: str, below: Callable[[int], int], is_near: Callable[[Candidate, Delivery], bool] | None = None
) -> Strategy:
    """A new strategy for one group; `below` is `random.Random.randrange`. Raises ConfigurationError."""
    match name:
        case "least_inflight":
            return LeastInflight()
        case "round_robin":
            return RoundRobin()
        case "random":
            return Random(below)
        case "sticky":
            return Sticky()
        case "hash_topic":
            return ByKey(lambda delivery: delivery.topic_name_utf8)
        case "hash_client_id":
            return ByKey(lambda delivery: delivery.client_id.encode())
        case "local":
            return Local(is_near or (lambda member, delivery: True))
    raise ConfigurationError(f"shared subscriptions: no strategy {name!r}; there are {', '.join(STRATEGIES)}")
