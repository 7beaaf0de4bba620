"""Exclusive subscriptions: one session in the whole cluster, from SUBSCRIBE to its end, wherever it is."""

from __future__ import annotations

from support.edges import memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode
from edge.wire import (
    Properties,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)

STORED = {"properties": Properties(session_expiry_interval_s=600)}
NAME = "$exclusive/t/+"


async def subscribe(client: WireClient, name: str = NAME) -> ReasonCode:
    await client.send(Subscribe(1, (SubscriptionRequest(name, 1),)))
    return (await client.receive(Suback)).reason_codes[0]


async def unsubscribe(client: WireClient, name: str = NAME) -> ReasonCode:
    await client.send(Unsubscribe(2, (name,)))
    return (await client.receive(Unsuback)).reason_codes[0]


async def publish(client: WireClient, topic_name: bytes, payload: bytes) -> None:
    await client.send(Publish(topic_name, payload, 1, packet_id=1))
    assert (await client.receive(Puback)).reason_code is ReasonCode.SUCCESS


def holder(edge: EdgeNode, topic_filter: str = "t/+") -> str | None:
    assert edge.services.exclusive is not None
    return edge.services.exclusive.holder(topic_filter)


async def test_a_second_client_is_refused_on_any_edge_until_the_first_gives_it_up() -> None:
    log = MemoryLog()
    async with memory_edge(log, node_id="edge-1") as one, memory_edge(log, node_id="edge-2") as two:
        async with (
            connected(mqtt_address(one), "first") as first,
            connected(mqtt_address(two), "second") as second,
            connected(mqtt_address(two), "third", 4) as third,
        ):
            assert await subscribe(first) == 1
            assert await subscribe(first) == 1  # again: it has it
            assert await subscribe(second) == ReasonCode.QUOTA_EXCEEDED
            assert await subscribe(third) == 0x80
            assert await subscribe(second, "t/+") == 1  # an ordinary one is nobody's alone
            assert await subscribe(second, "$exclusive/t/a") == 1  # another filter, though it overlaps
            async with connected(mqtt_address(two), "writer") as writer:
                await publish(writer, b"t/b", b"1")
                assert (await first.receive(Publish)).payload == b"1"
                assert (await second.receive(Publish)).payload == b"1"
                assert await unsubscribe(first, "t/+") == ReasonCode.NO_SUBSCRIPTION_EXISTED
                assert await unsubscribe(second, "t/+") == ReasonCode.SUCCESS
                assert await unsubscribe(first) == ReasonCode.SUCCESS
                assert await unsubscribe(first) == ReasonCode.NO_SUBSCRIPTION_EXISTED
                assert await subscribe(third) == 1
                await publish(writer, b"t/b", b"2")
                assert (await third.receive(Publish)).payload == b"2"
        await until(lambda: holder(one) is None and holder(two, "t/a") is None, "free when the connections are gone")


async def test_two_who_ask_at_once_are_told_different_things() -> None:
    log = MemoryLog()
    async with (
        memory_edge(log, node_id="edge-1") as one,
        memory_edge(log, node_id="edge-2") as two,
        connected(mqtt_address(one), "a") as a,
        connected(mqtt_address(two), "b") as b,
    ):
        for number in range(10):
            for each in (a, b):
                await each.send(Subscribe(1, (SubscriptionRequest(f"$exclusive/race/{number}", 1),)))
            codes = [(await each.receive(Suback)).reason_codes[0] for each in (a, b)]
            assert sorted(codes) == [1, ReasonCode.QUOTA_EXCEEDED]


async def test_a_stored_session_keeps_it_while_it_is_away_and_takes_it_along_to_another_edge() -> None:
    log = MemoryLog()
    async with (
        memory_edge(log, node_id="edge-1") as one,
        memory_edge(log, node_id="edge-2") as two,
        connected(mqtt_address(two), "other") as other,
    ):
        async with connected(mqtt_address(one), "holder", **STORED) as first:
            assert await subscribe(first) == 1
        assert await subscribe(other) == ReasonCode.QUOTA_EXCEEDED
        await publish(other, b"t/a", b"missed")
        async with connected(mqtt_address(two), "holder", clean_start=False, **STORED) as again:
            assert (await again.receive(Publish)).payload == b"missed"
            assert await subscribe(other) == ReasonCode.QUOTA_EXCEEDED
            handler = two.services.clients["holder"]
            assert handler.exclusive is not None
            assert set(handler.exclusive.filters) == {"t/+"}
        async with connected(mqtt_address(one), "holder"):  # Clean Start: the stored session is over
            await until(lambda: holder(two) is None, "free with the end of the session")
            assert await subscribe(other) == 1


async def test_what_cannot_be_exclusive_is_refused_and_all_of_it_where_it_is_switched_off() -> None:
    async with memory_edge() as edge, connected(mqtt_address(edge), "a") as client:
        for name in ("$exclusive/", "$exclusive/$share/g/t", "$exclusive/$exclusive/t", "$exclusive/a#"):
            assert await subscribe(client, name) == ReasonCode.TOPIC_FILTER_INVALID, name
        assert await subscribe(client, "$exclusive/t") == 1
        assert await subscribe(client, "t") == 1  # the same filter, not exclusive any more
        assert holder(edge, "t") is None or await unsubscribe(client, "t") == ReasonCode.SUCCESS
    async with memory_edge(exclusive_subscriptions=False) as edge, connected(mqtt_address(edge), "a") as client:
        assert await subscribe(client) == ReasonCode.TOPIC_FILTER_INVALID
