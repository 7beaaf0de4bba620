"""What counts as an anomaly, and the readings and alerts that the logic speaks of. No Spark in here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

EVERY_METRIC = "*"
RAISED, CLEARED = "raised", "cleared"
RANGE, RATE, ZSCORE, STUCK, SILENCE = "range", "rate", "zscore", "stuck", "silence"
KINDS = (RANGE, RATE, ZSCORE, STUCK, SILENCE)


@dataclass(frozen=True, slots=True)
class Range:
    """What a value may be, bounds included; None: no bound."""

    low: float | None
    high: float | None

    def holds(self, value: float) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        return f"{'' if self.low is None else self.low}..{'' if self.high is None else self.high}"


@dataclass(frozen=True, slots=True)
class Rules:
    """All limits; None or nothing for a metric: no such rule. The key `*` is for metrics without one of their own."""

    ranges: Mapping[str, Range] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)  # change per second
    zscore: float | None = 4.0
    zscore_after: int = 30  # readings that make a mean worth comparing with
    stuck_ms: int | None = None
    silence_ms: int | None = None
    clear_after: int = 3  # good readings in a row end an episode, so that one at the limit does not flap
    forget_ms: int = 7 * 86_400_000  # of a device that is not heard of: its state is not kept for ever

    def range_of(self, metric: str) -> Range | None:
        return self.ranges.get(metric) or self.ranges.get(EVERY_METRIC)

    def rate_of(self, metric: str) -> float | None:
        return self.rates.get(metric, self.rates.get(EVERY_METRIC))


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message of a device: its place in Kafka, when Kafka took it, its event time and its numbers."""

    position: str  # <kafka topic>/<partition>/<offset>
    ingest_ms: int
    event_ms: int
    metrics: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Alert:
    """The beginning or the end of an episode. `id` names the episode: the same in every run over the same records."""

    id: str
    kind: str
    state: str
    device: str
    metric: str | None
    value: float | None
    since_ms: int
    at_ms: int
    reason: str

    def to_json(self) -> str:
        """As it is sent."""
        values: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "state": self.state,
            "device": self.device,
            "metric": self.metric,
            "value": self.value,
            "since": _iso(self.since_ms),
            "at": _iso(self.at_ms),
            "reason": self.reason,
        }
        return json.dumps({name: value for name, value in values.items() if value is not None}, ensure_ascii=False)


def episode_id(kind: str, device: str, metric: str | None, began: str) -> str:
    """Names an episode by what began it: the raising record's place in Kafka, or the last time before a silence."""
    parts = "\x1f".join((kind, device, metric or "", began))
    return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
