"""Sessions (§3.1.2.4, §4.1, §4.5): Clean Session 0 and 1, session present, what is kept and for how long."""

from __future__ import annotations

import pytest
from conformance.v311.flows import forget, grant, messages_until, subscribed
from support.conformance import Clients, new_client_id, new_topic_name

from edge.wire import Connack


@pytest.mark.statement("MQTT311-3.2.2-1", "MQTT311-3.1.4-3")
async def test_clean_session_1_has_no_session_present(clients: Clients, durable_id: str) -> None:
    for clean in (True, False, True):
        client = await clients.connect(durable_id, clean_start=clean)
        assert client.connack == Connack(False)
        await client.disconnect()


@pytest.mark.statement("MQTT311-3.2.2-2", "MQTT311-3.2.2-3", "MQTT311-3.1.2-4", "MQTT311-3.1.4-3")
async def test_clean_session_0_creates_a_session_and_finds_it_again(clients: Clients, durable_id: str) -> None:
    for present in (False, True, True):
        client = await clients.connect(durable_id, clean_start=False)
        assert client.connack == Connack(present)
        await client.disconnect()


@pytest.mark.statement("MQTT311-3.2.2-2", "MQTT311-3.1.2-4", "MQTT311-3.1.4-2")
async def test_a_session_is_present_for_who_takes_it_over(clients: Clients, durable_id: str) -> None:
    old = await clients.connect(durable_id, clean_start=False)
    new = await clients.connect(durable_id, clean_start=False)
    assert new.connack == Connack(True)
    assert await old.until_closed() == []


@pytest.mark.statement("MQTT311-3.2.2-3", "MQTT311-3.1.2-6")
async def test_a_session_of_clean_session_1_ends_with_its_connection(clients: Clients, durable_id: str) -> None:
    topic_name = new_topic_name()
    first = await clients.connect(durable_id)
    await grant(first, topic_name, qos=1)
    await first.disconnect()
    second = await clients.connect(durable_id, clean_start=False)
    assert second.connack == Connack(False)
    await _has_no_subscription(clients, second.client_id, topic_name)


@pytest.mark.statement("MQTT311-3.2.2-3", "MQTT311-3.1.2-6", "MQTT311-3.1.4-2")
async def test_clean_session_1_is_not_present_for_who_takes_over(clients: Clients, durable_id: str) -> None:
    topic_name = new_topic_name()
    old = await clients.connect(durable_id)
    await grant(old, topic_name, qos=1)
    new = await clients.connect(durable_id, clean_start=False)
    assert new.connack == Connack(False)
    assert await old.until_closed() == []
    await _has_no_subscription(clients, durable_id, topic_name)


@pytest.mark.statement("MQTT311-3.1.2-6", "MQTT311-3.1.4-3", "MQTT311-3.1.3-2")
async def test_clean_session_1_drops_what_was_kept(clients: Clients, durable_id: str) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    await (await subscribed(clients, topic_name, qos=2, client_id=durable_id)).disconnect()
    for qos in (1, 2):
        await publisher.publish(topic_name, b"queued", qos)
    clean = await clients.connect(durable_id)
    assert clean.connack == Connack(False)
    await clean.ping()  # nothing of what was queued comes
    await clean.disconnect()
    after = await clients.connect(durable_id, clean_start=False)
    assert after.connack == Connack(False)
    await _has_no_subscription(clients, durable_id, topic_name)


async def _has_no_subscription(clients: Clients, client_id: str, topic_name: str) -> None:
    """The session, resumed, gets nothing under this name, but what it subscribes to."""
    marker, publisher = new_topic_name(), await clients.connect()
    witness = await subscribed(clients, topic_name)
    client = await clients.connect(client_id, clean_start=False)
    await publisher.publish(topic_name, b"no", 1)
    await witness.take_message()
    await grant(client, marker)
    await publisher.publish(marker, b"marker", 1)
    assert (await client.message()).payload == b"marker"


