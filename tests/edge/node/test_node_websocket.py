"""MQTT over WebSocket: the subprotocol, binary frames only, packets across frames and several in one."""

from __future__ import annotations

import asyncio
import gc

import aiohttp
import pytest
from support.edges import http_address, memory_edge, until, values_of
from support.wire_client import WebSocketLink, connected, dial

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode
from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
    encode,
)


def url(node: EdgeNode) -> str:
    host, port = http_address(node)
    return f"http://{host}:{port}/mqtt"


@pytest.mark.parametrize("protocols", [(), ("mqttv5",), ("chat", "amqp")])
async def test_the_subprotocol_is_required(protocols: tuple[str, ...]) -> None:
    """[MQTT5-6.0.0-3] [MQTT311-6.0.0-3]"""
    async with memory_edge() as node, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url(node), protocols=protocols)
        assert refused.value.status == 400
        assert node.services.connections == set()


async def test_the_subprotocol_is_answered() -> None:
    """[MQTT5-6.0.0-4]; and compression is never agreed to."""
    async with (
        memory_edge() as node,
        aiohttp.ClientSession() as session,
        session.ws_connect(url(node), protocols=("other", "mqtt"), compress=15) as websocket,
    ):
        assert websocket.protocol == "mqtt"
        assert websocket.compress == 0


async def test_no_upgrade_no_mqtt() -> None:
    async with memory_edge() as node, aiohttp.ClientSession() as session:
        async with session.get(url(node), headers={"Sec-WebSocket-Protocol": "mqtt"}) as response:
            assert response.status in (400, 426)
        async with session.get(url(node)) as response:
            assert response.status == 400
        assert node.services.connections == set()


async def test_a_text_frame_closes() -> None:
    """[MQTT5-6.0.0-1] [MQTT311-6.0.0-1]; it is a lost connection: the will is sent."""
    log = MemoryLog()
    async with (
        memory_edge(log) as node,
        connected(http_address(node), "c", 5, "websocket", will=Will("w", b"gone", 1)) as client,
    ):
        assert isinstance(client.link, WebSocketLink)
        await client.link.websocket.send_str("hello")
        await client.until_closed()
        await until(lambda: values_of(log, topic_name="w") == [b"gone"])
        await until(lambda: not node.services.connections)


async def test_packets_across_frames_and_several_in_one() -> None:
    """[MQTT5-6.0.0-2] [MQTT311-6.0.0-2]"""
    async with memory_edge() as node, dial(http_address(node), 5, "websocket") as client:
        stream = b"".join(
            encode(packet, 5)
            for packet in (
                Connect(5, "c", keep_alive_s=60),
                Publish(b"a", b"x" * 300, 1, packet_id=1),
                Publish(b"a", b"y", 1, packet_id=2),
                Pingreq(),
            )
        )
        for at in range(0, len(stream), 7):
            await client.send(stream[at : at + 7])
        await client.receive(Connack)
        answers = [await client.receive(object) for _ in range(3)]
        assert [each for each in answers if isinstance(each, Puback)] == [Puback(1), Puback(2)]
        await client.send(b"".join(encode(Publish(b"a", b"z", 1, packet_id=n), 5) for n in range(3, 53)))
        assert [(await client.receive(Puback)).packet_id for _ in range(50)] == list(range(3, 53))


async def test_empty_frames_are_ignored() -> None:
    async with memory_edge() as node, connected(http_address(node), "c", 5, "websocket") as client:
        assert isinstance(client.link, WebSocketLink)
        for _ in range(100):
            await client.link.websocket.send_bytes(b"")
        await client.send(Pingreq())
        await client.receive(Pingresp)


async def test_websocket_pings_are_answered() -> None:
    async with memory_edge() as node, connected(http_address(node), "c", 5, "websocket") as client:
        assert isinstance(client.link, WebSocketLink)
        await client.link.websocket.ping()
        await client.send(Pingreq())
        await client.receive(Pingresp)


