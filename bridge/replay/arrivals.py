"""Compares what was sent with what arrived, per Topic Name and QoS, which is what MQTT keeps the order of. Pure.

Memory holds what is under way and what is wrong, not what has arrived as it should.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any


@dataclass(slots=True)
class _Flow:
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)  # (number, digest), in the order of sending
    sent: int = 0
    arrived: int = 0
    overtaken: int = -1  # the highest number that arrived so far
    reordered: int = 0
    extra: int = 0


@dataclass(slots=True)
class Differences:
    """Of one Topic Name: what was sent and did not arrive, what arrived and was not sent (again, perhaps), what came
    behind a later one, and how many payloads are others than were sent."""

    missing: int = 0
    extra: int = 0
    reordered: int = 0
    payload: int = 0

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.reordered or self.payload)


class Arrivals:
    """Told of each message when it is sent and when it arrives."""

    def __init__(self) -> None:
        self._flows: dict[tuple[bytes, int], _Flow] = {}
        self.sent_total = 0
        self.arrived_total = 0
        self.waiting_total = 0

    def sent(self, topic_name_utf8: bytes, qos: int, payload: bytes) -> None:
        """It is about to be sent."""
        flow = self._flows.setdefault((topic_name_utf8, qos), _Flow())
        flow.waiting.append((flow.sent, _digest(payload)))
        flow.sent += 1
        self.sent_total += 1
        self.waiting_total += 1

    def arrived(self, topic_name_utf8: bytes, qos: int, payload: bytes) -> None:
        """It has arrived."""
        flow = self._flows.setdefault((topic_name_utf8, qos), _Flow())
        flow.arrived += 1
        self.arrived_total += 1
        digest = _digest(payload)
        for index, (number, wanted) in enumerate(flow.waiting):
            if wanted == digest:
                del flow.waiting[index]
                self.waiting_total -= 1
                flow.reordered += number < flow.overtaken
                flow.overtaken = max(flow.overtaken, number)
                return
        flow.extra += 1

    def differences(self) -> dict[str, Differences]:
        """By Topic Name, those alone that have any. As many extra as missing ones of a flow are changed payloads."""
        found: dict[bytes, Differences] = {}
        for (name, _), flow in self._flows.items():
            each = found.setdefault(name, Differences())
            changed = min(len(flow.waiting), flow.extra)
            each.missing += len(flow.waiting) - changed
            each.extra += flow.extra - changed
            each.payload += changed
            each.reordered += flow.reordered
        return {name.decode(errors="replace"): each for name, each in sorted(found.items()) if each}

    def report(self) -> dict[str, Any]:
        """All of it in figures."""
        differences = self.differences()
        totals = {
            name: sum(getattr(each, name) for each in differences.values())
            for name in ("missing", "extra", "reordered", "payload")
        }
        return {"sent": self.sent_total, "arrived": self.arrived_total, **totals}


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()
