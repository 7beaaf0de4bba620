"""One device: what is remembered of it, and the alerts that its messages and the clock raise and clear.

Plain Python without a clock: Spark calls it from `processor`, tests and offline computations call it directly. The same
messages in the same order give the same alerts, whatever the batches were.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Self

from spark_streaming.anomaly.rules import (
    CLEARED,
    RAISED,
    RANGE,
    RATE,
    SILENCE,
    STUCK,
    ZSCORE,
    Alert,
    Arrival,
    Rules,
    episode_id,
)

STATE_VERSION = 1
METRICS_MAX = 64  # per device; what comes after is not watched: one device must not fill the state store
MEMORY_READINGS = 1000  # the mean follows slow change: from here on old readings fade
DEVIATION_MIN = 0.01  # of the mean: a sensor that was constant so far must not alert at its first small step
SILENCE_MARGIN_MS = 2_000  # clocks of Kafka and Spark differ, and a record may be on its way into the batch


@dataclass(slots=True)
class Episode:
    """An alert that is raised and not cleared."""

    id: str
    since_ms: int
    good: int = 0  # readings in a row that were all right


@dataclass(slots=True)
class Metric:
    """What is remembered of one metric."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    last: float = 0.0
    last_ms: int = 0
    same_since_ms: int = 0
    episodes: dict[str, Episode] = field(default_factory=dict)


