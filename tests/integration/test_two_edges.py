"""Two edges as real processes on a real Kafka: what goes in at one comes out at the other, for every kind of client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from support.edges import Up, is_running, until, up

from bridge.partitioning import RouteTable
from edge.client import MqttClient, ReconnectPolicy
from edge.client.errors import MqttClientError
from edge.wire import Properties, ReasonCode
from schemas.routes import DEFAULT_ROUTES

pytestmark = pytest.mark.kafka
WAIT_S = 20.0
ROUTES = RouteTable(DEFAULT_ROUTES)


@pytest.fixture(scope="module")
def edges(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("two_edges"), kafka_bootstrap) as running:
        yield running


@pytest.fixture
def prefix() -> str:
    """A first level of the test's own: the Kafka is shared."""
    return f"t{uuid.uuid4().hex[:12]}"


def client(edges: Up, number: int, **options: Any) -> MqttClient:
    return MqttClient(*edges.edges[number].mqtt, **options)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("transport", ["tcp", "websocket"])
async def test_in_at_one_edge_out_at_the_other(edges: Up, prefix: str, version: int, qos: int, transport: Any) -> None:
    address = edges.edges[1].mqtt if transport == "tcp" else edges.edges[1].http
    async with (
        client(edges, 0, protocol_version=version) as writer,
        MqttClient(*address, protocol_version=version, transport=transport) as exact,
        client(edges, 1, protocol_version=version) as wildcard,
        client(edges, 0, protocol_version=version) as same_edge,
    ):
        inboxes = [each.inbox() for each in (exact, wildcard, same_edge)]
        assert await exact.subscribe(f"{prefix}/a/b", qos) == (ReasonCode(qos),)
        await wildcard.subscribe([f"{prefix}/+/b", "other/#"], qos)
        await same_edge.subscribe(f"{prefix}/#", qos)
        for number in range(50):
            writer.publish(f"{prefix}/a/b", b"%d" % number, qos)
        writer.publish(f"{prefix}/a/c", b"not for all", qos)
        for inbox, count in zip(inboxes, (50, 50, 51), strict=True):  # no order between topic names
            got = await inbox.get_many(count, WAIT_S)
            others = [packet.payload for packet in got if packet.topic_name_utf8 != f"{prefix}/a/b".encode()]
            assert others == [b"not for all"] * (count - 50)
            got = [packet for packet in got if packet.payload not in others]
            assert [packet.payload for packet in got] == [b"%d" % number for number in range(50)]
            assert {packet.qos for packet in got} == {qos}
        assert not len(inboxes[0])


async def test_properties_travel(edges: Up, prefix: str) -> None:
    async with client(edges, 0) as writer, client(edges, 1) as reader:
        inbox = reader.inbox()
        await reader.subscribe(f"{prefix}/p", 1)
        properties = Properties(
            payload_format_indicator=1,
            message_expiry_interval_s=600,
            content_type="text/plain",
            response_topic="answers",
            correlation_data=b"\x00\xff",
            user_properties=(("b", "2"), ("a", "1"), ("b", "3")),
        )
        future = writer.publish(f"{prefix}/p", "é", 1, properties=properties)
        assert future is not None
        assert await future is ReasonCode.SUCCESS
        got = (await inbox.get(WAIT_S)).properties
        assert got is not None
        assert 590 <= (got.message_expiry_interval_s or 0) <= 600
        got.message_expiry_interval_s = 600
        assert got == properties


async def test_a_plain_kafka_record_reaches_a_subscriber(edges: Up, prefix: str, kafka_bootstrap: str) -> None:
    """Only a key: the topic name comes from the route's reverse template."""
    async with client(edges, 1) as reader:
        inbox = reader.inbox()
        await reader.subscribe(f"{prefix}/from/kafka", 1)
        producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap)
        await producer.start()
        try:
            name = f"{prefix}/from/kafka"
            await producer.send_and_wait("mqtt.messages", b"plain", key=name.encode())
        finally:
            await producer.stop()
        packet = await inbox.get(WAIT_S)
        assert (packet.topic_name_utf8, packet.payload) == (name.encode(), b"plain")


