"""QoS 2 across a group on a real Kafka: the holder dies between the steps of a hand-over, or is too late for it."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.group import LeaveGroupRequest
from support.session_nodes import PARTITIONS as SESSION_PARTITIONS
from support.share_sessions import Place, SessionMember, SharingNode
from support.shares import eventually, record

from bridge.kafka_connection import KafkaConnection
from bridge.kafka_log import KafkaLog
from bridge.kafka_transactions import KafkaTransactionalProducer
from bridge.log import Position
from bridge.partitioning import RouteTable
from bridge.shared.kafka_lease import KafkaLease, KafkaLeases
from bridge.shared.lease import group_id_of
from bridge.shared.shared_subscriptions import partitions_of
from schemas.routes import Q2_SUFFIX, Route

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 2
SETTLED_S = 40.0


class RememberingLeases(KafkaLeases):
    def __init__(self, connection: KafkaConnection) -> None:
        super().__init__(connection)
        self.made: list[KafkaLease] = []

    def lease(self, group_id: str, partitions: frozenset[Position]) -> KafkaLease:  # type: ignore[override]
        self.made.append(super().lease(group_id, partitions))
        return self.made[-1]


class World:
    def __init__(self, bootstrap: str) -> None:
        name = f"test.{uuid.uuid4().hex}"
        self.bootstrap = bootstrap
        self.prefix = name
        self.routes = RouteTable((Route("#", name, partitions=PARTITIONS),))
        self.share_filter = f"$share/{uuid.uuid4().hex[:8]}/t/#"
        self.group_id = group_id_of(self.share_filter)
        self.kafka_topics = {name: PARTITIONS, name + Q2_SUFFIX: PARTITIONS}
        self.kafka_topics |= {f"{name}.c": SESSION_PARTITIONS, f"{name}.s": SESSION_PARTITIONS}
        self.live: set[str] = set()
        self.logs: list[KafkaLog] = []
        self.nodes: dict[str, SharingNode] = {}
        self.published: list[Place] = []

    async def node(self, name: str, client_id: str) -> tuple[SharingNode, SessionMember]:
        """With a log, and so connections, of its own."""
        node_id = f"{self.prefix}-{name}"
        log = KafkaLog(self.bootstrap)
        await log.start()
        self.logs.append(log)
        assert log._connection is not None
        leases = RememberingLeases(log._connection)
        node = SharingNode(log, self.routes, node_id, self.live, leases=leases, prefix=self.prefix)
        self.nodes[name] = node
        await node.start()
        return node, await asyncio.wait_for(node.member(client_id, self.share_filter), SETTLED_S)

    async def publish(self, count: int) -> None:
        for _ in range(count):
            topic_name = f"t/{len(self.published)}"
            at = self.routes.destination(topic_name)
            kafka_topic = at.kafka_topic + Q2_SUFFIX
            offset = await self.logs[0].submit(kafka_topic, at.partition, [record(topic_name, b"x", qos=2)])
            self.published.append((kafka_topic, at.partition, offset))

    async def die(self, name: str) -> None:
        """No word to anybody."""
        node = self.nodes.pop(name)
        self.live.discard(node.sessions.node_id)
        assert isinstance(node.leases, RememberingLeases)
        for lease in node.leases.made:
            await lease.die()
        await node.crash()

    async def each_is_one_sessions(self, by: SharingNode) -> None:
        await eventually(lambda: {place for _, place in by.owned()} == set(self.published), SETTLED_S)
        await by.sessions.store.caught_up()
        assert Counter(place for _, place in by.owned()) == Counter(self.published)

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()
        for log in self.logs:
            await log.stop()


@pytest.fixture
async def world(kafka_bootstrap: str) -> AsyncIterator[World]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    made = World(kafka_bootstrap)
    await admin.create_topics([NewTopic(name, count, 1) for name, count in made.kafka_topics.items()])
    try:
        yield made
    finally:
        await made.stop()
        with suppress(Exception):
            await admin.delete_consumer_groups([made.group_id])
        await admin.delete_topics(list(made.kafka_topics))
        await admin.close()


def producer_of(node: SharingNode) -> KafkaTransactionalProducer:
    producer = node.sessions.store._writer._producer
    assert isinstance(producer, KafkaTransactionalProducer)
    return producer


@pytest.mark.parametrize("step", ["before the marks", "before the commit", "after the commit"])
async def test_a_holder_that_dies_between_the_steps(world: World, step: str) -> None:
    node, member = await world.node("a", "m")
    await world.publish(20)
    await world.each_is_one_sessions(node)
    producer = producer_of(node)
    is_there, never = asyncio.Event(), asyncio.Event()

    def stopping(call: Any, *, after: bool) -> Any:
        async def stopped(*args: Any) -> Any:
            if after:
                await call(*args)
            is_there.set()
            await never.wait()

        return stopped

    if step == "before the marks":
        producer._store_marks = stopping(producer._store_marks, after=False)  # type: ignore[method-assign]
    else:
        producer._end = stopping(producer._end, after=step == "after the commit")  # type: ignore[method-assign]
    await world.publish(10)
    await asyncio.wait_for(is_there.wait(), SETTLED_S)
    had = len(member.sent)
    await world.die("a")
    other, heir = await world.node("b", "h")  # waits for the dead one, and for its transaction
    await world.publish(10)
    await world.each_is_one_sessions(other)
    assert len(member.sent) == had
    given = len(world.published) - len(heir.sent)
    assert given == 20 if step != "after the commit" else given > 20


async def test_a_holder_that_was_given_up_is_too_late(world: World) -> None:
    """Its transaction stands still until the group has another generation: it is refused as a whole."""
    node, member = await world.node("a", "m")
    producer = producer_of(node)
    store_marks, going_on, is_there = producer._store_marks, asyncio.Event(), asyncio.Event()

    async def late(marks: Any) -> None:
        is_there.set()
        await going_on.wait()
        await store_marks(marks)

    producer._store_marks = late  # type: ignore[method-assign]
    await world.publish(1)
    await asyncio.wait_for(is_there.wait(), SETTLED_S)
    assert isinstance(node.leases, RememberingLeases)
    [lease] = node.leases.made
    request = LeaveGroupRequest(world.group_id, lease._member_id)
    assert world.logs[0]._connection is not None
    await world.logs[0]._connection.ask_coordinator(
        world.group_id, "leaving", request, lambda answer: [answer.error_code]
    )
    going_on.set()
    await eventually(lambda: member.refused, SETTLED_S)
    await world.publish(5)
    await world.each_is_one_sessions(node)


async def test_marks_are_what_kafkas_tools_show(world: World) -> None:
    node, _ = await world.node("a", "m")
    await world.publish(30)
    await world.each_is_one_sessions(node)
    ends = await world.logs[0].end_offsets(partitions_of(world.routes, "#"))
    admin = AIOKafkaAdminClient(bootstrap_servers=world.bootstrap)
    await admin.start()
    try:
        async with asyncio.timeout(SETTLED_S):
            while True:
                marks = await admin.list_consumer_group_offsets(world.group_id)
                if {(at.topic, at.partition): mark.offset for at, mark in marks.items()} == ends:
                    break
                await asyncio.sleep(0.1)
    finally:
        await admin.close()
