"""Chaos: real edges, a real Kafka, real clients, and faults; every invariant judged over the recorded history.

    python tests/chaos/run.py kill-edges latency --seed 7
    python tests/chaos/run.py                       all scenarios, one after the other
    python tests/chaos/run.py --judge build/chaos/kill-edges-7

Each run leaves history.jsonl, log.json and the edges' logs in build/chaos/<scenario>-<seed>, adds its result to
tests/chaos/results.json and writes docs/reliability.md anew. Ends with 1 when an invariant was violated.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import fcntl
import json
import logging
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(_TESTS.parent), str(_TESTS), str(_TESTS / "chaos")]

from report import REPEATED, render  # noqa: E402
from scenarios import NOT_RUN, SCENARIOS, Context  # noqa: E402
from support.chaos_checks import INVARIANTS, Log, Run, longest_silence_s, recovery_s, repeated_in_groups, verdict  # noqa: E402
from support.chaos_history import Recorder, read, replay  # noqa: E402
from support.chaos_poison import without_poison  # noqa: E402
from support.chaos_site import Site  # noqa: E402
from support.chaos_workload import Workload  # noqa: E402
from support.simulation_checks import EdgeLeft  # noqa: E402

from bridge.memory_log import MemoryRecord  # noqa: E402

EDGES = 3
SHOWN_MAX = 8
NO_WONDER = (" ERROR aiokafka", "no answer in time")  # that Kafka cannot be reached, or has not answered for 30 s
RESULTS = _TESTS / "chaos" / "results.json"
DOCUMENT = _TESTS.parent / "docs" / "reliability.md"
BUILD = _TESTS.parent / "build" / "chaos"
DEADLINE_S = 240.0


@dataclass(slots=True)
class Left:
    """What a run leaves besides its history."""

    log: Log
    edges: list[EdgeLeft]
    wanted: dict[str, frozenset[str]]
    faults: list[str] = field(default_factory=list)


async def perform(name: str, seed: int, folder: Path) -> tuple[Context, Run]:
    """One scenario, and what it leaves; raises what went wrong with the site itself."""
    recorder = Recorder(folder / "history.jsonl")
    site = Site(folder, EDGES, recorder)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await site.start()
            load = Workload(site, seed)
            context = Context(site, load)
            await load.start()
            scenario = SCENARIOS[name]
            await asyncio.sleep(scenario.lead_s)
            await scenario.run(context)
            await asyncio.sleep(scenario.lead_s)
            context.faults += await load.stop()
            edges = await load.probe()
            recorder.write("end")
            await load.leave()
            log = await site.read_log()
            for position, records in site.before_deletion.items():
                known = {each.offset for each in log[position]}
                log[position] = [each for each in records if each.offset not in known] + log[position]
    finally:
        await site.stop()
        recorder.close()
    said = [line[:300] for edge in site.edges for line in edge.complaints()]
    context.faults += [line for line in said if not any(each in line for each in NO_WONDER)][:SHOWN_MAX]
    left = Left(without_poison(log), edges, load.wanted())
    save(folder / "log.json", left)
    run = load_run(folder)
    for judge in context.after:
        judge(run)
    context.figures[REPEATED] = len(repeated_in_groups(run, near_fault=True))
    return context, run


def save(path: Path, left: Left) -> None:
    """For `--judge`."""
    log = [
        [*place, [[each.offset, each.timestamp, _text(each.key), _text(each.value)] for each in records]]
        for place, records in left.log.items()
        if records
    ]
    edges = [[each.node_id, [[_text(k), _text(v[0])] for k, v in each.retained.items()]] for each in left.edges]
    wanted = {name: sorted(filters) for name, filters in left.wanted.items()}
    path.write_text(json.dumps({"log": log, "edges": edges, "wanted": wanted}))


def load_run(folder: Path) -> Run:
    """A run from what it has left in its folder."""
    left: dict[str, Any] = json.loads((folder / "log.json").read_text())
    log = {
        (place, partition): [MemoryRecord(o, t, _bytes(k), _bytes(v), ()) for o, t, k, v in records]
        for place, partition, records in left["log"]
    }
    edges = tuple(
        EdgeLeft(node_id, retained={_bytes(k) or b"": (_bytes(v) or b"", ("", 0), 0) for k, v in retained})
        for node_id, retained in left["edges"]
    )
    wanted = tuple((name, frozenset(filters)) for name, filters in left["wanted"].items())
    return Run(replay(read(folder / "history.jsonl")), log, edges, wanted)


def _text(data: bytes | None) -> str | None:
    return base64.b64encode(data).decode() if data is not None else None


def _bytes(text: str | None) -> bytes | None:
    return base64.b64decode(text) if text is not None else None


def judged(run: Run) -> dict[str, list[str]]:
    """The verdict, printed."""
    found = verdict(run)
    for name, violations in found.items():
        print(f"  {name:4} {'held' if not violations else f'{len(violations)} VIOLATIONS'}")
        for text in violations[:SHOWN_MAX]:
            print(f"       {text}")
    return found


def remember(name: str, seed: int, context: Context, run: Run, found: dict[str, list[str]], took_s: float) -> None:
    """Add the result, and write the document anew; other runs may do so at the same time."""
    with (BUILD / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _remember(name, seed, context, run, found, took_s)


def _remember(name: str, seed: int, context: Context, run: Run, found: dict[str, list[str]], took_s: float) -> None:
    history = run.recorded.history
    results: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    results = [each for each in results if (each["scenario"], each["seed"]) != (name, seed)]
    results.append(
        {
            "scenario": name,
            "seed": seed,
            "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "violations": {each: len(texts) for each, texts in found.items()},
            "examples": {each: texts[0] for each, texts in found.items() if texts},
            "figures": context.figures,
            "faults": context.faults,
            "recovery_s": max((took for _, took in recovery_s(run)), default=0.0),
            "silence_s": longest_silence_s(run),
            "published": sum(not each.is_will for each in history.messages.values()),
            "delivered": len(history.receipts),
            "connections": len(history.connections),
            "took_s": took_s,
        }
    )
    RESULTS.write_text(json.dumps(results, indent=1, default=str) + "\n")
    texts = {each: scenario.text for each, scenario in SCENARIOS.items()}
    DOCUMENT.write_text(render(results, texts, INVARIANTS, NOT_RUN))


def one(name: str, seed: int) -> bool:
    """Run a scenario; whether it showed what it must."""
    folder = BUILD / f"{name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"{name} (seed {seed}): {SCENARIOS[name].text}", flush=True)
    began = time.monotonic()
    context, run = asyncio.run(perform(name, seed, folder))
    took_s = time.monotonic() - began
    found = judged(run)
    for figure, value in context.figures.items():
        print(f"  {figure}: {value}")
    for fault in context.faults:
        print(f"  FAULT: {fault}")
    remember(name, seed, context, run, found, took_s)
    shutil.rmtree(folder / "kafka", ignore_errors=True)
    messages, receipts = len(run.recorded.history.messages), len(run.recorded.history.receipts)
    print(f"  {messages} messages, {receipts} deliveries, {took_s:.0f} s", flush=True)
    return not context.faults and not any(found.values())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), metavar="SCENARIO")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--judge", type=Path, help="judge a run that has been: its folder")
    arguments = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    if arguments.judge is not None:
        return int(any(judged(load_run(arguments.judge)).values()))
    unknown = set(arguments.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    shown = [one(name, arguments.seed) for name in arguments.scenarios]
    return int(not all(shown))


if __name__ == "__main__":
    sys.exit(main())
