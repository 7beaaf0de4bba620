"""What replay as a subscription has to show, short; the long way is `python -m benchmarks.sessions replay`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sessions import replayed
from benchmarks.sessions.fleet import fleet

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def test_replay_is_handed_over_to_live(kafka_bootstrap: str, tmp_path: Path) -> None:
    """No gap and no duplicate while messages keep coming, with reconnects in the middle."""
    async with fleet(kafka_bootstrap, tmp_path, 2) as edges:
        outcome = await replayed.run(edges, replayed.QUICK)
        print("\n" + outcome.text())
        assert outcome.faults == []
        assert edges.complaints() == []
