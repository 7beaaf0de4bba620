"""MQTT over WebSocket (§6)."""

from __future__ import annotations

import aiohttp
import pytest
from support.conformance import Broker, Client, Clients, connect_frame, new_client_id, new_topic_name, string
from support.wire_client import WebSocketLink

from edge.wire import Connack, Connect, Disconnect, Pingreq, Pingresp, Publish, ReasonCode, Subscribe, encode
from edge.wire import SubscriptionRequest as Request


def _websocket(client: Client) -> aiohttp.ClientWebSocketResponse:
    assert isinstance(client.link, WebSocketLink)
    return client.link.websocket


@pytest.mark.statement("MQTT5-6.0.0-4", "MQTT5-6.0.0-3")
@pytest.mark.parametrize("offered", [("mqtt",), ("mqtt", "chat"), ("chat", "mqtt")])
async def test_the_server_answers_subprotocol_mqtt(broker: Broker, offered: tuple[str, ...]) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(broker.websocket_url, protocols=offered) as opened,
    ):
        assert opened.protocol == "mqtt"
        await opened.send_bytes(connect_frame(string(new_client_id())))
        assert (await opened.receive_bytes(timeout=10))[:1] == b"\x20"


@pytest.mark.statement("MQTT5-6.0.0-3")
@pytest.mark.parametrize("offered", [(), ("chat",)])
async def test_without_subprotocol_mqtt_no_mqtt_is_agreed_on(broker: Broker, offered: tuple[str, ...]) -> None:
    """The handshake is refused, or ends without the subprotocol: then it is the client's to close (RFC 6455)."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.ws_connect(broker.websocket_url, protocols=offered) as opened:
                assert opened.protocol is None
        except aiohttp.ClientError:
            pass


@pytest.mark.statement("MQTT5-6.0.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_go_over_websocket_as_over_tcp(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    client, other = await clients.connect(transport="websocket"), await clients.connect()
    qos = min(qos, client.maximum_qos)
    for subscriber, publisher in ((client, other), (other, client), (client, client)):
        await subscriber.subscribe(topic_name, qos=qos)
        await publisher.publish(topic_name, b"x", qos=qos, user_properties=(("name", "value"),))
        message = await subscriber.take_message()
        assert (message.payload, message.qos) == (b"x", qos)
        assert message.properties is not None
        assert message.properties.user_properties == (("name", "value"),)
        await subscriber.unsubscribe(topic_name)


@pytest.mark.statement("MQTT5-6.0.0-1")
@pytest.mark.parametrize("is_connected", [False, True])
async def test_a_text_frame_closes(clients: Clients, is_connected: bool) -> None:
    client = await clients.dial(transport="websocket")
    if is_connected:
        await client.send(Connect(5, new_client_id()))
        await client.receive(Connack)
    await _websocket(client).send_str("text")
    await client.send(Pingreq())
    assert [each for each in await client.until_closed() if not isinstance(each, Disconnect)] == []


@pytest.mark.statement("MQTT5-6.0.0-2")
async def test_packets_need_not_align_with_frames(clients: Clients) -> None:
    """Byte by byte; then several packets and a part of one in a frame."""
    topic_name = new_topic_name()
    client = await clients.dial(transport="websocket")
    publish = encode(Publish(topic_name.encode(), b"x"), 5)
    packets = (connect_frame(string(new_client_id())), encode(Subscribe(1, (Request(topic_name),)), 5), publish)
    for byte in b"".join(packets):
        await client.send(bytes((byte,)))
    assert (await client.receive(Connack)).reason_code is ReasonCode.SUCCESS
    assert (await client.take(Publish)).payload == b"x"
    await client.send(Pingreq(), publish, publish[:7])
    await client.take(Pingresp)
    await client.send(publish[7:])
    for _ in range(2):
        assert (await client.take(Publish)).payload == b"x"


@pytest.mark.statement("MQTT5-4.13.1-1", "MQTT5-6.0.0-1")
async def test_a_malformed_packet_ends_the_websocket(clients: Clients) -> None:
    client = await clients.connect(transport="websocket")
    await client.send(b"\x00\x00")
    await client.closed_for(ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)
