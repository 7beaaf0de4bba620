"""Virtual time: the clock jumps, processes stand still and die, and a seed takes the same steps again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from support.simulation_loop import Process, virtual_loop

TESTS = Path(__file__).parent.parent


def test_an_hour_passes_at_once() -> None:
    with virtual_loop() as loop:
        came: list[float] = []

        async def wait() -> None:
            await asyncio.sleep(3_600)
            came.append(loop.time())

        task = loop.outside.spawn(wait())
        began_s = time.perf_counter()
        assert loop.run_until(task.done, 4_000)
        assert came == [3_600]
        assert time.perf_counter() - began_s < 5


def test_a_paused_process_is_late_and_a_killed_one_never_comes() -> None:
    with virtual_loop() as loop:
        came: list[tuple[str, float]] = []

        async def tick(process: Process) -> None:
            while True:
                await asyncio.sleep(1)
                came.append((process.name, loop.time()))

        one, two = Process("one", loop), Process("two", loop)
        for process in (one, two):
            process.spawn(tick(process))
        loop.run_for(1.5)
        one.pause()
        two.kill()
        loop.run_for(3)
        one.resume()
        loop.run_for(0.1)
        loop.dispose([one, two])
    assert came == [("one", 1), ("two", 1), ("one", 4.5)]


def _run(*arguments: str, hash_seed: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "support.simulation_run", *arguments],
        cwd=TESTS.parent,
        env={
            **os.environ,
            "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "PYTHONHASHSEED": hash_seed,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_seed_replays_exactly() -> None:
    """In another process, too, and whatever Python's hashes would have been."""
    assert _run("--seed", "3", "--trace", hash_seed="1") == _run("--seed", "3", "--trace", hash_seed="2")
