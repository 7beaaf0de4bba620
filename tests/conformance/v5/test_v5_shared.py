"""Shared subscriptions (§4.8.2)."""

from __future__ import annotations

import pytest
from support.conformance import Client, Clients, new_client_id, new_topic_name
from support.limited import durable, lacks_qos_2, lacks_sessions, lacks_shared

from edge.wire import Puback, Pubcomp, Publish, Pubrec, Pubrel, ReasonCode, Suback, Subscribe, SubscriptionRequest


async def _is_refused(client: Client, topic_filter: str) -> None:
    packet_id = client.new_packet_id()
    await client.send(Subscribe(packet_id, (SubscriptionRequest(topic_filter),)))
    try:
        suback = await client.take(Suback)
    except AssertionError:
        await client.closed_for(
            ReasonCode.TOPIC_FILTER_INVALID,
            ReasonCode.MALFORMED_PACKET,
            ReasonCode.PROTOCOL_ERROR,
            ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
        )
    else:
        assert suback.reason_codes[0] in (
            ReasonCode.TOPIC_FILTER_INVALID,
            ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
        )


@pytest.mark.statement("MQTT5-4.8.2-1")
@pytest.mark.parametrize("topic_filter", ["$share//a", "$share/", "$share/group", "$share/group/"])
async def test_a_shared_filter_has_a_share_name_and_a_filter(clients: Clients, topic_filter: str) -> None:
    await _is_refused(await clients.connect(), topic_filter)


@pytest.mark.statement("MQTT5-4.8.2-2")
@pytest.mark.parametrize("share_name", ["a+", "+", "#", "a#b"])
async def test_a_share_name_has_no_wildcards(clients: Clients, share_name: str) -> None:
    await _is_refused(await clients.connect(), f"$share/{share_name}/{new_topic_name()}")


@pytest.mark.statement("MQTT5-4.8.2-1", "MQTT5-4.5.0-1")
async def test_each_message_goes_to_one_of_the_share_and_to_every_other(clients: Clients) -> None:
    topic_name = new_topic_name()
    share = [await clients.connect() for _ in range(3)]
    alone, publisher = await clients.connect(), await clients.connect()
    if await lacks_shared(publisher):
        return
    for each in share:
        await each.subscribe(f"$share/group/{topic_name}", qos=1)
    other_share = await clients.connect()
    await other_share.subscribe(f"$share/other/{topic_name}", qos=1)
    await alone.subscribe(topic_name, qos=1)
    payloads = [b"%d" % number for number in range(12)]
    for payload in payloads:
        await publisher.publish(topic_name, payload, qos=1)
    for each in (alone, other_share):
        assert [(await each.take_message()).payload for _ in payloads] == payloads
    for each in share:
        await each.unsubscribe(f"$share/group/{topic_name}")
    await publisher.take_ping()
    got = [message.payload for each in share for message in await _what_came(each, len(payloads))]
    assert sorted(got, key=int) == payloads


async def _what_came(client: Client, count_max: int) -> list[Publish]:
    """All messages up to now: those that come before the answer to a PINGREQ after their acknowledgement."""
    messages: list[Publish] = []
    await client.take_ping()
    while len(messages) <= count_max and (message := client.waiting(Publish)) is not None:
        messages.append(message)
        await client.finish(message)
        await client.take_ping()
    return messages


@pytest.mark.statement("MQTT5-4.8.2-3", "MQTT5-3.8.4-8")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
async def test_a_share_delivers_at_the_lower_qos(clients: Clients, published: int, granted: int) -> None:
    topic_name = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    if await lacks_shared(client) or await lacks_qos_2(await clients.connect()):
        return
    await client.subscribe(f"$share/group/{topic_name}", qos=granted)
    await publisher.publish(topic_name, b"x", qos=published)
    assert (await client.take_message()).qos == min(published, granted)


@pytest.mark.statement("MQTT5-4.8.2-4")
async def test_a_qos_2_flow_that_has_begun_with_a_client_is_finished_with_it(clients: Clients) -> None:
    """Also if another of the share is there while it is away."""
    topic_name = new_topic_name()
    first, publisher = await durable(clients), await clients.connect()
    if await lacks_shared(first) or await lacks_qos_2(publisher) or await lacks_sessions(clients, first):
        return
    await first.subscribe(f"$share/group/{topic_name}", qos=2)
    await publisher.publish(topic_name, b"first's", qos=2)
    packet_id = (await first.message()).packet_id
    await first.send(Pubrec(packet_id))
    assert (await first.receive(Pubrel)).packet_id == packet_id
    await first.close()
    other = await clients.connect()
    await other.subscribe(f"$share/group/{topic_name}", qos=2)
    first = await durable(clients, first.client_id)
    assert (await first.receive(Pubrel)).packet_id == packet_id
    await first.send(Pubcomp(packet_id))
    await first.ping()
    await other.ping()


@pytest.mark.statement("MQTT5-4.8.2-5")
async def test_a_message_that_was_sent_with_qos_2_to_a_session_that_ends_goes_to_nobody_else(clients: Clients) -> None:
    topic_name = new_topic_name()
    first, publisher = await durable(clients, new_client_id()), await clients.connect()
    if await lacks_shared(first) or await lacks_qos_2(publisher):
        return
    await first.subscribe(f"$share/group/{topic_name}", qos=2)
    await publisher.publish(topic_name, b"first's", qos=2)
    await first.message()
    other = await clients.connect()
    await other.subscribe(f"$share/group/{topic_name}", qos=2)
    await first.disconnect(session_expiry_interval_s=0)
    await publisher.publish(topic_name, b"next", qos=2)
    assert (await other.take_message()).payload == b"next"
    await other.ping()


@pytest.mark.statement("MQTT5-4.8.2-6")
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_message_that_one_refuses_goes_to_nobody_else(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    first, publisher = await clients.connect(), await clients.connect()
    if await lacks_shared(first) or await lacks_qos_2(publisher):
        return
    await first.subscribe(f"$share/group/{topic_name}", qos=qos)
    await publisher.publish(topic_name, b"refused", qos=qos)
    packet_id = (await first.message()).packet_id
    other = await clients.connect()
    await other.subscribe(f"$share/group/{topic_name}", qos=qos)
    refusal = Puback(packet_id, ReasonCode.UNSPECIFIED_ERROR)
    await first.send(refusal if qos == 1 else Pubrec(packet_id, ReasonCode.UNSPECIFIED_ERROR))
    await first.ping()
    await first.unsubscribe(f"$share/group/{topic_name}")
    await publisher.publish(topic_name, b"next", qos=qos)
    assert (await other.take_message()).payload == b"next"
    await other.ping()
