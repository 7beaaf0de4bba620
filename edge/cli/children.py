"""Edge nodes as child processes: started, awaited, stopped, and never left behind.

A child reads its configuration from standard input and ends when that is closed, so that nothing outlives its parent,
not even after kill -9.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import IO, Any

import orjson

from edge.node.config import EdgeConfig
from schemas.errors import HeadwaterError

READY_TIMEOUT_S = 60.0  # a busy machine starts several interpreters at once
STOP_TIMEOUT_S = 20.0  # flush (10 s) and goodbye (2 s), then SIGKILL
LOG_TAIL_LINES = 15


class ChildFailed(HeadwaterError):  # noqa: N818
    """A child process ended before it was ready."""


class Child:
    """One `headwater edge` process."""

    def __init__(self, name: str, config: EdgeConfig, workers: int = 1, log_path: Path | None = None) -> None:
        self.name = name
        self._config = config
        self._workers = workers
        self._log_path = log_path
        self._log: IO[bytes] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    def edge(cls, config: EdgeConfig, workers: int = 1, log_path: Path | None = None) -> Child:
        """An edge of this configuration; it logs to `log_path`, or to our own standard error."""
        return cls(config.node_id, config, workers, log_path)

    @property
    def pid(self) -> int:
        """The process id; of the parent of the workers when there are several."""
        assert self._process is not None, "not started"
        return self._process.pid

    async def start(self) -> None:
        """Start the process and hand it its configuration."""
        if self._log_path is not None:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            self._log = self._log_path.open("ab")
        command = [sys.executable, "-P", "-m", "edge.cli.app", "edge", "--config", "-", "--json"]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            "--workers",
            str(self._workers),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for us; we stop the child in our own order
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(self._config.model_dump(mode="json")) + b"\n")
        await self._process.stdin.drain()

    async def ready(self) -> dict[str, Any]:
        """What the process says of itself when it serves; raises ChildFailed when it ends or is late."""
        assert self._process is not None
        assert self._process.stdout is not None
        said: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while len(said) < self._workers:
                    line = await self._process.stdout.readline()
                    if not line:
                        await self._process.wait()
                        raise ChildFailed(f"edge {self.name} did not start{self._log_tail()}")
                    said.append(orjson.loads(line))
        except TimeoutError:
            raise ChildFailed(f"edge {self.name} was not ready in {READY_TIMEOUT_S:.0f} s{self._log_tail()}") from None
        return said[0] | {"node": self.name, "pid": self.pid}

    async def wait(self) -> int:
        """Wait for the end; the exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, bounded patience, SIGKILL."""
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._log is not None:
            self._log.close()

    def _log_tail(self) -> str:
        if self._log_path is None:
            return "; it said why above"
        lines = self._log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return f"; {self._log_path} ends with:\n" + "\n".join(lines)
