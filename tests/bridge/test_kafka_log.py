"""What only a real Kafka can show: it stops and goes on, transactions, its group tools, the whole way through."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from support.logs import LogHarness, RecordingSink, RecordingSubscriber, kafka_harness, turns

import bridge.kafka_transactions
from bridge.deliverer import Deliverer
from bridge.embedded_kafka import EmbeddedKafka
from bridge.kafka_log import KafkaLog
from bridge.log import CommitUnknown, LogUnavailable, RecordRefused, TransactionAborted
from bridge.partitioning import Destination, RouteTable
from bridge.publisher import Publisher
from bridge.subscriptions import Subscription, SubscriptionTable
from schemas.message import Message
from schemas.records import encode_headers
from schemas.routes import Route

pytestmark = pytest.mark.kafka


@pytest.fixture
async def harness(kafka_bootstrap: str) -> AsyncIterator[LogHarness]:
    async with kafka_harness(kafka_bootstrap) as made:
        yield made


@pytest.fixture
def stoppable(kafka_server: EmbeddedKafka | None, tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A Kafka whose process is ours to stop: the run's own one, or another when that is not ours."""
    if kafka_server is not None:
        yield kafka_server
        return
    with EmbeddedKafka(tmp_path / "kafka") as server:
        yield server


@contextmanager
def stopped(server: EmbeddedKafka) -> Iterator[None]:
    """No thread of Kafka runs in here."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        state = Path(f"/proc/{server.pid}/stat")
        for _ in range(1_000_000):
            if state.read_text().rpartition(")")[2].split()[0] == "T":
                break
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize("request_timeout_ms", [10_000, 1_000], ids=["waits", "times out and tries again"])
async def test_a_stopped_kafka_acknowledges_nothing_and_then_everything_once_in_order(
    stoppable: EmbeddedKafka, request_timeout_ms: int
) -> None:
    async with kafka_harness(stoppable.bootstrap, request_timeout_ms=request_timeout_ms) as harness:
        sink = RecordingSink()
        publisher = Publisher(harness.log)
        destinations = [Destination(harness.kafka_topic, partition, b"k") for partition in range(3)]

        async def append(tokens: range) -> None:
            for token in tokens:
                publisher.append(destinations[token % 3], b"%d" % token, [], sink, token)
                await asyncio.sleep(0)

        await append(range(300))
        assert await publisher.flush(20)
        await append(range(300, 330))  # some of these are on their way
        with stopped(stoppable):
            waiting = publisher.append_future(destinations[0], b"waits", [])
            await append(range(330, 600))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 2.5)
            assert set(sink.tokens("appended")) <= set(range(330)), "acknowledged while Kafka was stopped"
        await asyncio.wait_for(waiting, 30)
        assert await publisher.flush(30)
        assert publisher.statistics()["resent_records"] == 0
        assert len(sink.outcomes) == 600
        consumer = harness.log.consumer(None)
        consumer.assign({harness.at(partition): 0 for partition in range(3)})
        read = await harness.read(consumer, 601)
        for partition in range(3):
            expected = [b"%d" % token for token in range(600) if token % 3 == partition]
            values = [record.value for position, record in read if position == harness.at(partition)]
            assert [value for value in values if value != b"waits"] == expected
            tokens = [token for token in sink.tokens("appended") if token % 3 == partition]
            assert tokens == sorted(tokens)
        await publisher.stop()


@pytest.mark.slow
async def test_transactions_that_a_stopped_kafka_holds_up_are_committed_whole_or_never(
    stoppable: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was on its way when time ran out reaches Kafka late, beside what came after it."""
    monkeypatch.setattr(bridge.kafka_transactions, "WRITE_S", 0.3)
    monkeypatch.setattr(bridge.kafka_transactions, "END_S", 0.3)
    async with kafka_harness(stoppable.bootstrap) as harness:
        producer = harness.log.transactional_producer(f"test.{uuid.uuid4().hex}")
        await producer.start()
        expected: dict[bytes, bool | None] = {}

        async def commit(value: bytes) -> None:
            records = [(harness.at(partition), (b"k", value, [])) for partition in range(3)]
            try:
                await producer.commit(records)
            except TransactionAborted:
                expected[value] = False
            except CommitUnknown:
                expected[value] = None
            else:
                expected[value] = True

        for number in range(16):
            committing = asyncio.ensure_future(commit(b"%d" % number))
            await turns(number * 6)  # up to some milliseconds: every step of a commit has its stop
            with stopped(stoppable):
                await committing
            if expected[b"%d" % number] is None:
                await producer.start()
            for attempt in range(20):
                await commit(b"%d then %d" % (number, attempt))
                if expected[b"%d then %d" % (number, attempt)] is None:
                    await producer.start()
        consumer = harness.log.consumer(None, read_committed=True)
        consumer.assign({harness.at(partition): 0 for partition in range(3)})
        await producer.commit([(harness.at(partition), (b"k", b"last", [])) for partition in range(3)])
        read: list[bytes] = []
        async with asyncio.timeout(30):
            while read.count(b"last") < 3:
                read += [record.value for _, part in await consumer.fetch(10) for record in part]
        assert {read.count(value) for value in read} == {3}
        for value, happened in expected.items():
            assert happened is None or (value in read) == happened, value
        assert {True, False} <= set(expected.values())


