"""Order (§4.6): of the server's answers, and of the messages of one client under one Topic Name with one QoS."""

from __future__ import annotations

import pytest
from conformance.v311.flows import subscribed
from support.conformance import Clients, new_topic_name

from edge.wire import Puback, Pubcomp, Publish, Pubrec, Pubrel

IDS = [9, 3, 300, 4, 65_535, 1, 2, 77, 30_000, 5, *range(1_000, 1_040)]


@pytest.mark.statement("MQTT311-4.6.0-2", "MQTT311-2.3.1-6")
@pytest.mark.parametrize("names", [1, 5])
async def test_pubacks_come_in_the_order_of_the_publishes(clients: Clients, names: int) -> None:
    topic_names = [new_topic_name() for _ in range(names)]
    client = await clients.connect()
    await client.send(
        *(
            Publish(topic_names[index % names].encode(), b"x", 1, packet_id=packet_id)
            for index, packet_id in enumerate(IDS)
        )
    )
    assert [(await client.receive(Puback)).packet_id for _ in IDS] == IDS


@pytest.mark.statement("MQTT311-4.6.0-3", "MQTT311-2.3.1-6", "MQTT311-4.3.3-2")
@pytest.mark.parametrize("names", [1, 5])
async def test_pubrecs_come_in_the_order_of_the_publishes(clients: Clients, names: int) -> None:
    topic_names = [new_topic_name() for _ in range(names)]
    client, ids = await clients.connect(), IDS[:18]  # what mosquitto takes at once, and more than it holds
    await client.send(
        *(
            Publish(topic_names[index % names].encode(), b"x", 2, packet_id=packet_id)
            for index, packet_id in enumerate(ids)
        )
    )
    assert [(await client.receive(Pubrec)).packet_id for _ in ids] == ids
    await client.send(*map(Pubrel, ids))
    assert {(await client.receive(Pubcomp)).packet_id for _ in ids} == set(ids)


@pytest.mark.statement("MQTT311-4.6.0-2", "MQTT311-4.6.0-3")
async def test_qos_1_and_2_mixed_are_answered_each_in_order(clients: Clients) -> None:
    client, topic_name = await clients.connect(), new_topic_name()
    ids = IDS[:18]
    await client.send(
        *(Publish(topic_name.encode(), b"x", 1 + index % 2, packet_id=packet_id) for index, packet_id in enumerate(ids))
    )
    answers = [await client.receive(object) for _ in ids]
    assert [each.packet_id for each in answers if isinstance(each, Puback)] == ids[0::2]
    assert [each.packet_id for each in answers if isinstance(each, Pubrec)] == ids[1::2]


@pytest.mark.statement("MQTT311-4.6.0-4", "MQTT311-4.3.3-1", "MQTT311-2.3.1-6")
async def test_pubrels_come_in_the_order_of_the_pubrecs(clients: Clients) -> None:
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=2), await clients.connect()
    for number in range(6):
        await publisher.publish(topic_name, f"{number}".encode(), 2)
    ids = [(await receiver.message()).packet_id for _ in range(6)]
    mixed = [ids[index] for index in (2, 0, 5, 3, 1, 4)]
    await receiver.send(*map(Pubrec, mixed))
    assert [(await receiver.receive(Pubrel)).packet_id for _ in mixed] == mixed


@pytest.mark.statement("MQTT311-4.6.0-5", "MQTT311-4.6.0-6", "MQTT311-7.1.1-1")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_come_in_the_order_they_were_sent(clients: Clients, qos: int, granted: int) -> None:
    """Pipelined, as fast as they go."""
    topic_name = new_topic_name()
    receiver, publisher = await subscribed(clients, topic_name, qos=granted), await clients.connect()
    payloads = [f"{number}".encode() for number in range(15)]  # mosquitto's window of QoS 2 is 20
    await publisher.send(
        *(Publish(topic_name.encode(), payload, qos, packet_id=qos and 1 + int(payload)) for payload in payloads)
    )
    if qos == 2:
        for _ in payloads:
            await publisher.send(Pubrel((await publisher.take(Pubrec)).packet_id))
    assert [(await receiver.take_message()).payload for _ in payloads] == payloads


@pytest.mark.statement("MQTT311-4.6.0-6", "MQTT311-4.6.0-5")
@pytest.mark.parametrize("qos", [0, 1])
async def test_many_messages_come_in_order_through_wildcards(clients: Clients, qos: int) -> None:
    """Each name is a sequence of its own, whatever filter it comes through."""
    base = new_topic_name()
    receiver, publisher = await subscribed(clients, base + "/#", qos=qos), await clients.connect()
    for number in range(200):
        await publisher.publish(f"{base}/{number % 4}", f"{number}".encode(), qos)
    messages = [await receiver.take_message() for _ in range(200)]
    for name in range(4):
        own = [int(each.payload) for each in messages if each.topic_name_utf8.endswith(b"/%d" % name)]
        assert own == list(range(name, 200, 4))
