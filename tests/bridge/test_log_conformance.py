"""What a log promises, on the log in memory and on a real Kafka: the same tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from support.logs import LogHarness, kafka_harness, memory_harness, turns

from bridge.log import LogTruncated, LogUnavailable, RecordRefused


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[LogHarness]:
    if request.param == "memory":
        async with memory_harness() as made:
            yield made
    else:
        async with kafka_harness(request.getfixturevalue("kafka_bootstrap")) as made:
            yield made


async def test_a_batch_gets_one_base_offset_and_its_records_follow(harness: LogHarness) -> None:
    assert await harness.append(0, b"a", b"b", b"c") == 0
    assert await harness.append(0, b"d") == 3
    assert await harness.append(1, b"e") == 0
    assert await harness.log.end_offsets({harness.at(0), harness.at(1), harness.at(2)}) == {
        harness.at(0): 4,
        harness.at(1): 1,
        harness.at(2): 0,
    }


async def test_batches_of_a_partition_keep_the_order_of_the_calls(harness: LogHarness) -> None:
    submit = harness.log.submit
    futures = [submit(harness.kafka_topic, 0, [(b"k", b"%d" % number, [])]) for number in range(50)]
    assert [await future for future in futures] == list(range(50))
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(0): 0})
    assert [record.value for _, record in await harness.read(consumer, 50)] == [b"%d" % number for number in range(50)]


async def test_a_record_comes_back_as_it_was(harness: LogHarness) -> None:
    headers = [("mqtt.topic", "größe/°C".encode()), ("empty", b""), ("twice", b"1"), ("twice", b"2"), ("null", None)]
    records = [(b"key", b"\x00\xff payload", headers), (b"key only", None, []), (None, b"value only", ())]
    await harness.log.submit(harness.kafka_topic, 3, records)
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(3): 0})
    read = await harness.read(consumer, 3)
    assert [position for position, _ in read] == [harness.at(3)] * 3
    assert [record.offset for _, record in read] == [0, 1, 2]
    assert [(record.key, record.value, list(record.headers)) for _, record in read] == [
        (b"key", b"\x00\xff payload", headers),
        (b"key only", None, []),
        (None, b"value only", []),
    ]
    assert all(record.timestamp > 1_700_000_000_000 for _, record in read)


async def test_a_record_that_is_too_large_is_refused_for_good(harness: LogHarness) -> None:
    with pytest.raises(RecordRefused) as refusal:
        await harness.append(0, b"x" * (2 * 1024 * 1024 + 1))
    assert refusal.value.divisible
    assert await harness.append(0, b"fits") == 0


async def test_fetch_wakes_at_once_and_gives_up_in_time(harness: LogHarness) -> None:
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(0): 0})
    assert await consumer.fetch(0.05) == []
    waiting = asyncio.ensure_future(consumer.fetch(20))
    await turns()
    assert not waiting.done()
    await harness.append(0, b"wakes")
    ((position, records),) = await asyncio.wait_for(waiting, 5)
    assert (position, [record.value for record in records]) == (harness.at(0), [b"wakes"])


async def test_a_partition_that_is_added_under_a_waiting_fetch_is_read_without_delay(harness: LogHarness) -> None:
    await harness.append(1, b"there already")
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(0): 0})
    loop = asyncio.get_running_loop()
    worst_s = 0.0
    for _ in range(5):
        waiting = asyncio.ensure_future(consumer.fetch(20))
        await turns()
        begun_s = loop.time()
        consumer.assign({harness.at(0): 0, harness.at(1): 0})
        fetched = await waiting
        worst_s = max(worst_s, loop.time() - begun_s)
        assert [(at, [record.value for record in records]) for at, records in fetched] == [
            (harness.at(1), [b"there already"])
        ]
        consumer.assign({harness.at(0): 0})
    assert worst_s < 5


async def test_assign_drops_what_is_not_named_and_seeks_what_is_named_elsewhere(harness: LogHarness) -> None:
    for partition in (0, 1):
        await harness.append(partition, *(b"%d" % number for number in range(10)))
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(0): 4, harness.at(1): 9})
    read = await harness.read(consumer, 7)
    assert [record.offset for position, record in read if position == harness.at(0)] == list(range(4, 10))
    consumer.assign({harness.at(0): 8})
    assert [record.offset for _, record in await harness.read(consumer, 2)] == [8, 9]
    await harness.append(1, b"unread")
    assert await consumer.fetch(0.05) == []
    assert consumer.end_of(harness.at(0)) == 10


async def test_a_kept_partition_goes_on_undisturbed(harness: LogHarness) -> None:
    """Random reassignments under load: every record of the kept partition exactly once, in order."""
    chance = random.Random(5)
    consumer = harness.log.consumer(None)
    next_offset, total, read = 0, 2_000, 0
    consumer.assign({harness.at(0): 0})

    async def append_all() -> None:
        for number in range(total // 20):
            await harness.append(0, *(b"%d" % (number * 20 + index) for index in range(20)))

    appending = asyncio.ensure_future(append_all())
    async with asyncio.timeout(60):
        while read < total:
            for position, records in await consumer.fetch(5):
                if position == harness.at(0):
                    assert [record.offset for record in records] == list(range(next_offset, next_offset + len(records)))
                    read += len(records)
                    next_offset += len(records)
            others = chance.sample(range(1, 12), chance.randrange(5))
            consumer.assign({harness.at(0): next_offset, **{harness.at(other): 0 for other in others}})
    await appending


async def test_a_position_outside_of_the_log_is_said(harness: LogHarness) -> None:
    await harness.append(0, *(b"%d" % number for number in range(10)))
    await harness.truncate(0, 6)
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(0): 2})
    with pytest.raises(LogTruncated) as truncated:
        await harness.read(consumer, 1)
    assert (truncated.value.partition, truncated.value.position, truncated.value.start) == (harness.at(0), 2, 6)
    consumer.assign({harness.at(0): truncated.value.start})
    assert [record.offset for _, record in await harness.read(consumer, 4)] == [6, 7, 8, 9]
    consumer.assign({harness.at(0): 99})
    with pytest.raises(LogTruncated) as beyond:
        await harness.read(consumer, 1)
    assert beyond.value.start == 10


async def test_offsets_are_found_by_time(harness: LogHarness) -> None:
    await harness.append(0, b"a")
    await harness.append(0, b"b")
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(0): 0})
    first, second = (record.timestamp for _, record in await harness.read(consumer, 2))
    partitions = (harness.at(0), harness.at(1))
    assert await harness.log.offsets_for_times(dict.fromkeys(partitions, 0)) == {harness.at(0): 0, harness.at(1): 0}
    assert await harness.log.offsets_for_times({harness.at(0): first, harness.at(1): second + 1}) == {
        harness.at(0): 0,
        harness.at(1): 0,
    }
    assert await harness.log.offsets_for_times({harness.at(0): second + 1}) == {harness.at(0): 2}
    assert await harness.log.offsets_for_times({harness.at(0): second}) == {harness.at(0): 0 if first == second else 1}


async def test_positions_are_committed_listed_and_forgotten(harness: LogHarness) -> None:
    await harness.append(0, b"a", b"b")
    group_id = f"group.{harness.kafka_topic}"
    consumer = harness.log.consumer(group_id)
    assert await consumer.committed() == {}
    await consumer.commit({harness.at(0): 2, harness.at(1): 0})
    await consumer.commit({harness.at(0): 1})
    assert await consumer.committed() == {harness.at(0): 1, harness.at(1): 0}
    await consumer.forget({harness.at(0)})
    assert await harness.log.consumer(group_id).committed() == {harness.at(1): 0}


async def test_a_renewed_producer_goes_on_where_the_old_one_stopped(harness: LogHarness) -> None:
    assert await harness.append(0, b"a") == 0
    await harness.log.renew_producer()
    assert await harness.append(0, b"b") == 1
    await harness.log.renew_producer()
    assert await harness.append(1, b"c") == 0


async def test_many_records_in_many_partitions(harness: LogHarness) -> None:
    per_partition = 3_000
    futures = [
        harness.log.submit(
            harness.kafka_topic, partition, [(b"k", b"%d" % (start + index), []) for index in range(1_000)]
        )
        for start in range(0, per_partition, 1_000)
        for partition in range(12)
    ]
    await asyncio.gather(*futures)
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(partition): 0 for partition in range(12)})
    read = await harness.read(consumer, 12 * per_partition)
    for partition in range(12):
        values = [int(record.value) for position, record in read if position == harness.at(partition)]
        assert values == list(range(per_partition))


async def test_a_stopped_reader_says_so_at_once(harness: LogHarness) -> None:
    consumer = harness.log.consumer(None)
    consumer.assign({harness.at(0): 0})
    waiting = asyncio.ensure_future(consumer.fetch(20))
    await turns()
    await consumer.stop()
    assert await asyncio.wait_for(waiting, 5) == []
    with pytest.raises(LogUnavailable):
        await consumer.fetch(20)
