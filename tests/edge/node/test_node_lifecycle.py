"""A node's life: start, Kafka away and back, thousands of clients come and go, stop."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
from pathlib import Path

import aiohttp
import pytest
from support.edges import (
    ErrorLog,
    address_of,
    edge_config,
    http_address,
    memory_edge,
    mqtt_address,
    until,
    values_of,
)
from support.wire_client import Transport, connected, dial

from bridge.log import LogUnavailable
from bridge.memory_log import MemoryLog
from edge.client import MqttClient
from edge.handler.protocol import EdgeProtocolHandler
from edge.node import node as node_module
from edge.node.node import EdgeNode
from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
    encode,
)

TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "websocket"])


class ShiftedTime:
    """The node's clock, which the test may put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def time(self) -> float:
        return time.time()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ShiftedTime:
    shifted = ShiftedTime()
    monkeypatch.setattr(node_module, "time", shifted)
    return shifted


async def readyz(node: EdgeNode) -> int:
    host, port = http_address(node)
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/readyz") as response:
        return response.status


@TRANSPORTS
@pytest.mark.parametrize("version", [4, 5])
async def test_a_stop_says_goodbye(version: int, transport: Transport) -> None:
    """0x8B for 5.0, the will for both [MQTT5-3.1.2-8] [MQTT311-3.1.2-8]; a tombstone for the other nodes."""
    log = MemoryLog()
    node = EdgeNode(edge_config(), log)
    await node.start()
    async with (
        connected(address_of(node, transport), "c", version, transport, will=Will("w", b"gone", 1)) as client,
        dial(address_of(node, transport), version, transport) as stranger,
    ):
        stopping = asyncio.create_task(node.stop())
        packets = await client.until_closed()
        assert await stranger.until_closed() == []
        await stopping
    if version == 5:
        [packet] = packets
        assert isinstance(packet, Disconnect)
        assert packet.reason_code is ReasonCode.SERVER_SHUTTING_DOWN
    else:
        assert packets == []
    assert values_of(log, topic_name="w") == [b"gone"]
    assert log.records("headwater.nodes", 0)[-1].value is None
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await asyncio.open_connection(*mqtt_address_before(node))


def mqtt_address_before(node: EdgeNode) -> tuple[str, int]:
    """Where the node listened: the kernel's port 0 is refused in any case."""
    return ("127.0.0.1", 1) if not node._servers or not node._servers[0].sockets else mqtt_address(node)


async def test_what_is_in_flight_at_the_stop_is_in_the_log() -> None:
    log = MemoryLog()
    node = EdgeNode(edge_config(), log)
    await node.start()
    async with connected(mqtt_address(node)) as client:
        await client.send(*(Publish(b"a", b"%d" % n, 1, packet_id=n) for n in range(1, 101)))
        await until(lambda: node.services.counters.messages_received == 100)
        await node.stop()
        acknowledged = [each.packet_id for each in await client.until_closed() if isinstance(each, Puback)]
    assert len(values_of(log, topic_name="a")) == 100
    assert acknowledged == list(range(1, len(acknowledged) + 1))


async def test_a_stop_with_clients_that_read_nothing_is_bounded() -> None:
    node = EdgeNode(edge_config(), MemoryLog())
    await node.start()
    reader, writer = await asyncio.open_connection(*mqtt_address(node), limit=1)
    writer.write(encode(Connect(5, "deaf", keep_alive_s=60), 5))
    await until(lambda: "deaf" in node.services.clients)
    began = time.monotonic()
    await node.stop()
    assert time.monotonic() - began < 6
    writer.close()
    assert reader is not None


async def test_a_start_that_fails_leaves_nothing() -> None:
    class Away(MemoryLog):
        async def start(self) -> None:
            raise LogUnavailable("nobody is there")

    before = len(asyncio.all_tasks())
    with pytest.raises(LogUnavailable):
        await EdgeNode(edge_config(), Away()).start()
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_stop_while_kafka_is_away_leaves_nothing_pending() -> None:
    """A CONNECT that waits for its claim, a SUBSCRIBE for its record, the end of a session for its own."""
    log = MemoryLog()
    before = len(asyncio.all_tasks())
    node = EdgeNode(edge_config(), log)
    await node.start()
    stored = Properties(session_expiry_interval_s=600)
    async with (
        connected(mqtt_address(node), "waits", properties=stored) as client,
        connected(mqtt_address(node), "goes", properties=stored),
        dial(mqtt_address(node)) as late,
    ):
        log.pause()
        await late.send(Connect(5, "late", keep_alive_s=60))
        await client.send(Subscribe(1, (SubscriptionRequest("a", 1),)))
        node.services.clients["goes"].disconnect(ReasonCode.SERVER_BUSY, "go")
        await until(lambda: len(node.services.steps) == 2 and node.services.endings)
        await node.stop(1.0)
        assert not node.services.steps
        assert not node.services.endings
    await until(lambda: len(asyncio.all_tasks()) <= before, lambda: f"left: {asyncio.all_tasks()}")


