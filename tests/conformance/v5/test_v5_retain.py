"""Retained messages and the options that concern them (§3.3.1.3, §3.8.3.1)."""

from __future__ import annotations

import pytest
from support.conformance import Client, Clients, new_topic_name
from support.limited import lacks_qos_2, lacks_retain, lacks_wildcards

from edge.wire import Publish, SubscriptionRequest


async def _retain(clients: Clients, topic_name: str, payload: bytes, qos: int = 1) -> Client:
    publisher = await clients.connect()
    await publisher.publish(topic_name, payload, qos=qos, retain=True)
    return publisher


async def _offers_retain(clients: Clients) -> bool:
    return not await lacks_retain(await clients.connect())


async def _has_none(clients: Clients, topic_name: str) -> None:
    """A new subscriber gets the next live message first."""
    late = await clients.connect()
    await late.subscribe(topic_name)
    await late.publish(topic_name, b"live")
    message = await late.message()
    assert (message.payload, message.retain) == (b"live", False)


@pytest.mark.statement("MQTT5-3.3.1-5", "MQTT5-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_retained_message_is_kept_for_new_subscribers(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    if not await _offers_retain(clients) or await lacks_qos_2(await clients.connect()):
        return
    publisher = await clients.connect()
    await publisher.subscribe(topic_name)
    await publisher.publish(topic_name, b"kept", qos=qos, retain=True)
    await publisher.take(Publish)
    for _ in range(2):
        late = await clients.connect()
        await late.subscribe(topic_name, qos=2)
        message = await late.take_message()
        assert (message.payload, message.qos, message.retain, message.dup) == (b"kept", qos, True, False)


@pytest.mark.statement("MQTT5-3.3.1-5", "MQTT5-3.3.1-8")
async def test_a_retained_message_is_replaced_by_the_next_and_by_no_other(clients: Clients) -> None:
    topic_name = new_topic_name()
    if not await _offers_retain(clients):
        return
    publisher = await _retain(clients, topic_name, b"1")
    await publisher.publish(topic_name, b"2", qos=1, retain=True)
    await publisher.publish(topic_name, b"not kept", qos=1)
    await publisher.publish(topic_name, b"", qos=1)
    late = await clients.connect()
    await late.subscribe(topic_name)
    assert (await late.message()).payload == b"2"
    await late.ping()


@pytest.mark.statement("MQTT5-3.3.1-5")
@pytest.mark.parametrize("new", [0, 1, 2])
@pytest.mark.parametrize("old", [0, 1, 2])
async def test_the_later_retained_message_counts_whatever_its_qos(clients: Clients, old: int, new: int) -> None:
    """However soon it comes after the one before: many times, for a server may tell them apart by a clock."""
    if not await _offers_retain(clients) or await lacks_qos_2(await clients.connect()):
        return
    publisher, late = await clients.connect(), await clients.connect()
    for _ in range(20):
        topic_name = new_topic_name()
        await publisher.publish(topic_name, b"old", qos=old, retain=True)
        await publisher.publish(topic_name, b"new", qos=new, retain=True)
        await publisher.ping()
        await late.subscribe(topic_name, qos=2)
        message = await late.take_message()
        assert (message.payload, message.qos) == (b"new", new)


@pytest.mark.statement("MQTT5-3.3.1-6", "MQTT5-3.3.1-7")
async def test_an_empty_retained_message_is_delivered_and_clears(clients: Clients) -> None:
    topic_name = new_topic_name()
    if not await _offers_retain(clients):
        return
    publisher = await _retain(clients, topic_name, b"kept")
    there = await clients.connect()
    await there.subscribe(topic_name)
    assert (await there.message()).payload == b"kept"
    await publisher.publish(topic_name, b"", qos=1, retain=True)
    message = await there.message()
    assert (message.payload, message.retain) == (b"", False)
    await _has_none(clients, topic_name)


@pytest.mark.statement("MQTT5-3.3.1-7")
async def test_an_empty_retained_message_is_not_kept(clients: Clients) -> None:
    topic_name = new_topic_name()
    if await _offers_retain(clients):
        await _retain(clients, topic_name, b"")
    await _has_none(clients, topic_name)


@pytest.mark.statement("MQTT5-3.3.1-8")
async def test_a_message_without_retain_is_not_kept(clients: Clients) -> None:
    topic_name = new_topic_name()
    await (await clients.connect()).publish(topic_name, b"not kept", qos=1)
    await _has_none(clients, topic_name)


@pytest.mark.statement("MQTT5-3.3.1-9")
async def test_a_wildcard_subscription_gets_all_that_match(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.connect()
    if not await _offers_retain(clients) or await lacks_wildcards(client):
        return
    names = {f"{topic_name}/{number}/leaf" for number in range(20)}
    publisher = await clients.connect()
    for name in (*names, f"{topic_name}/other"):
        await publisher.publish(name, b"kept", qos=1, retain=True)
    await client.subscribe(f"{topic_name}/+/leaf")
    messages = [await client.message() for _ in names]
    assert {message.topic_name_utf8.decode() for message in messages} == names
    assert all(message.retain for message in messages)
    await client.ping()


@pytest.mark.statement("MQTT5-3.3.1-9", "MQTT5-3.8.4-4", "MQTT5-3.8.4-3")
async def test_retain_handling_0_sends_at_every_subscribe(clients: Clients) -> None:
    topic_name = new_topic_name()
    if not await _offers_retain(clients):
        return
    publisher = await _retain(clients, topic_name, b"kept")
    client = await clients.connect()
    for _ in range(2):
        await client.subscribe(SubscriptionRequest(topic_name, retain_handling=0))
        assert (await client.message()).retain
    await publisher.publish(topic_name, b"live")
    message = await client.message()
    assert (message.payload, message.retain) == (b"live", False)
    await client.ping()


@pytest.mark.statement("MQTT5-3.3.1-10")
async def test_retain_handling_1_sends_to_new_subscriptions_only(clients: Clients) -> None:
    """One that was removed is new again."""
    topic_name = new_topic_name()
    if not await _offers_retain(clients):
        return
    publisher = await _retain(clients, topic_name, b"kept")
    client = await clients.connect()
    request = SubscriptionRequest(topic_name, retain_handling=1)
    await client.subscribe(request)
    assert (await client.message()).retain
    await client.subscribe(request)
    await publisher.publish(topic_name, b"live")
    message = await client.message()
    assert (message.payload, message.retain) == (b"live", False)
    await client.unsubscribe(topic_name)
    await client.subscribe(request)
    message = await client.message()
    assert (message.payload, message.retain) == (b"kept", True)


@pytest.mark.statement("MQTT5-3.3.1-11")
async def test_retain_handling_2_sends_none(clients: Clients) -> None:
    topic_name = new_topic_name()
    if not await _offers_retain(clients):
        return
    publisher = await _retain(clients, topic_name, b"kept")
    client = await clients.connect()
    await client.subscribe(SubscriptionRequest(topic_name, retain_handling=2))
    await publisher.publish(topic_name, b"live")
    message = await client.message()
    assert (message.payload, message.retain) == (b"live", False)


@pytest.mark.statement("MQTT5-3.3.1-12", "MQTT5-3.3.1-13")
@pytest.mark.parametrize("as_published", [False, True])
async def test_retain_as_published(clients: Clients, as_published: bool) -> None:
    """What is forwarded to an established subscription says RETAIN as it came, or 0."""
    topic_name = new_topic_name()
    if not await _offers_retain(clients):
        return
    client, publisher = await clients.connect(), await clients.connect()
    await client.subscribe(SubscriptionRequest(topic_name, retain_as_published=as_published))
    for retain in (True, False):
        await publisher.publish(topic_name, b"x", retain=retain)
        assert (await client.message()).retain == (retain and as_published)


@pytest.mark.statement("MQTT5-3.3.1-12", "MQTT5-3.3.1-9")
async def test_retain_as_published_does_not_change_what_a_subscribe_brings(clients: Clients) -> None:
    """A retained message sent because of a SUBSCRIBE has RETAIN 1 (§3.3.1.3)."""
    topic_name = new_topic_name()
    if not await _offers_retain(clients):
        return
    await _retain(clients, topic_name, b"kept")
    client = await clients.connect()
    await client.subscribe(SubscriptionRequest(topic_name, retain_as_published=False))
    assert (await client.message()).retain


@pytest.mark.statement("MQTT5-3.3.2-5", "MQTT5-3.3.1-5")
async def test_a_retained_message_expires(clients: Clients) -> None:
    topic_name = new_topic_name()
    if not await _offers_retain(clients):
        return
    publisher = await clients.connect()
    await publisher.publish(topic_name, b"brief", qos=1, retain=True, message_expiry_interval_s=1)
    await publisher.silent_for(2.5)
    await _has_none(clients, topic_name)
