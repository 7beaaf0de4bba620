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
from pathlib import Path

import edge
from benchmarks.sessions import exactly_once, fight, node_death, paused, retained_views, storm
from benchmarks.sessions.fleet import Fleet, fleet
from benchmarks.sessions.outcome import Outcome
from bridge.embedded_kafka import EmbeddedKafka

HOME = Path(edge.__file__).resolve().parents[1]
Run = Callable[[Fleet, bool], Awaitable[Outcome]]

SCENARIOS: dict[str, tuple[int, Run]] = {
    "exactly-once": (
        3,
        lambda edges, quick: exactly_once.run(edges, exactly_once.QUICK if quick else exactly_once.FULL),
    ),
    "exactly-once-roaming": (
        4,
        lambda edges, quick: exactly_once.run(edges, exactly_once.ROAMING_QUICK if quick else exactly_once.ROAMING),
    ),
    "node-death": (3, lambda edges, quick: node_death.run(edges, 3 if quick else 50)),
    "storm": (2, lambda edges, quick: storm.run(edges, storm.QUICK if quick else storm.FULL)),
    "fight": (3, lambda edges, quick: fight.run(edges, fight.QUICK if quick else fight.FULL)),
    "retained": (
        2,
        lambda edges, quick: retained_views.run(edges, retained_views.QUICK if quick else retained_views.FULL),
    ),
    "paused-owner": (3, lambda edges, quick: paused.run(edges)),
}
"""How many edges each one needs."""


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
    count, run = SCENARIOS[name]
    async with fleet(bootstrap, folder, count) as edges:
        outcome = await run(edges, quick)
        complaints = edges.complaints()
    print(f"{name}{' (quick)' if quick else ''}\n{outcome.text()}", flush=True)
    for line in complaints:
        print(f"  logged: {line}", flush=True)
    return bool(outcome.faults)


if __name__ == "__main__":
    sys.exit(main())
