"""What transactions promise, on the log in memory and on a real Kafka: the same tests."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.logs import READ_S, LogHarness, kafka_harness, memory_harness, turns

from bridge.log import CommitUnknown, LogConsumer, PendingRecord, Position, ProducerFenced, RecordRefused
from bridge.memory_log import MemoryLog

Records = list[tuple[Position, PendingRecord]]


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[LogHarness]:
    if request.param == "memory":
        async with memory_harness() as made:
            yield made
    else:
        async with kafka_harness(request.getfixturevalue("kafka_bootstrap")) as made:
            yield made


@pytest.fixture
def transactional_id() -> str:
    return f"test.{uuid.uuid4().hex}"


def record(harness: LogHarness, partition: int, value: bytes) -> tuple[Position, PendingRecord]:
    return harness.at(partition), (b"k", value, [])


def reader(harness: LogHarness, partitions: Sequence[int], *, read_committed: bool = True) -> LogConsumer:
    consumer: LogConsumer = harness.log.consumer(None, read_committed=read_committed)
    consumer.assign({harness.at(partition): 0 for partition in partitions})
    return consumer


async def values(harness: LogHarness, consumer: LogConsumer, count: int) -> list[tuple[int, bytes]]:
    """The next records, each with its partition, sorted: the order between partitions is nobody's promise."""
    return sorted((position[1], read.value) for position, read in await harness.read(consumer, count))


async def read_to_the_end(harness: LogHarness, consumer: LogConsumer, partitions: Sequence[int]) -> list[Any]:
    """Everything until the positions have come to the ends; no transaction may be open."""
    records: list[tuple[Position, Any]] = []
    ends = await harness.log.end_offsets({harness.at(partition) for partition in partitions})
    async with asyncio.timeout(READ_S):
        while any((consumer.position_of(position) or 0) < end for position, end in ends.items()):
            for position, part in await consumer.fetch(READ_S):
                records += [(position, read) for read in part]
    return records


@asynccontextmanager
async def written_but_open(harness: LogHarness, producer: Any, records: Records) -> AsyncIterator[asyncio.Task[Any]]:
    """The records are in the log, the transaction is open: in here ``commit`` does not come to its end."""
    log, go_on = harness.log, asyncio.Event()
    if isinstance(log, MemoryLog):
        log.hold_commits()
    else:
        end = producer._end

        async def held() -> None:
            await go_on.wait()
            await end()

        producer._end = held
    ends = await log.end_offsets({position for position, _ in records})
    everything = log.consumer(None)
    everything.assign(ends)
    committing = asyncio.ensure_future(producer.commit(records))
    try:
        await harness.read(everything, len(records))
        yield committing
    finally:
        await everything.stop()
        go_on.set()
        if isinstance(log, MemoryLog):
            log.release_commits()
        else:
            producer._end = end


async def leave_open(harness: LogHarness, producer: Any, records: Records) -> None:
    """As a process that is killed before it commits leaves its transaction."""
    async with written_but_open(harness, producer, records) as committing:
        committing.cancel()
        await asyncio.wait([committing])
    await producer.stop()


async def started(harness: LogHarness, transactional_id: str) -> Any:
    producer = harness.log.transactional_producer(transactional_id)
    await producer.start()
    return producer


async def test_the_offsets_are_those_of_the_records_and_partitions_keep_the_order(
    harness: LogHarness, transactional_id: str
) -> None:
    producer, chance = await started(harness, transactional_id), random.Random(1)
    placed: dict[tuple[Position, int], bytes] = {}
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    number = 0
    for _ in range(40):
        records: Records = []
        for _ in range(chance.randrange(1, 9)):
            partition, value = chance.randrange(4), b"%d" % number
            number += 1
            sent[partition].append(value)
            records.append(record(harness, partition, value))
        offsets = await producer.commit(records)
        assert len(offsets) == len(records)
        placed.update({(at, offset): pending[1] for (at, pending), offset in zip(records, offsets, strict=True)})
    read = await harness.read(reader(harness, range(4)), number)
    assert {(position, found.offset): found.value for position, found in read} == placed
    for partition in range(4):
        assert [found.value for position, found in read if position[1] == partition] == sent[partition]


async def test_a_commit_of_nothing_is_nothing(harness: LogHarness, transactional_id: str) -> None:
    producer = await started(harness, transactional_id)
    assert await producer.commit([]) == []
    assert await producer.commit([record(harness, 0, b"1")]) == [0]


async def test_a_record_comes_back_as_it_was(harness: LogHarness, transactional_id: str) -> None:
    producer = await started(harness, transactional_id)
    headers = (("mqtt.topic", "größe".encode()), ("null", None))
    await producer.commit([(harness.at(0), (b"key", b"\x00\xff", headers)), (harness.at(0), (b"tombstone", None, ()))])
    read = [found for _, found in await harness.read(reader(harness, [0]), 2)]
    assert [(found.key, found.value, tuple(found.headers)) for found in read] == [
        (b"key", b"\x00\xff", headers),
        (b"tombstone", None, ()),
    ]


