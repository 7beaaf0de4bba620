"""The Spark job of the demo, as the child process that a user would start: ``python -m spark_streaming.submit``."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections import deque
from pathlib import Path

import orjson

from edge.demo.schedule import TOPIC_FILTER
from schemas.errors import ConfigurationError

STOP_TIMEOUT_S = 45.0  # the job ends itself by force before
LOG_LINES = 30
NICENESS = 10  # on a small machine the path of the devices comes first; what Spark starts inherits it
READY_EVENT = "ready"


class SparkJob:
    """One running job. ``ready`` is set when the job says that its queries run."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._readers = [
            asyncio.create_task(self._read_events(process.stdout)),
            asyncio.create_task(self._read_log(process.stderr)),
        ]

    @classmethod
    async def start(cls, bootstrap_servers: str, folder: Path) -> SparkJob:
        """Start ``device_stats`` on the cluster; its checkpoint is in ``folder``.

        Raises:
            ConfigurationError: pyspark is not installed.
        """
        if importlib.util.find_spec("pyspark") is None:
            raise ConfigurationError(
                "the demo's Spark job needs pyspark: pip install 'headwater[spark]' (or --no-spark)"
            )
        arguments: tuple[str, ...] = ("device_stats", "--kafka", bootstrap_servers, "--json")
        arguments += ("--checkpoint", str(folder / "checkpoint"), "--topic-filter", TOPIC_FILTER)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the installed package, not what happens to lie in the working folder
            "-m",
            "spark_streaming.submit",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        with contextlib.suppress(ProcessLookupError):  # it ended at once: its reader tells
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        return cls(process)

    @property
    def log(self) -> str:
        """The last lines that the job has said."""
        return "\n".join(self._log)

    async def wait_ready(self, timeout_s: float) -> bool:
        """Whether the query runs; False when the job ended or took too long."""
        waits = [asyncio.create_task(event.wait()) for event in (self.ready, self.ended)]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.ready.is_set() and not self.ended.is_set()

    async def stop(self) -> None:
        """Stop in order; by force after ``STOP_TIMEOUT_S``."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read_events(self, lines: asyncio.StreamReader | None) -> None:
        assert lines is not None
        async for line in lines:
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                self._log.append(line.decode(errors="replace").rstrip())
                continue
            if isinstance(event, dict) and event.get("event") == READY_EVENT:
                self.ready.set()
        self.ended.set()

    async def _read_log(self, lines: asyncio.StreamReader | None) -> None:
        assert lines is not None
        async for line in lines:
            self._log.append(line.decode(errors="replace").rstrip())
