"""The layout of a message record in Kafka: payload as the value, everything else in documented headers.

Headers are written only where they differ from the default, except ``mqtt.topic``, which is always there. A record of
a plain Kafka producer may have none of them: it is then a QoS 1 message whose Topic Name comes from its key.
Headers without ``mqtt.`` and unknown ``mqtt.`` headers are ignored; a null header value counts as an absent header; of
a repeated header the last wins, as with Kafka's ``lastHeader`` (``mqtt.user.`` headers all count, in order).

==========================  ==========================================  =================
header                      value                                       absent means
==========================  ==========================================  =================
``mqtt.topic``              Topic Name, UTF-8                           from the key
``mqtt.qos``                ASCII ``0``, ``1`` or ``2``                 1
``mqtt.retain``             ASCII ``1`` (or ``0``)                      0
``mqtt.client_id``          the publisher's client id, UTF-8            "" (not a device)
``mqtt.expiry_s``           Message Expiry Interval, ASCII decimal      never
``content-type``            Content Type, UTF-8                         none
``mqtt.response_topic``     Response Topic, UTF-8                       none
``mqtt.correlation_data``   Correlation Data, as it is                  none
``mqtt.payload_format``     ASCII ``1``: payload is UTF-8; ``0``        none
``mqtt.user.<name>``        a User Property's value, UTF-8              none
==========================  ==========================================  =================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from schemas.errors import RecordError, TopicError
from schemas.message import Message
from schemas.topics import check_topic_name

HEADER_TOPIC = "mqtt.topic"
HEADER_QOS = "mqtt.qos"
HEADER_RETAIN = "mqtt.retain"
HEADER_CLIENT_ID = "mqtt.client_id"
HEADER_EXPIRY_S = "mqtt.expiry_s"
HEADER_CONTENT_TYPE = "content-type"
HEADER_RESPONSE_TOPIC = "mqtt.response_topic"
HEADER_CORRELATION_DATA = "mqtt.correlation_data"
HEADER_PAYLOAD_FORMAT = "mqtt.payload_format"
HEADER_USER_PREFIX = "mqtt.user."
HEADER_DEAD_LETTER_REASON = "headwater.reason"  # on records in mqtt.dead_letter: why, in words
HEADER_DEAD_LETTER_SOURCE = "headwater.source"  # on records in mqtt.dead_letter: <kafka topic>/<partition>/<offset>

QOS_DEFAULT = 1
EXPIRY_S_MAX = 0xFFFF_FFFF  # a Four Byte Integer [MQTT5-3.3.2.3.3]
FIELD_BYTES_MAX = 65_535  # the longest string or binary data that MQTT can carry [MQTT5-1.5.4]

Header = tuple[str, bytes]
_USER_PREFIX_LENGTH = len(HEADER_USER_PREFIX)


def encode_headers(message: Message) -> list[Header]:
    """The record headers of a message, ``mqtt.topic`` first, then only what differs from the default."""
    headers: list[Header] = [(HEADER_TOPIC, message.topic_name.encode())]
    if message.qos != QOS_DEFAULT:
        headers.append((HEADER_QOS, b"%d" % message.qos))
    if message.retain:
        headers.append((HEADER_RETAIN, b"1"))
    if message.client_id:
        headers.append((HEADER_CLIENT_ID, message.client_id.encode()))
    if message.expiry_s is not None:
        headers.append((HEADER_EXPIRY_S, b"%d" % message.expiry_s))
    if message.payload_format is not None:
        headers.append((HEADER_PAYLOAD_FORMAT, b"%d" % message.payload_format))
    if message.content_type is not None:
        headers.append((HEADER_CONTENT_TYPE, message.content_type.encode()))
    if message.response_topic is not None:
        headers.append((HEADER_RESPONSE_TOPIC, message.response_topic.encode()))
    if message.correlation_data is not None:
        headers.append((HEADER_CORRELATION_DATA, message.correlation_data))
    for name, value in message.user_properties:
        headers.append((HEADER_USER_PREFIX + name, value.encode()))
    return headers


def decode_headers(headers: Iterable[tuple[str, bytes | None]]) -> Message:
    """What the headers say, as a Message with an empty payload; ``topic_name`` is "" when no header names it.

    Raises RecordError when a header that is ours cannot be read.
    """
    message = Message("", b"")
    user_properties: list[tuple[str, str]] = []
    for name, value in headers:
        if value is None:
            continue
        setter = _SETTERS.get(name)
        if setter is not None:
            setter(message, name, value)
        elif name.startswith(HEADER_USER_PREFIX):
            user_properties.append((_user_property_name(name), _text(name, value)))
    if user_properties:
        message.user_properties = tuple(user_properties)
    return message


def decode_record(
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    topic_name_from_key: Callable[[bytes | None], str | None],
) -> Message:
    """The message in a Kafka record; ``topic_name_from_key`` is the route's reverse template.

    A null value (a tombstone in Kafka's words) is an empty payload. Raises RecordError when a header cannot be read
    or no Topic Name can be found.
    """
    message = decode_headers(headers)
    if not message.topic_name:
        topic_name = topic_name_from_key(key)
        if topic_name is None:
            raise RecordError(f"no {HEADER_TOPIC} header, and the key gives no Topic Name")
        message.topic_name = _checked_topic_name("the Topic Name made from the key", topic_name)
    message.payload = value if value is not None else b""
    return message


def _set_topic_name(message: Message, header: str, value: bytes) -> None:
    message.topic_name = _checked_topic_name(header, _text(header, value))


def _set_qos(message: Message, header: str, value: bytes) -> None:
    message.qos = _digit(header, value, b"012")


def _set_retain(message: Message, header: str, value: bytes) -> None:
    message.retain = _digit(header, value, b"01") == 1


def _set_client_id(message: Message, header: str, value: bytes) -> None:
    message.client_id = _text(header, value)


def _set_expiry_s(message: Message, header: str, value: bytes) -> None:
    if not value.isdigit() or len(value) > 10 or int(value) > EXPIRY_S_MAX:
        raise RecordError(f"header {header} must be decimal seconds up to {EXPIRY_S_MAX}")
    message.expiry_s = int(value)


def _set_content_type(message: Message, header: str, value: bytes) -> None:
    message.content_type = _text(header, value)


def _set_response_topic(message: Message, header: str, value: bytes) -> None:
    message.response_topic = _checked_topic_name(header, _text(header, value))  # [MQTT5-3.3.2-14]


def _set_correlation_data(message: Message, header: str, value: bytes) -> None:
    if len(value) > FIELD_BYTES_MAX:
        raise RecordError(f"header {header} is longer than {FIELD_BYTES_MAX} bytes")
    message.correlation_data = value


def _set_payload_format(message: Message, header: str, value: bytes) -> None:
    message.payload_format = _digit(header, value, b"01")


_SETTERS: dict[str, Callable[[Message, str, bytes], None]] = {
    HEADER_TOPIC: _set_topic_name,
    HEADER_QOS: _set_qos,
    HEADER_RETAIN: _set_retain,
    HEADER_CLIENT_ID: _set_client_id,
    HEADER_EXPIRY_S: _set_expiry_s,
    HEADER_CONTENT_TYPE: _set_content_type,
    HEADER_RESPONSE_TOPIC: _set_response_topic,
    HEADER_CORRELATION_DATA: _set_correlation_data,
    HEADER_PAYLOAD_FORMAT: _set_payload_format,
}


def _digit(header: str, value: bytes, allowed: bytes) -> int:
    if len(value) != 1 or value not in allowed:
        raise RecordError(f"header {header} must be one of {', '.join(allowed.decode())}")
    return value[0] - 0x30


def _text(header: str, value: bytes) -> str:
    if len(value) > FIELD_BYTES_MAX:
        raise RecordError(f"header {header} is longer than {FIELD_BYTES_MAX} bytes")
    try:
        text = value.decode()  # [MQTT5-1.5.4-1]
    except UnicodeDecodeError:
        raise RecordError(f"header {header} is not valid UTF-8") from None
    if "\0" in text:  # [MQTT5-1.5.4-2]
        raise RecordError(f"header {header} holds U+0000")
    return text


def _user_property_name(header: str) -> str:
    name = header[_USER_PREFIX_LENGTH:]
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise RecordError("the name of a User Property holds a surrogate") from None
    if length > FIELD_BYTES_MAX:
        raise RecordError(f"the name of a User Property is longer than {FIELD_BYTES_MAX} bytes")
    if "\0" in name:  # [MQTT5-1.5.4-2]
        raise RecordError("the name of a User Property holds U+0000")
    return name


def _checked_topic_name(what: str, topic_name: str) -> str:
    try:
        check_topic_name(topic_name)
    except TopicError as error:
        raise RecordError(f"{what}: {error}") from None
    return topic_name
