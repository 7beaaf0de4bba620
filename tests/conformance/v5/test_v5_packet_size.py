"""The client's Maximum Packet Size (§3.1.2.11.4): what is too large for it is left out, or not sent."""

from __future__ import annotations

import pytest
from support.conformance import (
    Client,
    Clients,
    connect_frame,
    frame,
    new_client_id,
    new_topic_name,
    properties,
    publish_frame,
    string,
)
from support.limited import durable, lacks_sessions

from edge.wire import (
    Connack,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
)

MINIMUM = 40  # enough for any CONNACK, too little for a sentence


def _within(client: Client, maximum: int) -> bool:
    """Every frame that came, header included."""
    return all(len(body) + (2 if len(body) < 128 else 3) <= maximum for _, body in client.frames)


async def _small(clients: Clients, maximum: int = MINIMUM) -> Client:
    return await clients.connect(properties=Properties(maximum_packet_size_bytes=maximum))


@pytest.mark.statement("MQTT5-3.1.2-24", "MQTT5-3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_that_is_too_large_is_left_out_for_that_client(clients: Clients, qos: int) -> None:
    """Exactly as large is not too large; others get it all the same."""
    topic_name = new_topic_name()
    client, other, publisher = await _small(clients, 200), await clients.connect(), await clients.connect()
    qos = min(qos, publisher.maximum_qos)
    for each in (client, other):
        await each.subscribe(topic_name, qos=qos)
    head = 3 + 2 + len(topic_name) + (2 if qos else 0) + 1
    for payload in (b"a" * (200 - head + 1), b"b" * (200 - head), b"c" * 1_000, b"d"):
        await publisher.publish(topic_name, payload, qos=qos)
    got = [(await client.take_message()).payload[:1] for _ in range(2)]
    assert got == [b"b", b"d"]
    assert [(await other.take_message()).payload[:1] for _ in range(4)] == [b"a", b"b", b"c", b"d"]
    assert _within(client, 200)


@pytest.mark.statement("MQTT5-3.1.2-25")
async def test_a_message_that_is_too_large_counts_as_delivered(clients: Clients) -> None:
    """It does not come when the client returns with a larger maximum, and takes no place in its Receive Maximum."""
    topic_name = new_topic_name()
    client = await durable(clients, maximum_packet_size_bytes=200, receive_maximum=1)
    publisher = await clients.connect()
    await client.subscribe(topic_name, qos=1)
    if await lacks_sessions(clients, client):
        return
    for payload in (bytes(1_000), b"small"):
        await publisher.publish(topic_name, payload, qos=1)
    assert (await client.take_message()).payload == b"small"
    await client.disconnect()
    client = await durable(clients, client.client_id)
    await publisher.publish(topic_name, b"next", qos=1)
    assert (await client.take_message()).payload == b"next"


@pytest.mark.statement("MQTT5-3.2.2-19", "MQTT5-3.2.2-20", "MQTT5-3.1.2-24")
@pytest.mark.parametrize("more", [(), (b"\x15", string("no such method"))], ids=["accepted", "refused"])
async def test_a_connack_keeps_within_the_maximum(clients: Clients, more: tuple[bytes, ...]) -> None:
    """One that cannot be said in 8 bytes is not sent."""
    client = await clients.dial()
    await client.send(connect_frame(string(new_client_id()), more=properties(b"\x27\0\0\0\x08", *more)), Disconnect())
    packets = await client.until_closed()
    assert all(isinstance(packet, Connack) for packet in packets)
    assert _within(client, 8)


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        pytest.param(
            publish_frame("a/b", b"\xff", 0x32, 1, properties(b"\1\1")),
            Puback,
            id="PUBACK",
            marks=pytest.mark.statement("MQTT5-3.4.2-2", "MQTT5-3.4.2-3"),
        ),
        pytest.param(
            publish_frame("a/b", b"\xff", 0x34, 1, properties(b"\1\1")),
            Pubrec,
            id="PUBREC",
            marks=pytest.mark.statement("MQTT5-3.5.2-2", "MQTT5-3.5.2-3"),
        ),
        pytest.param(
            Pubrec(999),
            Pubrel,
            id="PUBREL",
            marks=pytest.mark.statement("MQTT5-3.6.2-2", "MQTT5-3.6.2-3"),
        ),
        pytest.param(
            Pubrel(999),
            Pubcomp,
            id="PUBCOMP",
            marks=pytest.mark.statement("MQTT5-3.7.2-2", "MQTT5-3.7.2-3"),
        ),
        pytest.param(
            Subscribe(1, (SubscriptionRequest("a/" * 40 + "#"), SubscriptionRequest("$share/g/a/b"))),
            Suback,
            id="SUBACK",
            marks=pytest.mark.statement("MQTT5-3.9.2-1", "MQTT5-3.9.2-2"),
        ),
        pytest.param(
            frame(0xA2, b"\0\1\0", string("a/b"), string("never/subscribed")),
            Unsuback,
            id="UNSUBACK",
            marks=pytest.mark.statement("MQTT5-3.11.2-1", "MQTT5-3.11.2-2"),
        ),
        pytest.param(
            b"\x00\x00",
            Disconnect,
            id="DISCONNECT",
            marks=pytest.mark.statement("MQTT5-3.14.2-3", "MQTT5-3.14.2-4", "MQTT5-3.1.2-24"),
        ),
        pytest.param(
            publish_frame("a/#"),
            Disconnect,
            id="DISCONNECT-for-a-topic-name",
            marks=pytest.mark.statement("MQTT5-3.14.2-3", "MQTT5-3.14.2-4"),
        ),
    ],
)
async def test_an_answer_keeps_within_the_maximum(
    clients: Clients, packet: Packet | bytes, answer: type[Packet]
) -> None:
    """Whatever a server would like to say of what went wrong. A DISCONNECT need not be said at all."""
    client = await _small(clients)
    if answer is Disconnect:
        await client.send(packet)
        await client.closed_for()
    elif client.maximum_qos == 2 or answer not in (Pubrec, Pubrel, Pubcomp):
        await client.send(packet)
        await client.receive(answer)
    assert _within(client, MINIMUM)
