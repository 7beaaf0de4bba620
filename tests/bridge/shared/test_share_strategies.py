"""The seven strategies: whom they choose, whom they skip, and that nobody starves."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.delivery import Delivery
from bridge.shared.strategies import LOOKED_AT_MAX, STRATEGIES, Candidate, Local, Strategy, make_strategy
from schemas.errors import ConfigurationError


class Member:
    def __init__(self, client_id: str, inflight: int = 0, room: int = 1_000) -> None:
        self.client_id = client_id
        self.inflight = inflight
        self.room = room

    def __repr__(self) -> str:
        return self.client_id

    def has_room(self) -> bool:
        return self.inflight < self.room


def delivery(topic_name: str = "a", client_id: str = "p") -> Delivery:
    return Delivery(topic_name.encode(), b"", 1, False, client_id, None, 0, (), None, "t", 0, 0)


def made(name: str, seed: int = 1) -> Strategy:
    return make_strategy(name, random.Random(seed).randrange)


def members(count: int = 3) -> list[Member]:
    return [Member(f"m{number}") for number in range(count)]


def chosen(strategy: Strategy, among: list[Member], message: Delivery | None = None) -> Candidate | None:
    return strategy.choose(among, message or delivery())


def test_an_unknown_name_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"no strategy 'fair'.*least_inflight.*local"):
        made("fair")


@pytest.mark.parametrize("name", STRATEGIES)
def test_without_members_and_without_room_the_message_waits(name: str) -> None:
    full = members()
    for member in full:
        member.room = 0
    strategy = made(name)
    assert chosen(strategy, []) is None
    strategy.members_changed()
    assert chosen(strategy, full) is None


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"hash_topic", "hash_client_id"}))
@given(st.lists(st.booleans(), min_size=1, max_size=100), st.integers(0, 5))
def test_a_member_with_room_is_found(name: str, rooms: list[bool], before: int) -> None:
    among = [Member(f"m{number}", room=int(room)) for number, room in enumerate(rooms)]
    strategy = made(name)
    for _ in range(before + 1):
        found = chosen(strategy, among)
        assert (found is not None and found.has_room()) == any(rooms)


def test_round_robin_goes_round_and_skips_who_is_full() -> None:
    among, strategy = members(4), made("round_robin")
    among[2].room = 0
    assert [str(chosen(strategy, among)) for _ in range(7)] == ["m0", "m1", "m3", "m0", "m1", "m3", "m0"]


def test_random_is_repeatable_and_fair() -> None:
    among = members(4)
    strategies = made("random", 7), made("random", 7)
    counts: Counter[str] = Counter()
    for _ in range(4_000):
        one, other = (chosen(strategy, among) for strategy in strategies)
        assert one is other
        counts[str(one)] += 1
    assert all(800 < count < 1_200 for count in counts.values())


def test_sticky_stays_until_its_member_is_full_or_gone() -> None:
    among, strategy = members(), made("sticky")
    assert {str(chosen(strategy, among)) for _ in range(5)} == {"m0"}
    among[0].room = 0
    assert {str(chosen(strategy, among)) for _ in range(5)} == {"m1"}
    among[0].room = 1_000
    assert str(chosen(strategy, among)) == "m1"
    del among[1]
    strategy.members_changed()
    assert str(chosen(strategy, among)) in {"m0", "m2"}


def test_least_inflight_takes_the_least_busy_and_of_equals_one_after_the_other() -> None:
    among, strategy = members(), made("least_inflight")
    among[1].inflight = 5
    assert [str(chosen(strategy, among)) for _ in range(4)] == ["m0", "m2", "m0", "m2"]
    among[0].inflight = among[2].inflight = 6
    assert str(chosen(strategy, among)) == "m1"


@pytest.mark.parametrize("name", ["least_inflight", "round_robin", "local"])
@given(st.integers(1, 200), st.lists(st.integers(0, 199), max_size=300))
def test_nobody_starves(name: str, count: int, done: list[int]) -> None:
    """Whatever order they acknowledge in."""
    among, strategy = members(count), made(name)
    got: Counter[str] = Counter()
    for step in range(3 * count):
        member = chosen(strategy, among)
        assert isinstance(member, Member)
        member.inflight += 1
        got[member.client_id] += 1
        if step < len(done) and (other := among[done[step] % count]).inflight:
            other.inflight -= 1
    assert all(got[member.client_id] for member in among)


def test_a_large_group_is_not_looked_through_per_message() -> None:
    looked_at = 0

    class Counting(Member):
        def has_room(self) -> bool:
            nonlocal looked_at
            looked_at += 1
            return True

    among: list[Member] = [Counting(f"m{number}") for number in range(10_000)]
    strategy = made("least_inflight")
    got = {chosen(strategy, among) for _ in range(10_000)}
    assert looked_at <= LOOKED_AT_MAX * 10_000
    assert len(got) == 10_000


def test_local_prefers_the_near_ones_that_have_room() -> None:
    among = members()
    near = {"m1"}
    strategy = Local(lambda member, _: member.client_id in near)
    among[1].inflight = 9
    assert str(chosen(strategy, among)) == "m1"
    among[1].room = 0
    assert str(chosen(strategy, among)) in {"m0", "m2"}


@pytest.mark.parametrize(("name", "by"), [("hash_topic", "topic_name"), ("hash_client_id", "client_id")])
def test_a_key_has_its_member_and_waits_for_it(name: str, by: str) -> None:
    among, strategy = members(5), made(name)
    keys = [delivery(**{by: f"key{number}"}) for number in range(200)]
    first = [chosen(strategy, among, key) for key in keys]
    assert [chosen(strategy, among, key) for key in keys] == first
    assert len(set(first)) == 5
    among[2].room = 0
    now = [chosen(strategy, among, key) for key in keys]
    assert all(
        after is None if before is among[2] else after is before for before, after in zip(first, now, strict=True)
    )


def test_a_member_that_leaves_moves_only_its_own_keys() -> None:
    among, strategy = members(5), made("hash_topic")
    keys = [delivery(f"key{number}") for number in range(200)]
    first = [chosen(strategy, among, key) for key in keys]
    gone = among.pop(1)
    strategy.members_changed()
    now = [chosen(strategy, among, key) for key in keys]
    assert all(after is before for before, after in zip(first, now, strict=True) if before is not gone)


def test_a_key_moves_only_when_nothing_of_it_is_unacknowledged() -> None:
    among, strategy = members(1), made("hash_topic")
    keys = [delivery(f"key{number}") for number in range(50)]
    for key in keys:
        strategy.handed(among[0], key)
        strategy.handed(among[0], key)
    among += members(4)[1:]
    strategy.members_changed()
    assert {chosen(strategy, among, key) for key in keys} == {among[0]}
    for key in keys:
        strategy.settled(among[0], key)
    assert {chosen(strategy, among, key) for key in keys} == {among[0]}
    for key in keys:
        strategy.settled(among[0], key)
    assert len({chosen(strategy, among, key) for key in keys}) == 4
