"""Sessions that outlive their connection, on edges that share a log: QoS 2, resumption, take-over, wills."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.edges import memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected, dial

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode
from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
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
    Will,
)

BOTH = pytest.mark.parametrize("version", [4, 5])
EXPIRY_S = 600


@asynccontextmanager
async def two_edges(**table: Any) -> AsyncIterator[tuple[EdgeNode, EdgeNode]]:
    log = MemoryLog()
    async with memory_edge(log, node_id="a", **table) as first, memory_edge(log, node_id="b", **table) as second:
        yield first, second


@asynccontextmanager
async def client(
    node: EdgeNode, client_id: str, version: int = 5, *, clean: bool = False, expiry_s: int = EXPIRY_S, **fields: Any
) -> AsyncIterator[tuple[WireClient, Connack]]:
    """A client with a session that stays; the network connection is just closed at the end."""
    properties = Properties(session_expiry_interval_s=expiry_s) if version == 5 else Properties()
    async with dial(mqtt_address(node), version) as connection:
        await connection.send(Connect(version, client_id, clean, properties=properties, **fields))
        yield connection, await connection.receive(Connack)


async def subscribe(connection: WireClient, topic_filter: str, qos: int = 2) -> None:
    await connection.send(Subscribe(1, (SubscriptionRequest(topic_filter, qos),)))
    assert (await connection.receive(Suback)).reason_codes == (ReasonCode(qos),)


async def publish(node: EdgeNode, topic_name: str, *payloads: bytes, qos: int = 1, **fields: Any) -> None:
    """Publish from a client of its own; done when every flow is."""
    async with connected(mqtt_address(node), "") as publisher:
        for number, payload in enumerate(payloads, 1):
            await publisher.send(Publish(topic_name.encode(), payload, qos, packet_id=number if qos else 0, **fields))
            if qos == 1:
                assert await publisher.receive(Puback) == Puback(number)
            elif qos == 2:
                assert await publisher.receive(Pubrec) == Pubrec(number)
                await publisher.send(Pubrel(number))
                assert await publisher.receive(Pubcomp) == Pubcomp(number)
        await publisher.send(Disconnect())


async def take(connection: WireClient, count: int) -> list[Publish]:
    """The next messages, each acknowledged as its QoS wants; done when every flow is."""
    messages: list[Publish] = []
    open_flows = 0
    while len(messages) < count or open_flows:
        packet = await connection.receive(object)
        if isinstance(packet, Publish):
            messages.append(packet)
            if packet.qos == 1:
                await connection.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                open_flows += 1
                await connection.send(Pubrec(packet.packet_id))
        else:
            assert isinstance(packet, Pubrel), packet
            await connection.send(Pubcomp(packet.packet_id))
            open_flows -= 1
    return messages


async def nothing_more(connection: WireClient) -> None:
    await connection.send(Pingreq())
    await connection.receive(Pingresp)


@BOTH
async def test_qos_2_from_edge_to_edge(version: int) -> None:
    async with two_edges() as (a, b), connected(mqtt_address(b), "s", version) as subscriber:
        await subscribe(subscriber, "t/#")
        await publish(a, "t/1", b"1", b"2", b"3", qos=2)
        messages = await take(subscriber, 3)
        assert [(m.payload, m.qos, m.dup) for m in messages] == [(b"1", 2, False), (b"2", 2, False), (b"3", 2, False)]
        await nothing_more(subscriber)


async def test_a_qos_2_publish_that_is_repeated_is_appended_once() -> None:
    async with two_edges() as (a, b), connected(mqtt_address(b), "s") as subscriber:
        await subscribe(subscriber, "t")
        async with client(a, "p") as (publisher, _):
            await publisher.send(Publish(b"t", b"x", 2, packet_id=7), Publish(b"t", b"x", 2, dup=True, packet_id=7))
            assert await publisher.receive(Pubrec) == Pubrec(7)
        async with client(b, "p") as (publisher, connack):  # on the other edge, which has the identifier
            assert connack.session_present
            await publisher.send(Publish(b"t", b"x", 2, dup=True, packet_id=7))
            assert await publisher.receive(Pubrec) == Pubrec(7)
            await publisher.send(Pubrel(7))
            assert await publisher.receive(Pubcomp) == Pubcomp(7)
            await publisher.send(Publish(b"t", b"y", 2, packet_id=7))
            assert await publisher.receive(Pubrec) == Pubrec(7)
        assert [m.payload for m in await take(subscriber, 2)] == [b"x", b"y"]
        await nothing_more(subscriber)


@BOTH
async def test_what_came_while_a_client_was_away_is_delivered_on_the_other_edge(version: int) -> None:
    async with two_edges() as (a, b):
        async with client(a, "s", version) as (subscriber, connack):
            assert not connack.session_present
            await subscribe(subscriber, "t/+")
        await publish(a, "t/1", b"1", b"2", qos=1)
        await publish(b, "t/1", b"3", b"4", qos=2)
        async with client(b, "s", version) as (subscriber, connack):
            assert connack.session_present
            messages = await take(subscriber, 4)
            assert [m.payload for m in messages if m.qos == 1] == [b"1", b"2"]
            assert [m.payload for m in messages if m.qos == 2] == [b"3", b"4"]
            await publish(a, "t/2", b"5")
            assert [m.payload for m in await take(subscriber, 1)] == [b"5"]
        async with client(a, "s", version) as (subscriber, connack):
            assert connack.session_present
            await nothing_more(subscriber)


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_was_not_acknowledged_comes_again_with_dup_and_its_identifier(version: int, qos: int) -> None:
    async with two_edges() as (a, b):
        async with client(a, "s", version) as (subscriber, _):
            await subscribe(subscriber, "t", qos)
            await publish(a, "t", b"1", b"2", qos=qos)
            first = [await subscriber.receive(Publish) for _ in range(2)]
        async with client(b, "s", version) as (subscriber, connack):
            assert connack.session_present
            again = await take(subscriber, 2)
        assert [(m.payload, m.packet_id, m.dup) for m in again] == [(m.payload, m.packet_id, True) for m in first]
        async with client(a, "s", version) as (subscriber, _):
            await nothing_more(subscriber)


@BOTH
async def test_a_flow_that_was_received_goes_on_with_pubrel(version: int) -> None:
    async with two_edges() as (a, b):
        async with client(a, "s", version) as (subscriber, _):
            await subscribe(subscriber, "t")
            await publish(a, "t", b"1", qos=2)
            message = await subscriber.receive(Publish)
            await subscriber.send(Pubrec(message.packet_id))
            await subscriber.receive(Pubrel)
        async with client(b, "s", version) as (subscriber, _):
            assert await subscriber.receive(Pubrel) == Pubrel(message.packet_id)
            await subscriber.send(Pubcomp(message.packet_id))
            await nothing_more(subscriber)


async def test_clean_start_ends_the_session() -> None:
    async with two_edges() as (a, b):
        async with client(a, "s") as (subscriber, _):
            await subscribe(subscriber, "t")
        async with client(b, "s", clean=True) as (subscriber, connack):
            assert not connack.session_present
            await publish(a, "t", b"1")
            await nothing_more(subscriber)


async def test_unsubscribing_is_remembered() -> None:
    async with two_edges() as (a, b):
        async with client(a, "s") as (subscriber, _):
            await subscribe(subscriber, "t/1")
            await subscribe(subscriber, "t/2")
            await subscriber.send(Unsubscribe(2, ("t/1",)))
            await subscriber.receive(Unsuback)
        await publish(a, "t/1", b"no")
        await publish(a, "t/2", b"yes")
        async with client(b, "s") as (subscriber, _):
            assert [m.payload for m in await take(subscriber, 1)] == [b"yes"]
            await nothing_more(subscriber)


async def test_a_connection_on_another_edge_takes_the_session_over() -> None:
    async with two_edges() as (a, b), client(a, "s") as (old, _):
        await subscribe(old, "t")
        async with client(b, "s") as (new, connack):
            assert connack.session_present
            assert (await old.receive(Disconnect)).reason_code is ReasonCode.SESSION_TAKEN_OVER
            await old.until_closed()
            await publish(a, "t", b"x", qos=2)
            assert [m.payload for m in await take(new, 1)] == [b"x"]
        assert not a.services.clients


async def test_another_user_does_not_get_the_session(tmp_path: Any) -> None:
    from edge.access.passwords import hash_password

    users = tmp_path / "users"
    users.write_text("".join(f"{name}:{hash_password('secret')}\n" for name in ("ann", "bob")))
    table = {
        "dev": False,
        "authentication": {"password_file": str(users)},
        "acl": ({"permit": "allow", "action": "all", "filter": "#"},),
    }
    async with two_edges(**table) as (a, b):
        async with client(a, "s", user_name="ann", password=b"secret") as (_, connack):
            assert connack.reason_code is ReasonCode.SUCCESS
        async with client(b, "s", user_name="bob", password=b"secret") as (_, connack):
            assert connack.reason_code is ReasonCode.NOT_AUTHORIZED
        async with client(b, "s", user_name="ann", password=b"secret") as (_, connack):
            assert connack.session_present


async def test_a_session_expires_while_nobody_is_there() -> None:
    async with two_edges() as (a, b):
        async with client(a, "s", expiry_s=1) as (subscriber, _):
            await subscribe(subscriber, "t")
        await until(lambda: "s" not in b.services.sessions.view, "the session is still there")
        async with client(b, "s") as (_, connack):
            assert not connack.session_present


async def test_a_delayed_will_is_published_unless_the_client_comes_back() -> None:
    will = Will("w", b"gone", 1, properties=Properties(will_delay_interval_s=1))
    async with two_edges() as (a, b), connected(mqtt_address(b), "watcher") as watcher:
        await subscribe(watcher, "w", 1)
        async with client(a, "back", will=will):
            pass
        async with client(b, "back"):
            async with client(a, "away", will=Will("w", b"away", 1, properties=will.properties)):
                pass
            assert [m.payload for m in await take(watcher, 1)] == [b"away"]
            await nothing_more(watcher)


async def test_a_disconnect_can_end_the_session() -> None:
    async with two_edges() as (a, b):
        async with client(a, "s") as (subscriber, _):
            await subscribe(subscriber, "t")
            await subscriber.send(Disconnect(properties=Properties(session_expiry_interval_s=0)))
            await subscriber.until_closed()
        async with client(b, "s") as (_, connack):
            assert not connack.session_present


async def test_many_sessions_come_back_at_once_to_the_other_edge() -> None:
    count = 50
    async with two_edges() as (a, b):
        for number in range(count):
            async with client(a, f"s{number}") as (subscriber, _):
                await subscribe(subscriber, "t/#")
        await publish(a, "t/1", *(b"%d" % number for number in range(100)))

        async def back(number: int) -> None:
            async with client(b, f"s{number}") as (subscriber, connack):
                assert connack.session_present
                assert [int(m.payload) for m in await take(subscriber, 100)] == list(range(100))

        await asyncio.gather(*map(back, range(count)))


@pytest.mark.parametrize("says_goodbye", [False, True])
async def test_a_client_that_does_not_wait_for_connack_loses_nothing(says_goodbye: bool) -> None:
    async with two_edges() as (a, b):
        async with client(a, "s") as (subscriber, _):
            await subscribe(subscriber, "t")
        for number in range(10):
            await publish(a, "t", b"%d" % number, qos=1 + number % 2)
            async with dial(mqtt_address((a, b)[number % 2])) as hasty:
                await hasty.send(Connect(5, "s", False, properties=Properties(session_expiry_interval_s=EXPIRY_S)))
                if says_goodbye:
                    await hasty.send(Disconnect())
                    await hasty.until_closed()
        async with client(b, "s") as (subscriber, connack):
            assert connack.session_present
            messages = await take(subscriber, 10)
            assert sorted(int(m.payload) for m in messages) == list(range(10))
            await nothing_more(subscriber)


async def test_a_will_that_is_due_is_not_lost_to_a_client_that_comes_back() -> None:
    """[MQTT5-3.1.3-9]: only a connection before the delay has passed takes it back."""
    will = Will("w", b"gone", 1, properties=Properties(will_delay_interval_s=1))
    async with two_edges() as (a, b), connected(mqtt_address(b), "watcher") as watcher:
        await subscribe(watcher, "w", 1)
        async with client(a, "s", will=will):
            pass
        assert [m.payload for m in await take(watcher, 1)] == [b"gone"]
        async with client(b, "s"):
            await nothing_more(watcher)


async def test_what_was_sent_with_qos_1_is_known_in_front_of_a_later_qos_2() -> None:
    """Both come from the QoS 2 twin of one partition; the edge may die right after."""
    async with two_edges() as (a, b), client(a, "s") as (subscriber, _):
        await subscribe(subscriber, "sensors/x/y/one", 1)
        await subscribe(subscriber, "sensors/x/y/two", 2)
        await publish(b, "sensors/x/y/one", b"1", qos=2)
        first = await subscriber.receive(Publish)
        assert first.qos == 1
        await publish(b, "sensors/x/y/two", b"2", qos=2)
        second = await subscriber.receive(Publish)
        stored = b.services.sessions.view.get("s")
        assert stored is not None
        assert {packet_id: entry.qos for packet_id, entry in stored.progress.outgoing.items()} == {
            first.packet_id: 1,
            second.packet_id: 2,
        }
