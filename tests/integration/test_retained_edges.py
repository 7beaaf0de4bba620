"""Retained messages through whole edges on a real Kafka: mosquitto, two edges that write at once, 100,000 names."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support.edges import edge_config, mqtt_address, until

from bridge.kafka_log import KafkaLog
from bridge.murmur2 import partition_for_key
from bridge.retained_names import NamePattern
from bridge.topics_admin import apply
from edge.client import MqttClient
from edge.node.node import EdgeNode
from schemas.catalogue import RETAINED, catalogue
from schemas.retained import RetainedMessage, encode_retained

NAMES = 100_000
pytestmark = [pytest.mark.kafka]


@asynccontextmanager
async def edges(bootstrap: str, count: int = 2) -> AsyncIterator[list[EdgeNode]]:
    """So many edges on one Kafka."""
    await apply(bootstrap, catalogue(), replication_factor=1)
    async with AsyncExitStack() as stack:
        nodes = []
        for number in range(count):
            node = EdgeNode(
                edge_config(node_id=f"edge-{number}-{uuid.uuid4().hex[:6]}", http=None), KafkaLog(bootstrap)
            )
            await node.start()
            stack.push_async_callback(node.stop)
            nodes.append(node)
        yield nodes


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, command
    return output.decode()


def at(node: EdgeNode, version: str) -> list[str]:
    host, port = mqtt_address(node)
    return ["-h", host, "-p", str(port), "-V", version]


def snapshot(node: EdgeNode, prefix: str) -> dict[bytes, object]:
    assert node.services.retained is not None
    view = node.services.retained.view.snapshot()
    return {name: held for name, held in view.items() if name.startswith(prefix.encode())}


@pytest.mark.peers("mosquitto_pub", "mosquitto_sub")
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
async def test_mosquittos_clients(kafka_bootstrap: str, version: str) -> None:
    """`mosquitto_pub -r` on one edge, `mosquitto_sub` on the other; then cleared with `-n`."""
    base = uuid.uuid4().hex
    async with edges(kafka_bootstrap) as (first, second):
        for name, payload in (("a", "1"), ("b", "2"), ("a", "3")):
            await run("mosquitto_pub", *at(first, version), "-t", f"{base}/{name}", "-m", payload, "-q", "1", "-r")
        listen = ["mosquitto_sub", *at(second, version), "-t", f"{base}/#", "-q", "1", "-F", "%t %p %q %r"]
        lines = sorted((await run(*listen, "-C", "2", "-W", "20")).splitlines())
        assert lines == [f"{base}/a 3 1 1", f"{base}/b 2 1 1"]
        await run("mosquitto_pub", *at(second, version), "-t", f"{base}/a", "-n", "-q", "1", "-r")
        listen[1:5] = at(first, version)[:4]
        assert (await run(*listen, "-C", "1", "-W", "20")).splitlines() == [f"{base}/b 2 1 1"]


@pytest.mark.slow
async def test_two_edges_write_the_same_names_and_restart(kafka_bootstrap: str) -> None:
    """Invariant I9: identical views, before and after both edges were restarted; the last acknowledged one counts."""
    base = uuid.uuid4().hex
    async with edges(kafka_bootstrap) as nodes:
        clients = [MqttClient(*mqtt_address(node), f"c{number}") for number, node in enumerate(nodes)]
        for client in clients:
            await client.connect()

        async def write(client: MqttClient, tag: str) -> None:
            for start in range(0, 3_000, 100):
                futures = [
                    client.publish(f"{base}/{number % 200}", f"{tag}{number}", 1, True)
                    for number in range(start, start + 100)
                ]
                await asyncio.gather(*(future for future in futures if future is not None))

        await asyncio.gather(write(clients[0], "a"), write(clients[1], "b"))
        for client in clients:
            await client.disconnect()
        views = [node.services.retained.view for node in nodes if node.services.retained is not None]
        await until(lambda: not views[0].misplaced and not views[1].misplaced, "misplaced ones are left")
        await until(lambda: snapshot(nodes[0], base) == snapshot(nodes[1], base))
        before = snapshot(nodes[0], base)
        assert len(before) == 200
    async with edges(kafka_bootstrap) as nodes:
        assert snapshot(nodes[0], base) == snapshot(nodes[1], base) == before


@pytest.mark.slow
async def test_100_000_names(kafka_bootstrap: str) -> None:
    """Loaded before the edge is ready, found by any filter, sent to a subscriber of all; the figures are printed."""
    base = uuid.uuid4().hex[:8]
    await apply(kafka_bootstrap, catalogue(), replication_factor=1)
    await _fill(kafka_bootstrap, base)
    async with edges(kafka_bootstrap, 1) as (node,):
        retained = node.services.retained
        assert retained is not None
        assert len(snapshot(node, base)) == NAMES
        print(f"\n{len(retained.view)} retained messages loaded in {retained.load_ms} ms")
        for topic_filter, count in ((f"{base}/#", NAMES), (f"{base}/07/+/t", 1_000), (f"{base}/+/500/t", 100)):
            pattern = NamePattern(topic_filter)
            began = time.perf_counter()
            names, _ = retained.view.search(pattern, pattern.start, NAMES, 2 * NAMES)
            print(f"match {topic_filter}: {len(names)} in {(time.perf_counter() - began) * 1000:.1f} ms")
            assert len(names) == count
        for qos in (0, 1):
            client = MqttClient(*mqtt_address(node), f"all-{qos}")
            inbox: list[bytes] = []
            done = asyncio.Event()
            client.on_message(lambda packet, inbox=inbox, done=done: _count(packet.topic_name_utf8, inbox, done))  # type: ignore[misc]
            await client.connect()
            began = time.perf_counter()
            await client.subscribe(f"{base}/#", qos)
            async with asyncio.timeout(60):
                await done.wait()
            print(f"QoS {qos}: {NAMES} sent and received in {time.perf_counter() - began:.1f} s")
            assert inbox == sorted(set(inbox))
            await client.disconnect()
    await _fill(kafka_bootstrap, base, clear=True)


def _count(name: bytes, inbox: list[bytes], done: asyncio.Event) -> None:
    inbox.append(name)
    if len(inbox) == NAMES:
        done.set()


async def _fill(bootstrap: str, base: str, *, clear: bool = False) -> None:
    """Write them past any edge, as an earlier life of the edges would have left them."""
    log = KafkaLog(bootstrap)
    await log.start()
    batches: dict[int, list[tuple[bytes, bytes | None, list[tuple[str, bytes]]]]] = {}
    now_ms = time.time_ns() // 1_000_000
    for number in range(NAMES):
        name = f"{base}/{number // 1_000:02}/{number % 1_000:03}/t".encode()
        headers = (("mqtt.client_id", b"device-%03d" % (number % 1_000)),)
        value = None if clear else b'{"temperature": 21.5, "humidity": 40}'
        message = RetainedMessage(name, value, headers, "mqtt.messages", 0, int(clear), now_ms + clear)
        record = encode_retained(message)
        batches.setdefault(partition_for_key(name, 12), []).append(record)
    for partition, records in batches.items():
        for start in range(0, len(records), 1_000):
            await log.submit(RETAINED, partition, records[start : start + 1_000])
    await log.stop()
