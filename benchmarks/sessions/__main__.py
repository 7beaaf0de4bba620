"""Run scenarios on real edge processes and a real Kafka, and print what they found. Exit code 1: there was a fault."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edge
from benchmarks.sessions import churn, exactly_once, fight, node_death, paused, replayed, retained_views, storm
from benchmarks.sessions.fleet import Fleet, fleet
from benchmarks.sessions.outcome import Outcome
from bridge.embedded_kafka import EmbeddedKafka

HOME = Path(edge.__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Scenario:
    """How many edges it needs, how it is run, and its sizes: to show something, and for tests."""

    edges: int
    run: Callable[[Fleet, Any], Awaitable[Outcome]]
    full: Any
    quick: Any


SCENARIOS = {
    "exactly-once": Scenario(3, exactly_once.run, exactly_once.FULL, exactly_once.QUICK),
    "exactly-once-roaming": Scenario(4, exactly_once.run, exactly_once.ROAMING, exactly_once.ROAMING_QUICK),
    "exactly-once-everywhere": Scenario(4, exactly_once.run, exactly_once.EVERYWHERE, exactly_once.EVERYWHERE_QUICK),
    "storm": Scenario(2, storm.run, storm.FULL, storm.QUICK),
    "fight": Scenario(3, fight.run, fight.FULL, fight.QUICK),
    "paused-owner": Scenario(3, paused.run, paused.PAUSE_S, paused.PAUSE_QUICK_S),
    "node-death": Scenario(3, node_death.run, node_death.OF_EACH, node_death.OF_EACH_QUICK),
    "replay": Scenario(2, replayed.run, replayed.FULL, replayed.QUICK),
    "retained": Scenario(2, retained_views.run, retained_views.FULL, retained_views.QUICK),
    "churn": Scenario(3, churn.run, churn.FULL, churn.QUICK),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sessions", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"all, or some of: {', '.join(SCENARIOS)}")
    parser.add_argument("--quick", action="store_true", help="the sizes of the tests")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="an existing Kafka; else an embedded one is started")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the logs of the edges stay")
    options = parser.parse_args(arguments)
    names = options.scenarios or list(SCENARIOS)
    if strangers := set(names) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(strangers))}")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-sessions-")))
        folder.mkdir(parents=True, exist_ok=True)
        bootstrap = options.kafka or stack.enter_context(EmbeddedKafka(folder / "kafka")).bootstrap
        found = [asyncio.run(_run(name, bootstrap, folder, options.quick)) for name in names]
    return 1 if any(found) else 0


async def _run(name: str, bootstrap: str, folder: Path, quick: bool) -> bool:
    """Whether there was a fault."""
    scenario = SCENARIOS[name]
    async with fleet(bootstrap, folder, scenario.edges) as edges:
        outcome = await scenario.run(edges, scenario.quick if quick else scenario.full)
        complaints = edges.complaints()
    print(f"{name}{' (quick)' if quick else ''}\n{outcome.text()}", flush=True)
    for line in complaints:
        print(f"  logged: {line}", flush=True)
    return bool(outcome.faults)


if __name__ == "__main__":
    sys.exit(main())
