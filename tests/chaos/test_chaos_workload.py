"""The workload and the verdict over two edges on a log in memory: no fault, no violation."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

from support.chaos_checks import INVARIANTS, Run, verdict
from support.chaos_history import Recorder, read, replay
from support.chaos_workload import Workload
from support.edges import edge_config, mqtt_address
from support.simulation_checks import committed

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode

ACL = [
    {"permit": "deny", "action": "all", "filter": "secret/#"},
    {"permit": "allow", "action": "all", "filter": "#"},
]


async def test_nothing_is_violated_without_a_fault(tmp_path: Path) -> None:
    log, recorder = MemoryLog(), Recorder(tmp_path / "history.jsonl")
    async with AsyncExitStack() as stack:
        stack.callback(recorder.close)
        edges = []
        for number in range(2):
            node = EdgeNode(edge_config(node_id=f"edge-{number}", acl=ACL), log)
            await node.start()
            stack.push_async_callback(node.stop)
            edges.append(
                SimpleNamespace(node_id=f"edge-{number}", to_clients=SimpleNamespace(address=mqtt_address(node)))
            )
        addresses = [edge.to_clients.address for edge in edges]
        site = SimpleNamespace(
            recorder=recorder, edges=edges, addresses=lambda first: [*addresses[first:], *addresses[:first]]
        )
        load = Workload(site, 1)  # type: ignore[arg-type]
        await load.start()
        await asyncio.sleep(8)
        load.storm()
        await asyncio.sleep(2)
        assert await load.stop() == []
        retained = await load.probe()
        recorder.write("end")
        await load.leave()
        records = {position: committed(held.records) for position, held in log._partitions.items()}
    recorded = replay(read(tmp_path / "history.jsonl"))
    found = verdict(Run(recorded, records, tuple(retained), tuple(load.wanted().items())))
    assert found == {name: [] for name in INVARIANTS}
    assert len(recorded.history.receipts) > 500
