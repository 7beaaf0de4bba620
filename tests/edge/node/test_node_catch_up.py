"""Slow clients over real sockets: they get everything later, in order, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import Literal

import pytest
from support.edges import ErrorLog, memory_edge, mqtt_address, records_of, until
from support.wire_client import WireClient, connected

from bridge.memory_log import FETCH_RECORDS_MAX, MemoryLog
from edge.client import MqttClient
from edge.handler.protocol import WRITE_BUFFER_HIGH_BYTES, EdgeProtocolHandler
from edge.node.node import EdgeNode
from edge.node.statistics import node_statistics
from edge.wire import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from schemas.events import Event

MESSAGES = 20_000
OTHERS = 50
LATER = 500
FLOOD_MESSAGES, FLOOD_BYTES = 3_000, 4_096  # more than the sockets of both sides hold
SLOWNESS = Literal["acknowledges nothing", "reads nothing"]


async def subscribe(client: WireClient, topic_filter: str, qos: int = 1, packet_id: int = 1) -> None:
    await client.send(Subscribe(packet_id, (SubscriptionRequest(topic_filter, qos),)))
    assert (await client.receive(Suback)).reason_codes == (ReasonCode(qos),)


async def publish(writer: MqttClient, messages: list[tuple[str, bytes]]) -> None:
    """All of them, acknowledged."""
    futures = [writer.publish(topic_name, payload, 1) for topic_name, payload in messages]
    await asyncio.wait_for(asyncio.gather(*[future for future in futures if future is not None]), 60)


async def take(client: WireClient, count: int) -> list[Publish]:
    """That many QoS 1 messages, acknowledged as they come; QoS 0 ones are left out."""
    taken: list[Publish] = []
    while len(taken) < count:
        packet = await client.receive(Publish)
        if packet.qos:
            taken.append(packet)
            await client.send(Puback(packet.packet_id))
    return taken


async def quiet(client: WireClient) -> None:
    """Nothing else is on its way."""
    await client.send(Pingreq())
    await client.receive(Pingresp)


def same_partition(node: EdgeNode) -> list[str]:
    """Topic names that lie on one partition of the log."""
    by_partition: dict[int, list[str]] = defaultdict(list)
    for number in range(200):
        by_partition[node.services.routes.destination(f"n{number}").partition].append(f"n{number}")
    return by_partition[0]


@pytest.mark.parametrize("slowness", ["acknowledges nothing", "reads nothing"])
async def test_one_slow_client_among_fifty(slowness: SLOWNESS) -> None:
    async with memory_edge() as node, connected(mqtt_address(node), "slow") as slow:
        await subscribe(slow, "t/#")
        await subscribe(slow, "flood", 0)
        handler = node.services.clients["slow"]
        others = [MqttClient(*mqtt_address(node), f"c{number}") for number in range(OTHERS)]
        inboxes = []
        for number, other in enumerate(others):
            await other.connect()
            inboxes.append(other.inbox())
            await other.subscribe(f"t/{number}", 1)
        async with MqttClient(*mqtt_address(node), "w") as writer:
            if slowness == "reads nothing":
                for _ in range(FLOOD_MESSAGES):
                    writer.publish("flood", bytes(FLOOD_BYTES), 0)
                await until(lambda: handler.engine.statistics()["dropped"] > 0, "the socket is full")
            most = [0, 0, 0]

            def all_others_have_theirs() -> bool:
                figures = handler.engine.statistics()
                assert handler.transport is not None
                now = (figures["queue_length"], figures["queue_bytes"], handler.transport.get_write_buffer_size())
                most[:] = map(max, most, now)
                return all(len(inbox) == MESSAGES // OTHERS for inbox in inboxes)

            messages = [(f"t/{number % OTHERS}", b"%d" % number) for number in range(MESSAGES)]
            publishing = asyncio.ensure_future(publish(writer, messages))
            await until(all_others_have_theirs, "every other client has its messages", 60)
            await publishing
            assert handler.behind, "the slow one has not gone on"
            assert handler.engine.statistics()["sent"] <= 32 + FLOOD_MESSAGES
            assert most[0] <= 1_000
            assert most[1] <= 1024 * 1024
            assert most[2] <= WRITE_BUFFER_HIGH_BYTES + 500 * (FLOOD_BYTES + 100)  # one batch above the mark

            taking = asyncio.ensure_future(take(slow, MESSAGES + LATER))
            later = [(f"t/{number % OTHERS}", b"%d" % number) for number in range(MESSAGES, MESSAGES + LATER)]
            await publish(writer, later)
            taken = await asyncio.wait_for(taking, 120)
            check_complete(taken, MESSAGES + LATER)
            await until(lambda: handler.behind is None)
            await quiet(slow)
        for number, (other, inbox) in enumerate(zip(others, inboxes, strict=True)):
            got = [int(packet.payload) for packet in await inbox.get_many((MESSAGES + LATER) // OTHERS)]
            assert got == list(range(number, MESSAGES + LATER, OTHERS))
            await other.disconnect()
        figures = node_statistics(node.services)["catch_up"]
        assert figures["subscribers_behind"] == figures["held_records"] == 0
        assert 18_000 < figures["deliveries"] <= MESSAGES + LATER
        assert figures["records"] < 1.1 * (MESSAGES + LATER) + FETCH_RECORDS_MAX, "read once, not once per bufferful"


def check_complete(taken: list[Publish], count: int) -> None:
    """Everything once, in order for each topic name."""
    by_name: dict[bytes, list[int]] = defaultdict(list)
    for packet in taken:
        assert not packet.dup
        by_name[packet.topic_name_utf8].append(int(packet.payload))
    assert sorted(number for numbers in by_name.values() for number in numbers) == list(range(count))
    assert all(numbers == sorted(numbers) for numbers in by_name.values())


async def test_slow_clients_that_are_behind_at_one_place_share_the_reading() -> None:
    count, crowd = 5_000, 20
    async with memory_edge() as node, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connected(mqtt_address(node), f"c{number}")) for number in range(crowd)
        ]
        for client in clients:
            await subscribe(client, "t")
        async with MqttClient(*mqtt_address(node), "w") as writer:
            await publish(writer, [("t", b"%d" % number) for number in range(count)])
        await until(lambda: node.services.catch_up.statistics()["subscribers_behind"] == crowd)
        for taken in await asyncio.wait_for(asyncio.gather(*[take(client, count) for client in clients]), 60):
            assert [int(packet.payload) for packet in taken] == list(range(count))
        figures = node.services.catch_up.statistics()
        assert figures["deliveries"] == crowd * (count - 1_032)
        assert figures["records"] < figures["deliveries"] / 4


async def test_what_a_slow_client_gave_up_does_not_come() -> None:
    """[MQTT5-3.10.4-2]"""
    async with memory_edge(limits={"buffer_messages_max": 8}) as node, connected(mqtt_address(node), "slow") as slow:
        handler = node.services.clients["slow"]
        kept, given_up, *_ = same_partition(node)
        await subscribe(slow, kept)
        await subscribe(slow, given_up)
        async with MqttClient(*mqtt_address(node), "w") as writer:
            await publish(writer, [(name, b"%d" % number) for number in range(50) for name in (kept, given_up)])
            await until(lambda: handler.behind is not None)
            first = [await slow.receive(Publish) for _ in range(32)]
            await slow.send(Unsubscribe(9, (given_up,)))
            await slow.receive(Unsuback)
            await slow.send(*[Puback(packet.packet_id) for packet in first])
            buffered = await take(slow, 8 + (100 - 40) // 2)
            rest = buffered[8:]
            assert {packet.topic_name_utf8 for packet in rest} == {kept.encode()}
            mine = [packet.payload for packet in first + buffered if packet.topic_name_utf8 == kept.encode()]
            assert mine == [b"%d" % number for number in range(50)]
            await until(lambda: handler.behind is None)

            await publish(writer, [(kept, b"x")] * 50)
            await until(lambda: handler.behind is not None)
            await slow.send(Unsubscribe(9, (kept,)))
            await until(lambda: handler.behind is None)
            assert node.services.catch_up.statistics()["subscribers_behind"] == 0


async def test_subscribing_again_brings_nothing_from_before_the_first_time() -> None:
    async with memory_edge(limits={"buffer_messages_max": 8}) as node, connected(mqtt_address(node), "slow") as slow:
        early, late, *_ = same_partition(node)
        await subscribe(slow, early)
        async with MqttClient(*mqtt_address(node), "w") as writer:
            await publish(writer, [(name, b"before") for _ in range(50) for name in (early, late)])
            await until(lambda: node.services.clients["slow"].behind is not None)
            first = [await slow.receive(Publish) for _ in range(32)]
            for packet_id in (2, 3):
                await subscribe(slow, late, packet_id=packet_id)
            await publish(writer, [(late, b"after")])
            await slow.send(*[Puback(packet.packet_id) for packet in first])
            rest = await take(slow, 19)
            assert [packet.topic_name_utf8 for packet in rest] == [early.encode()] * 18 + [late.encode()]
            assert rest[-1].payload == b"after"
            await quiet(slow)


async def test_a_client_that_leaves_behind_leaves_nothing() -> None:
    async with memory_edge(limits={"buffer_messages_max": 8}) as node:
        async with MqttClient(*mqtt_address(node), "w") as writer:
            for goodbye in (True, False):
                async with connected(mqtt_address(node), "slow") as slow:
                    await subscribe(slow, "t/#")
                    await publish(writer, [(f"t/{number}", b"x") for number in range(200)])
                    await until(lambda: node.services.catch_up.statistics()["subscribers_behind"] == 1)
                    if goodbye:
                        await slow.send(Disconnect())
                await until(lambda: "slow" not in node.services.clients)
                figures = node.services.catch_up.statistics()
                assert figures["subscribers_behind"] == figures["partitions_behind"] == 0
        await until(lambda: "headwater-catch-up" not in {task.get_name() for task in asyncio.all_tasks()})


async def test_what_was_deleted_from_the_log_is_told(error_log: ErrorLog) -> None:
    log = MemoryLog()
    async with (
        memory_edge(log, limits={"buffer_messages_max": 8}) as node,
        connected(mqtt_address(node), "slow") as slow,
        MqttClient(*mqtt_address(node), "w") as writer,
    ):
        await subscribe(slow, "t")
        await publish(writer, [("t", b"%d" % number) for number in range(100)])
        handler: EdgeProtocolHandler = node.services.clients["slow"]
        await until(lambda: handler.behind is not None)
        [position] = node.services.deliverer.plain.positions()
        log.truncate(*position, 60)
        taken = await take(slow, 80)
        assert [int(packet.payload) for packet in taken] == [*range(40), *range(60, 100)]
        await until(lambda: handler.behind is None)

        def dropped() -> list[Event]:
            events = [Event.from_json(record.value or b"") for record in records_of(log, "headwater.events")]
            return [event for event in events if event.kind == "dropped"]

        await until(dropped)
        [event] = dropped()
        assert event.client_id == "slow"
        assert (event.detail["first_offset"], event.detail["following_offset"]) == (40, 60)
        assert (event.detail["kafka_topic"], event.detail["partition"]) == position
    assert error_log.lines == [f"{position[0]}[{position[1]}]: position 40 is gone, reading goes on at 60"]
    error_log.lines.clear()


async def test_qos_0_is_dropped_and_counted_while_a_client_is_behind() -> None:
    async with memory_edge(limits={"buffer_messages_max": 8}) as node, connected(mqtt_address(node), "slow") as slow:
        handler = node.services.clients["slow"]
        await subscribe(slow, "t")
        async with MqttClient(*mqtt_address(node), "w") as writer:
            await publish(writer, [("t", b"1")] * 50)
            await until(lambda: handler.behind is not None)
            for _ in range(20):
                writer.publish("t", b"0", 0)
            await publish(writer, [("t", b"1")] * 50)
            await until(lambda: handler.engine.statistics()["dropped"] == 20)
            taken = await take(slow, 100)
            assert {packet.payload for packet in taken} == {b"1"}
            await until(lambda: handler.behind is None)
            await quiet(slow)
            assert handler.engine.statistics()["dropped"] == 20
            assert node_statistics(node.services)["messages_sent"] >= 100


async def test_retained_messages_for_a_client_that_falls_behind() -> None:
    """Of each topic name the retained message first, then what came live, whatever had to wait for what."""
    names = [f"r/{number:03}" for number in range(100)]
    async with memory_edge(limits={"buffer_messages_max": 3}) as node:
        async with connected(mqtt_address(node), "slow") as slow, MqttClient(*mqtt_address(node), "w") as writer:
            futures = [writer.publish(name, b"retained", 1, retain=True) for name in names]
            await asyncio.gather(*[future for future in futures if future is not None])
            await subscribe(slow, "r/#")
            first = [await slow.receive(Publish) for _ in range(32)]
            await publish(writer, [(name, b"live %d" % round) for round in range(3) for name in reversed(names)])
            handler = node.services.clients["slow"]
            await until(lambda: handler.behind is not None)
            await slow.send(*[Puback(packet.packet_id) for packet in first])
            rest = await take(slow, 4 * len(names) - 32)
            await until(lambda: handler.behind is None and handler.retaining is None)
            await quiet(slow)
        by_name: dict[str, list[tuple[bytes, bool]]] = defaultdict(list)
        for packet in first + rest:
            by_name[packet.topic_name_utf8.decode()].append((packet.payload, packet.retain))
        due = [(b"retained", True), (b"live 0", False), (b"live 1", False), (b"live 2", False)]
        assert by_name == dict.fromkeys(names, due)
