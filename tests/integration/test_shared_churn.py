"""Shared subscriptions on real edges and a real Kafka while members and edges come and go; short."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sessions import churn
from benchmarks.sessions.fleet import fleet

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def test_members_and_edges_come_and_go(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Invariants I4 and I11. The long way is `python -m benchmarks.sessions churn`."""
    async with fleet(kafka_bootstrap, tmp_path, 3) as edges:
        outcome = await churn.run(edges, churn.QUICK)
        print("\n" + outcome.text())
        assert not outcome.faults, outcome.text()