async def test_a_poisoned_producer_is_replaced_and_everything_arrives_once_in_order(harness: LogHarness) -> None:
    """A gap in the sequence numbers, as a long leaderless time leaves it: every later batch fails for good."""
    sink, publisher = RecordingSink(), Publisher(harness.log)
    where = Destination(harness.kafka_topic, 0, b"k")
    for token in range(10):
        publisher.append(where, b"%d" % token, [], sink, token)
    assert await publisher.flush(20)
    harness.log._producer._sequences[harness.at(0)] += 5
    for token in range(10, 50):
        publisher.append(where, b"%d" % token, [], sink, token)
        await asyncio.sleep(0)
    assert await publisher.flush(30)
    assert publisher.statistics()["renewals"] == 1
    assert sink.outcomes == [("appended", token, token) for token in range(50)]
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(0): 0})
    assert [record.value for _, record in await harness.read(consumer, 50)] == [b"%d" % token for token in range(50)]
    await publisher.stop()


async def test_an_aborted_transaction_is_not_read_when_reading_committed(
    harness: LogHarness, kafka_bootstrap: str
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=f"t.{uuid.uuid4().hex}")
    await producer.start()
    for value, commit in ((b"1", True), (b"2", False), (b"3", True)):
        await producer.begin_transaction()
        await producer.send_and_wait(harness.kafka_topic, value, key=b"k", partition=0)
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    await producer.stop()
    committed = harness.log.consumer(None, read_committed=True)
    committed.assign({harness.at(0): 0})
    assert [record.value for _, record in await harness.read(committed, 2)] == [b"1", b"3"]
    everything = harness.log.consumer(None)
    everything.assign({harness.at(0): 0})
    assert [record.value for _, record in await harness.read(everything, 3)] == [b"1", b"2", b"3"]


async def test_kafkas_own_admin_sees_the_nodes_offsets_come_and_go(harness: LogHarness, kafka_bootstrap: str) -> None:
    routes = RouteTable((Route("#", harness.kafka_topic, partitions=12),))
    node_id = uuid.uuid4().hex
    deliverer = Deliverer(harness.log, routes, SubscriptionTable(), node_id, commit_interval_s=0.05)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()

    async def listed() -> dict[tuple[str, int], int] | None:
        try:
            found = await admin.list_consumer_group_offsets(f"headwater.node.{node_id}")
        except KafkaError:
            return None  # a Kafka that has just started has no coordinator yet
        return {(where.topic, where.partition): held.offset for where, held in found.items()}

    async def becomes(expected: dict[tuple[str, int], int]) -> None:
        async with asyncio.timeout(60):
            while await listed() != expected:
                pass

    await deliverer.start()
    position = (harness.kafka_topic, routes.destination("a/b").partition)
    await harness.append(position[1], b"one")
    known = deliverer.add_filter("a/b")
    assert known is not None
    await known
    await becomes({position: 1})
    deliverer.remove_filter("a/b")
    await becomes({})
    await deliverer.stop()
    await admin.close()


async def test_from_publisher_to_subscriber_over_kafka_with_filters_coming_and_going(harness: LogHarness) -> None:
    routes = RouteTable((Route("#", harness.kafka_topic, partitions=12),))
    table, publisher = SubscriptionTable(), Publisher(harness.log)
    deliverer = Deliverer(harness.log, routes, table, uuid.uuid4().hex, publisher=publisher)
    await deliverer.start()
    names = [f"s/{number}" for number in range(20)]
    steady = RecordingSubscriber()
    for name in names[:10]:
        table.add(Subscription(steady, name, 1))
        known = deliverer.add_filter(name)
        if known is not None:
            await asyncio.wait_for(known, 20)
    total = 2_000

    async def publish() -> None:
        for number in range(total):
            name = names[number % 20]
            publisher.append(routes.destination(name), b"%d" % number, encode_headers(Message(name, b"")), None, None)
            await asyncio.sleep(0)

    publishing = asyncio.ensure_future(publish())
    for round_number in range(50):
        name = names[10 + round_number % 10]
        known = deliverer.add_filter(name)
        if known is not None:
            await asyncio.wait_for(known, 20)
        await turns(round_number % 7)
        deliverer.remove_filter(name)
    await publishing
    await steady.wait(total // 2)
    for index, name in enumerate(names[:10]):
        payloads = [int(delivery.payload) for delivery in steady.deliveries if delivery.topic_name == name]
        assert payloads == list(range(index, total, 20))
    await deliverer.stop()
    await publisher.stop()


async def test_a_partition_that_does_not_exist_is_refused_for_good(harness: LogHarness) -> None:
    with pytest.raises(RecordRefused, match="partition"):
        await harness.log.submit(harness.kafka_topic, 99, [(b"k", b"v", [])])


async def test_a_kafka_that_is_not_there_is_said_and_leaves_nothing_open(unused_tcp_port: int) -> None:
    log = KafkaLog(f"127.0.0.1:{unused_tcp_port}")
    with pytest.raises(LogUnavailable):
        await log.start()
    with pytest.raises(LogUnavailable):
        await log.submit("a", 0, [(b"k", b"v", [])])
    await log.stop()
