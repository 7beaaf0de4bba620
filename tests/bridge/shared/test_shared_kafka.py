"""Shared subscriptions of three nodes on a real Kafka: nodes join, leave and die; Kafka's own tools see the group."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.group import LeaveGroupRequest
from support.logs import READ_S
from support.shares import FakeMember, eventually, make_node, record, until_in

from bridge.kafka_connection import KafkaConnection
from bridge.kafka_log import KafkaLog
from bridge.log import Mark, Position
from bridge.partitioning import RouteTable
from bridge.shared.kafka_lease import KafkaLease, KafkaLeases
from bridge.shared.lease import LeaseLost, group_id_of
from bridge.shared.shared_subscriptions import SharedSubscriptions, partitions_of
from schemas.routes import Q2_SUFFIX, Route

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 6
SETTLED_S = 40.0  # a session's time-out and a rebalance, on a loaded machine


class RememberingLeases(KafkaLeases):
    """Gives the leases to the test, that it can let them die."""

    def __init__(self, connection: KafkaConnection) -> None:
        super().__init__(connection)
        self.made: list[KafkaLease] = []

    def lease(self, group_id: str, partitions: frozenset[Position]) -> KafkaLease:  # type: ignore[override]
        self.made.append(super().lease(group_id, partitions))
        return self.made[-1]


class Node:
    """An edge's part in shared subscriptions, with a connection to Kafka of its own."""

    def __init__(self, source: KafkaLog, routes: RouteTable, connection: KafkaConnection) -> None:
        self.connection = connection
        self.leases = RememberingLeases(connection)
        self.shared: SharedSubscriptions = make_node(source, routes, self.leases, commit_interval_s=0.1)

    @property
    def partitions(self) -> set[Position]:
        return {position for group in self.shared.groups().values() for position in group.positions}

    async def stop(self) -> None:
        await self.shared.stop()
        await self.connection.stop()

    async def die(self) -> None:
        """No word to the group, no last commit."""
        for lease in self.leases.made:
            await lease.die()
            lease._member_id = ""
        await self.stop()


class Cluster:
    """Three nodes at most, their members, and what was published."""

    def __init__(self, bootstrap: str, admin: AIOKafkaAdminClient) -> None:
        self.bootstrap = bootstrap
        self.admin = admin
        self.kafka_topic = f"test.{uuid.uuid4().hex}"
        self.routes = RouteTable((Route("#", self.kafka_topic, partitions=PARTITIONS),))
        self.share_filter = f"$share/{uuid.uuid4().hex[:8]}/t/#"
        self.group_id = group_id_of(self.share_filter)
        self.log = KafkaLog(bootstrap)
        self.nodes: list[Node] = []
        self.members: list[FakeMember] = []
        self.published: set[bytes] = set()
        self._numbers = itertools.count()

    async def start(self) -> None:
        names = (self.kafka_topic, self.kafka_topic + Q2_SUFFIX)
        await self.admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
        await self.log.start()
        await self.log.end_offsets(partitions_of(self.routes, "#"))

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes))
        await self.log.stop()
        await self.admin.delete_topics([self.kafka_topic, self.kafka_topic + Q2_SUFFIX])

    async def node(self, *client_ids: str) -> Node:
        """A new node with these members; returns when SUBACK may be sent."""
        connection = KafkaConnection(self.bootstrap, "headwater-test", 10_000, {})
        await connection.start()
        node = Node(self.log, self.routes, connection)
        self.nodes.append(node)
        for client_id in client_ids:
            await self.join(node, client_id)
        return node

    async def join(self, node: Node, client_id: str) -> FakeMember:
        member = FakeMember(client_id)
        self.members.append(member)
        await asyncio.wait_for(node.shared.subscribe(member, self.share_filter, 1), SETTLED_S)
        return member

    async def leave(self, node: Node) -> None:
        self.nodes.remove(node)
        await node.stop()

    async def die(self, node: Node) -> None:
        self.nodes.remove(node)
        await node.die()

    async def leave_behind_its_back(self, node: Node) -> None:
        [lease] = node.leases.made
        request = LeaveGroupRequest(self.group_id, lease._member_id)
        await node.connection.ask_coordinator(self.group_id, "leaving", request, lambda answer: [answer.error_code])

    async def publish(self, count: int) -> None:
        """Numbered messages of QoS 1, one in five of QoS 2; in Kafka when this returns."""
        futures: list[asyncio.Future[int]] = []
        for _ in range(count):
            number = next(self._numbers)
            payload = b"%d" % number
            at = self.routes.destination(f"t/{number % 50}")
            qos = 2 if number % 5 == 0 else 1
            kafka_topic = at.kafka_topic + (Q2_SUFFIX if qos == 2 else "")
            futures.append(self.log.submit(kafka_topic, at.partition, [record(f"t/{number % 50}", payload, qos=qos)]))
            self.published.add(payload)
        await asyncio.wait_for(asyncio.gather(*futures), READ_S)

    async def complete(self) -> None:
        await until_in(self.members, self.published, SETTLED_S)

    async def stored(self, lease: KafkaLease) -> None:
        """Until the low-water marks in Kafka are the ends."""
        ends = await self.log.end_offsets(partitions_of(self.routes, "#"))
        marks = {position: Mark(offset) for position, offset in ends.items()}
        async with asyncio.timeout(READ_S):
            while await lease.committed() != marks:  # noqa: ASYNC110 - Kafka is asked
                await asyncio.sleep(0.05)

    async def balanced(self, *counts: int) -> None:
        """Until the nodes serve so many partitions, and together all, each once."""

        def is_balanced() -> bool:
            held = [node.partitions for node in self.nodes]
            return sorted(map(len, held)) == sorted(counts) and len(set().union(*held)) == 2 * PARTITIONS

        await eventually(is_balanced, SETTLED_S)

    def times(self) -> Counter[bytes]:
        return Counter(payload for member in self.members for payload in member.payloads)


