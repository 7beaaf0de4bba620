"""The layout of a record in `headwater.retained`: the last retained message of one Topic Name.

The key is the Topic Name in UTF-8, the value the payload, the headers are the message's own as `schemas.records`
documents them, and two more:

=========================  ==================================================  ==========================
header                     value                                               absent means
=========================  ==================================================  ==========================
``headwater.source``       `<kafka topic>/<partition>/<offset>` of the message  not from an MQTT client
``headwater.appended_ms``  when it was appended, milliseconds since the epoch   the record's own timestamp
=========================  ==================================================  ==========================

A null value clears the Topic Name [MQTT5-3.3.1-6] [MQTT311-3.3.1-10]; it carries the same two headers, so that an older
message that lands behind it does not come back. A tombstone without them, as Kafka's own tools write it, clears too.

Which of two records counts hardly ever depends on which landed last: see `RetainedMessage.is_newer_than`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from sys import intern

from schemas.errors import RecordError, TopicError
from schemas.records import (
    EXPIRY_S_MAX,
    HEADER_DEAD_LETTER_SOURCE,
    HEADER_EXPIRY_S,
    HEADER_RETAIN,
    HEADER_TOPIC,
    Header,
    decode_headers,
)
from schemas.topics import check_topic_name

HEADER_SOURCE = HEADER_DEAD_LETTER_SOURCE  # the same header with the same meaning
HEADER_APPENDED_MS = "headwater.appended_ms"

_SOURCE = re.compile(rb"([A-Za-z0-9._-]{1,249})/(\d{1,10})/(-?\d{1,19})")
_IMPLIED = frozenset((HEADER_TOPIC, HEADER_RETAIN, HEADER_SOURCE, HEADER_APPENDED_MS))  # known without keeping them
MADE_ANEW_MS = 3_600_000  # edges' clocks differ by less
NO_PARTITION = -1  # the source of a record that names none


class RetainedMessage:
    """A retained message with its source position; ``value`` None says that the Topic Name was cleared there.

    ``offset``, ``timestamp``, ``key``, ``value`` and ``headers`` are those of the message record itself, so it can be
    read like one. ``headers`` lack what is known anyway: Topic Name, RETAIN, source. ``change`` belongs to the view
    that holds it.
    """

    __slots__ = (
        "change",
        "expiry_ms",
        "headers",
        "kafka_topic",
        "offset",
        "partition",
        "timestamp",
        "topic_name_utf8",
        "value",
    )

    def __init__(
        self,
        topic_name_utf8: bytes,
        value: bytes | None,
        headers: tuple[Header, ...],
        kafka_topic: str,
        partition: int,
        offset: int,
        timestamp: int,
    ) -> None:
        self.topic_name_utf8 = topic_name_utf8
        self.value = value or None  # an empty payload is never stored [MQTT5-3.3.1-7] [MQTT311-3.3.1-11]
        self.headers = headers
        self.kafka_topic = kafka_topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.expiry_ms = _expiry_ms(headers, timestamp)
        self.change = 0

    @property
    def key(self) -> bytes:
        return self.topic_name_utf8

    def is_newer_than(self, other: RetainedMessage) -> bool:
        """Whether this one, which landed later, counts.

        In one partition the higher offset counts; a Topic Name keeps its partition until its Kafka topic is resized
        (or a publisher changes between QoS 2 and the others): then the later append time does. It also does when the
        higher offset is older by an hour: the Kafka topic was made anew. At one and the same position the tombstone
        counts: that is how an expired message is cleared. Of two sources at one and the same time what landed later
        counts: every edge reads that order, and compaction keeps that record.
        """
        if self.partition == other.partition and self.kafka_topic == other.kafka_topic and self.partition >= 0:
            mine, theirs = self.offset, other.offset
            if (mine - theirs) * (self.timestamp - other.timestamp) < 0:
                elapsed_ms = self.timestamp - other.timestamp
                if abs(elapsed_ms) > MADE_ANEW_MS:
                    return elapsed_ms > 0
        else:
            mine, theirs = self.timestamp, other.timestamp
            if mine == theirs:
                return True
        return mine > theirs or (mine == theirs and self.value is None and other.value is not None)

    def is_same_as(self, other: RetainedMessage) -> bool:
        """Whether both are the same message, or the same clearing, read twice."""
        return (
            self._source == other._source
            and (self.partition >= 0 or self.timestamp == other.timestamp)
            and (self.value is None) == (other.value is None)
        )

    def cleared(self) -> RetainedMessage:
        """The tombstone that clears exactly this message."""
        return RetainedMessage(
            self.topic_name_utf8, None, (), self.kafka_topic, self.partition, self.offset, self.timestamp
        )

    @property
    def _source(self) -> tuple[str, int, int]:
        return self.kafka_topic, self.partition, self.offset

    def __repr__(self) -> str:
        what = "cleared" if self.value is None else f"{len(self.value)} bytes"
        return f"<Retained {self.topic_name_utf8!r} {what} {self.kafka_topic}[{self.partition}]@{self.offset}>"


def encode_retained(message: RetainedMessage) -> tuple[bytes, bytes | None, list[Header]]:
    """Key, value and headers of the record that stores (or clears) the message."""
    headers: list[Header] = [(HEADER_TOPIC, message.topic_name_utf8)]
    if message.value is not None:
        headers += message.headers
        headers.append((HEADER_RETAIN, b"1"))
    if message.partition >= 0:
        source = f"{message.kafka_topic}/{message.partition}/{message.offset}"
        headers.append((HEADER_SOURCE, source.encode()))
    headers.append((HEADER_APPENDED_MS, b"%d" % message.timestamp))
    return message.topic_name_utf8, message.value, headers


def decode_retained(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]], timestamp: int, offset: int
) -> RetainedMessage:
    """The retained message in a record of `headwater.retained`; ``timestamp`` and ``offset`` are the record's own.

    Raises RecordError when the key is no Topic Name or a header that is ours cannot be read.
    """
    name = _topic_name(key)
    source: re.Match[bytes] | None = None
    kept: list[Header] = []
    for header, field in headers:
        if field is None:
            continue
        if header == HEADER_SOURCE:
            source = _SOURCE.fullmatch(field)
            if source is None:
                raise RecordError(f"header {HEADER_SOURCE} must be <kafka topic>/<partition>/<offset>")
        elif header == HEADER_APPENDED_MS:
            if not field.isdigit() or len(field) > 15:
                raise RecordError(f"header {HEADER_APPENDED_MS} must be decimal milliseconds")
            timestamp = int(field)
        elif header == HEADER_TOPIC:
            if field != key:
                raise RecordError(f"header {HEADER_TOPIC} differs from the key")
        elif header not in _IMPLIED:
            kept.append((intern(header), field))
    if kept:
        decode_headers(kept)  # it must not fail later, when a subscriber waits for it
    if source is None:
        return RetainedMessage(name, value, tuple(kept), "", NO_PARTITION, offset, timestamp)
    kafka_topic, partition, at = source.groups()
    return RetainedMessage(name, value, tuple(kept), intern(kafka_topic.decode()), int(partition), int(at), timestamp)


def own_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    """The headers of a message record without those that its retained record implies."""
    return tuple(header for header in headers if header[0] not in _IMPLIED)


def _topic_name(key: bytes | None) -> bytes:
    if not key:
        raise RecordError("a retained record without a key")
    try:
        check_topic_name(key.decode())
    except (TopicError, UnicodeDecodeError) as error:
        raise RecordError(f"the key is no Topic Name: {error}") from None
    return key


def _expiry_ms(headers: tuple[Header, ...], timestamp: int) -> int | None:
    """When the message expires, milliseconds since the epoch; its interval runs on while it is stored."""
    for name, field in headers:
        if name == HEADER_EXPIRY_S and field.isdigit():
            return timestamp + min(int(field), EXPIRY_S_MAX) * 1000
    return None
