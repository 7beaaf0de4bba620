"""What is unfinished when a connection ends (§4.3, §4.4, §4.6): sent again, with the same identifiers, in order."""

from __future__ import annotations

import pytest
from conformance.v311.flows import messages_until, subscribed
from support.conformance import Client, Clients, new_topic_name

from edge.wire import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel

ENDS = pytest.mark.parametrize("ends", ["DISCONNECT", "hangs up", "is taken over"])


async def _again(clients: Clients, client: Client, ends: str = "hangs up") -> Client:
    """The client's session on a new connection."""
    if ends == "DISCONNECT":
        await client.disconnect()
    elif ends == "hangs up":
        await client.close()
    again = await clients.connect(client.client_id, clean_start=False)
    assert again.connack == Connack(True)
    return again


async def _in_flight(clients: Clients, durable_id: str, qos: int, number: int) -> tuple[Client, list[Publish], str]:
    """A durable session with so many unanswered messages, and the name they came under."""
    topic_name, publisher = new_topic_name(), await clients.connect()
    client = await subscribed(clients, topic_name, qos=qos, client_id=durable_id)
    for index in range(number):
        await publisher.publish(topic_name, f"{index}".encode(), qos)
    return client, [await client.message() for _ in range(number)], topic_name


def _resent(messages: list[Publish]) -> list[Publish]:
    return [
        Publish(each.topic_name_utf8, each.payload, each.qos, dup=True, packet_id=each.packet_id) for each in messages
    ]


@pytest.mark.statement(
    "MQTT311-4.4.0-1",
    "MQTT311-4.6.0-1",
    "MQTT311-3.3.1-1",
    "MQTT311-2.3.1-3",
    "MQTT311-2.3.1-4",
    "MQTT311-4.3.2-1",
    "MQTT311-4.3.3-1",
    "MQTT311-4.5.0-2",
)
@ENDS
@pytest.mark.parametrize("qos", [1, 2])
async def test_an_unanswered_publish_comes_again(clients: Clients, durable_id: str, qos: int, ends: str) -> None:
    client, messages, _ = await _in_flight(clients, durable_id, qos, 5)
    again = await _again(clients, client, ends)
    assert [await again.message() for _ in messages] == _resent(messages)
    for message in messages:
        await again.finish(message)
    await again.ping()
    await (await _again(clients, again)).ping()


@pytest.mark.statement("MQTT311-4.4.0-1", "MQTT311-4.6.0-1", "MQTT311-2.3.1-3")
@pytest.mark.parametrize("qos", [1, 2])
async def test_it_comes_again_as_often_as_the_connection_ends(clients: Clients, durable_id: str, qos: int) -> None:
    client, messages, _ = await _in_flight(clients, durable_id, qos, 3)
    for _ in range(3):
        client = await _again(clients, client)
        assert [await client.message() for _ in messages] == _resent(messages)


@pytest.mark.statement("MQTT311-4.4.0-1", "MQTT311-4.3.2-1", "MQTT311-2.3.1-3", "MQTT311-4.6.0-1")
async def test_what_was_acknowledged_does_not_come_again(clients: Clients, durable_id: str) -> None:
    client, messages, _ = await _in_flight(clients, durable_id, 1, 5)
    for message in messages[:2]:
        await client.send(Puback(message.packet_id))
    await client.ping()
    again = await _again(clients, client)
    assert [await again.message() for _ in messages[2:]] == _resent(messages[2:])
    await again.ping()


@pytest.mark.statement("MQTT311-4.4.0-1", "MQTT311-4.3.3-1", "MQTT311-2.3.1-6")
@ENDS
async def test_after_pubrec_the_pubrel_comes_again(clients: Clients, durable_id: str, ends: str) -> None:
    client, (message,), _ = await _in_flight(clients, durable_id, 2, 1)
    await client.send(Pubrec(message.packet_id))
    assert await client.receive(Pubrel) == Pubrel(message.packet_id)
    again = await _again(clients, client, ends)
    assert await again.receive(Pubrel) == Pubrel(message.packet_id)
    await again.send(Pubcomp(message.packet_id))
    await again.ping()
    await (await _again(clients, again)).ping()


@pytest.mark.statement("MQTT311-4.4.0-1", "MQTT311-4.3.3-1", "MQTT311-4.6.0-1")
async def test_publish_and_pubrel_both_come_again(clients: Clients, durable_id: str) -> None:
    client, messages, _ = await _in_flight(clients, durable_id, 2, 6)
    for message in messages[:4]:
        await client.send(Pubrec(message.packet_id))
        assert await client.receive(Pubrel) == Pubrel(message.packet_id)
    for message in messages[:2]:
        await client.send(Pubcomp(message.packet_id))
    await client.ping()
    again = await _again(clients, client)
    for message in messages[2:4]:
        assert await again.take(Pubrel) == Pubrel(message.packet_id)
    assert [await again.take(Publish) for _ in messages[4:]] == _resent(messages[4:])
    await again.ping()


