"""Which node serves which partition of a shared subscription. Pure: the group's leader computes it, for all.

Each node says what it is when it joins (`NodeClaim`). A node gets partitions in proportion to its members, of every
Kafka topic; what it serves already it keeps, as far as its share goes. A partition that has to move is first given to
nobody: the node that serves it commits, gives it up and joins again, and only then another one gets it. So the others
never stop, and nothing is handed out twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import orjson

from bridge.log import Position
from schemas.errors import RecordError

VERSION = 1
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """What a node says when it joins; `generation` is the one in which it got what it serves."""

    weight: int
    partitions: frozenset[Position]
    owned: frozenset[Position] = frozenset()
    generation: int = NO_GENERATION


def encode_claim(claim: NodeClaim) -> bytes:
    """The user data of a member in the group's protocol; equal claims give equal bytes."""
    return orjson.dumps(
        {
            "v": VERSION,
            "weight": claim.weight,
            "partitions": _grouped(claim.partitions),
            "owned": _grouped(claim.owned),
            "generation": claim.generation,
        }
    )


def decode_claim(raw: bytes | None) -> NodeClaim:
    """Raises RecordError when these are not the user data of one of our nodes. Unknown fields are ignored."""
    try:
        fields: Any = orjson.loads(raw or b"")
        if fields["v"] != VERSION:
            raise RecordError(f"a node of another version: {fields['v']!r}")
        return NodeClaim(
            int(fields["weight"]),
            _positions(fields["partitions"]),
            _positions(fields["owned"]),
            int(fields["generation"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"a claim that cannot be read: {error!r}") from None


def assign(claims: Mapping[str, NodeClaim]) -> dict[str, frozenset[Position]]:
    """Who serves what from now on. What moves is nobody's, until the one that serves it has given it up."""
    owners = _owners(claims)
    return {
        member: frozenset(position for position in positions if owners.get(position, member) == member)
        for member, positions in desired(claims, owners).items()
    }


def desired(
    claims: Mapping[str, NodeClaim], owners: Mapping[Position, str] | None = None
) -> dict[str, frozenset[Position]]:
    """Who should serve what."""
    owners = _owners(claims) if owners is None else owners
    result: dict[str, set[Position]] = {member: set() for member in claims}
    if not claims:
        return {}
    weights = {member: max(0, claim.weight) for member, claim in claims.items()}
    if not any(weights.values()):
        weights = dict.fromkeys(claims, 1)
    shares = _Shares(weights)
    wanted = sorted(frozenset[Position]().union(*(claim.partitions for claim in claims.values())))
    for _, group in groupby(wanted, key=lambda position: position[0]):
        positions = list(group)
        quota = shares.next(len(positions), Counter(owners[each] for each in positions if each in owners))
        left: list[Position] = []
        for position in positions:
            owner = owners.get(position)
            if owner is not None and quota[owner] > 0:
                quota[owner] -= 1
                result[owner].add(position)
            else:
                left.append(position)
        free = [member for member in sorted(quota) for _ in range(quota[member])]
        for position, member in zip(left, free, strict=True):
            result[member].add(position)
    return {member: frozenset(positions) for member, positions in result.items()}


class _Shares:
    """How many partitions each node gets, Kafka topic by Kafka topic; what is owing from one goes into the next."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = weights
        self._total = sum(weights.values())
        self._given: Counter[str] = Counter()
        self._partitions = 0

    def next(self, partitions: int, owned: Mapping[str, int]) -> Counter[str]:
        """Whole shares first, then one each for those who are owed most; of equals for who has more already."""
        self._partitions += partitions
        owing = {
            member: weight * self._partitions - self._given[member] * self._total
            for member, weight in self._weights.items()
        }
        quota: Counter[str] = Counter({member: max(0, owed // self._total) for member, owed in owing.items()})
        while sum(quota.values()) > partitions:  # somebody was given too much of what came before
            most = max(sorted(quota), key=lambda member: (quota[member] * self._total - owing[member], quota[member]))
            quota[most] -= 1
        order = sorted(
            self._weights,
            key=lambda member: (
                quota[member] * self._total - owing[member],
                quota[member] - owned.get(member, 0),
                member,
            ),
        )
        for member in order[: partitions - sum(quota.values())]:
            quota[member] += 1
        self._given.update(quota)
        return quota


def _owners(claims: Mapping[str, NodeClaim]) -> dict[Position, str]:
    """Who serves each partition. Two say so only when one of them has missed that it lost it: the later has it."""
    owners: dict[Position, str] = {}
    for member in sorted(claims):
        for position in claims[member].owned:
            other = owners.get(position)
            if other is None or claims[member].generation > claims[other].generation:
                owners[position] = member
    return owners


def _grouped(positions: Iterable[Position]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = defaultdict(list)
    for kafka_topic, partition in sorted(positions):
        grouped[kafka_topic].append(partition)
    return grouped


def _positions(grouped: Mapping[str, Iterable[int]]) -> frozenset[Position]:
    return frozenset((kafka_topic, int(at)) for kafka_topic, partitions in grouped.items() for at in partitions)
