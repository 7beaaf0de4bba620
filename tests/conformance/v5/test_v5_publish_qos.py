"""PUBLISH and its three flows (§3.3.1, §3.4 to §3.7, §4.3, §4.6)."""

from __future__ import annotations

import pytest
from support.conformance import Client, Clients, frame, new_topic_name, publish_frame
from support.limited import lacks_qos_2

from edge.wire import Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel, ReasonCode


async def _pair(clients: Clients, topic_name: str, qos: int) -> tuple[Client, Client]:
    """A publisher, and a subscriber who was granted `qos`."""
    subscriber = await clients.connect()
    suback = await subscriber.subscribe(topic_name, qos=qos)
    assert not suback.reason_codes[0].is_error
    return await clients.connect(), subscriber


@pytest.mark.statement("MQTT5-4.3.1-1", "MQTT5-3.3.1-2", "MQTT5-2.2.1-2", "MQTT5-2.2.2-1")
async def test_qos_0_is_delivered_without_dup_and_packet_id(clients: Clients) -> None:
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, 0)
    await publisher.publish(topic_name, b"payload")
    assert (await subscriber.message()).payload == b"payload"
    first_byte, body = subscriber.frames[-1]
    assert first_byte == 0x30
    assert body[2 + len(topic_name) :] == b"\0payload", "topic name, no packet id, property length 0"
    await publisher.ping()


@pytest.mark.statement("MQTT5-3.3.1-4", "MQTT5-4.13.1-1")
async def test_qos_3_is_malformed(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(publish_frame(new_topic_name(), first_byte=0x36, packet_id=1))
    await client.closed_for(ReasonCode.MALFORMED_PACKET)


@pytest.mark.statement("MQTT5-3.3.1-2", "MQTT5-4.3.1-1")
async def test_dup_on_qos_0_is_malformed(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(publish_frame(new_topic_name(), first_byte=0x38))
    await client.closed_for(ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.statement("MQTT5-2.2.1-3")
@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(publish_frame("a/b", first_byte=0x32, packet_id=0), id="PUBLISH-1"),
        pytest.param(publish_frame("a/b", first_byte=0x34, packet_id=0), id="PUBLISH-2"),
        pytest.param(frame(0x82, b"\0\0\0\0\3a/b\0"), id="SUBSCRIBE"),
        pytest.param(frame(0xA2, b"\0\0\0\0\3a/b"), id="UNSUBSCRIBE"),
    ],
)
async def test_packet_id_0_is_an_error(clients: Clients, packet: bytes) -> None:
    client = await clients.connect()
    await client.send(packet)
    await client.closed_for(ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.statement("MQTT5-3.3.4-1", "MQTT5-4.3.2-4", "MQTT5-2.2.1-5", "MQTT5-3.4.2-1")
@pytest.mark.parametrize("packet_id", [1, 256, 65_535])
async def test_qos_1_is_answered_by_puback_with_its_id(clients: Clients, packet_id: int) -> None:
    client = await clients.connect()
    await client.send(Publish(new_topic_name().encode(), b"x", 1, packet_id=packet_id))
    puback = await client.receive(Puback)
    assert puback.packet_id == packet_id
    assert puback.reason_code in (ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS)


@pytest.mark.statement("MQTT5-4.3.2-5", "MQTT5-3.3.1-3")
@pytest.mark.parametrize("dup", [False, True])
async def test_after_puback_the_same_id_is_a_new_message(clients: Clients, dup: bool) -> None:
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, 1)
    for payload in (b"1", b"2"):
        await publisher.send(Publish(topic_name.encode(), payload, 1, packet_id=9, dup=dup))
        assert (await publisher.receive(Puback)).packet_id == 9
    messages = [await subscriber.take_message() for _ in range(2)]
    assert [(each.payload, each.dup) for each in messages] == [(b"1", False), (b"2", False)]


@pytest.mark.statement("MQTT5-3.3.1-3", "MQTT5-4.3.2-2", "MQTT5-4.3.3-2", "MQTT5-3.3.1-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_first_delivery_has_its_qos_and_dup_0(clients: Clients, qos: int) -> None:
    """Whatever the publisher's DUP was."""
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, qos)
    if await lacks_qos_2(subscriber):
        return
    await publisher.send(Publish(topic_name.encode(), b"x", qos, dup=True, packet_id=5))
    if qos == 2:
        await publisher.receive(Pubrec)
        await publisher.send(Pubrel(5))
    message = await subscriber.message()
    assert (message.qos, message.dup) == (qos, False)
    assert message.packet_id > 0


@pytest.mark.statement("MQTT5-2.2.1-4", "MQTT5-4.3.2-1", "MQTT5-4.3.2-3", "MQTT5-4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_the_servers_packet_ids_are_free_ones(clients: Clients, qos: int) -> None:
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, qos)
    if await lacks_qos_2(subscriber):
        return
    for number in range(8):
        await publisher.publish(topic_name, b"%d" % number, qos=qos)
    sent = [await subscriber.message() for _ in range(8)]
    assert len({message.packet_id for message in sent}) == 8
    assert all(message.packet_id > 0 for message in sent)
    await subscriber.finish(sent[3])
    await publisher.publish(topic_name, b"8", qos=qos)
    assert (await subscriber.message()).packet_id not in {each.packet_id for each in sent if each is not sent[3]}


@pytest.mark.statement("MQTT5-4.3.3-8", "MQTT5-4.3.3-11", "MQTT5-2.2.1-5", "MQTT5-3.5.2-1", "MQTT5-3.7.2-1")
async def test_qos_2_is_received_in_two_steps(clients: Clients) -> None:
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, 0)
    if await lacks_qos_2(publisher):
        return
    await publisher.send(Publish(topic_name.encode(), b"x", 2, packet_id=300))
    pubrec = await publisher.receive(Pubrec)
    assert pubrec.packet_id == 300
    assert pubrec.reason_code in (ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS)
    await publisher.send(Pubrel(300))
    pubcomp = await publisher.receive(Pubcomp)
    assert (pubcomp.packet_id, pubcomp.reason_code) == (300, ReasonCode.SUCCESS)
    assert (await subscriber.message()).payload == b"x"


