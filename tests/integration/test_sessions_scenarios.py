"""What issue 4 has to show, short: real edges on a real Kafka. The long way is `python -m benchmarks.sessions`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sessions import exactly_once, fight, node_death, paused, retained_views, storm
from benchmarks.sessions.fleet import Fleet, fleet
from benchmarks.sessions.outcome import Outcome

SHOWN_MAX = 400
pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def assert_held(outcome: Outcome, edges: Fleet) -> None:
    """No fault, and no edge has logged an error. What is found is in the first line: it is all that a summary shows."""
    print("\n" + outcome.text())
    found = outcome.faults + edges.complaints()
    assert not found, f"{len(found)} found: {' | '.join(found)[:SHOWN_MAX]}"


@pytest.mark.parametrize(
    "sizes",
    [exactly_once.QUICK, exactly_once.ROAMING_QUICK, exactly_once.EVERYWHERE_QUICK],
    ids=["one-edge", "two-edges", "every-edge"],
)
async def test_qos_2_exactly_once_under_kill_9(kafka_bootstrap: str, tmp_path: Path, sizes: exactly_once.Sizes) -> None:
    """Invariants I1 to I4: publishing edges are killed, and those of the subscriber, whose session moves."""
    async with fleet(kafka_bootstrap, tmp_path, 4 if sizes.roams else 3) as edges:
        assert_held(await exactly_once.run(edges, sizes), edges)


async def test_sessions_come_back_at_once_to_the_other_edge(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Nothing is lost, nothing comes twice, everything in order; one scan of the log serves all."""
    async with fleet(kafka_bootstrap, tmp_path, 2) as edges:
        outcome = await storm.run(edges, storm.QUICK)
        assert_held(outcome, edges)
    assert float(outcome.figures["records read per delivered message"]) < 2.0


async def test_three_edges_fight_over_a_client_id(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Invariant I7."""
    async with fleet(kafka_bootstrap, tmp_path, 3) as edges:
        assert_held(await fight.run(edges, fight.QUICK), edges)


async def test_a_paused_owner_changes_nothing(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Invariants I4, I6, I7: SIGSTOP for longer than it takes to be held for dead."""
    async with fleet(kafka_bootstrap, tmp_path, 3) as edges:
        assert_held(await paused.run(edges, paused.PAUSE_QUICK_S), edges)


async def test_an_edge_dies_with_clients_of_every_kind(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Invariants I8 and I10."""
    async with fleet(kafka_bootstrap, tmp_path, 3) as edges:
        assert_held(await node_death.run(edges, node_death.OF_EACH_QUICK), edges)


async def test_retained_views_are_the_same_on_both_edges(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Invariant I9, before and after a restart of both."""
    async with fleet(kafka_bootstrap, tmp_path, 2) as edges:
        assert_held(await retained_views.run(edges, retained_views.QUICK), edges)
