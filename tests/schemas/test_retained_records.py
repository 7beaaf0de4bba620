"""The record layout of `headwater.retained`, and which of two retained messages counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RecordError
from schemas.retained import MADE_ANEW_MS, RetainedMessage, decode_retained, encode_retained, own_headers

HEADERS = (("mqtt.client_id", b"dev"), ("mqtt.qos", b"0"), ("mqtt.expiry_s", b"60"), ("mqtt.user.k", b"v"))


def message(value: bytes | None = b"x", offset: int = 7, partition: int = 3, timestamp: int = 1_000) -> RetainedMessage:
    return RetainedMessage(b"a/b", value, HEADERS if value else (), "mqtt.messages", partition, offset, timestamp)


def read_back(written: RetainedMessage) -> RetainedMessage:
    key, value, headers = encode_retained(written)
    return decode_retained(key, value, headers, 99, 99)


def test_a_message_comes_back_with_its_position() -> None:
    key, value, headers = encode_retained(message())
    assert (key, value) == (b"a/b", b"x")
    assert headers == [
        ("mqtt.topic", b"a/b"),
        *HEADERS,
        ("mqtt.retain", b"1"),
        ("headwater.source", b"mqtt.messages/3/7"),
        ("headwater.appended_ms", b"1000"),
    ]
    again = read_back(message())
    assert again.is_same_as(message())
    assert (again.headers, again.value, again.timestamp, again.expiry_ms) == (HEADERS, b"x", 1_000, 61_000)


def test_a_tombstone_has_a_null_value_and_its_position() -> None:
    """[MQTT5-3.3.1-7]: an empty payload is never stored."""
    _, value, headers = encode_retained(message(b""))
    assert value is None
    assert dict(headers)["headwater.source"] == b"mqtt.messages/3/7"
    assert read_back(message(b"")).is_same_as(message(None))


def test_a_tombstone_of_a_kafka_tool_clears_by_time() -> None:
    tool = decode_retained(b"a/b", None, (), 2_000, 5)
    assert tool.is_newer_than(message(timestamp=1_000))
    assert message(timestamp=3_000).is_newer_than(tool)
    assert "headwater.source" not in dict(encode_retained(tool)[2])


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (None, ()),
        (b"", ()),
        (b"a/#", ()),
        (b"\xff", ()),
        (b"a", [("headwater.source", b"mqtt.messages/3")]),
        (b"a", [("headwater.source", b"bad topic/3/4")]),
        (b"a", [("headwater.appended_ms", b"-1")]),
        (b"a", [("headwater.appended_ms", b"9" * 20)]),
        (b"a", [("mqtt.topic", b"other")]),
        (b"a", [("mqtt.qos", b"3")]),
        (b"a", [("mqtt.user.k", b"\xff")]),
    ],
)
def test_what_cannot_be_read_is_said(key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    with pytest.raises(RecordError):
        decode_retained(key, b"x", headers, 0, 0)


def test_null_headers_are_absent_ones() -> None:
    assert decode_retained(b"a", b"x", [("mqtt.qos", None), ("headwater.source", None)], 5, 6).timestamp == 5


def test_own_headers_are_what_the_record_does_not_imply() -> None:
    assert own_headers([("mqtt.topic", b"a"), ("mqtt.retain", b"1"), *HEADERS]) == HEADERS


def test_the_higher_offset_counts_whatever_the_clocks_say() -> None:
    older, newer = message(offset=5, timestamp=9_000), message(offset=6, timestamp=1_000)
    assert newer.is_newer_than(older)
    assert not older.is_newer_than(newer)


def test_after_a_resize_the_later_append_counts() -> None:
    older, newer = message(offset=500, partition=3, timestamp=1_000), message(offset=2, partition=4, timestamp=1_001)
    assert newer.is_newer_than(older)
    assert not older.is_newer_than(newer)


def test_a_kafka_topic_that_was_made_anew_begins_at_0_and_counts() -> None:
    older, newer = message(offset=5_000), message(offset=0, timestamp=1_001 + MADE_ANEW_MS)
    assert newer.is_newer_than(older)
    assert not older.is_newer_than(newer)


def test_at_one_position_the_tombstone_counts() -> None:
    """That is how an expired message is cleared."""
    assert message().cleared().is_newer_than(message())
    assert not message().is_newer_than(message().cleared())
    assert not message().is_newer_than(message())


MESSAGES = st.builds(
    message,
    st.sampled_from([b"x", b"y", None]),
    st.integers(0, 4),
    st.integers(0, 2),
    st.integers(0, 3),
)


@given(MESSAGES, MESSAGES)
def test_of_two_different_ones_exactly_one_counts(one: RetainedMessage, other: RetainedMessage) -> None:
    """Of two sources at one time what landed later does; `is_newer_than` is asked of that one."""
    is_same_place = (one.kafka_topic, one.partition) == (other.kafka_topic, other.partition) and one.partition >= 0
    if one.is_same_as(other):
        assert not one.is_newer_than(other)
        assert not other.is_newer_than(one)
    else:
        is_tie = not is_same_place and one.timestamp == other.timestamp
        assert one.is_newer_than(other) != other.is_newer_than(one) or is_tie
