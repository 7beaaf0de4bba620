"""Shared subscriptions of several nodes on the log in memory: what an edge calls, and what becomes of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from support.logs import turns
from support.shares import FakeMember, MemoryGroups, MemoryLeases, eventually, make_node, record, until_in

from bridge.log import LogUnavailable, Position
from bridge.memory_log import MemoryLog
from bridge.partitioning import RouteTable
from bridge.shared.lease import group_id_of
from bridge.shared.share import DRAIN_S
from bridge.shared.shared_subscriptions import SharedSubscriptions, partitions_of
from schemas.errors import ConfigurationError
from schemas.routes import DEFAULT_ROUTES, Q2_SUFFIX, Route

FILTER = "$share/g/t/#"
GROUP = group_id_of(FILTER)
PARTITIONS = 3


class World:
    """A log, groups, nodes, and what was published."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.groups = MemoryGroups()
        self.routes = RouteTable((Route("#", "mqtt.messages", partitions=PARTITIONS),))
        self.held: set[str] = set()
        self.nodes: list[SharedSubscriptions] = []
        self.leases: dict[SharedSubscriptions, MemoryLeases] = {}
        self.published = 0

    def node(self, strategy: str = "least_inflight") -> SharedSubscriptions:
        leases = self.groups.node()
        node = make_node(self.log, self.routes, leases, strategy=strategy, is_held=lambda each: each in self.held)
        self.nodes.append(node)
        self.leases[node] = leases
        return node

    def publish(self, count: int = 1, qos: int = 1) -> set[bytes]:
        """Numbered messages, in the log when this returns."""
        payloads: set[bytes] = set()
        for _ in range(count):
            payload, topic_name = b"%d" % self.published, f"t/{self.published % 20}"
            at = self.routes.destination(topic_name)
            kafka_topic = at.kafka_topic + (Q2_SUFFIX if qos == 2 else "")
            self.log.put(kafka_topic, at.partition, *record(topic_name, payload, qos=qos))
            payloads.add(payload)
            self.published += 1
        return payloads

    @property
    def ends(self) -> dict[Position, int]:
        return {position: self.log.partition(position).end for position in partitions_of(self.routes, "t/#")}

    async def crash(self, node: SharedSubscriptions) -> None:
        """The node stores nothing more; the others notice."""
        self.leases[node].crash()
        self.nodes.remove(node)
        await node.stop()
        await self.groups.quiet()

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes))
        for node in self.nodes:
            assert node.statistics()["reader"]["pump_errors"] == 0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.stop()


async def subscribed(node: SharedSubscriptions, *members: FakeMember, share_filter: str = FILTER, qos: int = 2) -> None:
    async with asyncio.timeout(10):
        for member in members:
            await node.subscribe(member, share_filter, qos)


def payloads(*members: FakeMember) -> list[bytes]:
    return [payload for member in members for payload in member.payloads]


def test_the_groups_name_is_readable_and_its_own() -> None:
    assert group_id_of("$share/fast/a/b").startswith("headwater.share.fast.")
    others = ["$share/fast/a/b", "$share/fast/a/+", "$share/fast2/a/b", "$share/" + "x" * 200 + "/a", "$share/ü \n/a"]
    others += ["$share/" + "x" * 201 + "/a"]
    names = {group_id_of(share_filter) for share_filter in others}
    assert len(names) == len(others)
    assert all(len(name) < 150 and name.isascii() and name.isprintable() for name in names)


def test_a_filters_twins_belong_to_it() -> None:
    routes = RouteTable(DEFAULT_ROUTES)
    kafka_topics = {kafka_topic for kafka_topic, _ in partitions_of(routes, "sensors/a/b/c")}
    assert kafka_topics == {"mqtt.sensors", "mqtt.sensors.q2"}
    assert len(partitions_of(routes, "sensors/a/b/c")) == 2


async def test_a_new_group_gets_what_follows_its_suback_and_nothing_before(world: World) -> None:
    world.publish(50)
    node, members = world.node(), [FakeMember("a"), FakeMember("b")]
    await subscribed(node, *members)
    assert world.groups.marks[GROUP] == world.ends, "stored before SUBACK"
    sent = world.publish(50) | world.publish(50, qos=2)
    await until_in(members, sent)
    assert sorted(payloads(*members)) == sorted(sent)
    assert abs(len(members[0].got) - len(members[1].got)) <= 2
    await eventually(lambda: world.groups.marks[GROUP] == world.ends)


async def test_suback_waits_for_the_group(world: World) -> None:
    world.groups.is_away = True
    node, member = world.node(), FakeMember("a")
    subscribing = asyncio.ensure_future(subscribed(node, member))
    await turns(50)
    world.publish(10)
    assert not subscribing.done()
    world.groups.is_away = False
    await subscribing
    sent = world.publish(10)
    await until_in([member], sent)
    assert set(member.payloads) == sent


