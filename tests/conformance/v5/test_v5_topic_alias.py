"""Topic aliases, both ways (§3.3.2.3.4)."""

from __future__ import annotations

import pytest
from support.conformance import Client, Clients, new_topic_name, properties, publish_frame
from support.limited import durable

from edge.wire import Properties, Publish, ReasonCode

INVALID = (ReasonCode.TOPIC_ALIAS_INVALID, ReasonCode.PROTOCOL_ERROR, ReasonCode.MALFORMED_PACKET)


def _alias_maximum(client: Client) -> int:
    return client.connack.properties.topic_alias_maximum or 0


def _publish(topic_name: str, alias: int, payload: bytes = b"x") -> Publish:
    return Publish(topic_name.encode(), payload, properties=Properties(topic_alias=alias))


@pytest.mark.statement("MQTT5-3.3.2-12")
async def test_every_alias_up_to_the_servers_maximum_is_accepted(clients: Clients) -> None:
    publisher, subscriber = await clients.connect(), await clients.connect()
    maximum = _alias_maximum(publisher)
    names = {alias: new_topic_name() for alias in {1, maximum // 2, maximum} - {0} if alias <= maximum}
    for alias, name in names.items():
        await subscriber.subscribe(name)
        await publisher.send(_publish(name, alias, b"1"), _publish("", alias, b"2"))
        for payload in (b"1", b"2"):
            message = await subscriber.message()
            assert (message.topic_name_utf8.decode(), message.payload) == (name, payload)
    await publisher.ping()


@pytest.mark.statement("MQTT5-3.3.2-12")
async def test_an_alias_may_be_given_to_another_topic_name(clients: Clients) -> None:
    publisher, subscriber = await clients.connect(), await clients.connect()
    if not _alias_maximum(publisher):
        return
    for _ in range(3):
        name = new_topic_name()
        await subscriber.subscribe(name)
        await publisher.send(_publish(name, 1), _publish("", 1))
        assert [(await subscriber.message()).topic_name_utf8.decode() for _ in range(2)] == [name, name]


@pytest.mark.statement("MQTT5-3.2.2-17", "MQTT5-3.2.2-18", "MQTT5-3.3.2-9")
async def test_an_alias_above_the_servers_maximum_is_an_error(clients: Clients) -> None:
    client = await clients.connect()
    if _alias_maximum(client) == 65_535:
        return
    await client.send(_publish(new_topic_name(), _alias_maximum(client) + 1))
    await client.closed_for(*INVALID)


@pytest.mark.statement("MQTT5-3.3.2-8")
async def test_alias_0_is_an_error(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(publish_frame(new_topic_name(), more=properties(b"\x23\0\0")))
    await client.closed_for(*INVALID)


@pytest.mark.statement("MQTT5-3.3.2-7")
async def test_an_alias_that_was_not_given_is_an_error(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(_publish("", 1))
    await client.closed_for(*INVALID)


@pytest.mark.statement("MQTT5-4.7.3-1")
async def test_without_topic_name_and_alias_a_publish_is_an_error(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(publish_frame(""))
    await client.closed_for(ReasonCode.TOPIC_NAME_INVALID, *INVALID)


@pytest.mark.statement("MQTT5-3.3.2-7")
async def test_aliases_do_not_outlive_the_connection(clients: Clients) -> None:
    """Although the session does; nor are they another client's."""
    client, other = await durable(clients), await clients.connect()
    if not _alias_maximum(client):
        return
    await client.send(_publish(new_topic_name(), 1))
    await client.ping()
    await other.send(_publish("", 1))
    await other.closed_for(*INVALID)
    await client.close()
    client = await durable(clients, client.client_id)
    await client.send(_publish("", 1))
    await client.closed_for(*INVALID)


@pytest.mark.statement("MQTT5-3.1.2-27")
@pytest.mark.parametrize("wishes", [Properties(), Properties(topic_alias_maximum=0)])
async def test_who_wants_no_aliases_gets_none(clients: Clients, wishes: Properties) -> None:
    topic_name = new_topic_name()
    client, publisher = await clients.connect(properties=wishes), await clients.connect()
    await client.subscribe(topic_name)
    for _ in range(5):
        await publisher.publish(topic_name, b"x")
        message = await client.message()
        assert message.topic_name_utf8.decode() == topic_name
        assert (message.properties or Properties()).topic_alias is None


@pytest.mark.statement("MQTT5-3.1.2-26", "MQTT5-3.3.2-11", "MQTT5-3.3.2-8", "MQTT5-3.3.2-10")
async def test_the_servers_aliases_keep_within_the_clients_maximum(clients: Clients) -> None:
    """And stand for the names they were given to, however many names there are."""
    client, publisher = await clients.connect(properties=Properties(topic_alias_maximum=2)), await clients.connect()
    names = [new_topic_name() for _ in range(4)]
    await client.subscribe(*names)
    known: dict[int, str] = {}
    for number in range(20):
        name = names[number % 4 if number % 3 else 0]
        await publisher.publish(name, b"%d" % number)
        message = await client.message()
        alias = (message.properties or Properties()).topic_alias
        said = message.topic_name_utf8.decode()
        if alias is not None:
            assert 1 <= alias <= 2
            if said:
                known[alias] = said
            said = known[alias]
        assert (said, message.payload) == (name, b"%d" % number)


@pytest.mark.statement("MQTT5-3.3.2-7")
async def test_the_servers_aliases_begin_anew_with_each_connection(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, publisher = await durable(clients, topic_alias_maximum=10), await clients.connect()
    for _ in range(2):
        await client.subscribe(topic_name)
        for number in range(4):
            await publisher.publish(topic_name, b"x")
            message = await client.message()
            assert number or message.topic_name_utf8.decode() == topic_name
        await client.close()
        client = await durable(clients, client.client_id, topic_alias_maximum=10)
