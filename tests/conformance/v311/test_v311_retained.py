"""Retained messages (§3.3.1.3)."""

from __future__ import annotations

import pytest
from conformance.v311.flows import grant, subscribed
from support.conformance import Client, Clients, new_topic_name

from edge.wire import Publish, SubscriptionRequest


async def _has_none(clients: Clients, topic_name: str) -> None:
    """A new subscription gets the next live message first."""
    client, publisher = await subscribed(clients, topic_name, qos=2), await clients.connect()
    for qos in (0, 1, 2):
        await publisher.publish(topic_name, b"marker", qos)
        message = await client.take_message()
        assert (message.payload, message.retain) == (b"marker", False)


async def _holds(clients: Clients, topic_name: str, payload: bytes, qos: int) -> None:
    client = await subscribed(clients, topic_name, qos=2)
    message = await client.take_message()
    assert message == Publish(topic_name.encode(), payload, qos, True, packet_id=message.packet_id)
    await client.ping()


@pytest.mark.statement("MQTT311-3.3.1-5", "MQTT311-3.3.1-6", "MQTT311-3.3.1-8", "MQTT311-3.8.4-6")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_retained_message_comes_with_a_new_subscription(
    clients: Clients, retained_name: str, qos: int, granted: int
) -> None:
    await (await clients.connect()).publish(retained_name, b"kept", qos, retain=True)
    client = await subscribed(clients, retained_name, qos=granted)
    message = await client.take_message()
    assert message == Publish(retained_name.encode(), b"kept", min(qos, granted), True, packet_id=message.packet_id)


@pytest.mark.statement("MQTT311-3.3.1-6", "MQTT311-3.3.1-5")
async def test_only_the_last_retained_message_comes(clients: Clients, retained_name: str) -> None:
    publisher = await clients.connect()
    for number in range(5):
        await publisher.publish(retained_name, f"{number}".encode(), 1, retain=True)
    await _holds(clients, retained_name, b"4", 1)


@pytest.mark.statement("MQTT311-3.3.1-7", "MQTT311-3.3.1-5")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_retained_message_replaces_one_of_any_qos(clients: Clients, retained_name: str, qos: int) -> None:
    publisher = await clients.connect()
    for old in (0, 1, 2):
        await publisher.publish(retained_name, b"old", old, retain=True)
        await publisher.publish(retained_name, b"new", qos, retain=True)
        await publisher.ping()
        await _holds(clients, retained_name, b"new", qos)


@pytest.mark.statement("MQTT311-3.3.1-6", "MQTT311-3.3.1-8", "MQTT311-4.7.1-2", "MQTT311-4.7.1-3")
@pytest.mark.parametrize("wildcard", ["/+", "/#"])
async def test_every_matching_name_brings_its_retained_message(clients: Clients, wildcard: str) -> None:
    base, publisher = new_topic_name(), await clients.connect()
    names = [f"{base}/{number}" for number in range(10)]
    for topic_name in names:
        await publisher.publish(topic_name, topic_name.encode(), 1, retain=True)
    client = await subscribed(clients, base + wildcard, qos=1)
    messages = [await client.take_message() for _ in names]
    assert {each.payload.decode() for each in messages} == set(names)
    assert all(each.retain and each.topic_name_utf8 == each.payload for each in messages)
    await client.ping()
    for topic_name in names:
        await publisher.publish(topic_name, b"", 1, retain=True)


@pytest.mark.statement("MQTT311-3.3.1-9", "MQTT311-3.3.1-5")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_established_subscription_gets_it_with_retain_0(
    clients: Clients, retained_name: str, qos: int
) -> None:
    client, publisher = await subscribed(clients, retained_name, qos=2), await clients.connect()
    await publisher.publish(retained_name, b"kept", qos, retain=True)
    message = await client.take_message()
    assert message == Publish(retained_name.encode(), b"kept", qos, False, packet_id=message.packet_id)
    await _holds(clients, retained_name, b"kept", qos)


