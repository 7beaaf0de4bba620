"""The record layout: round trip, defaults, records of plain Kafka producers, and what cannot be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import records
from schemas.errors import RecordError
from schemas.message import Message
from schemas.records import decode_headers, decode_record, encode_headers

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
NAMES = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=12)
MESSAGES = st.builds(
    Message,
    NAMES,
    st.binary(max_size=20),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    client_id=TEXTS,
    expiry_s=st.none() | st.integers(0, 0xFFFF_FFFF),
    payload_format=st.none() | st.integers(0, 1),
    content_type=st.none() | TEXTS,
    response_topic=st.none() | NAMES,
    correlation_data=st.none() | st.binary(max_size=8),
    user_properties=st.lists(st.tuples(TEXTS, TEXTS), max_size=4).map(tuple),
)


def no_name(key: bytes | None) -> str | None:
    raise AssertionError("the header names the topic")


@given(MESSAGES)
def test_round_trip(message: Message) -> None:
    assert decode_record(b"key", message.payload, encode_headers(message), no_name) == message


def test_headers_are_the_documented_ones() -> None:
    """The names and values that DESIGN 2 promises to every other Kafka client."""
    message = Message(
        "a/b",
        b"",
        qos=2,
        retain=True,
        client_id="dev",
        expiry_s=60,
        payload_format=1,
        content_type="text/plain",
        response_topic="r",
        correlation_data=b"\x00\xff",
        user_properties=(("k", "1"), ("other", "é"), ("k", "2")),
    )
    assert encode_headers(message) == [
        ("mqtt.topic", b"a/b"),
        ("mqtt.qos", b"2"),
        ("mqtt.retain", b"1"),
        ("mqtt.client_id", b"dev"),
        ("mqtt.expiry_s", b"60"),
        ("mqtt.payload_format", b"1"),
        ("content-type", b"text/plain"),
        ("mqtt.response_topic", b"r"),
        ("mqtt.correlation_data", b"\x00\xff"),
        ("mqtt.user.k", b"1"),
        ("mqtt.user.other", "é".encode()),
        ("mqtt.user.k", b"2"),
    ]


def test_defaults_are_not_written() -> None:
    assert encode_headers(Message("a", b"x")) == [("mqtt.topic", b"a")]
    assert encode_headers(Message("a", b"x", qos=0)) == [("mqtt.topic", b"a"), ("mqtt.qos", b"0")]
    assert encode_headers(Message("a", b"x", expiry_s=0))[1:] == [("mqtt.expiry_s", b"0")]
    assert encode_headers(Message("a", b"x", content_type=""))[1:] == [("content-type", b"")]


def test_a_plain_producers_record() -> None:
    message = decode_record(b"site/dev", b"21.5", [], lambda key: "sensors/" + (key or b"").decode())
    assert message == Message("sensors/site/dev", b"21.5", qos=1)


def test_a_null_value_is_an_empty_payload() -> None:
    assert decode_record(None, None, [("mqtt.topic", b"a")], no_name) == Message("a", b"")


def test_foreign_headers_are_ignored_null_is_absent_and_the_last_wins() -> None:
    headers: list[tuple[str, bytes | None]] = [
        ("traceparent", b"\xff"),
        ("mqtt.future", b"\xff"),
        ("mqtt.qos", b"0"),
        ("mqtt.qos", None),
        ("mqtt.topic", b"first"),
        ("mqtt.topic", b"last"),
        ("mqtt.user.x", None),
    ]
    assert decode_headers(headers) == Message("last", b"", qos=0)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("mqtt.topic", b"a/+"),
        ("mqtt.topic", b"\xff"),
        ("mqtt.topic", b""),
        ("mqtt.topic", b"a\0"),
        ("mqtt.topic", b"a" * 65_536),
        ("mqtt.qos", b"3"),
        ("mqtt.qos", b""),
        ("mqtt.qos", b"01"),
        ("mqtt.qos", b"\x01"),
        ("mqtt.retain", b"true"),
        ("mqtt.client_id", b"\xff"),
        ("mqtt.expiry_s", b"-1"),
        ("mqtt.expiry_s", b"1.5"),
        ("mqtt.expiry_s", b""),
        ("mqtt.expiry_s", b"4294967296"),
        ("mqtt.expiry_s", b"9" * 5_000),
        ("mqtt.expiry_s", "٣".encode()),
        ("mqtt.payload_format", b"2"),
        ("content-type", b"\xed\xa0\x80"),
        ("mqtt.response_topic", b"#"),
        ("mqtt.correlation_data", b"x" * 65_536),
        ("mqtt.user.k", b"\xff"),
        ("mqtt.user.k", b"a\0"),
        ("mqtt.user.k\0", b"a"),
        ("mqtt.user.\ud800", b"a"),
        ("mqtt.user." + "k" * 65_536, b"a"),
    ],
)
def test_what_cannot_be_read(header: str, value: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(b"key", b"", [("mqtt.topic", b"ok"), (header, value)], no_name)


@pytest.mark.parametrize("topic_name", [None, "", "a/+", "a\0"])
def test_no_topic_name_to_be_had(topic_name: str | None) -> None:
    with pytest.raises(RecordError):
        decode_record(b"key", b"", [], lambda key: topic_name)


HEADER_NAMES = st.sampled_from([value for name, value in vars(records).items() if name.startswith("HEADER_")])


@given(st.lists(st.tuples(st.one_of(HEADER_NAMES, st.text(max_size=12)), st.none() | st.binary(max_size=6))))
def test_any_headers_give_a_message_or_record_error(headers: list[tuple[str, bytes | None]]) -> None:
    try:
        message = decode_headers(headers)
    except RecordError:
        return
    if message.topic_name:
        assert decode_headers(encode_headers(message)) == message
