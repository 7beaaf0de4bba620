"""From and to in offsets: where in each partition a replay begins and ends."""

from __future__ import annotations

from collections.abc import Iterable, Set

from bridge.log import Log, Position
from bridge.partitioning import RouteTable
from schemas.replay_range import PointKind, ReplayPoint, ReplayRange

Bounds = dict[Position, tuple[int, int]]
"""Per partition the first offset and the one after the last; both are equal where there is nothing."""


def partitions_of(routes: RouteTable, topic_filters: Iterable[str]) -> frozenset[Position]:
    """Every partition in which a message may be that one of the filters matches, the QoS 2 twins included."""
    found: set[Position] = set()
    for topic_filter in topic_filters:
        found |= routes.kept_partitions(topic_filter)
    return frozenset(found)


async def offsets_at(source: Log, partitions: Set[Position], point: ReplayPoint) -> dict[Position, int]:
    """Where the point lies in each partition. Raises LogUnavailable."""
    if point.kind is PointKind.BEGINNING:
        return await source.start_offsets(partitions)
    if point.kind is PointKind.END:
        return await source.end_offsets(partitions)
    named = {position: offset for position, offset in point.positions.items() if position in partitions}
    others = partitions - named.keys()
    by_time = await source.offsets_for_times(dict.fromkeys(others, point.time_ms)) if others else {}
    return {**by_time, **named}


async def resolve(source: Log, partitions: Set[Position], wanted: ReplayRange) -> tuple[Bounds, dict[Position, int]]:
    """The bounds of each partition, and what retention has taken of what a position token asked for.

    Without an end the end is where the log ends now. Raises LogUnavailable.
    """
    starts = await source.start_offsets(partitions)
    ends = await source.end_offsets(partitions)
    begin = await offsets_at(source, partitions, wanted.start)
    until = await offsets_at(source, partitions, wanted.end) if wanted.end is not None else ends
    bounds: Bounds = {}
    lost: dict[Position, int] = {}
    for position in sorted(partitions):
        first = max(begin[position], starts[position])
        last = min(until[position], ends[position])
        if begin[position] < starts[position]:
            lost[position] = starts[position] - begin[position]
        bounds[position] = (min(first, last), last)
    return bounds, lost
