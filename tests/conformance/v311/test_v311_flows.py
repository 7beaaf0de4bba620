"""QoS 0, 1 and 2, both ways (§4.3, §3.3 to §3.7): answers, packet identifiers, DUP, the QoS of a delivery."""

from __future__ import annotations

import pytest
from conformance.v311.flows import bodies, is_answered, is_cut, messages_until, subscribed
from support.conformance import Clients, new_topic_name

from edge.wire import (
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)


@pytest.mark.statement("MQTT311-3.8.4-6", "MQTT311-3.3.4-1", "MQTT311-4.3.1-1", "MQTT311-3.3.2-3", "MQTT311-7.0.0-2")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
async def test_a_message_comes_with_the_lower_qos(clients: Clients, published: int, granted: int) -> None:
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=granted), await clients.connect()
    await publisher.publish(topic_name, b"x", published)
    message = await receiver.take_message()
    assert message == Publish(
        topic_name.encode(), b"x", min(published, granted), False, False, packet_id=message.packet_id
    )
    await receiver.ping()


@pytest.mark.statement("MQTT311-3.3.4-1", "MQTT311-2.3.1-5", "MQTT311-4.3.1-1")
async def test_qos_0_is_not_answered(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(Publish(new_topic_name().encode(), b"x"))
    await client.ping()


@pytest.mark.statement("MQTT311-2.3.1-5", "MQTT311-3.3.1-2", "MQTT311-4.3.1-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_delivery_with_qos_0_has_no_packet_identifier(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name), await clients.connect()
    await publisher.publish(topic_name, b"payload", qos)
    await receiver.message()
    assert bodies(receiver, 0x30) == [len(topic_name).to_bytes(2, "big") + topic_name.encode() + b"payload"]


@pytest.mark.statement("MQTT311-3.3.4-1", "MQTT311-4.3.2-2", "MQTT311-2.3.1-6")
@pytest.mark.parametrize("packet_id", [1, 0x100, 0xFFFF])
async def test_qos_1_is_answered_with_its_identifier(clients: Clients, packet_id: int) -> None:
    client = await clients.connect()
    await client.send(Publish(new_topic_name().encode(), b"x", 1, packet_id=packet_id))
    assert await client.receive(Puback) == Puback(packet_id)
    await client.ping()


@pytest.mark.statement("MQTT311-4.3.2-2", "MQTT311-2.3.1-3")
@pytest.mark.parametrize("dup", [False, True])
async def test_after_puback_the_identifier_is_of_a_new_message(clients: Clients, dup: bool) -> None:
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=1), await clients.connect()
    for payload in (b"first", b"second"):
        await publisher.send(Publish(topic_name.encode(), payload, 1, dup=dup, packet_id=5))
        assert await publisher.receive(Puback) == Puback(5)
    assert [(await receiver.take_message()).payload for _ in range(2)] == [b"first", b"second"]


@pytest.mark.statement("MQTT311-3.3.4-1", "MQTT311-4.3.3-2", "MQTT311-2.3.1-6")
@pytest.mark.parametrize("packet_id", [1, 0x100, 0xFFFF])
async def test_qos_2_is_answered_with_its_identifier(clients: Clients, packet_id: int) -> None:
    client = await clients.connect()
    await client.send(Publish(new_topic_name().encode(), b"x", 2, packet_id=packet_id))
    assert await client.receive(Pubrec) == Pubrec(packet_id)
    await client.send(Pubrel(packet_id))
    assert await client.receive(Pubcomp) == Pubcomp(packet_id)
    await client.ping()


@pytest.mark.statement("MQTT311-4.3.3-2", "MQTT311-2.3.1-2", "MQTT311-2.3.1-3")
@pytest.mark.parametrize("times", [1, 2])  # mosquitto 2.0 closes the connection when it comes a third time
async def test_until_pubrel_a_repeated_publish_is_the_same_message(clients: Clients, times: int) -> None:
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=2), await clients.connect()
    for dup in [False] + [True] * times:
        await publisher.send(Publish(topic_name.encode(), b"once", 2, dup=dup, packet_id=9))
        assert await publisher.receive(Pubrec) == Pubrec(9)
    await publisher.send(Pubrel(9))
    assert await publisher.receive(Pubcomp) == Pubcomp(9)
    await publisher.send(Publish(topic_name.encode(), b"new", 2, packet_id=9))
    assert await publisher.receive(Pubrec) == Pubrec(9)
    await publisher.send(Pubrel(9))
    assert await publisher.receive(Pubcomp) == Pubcomp(9)
    assert [message.payload for message in await messages_until(receiver, b"new")] == [b"once"]


