"""The pure group: one member per message, low-water marks, windows, members and partitions that come and go."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.shares import FakeMember, place_of, position_of

from bridge.delivery import Delivery
from bridge.log import Mark, Position
from bridge.shared.group import ShareGroup
from bridge.shared.marks import decode_mark
from bridge.shared.strategies import STRATEGIES, make_strategy
from bridge.subscriptions import Grant, Subscription

HERE, THERE = ("t", 0), ("t", 1)
HASHES = ("hash_topic", "hash_client_id")


def message(offset: int, position: Position = HERE, *, topic_name: str = "a", qos: int = 1, **more: Any) -> Delivery:
    fields = {"client_id": topic_name, "expiry_s": None, "payload": b"%d" % offset, **more}
    return Delivery(
        topic_name.encode(),
        fields["payload"],
        qos,
        False,
        fields["client_id"],
        fields["expiry_s"],
        1_000_000,
        (),
        None,
        *position,
        offset,
    )


class Bench:
    """A group with what it is told about the world."""

    def __init__(self, strategy: str = "least_inflight", **bounds: int) -> None:
        self.leased = True
        self.hungry = 0
        self.now_ms = 1_000_000
        self.group = ShareGroup(
            "$share/g/a",
            make_strategy(strategy, lambda below: 0),
            is_leased=lambda: self.leased,
            on_hungry=self._on_hungry,
            clock_ms=lambda: self.now_ms,
            **bounds,
        )

    def _on_hungry(self) -> None:
        self.hungry += 1

    def join(self, *members: FakeMember, qos: int = 1) -> None:
        for member in members:
            self.group.join(member, Subscription(member, "a", qos))

    def feed(self, *deliveries: Delivery, position: Position = HERE) -> None:
        """At most a record per call is needed for the next read offset."""
        assert self.group.wants(position) is not None
        self.group.feed(position, deliveries, deliveries[-1].offset + 1)

    def low_water(self, position: Position = HERE) -> int:
        return self.group.marks()[position].offset

    def figure(self, name: str) -> int:
        return self.group.statistics()[name]


def holding(client_id: str, room: int = 1_000_000) -> FakeMember:
    """A member that acknowledges only when the test says so."""
    return FakeMember(client_id, room, acknowledges=False)


def offsets(member: FakeMember) -> list[int]:
    return [delivery.offset for delivery in member.got]


def test_the_low_water_mark_is_the_lowest_that_is_not_acknowledged() -> None:
    bench, member = Bench(), holding("m")
    bench.join(member)
    bench.group.gain(HERE, Mark(10))
    assert bench.low_water() == 10
    bench.feed(message(12), message(13), message(15))
    assert bench.low_water() == 12, "11 matched nothing"
    bench.group.acknowledged(member, HERE, 13)
    assert bench.low_water() == 12
    bench.group.acknowledged(member, HERE, 12)
    assert bench.low_water() == 15
    bench.group.acknowledged(member, HERE, 15)
    assert bench.low_water() == 16
    bench.group.feed(HERE, (), 20)
    assert bench.low_water() == 20


@pytest.mark.parametrize(("message_qos", "granted_qos"), [(0, 2), (2, 0)])
def test_qos_0_is_done_when_it_is_handed_out(message_qos: int, granted_qos: int) -> None:
    bench, member = Bench(), holding("m")
    bench.join(member, qos=granted_qos)
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0, qos=message_qos))
    assert offsets(member) == [0]
    assert bench.low_water() == 1


def test_each_member_gets_by_its_own_options() -> None:
    bench, first, second = Bench("round_robin"), FakeMember("a"), FakeMember("b")
    bench.group.join(first, Subscription(first, "a", 1, subscription_id=7))
    bench.group.join(second, Subscription(second, "a", 2, retain_as_published=True))
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0), message(1))
    assert (first.grants[0].qos, first.grants[0].subscription_ids) == (1, (7,))
    assert (second.grants[0].qos, second.grants[0].retain_as_published) == (2, True)
    bench.group.join(first, Subscription(first, "a", 0))
    bench.feed(message(2))
    assert first.grants[1].qos == 0
    assert len(bench.group.members) == 2


def test_a_partition_waits_for_room_and_goes_on() -> None:
    bench, small, other = Bench(), holding("m", room=2), holding("n", room=1)
    bench.join(small, other)
    bench.group.gain(HERE, Mark(0))
    bench.feed(*(message(offset) for offset in range(5)))
    assert sorted(offsets(small) + offsets(other)) == [0, 1, 2]
    assert bench.group.wants(HERE) is None
    assert bench.figure("partitions_waiting") == bench.figure("waits") == 1
    other.acknowledge()
    assert len(small.got) + len(other.got) == 4
    small.room = 10
    bench.group.hand_out()
    assert sorted(offsets(small) + offsets(other)) == [0, 1, 2, 3, 4]
    assert bench.group.wants(HERE) == 5


def test_a_waiting_partition_does_not_keep_others_waiting_for_ever() -> None:
    bench, member = Bench(), holding("m", room=1)
    bench.join(member)
    for position in (HERE, THERE):
        bench.group.gain(position, Mark(0))
        bench.feed(*(message(offset, position) for offset in range(3)), position=position)
    for _ in range(6):
        member.acknowledge(1)
    places = [place_of(delivery) for delivery in member.got]
    assert len(places) == 6
    assert [position for position, _ in places] == [HERE, HERE, THERE, HERE, THERE, THERE], "in turns"


def test_acknowledged_at_once_is_not_handed_out_in_ever_deeper_calls() -> None:
    bench, member = Bench(), FakeMember("m")
    bench.group.gain(HERE, Mark(0))
    bench.feed(*(message(offset) for offset in range(3_000)))
    bench.join(member)
    assert offsets(member) == list(range(3_000))


def test_a_hash_waits_for_its_member_and_holds_up_no_other_partition() -> None:
    bench, members = Bench("hash_topic"), [holding("m", room=1), holding("n", room=1)]
    bench.join(*members)
    names = {}
    for name in "abcdefgh":  # one for each of them
        chosen = bench.group._strategy.choose(members, message(0, topic_name=name))
        assert isinstance(chosen, FakeMember)
        names[chosen.client_id] = name
    bench.group.gain(HERE, Mark(0))
    bench.group.gain(THERE, Mark(0))
    bench.feed(*(message(offset, topic_name=names["m"]) for offset in range(2)))
    bench.feed(*(message(offset, THERE, topic_name=names["n"]) for offset in range(2)), position=THERE)
    assert [len(member.got) for member in members] == [1, 1]
    members[1].acknowledge()
    assert [len(member.got) for member in members] == [1, 2]


def test_too_much_unacknowledged_stops_the_partition_and_no_other() -> None:
    bench, slow, quick = Bench("hash_topic", records_max=3), holding("m"), FakeMember("n")
    bench.join(slow)
    for position in (HERE, THERE):
        bench.group.gain(position, Mark(0))
    bench.feed(*(message(offset) for offset in range(5)))
    assert offsets(slow) == [0, 1, 2]
    slow.unacknowledged.pop((bench.group, HERE, 1))
    bench.group.acknowledged(slow, HERE, 1)
    assert offsets(slow) == [0, 1, 2, 3], "what is done above the low-water mark does not count"
    bench.feed(message(0, THERE), position=THERE)
    assert position_of(slow.got[-1]) == THERE
    slow.acknowledge(1)
    assert [delivery.offset for delivery in slow.got if position_of(delivery) == HERE] == [0, 1, 2, 3, 4]
    assert not quick.got


def test_members_that_never_acknowledge_do_not_stop_the_others() -> None:
    """They hold what they have room for; the mark stays at their first message and names the others."""
    bench, stuck, quick = (
        Bench("round_robin"),
        [holding(f"s{number}", room=20) for number in range(10)],
        FakeMember("q"),
    )
    bench.join(*stuck, quick)
    bench.group.gain(HERE, Mark(0))
    for start in range(0, 20_000, 100):
        bench.feed(*(message(offset) for offset in range(start, start + 100)))
    held = sorted(offset for member in stuck for offset in offsets(member))
    assert len(held) == 200
    assert len(quick.got) == 19_800
    mark = bench.group.marks()[HERE]
    assert decode_mark(mark) == (20_000, held)
    bench.group.lose([HERE])
    heir = Bench()
    heir.join(late := FakeMember("late"))
    heir.group.gain(HERE, mark)
    while (at := heir.group.wants(HERE)) is not None and at < 20_100:
        heir.group.feed(HERE, [message(offset) for offset in range(at, at + 100)], at + 100)
    assert offsets(late) == [*held, *range(20_000, 20_100)], "what was open and what is new, in order"


def test_what_is_unacknowledged_is_bounded_in_bytes() -> None:
    bench, member = Bench(bytes_max=1_000), holding("m")
    bench.join(member)
    bench.group.gain(HERE, Mark(0))
    bench.feed(*(message(offset, payload=b"x" * 600) for offset in range(4)))
    assert offsets(member) == [0, 1]
    member.acknowledge(1)
    assert offsets(member) == [0, 1, 2]


def test_a_member_that_leaves_gives_back_what_it_has_and_that_goes_first() -> None:
    bench, gone, heir = Bench("sticky"), holding("m", room=3), holding("n")
    bench.join(gone)
    bench.group.gain(HERE, Mark(0))
    bench.feed(*(message(offset) for offset in range(5)))
    gone.acknowledge(1)
    assert offsets(gone) == [0, 1, 2, 3]
    bench.group.leave(gone)
    assert bench.low_water() == 1
    bench.join(heir)
    assert offsets(heir) == [1, 2, 3, 4]
    bench.group.acknowledged(gone, HERE, 1)
    assert bench.low_water() == 1, "too late: it is not its any more"
    heir.acknowledge()
    assert bench.low_water() == 5


def test_what_is_given_back_goes_to_who_is_there_even_when_the_window_is_full() -> None:
    bench, gone, heir = Bench("round_robin", records_max=2), holding("m"), holding("n")
    bench.join(gone, heir)
    bench.group.gain(HERE, Mark(0))
    bench.feed(*(message(offset) for offset in range(3)))
    bench.group.leave(gone)
    assert offsets(heir) == [1, 0]


def test_what_nobody_has_room_for_holds_the_low_water_mark() -> None:
    bench, gone, full = Bench("round_robin"), holding("m"), holding("n", room=1)
    bench.join(full, gone)
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0), message(1), message(2))
    bench.group.leave(gone)
    full.room = 0
    full.acknowledge()
    assert (offsets(full), bench.low_water()) == ([0], 1)


def test_qos_2_that_was_sent_stays_with_its_member() -> None:
    """[MQTT5-4.8.2-4] [MQTT5-4.8.2-5]"""
    bench, gone, heir = Bench(), holding("m"), holding("n")
    bench.join(gone, qos=2)
    bench.group.gain(HERE, Mark(0))
    bench.feed(*(message(offset, qos=2) for offset in range(3)))
    bench.group.leave(gone, keeps={(HERE, 0), (HERE, 2), (THERE, 1)})
    bench.join(heir, qos=2)
    assert offsets(heir) == [1]
    heir.acknowledge()
    assert bench.low_water() == 3


def test_who_unsubscribes_gets_nothing_new_and_may_acknowledge() -> None:
    """[MQTT5-3.10.4-2] [MQTT5-3.10.4-3]"""
    bench, gone = Bench(), holding("m")
    bench.join(gone)
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0), message(1))
    bench.group.unsubscribe(gone)
    assert bench.group.has_held(gone)
    bench.feed(message(2))
    assert offsets(gone) == [0, 1]
    gone.acknowledge()
    assert not bench.group.has_held(gone)
    assert bench.low_water() == 2


def test_a_hash_names_another_member_when_its_own_has_unsubscribed_and_is_done() -> None:
    bench, gone, heir = Bench("hash_topic"), holding("m"), holding("n")
    bench.join(gone)
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0))
    bench.group.unsubscribe(gone)
    bench.join(heir)
    bench.feed(message(1))
    assert not heir.got, "0 is not done"
    gone.acknowledge()
    heir.acknowledge()
    assert (offsets(gone), offsets(heir)) == ([0], [1])
    assert bench.low_water() == 2


def test_a_member_that_raises_is_none_any_more() -> None:
    class Broken(FakeMember):
        def deliver_shared(self, delivery: Delivery, grant: Grant, group: ShareGroup) -> None:
            raise RuntimeError("planted")

    bench, broken, heir = Bench("round_robin"), Broken("m"), FakeMember("n")
    bench.join(broken, heir)
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0), message(1))
    assert offsets(heir) == [0, 1]
    assert list(bench.group.members) == [heir]
    assert bench.figure("member_errors") == 1


def test_nothing_is_handed_out_without_a_lease() -> None:
    bench, member = Bench(), FakeMember("m")
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0))
    bench.leased = False
    bench.join(member)
    assert not member.got
    assert bench.group.wants(HERE) is None
    bench.leased = True
    bench.group.hand_out()
    assert offsets(member) == [0]
    assert bench.group.wants(HERE) == 1


def test_a_partition_that_goes_is_not_handed_out_any_more() -> None:
    bench, member, heir = Bench(), holding("m", room=2), FakeMember("n")
    bench.join(member)
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0), message(1), message(2))
    bench.group.gain(THERE, Mark(0))
    bench.group.revoke([HERE, THERE])
    assert bench.group.wants(THERE) is None
    assert bench.group.has_open([HERE])
    bench.group.acknowledged(member, HERE, 0)
    bench.group.leave(member)
    bench.join(heir)
    assert not heir.got
    assert bench.low_water() == 1
    assert bench.group.wants(HERE) is None
    bench.group.lose([HERE])
    bench.group.gain(HERE, Mark(1))
    bench.feed(message(1), message(2))
    assert offsets(heir) == [1, 2]


def test_expired_while_it_waited() -> None:
    """I15 [MQTT5-3.3.2-5]"""
    bench, member = Bench(), holding("m", room=1)
    bench.join(member)
    bench.group.gain(HERE, Mark(0))
    bench.feed(*(message(offset, expiry_s=10) for offset in range(3)))
    bench.now_ms += 10_000
    member.acknowledge()
    assert offsets(member) == [0]
    assert bench.low_water() == 3
    assert bench.figure("expired") == 2


def test_what_came_back_may_have_expired() -> None:
    bench, member, heir = Bench(), holding("m"), FakeMember("n")
    bench.join(member)
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0, expiry_s=10), message(1))
    bench.group.leave(member)
    bench.now_ms += 10_000
    bench.join(heir)
    assert offsets(heir) == [1]
    assert bench.low_water() == 2


def test_a_dropped_buffer_is_read_again() -> None:
    bench, member = Bench(), holding("m", room=1)
    bench.join(member)
    bench.group.gain(HERE, Mark(0))
    bench.feed(*(message(offset) for offset in range(3)))
    assert bench.group.buffered_bytes == 2
    bench.group.drop_buffers()
    assert (bench.group.buffered_bytes, bench.group.wants(HERE), bench.low_water()) == (0, None, 0)
    member.acknowledge()
    assert bench.group.wants(HERE) == 1
    bench.feed(message(1))
    assert offsets(member) == [0, 1]


def test_a_dropped_buffer_is_not_read_while_the_window_is_full() -> None:
    bench, member = Bench(records_max=1), holding("m")
    bench.join(member)
    bench.group.gain(HERE, Mark(0))
    bench.feed(message(0), message(1))
    bench.group.drop_buffers()
    bench.group.hand_out()
    assert bench.group.wants(HERE) is None
    member.acknowledge()
    assert bench.group.wants(HERE) == 1


def test_a_log_that_begins_later() -> None:
    bench, member = Bench(), FakeMember("m")
    bench.join(member)
    bench.group.gain(HERE, Mark(0))
    bench.group.skip_to(HERE, 50)
    assert (bench.group.wants(HERE), bench.low_water(), bench.figure("truncated_records")) == (50, 50, 50)


PLACES = st.sampled_from([HERE, THERE])


class GroupMachine(RuleBasedStateMachine):
    """Members and partitions come and go while messages come; checked after every step against what a log knows."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[Position, list[Delivery]] = {("t", at): [] for at in range(2)}
        self.committed = dict.fromkeys(self.logs, Mark(0))
        self.done: set[tuple[Position, int]] = set()
        self.given_back: Counter[tuple[Position, int]] = Counter()
        self.times: Counter[tuple[Position, int]] = Counter()
        self.members: list[CheckingMember] = []
        self.unsubscribed: list[CheckingMember] = []
        self.numbers = 0
        self.faults: list[str] = []  # what members saw: the group would log what they raise

    @initialize(strategy=st.sampled_from(STRATEGIES), records_max=st.integers(1, 12))
    def begin(self, strategy: str, records_max: int) -> None:
        self.by_key = strategy in HASHES
        self.records_max = records_max
        self.bench = Bench(strategy, records_max=records_max)
        for position in self.logs:
            self.bench.group.gain(position, Mark(0))

    @rule(position=PLACES, kinds=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 1, 2])), max_size=6))
    def publish(self, position: Position, kinds: list[tuple[int, int]]) -> None:
        log = self.logs[position]
        for key, qos in kinds:
            log.append(message(len(log), position, topic_name=f"{position[1]}/{key}", qos=qos))
        self.read(8)

    @rule(count=st.integers(1, 8))
    def read(self, count: int) -> None:
        for position in list(self.bench.group.positions):
            at = self.bench.group.wants(position)
            if at is not None and (records := self.logs[position][at : at + count]):
                self.bench.group.feed(position, records, at + len(records))

    @rule(room=st.integers(0, 4), qos=st.integers(1, 2))
    def join(self, room: int, qos: int) -> None:
        if len(self.members) < 6:
            self.numbers += 1
            member = CheckingMember(self, f"m{self.numbers}", room)
            self.members.append(member)
            self.bench.join(member, qos=qos)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        self._gone(member, data.draw(st.booleans()))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        self.unsubscribed.append(member)
        self.bench.group.unsubscribe(member)

    @precondition(lambda self: self.unsubscribed)
    @rule(data=st.data())
    def unsubscribed_one_leaves(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.unsubscribed))
        self.unsubscribed.remove(member)
        self._gone(member, keeps_qos_2=False)

    @rule(data=st.data(), count=st.integers(1, 5))
    def acknowledge(self, data: st.DataObject, count: int) -> None:
        holders = [member for member in self.members + self.unsubscribed if member.unacknowledged]
        if holders:
            member = data.draw(st.sampled_from(holders))
            for held in data.draw(st.permutations(list(member.unacknowledged)))[:count]:
                member.finish(held)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), room=st.integers(0, 6))
    def resize(self, data: st.DataObject, room: int) -> None:
        data.draw(st.sampled_from(self.members)).room = room
        self.bench.group.hand_out()

    @rule()
    def commit(self) -> None:
        self.committed |= self.bench.group.marks()

    @rule(position=PLACES, clean=st.booleans())
    def lose_and_gain(self, position: Position, clean: bool) -> None:
        if clean:
            self.bench.group.revoke([position])
            self.commit()
        self._lost(position)
        self.bench.group.lose([position])
        self.bench.group.gain(position, self.committed[position])

    @rule()
    def drop_buffers(self) -> None:
        self.bench.group.drop_buffers()

    @rule(leased=st.sampled_from([True, True, True, False]))
    def lease(self, leased: bool) -> None:
        self.bench.leased = leased
        if leased:
            self.bench.group.hand_out()

    @invariant()
    def nothing_unacknowledged_lies_below_a_low_water_mark(self) -> None:  # I16
        if hasattr(self, "bench"):
            for position, mark in self.bench.group.marks().items():
                frontier, opened = decode_mark(mark)
                done = (offset for offset in range(frontier) if offset not in opened)
                assert all((position, offset) in self.done for offset in done), (position, mark)

    @invariant()
    def members_saw_nothing_wrong(self) -> None:
        assert self.faults == []
        if hasattr(self, "bench"):
            assert self.bench.figure("member_errors") == 0

    @invariant()
    def windows_are_bounded(self) -> None:
        for position in self.logs:
            held = [
                at for member in self.members + self.unsubscribed for at in member.unacknowledged if at[1] == position
            ]
            assert not held or len(held) <= self.records_max

    def teardown(self) -> None:
        """Everything heals: all is delivered and acknowledged."""
        if not hasattr(self, "bench"):
            return
        self.bench.leased = True
        for member in self.unsubscribed:
            self._gone(member, keeps_qos_2=False)
        self.unsubscribed.clear()
        heir = CheckingMember(self, "heir", 3)
        self.members.append(heir)
        self.bench.join(heir)
        for member in self.members:
            member.room = max(member.room, 1)
        for _ in range(4 * sum(map(len, self.logs.values())) + 4):
            self.bench.group.hand_out()
            self.read(5)
            for member in self.members:
                for held in list(member.unacknowledged):
                    member.finish(held)
        assert self.bench.group.marks() == {position: Mark(len(log)) for position, log in self.logs.items()}
        for position, log in self.logs.items():
            for delivery in log:
                assert self.times[position, delivery.offset] >= 1, "never delivered"
        self.members_saw_nothing_wrong()
        if self.by_key:
            assert not self.bench.group._strategy._pinned  # type: ignore[attr-defined]

    def _gone(self, member: CheckingMember, keeps_qos_2: bool) -> None:
        held = {(position, offset): delivery for (_, position, offset), delivery in member.unacknowledged.items()}
        keeps = {place for place, delivery in held.items() if delivery.qos == 2 and keeps_qos_2}
        self.done |= keeps
        self.given_back.update(held.keys() - keeps)
        member.unacknowledged.clear()
        self.bench.group.leave(member, keeps)

    def _lost(self, position: Position) -> None:
        frontier, opened = decode_mark(self.committed[position])
        for offset in [*opened, *range(frontier, len(self.logs[position]))]:
            self.given_back[position, offset] += 1
        for member in self.members + self.unsubscribed:
            for held in [held for held in member.unacknowledged if held[1] == position]:
                del member.unacknowledged[held]


