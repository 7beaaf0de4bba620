"""Runs seeds of the simulation, and says what they came to: `python -m support.simulation_run --seeds 500`.

A seed replays exactly: with the same code it takes the same steps. Python's hashes of strings must not be random for
that (sets are walked in their order), so this starts itself again with PYTHONHASHSEED=0.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable

from support.simulation_loop import virtual_loop
from support.simulation_world import Report, World

HASH_SEED = "0"


def run_seed(seed: int, faults: tuple[str, ...] | None = None, steps: int = 60) -> tuple[World, Report]:
    """One run, from start to verdict."""
    with virtual_loop() as loop:
        world = World(seed, loop, faults, steps)
        try:
            report = world.run()
        finally:
            loop.dispose(world.processes)
    return world, report


def run_seeds(seeds: Iterable[int], *, stop_at: int = 10) -> int:
    """Run them all; prints violations as they come and a summary. Returns how many seeds had any."""
    began_s = time.process_time()
    exercised: Counter[str] = Counter()
    runs = callbacks = failed = 0
    virtual_s = 0.0
    gc.disable()  # what a run leaves goes at once, below: never in the middle of the next one
    for seed in seeds:
        _, report = run_seed(seed)
        runs += 1
        callbacks += report.callbacks
        virtual_s += report.virtual_s
        exercised += report.exercised
        if report.violations:
            failed += 1
            print(f"seed {seed}:")
            for invariant, text in report.violations[:8]:
                print(f"  {invariant} {text[:400]}")
            print(
                f"  again: PYTHONHASHSEED={HASH_SEED} python -m support.simulation_run --seed {seed} --trace",
                flush=True,
            )
            if failed >= stop_at:
                break
        if runs % 10 == 0:
            gc.collect()
    elapsed_s = time.process_time() - began_s
    actions = exercised["publish"] + exercised["burst"] + exercised["retain"]
    print(
        f"{runs} seeds, {failed} with violations; {callbacks} callbacks, {virtual_s / 3600:.1f} h of virtual time, "
        f"{actions} publishing steps in {elapsed_s:.0f} s ({elapsed_s / max(1, runs) * 1000:.0f} ms a seed)"
    )
    print("exercised: " + ", ".join(f"{what} {count}" for what, count in sorted(exercised.items())))
    return failed


def show(seed: int) -> int:
    """One seed with its trace."""
    world, report = run_seed(seed)
    for line in sorted([*world.history.trace, *world.errors.lines], key=lambda line: float(line.split(maxsplit=1)[0])):
        print(line[:300])
    for invariant, text in report.violations:
        print(f"{invariant} {text}")
    return len(report.violations)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 when an invariant was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: what happened")
    chosen = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execve(sys.executable, [sys.executable, "-m", "support.simulation_run", *sys.argv[1:]], dict(os.environ))
    if chosen.seed is not None:
        return int(bool(show(chosen.seed) if chosen.trace else run_seeds([chosen.seed])))
    return int(bool(run_seeds(range(chosen.first, chosen.first + chosen.seeds))))


if __name__ == "__main__":
    sys.exit(main())
