"""Transactions where only a real Kafka can go wrong: lost answers, time-outs, a moved coordinator, sequence gaps."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from support.logs import READ_S, LogHarness, kafka_harness

import bridge.kafka_transactions
from bridge.kafka_protocol import LeanProduceRequest, NextEpochRequest
from bridge.kafka_transactions import KafkaTransactionalProducer
from bridge.kafka_transactions_v2 import AddingProduceRequest, EndAndGoOnRequest
from bridge.log import (
    CommitUnknown,
    LogUnavailable,
    PendingRecord,
    Position,
    ProducerFenced,
    RecordRefused,
    TransactionAborted,
)

pytestmark = pytest.mark.kafka
WRITES = (LeanProduceRequest, AddingProduceRequest)
ENDS = (EndTxnRequest, EndAndGoOnRequest)
TRANSACTIONAL = (AddPartitionsToTxnRequest, *ENDS, InitProducerIdRequest, NextEpochRequest, *WRITES)


@pytest.fixture(params=[1, 2], ids=["first-protocol", "second-protocol"], autouse=True)
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A Kafka of today speaks both; an older one, or one that was not upgraded to the end, only the first."""
    speaks: int = request.param
    if speaks == 1:

        async def never(_: KafkaTransactionalProducer) -> bool:
            return False

        monkeypatch.setattr(KafkaTransactionalProducer, "_speaks_second_protocol", never)
    return speaks


@pytest.fixture
async def harness(kafka_bootstrap: str) -> AsyncIterator[LogHarness]:
    async with kafka_harness(kafka_bootstrap) as made:
        yield made


@pytest.fixture
async def producer(harness: LogHarness, protocol: int) -> KafkaTransactionalProducer:
    made: KafkaTransactionalProducer = harness.log.transactional_producer(f"test.{uuid.uuid4().hex}")
    await made.start()
    assert made._adds_itself == (protocol == 2)
    return made


class Losses:
    """Loses requests, or the answers to them, between a log and its Kafka."""

    def __init__(self, harness: LogHarness) -> None:
        self._client = harness.log._connection.client
        self._send = self._client.send
        self.lost = 0
        self.before: Callable[[Any], bool] = lambda request: False
        self.after: Callable[[Any], bool] = lambda request: False
        self._client.send = self._lossy

    async def _lossy(self, node: int, request: Any, **options: Any) -> Any:
        self._lose(self.before, request)
        answer = await self._send(node, request, **options)
        self._lose(self.after, request)
        return answer

    def _lose(self, when: Callable[[Any], bool], request: Any) -> None:
        if when(request):
            self.lost += 1
            raise KafkaConnectionError("lost by the test")


def record(harness: LogHarness, partition: int, value: bytes) -> tuple[Position, PendingRecord]:
    return harness.at(partition), (b"k", value, [])


async def committed(harness: LogHarness, *partitions: int) -> list[bytes]:
    """All that read-committed readers get, up to the ends."""
    positions = [harness.at(partition) for partition in partitions]
    consumer = harness.log.consumer(None, read_committed=True)
    consumer.assign(dict.fromkeys(positions, 0))
    ends = await harness.log.end_offsets(set(positions))
    found: list[bytes] = []
    async with asyncio.timeout(READ_S):
        while any((consumer.position_of(position) or 0) < end for position, end in ends.items()):
            for _, part in await consumer.fetch(READ_S):
                found += [read.value for read in part]
    await consumer.stop()
    return found


