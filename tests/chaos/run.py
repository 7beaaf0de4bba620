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
import fcntl
import json
import logging
import shutil
import sys
import time
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(_TESTS.parent), str(_TESTS), str(_TESTS / "chaos")]

from report import render  # noqa: E402
from support.chaos_checks import INVARIANTS, Run, longest_silence_s, recovery_s, verdict  # noqa: E402
from support.chaos_context import Context, NotHere  # noqa: E402
from support.chaos_run import SHOWN_MAX, load_run, perform  # noqa: E402
from support.chaos_scenarios import SCENARIOS  # noqa: E402

RESULTS = _TESTS / "chaos" / "results.json"
SOAK = _TESTS / "chaos" / "soak.json"
DOCUMENT = _TESTS.parent / "docs" / "reliability.md"
BUILD = _TESTS.parent / "build" / "chaos"


def judged(run: Run) -> dict[str, list[str]]:
    """The verdict, printed."""
    found = verdict(run)
    for name, violations in found.items():
        print(f"  {name:4} {'held' if not violations else f'{len(violations)} VIOLATIONS'}")
        for text in violations[:SHOWN_MAX]:
            print(f"       {text}")
    return found


def remember(result: dict[str, Any]) -> None:
    """Add the result, and write the document anew; other runs may do so at the same time."""
    with (BUILD / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        results: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        place = result["scenario"], result["seed"]
        results = [each for each in results if (each["scenario"], each["seed"]) != place]
        RESULTS.write_text(json.dumps([*results, result], indent=1, default=str) + "\n")
        write_document()


def write_document() -> None:
    """docs/reliability.md from what there is."""
    texts = {each: scenario.text for each, scenario in SCENARIOS.items()}
    soak = json.loads(SOAK.read_text()) if SOAK.exists() else None
    DOCUMENT.write_text(render(json.loads(RESULTS.read_text()), texts, INVARIANTS, soak))


def result_of(context: Context, run: Run, found: dict[str, list[str]]) -> dict[str, Any]:
    """What is kept of a run."""
    history = run.recorded.history
    return {
        "at": _now(),
        "violations": {each: len(texts) for each, texts in found.items()},
        "examples": {each: texts[0] for each, texts in found.items() if texts},
        "figures": context.figures,
        "faults": context.faults,
        "recovery_s": max((took for _, took in recovery_s(run)), default=0.0),
        "silence_s": longest_silence_s(run),
        "published": sum(not each.is_will for each in history.messages.values()),
        "delivered": len(history.receipts),
        "connections": len(history.connections),
    }


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime())


def one(name: str, seed: int) -> bool:
    """Run a scenario; whether it showed what it must."""
    folder = BUILD / f"{name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"{name} (seed {seed}): {SCENARIOS[name].text}", flush=True)
    began = time.monotonic()
    try:
        context, run = asyncio.run(perform(SCENARIOS[name], seed, folder))
    except NotHere as missing:
        print(f"  not run: {missing}", flush=True)
        remember({"scenario": name, "seed": seed, "at": _now(), "missing": str(missing)})
        return True
    took_s = time.monotonic() - began
    found = judged(run)
    for figure, value in context.figures.items():
        print(f"  {figure}: {value}")
    for fault in context.faults:
        print(f"  FAULT: {fault}")
    remember({"scenario": name, "seed": seed, "took_s": round(took_s)} | result_of(context, run, found))
    shutil.rmtree(folder / "kafka", ignore_errors=True)
    messages, receipts = len(run.recorded.history.messages), len(run.recorded.history.receipts)
    print(f"  {messages} messages, {receipts} deliveries, {took_s:.0f} s", flush=True)
    return not context.faults and not any(found.values())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), metavar="SCENARIO")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--render", action="store_true", help="write docs/reliability.md anew, run nothing")
    parser.add_argument("--judge", type=Path, help="judge a run that has been: its folder")
    arguments = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    if arguments.judge is not None:
        return int(any(judged(load_run(arguments.judge)).values()))
    if arguments.render:
        write_document()
        return 0
    unknown = set(arguments.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    shown = [one(name, arguments.seed) for name in arguments.scenarios]
    return int(not all(shown))


if __name__ == "__main__":
    sys.exit(main())
