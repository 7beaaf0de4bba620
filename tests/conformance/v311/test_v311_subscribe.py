"""SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK (§3.8 to §3.11)."""

from __future__ import annotations

import pytest
from conformance.v311.flows import bodies, grant, messages_until, subscribed
from support.conformance import Client, Clients, new_topic_name

from edge.wire import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)

QOS = (ReasonCode.GRANTED_QOS_0, ReasonCode.GRANTED_QOS_1, ReasonCode.GRANTED_QOS_2)


async def _gets_nothing_of(clients: Clients, client: Client, topic_name: str) -> None:
    """What another client gets under this name, this one does not."""
    witness, publisher, marker = await subscribed(clients, topic_name), await clients.connect(), new_topic_name()
    await publisher.publish(topic_name, b"no", 1)
    assert (await witness.take_message()).payload == b"no"
    await grant(client, marker)
    await publisher.publish(marker, b"marker", 1)
    assert (await client.message()).payload == b"marker"


@pytest.mark.statement(
    "MQTT311-3.8.4-1", "MQTT311-3.8.4-2", "MQTT311-2.3.1-7", "MQTT311-3.8.4-5", "MQTT311-3.9.3-2", "MQTT311-2.3.1-1"
)
@pytest.mark.parametrize("packet_id", [1, 0x100, 0xFFFF])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_subscribe_is_answered_with_its_identifier(clients: Clients, packet_id: int, qos: int) -> None:
    client = await clients.connect()
    await client.send(Subscribe(packet_id, (SubscriptionRequest(new_topic_name(), qos),)))
    suback = await client.receive(Suback)
    assert suback.packet_id == packet_id
    assert len(suback.reason_codes) == 1
    assert suback.reason_codes[0] in QOS[: qos + 1]  # [MQTT311-3.8.4-6] a server may grant less
    assert len(bodies(client, 0x90)[0]) == 3


@pytest.mark.statement("MQTT311-3.9.3-1", "MQTT311-3.8.4-4", "MQTT311-3.8.4-5", "MQTT311-3.9.3-2")
async def test_codes_come_in_the_order_of_the_filters(clients: Clients) -> None:
    wanted = [2, 0, 1, 1, 0, 2, 2, 0]
    requests = [SubscriptionRequest(new_topic_name(), qos) for qos in wanted]
    client, publisher = await clients.connect(), await clients.connect()
    suback = await client.subscribe(*requests)
    assert [int(code) for code in suback.reason_codes] == wanted  # this server grants what is asked for
    for request in requests:
        await publisher.publish(request.topic_filter, b"x", 2)
        message = await client.take_message()
        assert (message.topic_name_utf8.decode(), message.qos) == (request.topic_filter, request.qos)


