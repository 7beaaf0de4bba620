"""The workload and the verdict over two edges on a log in memory: no violation without a fault, nor by poison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from support.chaos_checks import INVARIANTS, Run, verdict
from support.chaos_history import Recorder, read, replay
from support.chaos_poison import poison_records, without_poison
from support.chaos_site import DENY_SECRETS
from support.chaos_workload import Workload
from support.edges import edge_config, mqtt_address
from support.simulation_checks import committed

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode
from schemas.catalogue import catalogue


@dataclass(slots=True)
class Stage:
    """Two edges on one log in memory, and the workload on them."""

    log: MemoryLog
    load: Workload
    nodes: list[EdgeNode]
    folder: Path
    recorder: Recorder

    async def end(self) -> dict[str, list[str]]:
        """All come to rest; the verdict."""
        assert await self.load.stop() == []
        retained = await self.load.probe()
        self.recorder.write("end")
        await self.load.leave()
        records = {position: committed(held.records) for position, held in self.log._partitions.items()}
        lines = read(self.folder / "history.jsonl")
        run = Run(replay(lines), without_poison(records), tuple(retained), tuple(self.load.wanted().items()))
        assert len(run.recorded.history.receipts) > 500
        return verdict(run)


@asynccontextmanager
async def stage(folder: Path, log: MemoryLog) -> AsyncIterator[Stage]:
    """The workload has begun."""
    recorder = Recorder(folder / "history.jsonl")
    async with AsyncExitStack() as stack:
        stack.callback(recorder.close)
        nodes = [EdgeNode(edge_config(node_id=f"edge-{number}", acl=DENY_SECRETS), log) for number in range(2)]
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.stop)
        addresses = [mqtt_address(node) for node in nodes]
        edges = [
            SimpleNamespace(node_id=f"edge-{number}", to_clients=SimpleNamespace(address=address))
            for number, address in enumerate(addresses)
        ]
        site = SimpleNamespace(
            recorder=recorder,
            edges=edges,
            credentials={},
            addresses=lambda first: [*addresses[first:], *addresses[:first]],
        )
        load = Workload(site, 1)  # type: ignore[arg-type]
        await load.start()
        yield Stage(log, load, nodes, folder, recorder)


async def test_nothing_is_violated_without_a_fault(tmp_path: Path) -> None:
    async with stage(tmp_path, MemoryLog()) as running:
        await asyncio.sleep(8)
        running.load.storm()
        await asyncio.sleep(2)
        assert await running.end() == {name: [] for name in INVARIANTS}


def put_poison(log: MemoryLog) -> None:
    for spec in catalogue():
        for number, (key, value, headers) in enumerate(poison_records(spec)):
            log.put(spec.name, number % spec.partitions, key, value, headers=headers)


async def test_poison_harms_nobody(tmp_path: Path) -> None:
    """It lies there before the edges start, and comes while they run."""
    log = MemoryLog()
    put_poison(log)
    async with stage(tmp_path, log) as running:
        await asyncio.sleep(3)
        put_poison(log)
        await asyncio.sleep(6)
        assert await running.end() == {name: [] for name in INVARIANTS}
