"""Sessions: their begin, what they keep, their end (§3.1.2.4, §3.1.2.11.2, §4.1, §4.4, §4.5)."""

from __future__ import annotations

import pytest
from support.conformance import WAIT_S, Client, Clients, new_topic_name
from support.limited import durable, lacks_qos_2, lacks_sessions

from edge.wire import (
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Will,
)


async def _has_subscription(client: Client, topic_filter: str) -> bool:
    """UNSUBACK tells whether there was one; it is gone afterwards."""
    [code] = (await client.unsubscribe(topic_filter)).reason_codes
    assert code in (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)
    return code is ReasonCode.SUCCESS


@pytest.mark.statement("MQTT5-3.1.2-4", "MQTT5-3.1.4-4", "MQTT5-3.2.2-2")
async def test_clean_start_begins_a_new_session(clients: Clients) -> None:
    topic_name = new_topic_name()
    first = await durable(clients)
    await first.subscribe(topic_name, qos=1)
    await first.disconnect()
    second = await durable(clients, first.client_id, clean_start=True)
    assert not second.connack.session_present
    assert not await _has_subscription(second, topic_name)
    await second.ping()


@pytest.mark.statement("MQTT5-3.1.2-4", "MQTT5-4.1.0-1")
async def test_clean_start_drops_messages_that_waited(clients: Clients) -> None:
    topic_name = new_topic_name()
    first = await durable(clients)
    await first.subscribe(topic_name, qos=1)
    await first.disconnect()
    publisher = await clients.connect()
    await publisher.publish(topic_name, b"before", qos=1)
    second = await durable(clients, first.client_id, clean_start=True)
    await second.subscribe(topic_name, qos=1)
    await publisher.publish(topic_name, b"after", qos=1)
    assert (await second.take_message()).payload == b"after"


@pytest.mark.statement("MQTT5-3.1.2-5", "MQTT5-3.2.2-3", "MQTT5-3.1.2-23", "MQTT5-3.1.4-4")
async def test_a_session_is_resumed_with_its_subscriptions(clients: Clients) -> None:
    topic_name = new_topic_name()
    first = await durable(clients)
    await first.subscribe(topic_name, qos=1)
    if await lacks_sessions(clients, first):
        return
    await first.disconnect()
    second = await durable(clients, first.client_id)
    assert second.connack.session_present
    await second.publish(topic_name, b"still subscribed", qos=1)
    assert (await second.take_message()).payload == b"still subscribed"
    assert await _has_subscription(second, topic_name)


@pytest.mark.statement("MQTT5-4.5.0-1", "MQTT5-3.1.2-5", "MQTT5-4.6.0-5")
@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_wait_for_every_session_that_matches(clients: Clients, qos: int) -> None:
    """In order, for those who are away; and for one who is there."""
    topic_name = new_topic_name()
    away = [await durable(clients) for _ in range(3)]
    there = await clients.connect()
    for client in (*away, there):
        await client.subscribe(topic_name, qos=qos)
    if await lacks_sessions(clients, away[0]) or await lacks_qos_2(there):
        return
    await away[0].disconnect()
    await away[1].disconnect()
    await away[2].close()
    publisher = await clients.connect()
    payloads = [b"%d" % number for number in range(10)]
    for payload in payloads:
        await publisher.publish(topic_name, payload, qos=qos)
    for client in (there, *[await durable(clients, each.client_id) for each in away]):
        assert client is there or client.connack.session_present
        messages = [await client.take_message() for _ in payloads]
        assert [message.payload for message in messages] == payloads
        assert {message.qos for message in messages} == {qos}


@pytest.mark.statement("MQTT5-3.1.2-6", "MQTT5-3.2.2-3")
async def test_without_a_session_to_resume_a_new_one_begins(clients: Clients) -> None:
    client = await durable(clients)
    assert not client.connack.session_present
    topic_name = new_topic_name()
    await client.subscribe(topic_name)
    await client.publish(topic_name, b"works")
    assert (await client.message()).payload == b"works"