@pytest.mark.statement("MQTT311-3.8.4-4", "MQTT311-3.8.4-3", "MQTT311-3.9.3-1")
async def test_a_filter_that_comes_twice_in_a_subscribe_counts_the_last_time(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    suback = await client.subscribe(SubscriptionRequest(topic_name, 2), SubscriptionRequest(topic_name, 1))
    assert [int(code) for code in suback.reason_codes] == [2, 1]
    await publisher.publish(topic_name, b"x", 2)
    assert (await client.take_message()).qos == 1
    await publisher.publish(topic_name, b"marker", 2)
    assert await messages_until(client, b"marker") == []


@pytest.mark.statement("MQTT311-3.8.4-3", "MQTT311-3.8.4-6")
@pytest.mark.parametrize(("first", "then"), [(0, 2), (2, 0), (1, 2), (1, 1)])
async def test_the_same_filter_replaces_the_subscription(clients: Clients, first: int, then: int) -> None:
    """One copy comes, with the new QoS."""
    topic_name = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    for qos in (first, then):
        await grant(client, topic_name, qos=qos)
    await publisher.publish(topic_name, b"x", 2)
    message = await client.take_message()
    assert (message.payload, message.qos) == (b"x", then)
    await publisher.publish(topic_name, b"marker", 2)
    assert await messages_until(client, b"marker") == []
    await client.unsubscribe(topic_name)
    await _gets_nothing_of(clients, client, topic_name)


@pytest.mark.statement("MQTT311-3.8.4-3")
async def test_replacing_does_not_interrupt_the_flow(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, publisher = await subscribed(clients, topic_name, qos=1), await clients.connect()
    payloads = [f"{number}".encode() for number in range(30)]
    for number, payload in enumerate(payloads):
        await publisher.send(Publish(topic_name.encode(), payload, 1, packet_id=number + 1))
        if number % 5 == 0:
            await client.send(Subscribe(client.new_packet_id(), (SubscriptionRequest(topic_name, 1),)))
    messages = [await client.take_message() for _ in payloads]
    assert [message.payload for message in messages] == payloads


@pytest.mark.statement("MQTT311-3.3.5-1", "MQTT311-3.8.4-6")
@pytest.mark.parametrize("granted", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 1, 0)])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_overlapping_filters_deliver_at_the_highest_qos(
    clients: Clients, qos: int, granted: tuple[int, int, int]
) -> None:
    """A server may send more copies, for the other filters."""
    base = new_topic_name()
    topic_name = base + "/a"
    client, publisher = await clients.connect(), await clients.connect()
    await grant(client, *map(SubscriptionRequest, (topic_name, base + "/+", base + "/#"), granted))
    await publisher.publish(topic_name, b"x", qos)
    copies = [await client.take_message()]
    await publisher.publish(topic_name, b"marker", qos)
    copies += await messages_until(client, b"marker")
    assert {copy.payload for copy in copies} <= {b"x"}
    assert max(copy.qos for copy in copies) == min(qos, max(granted))
    assert len(copies) <= 3


@pytest.mark.statement("MQTT311-3.10.4-4", "MQTT311-2.3.1-7", "MQTT311-3.10.4-1", "MQTT311-2.3.1-1")
@pytest.mark.parametrize("packet_id", [1, 0x100, 0xFFFF])
async def test_unsubscribe_is_answered_with_its_identifier(clients: Clients, packet_id: int) -> None:
    topic_name = new_topic_name()
    client = await subscribed(clients, topic_name)
    await client.send(Unsubscribe(packet_id, (topic_name,)))
    assert await client.receive(Unsuback) == Unsuback(packet_id)
    assert bodies(client, 0xB0) == [packet_id.to_bytes(2, "big")]