@pytest.mark.statement("MQTT311-3.3.1-10", "MQTT311-3.3.1-11", "MQTT311-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_empty_payload_clears_and_is_passed_on(clients: Clients, retained_name: str, qos: int) -> None:
    publisher = await clients.connect()
    await publisher.publish(retained_name, b"kept", 1, retain=True)
    client = await subscribed(clients, retained_name, qos=2)
    assert (await client.take_message()).payload == b"kept"
    await publisher.publish(retained_name, b"", qos, retain=True)
    message = await client.take_message()
    assert message == Publish(retained_name.encode(), b"", qos, False, packet_id=message.packet_id)
    await _has_none(clients, retained_name)


@pytest.mark.statement("MQTT311-3.3.1-11", "MQTT311-3.3.1-10")
async def test_an_empty_retained_message_is_not_stored(clients: Clients, retained_name: str) -> None:
    """Where nothing was retained before, too."""
    client, publisher = await subscribed(clients, retained_name), await clients.connect()
    await publisher.publish(retained_name, b"", 1, retain=True)
    message = await client.take_message()
    assert (message.payload, message.retain) == (b"", False)
    await _has_none(clients, retained_name)


@pytest.mark.statement("MQTT311-3.3.1-12")
@pytest.mark.parametrize("payload", [b"other", b""])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_retain_0_neither_replaces_nor_removes(
    clients: Clients, retained_name: str, qos: int, payload: bytes
) -> None:
    client, publisher = await subscribed(clients, retained_name, qos=2), await clients.connect()
    await publisher.publish(retained_name, b"kept", 1, retain=True)
    await publisher.publish(retained_name, payload, qos)
    assert {(await client.take_message()).payload for _ in range(2)} == {b"kept", payload}
    await _holds(clients, retained_name, b"kept", 1)


@pytest.mark.statement("MQTT311-3.3.1-12")
async def test_retain_0_is_not_stored(clients: Clients) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    for qos in (0, 1, 2):
        await publisher.publish(topic_name, b"x", qos)
    await publisher.ping()
    await _has_none(clients, topic_name)


@pytest.mark.statement("MQTT311-3.1.2-7", "MQTT311-3.1.2-6")
async def test_a_retained_message_outlives_its_session(clients: Clients, retained_name: str) -> None:
    for clean in (True, False):
        publisher = await clients.connect(clean_start=clean)
        await publisher.publish(retained_name, b"kept %d" % clean, 1, retain=True)
        await publisher.disconnect()
        await (await clients.connect(publisher.client_id)).disconnect()
        await _holds(clients, retained_name, b"kept %d" % clean, 1)


@pytest.mark.statement("MQTT311-3.3.1-9", "MQTT311-3.1.2-5", "MQTT311-3.1.2-7")
async def test_a_session_that_resumes_gets_no_retained_messages_anew(
    clients: Clients, retained_name: str, durable_id: str
) -> None:
    """It is the subscribing that brings them, not the connecting."""
    publisher = await clients.connect()
    client = await subscribed(clients, retained_name, qos=1, client_id=durable_id)
    await client.disconnect()
    await publisher.publish(retained_name, b"queued", 1, retain=True)
    again = await clients.connect(durable_id, clean_start=False)
    message = await again.take_message()
    assert (message.payload, message.retain) == (b"queued", False)
    await again.disconnect()
    last = await clients.connect(durable_id, clean_start=False)
    await publisher.publish(retained_name, b"marker", 1)
    assert (await last.take_message()).payload == b"marker"


async def _retained_twice(client: Client, topic_name: str, qos: int) -> None:
    await grant(client, SubscriptionRequest(topic_name, qos))
    message = await client.take_message()
    assert (message.payload, message.retain, message.qos) == (b"kept", True, min(1, qos))


@pytest.mark.statement("MQTT311-3.8.4-3", "MQTT311-3.3.1-6", "MQTT311-3.3.1-8")
async def test_subscribing_again_brings_the_retained_message_again(clients: Clients, retained_name: str) -> None:
    await (await clients.connect()).publish(retained_name, b"kept", 1, retain=True)
    client = await clients.connect()
    for qos in (0, 1, 2, 1):
        await _retained_twice(client, retained_name, qos)


@pytest.mark.statement("MQTT311-3.3.1-6", "MQTT311-3.8.4-4")
async def test_each_filter_of_a_subscribe_brings_its_retained_messages(clients: Clients, retained_name: str) -> None:
    await (await clients.connect()).publish(retained_name, b"kept", 1, retain=True)
    client = await subscribed(clients, new_topic_name(), retained_name, new_topic_name(), qos=1)
    message = await client.take_message()
    assert (message.payload, message.retain) == (b"kept", True)
    await client.ping()


@pytest.mark.statement("MQTT311-4.4.0-1", "MQTT311-3.3.1-1", "MQTT311-3.3.1-8")
@pytest.mark.parametrize("qos", [1, 2])
async def test_an_unanswered_retained_message_comes_again(
    clients: Clients, retained_name: str, durable_id: str, qos: int
) -> None:
    await (await clients.connect()).publish(retained_name, b"kept", qos, retain=True)
    client = await subscribed(clients, retained_name, qos=qos, client_id=durable_id)
    first = await client.message()
    await client.close()
    again = await clients.connect(durable_id, clean_start=False)
    assert await again.message() == Publish(
        retained_name.encode(), b"kept", qos, True, dup=True, packet_id=first.packet_id
    )
