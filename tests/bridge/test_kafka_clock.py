"""Kafka's clock: known to half the shortest round trip, and what edges with wrong clocks go by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.edges import memory_edge

from bridge.kafka_clock import KEPT, KafkaClock
from bridge.memory_log import MemoryLog

OFFSET_MS = 1_700_000_000_000.0


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=40))
def test_the_offset_is_as_near_as_the_shortest_round_trip_allows(ways: list[tuple[float, float]]) -> None:
    clock, now_s = KafkaClock(), 100.0
    for there_s, back_s in ways:
        appended_ms = int((now_s + there_s) * 1000 + OFFSET_MS)
        clock.observe(now_s, now_s + there_s + back_s, appended_ms)
        now_s += 5.0
    assert clock.error_ms == pytest.approx(min(there + back for there, back in ways[-KEPT:]) * 500, abs=1)
    assert abs(clock.offset_ms - OFFSET_MS) <= clock.error_ms + 1


def test_nothing_is_known_at_first() -> None:
    assert (KafkaClock().offset_ms, KafkaClock().error_ms) == (0.0, float("inf"))


@pytest.mark.parametrize("skew_ms", [-3_600_000, 3_600_000])
async def test_an_edge_goes_by_kafkas_clock(skew_ms: int) -> None:
    """The edge's own clock is an hour off Kafka's from the beginning."""
    now_ms = 1_800_000_000_000 + skew_ms
    async with memory_edge(MemoryLog(clock_ms=lambda: now_ms), node_id="a") as node:
        assert abs(node.services.wall_ms() - now_ms) < 20_000, "its first heartbeat has told it"
