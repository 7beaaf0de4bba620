"""The node's one reader for shared subscriptions, on the log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.logs import turns
from support.shares import FakeMember, eventually, record

import bridge.shared.reader as reader_module
from bridge.log import LogUnavailable, Mark, Position, Record, TransactionAborted
from bridge.memory_log import MemoryLog
from bridge.partitioning import RouteTable
from bridge.shared.group import ShareGroup
from bridge.shared.reader import SharedReader
from bridge.shared.strategies import make_strategy
from bridge.subscriptions import Subscription
from schemas.routes import Route

PLAIN, TWIN, OTHER = ("mqtt.messages", 0), ("mqtt.messages.q2", 0), ("mqtt.messages", 1)


class Bench:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.after_batches = 0
        self.dead: list[tuple[Position, int]] = []
        routes = RouteTable((Route("#", "mqtt.messages", partitions=2),))
        self.reader = SharedReader(self.log, routes, self._after_batch, self._dead_letter)

    def _after_batch(self) -> None:
        self.after_batches += 1

    def _dead_letter(self, position: Position, record: Record, error: Exception) -> None:
        self.dead.append((position, record.offset))

    def group(self, topic_filter: str, *members: FakeMember, leased: bool = True) -> ShareGroup:
        group = ShareGroup(
            f"$share/g/{topic_filter}",
            make_strategy("round_robin", lambda below: 0),
            is_leased=lambda: leased,
            on_hungry=self.reader.changed,
            clock_ms=lambda: 0,
        )
        for member in members:
            group.join(member, Subscription(member, topic_filter, 1))
        self.reader.add(group, topic_filter)
        return group

    def put(self, *payloads: bytes, topic_name: str = "a", at: Position = PLAIN) -> None:
        for payload in payloads:
            self.log.put(*at, *record(topic_name, payload))

    def figure(self, name: str) -> int:
        figure = self.reader.statistics()[name]
        assert isinstance(figure, int)
        return figure


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.reader.stop()
    assert made.figure("pump_errors") == 0


def numbers(first: int, following: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, following)]


async def test_a_group_gets_what_matches_from_where_it_is(bench: Bench) -> None:
    bench.put(b"0", b"1", b"2")
    bench.put(b"else", topic_name="b")
    bench.put(b"4")
    member = FakeMember("m")
    group = bench.group("a", member)
    group.gain(PLAIN, Mark(1))
    await eventually(lambda: member.payloads == [b"1", b"2", b"4"])
    bench.put(b"5")
    await eventually(lambda: len(member.got) == 4)
    assert group.marks() == {PLAIN: Mark(6)}
    assert bench.after_batches >= 2


async def test_what_is_not_leased_is_not_read(bench: Bench) -> None:
    bench.put(b"0")
    bench.put(b"other", at=OTHER)
    member = FakeMember("m")
    bench.group("a", member).gain(OTHER, Mark(0))
    bench.group("a", FakeMember("n"), leased=False).gain(PLAIN, Mark(0))
    await eventually(lambda: member.got)
    await turns(20)
    assert member.payloads == [b"other"]
    assert bench.figure("partitions") == bench.figure("records") == 1


async def test_a_group_whose_members_are_full_is_not_read_for_and_the_others_are(bench: Bench) -> None:
    slow, quick = FakeMember("s", room=2, acknowledges=False), FakeMember("q")
    waiting = bench.group("a", slow)
    going = bench.group("a", quick)
    waiting.gain(PLAIN, Mark(0))
    going.gain(PLAIN, Mark(0))
    bench.put(*numbers(0, 2_000))
    await eventually(lambda: len(quick.got) == 2_000)
    assert waiting.buffered_bytes <= sum(map(len, numbers(0, 500)))
    for _ in range(1_000):
        slow.acknowledge()
        await turns(2)
        if len(slow.got) == 2_000:
            break
    await eventually(lambda: slow.acknowledge() or len(slow.got) == 2_000)
    assert slow.payloads == quick.payloads == numbers(0, 2_000)
    assert waiting.marks() == going.marks() == {PLAIN: Mark(2_000)}


async def test_groups_at_one_place_ride_on_one_scan(bench: Bench) -> None:
    members = [FakeMember(f"m{number}") for number in range(10)]
    bench.put(*numbers(0, 3_000))
    for member in members:
        bench.group("a", member).gain(PLAIN, Mark(0))
    await eventually(lambda: all(len(member.got) == 3_000 for member in members))
    assert bench.figure("records") == 3_000


async def test_a_group_far_behind_does_not_keep_the_one_at_the_end_waiting(bench: Bench) -> None:
    bench.put(*numbers(0, 50_000))
    late, early = FakeMember("late"), FakeMember("early")
    bench.group("a", early).gain(PLAIN, Mark(50_000))
    bench.group("a", late).gain(PLAIN, Mark(0))
    await eventually(lambda: len(late.got) > 1_000)
    bench.put(b"now")
    await eventually(lambda: early.payloads == [b"now"])
    assert len(late.got) < 40_000
    await eventually(lambda: len(late.got) == 50_001)
    assert early.payloads == [b"now"]
    assert late.payloads[-1] == b"now"


async def test_memory_is_bounded_by_reading_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "BUFFERED_BYTES_MAX", 1_000)
    members = [FakeMember(f"m{number}", room=1, acknowledges=False) for number in range(3)]
    groups = [bench.group(name, member) for name, member in zip("abc", members, strict=True)]
    for group, name in zip(groups, "abc", strict=True):
        group.gain(PLAIN, Mark(0))
        bench.put(*(b"%s%07d" % (name.encode(), number) for number in range(100)), topic_name=name)
    await eventually(lambda: all(member.got for member in members))
    await turns(20)
    assert sum(group.buffered_bytes for group in groups) <= 1_000
    await eventually(lambda: [member.acknowledge() for member in members] and all(len(m.got) == 100 for m in members))
    assert all(member.payloads == sorted(member.payloads) for member in members)


async def test_read_committed_and_past_the_marker(bench: Bench) -> None:
    """QoS 2: nothing before the commit, nothing of what was aborted; the low-water mark comes to the end."""
    member = FakeMember("m")
    group = bench.group("a", member)
    group.gain(TWIN, Mark(0))
    producer = bench.log.transactional_producer("t")
    await producer.start()
    await producer.commit([(TWIN, record("a", b"whole", qos=2))])
    await eventually(lambda: member.payloads == [b"whole"])
    end = (await bench.log.end_offsets({TWIN}))[TWIN]
    assert end > 1, "a marker lies behind it"
    await eventually(lambda: group.marks() == {TWIN: Mark(end)})
    bench.log.fail_next_commit(TransactionAborted("planted"))
    with pytest.raises(TransactionAborted):
        await producer.commit([(TWIN, record("a", b"aborted", qos=2))])
    bench.log.hold_commits()
    committing = asyncio.ensure_future(producer.commit([(TWIN, record("a", b"more", qos=2))]))
    await turns(20)
    assert member.payloads == [b"whole"]
    bench.log.release_commits()
    await committing
    await eventually(lambda: member.payloads == [b"whole", b"more"])
    await producer.stop()


async def test_an_unreadable_record_is_told_and_skipped(bench: Bench) -> None:
    member = FakeMember("m")
    bench.group("#", member).gain(PLAIN, Mark(0))
    bench.log.put(*PLAIN, None, b"no name", ())
    bench.put(b"1")
    await eventually(lambda: member.payloads == [b"1"])
    assert bench.dead == [(PLAIN, 0)]
    assert bench.figure("unreadable_records") == 1


async def test_deleted_records_are_told(bench: Bench) -> None:
    bench.put(*numbers(0, 20))
    bench.log.truncate(*PLAIN, 10)
    member, other = FakeMember("m"), FakeMember("n")
    group = bench.group("a", member)
    group.gain(PLAIN, Mark(3))
    bench.group("a", other).gain(PLAIN, Mark(15))
    await eventually(lambda: len(member.got) == 10 and len(other.got) == 5)
    assert member.payloads == numbers(10, 20)
    assert group.statistics()["truncated_records"] == 7
    assert bench.figure("truncations") == 1


async def test_a_log_that_does_not_answer_is_asked_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    member = FakeMember("m")
    bench.group("a", member).gain(PLAIN, Mark(0))
    consumer = bench.reader._consumer
    assert consumer is not None
    fetch, failures = consumer.fetch, iter([LogUnavailable("planted"), RuntimeError("planted")])

    async def failing(timeout_s: float) -> object:
        for error in failures:
            raise error
        return await fetch(timeout_s)

    monkeypatch.setattr(consumer, "fetch", failing)
    bench.put(b"0")
    await eventually(lambda: member.payloads == [b"0"])
    assert bench.figure("log_errors") == bench.figure("pump_errors") == 1
    bench.reader._counts["pump_errors"] = 0  # as planned


async def test_a_group_that_is_removed_is_read_for_no_more(bench: Bench) -> None:
    member = FakeMember("m")
    group = bench.group("a", member)
    group.gain(PLAIN, Mark(0))
    await turns(10)
    assert bench.figure("partitions") == 1
    bench.reader.remove(group)
    bench.put(b"0")
    await eventually(lambda: bench.figure("partitions") == 0)
    assert not member.got
    assert bench.figure("groups") == 0


async def test_groups_come_and_go_while_all_is_read(bench: Bench) -> None:
    """A partition that is taken away and given back under the reader loses nothing and doubles nothing."""
    member = FakeMember("m")
    group = bench.group("a", member)
    group.gain(PLAIN, Mark(0))
    other = bench.group("a", FakeMember("n"))

    async def put() -> None:
        for number in range(2_000):
            bench.put(b"%d" % number)
            if number % 20 == 0:
                await asyncio.sleep(0)

    putting = asyncio.ensure_future(put())
    while not putting.done():
        mark = group.marks()[PLAIN]
        group.lose([PLAIN])
        other.gain(OTHER, Mark(0))
        await turns(3)
        group.gain(PLAIN, mark)
        other.lose([OTHER])
        await turns(5)
    await eventually(lambda: len(member.got) == 2_000)
    assert member.payloads == numbers(0, 2_000)
