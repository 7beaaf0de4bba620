"""From where to where history is read: the texts that people and topic filters say it with, and position tokens.

==============================  ===========================================================================
text                            means
==============================  ===========================================================================
``-1h``, ``-90s``, ``-1h30m``   that long before now; units d, h, m, s
``2026-11-21T08:00Z``           a time in ISO 8601 with its zone (an offset such as ``-05:00`` will do, too)
``1795248000``                  seconds since the epoch; from 100,000,000,000 on milliseconds
``beginning``                   the oldest record that the log still holds
``now``, ``end``                the end of the log
``pos.…``                       a position token, as an earlier replay gave it
==============================  ===========================================================================

A position token names the next offset of each partition; it is for resuming, and opaque to whoever holds it. It holds
none of ``/ + #``, so it can be a level of a Topic Filter. Its bytes, in base64url: a version, the time in milliseconds,
then per Kafka topic its name, the number of its partitions and each partition with its offset, all numbers as varints,
last the lower 16 bits of the CRC-32 of what is before.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from zlib import crc32

from schemas.errors import HeadwaterError

TOKEN_PREFIX = "pos."  # noqa: S105
TOKEN_LENGTH_MAX = 1_000_000  # a hundred thousand partitions
KAFKA_TOPIC_LENGTH_MAX = 249  # Kafka's own limit
FIRST_MS = 100_000_000_000  # a number below is seconds (until the year 5138), others are milliseconds (since 1973)
TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999

_VERSION = 1
_CHECK_BYTES = 2
_VARINT_BYTES_MAX = 9
_RELATIVE = re.compile(r"-(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?", re.ASCII)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)
_FORMS = "-1h, -1h30m, 2026-11-21T08:00Z, seconds or milliseconds since the epoch, beginning, now, or a position token"


class ReplayRangeError(HeadwaterError):
    """A from, a to or a position token cannot be read; the text says what to write instead."""


class PointKind(StrEnum):
    """What a `ReplayPoint` goes by."""

    BEGINNING = "beginning"
    TIME = "time"
    END = "end"
    TOKEN = "token"  # noqa: S105


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """A place in the log.

    TIME: in each partition the first record of ``time_ms`` or later. TOKEN: in each partition of ``positions`` that
    offset; the others go by ``time_ms``.
    """

    kind: PointKind
    time_ms: int = 0
    positions: Mapping[tuple[str, int], int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """From ``start`` on to before ``end``; None: there is no end, what comes is read as well."""

    start: ReplayPoint
    end: ReplayPoint | None


BEGINNING = ReplayPoint(PointKind.BEGINNING)
END = ReplayPoint(PointKind.END)
_WORDS = {"beginning": BEGINNING, "now": END, "end": END}


def parse_from_to(text_from: str, text_to: str | None, now_ms: int) -> ReplayRange:
    """The range that two texts name. Raises ReplayRangeError when one cannot be read, or the second comes first."""
    start = parse_point(text_from, now_ms, "from")
    end = parse_point(text_to, now_ms, "to") if text_to is not None else None
    if end is not None and _is_before(end, start):
        raise ReplayRangeError(f"to ({text_to}) lies before from ({text_from}): swap them")
    return ReplayRange(start, end)


def parse_point(text: str, now_ms: int, what: str = "time") -> ReplayPoint:
    """One place; ``what`` is its name in the error. Raises ReplayRangeError."""
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith(TOKEN_PREFIX):
        return parse_position_token(text)
    time_ms = _time_ms(text, now_ms, what)
    if time_ms > TIME_MS_MAX:
        raise ReplayRangeError(f"{what}: {text!r} lies beyond the year 9999")
    return ReplayPoint(PointKind.TIME, max(0, time_ms))


def is_point(text: str) -> bool:
    """Whether the text has the form of a place, as against a level of a Topic Name; it may still be a wrong one."""
    try:
        parse_point(text, 0)
    except ReplayRangeError:
        return text.startswith(TOKEN_PREFIX)
    return True


def position_token(positions: Mapping[tuple[str, int], int], time_ms: int = 0) -> str:
    """The text that names these next offsets per (Kafka topic, partition); partitions it does not name, which others
    may have added since, are then read from ``time_ms`` on."""
    return PositionTokens(positions, time_ms).token()


class PositionTokens:
    """The tokens of positions that move on: a token costs the same however many partitions there are, nearly."""

    __slots__ = ("_heads", "_index", "_parts")

    def __init__(self, positions: Mapping[tuple[str, int], int], time_ms: int = 0) -> None:
        head = bytearray((_VERSION,))
        _put_varint(head, time_ms)
        ordered = sorted(positions)
        counts = Counter(kafka_topic for kafka_topic, _ in ordered)
        self._parts = [bytes(head)]
        self._heads = [b""]  # what stands before a partition's offset: of a Kafka topic's first one, its name, too
        self._index: dict[tuple[str, int], int] = {}
        for kafka_topic, partition in ordered:
            head = bytearray()
            if counts[kafka_topic]:
                name = kafka_topic.encode()
                _put_varint(head, len(name))
                head += name
                _put_varint(head, counts.pop(kafka_topic))
            _put_varint(head, partition)
            self._index[kafka_topic, partition] = len(self._parts)
            self._heads.append(bytes(head))
            self._parts.append(b"")
            self.move((kafka_topic, partition), positions[kafka_topic, partition])

    def move(self, position: tuple[str, int], offset: int) -> None:
        """The next offset of one partition."""
        index = self._index[position]
        data = bytearray(self._heads[index])
        _put_varint(data, offset)
        self._parts[index] = bytes(data)

    def token(self) -> str:
        """As of now."""
        data = b"".join(self._parts)
        return TOKEN_PREFIX + urlsafe_b64encode(data + _check(data)).decode().rstrip("=")


def parse_position_token(text: str) -> ReplayPoint:
    """What `position_token` has written. Raises ReplayRangeError when it was cut, changed or is none."""
    data = _token_bytes(text)
    try:
        if data[0] != _VERSION:
            raise ReplayRangeError(f"position token: version {data[0]} is not known to this Headwater")
        time_ms, at = _varint(data, 1)
        positions: dict[tuple[str, int], int] = {}
        end = len(data) - _CHECK_BYTES
        while at < end:
            length, at = _varint(data, at)
            if length > KAFKA_TOPIC_LENGTH_MAX:
                raise ValueError
            kafka_topic, at = data[at : at + length].decode(), at + length
            count, at = _varint(data, at)
            for _ in range(min(count, end - at)):  # each takes two bytes at least: what is too many ends in an error
                partition, at = _varint(data, at)
                positions[kafka_topic, partition], at = _varint(data, at)
    except (ValueError, IndexError):
        raise _damaged() from None
    return ReplayPoint(PointKind.TOKEN, time_ms, positions)


def _time_ms(text: str, now_ms: int, what: str) -> int:
    relative = _RELATIVE.fullmatch(text)
    if relative is not None and text != "-":
        units = zip(relative.groups(default="0"), _UNITS_MS, strict=True)
        return now_ms - sum(int(count) * unit_ms for count, unit_ms in units)
    if text.isascii() and text.isdigit():
        if len(text) > 15:
            raise ReplayRangeError(f"{what}: {text} is too large for milliseconds since the epoch")
        number = int(text)
        return number * 1_000 if number < FIRST_MS else number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ReplayRangeError(f"{what}: {text!r} names no place in the log; write one of: {_FORMS}") from None
    if moment.tzinfo is None:
        whole = text if "T" in text or " " in text else f"{text}T00:00"
        raise ReplayRangeError(f"{what}: {text!r} has no zone; write {whole}Z for UTC")
    return round(moment.timestamp() * 1_000)


def _is_before(end: ReplayPoint, start: ReplayPoint) -> bool:
    if end.kind is PointKind.BEGINNING:
        return start.kind is not PointKind.BEGINNING
    if end.kind is PointKind.TIME:
        return start.kind is PointKind.END or (start.kind is PointKind.TIME and end.time_ms < start.time_ms)
    return False


def _token_bytes(text: str) -> bytes:
    if not text.startswith(TOKEN_PREFIX):
        raise ReplayRangeError(f"position token: {text[:40]!r} does not start with {TOKEN_PREFIX!r}")
    body = text[len(TOKEN_PREFIX) :]
    if len(body) > TOKEN_LENGTH_MAX or not re.fullmatch(r"[A-Za-z0-9_-]+", body):
        raise _damaged()
    try:
        data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        raise _damaged() from None
    if len(data) < 2 + _CHECK_BYTES or _check(data[:-_CHECK_BYTES]) != data[-_CHECK_BYTES:]:
        raise _damaged()
    return data


def _damaged() -> ReplayRangeError:
    return ReplayRangeError("position token: it was cut or changed; use the whole of it, or a time")


def _check(data: bytes | bytearray) -> bytes:
    return (crc32(data) & 0xFFFF).to_bytes(_CHECK_BYTES, "big")


def _put_varint(data: bytearray, number: int) -> None:
    assert number >= 0, number
    while number > 0x7F:
        data.append(0x80 | number & 0x7F)
        number >>= 7
    data.append(number)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number and where it ends; what is beyond the data's check bytes is no number."""
    number = 0
    for index in range(_VARINT_BYTES_MAX):
        byte = data[at + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, at + index + 1
    raise ValueError("too long")
