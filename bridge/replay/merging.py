"""Merges partitions by time and keeps each one's order. Pure.

What may go out is what is not younger than the least that every partition has been read to (the horizon): nothing older
can come any more. A partition whose clock went back keeps its order, since an item's time is the latest one so far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from bridge.log import Position
from bridge.replay.selection import Item

_time_of = itemgetter(0)


@dataclass(slots=True, eq=False)
class Lane:
    """One partition: read from ``at`` on to before ``end`` (None: for ever); ``items`` wait for the others."""

    position: Position
    at: int
    end: int | None
    time_ms: int = -1  # of the last record that was read; -1: nothing yet
    items: list[Item] = field(default_factory=list)
    lost: int = 0  # records that were deleted before they could be read

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.at >= self.end

    @property
    def emitted_to(self) -> int:
        """The next offset behind what has gone out."""
        return self.items[0][2].offset if self.items else self.at


def horizon_ms(lanes: Iterable[Lane]) -> int | None:
    """How far all that are still read have come; None: nothing is read any more."""
    return min((lane.time_ms for lane in lanes if not lane.is_done), default=None)


def take_merged(lanes: Iterable[Lane]) -> list[Item]:
    """What may go out, in the order of time; of equal times each partition keeps its order."""
    lanes = list(lanes)
    until_ms = horizon_ms(lanes)
    merged: list[Item] = []
    sources = 0
    for lane in lanes:
        items = lane.items
        if not items or (until_ms is not None and items[0][0] > until_ms):
            continue
        sources += 1
        if until_ms is None or items[-1][0] <= until_ms:
            merged += items
            lane.items = []
        else:
            cut = bisect_right(items, until_ms, key=_time_of)
            merged += items[:cut]
            del items[:cut]
    if sources > 1:
        merged.sort(key=_time_of)
    return merged


def take_all(lanes: Iterable[Lane]) -> list[Item]:
    """Everything that is there, for who follows live and does not wait for quiet partitions."""
    merged: list[Item] = []
    for lane in lanes:
        merged += lane.items
        lane.items = []
    merged.sort(key=_time_of)
    return merged
