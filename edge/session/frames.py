"""One application message as the bytes of a PUBLISH, encoded once and shared by all subscribers that may share it."""

from struct import Struct
from typing import NamedTuple

from bridge.delivery import Delivery
from edge.wire import encode_publish_properties, publish_head, publish_tail

MQTT_5 = 5
_HEAD = Struct(">BBBH").pack  # first byte, Remaining Length of two bytes, length of the Topic Name

Frame = tuple[bytes, bytes]
"""The PUBLISH before and after its packet identifier; for QoS 0 the first part is the whole packet."""


class Alias(NamedTuple):
    """A Topic Alias of one connection; a new one goes with the Topic Name, later the alias stands for it."""

    number: int
    is_new: bool


def publish_frame(
    delivery: Delivery,
    protocol_version: int,
    qos: int,
    retain: bool,
    subscription_ids: tuple[int, ...],
    wall_ms: int,
    dup: bool = False,
    alias: Alias | None = None,
) -> Frame:
    """The frame for subscribers of this version, QoS, RETAIN flag and Subscription Identifiers.

    Frames are kept on the delivery, by `frame_key`, when several subscribers share it. A message that expires is
    encoded for each subscriber (what is left of its expiry goes with it [MQTT5-3.3.2-6]), and so is one that carries
    Subscription Identifiers or a Topic Alias, or is sent again (`dup`).
    """
    if dup or alias is not None:
        return _own_frame(delivery, protocol_version, qos, retain, subscription_ids, wall_ms, dup, alias)
    payload, topic_name_utf8 = delivery.payload, delivery.topic_name_utf8
    properties = b""
    is_5 = protocol_version == MQTT_5
    expires = is_5 and delivery.expiry_s is not None
    if is_5 and (expires or subscription_ids or delivery.properties is not None):
        properties = _properties(delivery, subscription_ids, wall_ms)
    tail = publish_tail(payload, properties, protocol_version) if is_5 else payload
    # DUP 0: the first delivery to this client [MQTT5-3.3.1-3]
    size = len(topic_name_utf8) + len(tail) + (4 if qos else 2)
    if 0x80 <= size < 0x4000:  # nearly every PUBLISH there is: `publish_head` without the call
        first_byte = 0x30 | qos << 1 | retain
        head = _HEAD(first_byte, size & 0x7F | 0x80, size >> 7, len(topic_name_utf8)) + topic_name_utf8
    else:
        head = publish_head(topic_name_utf8, len(payload), qos, retain, False, properties, protocol_version)
    frame = (head, tail) if qos else (head + tail, b"")
    if delivery.frames is not None and not expires and not subscription_ids:
        delivery.frames[frame_key(protocol_version, qos, retain)] = frame
    return frame


def _own_frame(
    delivery: Delivery,
    protocol_version: int,
    qos: int,
    retain: bool,
    subscription_ids: tuple[int, ...],
    wall_ms: int,
    dup: bool,
    alias: Alias | None,
) -> Frame:
    """For one subscriber alone: DUP [MQTT5-3.3.1-1] [MQTT311-3.3.1-1], or a Topic Alias of its connection."""
    properties = b""
    if protocol_version == MQTT_5:
        properties = _properties(delivery, subscription_ids, wall_ms, alias.number if alias is not None else None)
    name = delivery.topic_name_utf8 if alias is None or alias.is_new else b""
    head = publish_head(name, len(delivery.payload), qos, retain, dup, properties, protocol_version)
    tail = publish_tail(delivery.payload, properties, protocol_version)
    return (head, tail) if qos else (head + tail, b"")


def frame_key(protocol_version: int, qos: int, retain: bool) -> int:
    """What decides the bytes of a message besides itself: QoS in bits 0 and 1, RETAIN in 2, the version above.

    3.1 and 3.1.1 have the same PUBLISH.
    """
    return qos | retain << 2 | (8 if protocol_version == MQTT_5 else 0)


def _properties(
    delivery: Delivery, subscription_ids: tuple[int, ...], wall_ms: int, topic_alias: int | None = None
) -> bytes:
    expiry_s = delivery.remaining_expiry_s(wall_ms)
    message = delivery.properties
    if message is None:
        return encode_publish_properties(
            message_expiry_interval_s=expiry_s, subscription_identifiers=subscription_ids, topic_alias=topic_alias
        )
    return encode_publish_properties(
        payload_format_indicator=message.payload_format,  # [MQTT5-3.3.2-4]
        message_expiry_interval_s=expiry_s,
        content_type=message.content_type,  # [MQTT5-3.3.2-20]
        response_topic=message.response_topic,  # [MQTT5-3.3.2-15]
        correlation_data=message.correlation_data,  # [MQTT5-3.3.2-16]
        subscription_identifiers=subscription_ids,  # [MQTT5-3.3.4-3]
        topic_alias=topic_alias,
        user_properties=message.user_properties,  # [MQTT5-3.3.2-17] [MQTT5-3.3.2-18]
    )