async def test_a_node_without_listeners_that_is_stopped_before_its_start() -> None:
    node = EdgeNode(edge_config(), MemoryLog())
    assert not node.is_ready()
    await node.stop()


async def test_kafka_away_is_told_after_5_s_and_closes_clients_after_20_s(clock: ShiftedTime) -> None:
    """Design section 6: new CONNECTs get 0x88 (3.1.1: 3), nothing is acknowledged, then the clients move (0x89)."""
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node), "c", will=Will("w", b"", 1)) as client:
        assert await readyz(node) == 200
        log.pause()
        await client.send(Publish(b"a", b"x", 1, packet_id=1), Pingreq())
        await client.receive(Pingresp)  # and no PUBACK
        clock.ahead_s = 5.1
        assert await readyz(node) == 503
        for version in (5, 4):
            async with dial(mqtt_address(node), version) as late:
                connack = await late.connect("late")
                assert connack.reason_code is ReasonCode.SERVER_UNAVAILABLE
                assert await late.until_closed() == []
        await client.send(Pingreq())
        await client.receive(Pingresp)  # the clients that are here stay
        clock.ahead_s = 20.1
        packets = await client.until_closed()
        [packet] = packets
        assert isinstance(packet, Disconnect)
        assert packet.reason_code is ReasonCode.SERVER_BUSY
        clock.ahead_s = 0.0
        log.resume()
        await until(lambda: values_of(log, topic_name="a") == [b"x"])
        await until(node.is_ready)
        assert await readyz(node) == 200
        async with connected(mqtt_address(node), "late"):
            pass


async def test_kafka_stops_and_goes_on_without_loss() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node), "c") as client:
        await client.send(Subscribe(1, (SubscriptionRequest("a", 1),)))
        await client.receive(Suback)
        log.pause()
        await client.send(*(Publish(b"a", b"%d" % n, 1, packet_id=n) for n in range(1, 31)), Pingreq())
        await client.receive(Pingresp)
        log.resume()
        packets = [await client.receive(object) for _ in range(60)]
        assert [each.packet_id for each in packets if isinstance(each, Puback)] == list(range(1, 31))
        assert [each.payload for each in packets if isinstance(each, Publish)] == [b"%d" % n for n in range(1, 31)]


async def test_a_subscribe_while_kafka_is_away_waits_for_it() -> None:
    """SUBACK comes only when the positions are known; with the memory log they always are."""
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node), "c") as client:
        log.pause()
        await client.send(Subscribe(1, (SubscriptionRequest("a", 1),)))
        await client.receive(Suback)
        log.resume()
        await client.send(Publish(b"a", b"x", 1, packet_id=1))
        assert {type(await client.receive(object)) for _ in range(2)} == {Puback, Publish}


async def wave(node: EdgeNode, transport: Transport, count: int, first: int) -> None:
    """Clients that come, subscribe, publish, and go in one of five ways."""

    async def one(number: int) -> None:
        version = 4 + number % 2
        async with dial(address_of(node, transport), version, transport) as client:
            if number % 5 == 4:  # never connects
                await client.send(b"\x10\x40")
                return
            await client.connect(f"c{number}", will=Will("w", b"x"))
            await client.send(
                Subscribe(1, (SubscriptionRequest(f"t/{number % 17}/#", 1), SubscriptionRequest("all"))),
                Publish(b"t/%d/x" % (number % 17), b"x" * 100, 1, packet_id=1),
            )
            while not isinstance(await client.receive(object), Suback):
                pass  # messages of others may come first
            if number % 5 == 1:
                await client.send(Disconnect())
                await client.until_closed()
            elif number % 5 == 2:
                await client.send(b"\x00\x00")
                await client.until_closed()
            elif number % 5 == 3:  # leaves a SUBSCRIBE unanswered
                await client.send(Subscribe(2, (SubscriptionRequest("late/#"),)))

    for start in range(first, first + count, 25):
        await asyncio.gather(*(one(number) for number in range(start, min(start + 25, first + count))))
    await until(lambda: not node.services.connections, "connections are left")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@TRANSPORTS
async def test_everything_comes_back_to_baseline(transport: Transport) -> None:
    """Invariant I13: after 500 clients of all kinds no task, descriptor, handler, filter or partition is left."""
    async with memory_edge() as node:
        await wave(node, transport, 50, 0)
        await until(lambda: node.services.table.statistics()["subscriptions"] == 0)
        tasks, open_now = len(asyncio.all_tasks()), descriptors()
        gc.collect()
        handlers = sum(type(each).__name__ == "EdgeProtocolHandler" for each in gc.get_objects())
        await wave(node, transport, 500, 1_000)
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "tasks are left")
        services = node.services
        assert services.clients == {}
        await until(lambda: services.table.statistics()["subscriptions"] == 0, "subscriptions are left")
        await until(lambda: services.deliverer.positions() == {}, "partitions are left")
        assert services.deliverer.statistics()["filters"] == 0
        assert services.access.gate.statistics()["unauthenticated"] == 0
        assert services.waiting_for_room == set()
        assert services.dirty == []
        await until(lambda: services.publisher.statistics()["buffered_bytes"] == 0)
        assert descriptors() <= open_now + 5
        gc.collect()
        left = sum(type(each).__name__ == "EdgeProtocolHandler" for each in gc.get_objects())
        assert left <= handlers + 30, "handlers are kept alive"
        assert os.getpid() > 0


