"""Reading a range of many partitions, merged by time, on the log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

import pytest
from support.replay import FIRST_MS, TABLE, Clock, filled_log, numbers, put

from bridge.log import Position
from bridge.memory_log import MemoryLog, MemoryLogConsumer
from bridge.replay.bounds import partitions_of, resolve
from bridge.replay.reader import ReplayReader
from bridge.replay.selection import Item, Selection
from schemas.replay_range import BEGINNING, END, PointKind, ReplayPoint, ReplayRange, parse_from_to, position_token

EVERYTHING = ReplayRange(BEGINNING, END)


async def read(log: MemoryLog, topic_filter: str, wanted: ReplayRange = EVERYTHING) -> tuple[list[Item], ReplayReader]:
    bounds, _ = await resolve(log, partitions_of(TABLE, [topic_filter]), wanted)
    return await read_bounds(log, topic_filter, bounds)


async def read_bounds(
    log: MemoryLog, topic_filter: str, bounds: Mapping[Position, tuple[int, int | None]]
) -> tuple[list[Item], ReplayReader]:
    reader = ReplayReader(log, bounds, Selection([topic_filter], TABLE.topic_name_from_key))
    items: list[Item] = []
    async with asyncio.timeout(20):
        async for batch in reader.batches():
            items += batch
    await reader.stop()
    return items, reader


async def test_everything_comes_once_in_the_order_of_time() -> None:
    log = filled_log(5_000)
    items, reader = await read(log, "sensors/#")
    assert numbers(items) == list(range(5_000))
    assert {item[1][0] for item in items} == {"mqtt.sensors", "mqtt.sensors.q2"}
    assert all(at == log.partition(position).end for position, at in reader.positions().items())


async def test_only_what_the_filter_matches() -> None:
    log = filled_log()
    put(log, "sensors/s/3/hum", b'{"n":-1}')
    items, _ = await read(log, "sensors/+/3/temp")
    assert numbers(items) == list(range(3, 100, 10))


async def test_only_the_partitions_that_the_filter_can_match_are_read() -> None:
    bounds, _ = await resolve(filled_log(), partitions_of(TABLE, ["sensors/s/3/temp"]), EVERYTHING)
    assert len({partition for _, partition in bounds}) == 1
    assert set(bounds) <= {
        TABLE.destination("sensors/s/3/temp").position,
        TABLE.destination("sensors/s/3/t").twin().position,
    }


async def test_a_range_of_time() -> None:
    log = filled_log(100)
    wanted = parse_from_to(str(FIRST_MS + 21), str(FIRST_MS + 31), 0)
    items, _ = await read(log, "sensors/#", wanted)
    assert numbers(items) == list(range(20, 30))


async def test_a_token_goes_on_exactly_behind() -> None:
    log = filled_log(300)
    first, reader = await read(log, "sensors/#", ReplayRange(BEGINNING, ReplayPoint(PointKind.TIME, FIRST_MS + 150)))
    token = position_token(reader.positions())
    rest, _ = await read(log, "sensors/#", parse_from_to(token, None, 0))
    assert numbers(first) + numbers(rest) == list(range(300))


async def test_aborted_transactions_do_not_come_and_markers_do_not_hold() -> None:
    log = filled_log(30)
    position = TABLE.destination("sensors/s/3/temp").twin().position
    producer = log.transactional_producer("t")
    await producer.start()
    headers = [("mqtt.topic", b"sensors/s/3/temp")]
    await producer.commit([(position, (b"k", b'{"n":30}', headers))])
    from bridge.log import TransactionAborted

    log.fail_next_commit(TransactionAborted("by the test"))
    try:
        await producer.commit([(position, (b"k", b'{"n":31}', headers))])
    except TransactionAborted:
        pass
    items, _ = await read(log, "sensors/#")
    assert numbers(items) == list(range(31))


async def test_a_partition_far_ahead_waits_and_memory_stays_bounded() -> None:
    """One partition has all the old records, another all the new ones."""
    log = MemoryLog(Clock())
    for number in range(60_000):
        put(log, "sensors/s/1/temp", b'{"n":%d}' % number)
    for number in range(60_000, 90_000):
        put(log, "sensors/s/2/temp", b'{"n":%d}' % number)
    bounds, _ = await resolve(log, partitions_of(TABLE, ["sensors/#"]), EVERYTHING)
    assert sum(first < end for first, end in bounds.values()) == 2
    reader = ReplayReader(log, bounds, Selection(["sensors/#"], TABLE.topic_name_from_key))
    seen, most = 0, 0
    async for batch in reader.batches():
        for number in numbers(batch):
            assert number == seen
            seen += 1
        most = max(most, sum(len(lane.items) for lane in reader.lanes))
    await reader.stop()
    assert seen == 90_000
    assert most < 25_000


async def test_a_clock_that_goes_back_does_not_change_the_order_of_a_partition() -> None:
    chance = Random(3)
    times = [FIRST_MS + chance.randrange(50) for _ in range(400)]
    log = MemoryLog(iter(times).__next__)
    for number in range(400):
        put(log, f"sensors/s/{number % 7}/temp", b'{"n":%d}' % number)
    items, _ = await read(log, "sensors/#")
    assert sorted(numbers(items)) == list(range(400))
    by_position: dict[Position, list[int]] = {}
    for item in items:
        by_position.setdefault(item[1], []).append(item[2].offset)
    assert all(offsets == sorted(offsets) for offsets in by_position.values())


async def test_what_retention_takes_is_counted() -> None:
    log = filled_log(100, devices=1)
    positions = partitions_of(TABLE, ["sensors/s/0/temp"])
    bounds, lost = await resolve(log, positions, EVERYTHING)
    assert not lost
    plain = TABLE.destination("sensors/s/0/temp").position
    log.truncate(*plain, 5)
    items, reader = await read_bounds(log, "sensors/#", bounds)
    assert reader.lost() == 5
    assert len(items) == 95
    _, lost = await resolve(log, positions, parse_from_to(position_token({plain: 2}), None, 0))
    assert lost == {plain: 3}


async def test_records_without_a_topic_name_are_counted() -> None:
    log = filled_log(10)
    log.put("mqtt.sensors", 0, b"\xff", b"who", [])
    log.put("mqtt.sensors", 0, b"k", b"who", [("mqtt.topic", b"a/+")])
    bounds, _ = await resolve(log, partitions_of(TABLE, ["#"]), EVERYTHING)
    chosen = Selection(["#"], TABLE.topic_name_from_key)
    reader = ReplayReader(log, bounds, chosen)
    assert sum([len(batch) async for batch in reader.batches()]) == 10
    await reader.stop()
    assert chosen.unreadable == 2


async def test_live_records_come_without_waiting_for_quiet_partitions() -> None:
    log = filled_log(10)
    ends = await log.end_offsets(partitions_of(TABLE, ["sensors/#"]))
    reader = ReplayReader(
        log,
        {position: (end, None) for position, end in ends.items()},
        Selection(["sensors/#"], TABLE.topic_name_from_key),
    )
    batches = reader.batches()
    coming = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    put(log, "sensors/s/1/temp", b'{"n":10}')
    assert numbers(await asyncio.wait_for(coming, 10)) == [10]
    put(log, "sensors/s/2/temp", b'{"n":11}', qos=2)
    assert numbers(await asyncio.wait_for(anext(batches), 10)) == [11]
    await batches.aclose()
    await reader.stop()


async def test_a_gap_at_the_end_does_not_hold_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction has taken the last records: Kafka answers with the end and without a record."""
    monkeypatch.setattr("bridge.replay.reader.FETCH_TIMEOUT_S", 0.05)
    log = filled_log(10, devices=1)
    bounds, _ = await resolve(log, partitions_of(TABLE, ["sensors/#"]), EVERYTHING)
    plain = TABLE.destination("sensors/s/0/temp").position
    original = MemoryLogConsumer._take

    def take(self: MemoryLogConsumer) -> object:
        held = log.partition(plain)
        if self.position_of(plain) == 4:  # and there are seven
            self._ends[plain] = held.end
            return []
        fetched = original(self)
        return [(at, records[:4] if at == plain else records) for at, records in fetched if self._rewind(at)]

    def rewind(self: MemoryLogConsumer, position: Position) -> bool:
        if position == plain:
            self._positions[plain] = 4
        return True

    monkeypatch.setattr(MemoryLogConsumer, "_rewind", rewind, raising=False)
    monkeypatch.setattr(MemoryLogConsumer, "_take", take)
    items, _ = await read_bounds(log, "sensors/#", bounds)
    assert sum(item[1] == plain for item in items) == 4
