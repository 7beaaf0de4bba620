"""What a resize asks of publisher, deliverer, catch-up and session writer, each alone."""

from __future__ import annotations

import asyncio
from typing import Any

from support.catch_up import SlowSubscriber
from support.logs import RecordingSink, RecordingSubscriber, ScriptedLog, VirtualClock, destination, turns

from bridge.catch_up import CatchUp
from bridge.deliverer import Deliverer
from bridge.log import Position
from bridge.memory_log import MemoryLog
from bridge.murmur2 import partition_for_key
from bridge.partitioning import RouteTable
from bridge.publisher import Publisher
from bridge.subscriptions import Subscription, SubscriptionTable
from schemas.layouts import Layout, Offsets, offset_of
from schemas.message import Message
from schemas.records import encode_headers
from schemas.routes import Route

KAFKA_TOPIC = "mqtt.messages"
OLD, NEW = 2, 4
NAME = next(name for name in map(str, range(99)) if partition_for_key(name.encode(), NEW) >= OLD)


def routes() -> RouteTable:
    return RouteTable((Route("#", KAFKA_TOPIC, partitions=OLD),))


def reading() -> Layout:
    return Layout.of_route(KAFKA_TOPIC, OLD).reading(NEW, ((), ()), NEW)


async def put(log: MemoryLog, table: RouteTable, *payloads: bytes) -> Position:
    """Append the payloads under NAME, where it goes now."""
    at = table.destination(NAME)
    records = []
    for payload in payloads:
        records.append((at.key, payload, encode_headers(Message(NAME, payload, qos=1))))
    await log.submit(at.kafka_topic, at.partition, records)
    return at.position


async def ends(log: MemoryLog) -> tuple[Offsets, Offsets]:
    found = await log.end_offsets({(KAFKA_TOPIC, each) for each in range(NEW)})
    since = tuple(found[KAFKA_TOPIC, each] for each in range(NEW))
    return since, since