@pytest.mark.statement("MQTT5-4.1.0-2", "MQTT5-3.2.2-3")
@pytest.mark.parametrize("wishes", [Properties(), Properties(session_expiry_interval_s=0)])
@pytest.mark.parametrize("ends_with_disconnect", [True, False])
async def test_without_expiry_interval_a_session_ends_with_its_connection(
    clients: Clients, wishes: Properties, ends_with_disconnect: bool
) -> None:
    topic_name = new_topic_name()
    first = await clients.connect(clean_start=False, properties=wishes)
    await first.subscribe(topic_name)
    await (first.disconnect() if ends_with_disconnect else first.close())
    second = await clients.connect(first.client_id, clean_start=False)
    assert not second.connack.session_present
    assert not await _has_subscription(second, topic_name)


@pytest.mark.statement("MQTT5-4.1.0-2", "MQTT5-3.1.2-23", "MQTT5-3.1.2-8")
async def test_a_session_ends_when_its_expiry_interval_has_passed(clients: Clients) -> None:
    """Its end is seen by the will, whose delay would be longer."""
    topic_name = new_topic_name()
    witness = await clients.connect()
    await witness.subscribe(topic_name)
    will = Will(topic_name, b"over", properties=Properties(will_delay_interval_s=1_000))
    first = await clients.connect(clean_start=False, will=will, properties=Properties(session_expiry_interval_s=1))
    await first.close()
    assert (await witness.take(Publish, wait_s=15)).payload == b"over"
    second = await durable(clients, first.client_id)
    assert not second.connack.session_present


@pytest.mark.statement("MQTT5-3.1.2-23")
async def test_a_session_that_never_expires_is_granted_or_lowered(clients: Clients) -> None:
    never = Properties(session_expiry_interval_s=0xFFFFFFFF)
    first = await clients.connect(clean_start=False, properties=never)
    await first.close()
    second = await clients.connect(first.client_id, clean_start=False, properties=never)
    assert second.connack.session_present == (first.session_expiry_s(1) > 0)
    await second.disconnect(session_expiry_interval_s=0)


@pytest.mark.statement("MQTT5-3.1.2-23", "MQTT5-4.1.0-2")
async def test_disconnect_may_end_the_session(clients: Clients) -> None:
    first = await durable(clients)
    await first.disconnect(session_expiry_interval_s=0)
    second = await durable(clients, first.client_id)
    assert not second.connack.session_present


@pytest.mark.statement("MQTT5-3.1.2-23")
async def test_a_takeover_resumes_the_session(clients: Clients) -> None:
    """Both for the one who takes over and for the one who comes later."""
    topic_name = new_topic_name()
    first = await durable(clients)
    await first.subscribe(topic_name, qos=1)
    second = await durable(clients, first.client_id)
    await first.closed_for(ReasonCode.SESSION_TAKEN_OVER, wait_s=WAIT_S)
    assert second.connack.session_present == (second.session_expiry_s(60) > 0)
    await second.close()
    third = await durable(clients, first.client_id)
    assert third.connack.session_present == (third.session_expiry_s(60) > 0)


@pytest.mark.statement("MQTT5-4.4.0-1", "MQTT5-3.3.1-1", "MQTT5-4.3.2-3", "MQTT5-4.1.0-1")
async def test_unacknowledged_qos_1_is_sent_again_with_its_id_in_order(clients: Clients) -> None:
    topic_name = new_topic_name()
    first = await durable(clients)
    await first.subscribe(topic_name, qos=1)
    publisher = await clients.connect()
    for payload in (b"1", b"2", b"3"):
        await publisher.publish(topic_name, payload, qos=1)
    sent = [await first.message() for _ in range(3)]
    await first.send(Puback(sent[0].packet_id))
    await first.ping()
    if await lacks_sessions(clients, first):
        return
    await first.close()
    second = await durable(clients, first.client_id)
    again = [await second.message() for _ in range(2)]
    assert [(each.packet_id, each.payload, each.dup) for each in again] == [
        (each.packet_id, each.payload, True) for each in sent[1:]
    ]
    await second.ping()


