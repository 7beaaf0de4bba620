"""Kafka's clock as one node knows it: all edges go by it, whatever their own clocks say. Pure.

Kafka stamps each heartbeat when it is appended (LogAppendTime). That was after it was sent and before it came back, so
the offset between the node's monotonic clock and Kafka's is known to half the round trip. Of the last observations the
one with the shortest round trip counts; a monotonic clock drifts by less than a millisecond meanwhile. With several
Kafka brokers it is the clock of the one that leads `headwater.nodes`, the same for all edges.
"""

from __future__ import annotations

from collections import deque

KEPT = 16  # observations: half a minute of heartbeats


class KafkaClock:
    """Offset in milliseconds from a monotonic clock in seconds to Kafka's time."""

    __slots__ = ("_observed", "_own_ms")

    def __init__(self, own_ms: float | None = None) -> None:
        self._own_ms = own_ms  # the node's own clock: it counts as far as what was observed does not contradict it
        self._observed: deque[tuple[float, float]] = deque(maxlen=KEPT)  # (round trip, offset), both in ms

    def observe(self, sent_s: float, received_s: float, appended_ms: int) -> float:
        """A record was sent, came back, and has this time; the offset as it is known now."""
        round_trip_ms = (received_s - sent_s) * 1000
        self._observed.append((round_trip_ms, appended_ms - (sent_s + received_s) * 500))
        return self.offset_ms

    @property
    def offset_ms(self) -> float:
        """What to add to the monotonic clock; 0 before anything was observed."""
        if not self._observed:
            return self._own_ms or 0.0
        observed, error = min(self._observed)[1], self.error_ms + 1
        own = self._own_ms if self._own_ms is not None else observed
        return min(max(own, observed - error), observed + error)

    @property
    def error_ms(self) -> float:
        """By how much it may be wrong at most."""
        return min(self._observed)[0] / 2 if self._observed else float("inf")
