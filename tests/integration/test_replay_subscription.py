"""`$replay/<from>[/<to>]/<topic filter>`: history, then live, without a gap and without a duplicate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import orjson
import pytest
from support.edges import memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode
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
    Unsuback,
    Unsubscribe,
)

NAMES = ["a/0", "a/1", "a/2", "b/0"]


async def publish(node: EdgeNode, numbers: Iterable[int], qos: int = 1) -> None:
    async with connected(mqtt_address(node), "publisher") as client:
        for number in numbers:
            packet = Publish(NAMES[number % 4].encode(), b"%d" % number, qos, packet_id=number % 60_000 + 1)
            await client.send(packet)
            if qos == 1:
                await client.receive(Puback)
            else:
                await client.receive(Pubrec)
                await client.send(Pubrel(packet.packet_id))
                await client.receive(Pubcomp)


async def subscribe(client: WireClient, topic_filter: str, qos: int = 1) -> ReasonCode:
    await client.send(Subscribe(1, (SubscriptionRequest(topic_filter, qos),)))
    suback = await client.receive(Suback)
    return ReasonCode(suback.reason_codes[0])


async def take(client: WireClient, count: int, *, acknowledge: bool = True) -> list[Publish]:
    """So many messages; QoS 2 ones to their end."""
    found: list[Publish] = []
    while len(found) < count:
        packet = await client.receive(object)
        if isinstance(packet, Pubrel):
            await client.send(Pubcomp(packet.packet_id))
            continue
        assert isinstance(packet, Publish), packet
        found.append(packet)
        if packet.qos and acknowledge:
            await client.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))
    return found


def numbers(packets: Iterable[Publish]) -> list[int]:
    return [int(each.payload) for each in packets]


def assert_whole(packets: list[Publish], of: range) -> None:
    """All of these and nothing twice; those of a topic name in order (what was appended in one ms has no other)."""
    assert sorted(numbers(packets)) == list(of)
    for name in {each.topic_name_utf8 for each in packets}:
        of_name = numbers(each for each in packets if each.topic_name_utf8 == name)
        assert of_name == sorted(of_name)


def user_property(packet: Publish, name: str) -> str:
    assert packet.properties is not None
    return dict(packet.properties.user_properties)[name]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_history_then_live(version: int, qos: int) -> None:
    async with memory_edge() as node:
        await publish(node, range(100), max(1, qos))
        async with connected(mqtt_address(node), "c", version) as client:
            assert await subscribe(client, "$replay/-1h/#", qos) == qos
            history = await take(client, 100)
            assert_whole(history, range(100))
            assert {each.topic_name_utf8.decode() for each in history} == set(NAMES)
            assert {(each.qos, each.retain) for each in history} == {(qos, False)}
            await publish(node, range(100, 140), max(1, qos))
            assert_whole(await take(client, 40), range(100, 140))
            if version == 5:
                stamps = [int(user_property(each, "headwater.timestamp_ms")) for each in history]
                assert stamps == sorted(stamps)
                assert len({user_property(each, "headwater.position") for each in history}) == 100


async def test_only_what_the_filter_matches() -> None:
    async with memory_edge() as node:
        await publish(node, range(40))
        async with connected(mqtt_address(node)) as client:
            await subscribe(client, "$replay/beginning/a/+")
            assert sorted(numbers(await take(client, 30))) == [number for number in range(40) if number % 4 != 3]


async def test_an_end_and_its_marker() -> None:
    async with memory_edge() as node:
        await publish(node, range(20))
        async with connected(mqtt_address(node)) as client:
            await subscribe(client, "$replay/-1h/now/#")
            assert_whole(await take(client, 20), range(20))
            [marker] = await take(client, 1)
            assert marker.topic_name_utf8 == b"$replay/end"
            assert orjson.loads(marker.payload) == {"filter": "$replay/-1h/now/#", "messages": 20}
            await publish(node, range(20, 24))
            await subscribe(client, "$replay/-1h/a/0")
            assert numbers(await take(client, 6)) == [0, 4, 8, 12, 16, 20], "nothing came of the one that had ended"


@pytest.mark.parametrize("lost", [1, 17, 39])
async def test_a_token_goes_on_behind_the_message_it_came_with(lost: int) -> None:
    async with memory_edge() as node:
        await publish(node, range(40))
        async with connected(mqtt_address(node), "first") as client:
            await subscribe(client, "$replay/-1h/#")
            seen = await take(client, lost)
        await publish(node, range(40, 60))
        token = user_property(seen[-1], "headwater.position")
        async with connected(mqtt_address(node), "second") as client:
            await subscribe(client, f"$replay/{token}/#")
            assert_whole(seen + await take(client, 60 - lost), range(60))


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_stored_session_goes_on_at_another_edge(qos: int) -> None:
    """What was not acknowledged comes again, what was does not; QoS 2 flows go on under their identifiers."""
    log = MemoryLog()
    expiry = Properties(session_expiry_interval_s=600)
    async with memory_edge(log, node_id="edge-1") as one, memory_edge(log, node_id="edge-2") as two:
        await publish(one, range(200), qos)
        got: list[int] = []
        async with connected(mqtt_address(one), "c", clean_start=False, properties=expiry) as client:
            await subscribe(client, "$replay/-1h/#", qos)
            got += numbers(await take(client, 50))
            left = numbers(await take(client, 5, acknowledge=False))
        await publish(two, range(200, 240), qos)
        async with connected(mqtt_address(two), "c", clean_start=False, properties=expiry) as client:
            again: list[Publish] = []
            while len({*got, *numbers(again)}) < 240:
                again += await take(client, 1)
            came = numbers(again)
            assert set(left) <= set(came)
            if qos == 2:
                assert len(came) == len(set(came))
            assert sorted({*came, *got}) == list(range(240))
            assert len(set(came) & set(got)) <= 32, "at most what its window held"
            await client.send(Unsubscribe(9, ("$replay/-1h/#",)))
            await until(lambda: two.services.history.statistics()["open"] == 0)


async def test_live_goes_on_while_history_comes() -> None:
    async with memory_edge() as node:
        await publish(node, range(300))
        publishing = asyncio.create_task(publish(node, range(300, 900)))
        async with connected(mqtt_address(node)) as client:
            await subscribe(client, "$replay/-1h/#")
            came = await take(client, 900)
        await publishing
        assert_whole(came, range(900))


async def test_a_rate_paces_history() -> None:
    async with memory_edge(limits={"replay_messages_per_s": 200}) as node:
        await publish(node, range(60))
        loop = asyncio.get_running_loop()
        async with connected(mqtt_address(node)) as client:
            began = loop.time()
            await subscribe(client, "$replay/-1h/#")
            assert_whole(await take(client, 60), range(60))
            assert loop.time() - began > 0.15, "60 less the burst of 20, at 200 per second, are 0.2 s"


@pytest.mark.parametrize(
    ("topic_filter", "code"),
    [
        ("$replay/yesterday/#", ReasonCode.TOPIC_FILTER_INVALID),
        ("$replay/-1h", ReasonCode.TOPIC_FILTER_INVALID),
        ("$replay/-1h/-2h/#", ReasonCode.TOPIC_FILTER_INVALID),
        ("$replay/-1h/2999-01-01T00:00Z/#", ReasonCode.TOPIC_FILTER_INVALID),
        ("$replay/pos.AAAA/#", ReasonCode.TOPIC_FILTER_INVALID),
        ("$replay/-1h/$share/g/a", ReasonCode.TOPIC_FILTER_INVALID),
        ("$share/g/$replay/-1h/a", ReasonCode.TOPIC_FILTER_INVALID),
    ],
)
async def test_wrong_ranges_are_refused(topic_filter: str, code: ReasonCode) -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        assert await subscribe(client, topic_filter) is code
        assert await subscribe(client, "a/b") == 1, "the connection goes on"


async def test_so_many_replays_and_no_more() -> None:
    async with memory_edge(limits={"replays_per_client_max": 2}) as node, connected(mqtt_address(node)) as client:
        assert await subscribe(client, "$replay/-1h/a") == 1
        assert await subscribe(client, "$replay/-1h/b") == 1
        assert await subscribe(client, "$replay/-1h/c") is ReasonCode.QUOTA_EXCEEDED
        await client.send(Unsubscribe(2, ("$replay/-1h/b", "$replay/-1h/x")))
        codes = (await client.receive(Unsuback)).reason_codes
        assert list(codes) == [ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED]
        assert await subscribe(client, "$replay/-1h/c") == 1
    await until(lambda: node.services.history.statistics()["open"] == 0)
