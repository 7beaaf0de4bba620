"""Encoding PUBLISH for fan-out: encode the message once, then only the packet identifier differs per subscriber.

    head  first byte, Remaining Length, topic name      ``publish_head``
          packet identifier, two bytes (QoS 1 and 2)    ``packet_id_bytes``
    tail  properties (5.0), payload                     ``publish_tail``

``PreparedPublish`` holds head and tail together.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from edge.wire import packet_types
from edge.wire.errors import Unencodable
from edge.wire.properties import Properties
from edge.wire.writer import binary, packet_id_bytes, properties_bytes, variable_bytes

_ACKNOWLEDGEMENT: Final = Struct(">HH").pack
_DUP: Final = 0x08
NO_PROPERTIES_BYTES: Final = b"\0"


def puback(packet_id: int) -> bytes:
    """Write a PUBACK of success: the same four bytes in every version (§3.4.2.1). The identifier is one we decoded."""
    return _ACKNOWLEDGEMENT(0x4002, packet_id)


def pubrec(packet_id: int) -> bytes:
    """Write a PUBREC of success: the same in every version."""
    return _ACKNOWLEDGEMENT(0x5002, packet_id)


def pubrel(packet_id: int) -> bytes:
    """Write a PUBREL of success: the same in every version."""
    return _ACKNOWLEDGEMENT(0x6202, packet_id)


def pubcomp(packet_id: int) -> bytes:
    """Write a PUBCOMP of success: the same in every version."""
    return _ACKNOWLEDGEMENT(0x7002, packet_id)


def encode_publish_properties(
    *,
    payload_format_indicator: int | None = None,
    message_expiry_interval_s: int | None = None,
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    subscription_identifiers: tuple[int, ...] = (),
    topic_alias: int | None = None,
    user_properties: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """Write a 5.0 PUBLISH's properties with their length in front. 3.1.1 has none: use ``b""`` there."""
    properties = Properties(
        payload_format_indicator=payload_format_indicator,
        message_expiry_interval_s=message_expiry_interval_s,
        content_type=content_type,
        response_topic=response_topic,
        correlation_data=correlation_data,
        subscription_identifiers=subscription_identifiers,
        topic_alias=topic_alias,
        user_properties=user_properties,
    )
    return properties_bytes(properties, packet_types.PUBLISH)


def publish_head(
    topic_name_utf8: bytes,
    payload_length: int,
    qos: int,
    retain: bool,
    dup: bool,
    properties_bytes: bytes,
    protocol_version: int,
) -> bytes:
    """Write everything before the packet identifier.

    ``properties_bytes`` are only counted here (they follow the packet identifier, in the tail); empty means none. The
    topic name is not checked: it is one that was.
    """
    assert 0 <= qos <= 2, "a PUBLISH of ours has a legal QoS"
    assert qos or not dup, "a PUBLISH of ours has no DUP on QoS 0"
    size = 2 + len(topic_name_utf8) + payload_length + (2 if qos else 0)
    if protocol_version == 5:
        size += len(properties_bytes) or 1
    first_byte = 0x30 | dup << 3 | qos << 1 | retain
    length = len(topic_name_utf8)
    if size < 0x80:
        return bytes((first_byte, size, 0, length)) + topic_name_utf8
    if size < 0x4000:  # nearly every PUBLISH there is; one object instead of three
        return bytes((first_byte, size & 0x7F | 0x80, size >> 7, length >> 8, length & 0xFF)) + topic_name_utf8
    return bytes((first_byte,)) + variable_bytes(size) + binary(topic_name_utf8, "topic name")


def publish_tail(payload: bytes, properties_bytes: bytes, protocol_version: int) -> bytes:
    """Write everything after the packet identifier."""
    if protocol_version != 5:
        return payload
    return (properties_bytes or NO_PROPERTIES_BYTES) + payload


@dataclass(slots=True)
class PreparedPublish:
    """One PUBLISH, encoded but for its packet identifier: shared by all subscribers that get the same bytes."""

    head: bytes
    tail: bytes
    qos: int

    @property
    def packet_bytes(self) -> int:
        """The size of the packet, for the subscriber's Maximum Packet Size [MQTT5-3.1.2-24]."""
        return len(self.head) + len(self.tail) + (2 if self.qos else 0)

    def with_packet_id(self, packet_id: int) -> bytes:
        """Give the whole packet; the packet identifier is left out for QoS 0 [MQTT5-2.2.1-2] [MQTT311-2.3.1-5]."""
        if self.qos:
            return b"".join((self.head, packet_id.to_bytes(2, "big"), self.tail))
        return self.head + self.tail

    def again_with_packet_id(self, packet_id: int) -> bytes:
        """Give the whole packet as a re-delivery, DUP set [MQTT5-3.3.1-1] [MQTT311-3.3.1-1]."""
        packet = self.with_packet_id(packet_id)
        return bytes((packet[0] | _DUP,)) + packet[1:] if self.qos else packet


def prepare_publish(
    topic_name_utf8: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    properties_bytes: bytes,
    protocol_version: int,
) -> PreparedPublish:
    """Encode a PUBLISH but for its packet identifier."""
    head = publish_head(topic_name_utf8, len(payload), qos, retain, False, properties_bytes, protocol_version)
    return PreparedPublish(head, publish_tail(payload, properties_bytes, protocol_version), qos)


def encode_publish(
    topic_name_utf8: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    dup: bool,
    packet_id: int,
    properties: Properties | None,
    protocol_version: int,
) -> bytes:
    """Encode a whole PUBLISH."""
    if not 0 <= qos <= 2 or (dup and not qos):
        raise Unencodable(f"PUBLISH with QoS {qos}, DUP {dup}")
    encoded_properties = b""
    if protocol_version == 5:
        encoded_properties = properties_bytes(properties, packet_types.PUBLISH)
    head = publish_head(topic_name_utf8, len(payload), qos, retain, dup, encoded_properties, protocol_version)
    identifier = packet_id_bytes(packet_id) if qos else b""
    return b"".join((head, identifier, encoded_properties, payload))
