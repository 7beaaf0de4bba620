"""What clients in the field do: allowed by 3.1.1, and easily overlooked."""

from __future__ import annotations

import pytest
from conformance.v311.flows import grant, raw_connect, subscribed
from support.conformance import Clients, new_client_id, new_topic_name

from edge.wire import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
    encode,
)

QOS = pytest.mark.parametrize("qos", [0, 1, 2])


@pytest.mark.statement("MQTT311-3.2.0-1", "MQTT311-3.12.4-1")
async def test_pingreq_right_behind_connect(clients: Clients) -> None:
    client = await clients.dial()
    await client.send(raw_connect(0x02, new_client_id().encode()), Pingreq())
    assert await client.receive(Connack) == Connack()
    await client.receive(Pingresp)


@pytest.mark.statement("MQTT311-3.2.0-1", "MQTT311-3.8.4-1", "MQTT311-3.3.4-1")
@QOS
async def test_everything_is_sent_before_connack_comes(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    client = await clients.dial()
    await client.send(
        raw_connect(0x02, new_client_id().encode()),
        Subscribe(1, (SubscriptionRequest(topic_name, qos),)),
        *(Publish(topic_name.encode(), b"%d" % number, qos, packet_id=qos and 10 + number) for number in range(5)),
        Pingreq(),
    )
    assert await client.receive(Connack) == Connack()
    assert (await client.take(Suback)).packet_id == 1
    for number in range(5):
        if qos == 1:
            assert await client.take(Puback) == Puback(10 + number)
        if qos == 2:
            assert await client.take(Pubrec) == Pubrec(10 + number)
            await client.send(Pubrel(10 + number))
            assert await client.take(Pubcomp) == Pubcomp(10 + number)
    assert [(await client.take_message()).payload for _ in range(5)] == [b"%d" % number for number in range(5)]
    await client.take(Pingresp)


@pytest.mark.statement("MQTT311-4.3.1-1", "MQTT311-3.14.4-1", "MQTT311-3.14.4-3")
async def test_connect_publish_disconnect_in_one_segment(clients: Clients) -> None:
    """As small senders do that sleep most of the time; nothing is read."""
    topic_name = new_topic_name()
    witness = await subscribed(clients, topic_name)
    for number in range(5):
        sender = await clients.dial()
        payload = b"%d" % number
        await sender.send(
            raw_connect(0x02, new_client_id().encode()), Publish(topic_name.encode(), payload), Disconnect()
        )
        assert await sender.until_closed() in ([Connack()], [])
        assert (await witness.take_message()).payload == payload


@pytest.mark.statement("MQTT311-3.3.4-1", "MQTT311-4.3.2-2", "MQTT311-3.14.4-1")
async def test_publish_with_qos_1_and_disconnect_in_one_segment(clients: Clients) -> None:
    """Whether the PUBACK still comes or not: the message was sent before."""
    topic_name = new_topic_name()
    witness, sender = await subscribed(clients, topic_name, qos=1), await clients.connect()
    await sender.send(Publish(topic_name.encode(), b"last words", 1, packet_id=1), Disconnect())
    assert await sender.until_closed() in ([Puback(1)], [])
    assert (await witness.take_message()).payload == b"last words"


@pytest.mark.statement("MQTT311-7.1.1-1", "MQTT311-3.2.0-1", "MQTT311-4.3.3-2")
async def test_one_byte_at_a_time(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.dial()
    packets = (
        raw_connect(0x02, new_client_id().encode()),
        encode(Subscribe(1, (SubscriptionRequest(topic_name, 1),)), 4),
        encode(Publish(topic_name.encode(), b"x" * 200, 2, packet_id=2), 4),
    )
    for byte in b"".join(packets):
        await client.send(bytes((byte,)))
    await client.receive(Connack)
    await client.take(Suback)
    assert await client.take(Pubrec) == Pubrec(2)
    for byte in encode(Pubrel(2), 4) + encode(Pingreq(), 4):
        await client.send(bytes((byte,)))
    assert await client.take(Pubcomp) == Pubcomp(2)
    assert (await client.take_message()).payload == b"x" * 200
    await client.take(Pingresp)


@pytest.mark.statement("MQTT311-3.8.4-4", "MQTT311-3.8.4-5", "MQTT311-3.9.3-1", "MQTT311-3.10.4-6")
async def test_200_filters_in_one_subscribe(clients: Clients) -> None:
    base = new_topic_name()
    client, publisher = await clients.connect(), await clients.connect()
    filters = [f"{base}/{number}" for number in range(200)]
    suback = await grant(client, *filters, qos=1)
    assert len(suback.reason_codes) == 200
    for topic_filter in (filters[0], filters[99], filters[199]):
        await publisher.publish(topic_filter, b"x", 1)
        assert (await client.take_message()).topic_name_utf8 == topic_filter.encode()
    await client.unsubscribe(*filters)
    await client.ping()


@pytest.mark.statement("MQTT311-3.3.4-1", "MQTT311-3.3.1-12")
@QOS
async def test_a_payload_of_no_bytes(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    client, publisher = await subscribed(clients, topic_name, qos=qos), await clients.connect()
    await publisher.publish(topic_name, b"", qos)
    message = await client.take_message()
    assert (message.payload, message.qos) == (b"", qos)


@pytest.mark.statement("MQTT311-7.1.1-1", "MQTT311-3.3.4-1")
@QOS
@pytest.mark.parametrize("size_bytes", [119, 120, 16_375, 16_376, 65_536, 250 * 1024])
async def test_payloads_of_all_sizes(clients: Clients, qos: int, size_bytes: int) -> None:
    """Around the steps of the Remaining Length, and a photograph."""
    topic_name, payload = new_topic_name(), (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
    client, publisher = await subscribed(clients, topic_name, qos=qos), await clients.connect()
    await publisher.publish(topic_name, payload, qos)
    assert (await client.take_message()).payload == payload


@pytest.mark.statement("MQTT311-4.7.1-2", "MQTT311-4.7.1-3", "MQTT311-3.3.2-3")
async def test_a_name_of_60_levels(clients: Clients) -> None:
    base = new_topic_name()
    levels = [base, *(f"level{number}" for number in range(58))]
    topic_name, publisher = "/".join(levels), await clients.connect()
    filters = (topic_name, base + "/#", base + "/+" * 58, "/".join([*levels[:30], "+", *levels[31:]]))
    receivers = [await subscribed(clients, topic_filter, qos=1) for topic_filter in filters]
    await publisher.publish(topic_name, b"deep", 1)
    for receiver in receivers:
        assert (await receiver.take_message()).topic_name_utf8 == topic_name.encode()


@pytest.mark.statement("MQTT311-4.7.3-4", "MQTT311-3.3.2-1", "MQTT311-3.3.1-6")
async def test_unicode_names_retained_and_found_by_wildcard(clients: Clients) -> None:
    base, publisher = new_topic_name(), await clients.connect()
    names = {f"{base}/{text}/🌡" for text in ("Büro", "кухня", "部屋", "مطبخ", "e\u0301", "\u00e9")}
    for topic_name in names:
        await publisher.publish(topic_name, topic_name.encode(), 1, retain=True)
    client = await subscribed(clients, base + "/+/🌡", qos=1)
    assert {(await client.take_message()).topic_name_utf8.decode() for _ in names} == names
    for topic_name in names:
        await publisher.publish(topic_name, b"", 1, retain=True)


@pytest.mark.statement("MQTT311-3.1.4-2", "MQTT311-3.1.3-2")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("hangs_up", [True, False])
async def test_twenty_reconnects_with_one_identifier(
    clients: Clients, durable_id: str, hangs_up: bool, clean: bool
) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    earlier = []
    for number in range(20):
        client = await clients.connect(durable_id, clean_start=clean)
        assert client.connack.session_present is (not clean and number > 0)
        await grant(client, topic_name, qos=1)
        await publisher.publish(topic_name, b"%d" % number, 1)
        assert (await client.take_message()).payload == b"%d" % number
        earlier.append(client)
        if hangs_up:
            await client.ping()  # the PUBACK has been read
            await client.close()
    for client in earlier[:-1]:
        assert hangs_up or await client.until_closed() == []


@pytest.mark.statement("MQTT311-3.1.4-2", "MQTT311-3.2.0-1")
async def test_twenty_connects_at_once_with_one_identifier(clients: Clients) -> None:
    """One stays; each of the others is closed, accepted before or refused."""
    client_id = new_client_id()
    rivals = [await clients.dial() for _ in range(20)]
    for client in rivals:
        await client.send(raw_connect(0x02, client_id.encode()))
    topic_name = new_topic_name()
    last = await clients.connect(client_id)
    for client in rivals:
        assert [type(each) for each in await client.until_closed()] in ([], [Connack])
    await grant(last, topic_name)
    await last.publish(topic_name, b"x")
    assert (await last.take_message()).payload == b"x"


@pytest.mark.statement("MQTT311-2.3.1-3", "MQTT311-4.3.2-2", "MQTT311-4.3.3-2")
async def test_a_client_with_one_packet_identifier(clients: Clients) -> None:
    """Small clients use 1 for everything, one flow after the other."""
    topic_name = new_topic_name()
    client, sender = await subscribed(clients, topic_name, qos=2), await clients.connect()
    for number in range(10):
        await sender.send(Subscribe(1, (SubscriptionRequest(topic_name + "/other"),)))
        await sender.receive(Suback)
        await sender.send(Publish(topic_name.encode(), b"one %d" % number, 1, packet_id=1))
        await sender.receive(Puback)
        assert (await client.take_message()).payload == b"one %d" % number
        await sender.send(Publish(topic_name.encode(), b"two %d" % number, 2, packet_id=1))
        await sender.receive(Pubrec)
        await sender.send(Pubrel(1))
        await sender.receive(Pubcomp)
        assert (await client.take_message()).payload == b"two %d" % number


@pytest.mark.statement("MQTT311-2.3.1-4", "MQTT311-2.3.1-6", "MQTT311-4.3.3-2")
async def test_both_sides_use_the_same_identifier_at_once(clients: Clients) -> None:
    """They are two sets of identifiers."""
    topic_name, publisher = new_topic_name(), await clients.connect()
    client = await subscribed(clients, topic_name, qos=2)
    await publisher.publish(topic_name, b"to the client", 2)
    message = await client.message()
    await client.send(Publish(f"{topic_name}/up".encode(), b"from it", 2, packet_id=message.packet_id))
    assert await client.receive(Pubrec) == Pubrec(message.packet_id)
    await client.send(Pubrec(message.packet_id))
    assert await client.receive(Pubrel) == Pubrel(message.packet_id)
    await client.send(Pubrel(message.packet_id))
    assert await client.receive(Pubcomp) == Pubcomp(message.packet_id)
    await client.send(Pubcomp(message.packet_id))
    await client.ping()


@pytest.mark.statement("MQTT311-3.1.2-4", "MQTT311-3.8.4-3", "MQTT311-4.3.2-1")
async def test_a_client_subscribes_anew_whenever_it_connects(clients: Clients, durable_id: str) -> None:
    """Though its session has the subscription: each message comes once."""
    topic_name, publisher = new_topic_name(), await clients.connect()
    for number in range(5):
        client = await subscribed(clients, topic_name, qos=1, client_id=durable_id)
        await publisher.publish(topic_name, b"%d" % number, 1)
        assert (await client.take_message()).payload == b"%d" % number
        await client.ping()
        await client.disconnect()


@pytest.mark.statement("MQTT311-3.1.2-6", "MQTT311-4.3.2-1")
async def test_late_acknowledgements_of_a_lost_session_do_no_harm(clients: Clients) -> None:
    """A client that reconnects sends what was in its buffer."""
    topic_name = new_topic_name()
    client = await clients.connect()
    await client.send(Puback(77), Pubcomp(78))
    await client.ping()
    await grant(client, topic_name, qos=1)
    await client.publish(topic_name, b"x", 1)
    assert (await client.take_message()).payload == b"x"


@pytest.mark.statement("MQTT311-3.1.3-2", "MQTT311-3.1.3-4")
@pytest.mark.parametrize(
    "pattern",
    ["mqttjs_{}", "mosq-{}", "paho/{}", "{}-1f0e-4d7c-9a53-0242ac120002", "Gerät {}", "{}\u00a0#+$", "a:b@{}"],
)
async def test_identifiers_in_the_wild(clients: Clients, pattern: str) -> None:
    topic_name = new_topic_name()
    client = await clients.connect(pattern.format(new_client_id()))
    await grant(client, topic_name, qos=1)
    await client.publish(topic_name, b"x", 1)
    assert (await client.take_message()).payload == b"x"


@pytest.mark.statement("MQTT311-4.6.0-2", "MQTT311-4.6.0-6")
async def test_500_publishes_in_one_segment(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, sender = await subscribed(clients, topic_name, qos=1), await clients.connect()
    await sender.send(*(Publish(topic_name.encode(), b"%d" % number, 1, packet_id=number) for number in range(1, 501)))
    assert [(await sender.receive(Puback)).packet_id for _ in range(500)] == list(range(1, 501))
    assert [int((await client.take_message()).payload) for _ in range(500)] == list(range(1, 501))


@pytest.mark.statement("MQTT311-3.1.2-23", "MQTT311-3.12.4-1")
@pytest.mark.parametrize("keep_alive_s", [0, 1, 0xFFFF])
async def test_the_limits_of_keep_alive(clients: Clients, keep_alive_s: int) -> None:
    client = await clients.connect(keep_alive_s=keep_alive_s)
    await client.ping()


@pytest.mark.statement("MQTT311-3.1.2-8", "MQTT311-3.1.3-1")
async def test_a_will_of_65535_bytes(clients: Clients) -> None:
    topic_name, payload = new_topic_name(), b"w" * 65_535
    witness = await subscribed(clients, topic_name, qos=1)
    await (await clients.connect(will=Will(topic_name, payload, 1))).close()
    assert (await witness.take_message()).payload == payload


@pytest.mark.statement("MQTT311-3.3.2-3", "MQTT311-3.10.4-4")
async def test_unsubscribe_and_disconnect_in_one_segment(clients: Clients, durable_id: str) -> None:
    topic_name = new_topic_name()
    client = await subscribed(clients, topic_name, qos=1, client_id=durable_id)
    await client.send(Unsubscribe(9, (topic_name,)), Disconnect())
    await client.until_closed()
    await (await clients.connect()).publish(topic_name, b"x", 1)
    again = await clients.connect(durable_id, clean_start=False)
    assert again.connack == Connack(True)
    await again.ping()
