"""SUBSCRIBE, UNSUBSCRIBE and their answers (§3.8 to §3.11)."""

from __future__ import annotations

import pytest
from support.conformance import Clients, frame, new_topic_name, string
from support.limited import lacks_qos_2, lacks_wildcards

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

MALFORMED = (ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.statement("MQTT5-3.8.4-1", "MQTT5-3.8.4-2", "MQTT5-2.2.1-6", "MQTT5-3.8.4-7", "MQTT5-3.9.3-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_subscribe_is_answered_by_suback_with_its_id(clients: Clients, qos: int) -> None:
    client = await clients.connect()
    await client.send(Subscribe(4_711, (SubscriptionRequest(new_topic_name(), qos),)))
    suback = await client.receive(Suback)
    assert suback.packet_id == 4_711
    assert suback.reason_codes == (min(qos, client.maximum_qos),)


@pytest.mark.statement("MQTT5-3.8.4-5", "MQTT5-3.8.4-6", "MQTT5-3.9.3-1")
async def test_many_filters_have_one_suback_with_their_codes_in_order(clients: Clients) -> None:
    client = await clients.connect()
    wanted = (2, 0, 1, 1, 0, 2)
    suback = await client.subscribe(*[SubscriptionRequest(new_topic_name(), qos) for qos in wanted])
    assert suback.reason_codes == tuple(min(qos, client.maximum_qos) for qos in wanted)
    await client.ping()


@pytest.mark.statement("MQTT5-3.8.4-5", "MQTT5-3.8.4-3")
async def test_one_filter_twice_in_a_subscribe_is_one_subscription(clients: Clients) -> None:
    """The later one counts, as if there had been two packets."""
    topic_name = new_topic_name()
    client = await clients.connect()
    suback = await client.subscribe(SubscriptionRequest(topic_name, 0), SubscriptionRequest(topic_name, 1))
    assert suback.reason_codes == (0, 1)
    await client.publish(topic_name, b"x", qos=1)
    assert (await client.take_message()).qos == 1
    await client.ping()


@pytest.mark.statement("MQTT5-3.8.4-8")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
async def test_the_lower_qos_is_delivered(clients: Clients, published: int, granted: int) -> None:
    topic_name = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    if await lacks_qos_2(await clients.connect()):
        return
    await client.subscribe(topic_name, qos=granted)
    await publisher.publish(topic_name, b"x", qos=published)
    assert (await client.take_message()).qos == min(published, granted)


@pytest.mark.statement("MQTT5-3.8.4-3")
async def test_the_same_filter_again_replaces_the_subscription(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    for qos in (1, 0, 1):
        await client.subscribe(topic_name, qos=qos)
        await publisher.publish(topic_name, b"x", qos=1)
        assert (await client.take_message()).qos == qos
    await client.ping()
    assert (await client.unsubscribe(topic_name)).reason_codes == (ReasonCode.SUCCESS,)
    await client.subscribe(f"{topic_name}/other")
    await publisher.publish(topic_name, b"unheard", qos=1)
    await publisher.publish(f"{topic_name}/other", b"marker", qos=1)
    assert (await client.message()).payload == b"marker"


@pytest.mark.statement("MQTT5-3.8.4-4", "MQTT5-3.8.4-3")
async def test_a_replaced_subscription_loses_no_messages(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    await client.subscribe(topic_name, qos=1)
    numbers = range(1, 41)
    for number in numbers:
        await publisher.send(Publish(topic_name.encode(), b"%d" % number, 1, packet_id=number))
        if number % 10 == 0:
            await client.subscribe(topic_name, qos=1)
    assert [int((await client.take_message()).payload) for _ in numbers] == list(numbers)


@pytest.mark.statement("MQTT5-3.8.3-3")
async def test_no_local_keeps_a_clients_own_messages_from_it(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, other = await clients.connect(), await clients.connect()
    for each in (client, other):
        await each.subscribe(SubscriptionRequest(topic_name, 1, no_local=True))
    await client.publish(topic_name, b"own", qos=1)
    assert (await other.take_message()).payload == b"own"
    await other.publish(topic_name, b"other's", qos=1)
    assert (await client.take_message()).payload == b"other's"
    await client.publish(topic_name, b"own again", qos=1)
    assert (await other.take_message()).payload == b"own again"


@pytest.mark.statement("MQTT5-3.8.3-4")
async def test_no_local_on_a_shared_subscription_is_a_protocol_error(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(frame(0x82, b"\0\1\0", string(f"$share/group/{new_topic_name()}"), b"\x04"))
    await client.closed_for(ReasonCode.PROTOCOL_ERROR, ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\0\1\0", id="no-filter", marks=pytest.mark.statement("MQTT5-3.8.3-2")),
        pytest.param(b"\0\1\0" + string(b"a\xff") + b"\0", id="no-utf8", marks=pytest.mark.statement("MQTT5-3.8.3-1")),
        pytest.param(b"\0\1\0" + string("a") + b"\x40", id="bit-6", marks=pytest.mark.statement("MQTT5-3.8.3-5")),
        pytest.param(b"\0\1\0" + string("a") + b"\x80", id="bit-7", marks=pytest.mark.statement("MQTT5-3.8.3-5")),
        pytest.param(b"\0\1\0" + string("a") + b"\x03", id="qos-3", marks=pytest.mark.statement("MQTT5-3.8.3-5")),
        pytest.param(
            b"\0\1\0" + string("a") + b"\x30", id="retain-handling-3", marks=pytest.mark.statement("MQTT5-3.8.3-5")
        ),
        pytest.param(b"\0\1\0" + string("a"), id="no-options", marks=pytest.mark.statement("MQTT5-4.13.1-1")),
        pytest.param(
            b"\0\1\2\x0b\0" + string("a") + b"\0",
            id="subscription-identifier-0",
            marks=pytest.mark.statement("MQTT5-4.13.1-1"),
        ),
        pytest.param(
            b"\0\1\4\x0b\1\x0b\2" + string("a") + b"\0",
            id="two-subscription-identifiers",
            marks=pytest.mark.statement("MQTT5-4.13.1-1"),
        ),
    ],
)
async def test_a_malformed_subscribe_closes(clients: Clients, body: bytes) -> None:
    client = await clients.connect()
    await client.send(frame(0x82, body))
    await client.closed_for(*MALFORMED)


@pytest.mark.statement("MQTT5-3.8.1-1", "MQTT5-2.1.3-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
async def test_subscribe_with_other_flags_than_0010_is_malformed(clients: Clients, flags: int) -> None:
    client = await clients.connect()
    await client.send(frame(0x80 | flags, b"\0\1\0", string(new_topic_name()), b"\0"))
    await client.closed_for(ReasonCode.MALFORMED_PACKET)


@pytest.mark.statement("MQTT5-3.10.1-1", "MQTT5-2.1.3-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
async def test_unsubscribe_with_other_flags_than_0010_is_malformed(clients: Clients, flags: int) -> None:
    client = await clients.connect()
    await client.send(frame(0xA0 | flags, b"\0\1\0", string(new_topic_name())))
    await client.closed_for(ReasonCode.MALFORMED_PACKET)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\0\1\0", id="no-filter", marks=pytest.mark.statement("MQTT5-3.10.3-2")),
        pytest.param(b"\0\1\0" + string(b"a\xff"), id="no-utf8", marks=pytest.mark.statement("MQTT5-3.10.3-1")),
        pytest.param(b"\0\1\0\0\5a", id="cut-off", marks=pytest.mark.statement("MQTT5-4.13.1-1")),
    ],
)
async def test_a_malformed_unsubscribe_closes(clients: Clients, body: bytes) -> None:
    client = await clients.connect()
    await client.send(frame(0xA2, body))
    await client.closed_for(*MALFORMED)


@pytest.mark.statement("MQTT5-3.10.4-4", "MQTT5-3.10.4-5", "MQTT5-2.2.1-6", "MQTT5-3.11.3-2")
async def test_an_unsubscribe_is_answered_even_if_nothing_was_deleted(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(Unsubscribe(815, (new_topic_name(),)))
    unsuback = await client.receive(Unsuback)
    assert unsuback.packet_id == 815
    assert unsuback.reason_codes == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)


@pytest.mark.statement("MQTT5-3.10.4-6", "MQTT5-3.11.3-1")
async def test_many_filters_have_one_unsuback_with_their_codes_in_order(clients: Clients) -> None:
    client = await clients.connect()
    filters = [new_topic_name() for _ in range(5)]
    await client.subscribe(*filters[::2])
    unsuback = await client.unsubscribe(*filters)
    assert unsuback.reason_codes == (0x00, 0x11, 0x00, 0x11, 0x00)
    await client.ping()


@pytest.mark.statement("MQTT5-3.10.4-2", "MQTT5-3.10.4-1")
async def test_after_unsuback_no_new_messages_come(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    await client.subscribe(topic_name)
    await client.unsubscribe(topic_name)
    await publisher.publish(topic_name, b"unheard", qos=1)
    await client.subscribe(topic_name)
    await publisher.publish(topic_name, b"heard", qos=1)
    assert (await client.message()).payload == b"heard"


@pytest.mark.statement("MQTT5-3.10.4-1")
async def test_filters_are_compared_literally(clients: Clients) -> None:
    """A filter that matches the same names is another filter."""
    topic_name = new_topic_name()
    client = await clients.connect()
    if await lacks_wildcards(client):
        return
    await client.subscribe(f"{topic_name}/+")
    others = (f"{topic_name}/#", f"{topic_name}/a", f"{topic_name}/+/", topic_name.upper(), f"/{topic_name}/+")
    assert set((await client.unsubscribe(*others)).reason_codes) == {ReasonCode.NO_SUBSCRIPTION_EXISTED}
    await client.publish(f"{topic_name}/a", b"still there")
    assert (await client.message()).payload == b"still there"
    assert (await client.unsubscribe(f"{topic_name}/+")).reason_codes == (ReasonCode.SUCCESS,)


@pytest.mark.statement("MQTT5-3.10.4-3")
@pytest.mark.parametrize("qos", [1, 2])
async def test_deliveries_that_have_begun_are_finished_after_unsubscribe(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    if await lacks_qos_2(await clients.connect()):
        return
    await client.subscribe(topic_name, qos=qos)
    await publisher.publish(topic_name, b"x", qos=qos)
    packet_id = (await client.message()).packet_id
    await client.unsubscribe(topic_name)
    if qos == 1:
        await client.send(Puback(packet_id))
    else:
        await client.send(Pubrec(packet_id))
        assert await client.receive(Pubrel) == Pubrel(packet_id)
        await client.send(Pubcomp(packet_id))
    await client.ping()
