"""One client: whether it is online, since when, how long in all, and whether it flaps or keeps trying what it may not.

Plain Python without a clock: the times are those at which Kafka took the events. The same events in the same order
give the same changes, whatever the batches were.

A client id has one connection at a time, so the last `connected` says where it is; the end of an earlier connection,
which another edge may report later, changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

ONLINE, OFFLINE, FLAPPING, ABUSIVE = "online", "offline", "flapping", "abusive"
JUDGEMENTS = (FLAPPING, ABUSIVE)
DENIED_ACTIONS = frozenset({"publish", "subscribe", "will"})
"""Denials that only an authenticated client can cause: a stranger who guesses passwords must not get somebody else's
client id banned."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits."""

    connects_max: int = 15
    denied_max: int = 100
    window_ms: int = 60_000
    ban_ms: int = 300_000
    forget_ms: int = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of the client, as far as it matters here."""

    kind: str
    node_id: str
    at_ms: int
    position: str  # <partition>/<offset> in headwater.events
    action: str | None = None
    peer: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What subscribers hear. `id` names what caused it: the same in every run over the same records.

    `until_ms` is the end of a judgement, 0 for presence.
    """

    client_id: str
    state: str
    id: str
    until_ms: int
    detail: dict[str, Any] = field(hash=False)

    def to_json(self) -> str:
        """As it is sent."""
        values = {"id": self.id, "client_id": self.client_id, "state": self.state, **self.detail}
        return json.dumps({name: value for name, value in values.items() if value is not None}, ensure_ascii=False)


@dataclass(slots=True)
class Client:
    """A client's state and the logic on it."""

    client_id: str
    online: bool = False
    node_id: str = ""
    since_ms: int = 0
    online_ms: int = 0  # of connections that have ended
    take_overs: int = 0
    last_ms: int = 0
    judged_until_ms: int = 0
    timer_ms: int | None = None  # the one timer that is set, whatever has happened since
    connects: list[int] = field(default_factory=list)  # times, the last `connects_max` of them
    denials: list[int] = field(default_factory=list)

    @classmethod
    def from_json(cls, client_id: str, text: str) -> Self:
        """What `to_json` wrote."""
        return cls(client_id, **json.loads(text))

    def to_json(self) -> str:
        """The whole state."""
        values = asdict(self)
        del values["client_id"]
        return json.dumps(values, separators=(",", ":"))

    def happened(self, event: Happening, rules: Rules) -> list[Change]:
        """One event: what it changes."""
        self.last_ms = max(self.last_ms, event.at_ms)
        if event.kind == "connected":
            return [self._connected(event), *self._judge(FLAPPING, self.connects, rules.connects_max, event, rules)]
        if event.kind == "disconnected" and self.online and event.node_id == self.node_id:
            return [self._gone(event)]
        if event.kind == "taken_over":
            self.take_overs += 1
        elif event.kind == "denied" and event.action in DENIED_ACTIONS:
            return self._judge(ABUSIVE, self.denials, rules.denied_max, event, rules)
        return []

    def is_forgotten(self, now_ms: int, rules: Rules) -> bool:
        """Whether nothing has been heard of it for so long that nothing needs to be kept."""
        return now_ms >= self.last_ms + rules.forget_ms

    def _connected(self, event: Happening) -> Change:
        before = self.node_id if self.online else None
        if self.online:
            self.online_ms += max(0, event.at_ms - self.since_ms)
        self.online, self.node_id, self.since_ms = True, event.node_id, event.at_ms
        detail = {
            "node_id": self.node_id,
            "since": _iso(self.since_ms),
            "peer": event.peer,
            "taken_over_from": before,
            "take_overs": self.take_overs,
        }
        return Change(self.client_id, ONLINE, event.position, 0, detail)

    def _gone(self, event: Happening) -> Change:
        lasted_ms = max(0, event.at_ms - self.since_ms)
        self.online, self.online_ms = False, self.online_ms + lasted_ms
        detail = {
            "node_id": self.node_id,
            "since": _iso(event.at_ms),
            "reason": event.reason,
            "online_s": lasted_ms / 1000,
            "online_total_s": self.online_ms / 1000,
            "take_overs": self.take_overs,
        }
        return Change(self.client_id, OFFLINE, event.position, 0, detail)

    def _judge(self, state: str, times: list[int], maximum: int, event: Happening, rules: Rules) -> list[Change]:
        """Once per `ban_ms`, whatever the client does meanwhile."""
        times.append(event.at_ms)
        del times[:-maximum]
        if len(times) < maximum or event.at_ms - times[0] >= rules.window_ms or event.at_ms < self.judged_until_ms:
            return []
        times.clear()
        self.judged_until_ms = event.at_ms + rules.ban_ms
        detail = {
            "count": maximum,
            "window_s": rules.window_ms / 1000,
            "at": _iso(event.at_ms),
            "until": _iso(self.judged_until_ms),
            "node_id": event.node_id,
            "take_overs": self.take_overs,
        }
        return [Change(self.client_id, state, event.position, self.judged_until_ms, detail)]


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