@pytest.mark.statement("MQTT311-4.3.3-2", "MQTT311-2.3.1-6")
async def test_every_pubrel_is_answered(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(Publish(new_topic_name().encode(), b"x", 2, packet_id=3))
    assert await client.receive(Pubrec) == Pubrec(3)
    for _ in range(2):  # the client may not have had the PUBCOMP
        await client.send(Pubrel(3))
        assert await client.receive(Pubcomp) == Pubcomp(3)


@pytest.mark.statement("MQTT311-4.3.3-2")
async def test_qos_1_and_2_share_no_state_but_the_identifier(clients: Clients) -> None:
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=2), await clients.connect()
    for number in range(3):
        await publisher.send(Publish(topic_name.encode(), f"one {number}".encode(), 1, packet_id=4))
        assert await publisher.receive(Puback) == Puback(4)
        assert (await receiver.take_message()).payload == f"one {number}".encode()
        await publisher.send(Publish(topic_name.encode(), f"two {number}".encode(), 2, packet_id=4))
        assert await publisher.receive(Pubrec) == Pubrec(4)
        await publisher.send(Pubrel(4))
        assert await publisher.receive(Pubcomp) == Pubcomp(4)
        assert (await receiver.take_message()).payload == f"two {number}".encode()


@pytest.mark.statement("MQTT311-3.3.1-3", "MQTT311-3.3.1-1", "MQTT311-4.3.2-1", "MQTT311-4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_dup_of_a_publish_is_not_passed_on(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=qos), await clients.connect()
    await publisher.send(Publish(topic_name.encode(), b"x", qos, dup=True, packet_id=1))
    await publisher.receive(Puback if qos == 1 else Pubrec)
    if qos == 2:
        await publisher.send(Pubrel(1))
    message = await receiver.take_message()
    assert (message.qos, message.dup) == (qos, False)


@pytest.mark.statement("MQTT311-2.3.1-4", "MQTT311-4.3.2-1", "MQTT311-4.3.3-1", "MQTT311-2.3.1-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_deliveries_under_way_have_identifiers_of_their_own(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=qos), await clients.connect()
    for number in range(10):
        await publisher.publish(topic_name, f"{number}".encode(), qos)
    messages = [await receiver.message() for _ in range(10)]
    assert len({message.packet_id for message in messages}) == 10
    assert 0 not in {message.packet_id for message in messages}
    await receiver.ping()  # no message comes twice while the connection lasts
    for message in messages:
        await receiver.finish(message)
    await publisher.publish(topic_name, b"last", qos)
    assert (await receiver.take_message()).payload == b"last"


@pytest.mark.statement("MQTT311-4.3.3-1", "MQTT311-2.3.1-6")
async def test_qos_2_out_pubrel_comes_with_the_identifier_until_pubcomp(clients: Clients) -> None:
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=2), await clients.connect()
    await publisher.publish(topic_name, b"x", 2)
    message = await receiver.message()
    for _ in range(2):
        await receiver.send(Pubrec(message.packet_id))
        assert await receiver.receive(Pubrel) == Pubrel(message.packet_id)
    await receiver.send(Pubcomp(message.packet_id))
    await receiver.ping()


@pytest.mark.statement("MQTT311-4.3.2-1", "MQTT311-4.3.3-1", "MQTT311-2.3.1-4")
@pytest.mark.parametrize("qos", [1, 2])
async def test_identifiers_are_free_again_after_the_flow(clients: Clients, qos: int) -> None:
    """More messages one after another than a server would have under way at once."""
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=qos), await clients.connect()
    for number in range(100):
        await publisher.publish(topic_name, f"{number}".encode(), qos)
        message = await receiver.take_message()
        assert (message.payload, message.dup) == (f"{number}".encode(), False)


@pytest.mark.statement("MQTT311-3.12.4-1")
async def test_every_pingreq_is_answered(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(*[Pingreq()] * 20)
    for _ in range(20):
        await client.receive(Pingresp)
    assert bodies(client, 0xD0) == [b""] * 20


@pytest.mark.statement("MQTT311-3.3.1-2", "MQTT311-4.8.0-1")
async def test_dup_with_qos_0_is_a_violation(clients: Clients) -> None:
    await is_cut(clients, b"\x38\x04\x00\x01ax")


@pytest.mark.statement("MQTT311-3.3.1-4", "MQTT311-2.2.2-2", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("first_byte", [0x36, 0x37, 0x3E, 0x3F])
async def test_qos_3_ends_the_connection(clients: Clients, first_byte: int) -> None:
    await is_cut(clients, bytes((first_byte,)) + b"\x06\x00\x01a\x00\x01x")


@pytest.mark.statement("MQTT311-3.3.5-2")
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_publish_that_is_not_allowed_is_answered_as_usual_or_cut(clients: Clients, qos: int) -> None:
    """No server lets a client write its own `$SYS` names."""
    client, topic_name = await clients.connect(), "$SYS/" + new_topic_name()
    witness = await subscribed(clients, "$SYS/conformance/#", qos=2)
    await client.send(Publish(topic_name.encode(), b"forged", qos, packet_id=8))
    await is_answered(client, Puback if qos == 1 else Pubrec)
    await witness.ping()
