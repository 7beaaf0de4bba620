"""The simulation itself, as CI runs it: 250 seeds. `make simulate` runs 500, with SEEDS=20000 more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
SEEDS = 250


def test_no_seed_breaks_an_invariant() -> None:
    """In a process of its own: a seed replays exactly only where Python's hashes are not random."""
    result = subprocess.run(
        [sys.executable, "-m", "support.simulation_run", "--seeds", str(SEEDS)],
        cwd=TESTS.parent,
        env={
            **os.environ,
            "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "PYTHONHASHSEED": "0",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    for fault in ("kill", "pause", "cut", "lost answers", "compaction", "take-over", "vanish", "commit not answered"):
        assert fault in result.stdout, f"no seed has had {fault!r}"
