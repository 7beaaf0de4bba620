"""A job as a user starts it, in a session of its own so that all its processes can be told, and their CPU time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.processes import BenchmarkError

READY_TIMEOUT_S = 180.0  # 16 s on a quiet machine
STOP_TIMEOUT_S = 40.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ROOT = Path(__file__).resolve().parents[2]


class BenchJob:
    """One run of `spark_streaming.submit`."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self._process = process
        self._log_path = log_path

    @classmethod
    async def start(cls, job: str, bootstrap: str, folder: Path, *options: str) -> BenchJob:
        """Start it; its checkpoint and its log are in the folder."""
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        command = [sys.executable, "-m", "spark_streaming.submit", job, "--kafka", bootstrap, "--json", "--progress"]
        command += ["--checkpoint", str(folder / "checkpoint"), *options]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(_ROOT), os.environ.get("PYTHONPATH", "")))}
        with (folder / "job.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=log, stdin=asyncio.subprocess.DEVNULL, env=environ
            )
        return cls(process, folder / "job.log")

    async def event(self, *names: str) -> dict[str, Any]:
        """The next event of one of these names. Raises BenchmarkError when it does not come."""
        assert self._process.stdout is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_TIMEOUT_S):
                while line := await self._process.stdout.readline():
                    if line.startswith(b"{"):
                        found: dict[str, Any] = json.loads(line)
                        if found["event"] in names:
                            return found
        raise BenchmarkError(f"the job did not say {' or '.join(names)}{self.log_tail()}")

    def log_tail(self) -> str:
        """The end of what it said on stderr."""
        return f"; its log ends with:\n{self._log_path.read_text(errors='replace')[-2000:]}"

    def cpu_s(self) -> float:
        """CPU seconds of the JVM, its driver and its workers so far, those that have ended included."""
        return sum(_cpu_s(pid) for pid in _descendants(self._process.pid))

    async def stop(self) -> None:
        """In order, or by force."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


def _descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _cpu_s(pid: int) -> float:
    with suppress(OSError):
        return sum(int(field) for field in _stat(pid)[11:15]) / _TICKS_PER_S
    return 0.0


def _stat(pid: int) -> list[str]:
    """The fields after the command's name: state, parent, ..., user, system, user and system time of children."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
