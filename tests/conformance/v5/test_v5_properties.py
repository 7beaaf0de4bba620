"""What a PUBLISH carries besides its payload (§3.3.2.3), and subscription identifiers (§3.3.4)."""

from __future__ import annotations

import pytest
from support.conformance import Clients, new_topic_name, properties, publish_frame, string
from support.limited import durable, lacks_retain, lacks_sessions, lacks_subscription_ids, lacks_wildcards

from edge.wire import Properties, Publish, ReasonCode

MALFORMED = (ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


async def _forwarded(clients: Clients, sent: Properties, payload: bytes = b"x") -> Properties:
    topic_name = new_topic_name()
    publisher, subscriber = await clients.connect(), await clients.connect()
    await subscriber.subscribe(topic_name)
    await publisher.send(Publish(topic_name.encode(), payload, properties=sent))
    message = await subscriber.message()
    assert message.payload == payload
    return message.properties or Properties()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(Properties(), id="none", marks=pytest.mark.statement("MQTT5-2.2.2-1")),
        pytest.param(Properties(payload_format_indicator=0), id="bytes", marks=pytest.mark.statement("MQTT5-3.3.2-4")),
        pytest.param(Properties(payload_format_indicator=1), id="text", marks=pytest.mark.statement("MQTT5-3.3.2-4")),
        pytest.param(
            Properties(response_topic="an/answer"),
            id="response-topic",
            marks=pytest.mark.statement("MQTT5-3.3.2-15", "MQTT5-3.3.2-13"),
        ),
        pytest.param(
            Properties(response_topic="a", correlation_data=bytes(range(256))),
            id="correlation-data",
            marks=pytest.mark.statement("MQTT5-3.3.2-16"),
        ),
        pytest.param(
            Properties(content_type="text/plain; charset=utf-8 \u00e9\U0001f600"),
            id="content-type",
            marks=pytest.mark.statement("MQTT5-3.3.2-20", "MQTT5-3.3.2-19"),
        ),
        pytest.param(
            Properties(user_properties=(("b", "1"), ("a", "2"), ("b", "3"), ("", ""), ("b", "1"), ("é", "\ufeff"))),
            id="user-properties",
            marks=pytest.mark.statement("MQTT5-3.3.2-17", "MQTT5-3.3.2-18", "MQTT5-1.5.7-1"),
        ),
    ],
)
async def test_properties_are_forwarded_as_they_came(clients: Clients, sent: Properties) -> None:
    assert await _forwarded(clients, sent) == sent


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(
            properties(b"\x08", string("a/+")), id="response-topic-+", marks=pytest.mark.statement("MQTT5-3.3.2-14")
        ),
        pytest.param(
            properties(b"\x08", string("#")), id="response-topic-#", marks=pytest.mark.statement("MQTT5-3.3.2-14")
        ),
        pytest.param(
            properties(b"\x08", string(b"\xff")),
            id="response-topic-no-utf8",
            marks=pytest.mark.statement("MQTT5-3.3.2-13"),
        ),
        pytest.param(
            properties(b"\x03", string(b"\xff")),
            id="content-type-no-utf8",
            marks=pytest.mark.statement("MQTT5-3.3.2-19"),
        ),
        pytest.param(properties(b"\x0b\x01"), id="subscription-id", marks=pytest.mark.statement("MQTT5-3.3.4-6")),
        pytest.param(properties(b"\x01\x02"), id="payload-format-2", marks=pytest.mark.statement("MQTT5-4.13.1-1")),
        pytest.param(
            properties(b"\x02\0\0\0\1\x02\0\0\0\1"),
            id="expiry-twice",
            marks=pytest.mark.statement("MQTT5-4.13.1-1"),
        ),
        pytest.param(
            properties(b"\x11\0\0\0\1"),
            id="a-property-of-connect",
            marks=pytest.mark.statement("MQTT5-4.13.1-1"),
        ),
        pytest.param(properties(b"\x7f\0"), id="no-property", marks=pytest.mark.statement("MQTT5-4.13.1-1")),
        pytest.param(b"\x7f", id="longer-than-the-packet", marks=pytest.mark.statement("MQTT5-4.13.1-1")),
    ],
)
async def test_properties_that_no_client_may_send(clients: Clients, more: bytes) -> None:
    client = await clients.connect()
    await client.send(publish_frame("a/b", more=more))
    await client.closed_for(*MALFORMED, ReasonCode.TOPIC_NAME_INVALID)


@pytest.mark.statement("MQTT5-3.3.2-6")
async def test_the_expiry_interval_is_lowered_by_the_time_waited(clients: Clients) -> None:
    topic_name = new_topic_name()
    subscriber, publisher = await durable(clients), await clients.connect()
    await subscriber.subscribe(topic_name, qos=1)
    if await lacks_sessions(clients, subscriber):
        return
    await publisher.publish(topic_name, b"at once", qos=1, message_expiry_interval_s=100)
    message = await subscriber.take_message()
    assert message.properties is not None
    assert message.properties.message_expiry_interval_s in (99, 100)
    await subscriber.disconnect()
    await publisher.publish(topic_name, b"later", qos=1, message_expiry_interval_s=100)
    await publisher.silent_for(2.2)
    message = await (await durable(clients, subscriber.client_id)).take_message()
    assert message.properties is not None
    assert message.properties.message_expiry_interval_s in range(90, 99)