async def read_back(bootstrap: str, kafka_topic: str, partitions: int) -> list[Any]:
    """Every record of a Kafka topic."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    try:
        all_of_it = [TopicPartition(kafka_topic, partition) for partition in range(partitions)]
        consumer.assign(all_of_it)
        ends = await consumer.end_offsets(all_of_it)
        await consumer.seek_to_beginning()
        records: list[Any] = []
        async with asyncio.timeout(60):
            while any([await consumer.position(each) < ends[each] for each in all_of_it]):
                for part in (await consumer.getmany(timeout_ms=500)).values():
                    records += part
        return records
    finally:
        await consumer.stop()


async def test_the_record_in_kafka(edges: Up, prefix: str, kafka_bootstrap: str) -> None:
    """Readable headers, the key of the route's template, the partition of Kafka's own partitioner."""
    async with client(edges, 0, client_id="dev-1") as writer:
        future = writer.publish(f"sensors/{prefix}/d7/temp", b"21.5", 1, properties=Properties(content_type="text/csv"))
        assert future is not None
        await future
    [record] = [
        each for each in await read_back(kafka_bootstrap, "mqtt.sensors", 12) if each.key == f"{prefix}/d7".encode()
    ]
    assert record.value == b"21.5"
    assert record.partition == ROUTES.destination(f"sensors/{prefix}/d7/temp").partition
    assert list(record.headers) == [
        ("mqtt.topic", f"sensors/{prefix}/d7/temp".encode()),
        ("mqtt.client_id", b"dev-1"),
        ("content-type", b"text/csv"),
    ]


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found, f"these tests need {name} as a real client: apt-get install mosquitto-clients"
    return found


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1"])
@pytest.mark.parametrize("form", ["{}/x/y", "{}/+/y", "{}/#"])
def test_mosquitto_clients(edges: Up, prefix: str, version: str, qos: str, form: str) -> None:
    host, port = edges.edges[1].mqtt
    common = ["-V", version, "-q", qos]
    command = [tool("stdbuf"), "-oL", tool("mosquitto_sub"), "-h", host, "-p", str(port), *common]
    command += ["-t", form.format(prefix), "-C", "3", "-W", "20", "-d", "-F", "MESSAGE %t %q %p"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    for line in reader.stdout:
        if line.startswith("Subscribed"):
            break
    host, port = edges.edges[0].mqtt
    for number in range(3):
        command = [tool("mosquitto_pub"), "-h", host, "-p", str(port), *common]
        subprocess.run([*command, "-t", f"{prefix}/x/y", "-m", f"m{number}"], check=True, timeout=20)
    out, _ = reader.communicate(timeout=25)
    messages = [line for line in out.splitlines() if line.startswith("MESSAGE")]
    assert messages == [f"MESSAGE {prefix}/x/y {qos} m{number}" for number in range(3)]
    assert reader.returncode == 0


@pytest.mark.parametrize("version", list(MQTTProtocolVersion))
def test_paho(edges: Up, prefix: str, version: MQTTProtocolVersion) -> None:
    subscribed, arrived = threading.Event(), threading.Event()
    payloads: list[bytes] = []

    def on_message(_: Any, __: Any, message: Any) -> None:
        payloads.append(message.payload)
        if len(payloads) == 20:
            arrived.set()

    made = [paho.Client(CallbackAPIVersion.VERSION2, protocol=version) for _ in range(2)]
    reader, writer = made
    reader.on_subscribe = lambda *_: subscribed.set()
    reader.on_message = on_message
    try:
        for each, edge in zip(made, edges.edges, strict=True):
            each.connect(*edge.mqtt)
            each.loop_start()
        reader.subscribe(f"{prefix}/#", 1)
        assert subscribed.wait(WAIT_S)
        infos = [writer.publish(f"{prefix}/a", b"%d" % number, 1) for number in range(20)]
        for info in infos:
            info.wait_for_publish(WAIT_S)
            assert info.is_published()
        assert arrived.wait(WAIT_S)
    finally:
        for each in made:
            each.disconnect()
            each.loop_stop()
    assert payloads == [b"%d" % number for number in range(20)]


async def consumed_by(bootstrap: str, node_id: str) -> list[tuple[str, int]]:
    """What `headwater nodes --json` says of a node."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "edge.cli.app", "nodes", "--json", "--kafka", bootstrap), stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    [node] = [each for each in json.loads(out) if each["node_id"] == node_id]
    return [(each["kafka_topic"], each["partition"]) for each in node["consumed"]]