async def test_suback_waits_for_what_another_node_begins_with(world: World) -> None:
    one, other = world.node(), world.node()
    first, second = FakeMember("a"), FakeMember("b")
    subscribing = [
        asyncio.ensure_future(subscribed(one, first)),
        asyncio.ensure_future(subscribed(other, second)),
    ]
    await turns(1)
    [slow] = world.leases[other].made
    slow.gate.clear()
    await turns(100)
    assert one.groups()[FILTER].positions, "its own part has begun"
    assert not subscribing[0].done()
    slow.gate.set()
    await asyncio.gather(*subscribing)
    assert world.groups.marks[GROUP] == world.ends


async def test_a_group_whose_sessions_are_offline_goes_on_where_it_was(world: World) -> None:
    world.held.add(FILTER)
    node, member = world.node(), FakeMember("a")
    await subscribed(node, member)
    first = world.publish(20)
    await until_in([member], first)
    node.member_gone(member)
    await eventually(lambda: not world.groups.leases[GROUP])
    missed = world.publish(20)
    await turns(20)
    other, returned = world.node(), FakeMember("a")
    await subscribed(other, returned)
    await until_in([returned], missed)
    assert sorted(returned.payloads) == sorted(missed)
    assert world.groups.deleted == []


async def test_the_group_is_deleted_with_the_last_session(world: World) -> None:
    one, other = world.node(), world.node()
    first, second = FakeMember("a"), FakeMember("b")
    await subscribed(one, first)
    await subscribed(other, second)
    assert one.unsubscribe(first, FILTER)
    assert not one.unsubscribe(first, FILTER)
    await eventually(lambda: FILTER not in one.groups() and not one._closing)
    await turns(20)
    assert world.groups.deleted == []
    other.member_gone(second)
    await eventually(lambda: world.groups.deleted == [GROUP])
    assert GROUP not in world.groups.marks
    assert other.statistics()["groups_deleted"] == 1


async def test_a_node_that_stops_deletes_what_nobody_holds(world: World) -> None:
    node, held = world.node(), "$share/held/t/#"
    world.held.add(held)
    await subscribed(node, FakeMember("a"))
    await subscribed(node, FakeMember("b"), share_filter=held)
    await node.stop()
    assert world.groups.deleted == [GROUP]


async def test_what_a_dead_node_left_behind_is_nobodys(world: World) -> None:
    """Its sessions ended with it: the next subscriber begins anew."""
    node = world.node()
    await subscribed(node, FakeMember("a"))
    await world.crash(node)
    world.publish(20)
    other, member = world.node(), FakeMember("b")
    await subscribed(other, member)
    sent = world.publish(20)
    await until_in([member], sent)
    assert set(member.payloads) == sent


async def test_gone_after_it_has_unsubscribed(world: World) -> None:
    node, member, heir = world.node(), FakeMember("a", acknowledges=False), FakeMember("b")
    await subscribed(node, member, heir)
    sent = world.publish(10)
    await until_in([member, heir], sent)
    assert node.unsubscribe(member, FILTER)
    node.member_gone(member)
    await until_in([heir], sent)
    assert node.unsubscribe(heir, FILTER)
    await subscribed(node, member)
    node.member_gone(heir)
    assert list(node.groups()) == [FILTER]
    await until_in([member], world.publish(1))


async def test_a_durable_session_that_ends_while_nobody_is_there(world: World) -> None:
    world.held.add(FILTER)
    node, member = world.node(), FakeMember("a")
    await subscribed(node, member)
    await node.forget(FILTER)
    node.member_gone(member)
    await eventually(lambda: not world.groups.leases[GROUP])
    await node.forget(FILTER)
    assert world.groups.deleted == []
    world.held.clear()
    world.groups.is_away = True
    await node.forget(FILTER)
    assert node.statistics()["deletion_errors"] == 1
    world.groups.is_away = False
    await node.forget(FILTER)
    assert world.groups.deleted == [GROUP]


async def test_a_subscriber_that_comes_while_the_last_one_leaves(world: World) -> None:
    node, gone, member = world.node(), FakeMember("a"), FakeMember("b")
    await subscribed(node, gone)
    node.member_gone(gone)
    await subscribed(node, member)
    sent = world.publish(20)
    await until_in([member], sent)
    assert not gone.got


async def test_two_groups_and_a_member_of_both(world: World) -> None:
    node, member, other = world.node(), FakeMember("a"), FakeMember("b")
    await subscribed(node, member)
    await subscribed(node, member, other, share_filter="$share/h/t/1")
    assert node.filters_of(member) == (FILTER, "$share/h/t/1")
    sent = world.publish(20)
    await eventually(lambda: len(member.got) + len(other.got) == 21)
    assert set(payloads(member)) == sent
    node.member_gone(member)
    assert node.filters_of(member) == ()
    assert list(node.groups()) == ["$share/h/t/1"]


