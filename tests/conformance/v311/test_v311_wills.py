"""Wills (§3.1.2.5 to §3.1.2.7, §3.14)."""

from __future__ import annotations

import pytest
from conformance.v311.flows import messages_until, raw_connect, subscribed
from support.conformance import Client, Clients, new_client_id, new_topic_name

from edge.wire import Connack, Disconnect, Pingreq, Publish, Will

ENDS = pytest.mark.parametrize("ends", ["hangs up", "breaks the protocol", "is taken over"])


async def _end(clients: Clients, client: Client, ends: str) -> None:
    """The connection ends without DISCONNECT."""
    if ends == "hangs up":
        await client.close()
    elif ends == "breaks the protocol":
        await client.send(b"\x36\x05\x00\x01a\x00\x01")  # QoS 3
        await client.until_closed()
    else:
        await (await clients.connect(client.client_id)).disconnect()


async def _comes_alone(clients: Clients, witness: Client, topic_name: str, payload: bytes, qos: int) -> None:
    """The will is the one message that comes."""
    message = await witness.take_message()
    assert message == Publish(topic_name.encode(), payload, qos, packet_id=message.packet_id)
    await _comes_not(clients, witness, topic_name)


async def _comes_not(clients: Clients, witness: Client, topic_name: str) -> None:
    """No will has come, nor comes before messages that are published now, whatever its QoS."""
    publisher = await clients.connect()
    for qos in (0, 1, 2):
        await publisher.publish(topic_name, b"marker", qos)
        assert (await witness.take_message()).payload == b"marker"


@pytest.mark.statement("MQTT311-3.1.2-8", "MQTT311-3.1.2-10", "MQTT311-3.1.2-16", "MQTT311-3.1.2-9")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
@ENDS
async def test_a_will_is_published_once_when_the_connection_ends(
    clients: Clients, durable_id: str, ends: str, qos: int, clean: bool
) -> None:
    topic_name = new_topic_name()
    witness = await subscribed(clients, topic_name, qos=2)
    client = await clients.connect(durable_id, clean_start=clean, will=Will(topic_name, b"gone", qos))
    await _end(clients, client, ends)
    await _comes_alone(clients, witness, topic_name, b"gone", qos)


