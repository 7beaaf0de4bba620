"""The log in memory makes the trouble that a test asks for, as Kafka would have come to it."""

from __future__ import annotations

import asyncio

import pytest
from support.logs import turns

from bridge.log import (
    CommitUnknown,
    LogError,
    PendingRecord,
    Position,
    ProducerFenced,
    RecordRefused,
    TransactionAborted,
)
from bridge.memory_log import MemoryLog, MemoryTransactionalProducer

AT: Position = ("mqtt.messages", 0)


def record(value: bytes) -> tuple[Position, PendingRecord]:
    return AT, (b"k", value, [])


async def bench() -> tuple[MemoryLog, MemoryTransactionalProducer]:
    log = MemoryLog()
    producer = log.transactional_producer("a")
    await producer.start()
    return log, producer


def values(log: MemoryLog) -> list[bytes | None]:
    return [read.value for read in log.records(*AT)]


@pytest.mark.parametrize("error", [RecordRefused("so"), TransactionAborted("so")])
async def test_a_definite_failure_leaves_the_producer_usable(error: LogError) -> None:
    log, producer = await bench()
    log.fail_next_commit(error)
    with pytest.raises(type(error)):
        await producer.commit([record(b"never")])
    assert await producer.commit([record(b"1")]) == [2]
    assert values(log) == [b"1"]


@pytest.mark.parametrize("happened", [True, False])
async def test_an_unknown_commit_is_settled_by_the_next_start(happened: bool) -> None:
    log, producer = await bench()
    log.fail_next_commit(CommitUnknown("no answer"), happened=happened)
    with pytest.raises(CommitUnknown):
        await producer.commit([record(b"perhaps")])
    with pytest.raises(AssertionError):
        await producer.commit([record(b"too early")])
    log.put(*AT, b"k", b"behind it")
    consumer = log.consumer(None, read_committed=True)
    consumer.assign({AT: 0})
    before = [read.value for _, part in await consumer.fetch(0.01) for read in part]
    assert before == ([b"perhaps", b"behind it"] if happened else [])
    await producer.start()
    await producer.commit([record(b"1")])
    after = [read.value for _, part in await consumer.fetch(1) for read in part]
    assert after == ([b"1"] if happened else [b"behind it", b"1"])
    assert values(log) == before + after


async def test_a_fenced_commit_needs_the_id_again() -> None:
    log, producer = await bench()
    log.fail_next_commit(ProducerFenced("a rival"))
    with pytest.raises(ProducerFenced):
        await producer.commit([record(b"never")])
    await producer.start()
    await producer.commit([record(b"1")])
    assert values(log) == [b"1"]


async def test_a_paused_log_answers_neither_starts_nor_commits() -> None:
    log, producer = await bench()
    log.pause()
    committing = asyncio.ensure_future(producer.commit([record(b"1")]))
    rival = log.transactional_producer("b")
    starting = asyncio.ensure_future(rival.start())
    await turns(20)
    assert (committing.done(), starting.done(), values(log)) == (False, False, [])
    log.resume()
    assert await committing == [0]
    await starting


async def test_a_held_commit_is_in_the_log_and_open() -> None:
    log, producer = await bench()
    log.hold_commits()
    committing = asyncio.ensure_future(producer.commit([record(b"1")]))
    await turns(20)
    assert (committing.done(), values(log), await log.end_offsets({AT})) == (False, [], {AT: 1})
    log.release_commits()
    assert await committing == [0]
    assert (values(log), await log.end_offsets({AT})) == ([b"1"], {AT: 2})


async def test_one_commit_at_a_time() -> None:
    log, producer = await bench()
    log.hold_commits()
    committing = asyncio.ensure_future(producer.commit([record(b"1")]))
    await turns()
    with pytest.raises(AssertionError):
        await producer.commit([record(b"2")])
    log.release_commits()
    await committing
    await producer.commit([record(b"2")])
    assert values(log) == [b"1", b"2"]
