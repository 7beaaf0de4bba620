"""One record on its way to subscribers: built once, handed to all of them.

Reading the headers follows ``schemas.records``; this is its fast lane. It reads what every delivery needs in one pass
over the headers and leaves the rest (the MQTT 5 properties) to ``decode_headers``, for the records that have any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bridge.log import Headers, Record, UnreadableRecord
from schemas.errors import RecordError
from schemas.message import Message
from schemas.records import (
    HEADER_CLIENT_ID,
    HEADER_CONTENT_TYPE,
    HEADER_CORRELATION_DATA,
    HEADER_EXPIRY_S,
    HEADER_PAYLOAD_FORMAT,
    HEADER_QOS,
    HEADER_RESPONSE_TOPIC,
    HEADER_RETAIN,
    HEADER_TOPIC,
    HEADER_USER_PREFIX,
    decode_headers,
)

_PROPERTY_HEADERS = frozenset(
    (HEADER_CONTENT_TYPE, HEADER_CORRELATION_DATA, HEADER_PAYLOAD_FORMAT, HEADER_RESPONSE_TOPIC)
)
_QOS = {b"0": 0, b"1": 1, b"2": 2}
_FLAG = {b"0": False, b"1": True}
_new = tuple.__new__  # a named tuple's own constructor costs three times as much


class Delivery(NamedTuple):
    """A message with its place in the log. A tuple: one is made per record, and a tuple costs a third of an object.

    ``headers`` are the record's own; ``properties`` is what ``decode_headers`` makes of them, or None when the message
    has no MQTT 5 property besides its expiry. ``frames`` belongs to the edge: encoded packets to share among
    subscribers; a dict when there are several, else None.
    """

    topic_name_utf8: bytes
    payload: bytes
    qos: int
    retain: bool
    client_id: str
    expiry_s: int | None
    timestamp_ms: int
    headers: Headers
    properties: Message | None
    kafka_topic: str
    partition: int
    offset: int
    frames: dict[Any, Any] | None = None

    @property
    def topic_name(self) -> str:
        return self.topic_name_utf8.decode()

    def remaining_expiry_s(self, now_ms: int) -> int | None:
        """The Message Expiry Interval to send: less the time spent in the log [MQTT5-3.3.2-6]; None: never expires."""
        if self.expiry_s is None:
            return None
        return max(0, self.expiry_s - max(0, now_ms - self.timestamp_ms) // 1000)

    def __repr__(self) -> str:
        return f"<Delivery {self.topic_name_utf8!r} {self.kafka_topic}[{self.partition}]@{self.offset}>"


class SharedDelivery(Delivery):
    """A delivery by a shared subscription: `group` hears when the member has acknowledged it. With QoS 2 it is given to
    the session by a `handover` (`bridge.shared.group`), or, by a replay, without one."""

    group: Any
    handover: Any = None

    @classmethod
    def of(cls, delivery: Delivery, group: Any) -> SharedDelivery:
        shared = cls(*delivery)
        shared.group = group
        return shared


def read_topic_name(
    kafka_topic: str, record: Record, topic_name_from_key: Callable[[str, bytes | None], str | None]
) -> bytes:
    """The Topic Name of a record in UTF-8, from its header or from its key; not yet checked.

    Raises RecordError when there is none.
    """
    found: bytes | None = None
    for name, value in record.headers:
        if name == HEADER_TOPIC and value is not None:
            found = value  # of a repeated header the last wins
    if found:
        return found
    if isinstance(record, UnreadableRecord):
        raise RecordError(record.reason)
    topic_name = topic_name_from_key(kafka_topic, record.key)
    if topic_name is None:
        raise RecordError(f"no {HEADER_TOPIC} header, and the key gives no Topic Name")
    return topic_name.encode()


def following(first: Delivery, records: Sequence[Record]) -> list[Delivery]:
    """The delivery with those of the records that follow it in its partition and have its very headers: what
    ``read_delivery`` makes of them, in one step. None of them may expire."""
    name, _, qos, retain, client_id, expiry_s, _, headers, properties, kafka_topic, partition, _, frames = first
    deliveries = [first]
    for record in records:
        value = record.value or b""
        place = (kafka_topic, partition, record.offset, frames)
        fields = (name, value, qos, retain, client_id, expiry_s, record.timestamp, headers, properties, *place)
        deliveries.append(_new(Delivery, fields))
    return deliveries


def read_delivery(
    kafka_topic: str,
    partition: int,
    record: Record,
    topic_name_utf8: bytes,
    frames: dict[Any, Any] | None = None,
) -> Delivery:
    """The delivery that a record makes; raises RecordError when a header that is ours cannot be read."""
    headers = record.headers
    value = record.value
    if len(headers) == 2 and headers[1][0] == HEADER_CLIENT_ID and headers[0][0] == HEADER_TOPIC:
        # what nearly every record is: a device's plain QoS 1 message
        try:
            client_id = str(headers[1][1] or b"", "utf-8")
        except UnicodeDecodeError as error:
            raise RecordError(f"header {HEADER_CLIENT_ID}: {error}") from None
        return _new(
            Delivery,
            (
                topic_name_utf8,
                b"" if value is None else value,
                1,
                False,
                client_id,
                None,
                record.timestamp,
                headers,
                None,
                kafka_topic,
                partition,
                record.offset,
                frames,
            ),
        )
    qos, retain, client_id, has_expiry, has_properties = 1, False, "", False, False
    try:
        for name, field in headers:
            if name == HEADER_TOPIC or field is None:
                continue
            if name == HEADER_CLIENT_ID:
                client_id = field.decode()
            elif name == HEADER_QOS:
                qos = _QOS[field]
            elif name == HEADER_RETAIN:
                retain = _FLAG[field]
            elif name == HEADER_EXPIRY_S:
                has_expiry = True
            elif name in _PROPERTY_HEADERS or name.startswith(HEADER_USER_PREFIX):
                has_properties = True
    except (KeyError, UnicodeDecodeError) as error:
        raise RecordError(f"header {name}: {error}") from None
    properties = decode_headers(headers) if has_expiry or has_properties else None
    return Delivery(
        topic_name_utf8,
        b"" if value is None else value,
        qos,
        retain,
        client_id,
        properties.expiry_s if properties is not None else None,
        record.timestamp,
        headers,
        properties if has_properties else None,
        kafka_topic,
        partition,
        record.offset,
        frames,
    )