async def test_nodes_share_the_partitions_and_no_message_goes_twice(world: World) -> None:
    nodes = [world.node() for _ in range(3)]
    members = [FakeMember(f"m{number}") for number in range(3)]
    sent: set[bytes] = set()
    for node, member in zip(nodes, members, strict=True):
        await subscribed(node, member)
        sent |= world.publish(100) | world.publish(50, qos=2)
    await world.groups.quiet()
    assert [len(node.groups()[FILTER].positions) for node in nodes] == [2, 2, 2]
    sent |= world.publish(100)
    await until_in(members, sent)
    world.nodes.remove(nodes[0])
    await nodes[0].stop()
    await world.groups.quiet()
    assert [len(node.groups()[FILTER].positions) for node in nodes[1:]] == [3, 3]
    sent |= world.publish(100)
    await until_in(members, sent)
    assert Counter(payloads(*members)) == dict.fromkeys(sent, 1)
    assert all(member.got for member in members)


async def test_no_message_goes_twice_while_nodes_come_and_go_under_load(world: World) -> None:
    members: list[FakeMember] = []
    sent: set[bytes] = set()

    async def publish() -> None:
        while len(sent) < 3_000:
            sent.update(world.publish(2))
            await asyncio.sleep(0)

    publishing: asyncio.Future[None] | None = None
    for number in range(4):
        node = world.node()
        members.append(FakeMember(f"m{number}"))
        await subscribed(node, members[-1])
        publishing = publishing or asyncio.ensure_future(publish())
    for _ in range(3):
        node = world.nodes.pop(0)
        await node.stop()
        await world.groups.quiet()
    assert publishing is not None
    await publishing
    await until_in(members, sent)
    assert Counter(payloads(*members)) == dict.fromkeys(sent, 1)


async def test_what_did_not_move_is_not_stored_again(world: World) -> None:
    node, member = world.node(), FakeMember("a")
    await subscribed(node, member)
    await until_in([member], world.publish(20))
    await eventually(lambda: world.groups.marks[GROUP] == world.ends)
    stored = node.statistics()["groups"][FILTER]["commits"]
    [share] = node._shares.values()
    for _ in range(5):
        await share.commit()
    assert node.statistics()["groups"][FILTER]["commits"] == stored


async def test_a_node_that_dies_had_acknowledged_nothing_that_it_did_not_store(world: World) -> None:
    one, other = world.node(), world.node()
    lost, heir = FakeMember("a", acknowledges=False), FakeMember("b")
    await subscribed(one, lost)
    await subscribed(other, heir)
    await world.groups.quiet()
    sent = world.publish(200)
    await until_in([lost, heir], sent)
    await world.crash(one)
    sent |= world.publish(50)
    await until_in([heir], sent)
    assert set(lost.payloads) <= set(heir.payloads)


async def test_given_up_by_the_others_and_back_again(world: World) -> None:
    one, other = world.node(), world.node()
    first, second = FakeMember("a", acknowledges=False), FakeMember("b")
    await subscribed(one, first)
    await subscribed(other, second)
    await world.groups.quiet()
    sent = world.publish(100)
    await until_in([first, second], sent)
    [lease] = world.leases[one].made
    lease.expire()
    assert not one.groups()[FILTER].positions
    first.acknowledge()  # too late
    first.acknowledges = True
    await world.groups.quiet()
    sent |= world.publish(100)
    await eventually(lambda: set(payloads(second)) | set(first.payloads) == sent and one.groups()[FILTER].positions)
    await eventually(lambda: world.groups.marks[GROUP] == world.ends)


async def test_no_answer_from_kafka_stops_the_group_and_an_answer_lets_it_go_on(world: World) -> None:
    node, member = world.node(), FakeMember("a")
    await subscribed(node, member)
    [lease] = world.leases[node].made
    lease.valid = False
    sent = world.publish(20)
    await turns(50)
    assert not member.got
    lease.valid = True
    assert lease.holder is not None
    lease.holder.renewed()
    await until_in([member], sent)
    assert len(member.got) == 20


async def test_a_rebalance_waits_for_what_is_on_its_way(world: World) -> None:
    """Acknowledged within a moment: then it is not handed out again by the next node."""
    one, other = world.node(), world.node()
    slow, second = FakeMember("a", acknowledges=False), FakeMember("b")
    await subscribed(one, slow)
    sent = world.publish(60)
    await until_in([slow], sent)
    subscribing = asyncio.ensure_future(subscribed(other, second))
    await asyncio.wait({subscribing}, timeout=DRAIN_S / 10)
    slow.acknowledge()
    slow.acknowledges = True
    await subscribing
    await world.groups.quiet()
    sent |= world.publish(60)
    await until_in([slow, second], sent)
    assert Counter(payloads(slow, second)) == dict.fromkeys(sent, 1)
    assert second.got


