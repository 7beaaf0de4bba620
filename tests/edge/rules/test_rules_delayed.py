"""Delayed publish: kept in Kafka before PUBACK, published once when due, whatever becomes of the edges."""

from __future__ import annotations

import asyncio

import pytest
from support.edges import memory_edge, mqtt_address, until, values_of
from support.wire_client import WireClient, connected

from bridge.memory_log import MemoryLog
from edge.rules.delayed import DelayedName, parse_delayed
from edge.wire import (
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
    Will,
)

NAMES = [
    ("$delayed/5/a/b", DelayedName(5, "a/b")),
    ("$delayed/0/a", DelayedName(0, "a")),
    ("$delayed/4294967//", DelayedName(4_294_967, "/")),
    ("$delayed/4294968/a", None),
    ("$delayed/99999999/a", None),
    ("$delayed/-1/a", None),
    ("$delayed/1.5/a", None),
    ("$delayed/x/a", None),
    ("$delayed/²/a", None),
    ("$delayed//a", None),
    ("$delayed/5", None),
    ("$delayed/5/", None),
    ("$delayed/5/$delayed/5/a", None),
]


@pytest.mark.parametrize(("topic_name", "parts"), NAMES)
def test_seconds_and_name(topic_name: str, parts: DelayedName | None) -> None:
    assert parse_delayed(topic_name) == parts


async def subscribe(client: WireClient, topic_filter: str, qos: int = 1) -> None:
    await client.send(Subscribe(1, (SubscriptionRequest(topic_filter, qos),)))
    assert (await client.receive(Suback)).reason_codes == (qos,)


async def publish(client: WireClient, name: str, payload: bytes, qos: int = 1, retain: bool = False) -> ReasonCode:
    properties = Properties(user_properties=(("k", "v"),)) if client.protocol_version == 5 else None
    await client.send(Publish(name.encode(), payload, qos, retain, packet_id=qos and 7, properties=properties))
    if qos == 1:
        return (await client.receive(Puback)).reason_code
    if qos == 2:
        code = (await client.receive(Pubrec)).reason_code
        if not code.is_error:
            await client.send(Pubrel(7))
            await client.receive(Pubcomp)
        return code
    return ReasonCode.SUCCESS


async def take(client: WireClient) -> Publish:
    got = await client.receive(Publish)
    if got.qos == 2:
        await client.send(Pubrec(got.packet_id))
        await client.receive(Pubrel)
        await client.send(Pubcomp(got.packet_id))
    elif got.qos == 1:
        await client.send(Puback(got.packet_id))
    return got


async def test_every_quality_of_service_and_retain_and_properties_are_kept() -> None:
    async with memory_edge() as edge:
        address = mqtt_address(edge)
        async with connected(address, "reader") as reader, connected(address, "writer") as writer:
            for qos in (0, 1, 2):
                await subscribe(reader, f"t/{qos}", 2)
                assert await publish(writer, f"$delayed/0/t/{qos}", b"%d" % qos, qos, retain=qos > 0) == 0
                got = await take(reader)
                assert (got.topic_name_utf8, got.payload, got.qos) == (b"t/%d" % qos, b"%d" % qos, qos)
                assert got.properties is not None
                assert got.properties.user_properties == (("k", "v"),)
            await until(lambda: edge.services.delayed.view.messages == 0, "nothing waits")  # type: ignore[union-attr]
            async with connected(address, "late", 4) as late:
                await subscribe(late, "t/#")
                kept = {(each.topic_name_utf8, each.retain) for each in [await take(late) for _ in range(2)]}
                assert kept == {(b"t/1", True), (b"t/2", True)}


async def test_what_cannot_be_is_refused_with_a_code_and_3_1_1_is_acknowledged() -> None:
    limited = {"enabled": True, "messages_max": 1, "bytes_max": 4_096}
    async with memory_edge(delayed=limited) as edge:
        address = mqtt_address(edge)
        async with connected(address, "new") as new, connected(address, "old", 4) as old:
            for qos in (1, 2):
                assert await publish(new, "$delayed/x/t", b"", qos) == ReasonCode.TOPIC_NAME_INVALID
                assert await publish(new, "$delayed/1/$SYS/t", b"", qos) == ReasonCode.NOT_AUTHORIZED
                assert await publish(new, "$delayed/1/t", b"x" * 5_000, qos) == ReasonCode.QUOTA_EXCEEDED
                assert await publish(old, "$delayed/x/t", b"", qos) == 0
            assert await publish(new, "$delayed/3600/t", b"waits") == 0
            await until(lambda: edge.services.delayed.view.messages == 1)  # type: ignore[union-attr]
            for qos in (1, 2):
                assert await publish(new, "$delayed/3600/t", b"too many", qos) == ReasonCode.QUOTA_EXCEEDED
            will = Will("$delayed/1/t")
        with pytest.raises(AssertionError):
            async with connected(address, "will", will=will):
                pass
    async with memory_edge(delayed={"enabled": False}) as edge, connected(mqtt_address(edge)) as client:
        assert await publish(client, "$delayed/1/t", b"") == ReasonCode.TOPIC_NAME_INVALID


async def test_a_message_survives_the_edge_that_took_it_and_is_published_by_another_one_once() -> None:
    log = MemoryLog()
    async with memory_edge(log, node_id="edge-1") as one, connected(mqtt_address(one), "writer") as writer:
        one.services.delayed._live = set  # type: ignore[union-attr]  # it publishes nothing any more
        for number in range(20):
            assert await publish(writer, f"$delayed/2/t/{number}", b"%d" % number, number % 2 + 1) == 0
    async with memory_edge(log, node_id="edge-2") as two, memory_edge(log, node_id="edge-3") as three:
        async with connected(mqtt_address(three), "reader") as reader:
            await subscribe(reader, "t/+")
            got = [(await take(reader)).payload for _ in range(20)]
            assert sorted(map(int, got)) == list(range(20))
        for edge in (two, three):
            await until(lambda edge=edge: edge.services.delayed.view.messages == 0)
        assert len(values_of(log, "mqtt.messages.q2")) == 20


async def test_two_edges_that_both_think_it_is_theirs_publish_once() -> None:
    log = MemoryLog()
    async with memory_edge(log, node_id="edge-1") as one, memory_edge(log, node_id="edge-2") as two:
        for edge in (one, two):  # neither sees the other
            edge.services.delayed._live = lambda edge=edge: {edge.config.node_id}  # type: ignore[union-attr]
        async with (
            connected(mqtt_address(one), "reader") as reader,
            connected(mqtt_address(one), "a") as a,
            connected(mqtt_address(two), "b") as b,
        ):
            await subscribe(reader, "t/#")

            async def write(client: WireClient, who: str) -> None:
                for number in range(50):
                    assert await publish(client, f"$delayed/0/t/{who}", b"%s %d" % (who.encode(), number)) == 0

            async def read() -> list[bytes]:
                return [(await take(reader)).payload for _ in range(100)]

            _, _, got = await asyncio.gather(write(a, "a"), write(b, "b"), read())
            assert len(set(got)) == 100
            for who in (b"a", b"b"):
                assert [each for each in got if each.startswith(who)] == [b"%s %d" % (who, n) for n in range(50)]
            for edge in (one, two):
                await until(lambda edge=edge: edge.services.delayed.view.messages == 0)
            assert len(values_of(log, "mqtt.messages.q2")) == 100
