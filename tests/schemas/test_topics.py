"""Topic Names and Topic Filters: section 4.7's rules, and the relations of filters against brute force."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import HeadwaterError, TopicError
from schemas.topics import (
    SharedFilter,
    check_topic_filter,
    check_topic_name,
    covers,
    has_wildcard,
    matches,
    overlaps,
    parse_shared,
)

# Brute force over a small world: filters of up to 3 levels, names of up to 4. "z" is in no filter: it stands for the
# infinitely many texts that no filter spells. 4 levels are enough: '#' is at most the third.
FILTER_LEVELS = ["a", "", "$x", "+"]
NAME_LEVELS = ["a", "", "$x", "z", "$z"]
NAMES = ["/".join(levels) for length in (1, 2, 3, 4) for levels in itertools.product(NAME_LEVELS, repeat=length)]
NAMES.remove("")
FILTERS = [
    "/".join([*levels, *tail])
    for length in (0, 1, 2, 3)
    for levels in itertools.product(FILTER_LEVELS, repeat=length)
    for tail in ([], ["#"])
    if length + len(tail) <= 3
]
FILTERS = [topic_filter for topic_filter in FILTERS if topic_filter]


@pytest.mark.parametrize(
    ("topic_filter", "topic_name", "wanted"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "sport", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor/Clients", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor/Clients", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("+/$SYS", "a/$SYS", True),
        ("ACCOUNTS", "Accounts", False),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a//c", True),
        ("a/+/c/#", "a/b/c", True),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("\u0041\u030a", "\u00c5", False),  # no normalisation [MQTT5-4.7.3-4]
        ("\ufeffa", "a", False),  # a leading U+FEFF is a character [MQTT5-1.5.4-3]
    ],
)
def test_matches_the_specifications_examples(topic_filter: str, topic_name: str, wanted: bool) -> None:
    assert matches(topic_filter, topic_name) is wanted


@pytest.fixture(scope="module")
def matched() -> dict[str, frozenset[str]]:
    """What each filter of the small world matches there."""
    return {f: frozenset(name for name in NAMES if matches(f, name)) for f in FILTERS}


def test_overlaps_equals_brute_force(matched: dict[str, frozenset[str]]) -> None:
    for left, right in itertools.product(FILTERS, repeat=2):
        assert overlaps(left, right) is not matched[left].isdisjoint(matched[right]), (left, right)


def test_covers_equals_brute_force(matched: dict[str, frozenset[str]]) -> None:
    for left, right in itertools.product(FILTERS, repeat=2):
        assert covers(left, right) is (matched[right] <= matched[left]), (left, right)


@given(st.sampled_from(FILTERS), st.sampled_from(NAMES))
def test_a_name_is_a_filter_of_itself(topic_filter: str, topic_name: str) -> None:
    assert overlaps(topic_filter, topic_name) is covers(topic_filter, topic_name) is matches(topic_filter, topic_name)


LEVELS = st.text(st.characters(exclude_characters="/+#\0", exclude_categories=["Cs"]), max_size=3)


@given(st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=5).map("/".join).filter(bool), st.booleans())
def test_a_filter_covers_what_is_made_from_it(topic_filter: str, more: bool) -> None:
    check_topic_filter(topic_filter)
    assert covers(topic_filter, topic_filter)
    assert covers(topic_filter + "/#", topic_filter)
    assert not covers(topic_filter, topic_filter + "/#") or topic_filter == ""
    topic_name = topic_filter.replace("+", "x") + ("/y" if more else "")
    check_topic_name(topic_name)
    assert matches(topic_filter + "/#", topic_name)


@pytest.mark.parametrize(
    "topic_name", ["a", "/", "//", "a/b", " ", "é", "\ufeff", "$SYS/x", "a" * 65_535, "\U0001f30a"]
)
def test_good_names(topic_name: str) -> None:
    check_topic_name(topic_name)


@pytest.mark.parametrize(
    ("topic_name", "message"),
    [
        ("", "empty"),
        ("a\0", "U+0000"),
        ("a/+", "wildcard"),
        ("#", "wildcard"),
        ("\ud800", "surrogate"),
        ("a" * 65_536, "65535 bytes"),
        ("é" * 32_768, "65535 bytes"),
    ],
)
def test_bad_names(topic_name: str, message: str) -> None:
    with pytest.raises(TopicError) as caught:
        check_topic_name(topic_name)
    assert message in str(caught.value)
    assert isinstance(caught.value, HeadwaterError)


@pytest.mark.parametrize("topic_filter", ["#", "+", "+/+", "/#", "a/#", "a/+/b", "+/#", "$SYS/#", "/", "$share/g/a/#"])
def test_good_filters(topic_filter: str) -> None:
    check_topic_filter(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "message"),
    [
        ("", "empty"),
        ("a/#/b", "last level"),
        ("#/", "last level"),
        ("##", "whole level"),
        ("a#", "whole level"),
        ("a/b#", "whole level"),
        ("a+", "whole level"),
        ("a/+b/c", "whole level"),
        ("++", "whole level"),
        ("a\0", "U+0000"),
        ("\udfff/#", "surrogate"),
        ("a" * 65_536, "65535 bytes"),
        ("$share/g", "no Topic Filter"),
        ("$share/g/", "no Topic Filter"),
        ("$share//a", "share name is empty"),
        ("$share/", "share name is empty"),
        ("$share/+/a", "wildcard"),
        ("$share/g#/a", "wildcard"),
        ("$share/g/a#", "whole level"),
    ],
)
def test_bad_filters(topic_filter: str, message: str) -> None:
    with pytest.raises(TopicError) as caught:
        check_topic_filter(topic_filter)
    assert message in str(caught.value)


def test_limits() -> None:
    check_topic_name("a/b/c", levels_max=3, bytes_max=5)
    check_topic_filter("$share/group/a/b/#", levels_max=3)
    with pytest.raises(TopicError, match="more than 2 levels"):
        check_topic_name("a/b/c", levels_max=2)
    with pytest.raises(TopicError, match="more than 2 levels"):
        check_topic_filter("a/b/#", levels_max=2)
    with pytest.raises(TopicError, match="longer than 3 bytes"):
        check_topic_name("éé", bytes_max=3)


def test_shared_filters() -> None:
    assert parse_shared("$share/g/a/+") == SharedFilter("g", "a/+")
    assert parse_shared("$share/g//") == SharedFilter("g", "/")
    assert parse_shared("a/b") is None
    assert parse_shared("$share") is None
    assert parse_shared("$shared/g/a") is None


def test_has_wildcard() -> None:
    assert has_wildcard("a/+")
    assert has_wildcard("#")
    assert not has_wildcard("a/b")