async def deaf(node: EdgeNode) -> asyncio.StreamWriter:
    """A client that writes and does not read, with small buffers of its own."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, mqtt_address(node))
    _, writer = await asyncio.open_connection(sock=connection, limit=1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return writer


def small_buffers(handler: EdgeProtocolHandler) -> None:
    """The kernel takes little for this client: what waits is soon the edge's."""
    assert handler.transport is not None
    handler.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)


async def test_a_client_that_asks_and_never_listens_costs_bounded_memory() -> None:
    """PINGREQ after PINGREQ, no PINGRESP read: what waits for the socket must not grow with what was asked."""
    async with memory_edge() as node:
        writer = await deaf(node)
        writer.write(encode(Connect(5, "deaf", keep_alive_s=60), 5))
        await until(lambda: "deaf" in node.services.clients)
        handler = node.services.clients["deaf"]
        small_buffers(handler)
        flood = encode(Pingreq(), 5) * 32_768
        total = 0
        try:
            async with asyncio.timeout(10):
                while total < 64_000_000 and handler.is_open:
                    writer.write(flood)
                    total += len(flood)
                    await asyncio.wait_for(writer.drain(), 1.0)
        except (TimeoutError, ConnectionError):
            pass  # the edge reads no more, or has hung up: both are right
        if handler.transport is not None:
            assert handler.transport.get_write_buffer_size() < 4_000_000, f"after {total} bytes of PINGREQ"
        writer.transport.abort()
        await until(lambda: not node.services.connections)


async def test_a_client_that_publishes_and_never_listens_costs_bounded_memory() -> None:
    async with memory_edge() as node:
        writer = await deaf(node)
        writer.write(encode(Connect(4, "deaf", keep_alive_s=60), 4))
        await until(lambda: "deaf" in node.services.clients)
        handler = node.services.clients["deaf"]
        small_buffers(handler)
        flood = encode(Publish(b"a", b"", 1, packet_id=1), 4) * 5_000
        try:
            async with asyncio.timeout(3):
                while handler.is_open:
                    writer.write(flood)
                    await asyncio.wait_for(writer.drain(), 1.0)
        except (TimeoutError, ConnectionError):
            pass
        if handler.transport is not None:
            assert handler.transport.get_write_buffer_size() < 4_000_000
        writer.transport.abort()
        await until(lambda: not node.services.connections)


async def test_the_backbone_full_pauses_publishers_and_drops_nothing_of_qos_1() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node, MqttClient(*mqtt_address(node), "w", protocol_version=4) as writer:
        log.pause()
        futures = [writer.publish("a", bytes(900_000), 1) for _ in range(120)]
        await until(lambda: node.services.publisher.is_full, "the publisher never fills", 20)
        await until(lambda: node.services.waiting_for_room)
        log.resume()
        await asyncio.gather(*[future for future in futures if future is not None])
        await until(lambda: not node.services.waiting_for_room)
    assert len(values_of(log, topic_name="a")) == 120


async def test_a_handler_that_fails_ends_its_client_alone(error_log: ErrorLog, monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_edge() as node, connected(mqtt_address(node), "good") as good:
        async with connected(mqtt_address(node), "bad") as bad:

            async def broken(*_: object) -> None:
                raise RuntimeError("planted")

            monkeypatch.setattr(node.services.clients["bad"], "handle_subscribe", broken)
            await bad.send(Subscribe(1, (SubscriptionRequest("a"),)))
            [packet] = await bad.until_closed()
            assert isinstance(packet, Disconnect)
            assert packet.reason_code is ReasonCode.UNSPECIFIED_ERROR
        await good.send(Pingreq())
        await good.receive(Pingresp)
    assert len(error_log.lines) == 1
    assert "planted" in error_log.lines.pop()


async def test_a_failing_connect_is_told_and_closed(error_log: ErrorLog, monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_edge() as node:

        class Broken:
            async def authenticate(self, _: object) -> None:
                raise RuntimeError("planted")

            async def stop(self) -> None: ...

        monkeypatch.setattr(node.services.access, "authenticator", Broken())
        for version in (4, 5):
            async with dial(mqtt_address(node), version) as client:
                await client.send(Connect(version, "c", will=Will("w")))
                packets = await client.until_closed(5)
                assert all(isinstance(each, Connack) and each.reason_code.is_error for each in packets)
        assert node.services.clients == {}
    assert len(error_log.lines) == 2
    error_log.lines.clear()