class Device:
    """A device's state and the logic on it."""

    def __init__(self, name: str, rules: Rules) -> None:
        self.name = name
        self.timer_ms: int | None = None  # the one timer that is set, whatever has happened since
        self._rules = rules
        self._heard_ms: int | None = None
        self._silence: Episode | None = None
        self._metrics: dict[str, Metric] = {}

    @classmethod
    def from_json(cls, name: str, rules: Rules, text: str) -> Self:
        """What `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        device = cls(name, rules)
        device.timer_ms, device._heard_ms = values["timer_ms"], values["heard_ms"]
        device._silence = Episode(*values["silence"]) if values["silence"] else None
        for metric, (*figures, episodes) in values["metrics"].items():
            device._metrics[metric] = Metric(*figures)
            device._metrics[metric].episodes = {kind: Episode(*episode) for kind, episode in episodes.items()}
        return device

    def to_json(self) -> str:
        """The whole state, fields in their order; whoever changes them raises STATE_VERSION."""
        values = {
            "timer_ms": self.timer_ms,
            "heard_ms": self._heard_ms,
            "silence": _packed(self._silence) if self._silence else None,
            "metrics": {
                name: (
                    *(m.count, m.mean, m.variance, m.last, m.last_ms, m.same_since_ms),
                    {kind: _packed(episode) for kind, episode in m.episodes.items()},
                )
                for name, m in self._metrics.items()
            },
        }
        return json.dumps(values, separators=(",", ":"))

    def arrived(self, arrival: Arrival) -> list[Alert]:
        """A message came: what that raises and clears."""
        alerts = self._heard(arrival.ingest_ms)
        for name, value in arrival.metrics:
            metric = self._metrics.get(name)
            if metric is None:
                if len(self._metrics) >= METRICS_MAX:
                    continue
                metric = self._metrics[name] = Metric(same_since_ms=arrival.event_ms)
            alerts += self._judge(name, metric, value, arrival)
            _learn(metric, value, arrival.event_ms, self._rules.zscore)
        return alerts

    def timer_wanted_ms(self) -> int | None:
        """When the clock has something to say next: silence, then forgetting."""
        if self._heard_ms is None:
            return None
        if self._rules.silence_ms is not None and self._silence is None:
            return self._heard_ms + self._rules.silence_ms + SILENCE_MARGIN_MS
        return self._heard_ms + self._rules.forget_ms

    def is_forgotten(self, now_ms: int) -> bool:
        """Whether so much time has passed that nothing needs to be kept."""
        return self._heard_ms is not None and now_ms >= self._heard_ms + self._rules.forget_ms

    def time_passed(self, now_ms: int) -> list[Alert]:
        """The timer rang: silence is raised, or everything is cleared because the device is forgotten."""
        if self._heard_ms is None:
            return []
        if self.is_forgotten(now_ms):
            return self._clear_all(self._heard_ms + self._rules.forget_ms)
        wanted_ms = self.timer_wanted_ms()
        if self._silence is None and self._rules.silence_ms is not None and wanted_ms is not None:
            return [self._raise_silence(self._heard_ms)] if now_ms >= wanted_ms else []
        return []

    def _heard(self, ingest_ms: int) -> list[Alert]:
        """Silence is judged by when Kafka took the messages: a stop of this job does not make a device silent."""
        alerts: list[Alert] = []
        heard_ms, limit_ms = self._heard_ms, self._rules.silence_ms
        if heard_ms is not None and limit_ms is not None:
            if self._silence is None and ingest_ms - heard_ms > limit_ms:
                alerts.append(self._raise_silence(heard_ms))
            if self._silence is not None and ingest_ms > heard_ms:
                alerts.append(self._cleared(SILENCE, None, self._silence, None, ingest_ms, "heard of again"))
                self._silence = None
        self._heard_ms = ingest_ms if heard_ms is None else max(heard_ms, ingest_ms)
        return alerts

    def _raise_silence(self, heard_ms: int) -> Alert:
        limit_ms = self._rules.silence_ms or 0
        self._silence = Episode(episode_id(SILENCE, self.name, None, str(heard_ms)), heard_ms)
        reason = f"not heard of for {limit_ms / 1000:g} s"
        return Alert(self._silence.id, SILENCE, RAISED, self.name, None, None, heard_ms, heard_ms + limit_ms, reason)

    def _judge(self, name: str, metric: Metric, value: float, arrival: Arrival) -> list[Alert]:
        alerts: list[Alert] = []
        for kind, reason, clear_after in self._verdicts(name, metric, value, arrival.event_ms):
            episode = metric.episodes.get(kind)
            if reason is not None and episode is None:
                began = episode_id(kind, self.name, name, arrival.position)
                metric.episodes[kind] = episode = Episode(began, arrival.event_ms)
                at_ms = arrival.event_ms
                alerts.append(Alert(began, kind, RAISED, self.name, name, value, at_ms, at_ms, reason))
            elif reason is not None and episode is not None:
                episode.good = 0
            elif episode is not None:
                episode.good += 1
                if episode.good >= clear_after:
                    del metric.episodes[kind]
                    alerts.append(self._cleared(kind, name, episode, value, arrival.event_ms, "back to normal"))
        return alerts

    def _verdicts(self, name: str, metric: Metric, value: float, at_ms: int) -> list[tuple[str, str | None, int]]:
        """Of each rule that can judge: its kind, what is wrong or None, and how many good readings end an episode."""
        rules, verdicts = self._rules, list[tuple[str, str | None, int]]()
        if (limits := rules.range_of(name)) is not None:
            wrong = None if limits.holds(value) else f"{value:g} is outside {limits}"
            verdicts.append((RANGE, wrong, rules.clear_after))
        if metric.count == 0:
            return verdicts
        if (rate_max := rules.rate_of(name)) is not None and at_ms > metric.last_ms:
            rate = abs(value - metric.last) * 1000 / (at_ms - metric.last_ms)
            wrong = f"changed by {rate:g}/s, over {rate_max:g}/s" if rate > rate_max else None
            verdicts.append((RATE, wrong, rules.clear_after))
        if rules.zscore is not None and metric.count >= rules.zscore_after:
            score = (value - metric.mean) / _deviation(metric)
            wrong = f"{value:g} is {score:.1f} deviations from {metric.mean:g}" if abs(score) > rules.zscore else None
            verdicts.append((ZSCORE, wrong, rules.clear_after))
        if rules.stuck_ms is not None:
            same_ms = at_ms - metric.same_since_ms if value == metric.last else 0
            wrong = f"{value:g} for {same_ms / 1000:g} s" if same_ms >= rules.stuck_ms else None
            verdicts.append((STUCK, wrong, 1))
        return verdicts

    def _cleared(
        self, kind: str, metric: str | None, episode: Episode, value: float | None, at_ms: int, reason: str
    ) -> Alert:
        return Alert(episode.id, kind, CLEARED, self.name, metric, value, episode.since_ms, at_ms, reason)

    def _clear_all(self, at_ms: int) -> list[Alert]:
        reason = f"not heard of for {self._rules.forget_ms / 1000:g} s: forgotten"
        alerts = [
            self._cleared(kind, name, episode, None, at_ms, reason)
            for name, metric in self._metrics.items()
            for kind, episode in metric.episodes.items()
        ]
        if self._silence is not None:
            alerts.append(self._cleared(SILENCE, None, self._silence, None, at_ms, reason))
        self._metrics, self._silence = {}, None
        return alerts


def _packed(episode: Episode) -> tuple[str, int, int]:
    return episode.id, episode.since_ms, episode.good


def _deviation(metric: Metric) -> float:
    return max(math.sqrt(metric.variance), DEVIATION_MIN * abs(metric.mean), 1e-12)


def _learn(metric: Metric, value: float, at_ms: int, zscore: float | None) -> None:
    """Running mean and variance (Welford), fading; an outlier moves them only as far as the limit does."""
    seen = value
    if zscore is not None and metric.count >= 2:
        reach = zscore * _deviation(metric)
        seen = min(max(value, metric.mean - reach), metric.mean + reach)
    metric.count += 1
    weight = 1 / min(metric.count, MEMORY_READINGS)
    difference = seen - metric.mean
    metric.mean += weight * difference
    metric.variance = (1 - weight) * (metric.variance + weight * difference * difference)
    if value != metric.last or metric.count == 1:
        metric.same_since_ms = at_ms
    metric.last = value
    metric.last_ms = max(metric.last_ms, at_ms)