@pytest.mark.statement("MQTT5-4.3.3-10")
async def test_until_pubrel_a_repeat_is_no_new_message(clients: Clients) -> None:
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, 2)
    if await lacks_qos_2(publisher):
        return
    for dup in (False, True, True):
        await publisher.send(Publish(topic_name.encode(), b"once", 2, dup=dup, packet_id=7))
        assert (await publisher.receive(Pubrec)).packet_id == 7
    await publisher.send(Pubrel(7))
    assert (await publisher.receive(Pubcomp)).packet_id == 7
    await publisher.publish(topic_name, b"marker", qos=2)
    assert [(await subscriber.take_message()).payload for _ in range(2)] == [b"once", b"marker"]


@pytest.mark.statement("MQTT5-4.3.3-12")
@pytest.mark.parametrize("dup", [False, True])
async def test_after_pubcomp_the_same_id_is_a_new_message(clients: Clients, dup: bool) -> None:
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, 2)
    if await lacks_qos_2(publisher):
        return
    for payload in (b"1", b"2"):
        await publisher.send(Publish(topic_name.encode(), payload, 2, dup=dup, packet_id=7))
        assert (await publisher.receive(Pubrec)).packet_id == 7
        await publisher.send(Pubrel(7))
        assert (await publisher.receive(Pubcomp)).packet_id == 7
    assert [(await subscriber.take_message()).payload for _ in range(2)] == [b"1", b"2"]


@pytest.mark.statement("MQTT5-4.3.3-9", "MQTT5-3.5.2-1")
async def test_after_a_refusing_pubrec_the_id_is_free(clients: Clients) -> None:
    """What a server refuses is its business: a payload that is not the UTF-8 it says to be may be refused."""
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, 2)
    if await lacks_qos_2(publisher):
        return
    await publisher.send(publish_frame(topic_name, b"\xff", 0x34, packet_id=3, more=b"\2\1\1"), Pingreq())
    pubrec = await publisher.take(Pubrec)
    await publisher.take(Pingresp)
    assert pubrec.packet_id == 3
    if not pubrec.reason_code.is_error:
        await publisher.send(Pubrel(3))
        await publisher.take(Pubcomp)
        assert (await subscriber.take_message()).payload == b"\xff"
    await publisher.send(Publish(topic_name.encode(), b"new", 2, packet_id=3))
    assert (await publisher.receive(Pubrec)).reason_code is ReasonCode.SUCCESS
    await publisher.send(Pubrel(3))
    assert (await publisher.receive(Pubcomp)).packet_id == 3
    assert (await subscriber.take_message()).payload == b"new"


@pytest.mark.statement("MQTT5-4.3.3-4", "MQTT5-4.3.3-6", "MQTT5-3.6.2-1", "MQTT5-2.2.1-5")
async def test_qos_2_is_sent_in_two_steps(clients: Clients) -> None:
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, 2)
    if await lacks_qos_2(publisher):
        return
    await publisher.publish(topic_name, b"x", qos=2)
    packet_id = (await subscriber.message()).packet_id
    await subscriber.send(Pubrec(packet_id))
    pubrel = await subscriber.receive(Pubrel)
    assert (pubrel.packet_id, pubrel.reason_code) == (packet_id, ReasonCode.SUCCESS)
    await subscriber.send(Pubcomp(packet_id))
    await subscriber.ping()


