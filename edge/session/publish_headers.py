"""The record headers of a PUBLISH that carries more than a topic name and a payload. Pure.

The layout is that of `schemas.records`: properties become documented headers, in the packet's order.
"""

from edge.access.limits import Limits
from edge.session.effects import PublishTarget
from edge.wire import Properties, Publish, ReasonCode
from schemas.records import (
    HEADER_CONTENT_TYPE,
    HEADER_CORRELATION_DATA,
    HEADER_EXPIRY_S,
    HEADER_PAYLOAD_FORMAT,
    HEADER_RESPONSE_TOPIC,
    HEADER_RETAIN,
    HEADER_USER_PREFIX,
    Header,
)


def record_headers(packet: Publish, target: PublishTarget, limits: Limits) -> list[Header] | ReasonCode:
    """The target's headers and those of the packet's flags and properties, or the reason code of the refusal."""
    headers = list(target.headers[packet.qos])
    if packet.retain:
        headers.append((HEADER_RETAIN, b"1"))
    properties = packet.properties
    if properties is None:
        return headers
    if properties.payload_format_indicator is not None:
        if properties.payload_format_indicator and not _is_utf8(packet.payload):
            return ReasonCode.PAYLOAD_FORMAT_INVALID  # MQTT 5.0 section 3.3.2.3.2
        headers.append((HEADER_PAYLOAD_FORMAT, b"%d" % properties.payload_format_indicator))
    if not _within(properties.user_properties, limits):
        return ReasonCode.QUOTA_EXCEEDED
    headers += _plain(properties)
    headers += ((HEADER_USER_PREFIX + name, value.encode()) for name, value in properties.user_properties)
    return headers


def _plain(properties: Properties) -> list[Header]:
    headers: list[Header] = []
    if properties.message_expiry_interval_s is not None:
        headers.append((HEADER_EXPIRY_S, b"%d" % properties.message_expiry_interval_s))
    if properties.content_type is not None:
        headers.append((HEADER_CONTENT_TYPE, properties.content_type.encode()))
    if properties.response_topic is not None:
        headers.append((HEADER_RESPONSE_TOPIC, properties.response_topic.encode()))
    if properties.correlation_data is not None:
        headers.append((HEADER_CORRELATION_DATA, properties.correlation_data))
    return headers


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _within(user_properties: tuple[tuple[str, str], ...], limits: Limits) -> bool:
    if not user_properties:
        return True
    octets = sum(len(name.encode()) + len(value.encode()) for name, value in user_properties)
    return len(user_properties) <= limits.user_properties_max and octets <= limits.user_properties_bytes_max
