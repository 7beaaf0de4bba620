"""A replay's feed against a log in lists: every record once, in order, whatever the member and the reader do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.delivery import Delivery
from bridge.history.feed import GAP, POSITION, ReplayFeed
from bridge.log import Position
from schemas.replay_range import parse_position_token
from schemas.sessions import ReplayPlace

ONE, TWO = ("mqtt.a", 0), ("mqtt.a", 1)


def message(position: Position, offset: int, timestamp_ms: int, size: int = 3, expiry_s: int | None = None) -> Delivery:
    payload = b"x" * size
    return Delivery(b"a", payload, 1, False, "p", expiry_s, timestamp_ms, (), None, *position, offset)


class Bench:
    """A member and a reader in one, over logs that grow: those that match, by offset."""

    def __init__(
        self,
        logs: dict[Position, list[Delivery]],
        places: Mapping[Position, ReplayPlace] | None = None,
        ends: Mapping[Position, int] | None = None,
        *,
        is_bounded: bool = False,
        room: int = 1_000_000,
        takes: Any = lambda delivery: True,
    ) -> None:
        self.logs = logs
        at_end = {position: self.end(position) if position in logs else 0 for position in places or logs}
        self.ends = at_end if ends is None else ends
        self.room = room
        self.got: list[Delivery] = []
        self.unacknowledged: list[Delivery] = []
        self.markers = 0
        self.let_through = takes
        self.reads = 0
        self.feed = ReplayFeed(
            "$replay/beginning/#",
            self,
            {position: ReplayPlace(0) for position in logs} if places is None else places,
            self.ends,
            is_bounded=is_bounded,
            per_s=0.0,
            with_positions=True,
            on_hungry=lambda: None,
            on_fed=lambda feed: feed.hand_out(0.0),
            clock_ms=lambda: 1_000_000,
        )

    def end(self, position: Position) -> int:
        return self.logs[position][-1].offset + 1 if self.logs[position] else 0

    def has_room(self) -> bool:
        return len(self.unacknowledged) < self.room

    def takes(self, delivery: Delivery, feed: ReplayFeed) -> bool:
        return bool(self.let_through(delivery))

    def deliver_replayed(self, delivery: Delivery, feed: ReplayFeed) -> bool:
        assert self.has_room()
        self.got.append(delivery)
        self.unacknowledged.append(delivery)
        return True

    def replay_ended(self, feed: ReplayFeed) -> None:
        self.markers += 1

    def acknowledge(self, count: int) -> None:
        for _ in range(min(count, len(self.unacknowledged))):
            delivery = self.unacknowledged.pop(0)
            self.feed.acknowledged(self, (delivery.kafka_topic, delivery.partition), delivery.offset)
        self.feed.hand_out(0.0)

    def read(self, position: Position, count: int) -> bool:
        """One fetch of a partition; whether anything was wanted of it and there."""
        wanted = self.feed.wants(position)
        if wanted is None or wanted >= self.end(position):
            return False
        found = [each for each in self.logs[position] if each.offset >= wanted][:count]
        self.reads += 1
        self.feed.feed(position, found, found[-1].offset + 1 if found else self.end(position))
        return True

    def run(self, count: int = 50) -> None:
        """Until nothing is left to do."""
        for _ in range(10_000):
            read = [self.read(position, count) for position in self.logs]
            before = len(self.got)
            self.acknowledge(1_000)
            if not any(read) and len(self.got) == before:
                return
        raise AssertionError("it does not come to an end")


def places_of(deliveries: list[Delivery]) -> list[tuple[str, int, int]]:
    return [(each.kafka_topic, each.partition, each.offset) for each in deliveries]


def property_of(delivery: Delivery, name: str) -> str | None:
    assert delivery.properties is not None
    return dict(delivery.properties.user_properties).get(name)


def log_of(position: Position, *offsets: int, size: int = 3) -> list[Delivery]:
    return [message(position, offset, 1_000 + offset, size) for offset in offsets]


def test_what_a_read_brings_beyond_the_end_is_neither_sent_nor_passed() -> None:
    logs = {ONE: log_of(ONE, *range(10)), TWO: log_of(TWO, *range(10))}
    bench = Bench(logs, ends={ONE: 4, TWO: 0}, is_bounded=True)
    bench.run(100)
    assert (places_of(bench.got), bench.markers) == ([(*ONE, offset) for offset in range(4)], 1)
    assert bench.feed.places() == {ONE: ReplayPlace(4, (), 4), TWO: ReplayPlace(0, (), 0)}
    assert parse_position_token(bench.feed.token()).positions == {ONE: 4, TWO: 0}


def test_nothing_in_the_range_is_an_end_at_once() -> None:
    bench = Bench({ONE: [], TWO: []}, is_bounded=True)
    bench.feed.hand_out(0.0)
    bench.feed.hand_out(0.0)
    assert bench.markers == 1


def test_a_range_of_which_nothing_is_let_through_ends() -> None:
    bench = Bench({ONE: log_of(ONE, *range(600))}, is_bounded=True, takes=lambda delivery: False)
    bench.run()
    assert (bench.got, bench.markers, bench.feed.handed) == ([], 1, 0)
    assert bench.feed.places()[ONE] == ReplayPlace(600, (), 600)


def test_a_gap_is_told_with_the_next_message_that_is_sent() -> None:
    logs = {ONE: log_of(ONE, 5, 6), TWO: log_of(TWO, 9)}
    bench = Bench(logs, takes=lambda delivery: delivery.offset != 5)
    bench.feed.skip_to(ONE, 5)
    bench.run()
    assert [property_of(each, GAP) is not None for each in bench.got] == [True, False]


def test_what_had_been_acknowledged_is_no_gap() -> None:
    bench = Bench({ONE: log_of(ONE, *range(90, 100))}, {ONE: ReplayPlace(50, (3, 7, 40))}, {ONE: 100})
    bench.feed.skip_to(ONE, 20)
    assert bench.feed.gap == 2
    bench.feed.skip_to(ONE, 60)
    assert bench.feed.gap == 2 + 1 + 10


def test_a_log_that_is_shorter_than_it_was_is_followed_from_its_end() -> None:
    bench = Bench({ONE: []}, {ONE: ReplayPlace(1_000, (990,))}, {ONE: 10})
    bench.feed.skip_to(ONE, 10)
    bench.logs[ONE] += log_of(ONE, 10, 11)
    bench.run()
    assert places_of(bench.got) == [(*ONE, 10), (*ONE, 11)]


def test_a_merge_goes_on_whenever_memory_is_short() -> None:
    """If all of a buffer went, more partitions than memory has room for would wait for one another for ever."""
    logs = {("mqtt.a", number): log_of(("mqtt.a", number), *range(30)) for number in range(20)}
    bench = Bench(logs)
    for _ in range(10_000):
        for position in logs:
            bench.read(position, 10)
            bench.feed.drop_buffers()
        if len(bench.got) == 600:
            break
    assert len(set(places_of(bench.got))) == len(bench.got) == 600
    assert [each.timestamp_ms for each in bench.got] == sorted(each.timestamp_ms for each in bench.got)
    assert bench.feed.buffered_bytes == 0


def test_who_takes_nothing_costs_nothing_more() -> None:
    bench = Bench({ONE: log_of(ONE, *range(500), size=10_000)}, room=0)
    for _ in range(1_000):
        bench.read(ONE, 10)
    assert bench.reads == 11, "1 MiB"
    bench.feed.drop_buffers()
    for _ in range(1_000):
        bench.read(ONE, 10)
    assert bench.reads == 11
    bench.room = 1_000
    bench.run()
    assert len(bench.got) == 500


def test_a_token_passes_nothing_that_is_due_again() -> None:
    logs = {ONE: [message(ONE, 0, 50), message(ONE, 1, 60)], TWO: [message(TWO, 0, 10)]}
    bench = Bench(logs, {ONE: ReplayPlace(2, (0,)), TWO: ReplayPlace(0)})
    bench.run()
    assert places_of(bench.got) == [(*TWO, 0), (*ONE, 0)]
    tokens = [parse_position_token(property_of(each, POSITION) or "").positions for each in bench.got]
    assert tokens == [{ONE: 0, TWO: 1}, {ONE: 2, TWO: 1}]


def test_a_token_that_no_string_holds_is_left_out() -> None:
    logs = {("mqtt.a", number): log_of(("mqtt.a", number), *range(2)) for number in range(13_000)}
    bench = Bench({ONE: logs[ONE]}, {position: ReplayPlace(2_097_151) for position in logs} | {ONE: ReplayPlace(0)})
    bench.read(ONE, 2)
    assert [property_of(each, POSITION) for each in bench.got] == [None, None]


@st.composite
def histories(draw: st.DrawFn) -> dict[Position, list[Delivery]]:
    """Partitions with holes (what does not match, markers) and times that only grow."""
    logs: dict[Position, list[Delivery]] = {}
    for number in range(draw(st.integers(1, 4))):
        position, offset, at_ms, records = ("mqtt.a", number), 0, 1_000, []
        for hole, step_ms in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=25)):
            offset, at_ms = offset + hole, at_ms + step_ms
            records.append(message(position, offset, at_ms))
            offset += 1
        logs[position] = records
    return logs


@settings(max_examples=150, deadline=None)
@given(
    logs=histories(),
    cuts=st.lists(st.integers(0, 25), min_size=4, max_size=4),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("read"), st.integers(0, 3), st.integers(1, 9)),
            st.tuples(st.sampled_from(("acknowledge", "drop", "resume", "token", "append")), st.integers(1, 5)),
        ),
        max_size=60,
    ),
    room=st.integers(1, 6),
)
def test_every_record_once_in_order(
    logs: dict[Position, list[Delivery]], cuts: list[int], steps: list[tuple[Any, ...]], room: int
) -> None:
    """What comes after the subscription (behind the cuts) is appended on the way. A session that is resumed gets again
    what it had not acknowledged; who uses a token has acknowledged what it had."""
    later = {position: logs[position][cut:] for position, cut in zip(logs, cuts, strict=False)}
    held = {position: logs[position][:cut] for position, cut in zip(logs, cuts, strict=False)}
    bench = Bench(held, room=room)
    positions, done = list(held), list[Delivery]()

    def kept() -> list[Delivery]:
        """What the client counts as had: all but what was sent and not acknowledged."""
        lost = set(places_of(bench.unacknowledged))
        return [each for each in bench.got if places_of([each])[0] not in lost]

    for kind, *values in steps:
        if kind == "read":
            bench.read(positions[values[0] % len(positions)], values[1])
        elif kind == "acknowledge":
            bench.acknowledge(values[0])
        elif kind == "drop":
            bench.feed.drop_buffers()
        elif kind == "append":
            for position in positions:
                held[position] += later[position][: values[0]]
                del later[position][: values[0]]
        elif kind == "resume":
            done += kept()
            bench = Bench(held, bench.feed.places(), room=room)
        elif bench.got:
            bench.unacknowledged.clear()
            token = property_of(bench.got[-1], POSITION)
            done += bench.got
            at = parse_position_token(token or "").positions
            bench = Bench(held, {position: ReplayPlace(offset) for position, offset in at.items()}, room=room)
    for position in positions:
        held[position] += later[position]
    bench.run(7)
    found = places_of(done + bench.got)
    assert sorted(found) == sorted(place for records in held.values() for place in places_of(records))
    for position in positions:
        mine = [offset for *place, offset in places_of(bench.got) if tuple(place) == position]
        assert mine == sorted(mine)
    history = [each for each in bench.got if each.offset < bench.ends[each.kafka_topic, each.partition]]
    assert [each.timestamp_ms for each in history] == sorted(each.timestamp_ms for each in history)
