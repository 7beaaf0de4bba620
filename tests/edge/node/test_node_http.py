"""`/livez`, `/readyz`, `/metrics`."""

from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from support.edges import http_address, memory_edge, mqtt_address
from support.wire_client import connected

from edge.node.node import EdgeNode
from edge.wire import Puback, Publish


async def fetch(node: EdgeNode, path: str) -> tuple[int, str, str]:
    host, port = http_address(node)
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as response:
        return response.status, response.headers["Content-Type"], await response.text()


async def test_alive_and_ready() -> None:
    async with memory_edge() as node:
        assert await fetch(node, "/livez") == (
            200,
            "application/json; charset=utf-8",
            '{"status": "alive", "node": "edge-test"}',
        )
        status, _, body = await fetch(node, "/readyz")
        assert (status, body) == (200, '{"status": "ready", "node": "edge-test"}')


async def test_metrics_are_prometheus_text_and_count() -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        await client.send(Publish(b"a", b"x", 1, packet_id=1))
        await client.receive(Puback)
        status, content_type, text = await fetch(node, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert values["headwater_connections"] == 1
    assert values["headwater_clients"] == 1
    assert values["headwater_connections_total"] == 1
    assert values["headwater_messages_received_total"] == 1
    assert values["headwater_bytes_received_total"] > 20
    labels = [sample.labels for family in text_string_to_metric_families(text) for sample in family.samples]
    assert all(label == {"node": "edge-test"} for label in labels)


async def test_what_is_not_there() -> None:
    async with memory_edge(http={"port": 0, "page": False}) as node:
        assert (await fetch(node, "/"))[0] == 404
        assert (await fetch(node, "/../../etc/passwd"))[0] == 404
    async with memory_edge(http=None) as node:
        assert node.http_address is None


async def test_the_page_serves_its_files_and_no_others() -> None:
    async with memory_edge() as node:
        status, content_type, _ = await fetch(node, "/")
        assert (status, content_type.partition(";")[0]) == (200, "text/html")
        for path in ("/node.py", "/%2e%2e/node.py", "/..%2fnode%2fnode.py", "/nothing"):
            assert (await fetch(node, path))[0] == 404
