"""Following a compacted Kafka topic: what is shared, what is skipped, what is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Set
from typing import Any

import pytest
from support.edges import until
from support.logs import turns

from bridge.log import LogUnavailable, Position, Record
from bridge.memory_log import MemoryLog, MemoryLogConsumer
from bridge.topic_tail import SharedAnswer, TopicTail


class Asked:
    """A question whose answers the test gives."""

    def __init__(self) -> None:
        self.open: list[asyncio.Future[int]] = []

    async def __call__(self) -> int:
        self.open.append(asyncio.get_running_loop().create_future())
        return await self.open[-1]


async def test_who_asks_while_a_question_is_under_way_gets_the_next_answer() -> None:
    ask = Asked()
    shared = SharedAnswer(ask)
    first = [asyncio.create_task(shared.get()) for _ in range(3)]
    await turns()
    later = [asyncio.create_task(shared.get()) for _ in range(3)]
    await turns()
    assert len(ask.open) == 1
    ask.open[0].set_result(1)
    assert await asyncio.gather(*first) == [1, 1, 1]
    await turns()
    assert shared.is_busy
    ask.open[1].set_result(2)
    assert await asyncio.gather(*later) == [2, 2, 2]
    await turns()
    assert (len(ask.open), shared.is_busy) == (2, False)


async def test_a_question_that_fails_fails_for_those_who_share_it_only() -> None:
    ask = Asked()
    shared = SharedAnswer(ask)
    first = [asyncio.create_task(shared.get()) for _ in range(2)]
    await turns()
    later = asyncio.create_task(shared.get())
    await turns()
    ask.open[0].set_exception(LogUnavailable("no answer"))
    outcomes = await asyncio.gather(*first, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LogUnavailable, LogUnavailable]
    await turns()
    ask.open[1].set_result(2)
    assert await later == 2


async def test_who_gives_up_takes_the_answer_from_nobody() -> None:
    ask = Asked()
    shared = SharedAnswer(ask)
    one, two = asyncio.create_task(shared.get()), asyncio.create_task(shared.get())
    await turns()
    one.cancel()
    await turns()
    ask.open[0].set_result(1)
    assert await two == 1


async def test_nobody_is_left_waiting_when_it_stops() -> None:
    ask = Asked()
    shared = SharedAnswer(ask)
    first = asyncio.create_task(shared.get())
    await turns()
    later = asyncio.create_task(shared.get())
    await turns()
    await shared.stop()
    outcomes = await asyncio.gather(first, later, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, asyncio.CancelledError]


class GapConsumer(MemoryLogConsumer):
    """Compaction has left nothing before the end at 5: Kafka tells the end and has no record."""

    def end_of(self, partition: Position) -> int | None:
        return 5

    def position_of(self, partition: Position) -> int | None:
        return self.at.get(partition)

    def assign(self, positions: Mapping[Position, int]) -> None:
        self.at = dict(positions)

    async def fetch(self, timeout_s: float) -> Any:
        await asyncio.sleep(0.001)
        return []


class GapLog(MemoryLog):
    async def end_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        return dict.fromkeys(partitions, 5)

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> MemoryLogConsumer:
        consumer = GapConsumer(self, group_id, read_committed=read_committed)
        self._consumers.append(consumer)
        return consumer


async def test_a_partition_that_ends_with_a_gap_is_read() -> None:
    tail = TopicTail(GapLog(), "t", 2, lambda partition, record: None)
    async with asyncio.timeout(10):
        await tail.start()
        await tail.caught_up()
    await tail.stop()


@pytest.fixture
async def log() -> AsyncIterator[MemoryLog]:
    log = MemoryLog()
    yield log
    await log.stop()


async def test_what_was_there_is_taken_before_start_returns_and_the_rest_when_it_comes(log: MemoryLog) -> None:
    taken: list[tuple[int, bytes | None]] = []

    def take(partition: int, record: Record) -> None:
        taken.append((partition, record.value))

    for number in range(1_200):
        log.put("t", number % 2, b"k", b"%d" % number)
    tail = TopicTail(log, "t", 2, take)
    await tail.start()
    assert len(taken) == 1_200
    log.put("t", 1, b"k", b"last")
    await tail.caught_up({0})
    await tail.caught_up()
    assert taken[-1] == (1, b"last")
    await tail.stop()


async def test_an_open_transaction_is_waited_for_however_long_it_stays_open(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes for a while, and yet there is something: another edge stands still in the middle of a commit."""
    monkeypatch.setattr("bridge.topic_tail.GAP_S", 0.02)
    taken: list[bytes | None] = []
    log.put("t", 0, b"k", b"first")
    producer = log.transactional_producer("other")
    await producer.start()
    log.hold_commits()
    committing = asyncio.create_task(producer.commit([(("t", 0), (b"k", b"late", ()))]))
    async with asyncio.timeout(10):
        while log.partition(("t", 0)).end < 2:  # noqa: ASYNC110 - the log says nothing
            await asyncio.sleep(0)
        tail = TopicTail(log, "t", 1, lambda partition, record: taken.append(record.value), read_committed=True)
        starting = asyncio.create_task(tail.start())
        await asyncio.sleep(0.2)  # several times what a gap takes
        log.release_commits()
        await committing
        await starting
        await tail.caught_up()
    assert taken == [b"first", b"late"]
    await tail.stop()


async def test_it_goes_on_when_the_log_cannot_be_read_for_a_while(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.topic_tail.RETRY_S", 0.001)
    taken: list[bytes | None] = []
    tail = TopicTail(log, "t", 1, lambda partition, record: taken.append(record.value), tick=lambda: 0.001)
    await tail.start()
    consumer = tail._consumer
    assert consumer is not None
    fetch = consumer.fetch

    async def fail(timeout_s: float) -> Any:
        await asyncio.sleep(0)
        raise LogUnavailable("away")

    monkeypatch.setattr(consumer, "fetch", fail)
    await until(lambda: tail.errors > 2, "no errors")
    monkeypatch.setattr(consumer, "fetch", fetch)
    log.put("t", 0, b"k", b"x")
    await tail.caught_up()
    assert taken == [b"x"]
    waiting = asyncio.create_task(tail.caught_up())
    await tail.stop()
    await asyncio.gather(waiting, return_exceptions=True)