async def committed_by(bootstrap: str, node_id: str) -> list[tuple[str, int]]:
    """What Kafka's own group tools show."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(f"headwater.node.{node_id}")
        return [(each.topic, each.partition) for each, found in offsets.items() if found.offset >= 0]
    finally:
        await admin.close()


async def until_both_say(bootstrap: str, node_id: str, expected: list[tuple[str, int]]) -> None:
    """Heartbeats come every 2 s, commits every 5 s: bounded by 30 s."""
    async with asyncio.timeout(30):
        while await committed_by(bootstrap, node_id) != expected:  # noqa: ASYNC110 - another process: no event
            await asyncio.sleep(0.2)
        while await consumed_by(bootstrap, node_id) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def test_a_node_reads_what_its_filters_can_match_and_no_more(
    edges: Up, prefix: str, kafka_bootstrap: str
) -> None:
    """One partition for a filter that fixes the key levels, none more for 1,000 subscribers, none after the last."""
    node_id = edges.edges[1].node_id
    await until_both_say(kafka_bootstrap, node_id, [])
    topic_filter = f"sensors/{prefix}/dev/#"
    partition = ROUTES.destination(f"sensors/{prefix}/dev/x").partition
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(client(edges, 1))
        await first.subscribe(topic_filter, 1)
        await until_both_say(kafka_bootstrap, node_id, [("mqtt.sensors", partition)])
        many = [client(edges, 1) for _ in range(1_000)]
        inboxes = [each.inbox() for each in many]
        for start in range(0, 1_000, 50):
            await asyncio.gather(*(each.connect() for each in many[start : start + 50]))
            await asyncio.gather(*(each.subscribe(topic_filter, 1) for each in many[start : start + 50]))
        await first.unsubscribe(topic_filter)
        async with client(edges, 0) as writer:
            future = writer.publish(f"sensors/{prefix}/dev/x", b"to all", 1)
            assert future is not None
            await future
        assert {(await inbox.get(WAIT_S)).payload for inbox in inboxes} == {b"to all"}
        await until_both_say(kafka_bootstrap, node_id, [("mqtt.sensors", partition)])
        for start in range(0, 1_000, 100):
            await asyncio.gather(*(each.disconnect() for each in many[start : start + 100]))
    await until_both_say(kafka_bootstrap, node_id, [])


class Device:
    """Publishes QoS 1 until it is told to stop; remembers what was acknowledged."""

    def __init__(self, edges: Up, number: int, prefix: str) -> None:
        self.name = f"{prefix}/{number}"
        one, two = (edges.edges[(number + at) % 2].mqtt for at in range(2))
        self.client = MqttClient(
            *one,
            client_id=f"{prefix}-{number}",
            reconnect=ReconnectPolicy(addresses=(two,), wait_first_s=0.1, wait_max_s=1.0),
        )
        self.acknowledged: set[bytes] = set()
        self.sent = 0

    async def run(self, stop: asyncio.Event) -> None:
        await self.client.connect()
        while not stop.is_set():
            payload = f"{self.name} {self.sent}".encode()
            self.sent += 1
            future = self.client.publish(self.name, payload, 1)
            assert future is not None
            try:
                if await future is ReasonCode.SUCCESS:
                    self.acknowledged.add(payload)
            except MqttClientError:
                continue
        await self.client.disconnect()


@pytest.mark.slow
async def test_kill_9_of_an_edge_loses_no_acknowledged_message(
    prefix: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    with up(tmp_path, kafka_bootstrap) as edges:
        devices = [Device(edges, number, prefix) for number in range(200)]
        stop = asyncio.Event()
        running = [asyncio.create_task(device.run(stop)) for device in devices]
        await until(lambda: all(len(device.acknowledged) >= 3 for device in devices), "no traffic", 40)
        os.kill(edges.edges[0].pid, 9)
        before = {device: len(device.acknowledged) for device in devices}
        await until(
            lambda: all(len(device.acknowledged) > before[device] + 3 for device in devices), "no come-back", 40
        )
        stop.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*running)
        acknowledged = set[bytes]().union(*(device.acknowledged for device in devices))
    found = [each.value for each in await read_back(kafka_bootstrap, "mqtt.messages", 12)]
    assert len(acknowledged) > 1_000
    assert acknowledged - set(found) == set()


async def until_gone(pids: list[int]) -> None:
    await until(lambda: not any(map(is_running, pids)), f"of {pids} some still run", 30)


async def test_a_clean_stop_of_up(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Exit code 0, no child left, clients hear why (0x8B, or 0x9C while another edge is up), the nodes leave."""
    running = Up(tmp_path, kafka_bootstrap)
    lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    reader = client(running, 1)
    reader.on_close(lost.set_result)
    await reader.connect()
    code = await asyncio.to_thread(running.stop)
    assert code == 0, (tmp_path / "up.log").read_text()
    said = str(await lost)
    assert "shutting down" in said or "being drained" in said, said
    await until_gone(running.pids)


@pytest.mark.slow
async def test_kill_9_of_up_leaves_nothing(tmp_path: Path) -> None:
    """Kafka and the edges end with their parent, however it goes; and the data can be used again."""
    running = await asyncio.to_thread(Up, tmp_path, None, 1)
    assert len(running.pids) == 2
    async with client(running, 0) as writer:
        future = writer.publish("kept", b"x", 1)
        assert future is not None
        await future
    running.kill()
    await until_gone(running.pids)
    again = await asyncio.to_thread(Up, tmp_path, None, 1)
    try:
        found = [each.value for each in await read_back(again.bootstrap, "mqtt.messages", 12)]
    finally:
        assert await asyncio.to_thread(again.stop) == 0
    assert b"x" in found
    await until_gone(again.pids)