@pytest.fixture
async def cluster(kafka_bootstrap: str) -> AsyncIterator[Cluster]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    made = Cluster(kafka_bootstrap, admin)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
        with suppress(Exception):
            await admin.delete_consumer_groups([made.group_id])
        await admin.close()


async def test_nodes_join_and_leave_and_every_message_goes_to_one_member(cluster: Cluster) -> None:
    await cluster.publish(20)
    cluster.published.clear()  # before the subscription
    first = await cluster.node("a1")
    await cluster.publish(200)
    await cluster.complete()

    for expected, client_id in (((6, 6), "b1"), ((4, 4, 4), "c1")):
        publishing = asyncio.ensure_future(cluster.publish(300))
        await cluster.node(client_id)
        await cluster.balanced(*expected)
        await publishing
    await cluster.complete()
    await cluster.publish(600)
    await cluster.complete()
    assert all(member.got for member in cluster.members)

    publishing = asyncio.ensure_future(cluster.publish(300))
    await cluster.leave(first)
    await cluster.balanced(6, 6)
    await publishing
    await cluster.complete()
    assert set(cluster.times()) == cluster.published
    assert set(cluster.times().values()) == {1}, "nothing failed, so nothing comes twice"
    for node in cluster.nodes:
        assert node.shared.statistics()["reader"]["pump_errors"] == 0


async def test_a_node_that_dies_leaves_nothing_behind(cluster: Cluster) -> None:
    nodes = [await cluster.node(client_id) for client_id in ("a1", "b1", "c1")]
    await cluster.balanced(4, 4, 4)
    slow = cluster.members[0]
    slow.acknowledges = False
    await cluster.publish(300)
    await cluster.complete()
    assert slow.unacknowledged
    cluster.members.remove(slow)  # whatever it got is unacknowledged: others must get it
    await cluster.die(nodes[0])
    await cluster.publish(300)
    await cluster.balanced(6, 6)
    await cluster.complete()


