"""From publishes and the ledger of their deliveries to figures per route and window. Plain Python, without a clock.

A message belongs to the window in which Kafka took it. The window is closed `wait_ms` after its end, by the time of the
newest record of any kind: a partition without traffic holds up nothing. What is known of open windows is a file per
batch, so that a batch that Spark repeats after a fault starts from the same state again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PUBLISHED, DELIVERED, ACKNOWLEDGED = "published", "delivered", "acknowledged"
OPEN_MAX = 200_000  # messages; those beyond are counted, not followed
_STATES_KEPT = 3
_STATE = re.compile(r"(\d{12})\.json")


@dataclass(frozen=True, slots=True)
class Step:
    """A sampled message was published, delivered to a client, or acknowledged by it."""

    kind: str
    route: str
    position: str  # <kafka topic>/<partition>/<offset>
    published_ms: int
    client_id: str = ""
    at_ms: int = 0
    qos: int = 0


@dataclass(slots=True)
class Delivered:
    """One client's share in a message."""

    times: int = 0
    first_ms: int = 0
    qos: int = 0
    acknowledged_ms: int = 0  # 0: not yet


@dataclass(slots=True)
class Followed:
    """A message of an open window."""

    route: str
    published_ms: int
    is_published: bool = False
    clients: dict[str, Delivered] = field(default_factory=dict)


class Slo:
    """The messages of open windows; `late` and `left_out` count what could not be followed since the last output."""

    def __init__(self, window_ms: int, wait_ms: int, open_max: int = OPEN_MAX) -> None:
        self._window_ms = window_ms
        self._wait_ms = wait_ms
        self._open_max = open_max
        self.newest_ms = 0
        self.open: dict[str, Followed] = {}
        self.late = self.left_out = 0

    def fold(self, steps: Iterable[Step], newest_ms: int) -> list[dict[str, Any]]:
        """Take one batch; the figures of the windows that are closed now, by window and route."""
        for step in sorted(steps, key=lambda one: (one.at_ms, one.position, one.client_id, one.kind != PUBLISHED)):
            self._take(step)
        self.newest_ms = max(self.newest_ms, newest_ms)
        groups: dict[tuple[int, str], list[Followed]] = {}
        for position, followed in list(self.open.items()):
            start_ms = self._start(followed.published_ms)
            if self._is_closed(start_ms):
                del self.open[position]
                if followed.is_published:  # else its publish was before the beginning of the job
                    groups.setdefault((start_ms, followed.route), []).append(followed)
        found = [self._figures(*key, groups[key]) for key in sorted(groups)]
        if found:
            found[0] |= {"late": self.late, "left_out": self.left_out}
            self.late = self.left_out = 0
        return found

    def load(self, folder: Path, before_batch: int) -> None:
        """What was known before this batch; nothing before the first one."""
        numbers = [number for number in _stored(folder) if number < before_batch]
        if not numbers:
            self.open, self.newest_ms, self.late, self.left_out = {}, 0, 0, 0
            return
        stored = json.loads(_file(folder, max(numbers)).read_bytes())
        self.newest_ms, self.late, self.left_out = stored["newest_ms"], stored["late"], stored["left_out"]
        self.open = {
            position: Followed(route, at_ms, seen, {name: Delivered(*values) for name, values in clients.items()})
            for position, (route, at_ms, seen, clients) in stored["open"].items()
        }

    def store(self, folder: Path, batch: int) -> None:
        """What is known after this batch; old files go."""
        folder.mkdir(parents=True, exist_ok=True)
        messages = {
            position: [one.route, one.published_ms, one.is_published, {n: _values(d) for n, d in one.clients.items()}]
            for position, one in self.open.items()
        }
        values = {"newest_ms": self.newest_ms, "late": self.late, "left_out": self.left_out, "open": messages}
        part = folder / "part"
        part.write_text(json.dumps(values, separators=(",", ":")), encoding="utf-8")
        part.replace(_file(folder, batch))
        for number in sorted(_stored(folder))[:-_STATES_KEPT]:
            _file(folder, number).unlink(missing_ok=True)

    def _take(self, step: Step) -> None:
        followed = self.open.get(step.position)
        if followed is None:
            if self._is_closed(self._start(step.published_ms)):
                self.late += 1
                return
            if len(self.open) >= self._open_max:
                self.left_out += 1
                return
            followed = self.open[step.position] = Followed(step.route, step.published_ms)
        if step.kind == PUBLISHED:
            followed.is_published = True
            return
        client = followed.clients.setdefault(step.client_id, Delivered())
        if step.kind == DELIVERED:
            client.times += 1
            client.first_ms = client.first_ms or step.at_ms
            client.qos = max(client.qos, step.qos)
        else:
            client.acknowledged_ms = client.acknowledged_ms or step.at_ms

    def _start(self, at_ms: int) -> int:
        return at_ms // self._window_ms * self._window_ms

    def _is_closed(self, start_ms: int) -> bool:
        return self.newest_ms >= start_ms + self._window_ms + self._wait_ms

    def _figures(self, start_ms: int, route: str, messages: Sequence[Followed]) -> dict[str, Any]:
        clients = [(one, client) for one in messages for client in one.clients.values() if client.times]
        acknowledgeable = [(one, client) for one, client in clients if client.qos]
        acknowledged = [(one, client) for one, client in acknowledgeable if client.acknowledged_ms]
        reached = sum(any(client.times for client in one.clients.values()) for one in messages)
        delays = [max(0, client.first_ms - one.published_ms) for one, client in clients]
        ways = [max(0, client.acknowledged_ms - one.published_ms) for one, client in acknowledged]
        lost = len(acknowledgeable) - len(acknowledged)
        return {
            "id": f"{route}/{start_ms}",
            "route": route,
            "window_start_ms": start_ms,
            "window_end_ms": start_ms + self._window_ms,
            "published": len(messages),
            "without_delivery": len(messages) - reached,
            "deliveries": len(clients),
            "acknowledged": len(acknowledged),
            "lost": lost,
            "loss": round(lost / len(acknowledgeable), 6) if acknowledgeable else 0.0,
            "duplicates": sum(client.times - 1 for _, client in clients),
            "delivered_p50_ms": percentile(delays, 50),
            "delivered_p99_ms": percentile(delays, 99),
            "acknowledged_p50_ms": percentile(ways, 50),
            "acknowledged_p99_ms": percentile(ways, 99),
        }


def percentile(values: Sequence[int], percent: int) -> int | None:
    """The nearest rank; None without values."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else None


def _values(client: Delivered) -> list[int]:
    return [client.times, client.first_ms, client.qos, client.acknowledged_ms]


def _stored(folder: Path) -> list[int]:
    return [int(match[1]) for file in folder.glob("*.json") if (match := _STATE.fullmatch(file.name))]


def _file(folder: Path, batch: int) -> Path:
    return folder / f"{batch:012}.json"
