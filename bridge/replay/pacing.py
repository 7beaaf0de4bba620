"""How fast a replay goes: as fast as it can, as the original times say (or a multiple), or so many a second. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from bridge.replay.selection import Item
from schemas.errors import ConfigurationError

_SPEED = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(x|/s)", re.ASCII)
SLICE_S = 0.02  # a rate is given out in slices of this, so that it comes as a stream and not as heaps
WAIT_S_MAX = 1.0  # a longer wait is taken in pieces, for the progress bar


@dataclass(frozen=True, slots=True)
class Speed:
    """``factor`` times the original speed, or ``per_s`` records a second; neither: as fast as it goes."""

    factor: float | None = None
    per_s: float | None = None

    def __str__(self) -> str:
        if self.factor is not None:
            return f"{self.factor:g}x"
        return "max" if self.per_s is None else f"{self.per_s:g}/s"


MAX = Speed()


def parse_speed(text: str) -> Speed:
    """``1x``, ``10x``, ``0.5x``, ``500/s`` or ``max``. Raises ConfigurationError."""
    if text == "max":
        return MAX
    found = _SPEED.fullmatch(text)
    if found is None or float(found[1]) == 0:
        raise ConfigurationError(f"--speed {text}: write 1x (the original times), 10x, 500/s (a rate) or max")
    number = float(found[1])
    return Speed(factor=number) if found[2] == "x" else Speed(per_s=number)


class Pacer:
    """Says how many records are due. Time comes in as an argument, in seconds of any clock that only goes forward."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._begun_s: float | None = None
        self._first_ms = 0
        self._given = 0

    def due(self, items: Sequence[Item], now_s: float) -> tuple[int, float]:
        """How many of the next items may go now, and how long to wait when not all of them may."""
        speed = self._speed
        if speed == MAX or not items:
            return len(items), 0.0
        if self._begun_s is None:
            self._begun_s, self._first_ms = now_s, items[0][0]
        elapsed_s = now_s - self._begun_s
        if speed.factor is not None:
            until_ms = self._first_ms + elapsed_s * speed.factor * 1_000
            count = bisect_right(items, until_ms, key=itemgetter(0))
            if count == len(items):
                return count, 0.0
            return count, min(WAIT_S_MAX, max(0.001, (items[count][0] - until_ms) / speed.factor / 1_000))
        assert speed.per_s is not None
        count = min(len(items), int(elapsed_s * speed.per_s) + 1 - self._given)
        if count <= 0:
            wait_s = (self._given - elapsed_s * speed.per_s) / speed.per_s
            return 0, min(WAIT_S_MAX, max(SLICE_S, wait_s))
        self._given += count
        return count, 0.0 if count == len(items) else SLICE_S