@pytest.mark.statement("MQTT311-2.3.1-4", "MQTT311-4.3.2-1", "MQTT311-4.3.3-1", "MQTT311-4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_new_messages_do_not_take_the_identifiers_in_flight(clients: Clients, durable_id: str, qos: int) -> None:
    client, messages, topic_name = await _in_flight(clients, durable_id, qos, 4)
    again, publisher = await _again(clients, client), await clients.connect()
    for number in range(4):
        await publisher.publish(topic_name, f"new {number}".encode(), qos)
    everything = [await again.message() for _ in range(8)]
    assert [message.dup for message in everything] == [True] * 4 + [False] * 4
    assert everything[:4] == _resent(messages)
    assert len({message.packet_id for message in everything}) == 8


@pytest.mark.statement("MQTT311-4.6.0-1", "MQTT311-4.6.0-6", "MQTT311-3.1.2-5", "MQTT311-4.5.0-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_in_flight_then_queued_then_live(clients: Clients, durable_id: str, qos: int) -> None:
    client, messages, topic_name = await _in_flight(clients, durable_id, qos, 3)
    publisher = await clients.connect()
    await client.disconnect()
    payloads = [f"{number}".encode() for number in range(9)]
    for payload in payloads[3:6]:
        await publisher.publish(topic_name, payload, qos)
    again = await clients.connect(durable_id, clean_start=False)
    for payload in payloads[6:]:
        await publisher.publish(topic_name, payload, qos)
    everything = [await again.take_message() for _ in payloads]
    assert [message.payload for message in everything] == payloads
    assert [message.dup for message in everything] == [True] * 3 + [False] * 6
    assert everything[:3] == _resent(messages)


@pytest.mark.statement("MQTT311-3.10.4-3", "MQTT311-4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_unsubscribe_does_not_stop_what_is_in_flight(clients: Clients, durable_id: str, qos: int) -> None:
    client, messages, topic_name = await _in_flight(clients, durable_id, qos, 2)
    await client.unsubscribe(topic_name)
    again = await _again(clients, client)
    assert [await again.message() for _ in messages] == _resent(messages)
    for message in messages:
        await again.finish(message)
    await again.ping()


@pytest.mark.statement("MQTT311-4.3.3-2", "MQTT311-4.4.0-1", "MQTT311-4.1.0-1", "MQTT311-3.1.2-4")
@ENDS
async def test_a_client_sends_its_qos_2_publish_again(clients: Clients, durable_id: str, ends: str) -> None:
    """The PUBREC was lost; the message must still arrive once."""
    topic_name = new_topic_name()
    receiver = await subscribed(clients, topic_name, qos=2)
    client = await clients.connect(durable_id, clean_start=False)
    await client.send(Publish(topic_name.encode(), b"once", 2, packet_id=7))
    assert await client.receive(Pubrec) == Pubrec(7)
    again = await _again(clients, client, ends)
    await again.send(Publish(topic_name.encode(), b"once", 2, dup=True, packet_id=7))
    assert await again.take(Pubrec) == Pubrec(7)
    await again.send(Pubrel(7))
    assert await again.take(Pubcomp) == Pubcomp(7)
    await again.publish(topic_name, b"marker", 2)
    assert [message.payload for message in await messages_until(receiver, b"marker")] == [b"once"]


@pytest.mark.statement("MQTT311-4.3.3-2", "MQTT311-4.4.0-1", "MQTT311-4.1.0-1", "MQTT311-2.3.1-6")
@ENDS
async def test_a_client_sends_its_pubrel_again(clients: Clients, durable_id: str, ends: str) -> None:
    """The PUBCOMP was lost, or the PUBREL."""
    topic_name = new_topic_name()
    receiver = await subscribed(clients, topic_name, qos=2)
    client = await clients.connect(durable_id, clean_start=False)
    await client.send(Publish(topic_name.encode(), b"once", 2, packet_id=7))
    assert await client.receive(Pubrec) == Pubrec(7)
    for _ in range(2):
        client = await _again(clients, client, ends)
        await client.send(Pubrel(7))
        assert await client.take(Pubcomp) == Pubcomp(7)
    await client.publish(topic_name, b"marker", 2)
    assert [message.payload for message in await messages_until(receiver, b"marker")] == [b"once"]


@pytest.mark.statement("MQTT311-4.3.2-2", "MQTT311-4.4.0-1")
async def test_a_client_sends_its_qos_1_publish_again(clients: Clients, durable_id: str) -> None:
    topic_name = new_topic_name()
    receiver = await subscribed(clients, topic_name, qos=1)
    client = await clients.connect(durable_id, clean_start=False)
    await client.send(Publish(topic_name.encode(), b"x", 1, packet_id=7))
    assert await client.receive(Puback) == Puback(7)
    again = await _again(clients, client)
    await again.send(Publish(topic_name.encode(), b"x", 1, dup=True, packet_id=7))
    assert await again.receive(Puback) == Puback(7)
    assert [(await receiver.take_message()).payload for _ in range(2)] == [b"x", b"x"]


@pytest.mark.statement("MQTT311-4.3.3-2", "MQTT311-3.1.2-6")
async def test_clean_session_1_forgets_the_identifiers_of_qos_2(clients: Clients) -> None:
    """The same identifier is a new message in a new session."""
    topic_name = new_topic_name()
    receiver = await subscribed(clients, topic_name, qos=2)
    client = await clients.connect()
    await client.send(Publish(topic_name.encode(), b"first", 2, packet_id=7))
    assert await client.receive(Pubrec) == Pubrec(7)
    await client.disconnect()
    client = await clients.connect(client.client_id)
    await client.send(Publish(topic_name.encode(), b"second", 2, packet_id=7))
    assert await client.receive(Pubrec) == Pubrec(7)
    await client.send(Pubrel(7))
    assert await client.receive(Pubcomp) == Pubcomp(7)
    # the first one is delivered or lost: its flow never ended
    assert len(await messages_until(receiver, b"second")) <= 1