@pytest.mark.statement("MQTT311-3.1.2-5", "MQTT311-3.1.2-4", "MQTT311-4.1.0-1", "MQTT311-4.5.0-1")
@pytest.mark.parametrize("leaves", ["DISCONNECT", "hangs up"])
@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_for_who_is_away_are_kept(clients: Clients, durable_id: str, leaves: str, qos: int) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    client = await subscribed(clients, topic_name, qos=2, client_id=durable_id)
    await (client.disconnect() if leaves == "DISCONNECT" else client.close())
    payloads = [f"{number}".encode() for number in range(5)]
    for payload in payloads:
        await publisher.publish(topic_name, payload, qos)
    again = await clients.connect(durable_id, clean_start=False)
    assert again.connack == Connack(True)
    messages = [await again.take_message() for _ in payloads]
    assert [message.payload for message in messages] == payloads
    assert {(message.qos, message.retain) for message in messages} == {(qos, False)}
    await publisher.publish(topic_name, b"live", qos)
    assert (await again.take_message()).payload == b"live"


@pytest.mark.statement("MQTT311-3.1.2-5", "MQTT311-4.5.0-1")
async def test_every_matching_session_gets_the_message(clients: Clients, durable_id: str) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    await (await subscribed(clients, topic_name + "/#", qos=1, client_id=durable_id)).disconnect()
    others = [await subscribed(clients, each, qos=1) for each in (topic_name + "/a", topic_name + "/+")]
    await publisher.publish(topic_name + "/a", b"all", 1)
    for client in (*others, await clients.connect(durable_id, clean_start=False)):
        assert (await client.take_message()).payload == b"all"


@pytest.mark.statement("MQTT311-3.1.2-4", "MQTT311-4.1.0-1")
async def test_subscriptions_are_kept_with_their_qos(clients: Clients, durable_id: str) -> None:
    names = [new_topic_name() for _ in range(3)]
    client = await clients.connect(durable_id, clean_start=False)
    for qos, topic_name in enumerate(names):
        await grant(client, topic_name, qos=qos)
    await client.disconnect()
    again, publisher = await clients.connect(durable_id, clean_start=False), await clients.connect()
    for qos, topic_name in enumerate(names):
        await publisher.publish(topic_name, b"x", 2)
        assert (await again.take_message()).qos == qos


@pytest.mark.statement("MQTT311-3.1.2-4", "MQTT311-3.10.4-1", "MQTT311-4.1.0-1")
async def test_what_was_unsubscribed_stays_so(clients: Clients, durable_id: str) -> None:
    topic_name = new_topic_name()
    client = await subscribed(clients, topic_name, qos=1, client_id=durable_id)
    await client.unsubscribe(topic_name)
    await client.disconnect()
    again = await clients.connect(durable_id, clean_start=False)
    assert again.connack == Connack(True)
    await _has_no_subscription(clients, durable_id, topic_name)


@pytest.mark.statement("MQTT311-4.1.0-2", "MQTT311-4.1.0-1")
async def test_a_session_lasts_as_long_as_its_connection(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, other = await subscribed(clients, topic_name, qos=1), await clients.connect()
    for number in range(20):
        payload = f"{number}".encode()
        await other.publish(topic_name, payload, 1)
        assert (await client.take_message()).payload == payload
        await (await clients.connect()).disconnect()


@pytest.mark.statement("MQTT311-3.1.2-6", "MQTT311-4.1.0-1")
async def test_a_message_in_flight_is_dropped_with_the_session(clients: Clients, durable_id: str) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    client = await subscribed(clients, topic_name, qos=1, client_id=durable_id)
    await publisher.publish(topic_name, b"in flight", 1)
    await client.message()
    await client.disconnect()
    for clean in (True, False):
        again = await clients.connect(durable_id, clean_start=clean)
        await again.ping()
        await again.disconnect()


@pytest.mark.statement("MQTT311-3.1.3-2", "MQTT311-3.1.2-5")
async def test_sessions_of_two_identifiers_are_two(clients: Clients, durable_id: str) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    await (await subscribed(clients, topic_name, qos=1, client_id=durable_id)).disconnect()
    other = await clients.connect(new_client_id(), clean_start=False)
    assert other.connack == Connack(False)
    await publisher.publish(topic_name, b"x", 1)
    await other.ping()
    again = await clients.connect(durable_id, clean_start=False)
    await publisher.publish(topic_name, b"marker", 1)
    assert [message.payload for message in await messages_until(again, b"marker")] == [b"x"]
    await forget(clients, other.client_id)