async def test_a_node_that_was_given_up_hears_of_it_and_comes_back(cluster: Cluster) -> None:
    """Kafka thinks that the node has left (as after a pause longer than its session): all that it has is void."""
    node = await cluster.node("a1")
    [member], [lease] = cluster.members, node.leases.made
    await cluster.publish(50)
    await cluster.complete()
    await cluster.stored(lease)
    member.acknowledges = False
    await cluster.publish(50)
    await cluster.complete()
    await cluster.leave_behind_its_back(node)
    with pytest.raises(LeaseLost):
        await lease.commit({(cluster.kafka_topic, 0): Mark(0)})
    await eventually(lambda: node.shared.statistics()["groups"][cluster.share_filter]["losses"] == 1, SETTLED_S)
    late = list(member.unacknowledged)
    member.acknowledges = True
    await cluster.balanced(2 * PARTITIONS)
    await eventually(lambda: min(cluster.times()[payload] for payload in cluster.published) >= 1, SETTLED_S)
    await eventually(lambda: len(member.got) == 100 + len(late), SETTLED_S)
    assert sum(count - 1 for count in cluster.times().values()) == 50, "what was unacknowledged, and nothing else"


async def test_a_lease_that_may_be_over_stops_the_group_until_kafka_answers(cluster: Cluster) -> None:
    node = await cluster.node("a1")
    [lease] = node.leases.made
    ask, failures = lease._ask, 0

    async def failing(request: Any, lane: int = ConnectionGroup.COORDINATION) -> Any:
        nonlocal failures
        if failing_now:
            failures += 1
            raise KafkaConnectionError("planted")
        return await ask(request, lane)

    failing_now = True
    lease._ask = failing  # type: ignore[method-assign]
    await eventually(lambda: failures, SETTLED_S)
    lease._valid_until_s = 0.0  # as after SESSION_TIMEOUT_S
    await cluster.publish(50)
    await eventually(lambda: failures > 5, SETTLED_S)
    assert not cluster.members[0].got
    failing_now = False
    await cluster.complete()
    assert set(cluster.times().values()) == {1}
    assert node.shared.statistics()["groups"][cluster.share_filter]["losses"] == 0


async def test_before_it_has_joined_nothing_can_be_stored(cluster: Cluster) -> None:
    node = await cluster.node()
    lease = node.leases.lease(cluster.group_id, frozenset({(cluster.kafka_topic, 0)}))
    with pytest.raises(LeaseLost):
        await lease.commit({(cluster.kafka_topic, 0): Mark(0)})
    assert not lease.is_valid()
    assert await lease.committed() == {}
    await lease.leave()
    assert not await node.leases.delete(cluster.group_id), "no such group, and no error"


async def test_members_weigh(cluster: Cluster) -> None:
    """A node with three times the members gets three times the partitions."""
    busy = await cluster.node("a1", "a2", "a3")
    await cluster.node("b1")
    await cluster.balanced(3, 9)
    assert len(busy.partitions) == 9


async def test_kafkas_tools_show_the_group_and_it_goes_with_the_last_session(cluster: Cluster) -> None:
    node = await cluster.node("a1")
    other = await cluster.node("b1")
    await cluster.balanced(6, 6)
    await cluster.publish(100)
    await cluster.complete()
    described = await cluster.admin.describe_consumer_groups([cluster.group_id])
    [(code, group_id, state, protocol_type, protocol, members, *_)] = described[0].groups
    assert (code, group_id, state, protocol_type) == (0, cluster.group_id, "Stable", "consumer")
    assert protocol == "headwater-weighted-1"
    assert len(members) == 2

    await cluster.stored(node.leases.made[0])
    ends = await cluster.log.end_offsets(partitions_of(cluster.routes, "#"))
    marks = await cluster.admin.list_consumer_group_offsets(cluster.group_id)
    assert {(at.topic, at.partition): mark.offset for at, mark in marks.items()} == ends, "no lag"

    async def groups() -> set[str]:
        return {name for name, *_ in await cluster.admin.list_consumer_groups()}

    assert cluster.group_id in await groups()
    node.shared.member_gone(cluster.members[0])
    await eventually(lambda: not node.shared.groups() and not node.shared._closing)
    assert cluster.group_id in await groups(), "the other node has a member"
    assert node.shared.statistics()["groups_deleted"] == 0
    other.shared.member_gone(cluster.members[1])
    await eventually(lambda: other.shared.statistics()["groups_deleted"] == 1)
    assert cluster.group_id not in await groups()
