"""Replays of sessions that come again, and beside other subscriptions of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from support.edges import memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected, dial

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode
from edge.wire import Properties, Puback, Publish, Suback, Subscribe, SubscriptionRequest
from schemas.replay_range import position_token

STORED = Properties(session_expiry_interval_s=600)


async def publish(node: EdgeNode, numbers: Iterable[int], client_id: str = "publisher") -> None:
    async with connected(mqtt_address(node), client_id) as client:
        for number in numbers:
            await client.send(Publish(b"a/%d" % (number % 4), b"%d" % number, 1, packet_id=number + 1))
            await client.receive(Puback)


async def subscribe(client: WireClient, topic_filter: str, *, no_local: bool = False) -> int:
    await client.send(Subscribe(1, (SubscriptionRequest(topic_filter, 1, no_local=no_local),)))
    return (await client.receive(Suback)).reason_codes[0]


async def take(client: WireClient, count: int) -> list[Publish]:
    found = []
    for _ in range(count):
        found.append(await client.receive(Publish))
        await client.send(Puback(found[-1].packet_id))
    return found


def numbers(packets: Iterable[Publish]) -> list[int]:
    return sorted(int(each.payload) for each in packets)


async def test_after_the_end_nothing_comes_but_the_marker() -> None:
    async with memory_edge() as node:
        await publish(node, range(20))
        async with connected(mqtt_address(node), "c", clean_start=False, properties=STORED) as client:
            await subscribe(client, "$replay/-1h/now/#")
            assert len(await take(client, 21)) == 21
        await publish(node, range(20, 30))
        async with connected(mqtt_address(node), "c", clean_start=False, properties=STORED) as client:
            [marker] = await take(client, 1)
            assert orjson.loads(marker.payload)["messages"] == 0
            token = dict(marker.properties.user_properties)["headwater.position"] if marker.properties else ""
            await subscribe(client, f"$replay/{token}/#")
            assert numbers(await take(client, 10)) == list(range(20, 30)), "exactly behind the end"


async def test_a_range_that_has_turned_round_since_holds_nobody_up() -> None:
    async with memory_edge() as node:
        await publish(node, range(4))
        to = (datetime.now(UTC) + timedelta(milliseconds=100)).isoformat(timespec="milliseconds")
        async with connected(mqtt_address(node), "c", clean_start=False, properties=STORED) as client:
            assert await subscribe(client, f"$replay/-0s/{to}/#") == 1
            await take(client, 1)
        await until(lambda: datetime.now(UTC) > datetime.fromisoformat(to))
        async with connected(mqtt_address(node), "c", clean_start=False, properties=STORED) as client:
            await take(client, 1)


async def test_a_subscribe_at_once_takes_the_place_of_what_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_edge() as node:
        await publish(node, range(20))
        async with connected(mqtt_address(node), "c", clean_start=False, properties=STORED) as client:
            await subscribe(client, "$replay/-1h/#")
            await take(client, 20)
        await until(lambda: node.services.history.statistics()["open"] == 0)
        opening, calls, may_go = node.services.history.open, [], asyncio.Event()

        async def held(*args: Any, **options: Any) -> Any:
            calls.append(args)
            if len(calls) == 1:
                await may_go.wait()
            return await opening(*args, **options)

        monkeypatch.setattr(node.services.history, "open", held)
        async with connected(mqtt_address(node), "c", clean_start=False, properties=STORED) as client:
            await until(lambda: calls)
            assert await subscribe(client, "$replay/-1h/#") == 1
            may_go.set()
            assert numbers(await take(client, 20)) == list(range(20)), "it begins anew"
            await publish(node, range(20, 24))
            assert numbers(await take(client, 4)) == list(range(20, 24))
            assert node.services.history.statistics()["open"] == 1
        await until(lambda: node.services.history.statistics()["open"] == 0)


async def test_a_take_over_in_the_middle() -> None:
    log = MemoryLog()
    async with memory_edge(log, node_id="edge-1") as one, memory_edge(log, node_id="edge-2") as two:
        await publish(one, range(200))
        async with dial(mqtt_address(one)) as former:
            await former.connect("c", clean_start=False, properties=STORED)
            await subscribe(former, "$replay/-1h/#")
            got = numbers(await take(former, 50))
            async with connected(mqtt_address(two), "c", clean_start=False, properties=STORED) as client:
                while len(set(got)) < 200:
                    got += numbers(await take(client, 1))
            assert sorted(set(got)) == list(range(200))
            assert len(got) <= 200 + 65, "what was in flight may come twice"


async def test_beside_a_shared_subscription_on_the_same_connection() -> None:
    async with memory_edge() as node:
        await publish(node, range(40))
        async with connected(mqtt_address(node), "c", properties=Properties(receive_maximum=5)) as client:
            await subscribe(client, "$share/g/a/#")
            await subscribe(client, "$replay/-1h/#")
            assert numbers(await take(client, 40)) == list(range(40))
            await publish(node, range(40, 60))
            assert numbers(await take(client, 40)) == sorted([*range(40, 60), *range(40, 60)])
            await subscribe(client, "$replay/-1h/now/#")
            assert len(await take(client, 61)) == 61


@pytest.mark.parametrize("packet_bytes_max", [None, 40])
async def test_an_end_where_nothing_can_be_sent(packet_bytes_max: int | None) -> None:
    """No Local, or too large for the client [MQTT5-3.1.2-25]: the range is gone through, and the connection goes on."""
    properties = Properties(maximum_packet_size_bytes=packet_bytes_max)
    async with memory_edge() as node:
        await publish(node, range(30), "c")
        async with connected(mqtt_address(node), "c", properties=properties) as client:
            await subscribe(client, "$replay/-1h/now/#", no_local=packet_bytes_max is None)
            if packet_bytes_max is None:
                [marker] = await take(client, 1)
                assert orjson.loads(marker.payload)["messages"] == 0
            else:
                assert numbers(await take(client, 30)) == list(range(30)), "they fit without a position"
            assert await subscribe(client, "b") == 1


async def test_an_end_at_once_where_there_is_nothing() -> None:
    """Nothing is read, no record comes, and yet the marker leaves."""
    async with memory_edge() as node, connected(mqtt_address(node), "c") as client:
        await subscribe(client, "$replay/-1h/now/a/b")
        [marker] = await take(client, 1)
        assert orjson.loads(marker.payload) == {"filter": "$replay/-1h/now/a/b", "messages": 0}


async def test_a_token_may_be_longer_than_a_topic_name() -> None:
    positions = {("mqtt.other", number): 2_000_000 for number in range(400)}
    async with memory_edge() as node, connected(mqtt_address(node), "c") as client:
        await publish(node, range(4))
        token = position_token(positions)
        assert len(token) > 2_000
        assert await subscribe(client, f"$replay/{token}/{'x' * 2_000}") == 0x8F, "the filter behind it is bounded"
        assert await subscribe(client, f"$replay/{token}/#") == 1
        assert numbers(await take(client, 4)) == list(range(4))