async def test_a_rebalance_does_not_wait_for_ever(world: World) -> None:
    one, other = world.node(), world.node()
    stuck, second = FakeMember("a", acknowledges=False), FakeMember("b")
    await subscribed(one, stuck)
    sent = world.publish(60)
    await until_in([stuck], sent)
    await subscribed(other, second)
    await world.groups.quiet()
    await eventually(lambda: second.got)
    assert set(second.payloads) < sent, "handed out again"


async def test_low_water_marks_are_stored_when_kafka_answers_again(world: World) -> None:
    node, member = world.node(), FakeMember("a")
    await subscribed(node, member)
    world.groups.is_away = True
    sent = world.publish(20)
    await until_in([member], sent)
    await eventually(lambda: node.groups() and node.statistics()["groups"][FILTER]["commit_errors"])
    world.groups.is_away = False
    await eventually(lambda: world.groups.marks[GROUP] == world.ends)


async def test_a_full_member_is_woken(world: World) -> None:
    node, member = world.node(), FakeMember("a", room=0)
    await subscribed(node, member)
    sent = world.publish(5)
    await eventually(lambda: node.statistics()["groups"][FILTER]["waits"])
    assert not member.got
    member.room = 3
    node.wake(member)
    node.wake(FakeMember("stranger"))
    await until_in([member], sent)


async def test_an_unknown_strategy_is_told_at_once(world: World) -> None:
    node = world.node("fair")
    with pytest.raises(ConfigurationError, match="fair"):
        await node.subscribe(FakeMember("a"), FILTER, 1)
    assert not node.groups()


async def test_a_node_that_stops_takes_no_more_subscriptions(world: World) -> None:
    node = world.node()
    subscribing = asyncio.ensure_future(node.subscribe(FakeMember("a"), FILTER, 1))
    world.groups.is_away = True
    await turns(20)
    await node.stop()
    with pytest.raises(LogUnavailable):
        await subscribing
    with pytest.raises(LogUnavailable):
        await node.subscribe(FakeMember("b"), FILTER, 1)


@pytest.mark.parametrize("seed", range(12))
async def test_nodes_and_members_come_and_go(world: World, seed: int) -> None:
    """Everything arrives; what is acknowledged and stored does not come again; nobody starves."""
    chance = random.Random(seed)
    strategy = chance.choice(["least_inflight", "round_robin", "hash_topic", "random", "sticky"])
    world.held.add(FILTER)
    there: list[tuple[SharedSubscriptions, FakeMember]] = []
    everybody: list[FakeMember] = []
    sent: set[bytes] = set()

    async def come() -> None:
        node = chance.choice([*world.nodes, world.node(strategy)] if len(world.nodes) < 3 else world.nodes)
        member = FakeMember(f"m{len(everybody)}", chance.choice([1, 5, 1_000]), acknowledges=chance.random() < 0.7)
        everybody.append(member)
        there.append((node, member))
        await subscribed(node, member)

    def go(node: SharedSubscriptions, member: FakeMember) -> None:
        there.remove((node, member))
        member.unacknowledged.clear()
        node.member_gone(member)

    await come()
    for _ in range(60):
        sent |= world.publish(chance.randrange(15), chance.choice([1, 1, 2]))
        match chance.randrange(12):
            case 0 | 1 if len(there) < 8:
                await come()
            case 2 | 3 if len(there) > 1:
                go(*chance.choice(there))
            case 4 if len({node for node, _ in there}) > 1:
                node = chance.choice(there)[0]
                for each in [each for each in there if each[0] is node]:
                    there.remove(each)
                await world.crash(node)
            case 5:
                node = chance.choice(there)[0]
                world.leases[node].made[-1].expire()
            case 6:
                for node, member in there:
                    member.acknowledge(3, node)
            case _:
                await turns(chance.randrange(20))
    await come()
    for _, member in there:
        member.room, member.acknowledges = 1_000, True
    for node, member in there:
        member.acknowledge(node=node)
    sent |= world.publish(200)

    def is_done() -> bool:
        for node, member in there:
            member.acknowledge(node=node)
        return sent <= set(payloads(*everybody)) and world.groups.marks[GROUP] == world.ends

    await eventually(is_done)
    assert set(payloads(*everybody)) == sent
    await world.groups.quiet()
    owners = world.groups.owners(GROUP)
    assert owners.keys() == world.ends.keys()
    assert all(len(leases) == 1 for leases in owners.values())
