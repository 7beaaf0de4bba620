"""Receive Maximum, both ways (§3.3.4, §4.9)."""

from __future__ import annotations

import pytest
from support.conformance import Client, Clients, new_topic_name
from support.limited import durable, lacks_qos_2, lacks_sessions

from edge.wire import Disconnect, Properties, Puback, Pubcomp, Publish, Pubrec, Pubrel, ReasonCode


async def _publisher(clients: Clients, topic_name: str, count: int, qos: int) -> Client:
    """A publisher that has published payloads 1 to `count`."""
    publisher = await clients.connect()
    for number in range(1, count + 1):
        await publisher.publish(topic_name, b"%d" % number, qos=qos)
    return publisher


@pytest.mark.statement("MQTT5-3.3.4-9", "MQTT5-4.9.0-1", "MQTT5-4.9.0-2")
@pytest.mark.parametrize("receive_maximum", [1, 3])
async def test_no_more_unacknowledged_messages_than_the_client_takes(clients: Clients, receive_maximum: int) -> None:
    """All of them come in order, as the acknowledgements go."""
    topic_name = new_topic_name()
    client = await clients.connect(properties=Properties(receive_maximum=receive_maximum))
    await client.subscribe(topic_name, qos=1)
    await _publisher(clients, topic_name, 10, qos=1)
    unacknowledged = [await client.message() for _ in range(receive_maximum)]
    await client.ping()
    for number in range(1, 11):
        message = unacknowledged.pop(0)
        assert int(message.payload) == number
        await client.send(Puback(message.packet_id))
        if number + receive_maximum <= 10:
            unacknowledged.append(await client.message())
        await client.ping()


@pytest.mark.statement("MQTT5-3.3.4-9", "MQTT5-4.9.0-2")
async def test_a_qos_2_message_counts_until_pubcomp(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.connect(properties=Properties(receive_maximum=1))
    if await lacks_qos_2(client):
        return
    await client.subscribe(topic_name, qos=2)
    await _publisher(clients, topic_name, 3, qos=2)
    for number in (1, 2, 3):
        message = await client.message()
        assert int(message.payload) == number
        await client.ping()
        await client.send(Pubrec(message.packet_id))
        assert (await client.receive(Pubrel)).packet_id == message.packet_id
        await client.ping()
        await client.send(Pubcomp(message.packet_id))


@pytest.mark.statement("MQTT5-4.9.0-2", "MQTT5-4.4.0-2")
async def test_a_refusing_pubrec_gives_the_place_back(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.connect(properties=Properties(receive_maximum=1))
    if await lacks_qos_2(client):
        return
    await client.subscribe(topic_name, qos=2)
    await _publisher(clients, topic_name, 3, qos=2)
    for number in (1, 2, 3):
        message = await client.message()
        assert int(message.payload) == number
        await client.send(Pubrec(message.packet_id, ReasonCode.UNSPECIFIED_ERROR))
    await client.ping()


@pytest.mark.statement("MQTT5-3.3.4-10", "MQTT5-4.9.0-3")
async def test_a_full_receive_maximum_delays_only_publish_of_qos_1_and_2(clients: Clients) -> None:
    """All answers come; whether a QoS 0 message does is the server's choice (§4.9)."""
    topic_name = new_topic_name()
    client = await clients.connect(properties=Properties(receive_maximum=1))
    await client.subscribe(topic_name, qos=1)
    await _publisher(clients, topic_name, 2, qos=1)
    first = await client.message()
    assert not (await client.subscribe(new_topic_name())).reason_codes[0].is_error
    assert not (await client.publish(new_topic_name(), b"x", qos=1)).is_error
    assert not (await client.unsubscribe(new_topic_name())).reason_codes[0].is_error
    await client.ping()
    await client.send(Puback(first.packet_id))
    assert (await client.message()).payload == b"2"


@pytest.mark.statement("MQTT5-3.3.4-9", "MQTT5-4.4.0-1", "MQTT5-4.9.0-1")
async def test_a_lower_receive_maximum_holds_from_the_next_connection(clients: Clients) -> None:
    """What is sent again counts."""
    topic_name = new_topic_name()
    client = await durable(clients, receive_maximum=3)
    await client.subscribe(topic_name, qos=1)
    if await lacks_sessions(clients, client):
        return
    await _publisher(clients, topic_name, 5, qos=1)
    sent = [await client.message() for _ in range(3)]
    await client.close()
    client = await durable(clients, client.client_id, receive_maximum=1)
    for number in range(1, 6):
        message = await client.message()
        assert int(message.payload) == number
        assert message.dup == (number <= len(sent))
        await client.ping()
        await client.send(Puback(message.packet_id))
    await client.ping()


@pytest.mark.statement("MQTT5-3.3.4-7", "MQTT5-3.3.4-8", "MQTT5-4.9.0-3")
async def test_the_server_takes_as_many_as_its_receive_maximum_says(clients: Clients) -> None:
    """QoS 2 without PUBREL fills it up; everything else is still answered.

    One more is an error: DISCONNECT 0x93, or a PUBREC that refuses it.
    """
    topic_name = new_topic_name()
    client = await clients.connect()
    if await lacks_qos_2(client):
        return
    maximum = client.connack.properties.receive_maximum or 65_535
    count = min(maximum, 200)
    name = topic_name.encode()
    for packet_id in range(1, count + 1):
        await client.send(Publish(name, b"x", 2, packet_id=packet_id))
        assert (await client.receive(Pubrec)).packet_id == packet_id
    await client.subscribe(new_topic_name())
    await client.ping()
    if count < maximum:
        return
    await client.send(Pubrel(1))
    assert (await client.receive(Pubcomp)).packet_id == 1
    await client.send(Publish(name, b"x", 2, packet_id=1))
    assert (await client.receive(Pubrec)).packet_id == 1
    await client.send(Publish(name, b"x", 2, packet_id=count + 1))
    answer = await client.receive(object)
    assert isinstance(answer, Disconnect | Pubrec)
    assert answer.reason_code in (ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, ReasonCode.QUOTA_EXCEEDED)
    assert await client.until_closed() == []
