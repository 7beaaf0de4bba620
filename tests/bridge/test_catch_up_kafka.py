"""Catch-up on a real Kafka: batches, fetches that bring more than there is room for, deleted records."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from support.catch_up import SlowSubscriber
from support.logs import READ_S, LogHarness, kafka_harness

from bridge.catch_up import CatchUp
from bridge.deliverer import Deliverer
from bridge.partitioning import RouteTable
from bridge.publisher import Publisher
from bridge.subscriptions import Subscription, SubscriptionTable
from schemas.message import Message
from schemas.records import encode_headers
from schemas.routes import Route

pytestmark = pytest.mark.kafka

PARTITIONS = 3
MESSAGES, LATER = 20_000, 1_000


@pytest.fixture
async def harness(kafka_bootstrap: str) -> AsyncIterator[LogHarness]:
    async with kafka_harness(kafka_bootstrap, PARTITIONS) as made:
        yield made


class Node:
    """What an edge has of the bridge."""

    def __init__(self, harness: LogHarness) -> None:
        self.routes = RouteTable((Route("#", harness.kafka_topic, partitions=PARTITIONS),))
        self.table = SubscriptionTable()
        self.publisher = Publisher(harness.log)
        self.deliverer = Deliverer(harness.log, self.routes, self.table, uuid.uuid4().hex, publisher=self.publisher)
        self.catch_up = CatchUp(harness.log, self.table, self.routes, self.deliverer, lambda: None)
        self.published = 0

    async def subscribe(self, topic_filter: str, subscriber: SlowSubscriber) -> None:
        self.table.add(Subscription(subscriber, topic_filter, 1))
        known = self.deliverer.add_filter(topic_filter)
        if known is not None:
            await asyncio.wait_for(known, READ_S)

    async def publish(self, count: int, names: int = 40) -> None:
        """Numbered messages; in Kafka when this returns."""
        for number in range(self.published, self.published + count):
            topic_name = f"t/{number % names}"
            headers = encode_headers(Message(topic_name, b""))
            self.publisher.append(self.routes.destination(topic_name), b"%d" % number, headers, None, None)
            if number % 1_000 == 999:
                await self.publisher.flush(READ_S)
        self.published += count
        await self.publisher.flush(READ_S)

    async def drained(self, *subscribers: SlowSubscriber, count: int) -> None:
        """The subscribers empty their buffers until they are through."""
        async with asyncio.timeout(3 * READ_S):
            while any(each.behind or len(each.got) < count for each in subscribers):
                for each in subscribers:
                    each.consume(len(each.buffer))
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        await self.catch_up.stop()
        await self.publisher.stop(READ_S)
        await self.deliverer.stop()


@pytest.fixture
async def node(harness: LogHarness) -> AsyncIterator[Node]:
    made = Node(harness)
    await made.deliverer.start()
    yield made
    await made.stop()


def check_complete(subscriber: SlowSubscriber, count: int) -> None:
    """Everything once, each partition in the log's order."""
    assert sorted(subscriber.numbers) == list(range(count))
    for partition in range(PARTITIONS):
        offsets = [delivery.offset for delivery in subscriber.got if delivery.partition == partition]
        assert offsets == sorted(offsets)


async def test_slow_subscribers_get_everything_and_read_together(node: Node) -> None:
    slow = [SlowSubscriber(node.catch_up, buffer_max) for buffer_max in (30, 100, 1_000)]
    fast = SlowSubscriber(node.catch_up, 1_000_000)
    for each in (*slow, fast):
        await node.subscribe("t/#", each)
    await node.publish(MESSAGES)
    async with asyncio.timeout(READ_S):
        while len(fast.buffer) < MESSAGES:  # noqa: ASYNC110 - the slow ones are where they were
            await asyncio.sleep(0.001)
    assert [len(each.buffer) for each in slow] == [30, 100, 1_000]
    assert node.catch_up.statistics()["records"] == 0
    going_on = asyncio.ensure_future(node.drained(*slow, count=MESSAGES + LATER))
    await node.publish(LATER)
    await going_on
    await node.drained(fast, count=MESSAGES + LATER)
    for each in (*slow, fast):
        check_complete(each, MESSAGES + LATER)
        assert each.longest <= each.buffer_max
    figures = node.catch_up.statistics()
    assert figures["subscribers_behind"] == figures["pump_errors"] == figures["log_errors"] == 0
    assert figures["records"] < 0.75 * figures["deliveries"], "what one has read serves the others, too"


async def test_deleted_records_are_told(node: Node, harness: LogHarness) -> None:
    slow = SlowSubscriber(node.catch_up, 10)
    await node.subscribe("t/0", slow)
    await node.publish(500, names=1)
    [position] = node.deliverer.positions()
    async with asyncio.timeout(READ_S):
        while node.deliverer.position_of(position) != 500:  # noqa: ASYNC110 - all was handed out live
            await asyncio.sleep(0.001)
    await harness.truncate(position[1], 300)
    await node.drained(slow, count=210)
    assert slow.lost == [(position, 10, 300)]
    assert slow.numbers == [*range(10), *range(300, 500)]
