"""Wills (§3.1.2.5, §3.1.3.2, §3.14.4)."""

from __future__ import annotations

import asyncio

import pytest
from support.conformance import Client, Clients, new_topic_name
from support.limited import durable, lacks_qos_2, lacks_retain, lacks_sessions

from edge.wire import Properties, Publish, ReasonCode, Will


async def _witness(clients: Clients, topic_name: str, qos: int = 0) -> Client:
    witness = await clients.connect()
    await witness.subscribe(topic_name, qos=qos)
    return witness


async def _nothing_before_marker(witness: Client, topic_name: str) -> None:
    await witness.publish(topic_name, b"marker")
    assert (await witness.message()).payload == b"marker"


@pytest.mark.statement("MQTT5-3.1.2-7", "MQTT5-3.1.2-8")
async def test_a_will_is_published_when_the_connection_is_lost(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    client = await clients.connect(will=Will(topic_name, b"gone"))
    await client.ping()
    await client.close()
    message = await witness.message()
    assert (message.topic_name_utf8.decode(), message.payload) == (topic_name, b"gone")


@pytest.mark.statement("MQTT5-3.1.2-8")
async def test_a_will_is_published_after_a_protocol_error(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    client = await clients.connect(will=Will(topic_name, b"gone"))
    await client.send(b"\x00\x00")
    await client.closed_for()
    assert (await witness.message()).payload == b"gone"


@pytest.mark.statement("MQTT5-3.1.2-8", "MQTT5-3.1.2-22")
async def test_a_will_is_published_when_the_keep_alive_has_passed(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    client = await clients.connect(will=Will(topic_name, b"gone"), keep_alive_s=1)
    keep_alive_s = client.connack.properties.server_keep_alive_s or 1
    assert (await witness.take(Publish, wait_s=1.5 * keep_alive_s + 10)).payload == b"gone"


@pytest.mark.statement("MQTT5-3.1.2-8", "MQTT5-3.1.4-3")
async def test_a_will_is_published_when_the_connection_is_taken_over(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    client = await clients.connect(will=Will(topic_name, b"gone"))
    await clients.connect(client.client_id)
    assert (await witness.message()).payload == b"gone"


@pytest.mark.statement("MQTT5-3.1.2-8")
async def test_disconnect_with_will_publishes_it(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    client = await clients.connect(will=Will(topic_name, b"asked for"))
    await client.disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE)
    assert (await witness.message()).payload == b"asked for"


@pytest.mark.statement("MQTT5-3.14.4-3", "MQTT5-3.1.2-8", "MQTT5-3.1.2-10")
async def test_a_normal_disconnect_discards_the_will(clients: Clients) -> None:
    """Also when the session goes on, and is resumed without a will and lost."""
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    wishes = Properties(session_expiry_interval_s=60)
    client = await clients.connect(will=Will(topic_name, b"never"), properties=wishes)
    await client.disconnect()
    await _nothing_before_marker(witness, topic_name)
    client = await durable(clients, client.client_id)
    await client.close()
    client = await durable(clients, client.client_id)
    await _nothing_before_marker(witness, topic_name)


@pytest.mark.statement("MQTT5-3.1.2-10")
async def test_a_will_is_published_once(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    wishes = Properties(session_expiry_interval_s=60)
    client = await clients.connect(will=Will(topic_name, b"gone"), properties=wishes)
    await client.close()
    assert (await witness.message()).payload == b"gone"
    client = await durable(clients, client.client_id)
    await client.close()
    await durable(clients, client.client_id)
    await _nothing_before_marker(witness, topic_name)


@pytest.mark.statement("MQTT5-3.1.2-14")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_will_has_its_qos_and_is_not_retained(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name, qos=2)
    if qos == 2 and await lacks_qos_2(witness):
        return
    client = await clients.connect(will=Will(topic_name, b"gone", qos))
    await client.close()
    message = await witness.take_message()
    assert (message.payload, message.qos, message.retain) == (b"gone", qos, False)
    late = await _witness(clients, topic_name)
    await _nothing_before_marker(late, topic_name)


@pytest.mark.statement("MQTT5-3.1.2-15")
async def test_a_will_may_be_retained(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    if await lacks_retain(witness):
        return
    client = await clients.connect(will=Will(topic_name, b"kept", retain=True))
    await client.close()
    assert (await witness.message()).payload == b"kept"
    late = await _witness(clients, topic_name)
    message = await late.message()
    assert (message.payload, message.retain) == (b"kept", True)


@pytest.mark.statement("MQTT5-3.1.3-10", "MQTT5-3.3.2-18")
async def test_a_wills_properties_are_those_of_the_message(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    users = tuple((f"name {number % 3}", f"value {number}") for number in range(9))
    sent = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic=f"{topic_name}/answers",
        correlation_data=b"\0\1\2",
        user_properties=users,
    )
    client = await clients.connect(will=Will(topic_name, b"gone", properties=sent))
    await client.close()
    assert (await witness.message()).properties == sent


@pytest.mark.statement("MQTT5-3.1.3-9", "MQTT5-3.1.2-8")
async def test_who_returns_in_time_has_no_will_published(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    wishes = Properties(session_expiry_interval_s=60)
    will = Will(topic_name, b"never", properties=Properties(will_delay_interval_s=1))
    client = await clients.connect(will=will, properties=wishes)
    if client.session_expiry_s(60) == 0:
        await lacks_sessions(clients, client)
        return
    await client.close()
    await durable(clients, client.client_id)
    await witness.silent_for(2.5)
    await _nothing_before_marker(witness, topic_name)


@pytest.mark.statement("MQTT5-3.1.2-8", "MQTT5-3.1.2-10")
async def test_a_will_waits_for_its_delay(clients: Clients) -> None:
    loop = asyncio.get_running_loop()
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    wishes = Properties(session_expiry_interval_s=60)
    will = Will(topic_name, b"late", properties=Properties(will_delay_interval_s=2))
    client = await clients.connect(will=will, properties=wishes)
    began = loop.time()
    await client.close()
    assert (await witness.take(Publish, wait_s=15)).payload == b"late"
    if client.session_expiry_s(60) > 0:
        assert loop.time() - began > 1


@pytest.mark.statement("MQTT5-3.1.2-8")
async def test_a_will_waits_no_longer_than_its_session(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    client = await clients.connect(will=Will(topic_name, b"over", properties=Properties(will_delay_interval_s=1_000)))
    await client.close()
    assert (await witness.message()).payload == b"over"


@pytest.mark.statement("MQTT5-3.1.2-8", "MQTT5-3.1.2-4")
async def test_a_clean_start_ends_the_session_that_a_will_waits_with(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await _witness(clients, topic_name)
    will = Will(topic_name, b"over", properties=Properties(will_delay_interval_s=1_000))
    client = await clients.connect(will=will, properties=Properties(session_expiry_interval_s=60))
    await client.close()
    await clients.connect(client.client_id, clean_start=True)
    assert (await witness.message()).payload == b"over"