class Node:
    """A deliverer with its catch-up."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.routes = routes()
        self.table = SubscriptionTable()
        self.deliverer = Deliverer(log, self.routes, self.table, "node", commit_interval_s=3600.0)
        self.catch_up = CatchUp(log, self.table, self.routes, self.deliverer, lambda: None, gather_s=0.0)
        self.deliverer.on_passed = self.catch_up.keep_order

    async def subscribe(self, subscriber: Any) -> None:
        self.table.add(Subscription(subscriber, "#", 1))
        if (known := self.deliverer.add_filter("#")) is not None:
            await known

    async def read_next_count(self) -> None:
        self.routes.set_layout(KAFKA_TOPIC, reading())
        if (known := self.deliverer.relayout()) is not None:
            await known
        self.deliverer.confirm()

    async def switch(self) -> None:
        """As the follower does it, without a word to anybody."""
        since = await ends(self.log)
        self.routes.set_layout(KAFKA_TOPIC, reading().frozen().switched(since, 0))
        self.deliverer.go_on(KAFKA_TOPIC, lambda partition: offset_of(since[0], partition))

    async def stop(self) -> None:
        await self.catch_up.stop()
        await self.deliverer.stop()


async def test_nothing_is_handed_out_while_paused_and_the_old_part_comes_first() -> None:
    log = MemoryLog()
    node = Node(log)
    await node.deliverer.start()
    subscriber = RecordingSubscriber()
    await node.subscribe(subscriber)
    await node.read_next_count()
    assert {partition for _, partition in node.deliverer.positions()} == set(range(NEW))
    await put(log, node.routes, b"1")
    await subscriber.wait(1)
    await node.deliverer.pause(KAFKA_TOPIC)
    old = await put(log, node.routes, b"2", b"3")  # on its way from another edge
    await turns(50)
    assert subscriber.payloads == [b"1"]
    await node.switch()
    new = await put(log, node.routes, b"4")
    assert new != old
    await subscriber.wait(4)
    assert subscriber.payloads == [b"1", b"2", b"3", b"4"]
    assert not node.deliverer.is_limited(KAFKA_TOPIC)
    await node.stop()


async def test_a_pause_that_is_taken_back_leaves_nothing_out() -> None:
    log = MemoryLog()
    node = Node(log)
    await node.deliverer.start()
    subscriber = RecordingSubscriber()
    await node.subscribe(subscriber)
    await node.deliverer.pause(KAFKA_TOPIC)
    await put(log, node.routes, b"1", b"2")
    await turns(50)
    assert subscriber.payloads == []
    node.deliverer.go_on(KAFKA_TOPIC, None)
    await subscriber.wait(2)
    assert subscriber.payloads == [b"1", b"2"]
    await node.stop()


async def test_who_missed_the_steps_reads_new_partitions_from_where_they_begin() -> None:
    log = MemoryLog()
    node = Node(log)
    await node.deliverer.start()
    subscriber = RecordingSubscriber()
    await node.subscribe(subscriber)
    begins = (await ends(log))[0]
    node.routes.set_layout(KAFKA_TOPIC, reading().frozen().switched((begins, begins), 0))
    await put(log, node.routes, b"1", b"2")  # others have gone on
    node.deliverer.relayout()
    node.deliverer.restart_fresh(lambda position: offset_of(begins, position[1]))
    await subscriber.wait(2)
    assert subscriber.payloads == [b"1", b"2"]
    await node.stop()


async def test_who_is_behind_before_the_switch_gets_nothing_of_after_it_earlier() -> None:
    log = MemoryLog()
    node = Node(log)
    await node.deliverer.start()
    slow, fast = SlowSubscriber(node.catch_up, 2), RecordingSubscriber()
    await node.subscribe(slow)
    await node.subscribe(fast)
    await node.read_next_count()
    old = await put(log, node.routes, *(b"%d" % number for number in range(6)))
    await fast.wait(6)
    assert slow.behind == {old}
    await node.deliverer.pause(KAFKA_TOPIC)
    await node.switch()
    new = await put(log, node.routes, *(b"%d" % number for number in range(6, 10)))
    await fast.wait(10)
    assert node.catch_up.passed_barriers(KAFKA_TOPIC) == 0
    assert new in slow.behind
    while len(slow.got) < 10:
        slow.consume(2)
        await turns(5)
    assert [delivery.payload for delivery in slow.got] == [b"%d" % number for number in range(10)]
    assert not slow.behind
    assert node.catch_up.passed_barriers(KAFKA_TOPIC) == 1
    await node.stop()


async def test_what_waits_in_a_frozen_publisher_goes_where_its_key_goes_now() -> None:
    log = ScriptedLog()
    publisher, sink, table = Publisher(log), RecordingSink(), routes()
    destinations = [table.destination(str(name)) for name in range(8)]
    for number, at in enumerate(destinations):
        publisher.append(at, b"old", (), sink, number)
    await log.submitted(OLD)
    freezing = asyncio.ensure_future(publisher.freeze(KAFKA_TOPIC))
    for number, at in enumerate(destinations):
        publisher.append(at, b"%d" % number, (), sink, 100 + number)
        publisher.append_run(at, [b"a", b"b"], (), sink, [200 + number, 300 + number])
    await turns()
    assert not freezing.done()  # what was on its way is not in the log yet
    for submission in log.open:
        submission.future.set_result(0)
    await freezing
    assert len(log.submissions) == OLD
    table.set_layout(KAFKA_TOPIC, reading().frozen().switched(((), ()), 0))
    publisher.thaw(KAFKA_TOPIC, table.place)
    await turns()
    sent = {submission.partition: [(key, value) for key, value, _ in submission.records] for submission in log.open}
    for number in range(8):
        at = table.destination(str(number))
        mine = [value for key, value in sent[at.partition] if key == at.key]
        assert mine == [b"%d" % number, b"a", b"b"]
    for submission in log.open:
        submission.future.set_result(10)
    await turns()
    assert sorted(sink.tokens("appended")) == sorted([*range(8), *range(100, 108), *range(200, 208), *range(300, 308)])
    await publisher.stop(0.1)


async def test_without_a_lease_nothing_is_published_but_what_keeps_the_node_alive() -> None:
    log, clock, sink = ScriptedLog(), VirtualClock(), RecordingSink()
    publisher, table = Publisher(log, clock=clock), routes()
    publisher.lease(frozenset({KAFKA_TOPIC}), clock.now_s + 5.0)
    publisher.append(table.destination(NAME), b"1", (), sink, 1)
    await log.submitted(1)
    log.open[0].future.set_result(0)
    clock.now_s += 5.5  # it stood still
    publisher.append(table.destination(NAME), b"2", (), sink, 2)
    publisher.append(destination(0, "headwater.nodes"), b"heartbeat", (), sink, 3)
    await log.submitted(2)
    await turns()
    assert [submission.kafka_topic for submission in log.open] == ["headwater.nodes"]
    publisher.lease(frozenset({KAFKA_TOPIC}), clock.now_s + 5.0)
    await log.submitted(3)
    assert log.open[-1].values == [b"2"]
    await publisher.stop(0.1)