@pytest.mark.statement("MQTT5-3.3.2-5")
async def test_a_message_that_expires_while_waiting_is_not_delivered(clients: Clients) -> None:
    topic_name = new_topic_name()
    subscriber, publisher = await durable(clients), await clients.connect()
    await subscriber.subscribe(topic_name, qos=1)
    if await lacks_sessions(clients, subscriber):
        return
    await subscriber.disconnect()
    await publisher.publish(topic_name, b"brief", qos=1, message_expiry_interval_s=1)
    await publisher.publish(topic_name, b"lasting", qos=1)
    await publisher.silent_for(2.5)
    assert (await (await durable(clients, subscriber.client_id)).take_message()).payload == b"lasting"


@pytest.mark.statement("MQTT5-3.3.4-3", "MQTT5-3.3.4-4")
async def test_a_message_carries_the_id_of_its_subscription(clients: Clients) -> None:
    """1 and the greatest; none for a subscription without; a new one when the subscription is replaced."""
    client, publisher = await clients.connect(), await clients.connect()
    if await lacks_subscription_ids(client):
        return
    for ids in ((1,), (268_435_455,), ()):
        topic_name = new_topic_name()
        await client.subscribe(topic_name, subscription_identifiers=ids)
        await publisher.publish(topic_name, b"x")
        message = await client.message()
        assert (message.properties or Properties()).subscription_identifiers == ids
    await client.subscribe(topic_name, subscription_identifiers=(7,))
    await publisher.publish(topic_name, b"x")
    assert (await client.message()).properties == Properties(subscription_identifiers=(7,))


@pytest.mark.statement("MQTT5-3.3.4-3", "MQTT5-3.3.4-4", "MQTT5-3.3.4-5", "MQTT5-3.3.4-2")
async def test_overlapping_subscriptions(clients: Clients) -> None:
    """One copy with all ids, at the highest QoS; or one copy for each subscription, with its id and QoS."""
    topic_name = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    if await lacks_subscription_ids(client) or await lacks_wildcards(client):
        return
    granted: dict[int, int] = {}
    for number, topic_filter in enumerate((topic_name, f"{topic_name}/#", f"{topic_name[:-1]}{topic_name[-1]}/+")):
        suback = await client.subscribe(topic_filter, qos=2 - number, subscription_identifiers=(number + 1,))
        granted[number + 1] = suback.reason_codes[0]
    matching = {1, 2}  # "a" and "a/#" match "a", "a/+" does not
    await publisher.publish(topic_name, b"x", qos=publisher.maximum_qos)
    got: list[tuple[tuple[int, ...], int]] = []
    while {each for ids, _ in got for each in ids} != matching:
        message = await client.take_message()
        ids = (message.properties or Properties()).subscription_identifiers
        got.append((ids, message.qos))
        assert ids
        assert message.qos == max(granted[each] for each in ids)
        assert len(got) <= 2
    assert sorted(each for ids, _ in got for each in ids) == sorted(matching)
    await client.ping()


@pytest.mark.statement("MQTT5-3.3.4-2")
async def test_overlapping_subscriptions_deliver_at_the_highest_qos(clients: Clients) -> None:
    """Wherever the highest one stands; copies for the other subscriptions may come, too."""
    client, publisher = await clients.connect(), await clients.connect()
    if await lacks_wildcards(client):
        return
    topic_name = new_topic_name()
    for first, second in ((0, 1), (1, 0)):
        await client.subscribe(topic_name, qos=first)
        await client.subscribe(f"{topic_name}/#", qos=second)
        payload = b"%d%d" % (first, second)
        await publisher.publish(topic_name, payload, qos=1)
        await publisher.publish(topic_name, b"end of " + payload, qos=1)
        copies: list[Publish] = []
        while not copies or copies[-1].payload != b"end of " + payload:
            copies.append(await client.take_message())
        assert max(each.qos for each in copies if each.payload == payload) == 1


@pytest.mark.statement("MQTT5-3.3.4-3")
async def test_retained_messages_carry_the_id_of_the_subscription_that_brings_them(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.connect()
    if await lacks_subscription_ids(client) or await lacks_retain(client):
        return
    await client.publish(topic_name, b"kept", qos=1, retain=True)
    await client.subscribe(topic_name, subscription_identifiers=(5,))
    assert (await client.message()).properties == Properties(subscription_identifiers=(5,))


@pytest.mark.statement("MQTT5-1.5.5-1", "MQTT5-2.2.2-1")
async def test_lengths_from_the_server_are_in_their_shortest_form(clients: Clients) -> None:
    """The client's framer refuses longer Remaining Lengths; property lengths are read here, byte by byte."""
    topic_name = new_topic_name()
    client = await clients.connect()
    await client.subscribe(topic_name)
    for length in (3, 127, 128, 129, 16_383, 16_384):
        await client.publish(topic_name, b"", correlation_data=bytes(length - 3))  # behind identifier and length
        await client.message()
        body = client.frames[-1][1][2 + len(topic_name) :]
        assert body.startswith(_variable(length)), body[:4]
        assert len(body) == len(_variable(length)) + length


def _variable(value: int) -> bytes:
    """A Variable Byte Integer below 2,097,152, written apart from the codec."""
    if value < 128:
        return bytes((value,))
    if value < 16_384:
        return bytes((value % 128 | 0x80, value // 128))
    return bytes((value % 128 | 0x80, value // 128 % 128 | 0x80, value // 16_384))
