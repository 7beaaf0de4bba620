"""The view of the retained messages and the search over its names: pure, against brute force."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.retained_names import BLOCK_NAMES_MAX, NamePattern, SortedNames
from bridge.retained_view import CLEARED_KEPT_MS, CLEARED_MAX, RetainedView, retained_delivery
from schemas.retained import RetainedMessage
from schemas.topics import check_topic_filter, matches

LEVELS = st.sampled_from(["a", "b", "ab", "a-b", "a.b", "", "$s", "é", "0", "~"])
NAMES = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
FILTERS = st.tuples(st.lists(LEVELS | st.just("+"), max_size=4), st.sampled_from([[], ["#"]])).map(
    lambda parts: "/".join(parts[0] + parts[1])
)


def message(name: str, offset: int, value: bytes | None = b"x", expiry_s: int | None = None) -> RetainedMessage:
    headers = (("mqtt.expiry_s", b"%d" % expiry_s),) if expiry_s is not None else ()
    return RetainedMessage(name.encode(), value, headers, "mqtt.messages", 0, offset, 1_000 + offset)


def search_all(names: SortedNames, topic_filter: str, names_max: int = 1_000, visits_max: int = 1_000) -> list[bytes]:
    pattern = NamePattern(topic_filter)
    found: list[bytes] = []
    key: bytes | None = pattern.start
    for _ in range(100_000):
        if key is None:
            return found
        before = key
        part, key = names.search(pattern, key, names_max, visits_max)
        assert len(part) <= names_max
        assert key is None or key > before or not part
        found += part
    raise AssertionError("the search does not end")


@settings(max_examples=500)
@given(st.sets(NAMES, max_size=40), FILTERS.filter(bool), st.integers(1, 5), st.integers(1, 5))
def test_a_search_finds_what_brute_force_finds(names: set[str], topic_filter: str, few: int, visits: int) -> None:
    """In order, each once, in slices of any size; `$` rules included [MQTT5-4.7.2-1] [MQTT311-4.7.2-1]."""
    check_topic_filter(topic_filter)
    held = SortedNames()
    for name in names:
        held.add(name.encode())
    wanted = sorted(name.encode() for name in names if matches(topic_filter, name))
    assert search_all(held, topic_filter) == wanted
    assert search_all(held, topic_filter, few, visits) == wanted
    pattern = NamePattern(topic_filter)
    assert {name for name in names if pattern.matches(name.encode())} == {name.decode() for name in wanted}


def test_names_come_and_go_during_a_search() -> None:
    """What is there all the time is found once."""
    names = SortedNames()
    for number in range(0, 5_000, 2):
        names.add(b"n/%05d" % number)
    pattern, found = NamePattern("n/+"), []
    key: bytes | None = pattern.start
    dice = random.Random(4)
    odd: set[int] = set()
    while key is not None:
        part, key = names.search(pattern, key, 7, 20)
        found += part
        for _ in range(5):
            number = dice.randrange(1, 5_000, 2)
            if number in odd:
                names.remove(b"n/%05d" % number)
                odd.discard(number)
            else:
                names.add(b"n/%05d" % number)
                odd.add(number)
    assert [name for name in found if int(name[2:]) % 2 == 0] == [b"n/%05d" % number for number in range(0, 5_000, 2)]
    assert len(found) == len(set(found))


def test_blocks_split_and_go() -> None:
    names = SortedNames()
    numbers = list(range(3 * BLOCK_NAMES_MAX))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        names.add(b"%06d" % number)
    assert len(names) == len(numbers)
    assert search_all(names, "#") == [b"%06d" % number for number in sorted(numbers)]
    for number in numbers:
        names.remove(b"%06d" % number)
    assert (len(names), search_all(names, "#")) == (0, [])


def test_a_filter_visits_only_what_it_may_match() -> None:
    """100,000 names: a filter jumps to its part, also when the wildcard comes first."""
    names = SortedNames()
    for site in range(100):
        for device in range(1_000):
            names.add(b"s/%02d/%03d/t" % (site, device))
    for topic_filter, count, visits in (
        ("s/07/+/t", 1_000, 1_010),
        ("s/+/500/t", 100, 310),
        ("s/07/500/#", 1, 3),
        ("+/+/+/x", 0, 100_010),
        ("x/#", 0, 2),
    ):
        pattern = NamePattern(topic_filter)
        found, key = names.search(pattern, pattern.start, 100_000, visits)
        assert (len(found), key) == (count, None), topic_filter


SAMPLES = st.lists(
    st.builds(message, st.sampled_from(["a", "b"]), st.integers(0, 9), st.sampled_from([b"x", b"y", None])),
    max_size=12,
    unique_by=lambda each: (each.topic_name_utf8, each.offset),
)


@given(SAMPLES, st.randoms(use_true_random=False))
def test_any_order_of_landing_ends_with_the_highest_position(
    records: list[RetainedMessage], dice: random.Random
) -> None:
    """Invariant I9; and with the repairs that it asks for, compaction ends there, too."""
    dice.shuffle(records)
    view = RetainedView()
    log = list(records)
    for record in log:
        view.apply(record)
    highest = {record.topic_name_utf8: record for record in sorted(records, key=lambda each: each.offset)}
    wanted = {name: (each.value, ("mqtt.messages", 0, each.offset)) for name, each in highest.items() if each.value}
    assert view.snapshot() == wanted
    for name in list(view.misplaced):
        repair = view.latest(name)
        assert repair is not None
        log.append(repair)
        view.apply(repair)
    assert not view.misplaced
    compacted = RetainedView()
    for record in {record.topic_name_utf8: record for record in log}.values():
        compacted.apply(record)
    assert compacted.snapshot() == view.snapshot() == wanted


def test_an_older_one_does_not_come_back_behind_its_tombstone() -> None:
    view = RetainedView()
    assert view.apply(message("a", 1)) == "stored"
    assert view.apply(message("a", 3, None)) == "cleared"
    assert view.apply(message("a", 2)) == "older"
    assert view.misplaced == {b"a"}
    assert view.apply(message("a", 3, None)) == "same"
    assert (view.misplaced, len(view)) == (set(), 0)


def test_expiry_counts_on_while_stored() -> None:
    """[MQTT5-3.3.2-5]"""
    view = RetainedView()
    view.apply(message("a", 0, expiry_s=10))
    view.apply(message("b", 1))
    view.apply(message("a", 2, expiry_s=20))  # replaces, and with it the older expiry
    assert view.get(b"a", 21_001) is not None
    assert view.get(b"a", 21_002) is None
    assert view.expire(21_001) == 0
    assert view.expire(21_002) == 1
    assert (view.misplaced, len(view)) == ({b"a"}, 1)
    tombstone = view.latest(b"a")
    assert tombstone is not None
    assert tombstone.value is None
    assert view.apply(message("a", 2, expiry_s=20)) == "older"
    assert view.apply(tombstone) == "same"


def test_expiries_of_replaced_messages_do_not_pile_up() -> None:
    view = RetainedView()
    for offset in range(10_000):
        view.apply(message("a", offset, expiry_s=1_000_000))
    assert len(view._expiries) < 2_000


def test_a_full_view_refuses_new_names_only() -> None:
    view = RetainedView(messages_max=2, bytes_max=10)
    assert [view.apply(message(name, 0)) for name in ("a", "b", "c")] == ["stored", "stored", "refused"]
    assert not view.has_room_for(b"c", 1)
    assert view.has_room_for(b"a", 1_000)
    assert view.apply(message("a", 1, b"y")) == "stored"
    assert view.apply(message("b", 1, None)) == "cleared"
    assert view.apply(message("c", 1)) == "stored"
    view = RetainedView(bytes_max=10)
    assert view.apply(message("a", 0, b"x" * 9)) == "stored"
    assert view.apply(message("b", 0)) == "refused"


def test_bytes_come_back_to_zero() -> None:
    view = RetainedView()
    for name in ("a", "b"):
        for offset in range(5):
            view.apply(message(name, offset, b"x" * offset or b"y", expiry_s=offset))
        view.apply(message(name, 9, None))
    assert view.statistics()["bytes"] == 0
    assert view.statistics()["messages"] == 0


def test_what_was_cleared_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    view = RetainedView()
    view.apply(message("a", 0, None))
    view.forget_cleared(CLEARED_KEPT_MS)
    assert view.latest(b"a") is not None
    view.forget_cleared(CLEARED_KEPT_MS + 1_000)
    assert view.latest(b"a") is None
    for number in range(CLEARED_MAX + 10):
        view.apply(message(str(number), 0, None))
    view.forget_cleared(0)
    assert view.statistics()["cleared_remembered"] == CLEARED_MAX
    assert view.latest(b"0") is None


def test_a_delivery_has_retain_1_and_the_messages_own_time() -> None:
    """[MQTT311-3.3.1-8]"""
    headers = (("mqtt.client_id", b"dev"), ("mqtt.qos", b"0"), ("mqtt.expiry_s", b"60"), ("content-type", b"t"))
    delivery = retained_delivery(RetainedMessage(b"a", b"x", headers, "mqtt.messages", 1, 2, 5_000))
    assert (delivery.retain, delivery.qos, delivery.client_id) == (True, 0, "dev")
    assert delivery.remaining_expiry_s(25_000) == 40
    assert delivery.properties is not None
    assert delivery.properties.content_type == "t"
