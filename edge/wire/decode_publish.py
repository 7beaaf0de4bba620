"""Decoding PUBLISH (§3.3): the hot path, so it reads by index, through a ``Reader`` only for properties."""

from __future__ import annotations

from typing import Final, NoReturn

from edge.wire import packet_types
from edge.wire.errors import MalformedPacket, ProtocolError, ProtocolViolation, TopicNameInvalid
from edge.wire.packets import Publish
from edge.wire.properties import Properties
from edge.wire.reader import Reader

# Low four bits of the first byte -> (QoS, RETAIN, DUP); None where QoS is 3, or DUP is set on QoS 0.
_FLAGS: Final = tuple(
    None if bits & 6 == 6 or bits & 0b1110 == 0b1000 else (bits >> 1 & 3, bits & 1 == 1, bits & 8 == 8)
    for bits in range(16)
)


def decode_publish(first_byte: int, body: bytes, protocol_version: int, sender: int = packet_types.FROM_ANY) -> Publish:
    """Decode a PUBLISH; the topic name stays raw bytes.

    It does **not** check that the topic name is UTF-8 without wildcards: an edge caches what it knows of a topic name
    by its raw bytes, so the caller runs ``check_topic_name_utf8`` once per name, not once per packet. Everything else
    is checked.
    """
    flags = _FLAGS[first_byte & 15]
    if flags is None:
        _refuse_flags(first_byte, protocol_version)
    qos, retain, dup = flags
    size = len(body)
    if size < 2:
        _refuse_length(protocol_version)
    topic_end = (body[0] << 8 | body[1]) + 2
    packet_id = 0
    position = topic_end
    if qos:
        position = topic_end + 2
        if position > size:
            _refuse_length(protocol_version)
        packet_id = body[topic_end] << 8 | body[topic_end + 1]
        if not packet_id:  # [MQTT5-2.2.1-3] [MQTT5-2.2.1-4] [MQTT311-2.3.1-1]
            clause = "MQTT5-2.2.1-3" if protocol_version == 5 else "MQTT311-2.3.1-1"
            raise ProtocolError("packet identifier 0", clause, protocol_version)
    elif position > size:
        _refuse_length(protocol_version)
    properties = None
    if protocol_version == 5:
        if position < size and not body[position]:
            position += 1
        else:
            properties, position = _properties(body, position, sender)
    if topic_end == 2 and (properties is None or properties.topic_alias is None):
        _refuse_empty_topic_name(protocol_version)
    return Publish(body[2:topic_end], body[position:], qos, retain, dup, packet_id, properties)


def _properties(body: bytes, position: int, sender: int) -> tuple[Properties | None, int]:
    reader = Reader(body, 5, sender, position)
    properties = reader.properties(packet_types.PUBLISH)
    if properties is not None and properties.subscription_identifiers and sender == packet_types.FROM_CLIENT:
        raise ProtocolError("a client sent a subscription identifier", "MQTT5-3.3.4-6", 5)
    return properties, reader.position


def check_topic_name_utf8(topic_name_utf8: bytes, protocol_version: int = 5) -> str:
    """Give a PUBLISH's topic name as text, for the caller's cache of topic names.

    Raises MalformedPacket when it is not UTF-8 or holds U+0000, TopicNameInvalid when it is empty or holds a wildcard
    [MQTT5-3.3.2-1] [MQTT5-3.3.2-2] [MQTT311-3.3.2-1] [MQTT311-3.3.2-2].
    """
    is_5 = protocol_version == 5
    try:
        topic_name = str(topic_name_utf8, "utf-8")
    except UnicodeDecodeError:
        clause = "MQTT5-1.5.4-1" if is_5 else "MQTT311-1.5.3-1"
        raise MalformedPacket("topic name: not UTF-8", clause, protocol_version) from None
    if "\0" in topic_name:
        clause = "MQTT5-1.5.4-2" if is_5 else "MQTT311-1.5.3-2"
        raise MalformedPacket("topic name: holds U+0000", clause, protocol_version)
    check_topic_name(topic_name, protocol_version)
    return topic_name


def check_topic_name(topic_name: str, protocol_version: int = 5) -> None:
    """Raise TopicNameInvalid for a topic name that is empty or holds a wildcard (§4.7)."""
    is_5 = protocol_version == 5
    if not topic_name:
        clause = "MQTT5-4.7.3-1" if is_5 else "MQTT311-4.7.3-1"
        raise TopicNameInvalid("topic name is empty", clause, protocol_version)
    if "+" in topic_name or "#" in topic_name:
        clause = "MQTT5-3.3.2-2" if is_5 else "MQTT311-3.3.2-2"
        raise TopicNameInvalid("topic name holds a wildcard", clause, protocol_version)


def _refuse_flags(first_byte: int, protocol_version: int) -> NoReturn:
    is_5 = protocol_version == 5
    if first_byte & 6 == 6:  # [MQTT5-3.3.1-4] [MQTT311-3.3.1-4]
        clause = "MQTT5-3.3.1-4" if is_5 else "MQTT311-3.3.1-4"
        raise MalformedPacket("PUBLISH with QoS 3", clause, protocol_version)
    clause = "MQTT5-3.3.1-2" if is_5 else "MQTT311-3.3.1-2"  # [MQTT5-3.3.1-2] [MQTT311-3.3.1-2]
    raise MalformedPacket("PUBLISH with DUP on QoS 0", clause, protocol_version)


def _refuse_length(protocol_version: int) -> NoReturn:
    clause = "MQTT5 §2.1.4" if protocol_version == 5 else "MQTT311 §2.2.3"
    raise MalformedPacket("PUBLISH ends inside its variable header", clause, protocol_version)


def _refuse_empty_topic_name(protocol_version: int) -> NoReturn:
    violation: type[ProtocolViolation] = ProtocolError if protocol_version == 5 else TopicNameInvalid
    clause = "MQTT5 §3.3.2.1" if protocol_version == 5 else "MQTT311-4.7.3-1"
    raise violation("PUBLISH without a topic name", clause, protocol_version)
