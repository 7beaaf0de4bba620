"""Reason codes: the whole table of MQTT 5.0 (§2.4) and its mapping to 3.1.1 CONNACK return codes (§3.2.2.3).

The ``*_CODES`` tables say which codes a packet may carry; they map the byte to its member, so that decoding is one
look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class ReasonCode(IntEnum):
    """One reason code. 0x00 has three names in the standard: Success, Normal disconnection, Granted QoS 0."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def is_error(self) -> bool:
        """0x80 and above report a failure (§2.4)."""
        return self >= 0x80


ReasonCodes = Mapping[int, ReasonCode]


def _codes(*values: int) -> ReasonCodes:
    return MappingProxyType({value: ReasonCode(value) for value in values})


CONNACK_CODES: Final = _codes(
    0x00,
    *range(0x80, 0x8B),
    *(0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F),
)  # [MQTT5-3.2.2-8]
PUBACK_CODES: Final = _codes(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)  # [MQTT5-3.4.2-1] [MQTT5-3.5.2-1]
PUBREL_CODES: Final = _codes(0x00, 0x92)  # [MQTT5-3.6.2-1] [MQTT5-3.7.2-1]
SUBACK_CODES: Final = _codes(0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)  # [MQTT5-3.9.3-2]
SUBACK_CODES_311: Final = _codes(0, 1, 2, 0x80)  # [MQTT311-3.9.3-2]
UNSUBACK_CODES: Final = _codes(0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)  # [MQTT5-3.11.3-2]
_DISCONNECT_BOTH = (0x00, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A))
DISCONNECT_CLIENT_CODES: Final = _codes(0x04, *_DISCONNECT_BOTH)  # [MQTT5-3.14.2-1]
DISCONNECT_SERVER_CODES: Final = _codes(
    *_DISCONNECT_BOTH, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3)
)  # [MQTT5-3.14.2-1]
DISCONNECT_CODES: Final = _codes(*DISCONNECT_CLIENT_CODES, *DISCONNECT_SERVER_CODES)
AUTH_CLIENT_CODES: Final = _codes(0x18, 0x19)  # [MQTT5-3.15.2-1]
AUTH_SERVER_CODES: Final = _codes(0x00, 0x18)  # [MQTT5-3.15.2-1]
AUTH_CODES: Final = _codes(0x00, 0x18, 0x19)

# 3.1.1 has five refusals; the codes of 5.0 that a server may wish to send are folded into the nearest one.
_RETURN_CODES: Final[Mapping[ReasonCode, int]] = MappingProxyType(
    {
        ReasonCode.SUCCESS: 0,
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
        ReasonCode.SERVER_UNAVAILABLE: 3,
        ReasonCode.SERVER_BUSY: 3,
        ReasonCode.USE_ANOTHER_SERVER: 3,
        ReasonCode.SERVER_MOVED: 3,
        ReasonCode.QUOTA_EXCEEDED: 3,
        ReasonCode.CONNECTION_RATE_EXCEEDED: 3,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
        ReasonCode.NOT_AUTHORIZED: 5,
        ReasonCode.BANNED: 5,
        ReasonCode.BAD_AUTHENTICATION_METHOD: 5,
    }
)
_FROM_RETURN_CODE: Final = (
    ReasonCode.SUCCESS,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
)


def connack_return_code(reason_code: ReasonCode) -> int | None:
    """Give the 3.1.1 CONNACK return code, or None: then the server closes without a CONNACK [MQTT311-3.2.2-6]."""
    return _RETURN_CODES.get(reason_code)


def reason_code_from_return_code(return_code: int) -> ReasonCode | None:
    """Give the reason code a 3.1.1 CONNACK return code stands for, or None for the reserved ones."""
    return _FROM_RETURN_CODE[return_code] if 0 <= return_code < len(_FROM_RETURN_CODE) else None
