"""QoS 2 across a group: each message becomes one session's, whoever dies, stands still or is late, and when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from support.share_sessions import Place, SessionMember, SharingNode
from support.shares import eventually, record

from bridge.log import CommitUnknown
from bridge.memory_log import MemoryLog
from bridge.partitioning import RouteTable
from bridge.shared.lease import group_id_of
from bridge.shared.memory_lease import MemoryLeases
from schemas.routes import Q2_SUFFIX, Route

FILTER = "$share/g/t/#"
GROUP = group_id_of(FILTER)
PARTITIONS = 2


class World:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.routes = RouteTable((Route("#", "mqtt.messages", partitions=PARTITIONS),))
        self.live: set[str] = set()
        self.nodes: list[SharingNode] = []
        self.published: list[Place] = []

    async def node(self, node_id: str, *client_ids: str) -> tuple[SharingNode, list[SessionMember]]:
        node = SharingNode(self.log, self.routes, node_id, self.live)
        self.nodes.append(node)
        await node.start()
        async with asyncio.timeout(20):
            return node, [await node.member(client_id, FILTER) for client_id in client_ids]

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            at = self.routes.destination(f"t/{len(self.published)}")
            kafka_topic = at.kafka_topic + Q2_SUFFIX
            put = self.log.put(kafka_topic, at.partition, *record(f"t/{len(self.published)}", b"x", qos=2))
            self.published.append((kafka_topic, at.partition, put.offset))

    async def crash(self, node: SharingNode) -> None:
        """It sends nothing more; the group notices."""
        assert isinstance(node.leases, MemoryLeases)
        self.live.discard(node.sessions.node_id)
        self.nodes.remove(node)
        node.leases.crash()
        await node.crash()

    async def fence(self, node_id: str) -> None:
        """As a take-over of one of its sessions does, or Kafka's time-out."""
        producer = self.log.transactional_producer(f"headwater.edge.{node_id}")
        await producer.start()
        await producer.stop()

    async def each_is_one_sessions(self, by: SharingNode) -> None:
        await eventually(lambda: {place for _, place in by.owned()} == set(self.published))
        await by.sessions.store.caught_up()
        assert Counter(place for _, place in by.owned()) == Counter(self.published)

    def under_way(self, node: SharingNode) -> int:
        return node.sessions.store.statistics()["writer_in_hand"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.log.release_commits()
    for node in made.nodes:
        await node.stop()
        assert node.shared.statistics()["reader"]["pump_errors"] == 0
        assert node.sessions.store.statistics()["writer_sink_errors"] == 0


async def test_each_message_is_one_sessions_and_the_marks_follow(world: World) -> None:
    node, members = await world.node("a", "m", "n")
    world.publish(60)
    await world.each_is_one_sessions(node)
    assert all(member.sent for member in members)
    ends = {position: world.log.partition(position).end for position in world.log.groups.marks[GROUP]}
    await eventually(lambda: world.log.groups.marks[GROUP] == ends)
    assert not any(world.log.groups.beyond[GROUP].values())


async def test_a_holder_that_dies_with_the_hand_over_committed(world: World) -> None:
    """The session has the message; no regular commit follows."""
    node, [member] = await world.node("a", "m")
    other, [heir] = await world.node("b", "h")
    world.publish(20)
    await world.each_is_one_sessions(other)
    had = list(member.sent)
    assert had
    await world.crash(node)
    world.publish(20)
    await world.each_is_one_sessions(other)
    assert not set(had) & set(heir.sent)


async def test_a_holder_that_dies_in_the_middle_of_a_hand_over(world: World) -> None:
    """The next one does not begin before it is known what became of it."""
    node, [member] = await world.node("a", "m")
    other, [heir] = await world.node("b", "h")
    await world.log.groups.quiet()
    world.log.hold_commits()
    world.publish(10)
    await eventually(lambda: world.under_way(node) and world.under_way(other))
    await world.crash(node)
    world.log.release_commits()
    assert world.log.groups.pending
    assert not member.sent
    await world.fence("a")
    await world.each_is_one_sessions(other)
    assert sorted(heir.sent) == sorted(world.published)


async def test_a_holder_that_was_given_up_hands_nothing_over(world: World) -> None:
    """It stood still with a hand-over in its hands; another node serves the partition since."""
    node, [member] = await world.node("a", "m")
    world.log.hold_commits()
    world.publish(1)
    await eventually(lambda: world.under_way(node))  # this one has written its part, and may be committed
    world.publish(5)
    await eventually(lambda: len(member.waiting) >= 2)
    assert isinstance(node.leases, MemoryLeases)
    node.leases.made[0].expire()  # it joins again, as another one
    world.log.release_commits()
    await world.each_is_one_sessions(node)
    assert member.refused, "those that waited were not its any more"


async def test_a_member_that_goes_while_the_hand_over_is_under_way_keeps_it(world: World) -> None:
    """Whose it is, is decided by the transaction: nobody else gets it meanwhile [MQTT5-4.8.2-4]."""
    node, [member, other] = await world.node("a", "m", "n")
    other.room = 0
    world.log.hold_commits()
    world.publish(3)
    await eventually(lambda: member.waiting)
    other.room = 100
    node.shared.member_gone(member)
    node.shared.wake(other)
    world.log.release_commits()
    await world.each_is_one_sessions(node)
    assert member.sent


async def test_a_session_that_went_elsewhere_gets_nothing_more_here(world: World) -> None:
    """A take-over while hand-overs wait: what is not committed for the session is another member's."""
    node, [member, other] = await world.node("a", "m", "n")
    elsewhere, _ = await world.node("b")
    other.room = 0
    world.log.hold_commits()
    world.publish(6)
    await eventually(lambda: len(member.waiting) == 6)
    opening = asyncio.create_task(elsewhere.sessions.open("m", 0.05))
    await eventually(lambda: node.sessions.lost == [("m", member.epoch)])
    other.room = 100
    node.shared.member_gone(member)
    world.log.release_commits()
    await opening
    await world.each_is_one_sessions(elsewhere)


@pytest.mark.parametrize("happened", [True, False])
async def test_a_commit_that_nobody_answered(world: World, happened: bool) -> None:
    node, _ = await world.node("a", "m", "n")
    world.publish(5)
    await world.each_is_one_sessions(node)
    world.log.fail_next_commit(CommitUnknown("planted"), happened=happened)
    world.publish(5)
    await world.each_is_one_sessions(node)


async def test_what_nobody_will_ever_know_is_asked_of_the_marks(world: World) -> None:
    """The writer gives up after 30 s: the node joins the group anew, and begins with what is stored."""
    node, [member, _] = await world.node("a", "m", "n")
    world.log.hold_commits()
    world.publish(4)
    await eventually(lambda: world.under_way(node) and len(member.waiting) >= 2)
    node.sessions.store._writer.expire(float("inf"))
    assert member.doubtful
    world.log.release_commits()
    await world.each_is_one_sessions(node)
    assert node.shared.statistics()["groups"][FILTER]["losses"] == 1
