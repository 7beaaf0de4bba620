"""Durations in options: ``10s``, ``5 minutes``, ``500ms``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from schemas.errors import ConfigurationError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPELLINGS = {
    "ms": ("ms", "millisecond", "milliseconds"),
    "s": ("s", "sec", "second", "seconds"),
    "m": ("m", "min", "minute", "minutes"),
    "h": ("h", "hour", "hours"),
    "d": ("d", "day", "days"),
}
_UNIT_OF = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings}
_DURATION = re.compile(r"(\d{1,9})\s*([a-z]+)")


@dataclass(frozen=True, slots=True)
class Duration:
    """A whole number of one unit."""

    amount: int
    unit: str

    @property
    def seconds(self) -> float:
        return self.amount * _UNITS_S[self.unit]

    @property
    def label(self) -> str:
        """Short, as it stands in Topic Names: ``10s``."""
        return f"{self.amount}{self.unit}"

    @property
    def spark(self) -> str:
        """As Spark reads it: ``10 seconds``."""
        return f"{self.amount} {_SPELLINGS[self.unit][-1]}"


def parse_duration(text: str, option: str, *, positive: bool = True) -> Duration:
    """A duration from an option's text. Raises ConfigurationError."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit = _UNIT_OF.get(found[2]) if found else None
    if found is None or unit is None or (positive and int(found[1]) == 0):
        raise ConfigurationError(f"{option}: {text!r} is no duration; write for example 10s, 5m or '10 seconds'")
    return Duration(int(found[1]), unit)
