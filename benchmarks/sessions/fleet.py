"""Edges as real processes on one Kafka, with what can happen to processes: kill -9, SIGSTOP, restart."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.processes import resident_kb
from bridge import topics_admin
from bridge.embedded_kafka.server import is_port_free
from edge.cli.children import Child
from edge.node.config import EdgeConfig, make_config
from schemas.catalogue import catalogue

PORTS = range(20_000, 30_000)  # below the ephemeral ones: an edge gets its port back after kill -9
POLL_S = 0.02

PASSING = ("Unable connect to", "Unable to update metadata from")

# Every client of a scenario comes from one address, and some connect as often as they can.
LIMITS = {"flapping_per_min": 1_000_000, "unauthenticated_per_address_max": 10_000, "unauthenticated_max": 10_000}


class FleetEdge:
    """One `headwater edge` that keeps its node id and its ports over restarts."""

    def __init__(self, node_id: str, bootstrap: str, folder: Path, limits: Mapping[str, Any]) -> None:
        self.node_id = node_id
        self.log_path = folder / f"{node_id}.log"
        self.address = ("127.0.0.1", _port())
        self.http_port = _port()
        self._config = _config(node_id, bootstrap, self.address[1], self.http_port, limits)
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._child is not None, "not started"
        return self._child.pid

    async def start(self) -> None:
        """Return when clients are served."""
        self._child = Child.edge(self._config, log_path=self.log_path)
        await self._child.start()
        await self._child.ready()

    async def stop(self) -> None:
        """SIGTERM, which is a clean end. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            self._signal(child, signal.SIGCONT)
            await child.stop()

    async def kill(self) -> None:
        """kill -9; return when it is gone."""
        child, self._child = self._child, None
        if child is not None:
            self._signal(child, signal.SIGKILL)
            await child.wait()
            await child.stop()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    async def figures(self) -> dict[str, float]:
        """What /metrics says, without the prefix and the label."""
        url = f"http://127.0.0.1:{self.http_port}/metrics"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session, session.get(url) as response:
            lines = (await response.text()).splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name.partition("{")[0].removeprefix("headwater_"): float(value) for name, value in pairs}

    def resident_kb(self) -> float:
        """Its memory."""
        return resident_kb(self.pid)

    def complaints(self) -> list[str]:
        """What it has logged as an error; not what aiokafka says of a connection that it then makes again."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        errors = [line for line in lines if " ERROR " in line or " CRITICAL " in line]
        return [f"{self.node_id}: {line}" for line in errors if not any(each in line for each in PASSING)]

    def _signal(self, child: Child, number: signal.Signals) -> None:
        try:
            os.kill(child.pid, number)
        except ProcessLookupError:
            pass


class Fleet:
    """So many edges; `stop` leaves nothing running, whatever state they are in."""

    def __init__(self, bootstrap: str, folder: Path, count: int, **limits: Any) -> None:
        self.bootstrap = bootstrap
        self.tag = f"{random.getrandbits(32):08x}"  # client ids and topic names of a run of its own
        self.edges = [FleetEdge(f"{self.tag}-{number}", bootstrap, folder, limits) for number in range(count)]

    async def start(self) -> None:
        """All at once."""
        await topics_admin.apply(self.bootstrap, catalogue(), 1)
        await asyncio.gather(*(edge.start() for edge in self.edges))

    async def stop(self) -> None:
        """All at once."""
        await asyncio.gather(*(edge.stop() for edge in self.edges))

    def complaints(self) -> list[str]:
        """What any of them has logged as an error."""
        return [line for edge in self.edges for line in edge.complaints()]


@asynccontextmanager
async def fleet(bootstrap: str, folder: Path, count: int, **limits: Any) -> AsyncIterator[Fleet]:
    """Edges for one scenario."""
    running = Fleet(bootstrap, folder, count, **limits)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()


async def until(condition: Callable[[], Any], wait_s: float) -> bool:
    """Wait for a condition; whether it came true in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def happens(event: asyncio.Event, within_s: float) -> bool:
    """Wait for an event; whether it came in time."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def until_quiet(progress: Callable[[], int], goal: int, quiet_s: float) -> None:
    """Wait until `progress` has come to the goal, or has not moved for `quiet_s`."""
    loop = asyncio.get_running_loop()
    last, moved_at = progress(), loop.time()
    while last < goal and loop.time() - moved_at < quiet_s:
        await asyncio.sleep(POLL_S)
        if progress() != last:
            last, moved_at = progress(), loop.time()


def _config(node_id: str, bootstrap: str, port: int, http_port: int, limits: Mapping[str, Any]) -> EdgeConfig:
    table: dict[str, Any] = {
        "node_id": node_id,
        "dev": True,
        "kafka": {"bootstrap_servers": bootstrap},
        "listeners": [{"port": port}],
        "http": {"port": http_port, "page": False},
        "limits": LIMITS | dict(limits),
    }
    return make_config(table, "the scenario")


def _port() -> int:
    while True:  # bounded in practice: a handful of 10,000 are taken
        port = random.choice(PORTS)
        if is_port_free(port):
            return port
