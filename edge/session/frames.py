"""One application message as the bytes of a PUBLISH, encoded once and shared by all subscribers that may share it."""

from bridge.delivery import Delivery
from edge.wire import encode_publish_properties, publish_head, publish_tail

MQTT_5 = 5

Frame = tuple[bytes, bytes]
"""The PUBLISH before and after its packet identifier; for QoS 0 the first part is the whole packet."""


def publish_frame(
    delivery: Delivery, protocol_version: int, qos: int, retain: bool, subscription_ids: tuple[int, ...], wall_ms: int
) -> Frame:
    """The frame for subscribers of this version, QoS, RETAIN flag and Subscription Identifiers.

    Frames are kept on the delivery, by `frame_key`, so that a fan-out encodes once. A message that expires is encoded
    for each subscriber (what is left of its Message Expiry Interval goes with it [MQTT5-3.3.2-6]), and so is one that
    carries Subscription Identifiers.
    """
    payload = delivery.payload
    properties = b""
    is_5 = protocol_version == MQTT_5
    expires = is_5 and delivery.expiry_s is not None
    if is_5 and (expires or subscription_ids or delivery.properties is not None):
        properties = _properties(delivery, subscription_ids, wall_ms)
    # DUP 0: the first delivery to this client [MQTT5-3.3.1-3]
    head = publish_head(delivery.topic_name_utf8, len(payload), qos, retain, False, properties, protocol_version)
    tail = publish_tail(payload, properties, protocol_version) if is_5 else payload
    frame = (head, tail) if qos else (head + tail, b"")
    if not expires and not subscription_ids:
        key = frame_key(protocol_version, qos, retain)
        if delivery.frames is None:
            delivery.frames = {key: frame}
        else:
            delivery.frames[key] = frame
    return frame


def frame_key(protocol_version: int, qos: int, retain: bool) -> int:
    """What decides the bytes of a message besides itself: QoS in bits 0 and 1, RETAIN in 2, the version above.

    3.1 and 3.1.1 have the same PUBLISH.
    """
    return qos | retain << 2 | (8 if protocol_version == MQTT_5 else 0)


def _properties(delivery: Delivery, subscription_ids: tuple[int, ...], wall_ms: int) -> bytes:
    expiry_s = delivery.remaining_expiry_s(wall_ms)
    message = delivery.properties
    if message is None:
        return encode_publish_properties(message_expiry_interval_s=expiry_s, subscription_identifiers=subscription_ids)
    return encode_publish_properties(
        payload_format_indicator=message.payload_format or None,  # [MQTT5-3.3.2-4]
        message_expiry_interval_s=expiry_s,
        content_type=message.content_type,  # [MQTT5-3.3.2-20]
        response_topic=message.response_topic,  # [MQTT5-3.3.2-15]
        correlation_data=message.correlation_data,  # [MQTT5-3.3.2-16]
        subscription_identifiers=subscription_ids,  # [MQTT5-3.3.4-3]
        user_properties=message.user_properties,  # [MQTT5-3.3.2-17] [MQTT5-3.3.2-18]
    )