async def test_a_transaction_is_read_as_a_whole_or_not_at_all(harness: LogHarness, transactional_id: str) -> None:
    producer = await started(harness, transactional_id)
    committed, everything = reader(harness, range(3)), reader(harness, range(3), read_committed=False)
    records = [record(harness, partition, b"together") for partition in range(3)]
    async with written_but_open(harness, producer, records) as committing:
        await harness.append(1, b"behind it")
        assert len(await harness.read(everything, 4)) == 4
        assert await committed.fetch(0.2) == []
    assert await committing == [0, 0, 0]
    assert await values(harness, committed, 4) == [
        (0, b"together"),
        (1, b"behind it"),
        (1, b"together"),
        (2, b"together"),
    ]


async def test_what_was_aborted_is_never_read_as_committed(harness: LogHarness, transactional_id: str) -> None:
    first = await started(harness, transactional_id)
    await first.commit([record(harness, 0, b"1"), record(harness, 1, b"1")])
    await leave_open(harness, first, [record(harness, 0, b"2"), record(harness, 1, b"2")])
    second = await started(harness, transactional_id)
    await second.commit([record(harness, 0, b"3")])
    committed, everything = reader(harness, range(2)), reader(harness, range(2), read_committed=False)
    assert await values(harness, committed, 3) == [(0, b"1"), (0, b"3"), (1, b"1")]
    assert await read_to_the_end(harness, committed, range(2)) == []
    assert await values(harness, everything, 5) == [(0, b"1"), (0, b"2"), (0, b"3"), (1, b"1"), (1, b"2")]
    later = reader(harness, range(2))
    assert [read.value for _, read in await read_to_the_end(harness, later, range(2))].count(b"2") == 0


async def test_who_starts_fences_who_held_the_id(harness: LogHarness, transactional_id: str) -> None:
    first = await started(harness, transactional_id)
    await first.commit([record(harness, 0, b"first's")])
    second = await started(harness, transactional_id)
    with pytest.raises(ProducerFenced):
        await first.commit([record(harness, 0, b"lost")])
    await second.commit([record(harness, 0, b"second's")])
    await first.start()
    await first.commit([record(harness, 0, b"first's again")])
    with pytest.raises(ProducerFenced):
        await second.commit([record(harness, 0, b"lost")])
    read = await read_to_the_end(harness, reader(harness, [0]), [0])
    assert [found.value for _, found in read] == [b"first's", b"second's", b"first's again"]


async def test_a_rival_who_comes_while_a_transaction_is_open_ends_it(
    harness: LogHarness, transactional_id: str
) -> None:
    first = await started(harness, transactional_id)
    async with written_but_open(harness, first, [record(harness, 0, b"lost")]) as committing:
        second = await started(harness, transactional_id)
    with pytest.raises(ProducerFenced):
        await committing
    await second.commit([record(harness, 0, b"second's")])
    read = await read_to_the_end(harness, reader(harness, [0]), [0])
    assert [found.value for _, found in read] == [b"second's"]


async def test_fencing_a_killed_producer_lets_waiting_readers_go_on(harness: LogHarness, transactional_id: str) -> None:
    killed = await started(harness, transactional_id)
    await leave_open(harness, killed, [record(harness, 0, b"never")])
    await harness.append(0, b"behind it")
    committed = reader(harness, [0])
    waiting = asyncio.ensure_future(harness.read(committed, 1))
    await turns()
    assert not waiting.done()
    fencing = await started(harness, transactional_id)
    await fencing.stop()
    ((_, found),) = await waiting
    assert found.value == b"behind it"


async def test_a_refused_record_takes_its_transaction_with_it_and_no_more(
    harness: LogHarness, transactional_id: str
) -> None:
    producer = await started(harness, transactional_id)
    too_large = record(harness, 1, b"x" * (2 * 1024 * 1024 + 1))
    for _ in range(2):
        with pytest.raises(RecordRefused) as refusal:
            await producer.commit([record(harness, 0, b"goes with it"), too_large, record(harness, 1, b"and this")])
        assert refusal.value.divisible
    await producer.commit([record(harness, 0, b"fits"), record(harness, 1, b"fits")])
    read = await read_to_the_end(harness, reader(harness, range(2)), range(2))
    assert sorted((position[1], found.value) for position, found in read) == [(0, b"fits"), (1, b"fits")]


