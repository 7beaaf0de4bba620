"""The 27 properties of MQTT 5.0 (§2.2.2.2): their values, and the table of identifiers, data types and places.

``Properties`` holds one packet's properties; absent ones are None, the repeatable two are tuples in packet order.
Reading is in ``reader``, writing in ``writer``: both follow ``PROPERTIES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from edge.wire import packet_types


@dataclass(slots=True)
class Properties:
    """The properties of one packet, or of a will. Lengths and times carry their unit in the name."""

    payload_format_indicator: int | None = None
    message_expiry_interval_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval_s: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive_s: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: bool | None = None
    will_delay_interval_s: int | None = None
    request_response_information: bool | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size_bytes: int | None = None
    wildcard_subscription_available: bool | None = None
    subscription_identifier_available: bool | None = None
    shared_subscription_available: bool | None = None


class DataType(IntEnum):
    """How a property's value is written (§1.5). BIT is a byte that may be 0 or 1, FLAG the same as a bool."""

    FLAG = 0
    BIT = 1
    TWO_BYTES = 2
    FOUR_BYTES = 3
    VARIABLE_BYTES = 4
    STRING = 5
    BINARY = 6
    STRING_PAIR = 7


@dataclass(frozen=True, slots=True)
class PropertySpec:
    """One row of the standard's table 2-4.

    ``places`` has bit ``1 << place`` for each packet type that may carry the property, bit 0 for will properties;
    ``once_in`` the same for the places where it may stand only once. ``section`` is where the standard describes it.
    """

    identifier: int
    name: str
    data_type: DataType
    section: str
    places: int
    once_in: int
    not_zero: bool = False


WILL: Final = 0  # the place of will properties: packet type 0 is reserved, so its bit is free

_EVERYWHERE: Final = frozenset(range(16)) - {packet_types.PINGREQ, packet_types.PINGRESP}
_MESSAGE: Final = frozenset({WILL, packet_types.PUBLISH})
_CONNECTING: Final = frozenset({packet_types.CONNECT, packet_types.CONNACK})
_CONNECT: Final = frozenset({packet_types.CONNECT})
_PUBLISH: Final = frozenset({packet_types.PUBLISH})
_IDENTIFIED: Final = frozenset({packet_types.PUBLISH, packet_types.SUBSCRIBE})
_WILL: Final = frozenset({WILL})
_CONNACK: Final = frozenset({packet_types.CONNACK})
_WITH_REASON: Final = frozenset({2, 4, 5, 6, 7, 9, 11, 14, 15})  # every packet that can carry a reason code
# Where a property may stand more than once: user properties everywhere, subscription identifiers in PUBLISH.
_REPEATABLE: Final = {0x26: 0xFFFF, 0x0B: 1 << packet_types.PUBLISH}


def _spec(
    identifier: int, name: str, data_type: DataType, section: str, places: frozenset[int], *, not_zero: bool = False
) -> PropertySpec:
    where = sum(1 << place for place in places)
    once_in = where & ~_REPEATABLE.get(identifier, 0)
    return PropertySpec(identifier, name, data_type, section, where, once_in, not_zero)


PROPERTIES: Final = (
    _spec(0x01, "payload_format_indicator", DataType.BIT, "§3.3.2.3.2", _MESSAGE),
    _spec(0x02, "message_expiry_interval_s", DataType.FOUR_BYTES, "§3.3.2.3.3", _MESSAGE),
    _spec(0x03, "content_type", DataType.STRING, "§3.3.2.3.9", _MESSAGE),
    _spec(0x08, "response_topic", DataType.STRING, "§3.3.2.3.5", _MESSAGE),
    _spec(0x09, "correlation_data", DataType.BINARY, "§3.3.2.3.6", _MESSAGE),
    _spec(0x0B, "subscription_identifiers", DataType.VARIABLE_BYTES, "§3.8.2.1.2", _IDENTIFIED, not_zero=True),
    _spec(
        0x11, "session_expiry_interval_s", DataType.FOUR_BYTES, "§3.1.2.11.2", _CONNECTING | {packet_types.DISCONNECT}
    ),
    _spec(0x12, "assigned_client_identifier", DataType.STRING, "§3.2.2.3.7", _CONNACK),
    _spec(0x13, "server_keep_alive_s", DataType.TWO_BYTES, "§3.2.2.3.14", _CONNACK),
    _spec(0x15, "authentication_method", DataType.STRING, "§3.1.2.11.9", _CONNECTING | {packet_types.AUTH}),
    _spec(0x16, "authentication_data", DataType.BINARY, "§3.1.2.11.10", _CONNECTING | {packet_types.AUTH}),
    _spec(0x17, "request_problem_information", DataType.FLAG, "§3.1.2.11.7", _CONNECT),
    _spec(0x18, "will_delay_interval_s", DataType.FOUR_BYTES, "§3.1.3.2.2", _WILL),
    _spec(0x19, "request_response_information", DataType.FLAG, "§3.1.2.11.6", _CONNECT),
    _spec(0x1A, "response_information", DataType.STRING, "§3.2.2.3.15", _CONNACK),
    _spec(0x1C, "server_reference", DataType.STRING, "§3.2.2.3.16", _CONNACK | {packet_types.DISCONNECT}),
    _spec(0x1F, "reason_string", DataType.STRING, "§3.2.2.3.9", _WITH_REASON),
    _spec(0x21, "receive_maximum", DataType.TWO_BYTES, "§3.1.2.11.3", _CONNECTING, not_zero=True),
    _spec(0x22, "topic_alias_maximum", DataType.TWO_BYTES, "§3.1.2.11.5", _CONNECTING),
    _spec(0x23, "topic_alias", DataType.TWO_BYTES, "§3.3.2.3.4", _PUBLISH, not_zero=True),
    _spec(0x24, "maximum_qos", DataType.BIT, "§3.2.2.3.4", _CONNACK),
    _spec(0x25, "retain_available", DataType.FLAG, "§3.2.2.3.5", _CONNACK),
    _spec(0x26, "user_properties", DataType.STRING_PAIR, "§3.1.2.11.8", _EVERYWHERE),
    _spec(0x27, "maximum_packet_size_bytes", DataType.FOUR_BYTES, "§3.1.2.11.4", _CONNECTING, not_zero=True),
    _spec(0x28, "wildcard_subscription_available", DataType.FLAG, "§3.2.2.3.11", _CONNACK),
    _spec(0x29, "subscription_identifier_available", DataType.FLAG, "§3.2.2.3.12", _CONNACK),
    _spec(0x2A, "shared_subscription_available", DataType.FLAG, "§3.2.2.3.13", _CONNACK),
)

_BY_IDENTIFIER: Final = {spec.identifier: spec for spec in PROPERTIES}
# Identifiers are variable byte integers, but all are below 128: one byte looks the row up, anything else is unknown.
SPECS: Final = tuple(_BY_IDENTIFIER.get(identifier) for identifier in range(256))
