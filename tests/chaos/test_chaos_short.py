"""A few faults, one after the other, on real edges and a real Kafka violate no invariant. `make chaos` does more."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chaos_checks import INVARIANTS, recovery_s, verdict
from support.chaos_run import perform
from support.chaos_scenarios import SHORT

OF_TIME_AND_SIZE = ("I12", "I13", "I15")  # said and not judged here: the machine may be slow


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(1000)
async def test_nothing_is_violated_by_a_few_faults(tmp_path: Path) -> None:
    context, run = await perform(SHORT, 1, tmp_path)
    found = verdict(run)
    for name in OF_TIME_AND_SIZE:
        print(name, *found.pop(name), sep="\n  ")
    print(context.figures, recovery_s(run), *context.faults, sep="\n")
    assert found == {name: [] for name in INVARIANTS if name not in OF_TIME_AND_SIZE}
    assert len(run.recorded.history.receipts) > 1_000
