"""Clients of MQTT 3.1, protocol name MQIsdp, level 3: another specification, which 3.1.1 lets a server serve, too."""

from __future__ import annotations

import pytest
from conformance.v311.flows import frame, grant, raw_connect, string
from support.conformance import Clients, new_client_id, new_topic_name

from edge.wire import Connack, Puback, Publish, Pubrec, Pubrel, ReasonCode, Suback, Unsuback, Will


def _connect_31(*fields: bytes, flags: int = 0x02, level: int = 3) -> bytes:
    return raw_connect(flags, *fields, name=b"MQIsdp", level=level)


@pytest.mark.statement("MQTT311-3.1.2-1", "MQTT311-3.1.4-4")
async def test_mqisdp_with_level_3_is_accepted(clients: Clients) -> None:
    client = await clients.dial(3)
    await client.send(_connect_31(new_client_id().encode()))
    assert await client.receive(Connack) == Connack()
    assert client.frames == [(0x20, b"\0\0")]
    await client.ping()


@pytest.mark.statement("MQTT311-3.1.2-2", "MQTT311-3.1.2-1")
@pytest.mark.parametrize("level", [0, 2, 4, 5, 6])
async def test_mqisdp_with_another_level_is_refused(clients: Clients, level: int) -> None:
    client = await clients.dial(3)
    await client.send(_connect_31(new_client_id().encode(), level=level))
    assert await client.until_closed() in (
        [],
        [Connack(False, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)],
    )


@pytest.mark.statement("MQTT311-3.1.3-9", "MQTT311-3.1.2-1")
@pytest.mark.parametrize("flags", [0x00, 0x02])
async def test_an_empty_identifier_is_refused_in_3_1(clients: Clients, flags: int) -> None:
    client = await clients.dial(3)
    await client.send(_connect_31(b"", flags=flags))
    assert await client.until_closed() == [Connack(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)]


@pytest.mark.statement("MQTT311-3.3.4-1", "MQTT311-3.1.2-1", "MQTT311-3.8.4-6")
@pytest.mark.parametrize(("sender", "receiver"), [(3, 3), (3, 4), (4, 3), (3, 5), (5, 3)])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_between_versions(clients: Clients, qos: int, sender: int, receiver: int) -> None:
    topic_name = new_topic_name()
    subscriber, publisher = await clients.connect(version=receiver), await clients.connect(version=sender)
    await grant(subscriber, topic_name, qos=qos)
    for number in range(3):
        await publisher.publish(topic_name, f"{number}".encode(), qos)
        message = await subscriber.take_message()
        assert (message.payload, message.qos, message.retain) == (f"{number}".encode(), qos, False)
    await subscriber.unsubscribe(topic_name)
    await subscriber.ping()


@pytest.mark.statement("MQTT311-3.1.2-4", "MQTT311-3.1.2-5", "MQTT311-3.1.2-1")
async def test_a_session_of_3_1_is_durable_without_clean_session(clients: Clients, durable_id: str) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    client = await clients.connect(durable_id, version=3, clean_start=False)
    await grant(client, topic_name, qos=1)
    await client.disconnect()
    await publisher.publish(topic_name, b"queued", 1)
    again = await clients.connect(durable_id, version=3, clean_start=False)
    assert again.frames[0] == (0x20, b"\0\0")  # session present came with 3.1.1: the byte is reserved in 3.1
    assert (await again.take_message()).payload == b"queued"


@pytest.mark.statement("MQTT311-4.4.0-1", "MQTT311-3.1.2-1", "MQTT311-3.3.1-1")
async def test_unfinished_flows_of_3_1_go_on(clients: Clients, durable_id: str) -> None:
    topic_name, publisher = new_topic_name(), await clients.connect()
    client = await clients.connect(durable_id, version=3, clean_start=False)
    await grant(client, topic_name, qos=2)
    for qos in (1, 2, 2):
        await publisher.publish(topic_name, b"x", qos)
    messages = [await client.take(Publish) for _ in range(3)]
    released = next(each for each in messages if each.qos == 2)
    await client.send(Pubrec(released.packet_id))
    await client.take(Pubrel)
    await client.close()
    again = await clients.connect(durable_id, version=3, clean_start=False)
    assert (await again.take(Pubrel)).packet_id == released.packet_id
    resent = [await again.take(Publish) for _ in range(2)]
    assert {each.packet_id for each in resent} == {each.packet_id for each in messages if each is not released}
    assert all(each.dup for each in resent)


@pytest.mark.statement("MQTT311-3.1.2-8", "MQTT311-3.1.2-17", "MQTT311-3.3.1-8", "MQTT311-3.1.2-1")
async def test_wills_and_retained_messages_in_3_1(clients: Clients, retained_name: str) -> None:
    witness = await clients.connect(version=3)
    await grant(witness, retained_name, qos=1)
    await (await clients.connect(version=3, will=Will(retained_name, b"gone", 1, retain=True))).close()
    assert (await witness.take_message()).retain is False
    late = await clients.connect(version=3)
    await grant(late, retained_name, qos=1)
    message = await late.take_message()
    assert (message.payload, message.retain) == (b"gone", True)


@pytest.mark.statement("MQTT311-3.1.2-1", "MQTT311-3.8.4-1", "MQTT311-3.10.4-4")
async def test_3_1_may_set_dup_on_what_it_sends_again(clients: Clients) -> None:
    """SUBSCRIBE, UNSUBSCRIBE and PUBREL had DUP in 3.1 (V3.1 §2.1)."""
    topic_name = new_topic_name()
    client = await clients.connect(version=3)
    await client.send(frame(0x8A, b"\0\1" + string(topic_name.encode()) + b"\1"))
    assert (await client.receive(Suback)).packet_id == 1
    await client.send(Publish(topic_name.encode(), b"x", 1, dup=True, packet_id=2))
    assert (await client.take(Puback)).packet_id == 2
    assert (await client.take_message()).payload == b"x"
    await client.send(frame(0xAA, b"\0\3" + string(topic_name.encode())))
    assert (await client.receive(Unsuback)).packet_id == 3


@pytest.mark.statement("MQTT311-3.1.4-2", "MQTT311-3.1.2-1")
@pytest.mark.parametrize(("old", "new"), [(3, 4), (4, 3), (3, 5), (5, 3)])
async def test_an_identifier_is_taken_over_between_versions(clients: Clients, old: int, new: int) -> None:
    first = await clients.connect(version=old)
    second = await clients.connect(first.client_id, version=new)
    await first.until_closed()
    await second.ping()