@pytest.mark.statement("MQTT5-4.4.0-1")
async def test_nothing_is_sent_again_while_connected(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.connect()
    await client.subscribe(topic_name, qos=1)
    publisher = await clients.connect()
    await publisher.publish(topic_name, b"1", qos=1)
    assert (await client.message()).payload == b"1"
    await client.silent_for(1.5)
    await publisher.publish(topic_name, b"2", qos=1)
    assert (await client.message()).payload == b"2"
    await client.ping()


@pytest.mark.statement("MQTT5-4.4.0-1", "MQTT5-4.3.3-3", "MQTT5-3.3.1-1")
async def test_qos_2_without_pubrec_is_published_again(clients: Clients) -> None:
    topic_name = new_topic_name()
    first = await durable(clients)
    await first.subscribe(topic_name, qos=2)
    publisher = await clients.connect()
    if await lacks_sessions(clients, first) or await lacks_qos_2(publisher):
        return
    await publisher.publish(topic_name, b"x", qos=2)
    sent = await first.message()
    await first.close()
    second = await durable(clients, first.client_id)
    again = await second.message()
    assert (again.packet_id, again.payload, again.qos, again.dup) == (sent.packet_id, b"x", 2, True)


@pytest.mark.statement("MQTT5-4.4.0-1", "MQTT5-4.3.3-5", "MQTT5-4.3.3-6")
async def test_qos_2_with_pubrec_goes_on_with_pubrel(clients: Clients) -> None:
    """No PUBLISH any more: the PUBREL with its id is sent again, until PUBCOMP."""
    topic_name = new_topic_name()
    client = await durable(clients)
    await client.subscribe(topic_name, qos=2)
    publisher = await clients.connect()
    if await lacks_sessions(clients, client) or await lacks_qos_2(publisher):
        return
    await publisher.publish(topic_name, b"x", qos=2)
    packet_id = (await client.message()).packet_id
    await client.send(Pubrec(packet_id))
    assert (await client.receive(Pubrel)).packet_id == packet_id
    for _ in range(2):
        await client.close()
        client = await durable(clients, client.client_id)
        assert (await client.receive(Pubrel)).packet_id == packet_id
    await client.send(Pubcomp(packet_id))
    await client.ping()
    await client.disconnect()
    await (await durable(clients, client.client_id)).ping()


@pytest.mark.statement("MQTT5-4.4.0-2")
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_refusing_acknowledgement_is_one(clients: Clients, qos: int) -> None:
    """PUBACK or PUBREC of 0x80 and above: the message is not sent again."""
    topic_name = new_topic_name()
    first = await durable(clients)
    await first.subscribe(topic_name, qos=qos)
    publisher = await clients.connect()
    if await lacks_sessions(clients, first) or await lacks_qos_2(publisher):
        return
    await publisher.publish(topic_name, b"refused", qos=qos)
    packet_id = (await first.message()).packet_id
    await first.send((Puback if qos == 1 else Pubrec)(packet_id, ReasonCode.QUOTA_EXCEEDED))
    await first.ping()
    await first.close()
    second = await durable(clients, first.client_id)
    await publisher.publish(topic_name, b"next", qos=qos)
    message = await second.message()
    assert (message.payload, message.dup) == (b"next", False)


@pytest.mark.statement("MQTT5-4.3.3-10", "MQTT5-4.1.0-1", "MQTT5-3.1.2-5")
async def test_an_id_between_pubrec_and_pubrel_is_known_to_the_session(clients: Clients) -> None:
    """The publisher resends after its return: PUBREC once more, one delivery."""
    topic_name = new_topic_name()
    witness = await clients.connect()
    await witness.subscribe(topic_name)
    publisher = await durable(clients)
    if await lacks_sessions(clients, publisher) or await lacks_qos_2(witness):
        return
    packet = Publish(topic_name.encode(), b"once", 2, packet_id=77)
    await publisher.send(packet)
    assert (await publisher.receive(Pubrec)).packet_id == 77
    await publisher.close()
    publisher = await durable(clients, publisher.client_id)
    packet.dup = True
    await publisher.send(packet)
    assert (await publisher.receive(Pubrec)).packet_id == 77
    await publisher.send(Pubrel(77))
    assert (await publisher.receive(Pubcomp)).packet_id == 77
    await publisher.publish(topic_name, b"marker", qos=2)
    assert [(await witness.message()).payload for _ in range(2)] == [b"once", b"marker"]


@pytest.mark.statement("MQTT5-3.1.3-2")
async def test_sessions_are_told_apart_by_client_id(clients: Clients) -> None:
    first, other = await durable(clients), await durable(clients)
    topic_name = new_topic_name()
    await first.subscribe(topic_name)
    assert not await _has_subscription(other, topic_name)
    assert await _has_subscription(first, topic_name)