async def test_a_partitions_share_may_be_larger_than_a_batch(harness: LogHarness, transactional_id: str) -> None:
    producer = await started(harness, transactional_id)
    sent = [b"%d" % number + bytes(40_000) for number in range(80)]  # 3.2 MB
    offsets = await producer.commit([record(harness, number % 2, value) for number, value in enumerate(sent)])
    assert offsets == [number // 2 for number in range(80)]
    read = await harness.read(reader(harness, range(2)), 80)
    for partition in range(2):
        assert [found.value for position, found in read if position[1] == partition] == sent[partition::2]


@pytest.mark.parametrize("read_committed", [True, False])
async def test_positions_come_to_the_end_when_markers_are_the_last(
    harness: LogHarness, transactional_id: str, read_committed: bool
) -> None:
    producer = await started(harness, transactional_id)
    consumer = reader(harness, range(3), read_committed=read_committed)
    assert consumer.position_of(harness.at(7)) is None
    for number in range(10):
        await producer.commit([record(harness, partition, b"%d" % number) for partition in range(3)])
    await leave_open(harness, producer, [record(harness, 0, b"aborted")])
    await (await started(harness, transactional_id)).stop()
    read = await read_to_the_end(harness, consumer, range(3))
    assert len(read) == (30 if read_committed else 31)
    assert [consumer.position_of(harness.at(partition)) for partition in range(3)] == [22, 20, 20]


async def test_to_be_assigned_where_the_last_record_ended_disturbs_nothing(
    harness: LogHarness, transactional_id: str
) -> None:
    """Who follows the records' offsets knows nothing of the markers behind them."""
    producer, consumer = await started(harness, transactional_id), reader(harness, [0])
    read: list[int] = []
    for number in range(20):
        await producer.commit([record(harness, 0, b"%d" % number)])
        read += [int(found.value) for _, found in await read_to_the_end(harness, consumer, [0])]
        at = consumer.position_of(harness.at(0))
        consumer.assign({harness.at(0): 2 * len(read) - 1, harness.at(1 + number % 3): 0})
        assert consumer.position_of(harness.at(0)) == at == 2 * len(read)
    assert read == list(range(20))
    consumer.assign({harness.at(0): 10})
    assert [found.offset for _, found in await harness.read(consumer, 15)] == list(range(10, 40, 2))


async def test_producers_with_ids_of_their_own_do_not_wait_for_one_another(harness: LogHarness) -> None:
    producers = [await started(harness, f"test.{uuid.uuid4().hex}") for _ in range(3)]

    async def commit_all(index: int) -> None:
        for number in range(30):
            value = b"%d.%d" % (index, number)
            await producers[index].commit([record(harness, 0, value), record(harness, 1 + index, value)])

    await asyncio.gather(*map(commit_all, range(3)))
    read = await read_to_the_end(harness, reader(harness, range(4)), range(4))
    for index in range(3):
        mine = [b"%d.%d" % (index, number) for number in range(30)]
        for partition in (0, 1 + index):
            found = [found.value for position, found in read if position[1] == partition]
            assert [value for value in found if value.startswith(b"%d." % index)] == mine


async def test_where_partitions_begin(harness: LogHarness) -> None:
    await harness.append(0, b"a", b"b", b"c")
    await harness.truncate(0, 2)
    starts = await harness.log.start_offsets({harness.at(0), harness.at(1)})
    assert starts == {harness.at(0): 2, harness.at(1): 0}


class Contender:
    """Commits under the same id as its rival, takes it back when it was fenced, and keeps the books."""

    def __init__(self, harness: LogHarness, transactional_id: str, name: int, seed: int) -> None:
        self._harness = harness
        self._producer = harness.log.transactional_producer(transactional_id)
        self._name = name
        self._chance = random.Random(seed)
        self.acknowledged: dict[bytes, list[tuple[Position, int]]] = {}
        self.failed: set[bytes] = set()
        self.unknown: set[bytes] = set()

    async def run(self, commits: int) -> None:
        await self._producer.start()
        for number in range(commits):
            value = b"%d.%d" % (self._name, number)
            records = [record(self._harness, at, value) for at in self._chance.choices(range(12), k=3)]
            try:
                offsets = await self._producer.commit(records)
            except ProducerFenced:
                self.failed.add(value)
                await turns(self._chance.randrange(300))  # the rival has it for a while
                await self._producer.start()
            except CommitUnknown:
                self.unknown.add(value)
                await self._producer.start()
            else:
                self.acknowledged[value] = sorted(zip((at for at, _ in records), offsets, strict=True))
            if self._chance.random() < 0.1:
                await turns(self._chance.randrange(30))


@pytest.mark.slow
async def test_of_rivals_exactly_the_acknowledged_commits_are_read(harness: LogHarness, transactional_id: str) -> None:
    rivals = [Contender(harness, transactional_id, name, seed=7 + name) for name in range(2)]
    async with asyncio.timeout(150):
        await asyncio.gather(*(rival.run(1_000) for rival in rivals))
    acknowledged = {value: places for rival in rivals for value, places in rival.acknowledged.items()}
    unknown = set[bytes]().union(*(rival.unknown for rival in rivals))
    read: dict[bytes, list[tuple[Position, int]]] = {}
    for position, found in await read_to_the_end(harness, reader(harness, range(12)), range(12)):
        read.setdefault(found.value, []).append((position, found.offset))
    assert Counter(map(len, read.values())).keys() == {3}, "a transaction is there as a whole"
    assert {value: sorted(places) for value, places in read.items() if value not in unknown} == acknowledged
    fenced = [len(rival.failed) for rival in rivals]
    assert min(fenced) >= 10, f"there was no rivalry: {fenced}"
    assert len(acknowledged) >= 200, f"fenced: {fenced}"