@pytest.mark.statement("MQTT311-3.10.4-5", "MQTT311-3.10.4-4")
async def test_unsubscribe_is_answered_when_nothing_was_subscribed(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await subscribed(clients, topic_name)
    for _ in range(2):
        await client.unsubscribe(topic_name)
    await client.unsubscribe(new_topic_name(), new_topic_name())
    await client.ping()


@pytest.mark.statement("MQTT311-3.10.4-1", "MQTT311-3.10.4-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_after_unsuback_no_new_message_comes(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    client, publisher = await subscribed(clients, topic_name, qos=qos), await clients.connect()
    await publisher.publish(topic_name, b"x", qos)
    await client.take_message()
    await client.unsubscribe(topic_name)
    await _gets_nothing_of(clients, client, topic_name)


@pytest.mark.statement("MQTT311-3.10.4-1", "MQTT311-4.7.3-4")
async def test_unsubscribe_compares_character_by_character(clients: Clients) -> None:
    """Not what a filter matches: what it says."""
    base = new_topic_name()
    client, publisher = await subscribed(clients, base + "/a", base + "/+/b"), await clients.connect()
    await client.unsubscribe(base + "/+", base + "/#", base + "/A", base + "/a/", base + "/x/b", base)
    for topic_name in (base + "/a", base + "/x/b"):
        await publisher.publish(topic_name, b"x", 1)
        assert (await client.take_message()).topic_name_utf8 == topic_name.encode()
    await client.unsubscribe(base + "/+/b")
    await _gets_nothing_of(clients, client, base + "/x/b")
    await publisher.publish(base + "/a", b"still", 1)
    assert (await client.take_message()).payload == b"still"


@pytest.mark.statement("MQTT311-3.10.4-6", "MQTT311-3.10.4-1", "MQTT311-3.10.4-2")
async def test_many_filters_are_unsubscribed_with_one_unsuback(clients: Clients) -> None:
    names = [new_topic_name() for _ in range(4)]
    client = await subscribed(clients, *names)
    await client.unsubscribe(names[0], new_topic_name(), names[1], names[0], names[2])
    await client.ping()  # one UNSUBACK
    for topic_name in names[:3]:
        await _gets_nothing_of(clients, client, topic_name)
    await (await clients.connect()).publish(names[3], b"still", 1)
    assert (await client.take_message()).payload == b"still"


@pytest.mark.statement("MQTT311-3.10.4-1", "MQTT311-3.3.5-1")
async def test_an_overlapping_subscription_stays_when_the_other_goes(clients: Clients) -> None:
    base = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    await grant(client, SubscriptionRequest(base + "/a", 2), SubscriptionRequest(base + "/+", 0))
    await client.unsubscribe(base + "/a")
    await publisher.publish(base + "/a", b"x", 2)
    assert (await client.take_message()).qos == 0


@pytest.mark.statement("MQTT311-3.10.4-3", "MQTT311-4.3.2-1", "MQTT311-4.3.3-1")
async def test_flows_begun_are_finished_after_unsubscribe(clients: Clients) -> None:
    names, publisher = [new_topic_name() for _ in range(2)], await clients.connect()
    client = await clients.connect()
    await grant(client, *map(SubscriptionRequest, names, (1, 2)))
    for qos, topic_name in enumerate(names, 1):
        await publisher.publish(topic_name, b"begun", qos)
    one, two = sorted([await client.message() for _ in range(2)], key=lambda message: message.qos)
    await client.unsubscribe(*names)
    await client.send(Pubrec(two.packet_id))
    assert await client.receive(Pubrel) == Pubrel(two.packet_id)
    await client.send(Pubcomp(two.packet_id), Puback(one.packet_id))
    await client.ping()
    for topic_name in names:
        await _gets_nothing_of(clients, client, topic_name)


@pytest.mark.statement("MQTT311-3.8.4-1", "MQTT311-3.10.4-4", "MQTT311-3.8.4-4")
async def test_requests_in_one_segment_are_answered_each(clients: Clients) -> None:
    names = [new_topic_name() for _ in range(5)]
    client = await clients.connect()
    for packet_id, topic_name in enumerate(names, 1):
        await client.send(
            Subscribe(packet_id, (SubscriptionRequest(topic_name),)), Unsubscribe(100 + packet_id, (topic_name,))
        )
    assert [(await client.take(Suback)).packet_id for _ in names] == [1, 2, 3, 4, 5]
    assert [(await client.take(Unsuback)).packet_id for _ in names] == [101, 102, 103, 104, 105]
    for topic_name in names:
        await _gets_nothing_of(clients, client, topic_name)


@pytest.mark.statement("MQTT311-3.8.3-2", "MQTT311-3.8.4-5", "MQTT311-4.7.1-1")
@pytest.mark.parametrize("suffix", ["/#", "/+", "/+/b", "/+/+/#"])
async def test_wildcards_are_served_or_refused(clients: Clients, suffix: str) -> None:
    base = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    (code,) = (await client.subscribe(base + suffix, qos=1)).reason_codes
    if code.is_error:  # [MQTT311-3.8.3-2]
        await _gets_nothing_of(clients, client, base + "/a/b")
    else:
        for topic_name in (base + "/a", base + "/a/b"):
            await publisher.publish(topic_name, b"x", 1)
        topic_name = base + ("/a" if suffix == "/+" else "/a/b")
        received = await client.take_message()
        while received.topic_name_utf8 != topic_name.encode():
            received = await client.take_message()