async def test_one_packet_of_a_megabyte() -> None:
    async with memory_edge() as node, connected(http_address(node), "c", 5, "websocket") as client:
        packet = Publish(b"a", bytes(1_000_000 - 10), 1, packet_id=1)
        assert len(encode(packet, 5)) == 1_000_000
        await client.send(Subscribe(1, (SubscriptionRequest("a", 1),)))
        await client.receive(Suback)
        await client.send(packet)
        got = [await client.receive(object) for _ in range(2)]
        assert {type(each) for each in got} == {Puback, Publish}


async def test_a_frame_that_is_too_large_ends_the_connection() -> None:
    async with memory_edge() as node, connected(http_address(node), "c", 5, "websocket") as client:
        await client.send(bytes(2_000_000))
        await client.until_closed()
        await until(lambda: not node.services.connections)


@pytest.mark.parametrize("how", ["normal", "abort", "disconnect"])
async def test_every_end_leaves_nothing(how: str) -> None:
    async with memory_edge() as node:
        before = len(asyncio.all_tasks())
        for _ in range(3):
            async with connected(http_address(node), "c", 5, "websocket") as client:
                assert isinstance(client.link, WebSocketLink)
                await client.send(Subscribe(1, (SubscriptionRequest("a"),)))
                await client.receive(Suback)
                if how == "disconnect":
                    await client.send(Disconnect())
                    await client.until_closed()
                elif how == "abort":
                    connection = client.link.websocket._response.connection
                    assert connection is not None
                    assert connection.transport is not None
                    connection.transport.abort()
            await until(lambda: not node.services.connections)
        await until(lambda: len(asyncio.all_tasks()) <= before, "tasks are left")
        assert node.services.table.statistics()["subscriptions"] == 0


async def test_a_client_that_vanishes_while_it_is_written_to() -> None:
    """No forgotten exception of the task that writes: the error log stays empty."""
    async with memory_edge() as node:
        async with connected(http_address(node), "slow", 5, "websocket") as slow:
            assert isinstance(slow.link, WebSocketLink)
            await slow.send(Subscribe(1, (SubscriptionRequest("a"),)))
            await slow.receive(Suback)
            async with connected(http_address(node), "writer", 5, "websocket") as writer:
                for number in range(40):
                    await writer.send(Publish(b"a", bytes(200_000)))
                    if number == 20:
                        connection = slow.link.websocket._response.connection
                        assert connection is not None
                        assert connection.transport is not None
                        connection.transport.abort()
                await writer.send(Pingreq())
                await writer.receive(Pingresp)
        await until(lambda: not node.services.connections)
    gc.collect()
    await asyncio.sleep(0)


async def test_a_slow_reader_is_bounded() -> None:
    """What a client does not read waits in bounded buffers; QoS 0 beyond them is dropped and counted."""
    async with (
        memory_edge(limits={"buffer_messages_max": 20}) as node,
        connected(http_address(node), "slow", 5, "websocket") as slow,
    ):
        await slow.send(Subscribe(1, (SubscriptionRequest("a"),)))
        await slow.receive(Suback)
        async with connected(http_address(node), "writer", 5, "websocket") as writer:
            for number in range(300):
                await writer.send(Publish(b"a", bytes(100_000)))
                if number % 50 == 49:
                    await writer.send(Publish(b"b", b"", 1, packet_id=1))
                    await writer.receive(Puback)
        handler = node.services.clients["slow"]
        await until(lambda: handler.engine.statistics().get("dropped", 0) > 0, "nothing is dropped")
        assert handler.transport is not None
        assert handler.transport.get_write_buffer_size() < 8_000_000


async def test_take_over_between_transports() -> None:
    async with (
        memory_edge() as node,
        connected(http_address(node), "me", 5, "websocket") as old,
        connected(node.mqtt_addresses[0], "me"),
    ):
        [packet] = await old.until_closed()
        assert isinstance(packet, Disconnect)
        assert packet.reason_code is ReasonCode.SESSION_TAKEN_OVER