class CheckingMember(FakeMember):
    """Checks every message that it gets."""

    def __init__(self, machine: GroupMachine, client_id: str, room: int) -> None:
        super().__init__(client_id, room, acknowledges=False)
        self.machine = machine

    def deliver_shared(self, delivery: Delivery, grant: Grant, group: ShareGroup) -> None:
        machine, place = self.machine, place_of(delivery)
        machine.times[place] += 1
        self._check(self in machine.members, f"{place} to no member")
        self._check(machine.bench.leased, f"{place} without a lease")
        self._check(machine.times[place] <= 1 + machine.given_back[place], f"{place} to two without a reason")
        if machine.by_key:
            self._check_order(delivery)
        super().deliver_shared(delivery, grant, group)
        if not delivery.qos:
            machine.done.add(place)

    def finish(self, held: Any) -> None:
        group, position, offset = held
        del self.unacknowledged[held]
        self.machine.done.add((position, offset))
        group.acknowledged(self, position, offset)

    def _check_order(self, delivery: Delivery) -> None:
        """Nobody else has earlier ones of the key, and none of them is later."""
        for member in self.machine.members + self.machine.unsubscribed:
            for held in member.unacknowledged.values():
                if held.topic_name_utf8 == delivery.topic_name_utf8:
                    self._check(member is self, f"{delivery!r} while {member} has {held!r}")
                    self._check(held.offset < delivery.offset, f"{delivery!r} after {held!r}")

    def _check(self, holds: bool, fault: str) -> None:
        if not holds:
            self.machine.faults.append(fault)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