@pytest.mark.statement("MQTT5-4.3.3-7")
async def test_a_qos_2_message_that_was_sent_does_not_expire(clients: Clients) -> None:
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, 2)
    if await lacks_qos_2(publisher):
        return
    await publisher.publish(topic_name, b"x", qos=2, message_expiry_interval_s=1)
    packet_id = (await subscriber.message()).packet_id
    await subscriber.silent_for(1.5)
    await subscriber.send(Pubrec(packet_id))
    assert (await subscriber.receive(Pubrel)).packet_id == packet_id
    await subscriber.send(Pubcomp(packet_id))
    await subscriber.ping()


@pytest.mark.statement("MQTT5-4.3.3-13")
async def test_the_flow_of_a_qos_2_message_that_has_expired_is_finished(clients: Clients) -> None:
    topic_name = new_topic_name()
    publisher = await clients.connect()
    if await lacks_qos_2(publisher):
        return
    await publisher.send(publish_frame(topic_name, b"x", 0x34, packet_id=4, more=b"\5\2\0\0\0\1"))
    assert (await publisher.receive(Pubrec)).packet_id == 4
    await publisher.silent_for(1.5)
    await publisher.send(Pubrel(4))
    pubcomp = await publisher.receive(Pubcomp)
    assert (pubcomp.packet_id, pubcomp.reason_code) == (4, ReasonCode.SUCCESS)


@pytest.mark.statement("MQTT5-3.7.2-1", "MQTT5-3.6.2-1")
async def test_unknown_packet_ids_are_answered_and_said_to_be_unknown(clients: Clients) -> None:
    """PUBREL -> PUBCOMP, PUBREC -> PUBREL, both with 0x92 (or 0x00); unknown PUBACK and PUBCOMP do no harm."""
    client = await clients.connect()
    if await lacks_qos_2(client):
        return
    said = (ReasonCode.SUCCESS, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
    await client.send(Pubrel(1_234))
    pubcomp = await client.receive(Pubcomp)
    assert (pubcomp.packet_id, pubcomp.reason_code in said) == (1_234, True)
    await client.send(Pubrec(1_235))
    pubrel = await client.receive(Pubrel)
    assert (pubrel.packet_id, pubrel.reason_code in said) == (1_235, True)
    await client.send(Puback(1_236), Pubcomp(1_237))
    await client.ping()


@pytest.mark.statement("MQTT5-3.6.1-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
async def test_pubrel_with_other_flags_than_0010_is_malformed(clients: Clients, flags: int) -> None:
    client = await clients.connect()
    await client.send(frame(0x60 | flags, b"\0\1"))
    await client.closed_for(ReasonCode.MALFORMED_PACKET)


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(frame(0x40, b"\0\1\x18"), id="PUBACK", marks=pytest.mark.statement("MQTT5-3.4.2-1")),
        pytest.param(frame(0x50, b"\0\1\x18"), id="PUBREC", marks=pytest.mark.statement("MQTT5-3.5.2-1")),
        pytest.param(frame(0x62, b"\0\1\x10"), id="PUBREL", marks=pytest.mark.statement("MQTT5-3.6.2-1")),
        pytest.param(frame(0x70, b"\0\1\x10"), id="PUBCOMP", marks=pytest.mark.statement("MQTT5-3.7.2-1")),
    ],
)
async def test_a_reason_code_that_is_not_listed_is_an_error(clients: Clients, packet: bytes) -> None:
    client = await clients.connect()
    await client.send(packet)
    await client.closed_for(ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.statement("MQTT5-4.6.0-5", "MQTT5-4.6.0-6", "MQTT5-3.3.4-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_come_in_the_order_in_which_they_were_sent(clients: Clients, qos: int) -> None:
    """And so do the acknowledgements, if all are sent at once."""
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, qos)
    if await lacks_qos_2(publisher):
        return
    numbers = range(1, 16)
    name = topic_name.encode()
    await publisher.send(*[Publish(name, b"%d" % each, qos, packet_id=each if qos else 0) for each in numbers])
    if qos == 1:
        assert [(await publisher.receive(Puback)).packet_id for _ in numbers] == list(numbers)
    if qos == 2:
        assert [(await publisher.receive(Pubrec)).packet_id for _ in numbers] == list(numbers)
        await publisher.send(*[Pubrel(each) for each in numbers])
        assert [(await publisher.receive(Pubcomp)).packet_id for _ in numbers] == list(numbers)
    assert [int((await subscriber.take_message()).payload) for _ in numbers] == list(numbers)


@pytest.mark.statement("MQTT5-4.6.0-2", "MQTT5-4.5.0-2")
async def test_acknowledgements_in_another_order_are_taken_all_the_same(clients: Clients) -> None:
    topic_name = new_topic_name()
    publisher, subscriber = await _pair(clients, topic_name, 1)
    for number in range(3):
        await publisher.publish(topic_name, b"%d" % number, qos=1)
    sent = [await subscriber.message() for _ in range(3)]
    await subscriber.send(*[Puback(message.packet_id) for message in reversed(sent)])
    await subscriber.ping()
    await publisher.publish(topic_name, b"next", qos=1)
    assert (await subscriber.message()).payload == b"next"
