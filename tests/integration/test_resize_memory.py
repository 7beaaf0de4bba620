"""A resize under load over two edges on a log in memory: nothing is lost, doubled (QoS 2) or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.edges import memory_edge, mqtt_address, until
from support.resize import DURABLE, KAFKA_TOPIC, WAIT_S, Load, Seen, connected, operator, shared_whole

from bridge.log import LogUnavailable
from bridge.memory_log import MemoryLog
from bridge.resize import ResizeFailed
from edge.client import ReconnectPolicy
from edge.node.node import EdgeNode
from schemas.errors import ConfigurationError
from schemas.layouts import SETTLED


async def test_growing_and_shrinking_under_load() -> None:
    log = MemoryLog()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(memory_edge(log, node_id="edge-1"))
        two = await stack.enter_async_context(memory_edge(log, node_id="edge-2"))
        who = await stack.enter_async_context(operator(log))
        live, durable, late, few = Seen(), Seen(), Seen(), Seen()
        await (await connected(stack, mqtt_address(one), live)).subscribe("sensors/#", 2)
        await (await connected(stack, mqtt_address(two), durable, client_id="durable", **DURABLE)).subscribe(
            "sensors/#", 2
        )
        for client_id, topic_filter in (("offline", "sensors/#"), ("narrow", "sensors/q1-0/7/#")):
            client = await connected(stack, mqtt_address(one), client_id=client_id, **DURABLE)
            await client.subscribe(topic_filter, 2)
            await client.disconnect()
        slow, slow_durable = Seen(), Seen()  # they take nothing over both resizes: their buffers overflow
        slow_clients = [
            await connected(stack, mqtt_address(one), slow, receive_maximum=50),
            await connected(stack, mqtt_address(two), slow_durable, client_id="slow", receive_maximum=50, **DURABLE),
        ]
        for client in slow_clients:
            await client.subscribe("sensors/#", 2)
            client.pause_reading()
        loads = [Load(1, pause_s=0.01), Load(2, pause_s=0.01)]
        for load in loads:
            load.begin([await connected(stack, mqtt_address(node)) for node in (one, two)])
        for partitions in (24, 6):
            sent = loads[0].total
            await until(lambda sent=sent: loads[0].total > sent + 600)
            status = await who.resizer(drop_timeout_s=0.0).resize(partitions)
            assert (status.step, status.partitions) == (SETTLED, partitions)
            assert one.services.routes.destination("sensors/a/b/c").partition < partitions
        assert status.read == (12, 24, 6)
        assert {"session offline", "session narrow"} <= set(status.needed_by)
        for load in loads:
            await load.end()
        for client in slow_clients:
            client.resume_reading()
        await connected(stack, mqtt_address(two), late, client_id="offline", clean_start=False, **DURABLE)
        await connected(stack, mqtt_address(two), few, client_id="narrow", clean_start=False, **DURABLE)
        await live.whole(loads, who="live")
        await durable.whole(loads, who="durable")
        await late.whole(loads, who="offline")
        await slow.whole(loads, who="slow")
        await slow_durable.whole(loads, who="slow and durable")
        assert one.services.catch_up.statistics()["fallen_behind"]
        assert two.services.catch_up.statistics()["fallen_behind"]
        only = Load(1)
        only.sent = {"sensors/q1-0/7/t": loads[0].sent["sensors/q1-0/7/t"]}
        await few.whole([only], who="narrow")


async def test_a_shared_group_over_a_resize() -> None:
    log = MemoryLog()
    async with AsyncExitStack() as stack:
        edges = [await stack.enter_async_context(memory_edge(log, node_id=f"edge-{number}")) for number in (1, 2)]
        who = await stack.enter_async_context(operator(log))
        members = [Seen(), Seen(), Seen()]
        for number, seen in enumerate(members):
            client = await connected(stack, mqtt_address(edges[number % 2]), seen)
            await client.subscribe("$share/g/sensors/#", 2)
        loads = [Load(1, pause_s=0.01), Load(2, pause_s=0.01)]
        for load in loads:
            load.begin([await connected(stack, mqtt_address(edge)) for edge in edges])
        for partitions in (24, 6):
            await who.resizer(drop_timeout_s=0.0).resize(partitions)
        for load in loads:
            await load.end()
        await shared_whole(members, loads, who="the group")
        assert all(seen.got for seen in members)
        status = await who.resizer().resize(6)
        assert (status.read, status.needed_by) == ((6,), ())  # everybody is through: old partitions are dropped
        assert edges[0].services.routes.partitions("sensors/+/+/t") == {(KAFKA_TOPIC, each) for each in range(6)}


async def test_steps_taken_back_and_gone_on_with() -> None:
    log = MemoryLog()
    async with AsyncExitStack() as stack:
        edge = await stack.enter_async_context(memory_edge(log, node_id="edge-1"))
        who = await stack.enter_async_context(operator(log))
        seen, load = Seen(), Load(1)
        await (await connected(stack, mqtt_address(edge), seen)).subscribe("sensors/#", 1)
        load.begin([await connected(stack, mqtt_address(edge))])
        with pytest.raises(ConfigurationError, match=r"no resize of mqtt\.sensors waits"):
            await who.resizer().abort()
        with pytest.raises(ConfigurationError, match="0 partitions; give"):
            await who.resizer().resize(0)
        layout = edge.services.routes.layout(KAFKA_TOPIC).reading(24, ((), ()), 24)
        await who.control.put(layout)  # an operator who was interrupted after the first step
        await until(lambda: edge.services.routes.layout(KAFKA_TOPIC).counts == (12, 24))
        with pytest.raises(ConfigurationError, match="on its way to 24 partitions"):
            await who.resizer().resize(36)
        status = await who.resizer().abort()
        assert (status.step, status.read, status.partitions) == (SETTLED, (12,), 12)
        await who.control.put(layout.frozen())  # and one after the second step: edges wait, but not for ever
        await until(lambda: edge.services.deliverer.plain.is_paused(KAFKA_TOPIC))
        status = await who.resizer().resize(24)
        assert (status.step, status.read, status.partitions) == (SETTLED, (24,), 24)
        await load.end()
        await seen.whole([load], who="live")


async def test_an_edge_that_was_frozen_and_forgotten_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.resize_follower.FREEZE_MS", 300)
    monkeypatch.setattr("bridge.resize_follower.MARGIN_S", 0.2)
    log = MemoryLog()
    async with AsyncExitStack() as stack:
        edge = await stack.enter_async_context(memory_edge(log, node_id="edge-1"))
        who = await stack.enter_async_context(operator(log))
        client = await connected(stack, mqtt_address(edge), seen := Seen())
        await client.subscribe("sensors/#", 1)
        await who.control.put(edge.services.routes.layout(KAFKA_TOPIC).reading(24, ((), ()), 24).frozen())
        await until(lambda: edge.services.deliverer.plain.is_paused(KAFKA_TOPIC))
        await asyncio.wait_for(client.publish("sensors/a/b/c", b"1", 1), WAIT_S)
        await until(lambda: seen.got == {"sensors/a/b/c": [1]}, wait_s=WAIT_S)
        assert edge.services.routes.destination("sensors/a/b/c").partition < 12


async def test_an_edge_that_does_not_answer_is_named_and_everything_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()
    async with AsyncExitStack() as stack:
        edge = await stack.enter_async_context(memory_edge(log, node_id="edge-1"))
        who = await stack.enter_async_context(operator(log))
        monkeypatch.setattr("bridge.resize.READ_TIMEOUT_S", 0.5)
        assert edge.control is not None
        monkeypatch.setattr(edge.control, "_taken", lambda key, held: None)  # an edge of an older version
        with pytest.raises(ResizeFailed, match="step read: edge-1 did not say within"):
            await who.resizer().resize(24)


async def test_an_edge_that_is_cut_off_over_the_switch_writes_nothing_by_the_old_count() -> None:
    log = MemoryLog()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(memory_edge(log, node_id="edge-1"))
        two = await stack.enter_async_context(memory_edge(log, node_id="edge-2"))
        who = await stack.enter_async_context(operator(log))
        here, there = Seen(), Seen()
        await (await connected(stack, mqtt_address(one), here)).subscribe("sensors/#", 1)
        comes_back = {"client_id": "there", "reconnect": ReconnectPolicy(wait_first_s=0.05, wait_max_s=0.1), **DURABLE}
        client = await connected(stack, mqtt_address(two), there, clean_start=False, **comes_back)
        await client.subscribe("sensors/#", 1)
        publisher = await connected(stack, mqtt_address(two))
        await publisher.publish("sensors/a/b/c", b"1", 1)
        back = cut_off(two)
        resizing = asyncio.ensure_future(who.resizer(drop_timeout_s=0.0).resize(24))
        await until(lambda: not two.services.publisher.has_lease, wait_s=WAIT_S)
        publishing = asyncio.ensure_future(publisher.publish("sensors/a/b/c", b"2", 1))
        status = await resizing
        assert (status.partitions, status.read) == (24, (12, 24))  # it is not dropped so soon after
        assert "edge-2, silent for less than 120 s" in status.needed_by
        assert not publishing.done() or publishing.exception() is not None  # its sessions may have been adopted by now
        back()
        await until(lambda: two.services.routes.layout(KAFKA_TOPIC).written.partitions == 24)
        await until(lambda: not publisher.is_connected)  # it has missed the switch: its clients come again
        again = await connected(stack, mqtt_address(one))
        await again.publish("sensors/a/b/c", b"3", 1)
        for seen in (here, there):  # 2 was never acknowledged: it is there or not
            await until(lambda seen=seen: {1, 3} <= set(seen.got.get("sensors/a/b/c", ())), wait_s=WAIT_S)
            assert sorted(set(seen.got["sensors/a/b/c"]) - {2}) == [1, 3]


def cut_off(node: EdgeNode) -> Callable[[], None]:
    """The edge's heartbeats reach nobody and it hears of no decision, until the function is called."""
    membership, control = node._membership, node.control
    assert membership is not None
    assert control is not None
    append, take = membership._append, control._tail._take
    lost: list[asyncio.Future[int]] = []
    missed: list[tuple[int, Any]] = []
    membership._append = lambda *_: lost.append(asyncio.get_running_loop().create_future()) or lost[-1]
    control._tail._take = lambda partition, record: missed.append((partition, record))

    def back() -> None:
        membership._append, control._tail._take = append, take
        for partition, record in missed:
            take(partition, record)
        for future in lost:
            future.set_exception(LogUnavailable("cut off"))

    return back