async def test_lost_requests_and_lost_answers_change_nothing(
    harness: LogHarness, producer: KafkaTransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked again: what was done already is not done twice, and the offsets are the first time's."""
    monkeypatch.setattr(bridge.kafka_transactions, "RETRY_S", 0.001)
    losses, chance = Losses(harness), random.Random(3)
    losses.before = losses.after = lambda request: isinstance(request, TRANSACTIONAL) and chance.random() < 0.1
    for number in range(60):
        offsets = await producer.commit([record(harness, partition, b"%d" % number) for partition in (0, 1, 0)])
        assert offsets == [3 * number, 2 * number, 3 * number + 1]
    assert losses.lost > 20
    assert sorted(map(int, await committed(harness, 0, 1))) == sorted(3 * list(range(60)))


@pytest.mark.parametrize("happened", [True, False])
async def test_a_commit_without_an_answer_is_unknown_until_the_next_start(
    harness: LogHarness, producer: KafkaTransactionalProducer, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    monkeypatch.setattr(bridge.kafka_transactions, "END_S", 0.3)
    losses = Losses(harness)
    await producer.commit([record(harness, 0, b"1"), record(harness, 1, b"1")])
    setattr(losses, "after" if happened else "before", lambda request: isinstance(request, ENDS))
    with pytest.raises(CommitUnknown):
        await producer.commit([record(harness, 0, b"2"), record(harness, 1, b"2")])
    losses.after = losses.before = lambda request: False
    await producer.start()
    assert (await committed(harness, 0, 1)).count(b"2") == (2 if happened else 0)
    await producer.commit([record(harness, 0, b"3")])
    assert (await committed(harness, 0)) == [b"1", *([b"2"] if happened else []), b"3"]


@pytest.mark.parametrize("lost", [(AddPartitionsToTxnRequest, *WRITES), WRITES], ids=["begun", "written"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_cannot_be_written_in_time_is_aborted_and_the_producer_goes_on(
    harness: LogHarness,
    producer: KafkaTransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
    lost: tuple[type, ...],
    when: str,
) -> None:
    losses = Losses(harness)
    await producer.commit([record(harness, 0, b"1")])
    with monkeypatch.context() as patch:
        patch.setattr(bridge.kafka_transactions, "WRITE_S", 0.3)
        setattr(losses, when, lambda request: isinstance(request, lost))
        with pytest.raises(TransactionAborted):
            await producer.commit([record(harness, 0, b"never"), record(harness, 1, b"never")])
    losses.after = losses.before = lambda request: False
    await producer.commit([record(harness, 0, b"2")])
    assert await committed(harness, 0, 1) == [b"1", b"2"]


async def test_to_clear_away_an_aborted_transaction_takes_nothing_from_a_rival(
    harness: LogHarness, producer: KafkaTransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = Losses(harness)
    with monkeypatch.context() as patch:
        patch.setattr(bridge.kafka_transactions, "WRITE_S", 0.3)
        losses.after = lambda request: isinstance(request, WRITES)
        with pytest.raises(TransactionAborted):
            await producer.commit([record(harness, 0, b"never")])
    losses.after = lambda request: False
    rival = harness.log.transactional_producer(producer._transactional_id)
    await rival.start()
    with pytest.raises(ProducerFenced):
        await producer.commit([record(harness, 0, b"never")])
    await rival.commit([record(harness, 0, b"the rival's")])
    assert await committed(harness, 0) == [b"the rival's"]


async def test_a_gap_in_the_sequence_numbers_costs_one_transaction(
    harness: LogHarness, producer: KafkaTransactionalProducer
) -> None:
    await producer.commit([record(harness, 0, b"1")])
    producer._sequences[harness.at(0)] = producer._sequences.get(harness.at(0), 0) + 5
    with pytest.raises(TransactionAborted, match="OutOfOrder"):
        await producer.commit([record(harness, 0, b"never"), record(harness, 1, b"never")])
    await producer.commit([record(harness, 0, b"2")])
    assert await committed(harness, 0, 1) == [b"1", b"2"]


async def test_a_coordinator_that_is_not_where_it_was_is_found_again(
    harness: LogHarness, producer: KafkaTransactionalProducer
) -> None:
    producer._coordinator = 4711
    assert await producer.commit([record(harness, 0, b"1")]) == [0]


async def test_what_does_not_exist_or_cannot_be_encoded_is_refused(
    harness: LogHarness, producer: KafkaTransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RecordRefused, match="partition"):
        await producer.commit([record(harness, 0, b"goes with it"), record(harness, 99, b"nowhere")])
    with pytest.raises(RecordRefused, match="encoded"):
        await producer.commit([record(harness, 0, b"goes with it"), (harness.at(1), (b"k", "text", []))])  # type: ignore[list-item]
    with monkeypatch.context() as patch:
        patch.setattr(bridge.kafka_transactions, "WRITE_S", 0.3)
        with pytest.raises(TransactionAborted, match="leader"):  # it may come into being yet
            await producer.commit([((f"none.{uuid.uuid4().hex}", 0), (b"k", b"v", []))])
    await producer.commit([record(harness, 0, b"fits")])
    assert await committed(harness, 0, 1) == [b"fits"]


async def test_a_cancelled_commit_is_settled_by_the_next_start(
    harness: LogHarness, producer: KafkaTransactionalProducer
) -> None:
    outcomes: list[bytes] = []
    for number in range(30):
        committing = asyncio.ensure_future(producer.commit([record(harness, at, b"%d" % number) for at in (0, 1)]))
        for _ in range(number):
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])
        await producer.start()
        found = await committed(harness, 0, 1)
        assert found.count(b"%d" % number) in (0, 2)
        outcomes += [b"%d" % number] * found.count(b"%d" % number)
    assert sorted(await committed(harness, 0, 1)) == sorted(outcomes)


@pytest.mark.slow
async def test_kafka_ends_what_a_killed_producer_left_open(harness: LogHarness) -> None:
    """Nobody takes its id: the time-out does it. The producer, if it was only slow, learns that it is fenced."""
    slow = KafkaTransactionalProducer(harness.log._connection, f"test.{uuid.uuid4().hex}", 10_000, 1_000)
    await slow.start()
    go_on = asyncio.Event()
    end = slow._end

    async def held() -> None:
        await go_on.wait()
        await end()

    slow._end = held  # type: ignore[method-assign]
    committing = asyncio.ensure_future(slow.commit([record(harness, 0, b"never")]))
    everything = harness.log.consumer(None)
    everything.assign({harness.at(0): 0})
    await harness.read(everything, 1)
    await harness.append(0, b"behind it")
    assert await committed(harness, 0) == [b"behind it"]
    go_on.set()
    with pytest.raises(ProducerFenced):
        await committing


async def test_an_id_that_cannot_be_taken_is_said(
    harness: LogHarness, producer: KafkaTransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.kafka_transactions, "START_S", 0.3)
    losses = Losses(harness)
    losses.before = lambda request: isinstance(request, InitProducerIdRequest)
    with pytest.raises(LogUnavailable, match="lost by the test"):
        await producer.start()
    losses.before = lambda request: False
    await producer.start()
    assert await producer.commit([record(harness, 0, b"1")]) == [0]


async def test_how_many_round_trips_a_transaction_takes(
    harness: LogHarness, producer: KafkaTransactionalProducer, protocol: int
) -> None:
    """One after another: what makes an acknowledgement late where Kafka is far away."""
    losses, asked = Losses(harness), list[Any]()

    def note(request: Any) -> bool:
        asked.append(request)
        return False

    losses.before = note
    await producer.commit([record(harness, 0, b"1"), record(harness, 1, b"1")])
    assert sum(isinstance(each, TRANSACTIONAL) for each in asked) == (3 if protocol == 1 else 2)
