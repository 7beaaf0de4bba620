"""MQTT over WebSocket (§6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from conformance.v311.flows import grant, raw_connect, subscribed
from support.conformance import Broker, Client, Clients, new_client_id, new_topic_name
from support.wire_client import WebSocketLink

from edge.wire import Connack, Pingreq, Pingresp, Publish, Subscribe, SubscriptionRequest, Will, encode


@asynccontextmanager
async def _websocket(broker: Broker, *offered: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(broker.websocket_url, protocols=offered) as opened,
    ):
        yield opened


def _frames(client: Client) -> aiohttp.ClientWebSocketResponse:
    assert isinstance(client.link, WebSocketLink)
    return client.link.websocket


@pytest.mark.statement("MQTT311-6.0.0-3", "MQTT311-6.0.0-4")
@pytest.mark.parametrize("offered", [("mqtt",), ("mqtt", "chat"), ("chat", "mqtt")])
async def test_the_server_selects_mqtt(broker: Broker, offered: tuple[str, ...]) -> None:
    async with _websocket(broker, *offered) as websocket:
        assert websocket.protocol == "mqtt"
        await websocket.send_bytes(raw_connect(0x02, new_client_id().encode()))
        assert await websocket.receive_bytes(timeout=10) == b"\x20\x02\x00\x00"


@pytest.mark.statement("MQTT311-6.0.0-1", "MQTT311-3.3.4-1", "MQTT311-7.1.1-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("sender", "receiver"), [("websocket", "websocket"), ("tcp", "websocket"), ("websocket", "tcp")]
)
async def test_messages_go_over_websocket_as_over_tcp(clients: Clients, qos: int, sender: str, receiver: str) -> None:
    topic_name = new_topic_name()
    subscriber, publisher = await clients.connect(transport=receiver), await clients.connect(transport=sender)
    await grant(subscriber, topic_name, qos=qos)
    for number in range(5):
        await publisher.publish(topic_name, f"{number}".encode(), qos)
        message = await subscriber.take_message()
        assert (message.payload, message.qos) == (f"{number}".encode(), qos)
    await subscriber.disconnect()


@pytest.mark.statement("MQTT311-6.0.0-1")
@pytest.mark.parametrize("when", ["first", "later"])
async def test_a_text_frame_ends_the_connection(clients: Clients, when: str) -> None:
    client = await clients.dial(transport="websocket")
    if when == "later":
        await client.connect(new_client_id())
    await _frames(client).send_str("text")
    await client.send(Pingreq())
    assert await client.until_closed() == []


@pytest.mark.statement("MQTT311-6.0.0-2")
async def test_packets_may_be_split_over_frames_byte_by_byte(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.dial(transport="websocket")
    packets = (
        raw_connect(0x02, new_client_id().encode()),
        encode(Subscribe(1, (SubscriptionRequest(topic_name),)), 4),
        encode(Publish(topic_name.encode(), b"x"), 4),
    )
    for byte in b"".join(packets):
        await client.send(bytes((byte,)))
    assert await client.receive(Connack) == Connack()
    assert (await client.take_message()).payload == b"x"


@pytest.mark.statement("MQTT311-6.0.0-2", "MQTT311-3.2.0-1")
async def test_a_frame_may_hold_many_packets_and_a_part_of_one(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.dial(transport="websocket")
    publish = encode(Publish(topic_name.encode(), b"x" * 1_000), 4)
    await client.send(
        raw_connect(0x02, new_client_id().encode()),
        Subscribe(1, (SubscriptionRequest(topic_name),)),
        Pingreq(),
        publish[:500],
    )
    assert await client.receive(Connack) == Connack()
    await client.take(Pingresp)
    await client.send(publish[500:] + b"\xc0")
    assert (await client.take_message()).payload == b"x" * 1_000
    await client.send(b"\x00")
    await client.take(Pingresp)


@pytest.mark.statement("MQTT311-6.0.0-2", "MQTT311-7.1.1-1")
async def test_a_large_message_crosses_websocket(clients: Clients) -> None:
    topic_name, payload = new_topic_name(), bytes(range(256)) * 600
    client = await clients.connect(transport="websocket")
    await grant(client, topic_name, qos=1)
    await client.publish(topic_name, payload, 1)
    assert (await client.take_message()).payload == payload


@pytest.mark.statement("MQTT311-3.1.2-8", "MQTT311-3.14.4-3", "MQTT311-3.14.4-1")
@pytest.mark.parametrize("says_goodbye", [True, False])
async def test_closing_the_websocket_is_no_disconnect(clients: Clients, says_goodbye: bool) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    witness = await subscribed(clients, topic_name, qos=1)
    client = await clients.connect(transport="websocket", will=Will(topic_name, b"gone", 1))
    await (client.disconnect() if says_goodbye else client.close())
    if not says_goodbye:
        assert (await witness.take_message()).payload == b"gone"
    await publisher.publish(topic_name, b"marker", 1)
    assert (await witness.take_message()).payload == b"marker"


@pytest.mark.statement("MQTT311-4.8.0-1", "MQTT311-6.0.0-1")
@pytest.mark.parametrize("data", [b"\x36\x05\x00\x01a\x00\x01", b"\xf0\x00"], ids=["QoS 3", "type 15"])
async def test_a_violation_ends_the_websocket(clients: Clients, data: bytes) -> None:
    client = await clients.connect(transport="websocket")
    await client.send(data)
    assert await client.until_closed() == []
