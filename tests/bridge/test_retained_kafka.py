"""Retained messages on a real Kafka: edges that write the same names at the same time, restart, compaction."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from support.edges import until
from support.logs import RecordingSink

from bridge.kafka_log import KafkaLog
from bridge.log import Log
from bridge.partitioning import Destination
from bridge.publisher import Publisher
from bridge.retained import RetainedMessages

# A cleaner that starts at once on segments that close after 100 ms
COMPACTED_AT_ONCE = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "60000",
    "message.timestamp.type": "LogAppendTime",
}
COMPACTION_S = 60.0  # the cleaner looks every 15 s
NAMES = 50


class Edge:
    """What an edge has for retained messages, and nothing else."""

    def __init__(self, log: Log, node_id: str, kafka_topic: str) -> None:
        self.log = log
        self.publisher = Publisher(log)
        self.retained = RetainedMessages(log, self.publisher, node_id, kafka_topic=f"{kafka_topic}.r", partitions=3)
        self.sink = RecordingSink()
        self.kafka_topic = f"{kafka_topic}.m"

    def publish(self, name: str, payload: bytes) -> None:
        raw = name.encode()
        headers = [("mqtt.topic", raw), ("mqtt.client_id", b"dev"), ("mqtt.retain", b"1")]
        self.retained.publish(Destination(self.kafka_topic, 0, raw), payload, headers, self.sink, name)

    async def acknowledged(self, count: int) -> None:
        await until(lambda: len(self.sink.outcomes) >= count, "no acknowledgements", 30)
        assert {outcome[0] for outcome in self.sink.outcomes} == {"appended"}


@asynccontextmanager
async def running_edge(bootstrap: str, node_id: str, kafka_topic: str) -> AsyncIterator[Edge]:
    log = KafkaLog(bootstrap)
    await log.start()
    edge = Edge(log, node_id, kafka_topic)
    await edge.retained.start()
    try:
        yield edge
    finally:
        await edge.publisher.stop()
        await edge.retained.stop()
        await log.stop()


@asynccontextmanager
async def kafka_topics(bootstrap: str, **config: str) -> AsyncIterator[str]:
    """A Kafka topic for messages (`.m`, one partition) and one for retained messages (`.r`, three)."""
    name = f"test.{uuid.uuid4().hex}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics(
            [
                NewTopic(f"{name}.m", 1, 1),
                NewTopic(f"{name}.r", 3, 1, topic_configs={"cleanup.policy": "compact"} | config),
            ]
        )
        yield name
        await admin.delete_topics([f"{name}.m", f"{name}.r"])
    finally:
        await admin.close()


async def records_in(edge: Edge) -> int:
    """How many retained records Kafka still has."""
    positions = {(edge.retained._kafka_topic, partition): 0 for partition in range(3)}
    ends = await edge.log.end_offsets(frozenset(positions))
    consumer = edge.log.consumer(None)
    consumer.assign(positions)
    count = 0
    while any(positions[at] < end for at, end in ends.items()):
        fetched = await consumer.fetch(2.0)
        if not fetched:
            break
        for at, records in fetched:
            count += len(records)
            positions[at] = records[-1].offset + 1
    await consumer.stop()
    return count


async def write(edge: Edge, tag: str, rounds: int, dice: random.Random) -> int:
    """Names in random order, some cleared, in small bursts so that the two edges meet; how many."""
    count = 0
    for number in range(rounds):
        for name in dice.sample(range(NAMES), 10):
            edge.publish(f"n/{name}", b"" if dice.random() < 0.1 else f"{tag}{number}".encode())
            count += 1
        await asyncio.sleep(0)
    await edge.acknowledged(count)
    return count


@pytest.mark.kafka
@pytest.mark.slow
async def test_two_edges_agree_before_and_after_compaction(kafka_bootstrap: str) -> None:
    """Invariant I9: concurrent writes, views equal; fresh views equal; compaction forced, fresh views equal again."""
    async with kafka_topics(kafka_bootstrap, **COMPACTED_AT_ONCE) as name:
        async with running_edge(kafka_bootstrap, "a", name) as one, running_edge(kafka_bootstrap, "b", name) as two:
            dice = random.Random(11)
            counts = await asyncio.gather(write(one, "a", 100, dice), write(two, "b", 100, dice))
            assert sum(counts) == 2_000
            views = [edge.retained.view for edge in (one, two)]
            await until(lambda: not views[0].misplaced and not views[1].misplaced, "misplaced ones are left")
            await one.retained.caught_up(frozenset())
            await two.retained.caught_up(frozenset())
            expected = views[0].snapshot()
            assert views[1].snapshot() == expected
            assert 20 < len(expected) <= NAMES
            highest = max(offset for _, (_, _, offset) in expected.values())
            assert highest >= 1_900
        async with running_edge(kafka_bootstrap, "c", name) as fresh:
            assert fresh.retained.view.snapshot() == expected
            before = await records_in(fresh)
            # the segments of before close when something follows them; each round makes the next cleaning worth it
            deadline = time.monotonic() + COMPACTION_S
            rounds = 0
            while await records_in(fresh) > before // 4:
                assert time.monotonic() < deadline, f"not compacted within {COMPACTION_S} s"
                rounds += 1
                for number in range(12):  # every partition gets some
                    fresh.publish(f"roll/{number}", b"%d" % rounds)
                await fresh.acknowledged(12 * rounds)
            async with running_edge(kafka_bootstrap, "d", name) as later:
                assert await records_in(later) < before // 2
                held = {key: value for key, value in later.retained.view.snapshot().items() if key.startswith(b"n/")}
                assert held == expected
                assert later.retained.view.snapshot() == fresh.retained.view.snapshot()


@pytest.mark.kafka
async def test_an_acknowledged_one_is_seen_by_a_subscription_on_the_other_edge(kafka_bootstrap: str) -> None:
    """`caught_up` after the acknowledgement on one edge: the other one has it."""
    async with (
        kafka_topics(kafka_bootstrap) as name,
        running_edge(kafka_bootstrap, "a", name) as one,
        running_edge(kafka_bootstrap, "b", name) as two,
    ):
        for number in range(50):
            one.publish("n", b"%d" % number)
            await one.acknowledged(number + 1)
            changes, ends = await two.retained.caught_up(frozenset({(one.kafka_topic, 0)}))
            message = two.retained.view.get(b"n", 0)
            assert message is not None
            assert message.value == b"%d" % number
            assert message.offset < ends[one.kafka_topic, 0]
            assert changes <= two.retained.view.changes


@pytest.mark.kafka
async def test_a_tombstone_keeps_its_headers_in_kafka(kafka_bootstrap: str) -> None:
    async with kafka_topics(kafka_bootstrap) as name, running_edge(kafka_bootstrap, "a", name) as edge:
        edge.publish("n", b"x")
        edge.publish("n", b"")
        await edge.acknowledged(2)
        await edge.retained.caught_up(frozenset())
        held = edge.retained.view.latest(b"n")
        assert held is not None
        assert (held.value, held.kafka_topic, held.offset) == (None, edge.kafka_topic, 1)
