"""Child processes that never outlive us, and what the kernel says of any process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bridge.embedded_kafka import supervisor

READY_TIMEOUT_S = 30.0
STOP_GRACE_S = 3.0
SETTLE_TIMEOUT_S = 5.0
_POLL_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class BenchmarkError(Exception):
    """A measurement could not be made; the text says why."""


class GuardedProcess:
    """A command under the supervisor that also guards Kafka: the end of this process, kill -9 included, ends it."""

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        guarded = [sys.executable, "-I", "-S", supervisor.__file__, str(STOP_GRACE_S), *command]
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._supervisor = subprocess.Popen(
                guarded, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._supervisor.stdout is not None
        first_line = self._supervisor.stdout.readline().strip()
        if not first_line.isdigit():
            self.stop()
            raise BenchmarkError(f"cannot run {command[0]}{self.log_tail()}")
        self.pid = int(first_line)

    @property
    def is_running(self) -> bool:
        return self._supervisor.poll() is None

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after the grace. Idempotent."""
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        self._supervisor.stdin.close()
        self._supervisor.stdout.close()
        self._supervisor.wait(STOP_GRACE_S + 10.0)

    def log_tail(self) -> str:
        """The end of what the command said."""
        lines = self._log_path.read_text(errors="replace").splitlines()[-10:]
        return "; it said:\n" + "\n".join(lines) if lines else ""


async def await_port(port: int, process: GuardedProcess) -> None:
    """Wait until the process takes connections. Raises BenchmarkError when it ends, or after 30 s."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1.0):
                return
        except OSError:
            if not process.is_running or time.monotonic() > deadline:
                raise BenchmarkError(f"nothing listens on port {port}{process.log_tail()}") from None
        await asyncio.sleep(_POLL_S)


def cpu_s(pid: int) -> float:
    """CPU seconds that the process has used: nanoseconds by thread where none has ended, clock ticks else."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    by_ticks = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    by_thread = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            by_thread += int((thread / "schedstat").read_text().split()[0])
        except OSError:
            continue  # ended while we looked, or a kernel without schedstat
    return max(by_ticks, by_thread / 1e9)


def resident_kb(pid: int) -> float:
    """Resident memory of the process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return float(line.split()[1])
    raise BenchmarkError(f"process {pid} shows no memory")


async def settle(pids: Sequence[int]) -> None:
    """Wait until the processes have worked off what an earlier run left behind: below 5 % CPU, at most 5 s."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        before, began = sum(map(cpu_s, pids)), time.monotonic()
        await asyncio.sleep(0.2)
        if (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began) < 0.05:
            return