@pytest.mark.statement("MQTT311-3.1.2-8", "MQTT311-3.1.2-24")
async def test_a_will_is_published_when_the_client_falls_silent(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await subscribed(clients, topic_name, qos=1)
    client = await clients.connect(keep_alive_s=1, will=Will(topic_name, b"silent", 1))
    assert await client.until_closed(15) == []
    await _comes_alone(clients, witness, topic_name, b"silent", 1)


@pytest.mark.statement("MQTT311-3.14.4-3", "MQTT311-3.1.2-10", "MQTT311-3.1.2-8")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_disconnect_discards_the_will(clients: Clients, durable_id: str, qos: int, clean: bool) -> None:
    topic_name = new_topic_name()
    witness = await subscribed(clients, topic_name, qos=2)
    client = await clients.connect(durable_id, clean_start=clean, will=Will(topic_name, b"gone", qos, retain=True))
    await client.disconnect()
    await _comes_not(clients, witness, topic_name)
    again = await clients.connect(durable_id, clean_start=clean)  # nor does the session bring it back
    await again.close()
    await _comes_not(clients, witness, topic_name)


@pytest.mark.statement("MQTT311-3.14.4-3", "MQTT311-3.14.4-1", "MQTT311-3.14.4-2")
async def test_what_comes_behind_disconnect_is_not_processed(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await subscribed(clients, topic_name, qos=1)
    client = await clients.connect(will=Will(topic_name, b"gone", 1))
    await client.send(Disconnect(), Pingreq(), Publish(topic_name.encode(), b"late", 1, packet_id=1))
    assert await client.until_closed() == []
    await _comes_not(clients, witness, topic_name)


@pytest.mark.statement("MQTT311-3.1.2-12")
@pytest.mark.parametrize("clean", [True, False])
@ENDS
async def test_without_will_flag_nothing_is_published(
    clients: Clients, durable_id: str, ends: str, clean: bool
) -> None:
    """Nor the will of the session's connection before."""
    topic_name = new_topic_name()
    witness = await subscribed(clients, topic_name, qos=2)
    first = await clients.connect(durable_id, clean_start=clean, will=Will(topic_name, b"first", 1))
    await first.disconnect()
    client = await clients.connect(durable_id, clean_start=clean)
    await _end(clients, client, ends)
    await _comes_not(clients, witness, topic_name)


@pytest.mark.statement("MQTT311-3.1.2-10", "MQTT311-3.1.2-8")
async def test_each_connection_brings_its_own_will(clients: Clients, durable_id: str) -> None:
    topic_name = new_topic_name()
    witness = await subscribed(clients, topic_name, qos=2)
    for number in range(3):
        payload = f"will {number}".encode()
        client = await clients.connect(durable_id, clean_start=False, will=Will(topic_name, payload, 1))
        await client.close()
        assert (await witness.take_message()).payload == payload
    await _comes_not(clients, witness, topic_name)


@pytest.mark.statement("MQTT311-3.1.2-17", "MQTT311-3.1.2-9", "MQTT311-3.3.1-5", "MQTT311-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_will_retain_1_is_published_retained(clients: Clients, retained_name: str, qos: int) -> None:
    witness = await subscribed(clients, retained_name, qos=2)
    client = await clients.connect(will=Will(retained_name, b"gone", qos, retain=True))
    await client.close()
    assert (await witness.take_message()).retain is False
    message = await (await subscribed(clients, retained_name, qos=2)).take_message()
    assert message == Publish(retained_name.encode(), b"gone", qos, True, packet_id=message.packet_id)


@pytest.mark.statement("MQTT311-3.1.2-16", "MQTT311-3.3.1-12")
async def test_will_retain_0_is_not_retained(clients: Clients, retained_name: str) -> None:
    """And leaves what is retained."""
    await (await clients.connect()).publish(retained_name, b"kept", 1, retain=True)
    witness = await subscribed(clients, retained_name, qos=1)
    assert (await witness.take_message()).retain is True
    await (await clients.connect(will=Will(retained_name, b"gone", 1))).close()
    assert (await witness.take_message()).payload == b"gone"
    message = await (await subscribed(clients, retained_name, qos=1)).take_message()
    assert (message.payload, message.retain) == (b"kept", True)


@pytest.mark.statement("MQTT311-3.1.2-17", "MQTT311-3.3.1-10", "MQTT311-3.3.1-11")
async def test_an_empty_retained_will_clears(clients: Clients, retained_name: str) -> None:
    publisher = await clients.connect()
    await publisher.publish(retained_name, b"online", 1, retain=True)
    witness = await subscribed(clients, retained_name, qos=1)
    assert (await witness.take_message()).payload == b"online"
    await (await clients.connect(will=Will(retained_name, b"", 1, retain=True))).close()
    assert (await witness.take_message()).payload == b""
    late = await subscribed(clients, retained_name, qos=1)
    await publisher.publish(retained_name, b"marker", 1)
    assert (await late.take_message()).payload == b"marker"


@pytest.mark.statement("MQTT311-3.1.3-1", "MQTT311-3.1.2-9", "MQTT311-3.1.3-10")
async def test_the_will_is_read_from_its_place_in_the_payload(clients: Clients) -> None:
    """Client identifier, will topic, will message, user name, password."""
    topic_name, payload = new_topic_name() + "/ü€𝄞", b"\x00\xff any \xed\xa0\x80 bytes"
    witness, client = await subscribed(clients, topic_name, qos=1), await clients.dial()
    fields = (new_client_id().encode(), topic_name.encode(), payload)
    await client.send(raw_connect(0x0E, *fields))
    assert await client.receive(Connack) == Connack()
    await client.close()
    await _comes_alone(clients, witness, topic_name, payload, 1)


@pytest.mark.statement("MQTT311-3.1.2-8", "MQTT311-3.1.2-5", "MQTT311-4.5.0-1")
async def test_a_will_is_queued_for_sessions_like_any_message(clients: Clients, durable_id: str) -> None:
    topic_name = new_topic_name()
    await (await subscribed(clients, topic_name, qos=1, client_id=durable_id)).disconnect()
    witness = await subscribed(clients, topic_name, qos=1)
    await (await clients.connect(will=Will(topic_name, b"gone", 1))).close()
    await witness.take_message()
    again = await clients.connect(durable_id, clean_start=False)
    assert (await again.take_message()).payload == b"gone"


@pytest.mark.statement("MQTT311-3.1.4-5", "MQTT311-3.1.2-8")
async def test_a_refused_connect_leaves_no_will(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness, client = await subscribed(clients, topic_name, qos=2), await clients.dial()
    await client.send(raw_connect(0x0C, b"", topic_name.encode(), b"never"))
    await client.until_closed()
    await _comes_not(clients, witness, topic_name)


@pytest.mark.statement("MQTT311-3.1.0-2", "MQTT311-3.1.2-8")
async def test_a_second_connect_publishes_the_first_ones_will(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await subscribed(clients, topic_name, qos=1)
    client = await clients.connect(will=Will(topic_name, b"first", 1))
    await client.send(raw_connect(0x0E, client.client_id.encode(), topic_name.encode(), b"second"))
    await client.until_closed()
    assert [each.payload for each in await _until_marker(clients, witness, topic_name)] == [b"first"]


async def _until_marker(clients: Clients, witness: Client, topic_name: str) -> list[Publish]:
    first = await witness.take_message()
    await (await clients.connect()).publish(topic_name, b"marker", 1)
    return [first, *await messages_until(witness, b"marker")]
