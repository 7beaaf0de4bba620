"""Pacing, grep, JSON lines, digests and the merge by themselves."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.replay.digest import Digests
from bridge.replay.grep import parse_grep, parse_text
from bridge.replay.lines import LineEncoder, LineRecord, decode_line, end_line
from bridge.replay.merging import Lane, take_merged
from bridge.replay.pacing import MAX, Pacer, Speed, parse_speed
from bridge.replay.selection import Item
from schemas.errors import ConfigurationError, RecordError


def item(time_ms: int, partition: int = 0, offset: int = 0) -> Item:
    record = LineRecord(offset, time_ms, b"k", b"v", [("mqtt.topic", b"a")])
    return time_ms, ("mqtt.messages", partition), record, b"a"


@pytest.mark.parametrize(
    ("text", "speed"),
    [("1x", Speed(factor=1)), ("0.5x", Speed(factor=0.5)), ("500/s", Speed(per_s=500)), ("max", MAX)],
)
def test_speeds(text: str, speed: Speed) -> None:
    assert parse_speed(text) == speed
    assert parse_speed(str(speed)) == speed


@pytest.mark.parametrize("text", ["", "0x", "0/s", "fast", "10", "-1x", "1e9x", "x"])
def test_what_is_no_speed(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--speed"):
        parse_speed(text)


def test_original_times() -> None:
    items = [item(1_000), item(1_000), item(3_000), item(9_000)]
    pacer = Pacer(Speed(factor=2))
    assert pacer.due(items, 50.0) == (2, 1.0)
    assert pacer.due(items[2:], 50.9) == (0, pytest.approx(0.1))
    assert pacer.due(items[2:], 51.0) == (1, 1.0)
    assert pacer.due(items[3:], 54.0) == (1, 0.0)


def test_a_rate_is_kept_on_average() -> None:
    items = [item(0)] * 1_000
    pacer = Pacer(Speed(per_s=100))
    given_out, now_s = 0, 7.0
    while now_s < 12.0:
        count, wait_s = pacer.due(items[given_out:], now_s)
        given_out += count
        now_s += wait_s
    assert 499 <= given_out <= 505


def test_as_fast_as_it_goes() -> None:
    assert Pacer(MAX).due([item(0)] * 9, 0.0) == (9, 0.0)


PAYLOAD = b'{"temp": 31.5, "on": true, "name": "pump 7", "readings": [{"t": 1}, {"t": 2}], "none": null}'


@pytest.mark.parametrize(
    ("expression", "passes"),
    [
        ("temp>30", True),
        ("temp > 31.5", False),
        ("temp>=31.5", True),
        ("temp<30", False),
        ("temp<=31.5", True),
        ("temp==31.5", True),
        ("temp!=31.5", False),
        ("temp=31.5", True),
        ("temp", True),
        ("humidity", False),
        ("humidity!=3", False),
        ("on=true", True),
        ("on=1", False),
        ("on!=1", True),
        ("on>0", False),
        ("name=pump 7", True),
        ('name="pump 7"', True),
        ("name~pump", True),
        ("name~Pump", False),
        ("temp~3", False),
        ("name>30", False),
        ("name>a", True),
        ("readings.1.t=2", True),
        ("readings.2.t=2", False),
        ("readings.x.t=2", False),
        ("none", True),
        ("none=null", True),
        ("temp.deep=1", False),
    ],
)
def test_grep(expression: str, passes: bool) -> None:
    assert parse_grep(expression)(PAYLOAD) is passes


@pytest.mark.parametrize("payload", [b"", b"no json", b"\xff", b"5", b"[]"])
def test_grep_of_other_payloads(payload: bytes) -> None:
    assert not parse_grep("temp>30")(payload)


@pytest.mark.parametrize("expression", ["", ">3", "a>", "a..b=1", "a b c", "=1"])
def test_what_is_no_expression(expression: str) -> None:
    with pytest.raises(ConfigurationError, match="--grep"):
        parse_grep(expression)


def test_text_in_a_payload() -> None:
    assert parse_text("pump 7")(PAYLOAD)
    assert not parse_text("pump 8")(PAYLOAD)
    with pytest.raises(ConfigurationError):
        parse_text("")


some_bytes = st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=10).map(str.encode))
headers = st.lists(st.tuples(st.sampled_from(["mqtt.client_id", "mqtt.qos", "x", "größe", ""]), some_bytes), max_size=4)
records = st.builds(
    lambda offset, time_ms, key, value, more: LineRecord(offset, time_ms, key, value, [("mqtt.topic", b"a/b"), *more]),
    st.integers(0, 2**62),
    st.integers(0, 2**50),
    some_bytes,
    some_bytes,
    headers,
)


def fields(record: LineRecord) -> tuple[object, ...]:
    return record.offset, record.timestamp, record.key, record.value, list(record.headers)


@given(st.lists(records, max_size=6))
def test_a_line_is_the_record_byte_for_byte(given_records: list[LineRecord]) -> None:
    items = [(record.timestamp, ("mqtt.messages", 3), record, b"a/b") for record in given_records]
    lines = LineEncoder().encode(items).splitlines(keepends=True)
    assert len(lines) == len(items)
    back = [decode_line(line) for line in lines]
    assert [fields(each[2]) for each in back] == [fields(record) for record in given_records]
    assert [each[1] for each in back] == [("mqtt.messages", 3)] * len(items)
    before, after = Digests(hashing=True), Digests(hashing=True)
    before.add(items)
    after.add(back)
    assert before.told() == after.told()


def test_the_hash_is_what_its_docstring_says() -> None:
    digests = Digests(hashing=True)
    record = LineRecord(7, 9, b"k", None, [("mqtt.topic", b"a"), ("x", None)])
    digests.add([(9, ("mqtt.messages", 0), record, b"a")])
    number = lambda value, size: value.to_bytes(size, "big", signed=True)  # noqa: E731
    expected = number(7, 8) + number(9, 8) + number(1, 4) + number(-1, 4) + b"k" + number(2, 4)
    expected += number(10, 4) + b"mqtt.topic" + number(1, 4) + b"a" + number(1, 4) + b"x" + number(-1, 4)
    assert digests.told()["mqtt.messages/0"]["sha256"] == hashlib.sha256(expected).hexdigest()


def test_any_change_changes_the_hash() -> None:
    def sha256(*pairs: tuple[int, bytes]) -> str:
        digests = Digests(hashing=True)
        for offset, value in pairs:
            digests.add([(0, ("m", 0), LineRecord(offset, 0, b"k", value, []), b"a")])
        return str(digests.told()["m/0"]["sha256"])

    assert len({sha256((0, b"a"), (1, b"b")), sha256((0, b"b"), (1, b"a")), sha256((0, b"ab")), sha256((0, b"a"))}) == 4


def test_the_end_marker_comes_back() -> None:
    assert decode_line(end_line({"records": 3})) == {"records": 3}


@pytest.mark.parametrize("line", [b"", b"{}", b"5", b"[1]", b'{"offset": 1}', b'{"kafka_topic":"x","partition":"y"}'])
def test_what_is_no_line(line: bytes) -> None:
    with pytest.raises(RecordError):
        decode_line(line)


def test_nothing_goes_out_while_an_older_one_may_come() -> None:
    ahead, behind, unread = (Lane(("m", number), 0, 10) for number in range(3))
    ahead.items, ahead.time_ms = [item(1, 0), item(5, 0), item(9, 0)], 9
    behind.items, behind.time_ms = [item(2, 1)], 6
    lanes = [ahead, behind, unread]
    assert take_merged(lanes) == []
    unread.at = 10
    assert [each[0] for each in take_merged(lanes)] == [1, 2, 5]
    behind.time_ms = 8
    assert take_merged(lanes) == []
    behind.at = 10
    assert [each[0] for each in take_merged(lanes)] == [9]
