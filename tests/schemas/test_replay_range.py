"""From and to as people write them, and position tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.replay_range import (
    BEGINNING,
    END,
    PointKind,
    ReplayPoint,
    ReplayRange,
    ReplayRangeError,
    is_point,
    parse_from_to,
    parse_point,
    parse_position_token,
    position_token,
)
from schemas.topics import check_topic_name

NOW_MS = 1_795_248_000_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("-1h", NOW_MS - 3_600_000),
        ("-90s", NOW_MS - 90_000),
        ("-2d", NOW_MS - 172_800_000),
        ("-1h30m", NOW_MS - 5_400_000),
        ("-1d2h3m4s", NOW_MS - 93_784_000),
        ("-0s", NOW_MS),
        ("-999999d", 0),
        ("2026-11-21T08:00Z", 1_795_248_000_000),
        ("2026-11-21T03:00:00.250-05:00", 1_795_248_000_250),
        ("2026-11-21 09:00:00+01:00", 1_795_248_000_000),
        ("1795248000", 1_795_248_000_000),
        ("1795248000123", 1_795_248_000_123),
        ("0", 0),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    assert parse_point(text, NOW_MS) == ReplayPoint(PointKind.TIME, time_ms)
    assert is_point(text)


def test_words() -> None:
    assert parse_from_to("beginning", "now", NOW_MS) == ReplayRange(BEGINNING, END)
    assert parse_from_to("end", None, NOW_MS) == ReplayRange(END, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no place"),
        ("-", "names no place"),
        ("-1w", "names no place"),
        ("-1m1h", "names no place"),
        ("1h", "names no place"),
        ("-1.5h", "names no place"),
        ("yesterday", "names no place"),
        ("2026-13-01T00:00Z", "names no place"),
        ("2026-11-21T08:00", "write 2026-11-21T08:00Z"),
        ("2026-11-21", "write 2026-11-21T00:00Z"),
        ("99999999999999999", "too large"),
        ("999999999999999", "9999"),
        ("١", "names no place"),
        ("pos.", "cut or changed"),
        ("pos.AAAA", "cut or changed"),
        ("pos.a/b", "cut or changed"),
    ],
)
def test_what_is_no_place(text: str, said: str) -> None:
    with pytest.raises(ReplayRangeError, match=said) as caught:
        parse_from_to(text, None, NOW_MS)
    assert str(caught.value).startswith(("from: ", "position token: "))


@pytest.mark.parametrize(("text_from", "text_to"), [("-1h", "-2h"), ("now", "-1s"), ("-1h", "beginning")])
def test_to_comes_after_from(text_from: str, text_to: str) -> None:
    with pytest.raises(ReplayRangeError, match="swap them"):
        parse_from_to(text_from, text_to, NOW_MS)


@pytest.mark.parametrize("level", ["sensors", "+", "#", "a", "", "-x", "$SYS", "nowhere"])
def test_levels_of_a_topic_filter_are_no_places(level: str) -> None:
    assert not is_point(level)


def test_a_damaged_token_has_still_the_form_of_a_place() -> None:
    assert is_point("pos.damaged")


@given(
    positions=st.dictionaries(
        st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True), st.integers(0, 10_000)),
        st.integers(0, 2**62),
        max_size=40,
    ),
    time_ms=st.integers(0, 2**50),
)
def test_a_token_says_what_it_was_made_of(positions: dict[tuple[str, int], int], time_ms: int) -> None:
    token = position_token(positions, time_ms)
    assert parse_point(token, NOW_MS) == ReplayPoint(PointKind.TOKEN, time_ms, positions)
    if len(token) < 1_024:
        check_topic_name(token)
    assert "/" not in token


@given(st.data())
def test_no_text_breaks_the_reader(data: st.DataObject) -> None:
    token = position_token({("mqtt.messages", 3): 5, ("mqtt.messages.q2", 3): 900_000}, NOW_MS)
    at = data.draw(st.integers(0, len(token) - 1))
    changed = token[:at] + data.draw(st.text(max_size=3)) + token[at + data.draw(st.integers(0, 3)) :]
    try:
        point = parse_position_token(changed)
    except ReplayRangeError:
        return
    assert changed == token or point.kind is PointKind.TOKEN


def test_a_token_of_many_partitions_is_short() -> None:
    positions = {(f"mqtt.{name}", number): 10_000_000 for name in ("a", "a.q2") for number in range(12)}
    assert len(position_token(positions, NOW_MS)) < 220


def test_a_token_of_a_newer_version_is_said_so() -> None:
    from base64 import urlsafe_b64encode
    from zlib import crc32

    body = b"\x09\x00"
    body += (crc32(body) & 0xFFFF).to_bytes(2, "big")
    with pytest.raises(ReplayRangeError, match="version 9"):
        parse_position_token("pos." + urlsafe_b64encode(body).decode().rstrip("="))
