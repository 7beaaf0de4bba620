"""What can go wrong in the codec.

    ProtocolViolation            the peer's fault: carries the reason code to answer with and the clause it broke
    ├── MalformedPacket          0x81  the bytes cannot be read as the standard says
    ├── ProtocolError            0x82  readable, but not allowed here
    ├── UnsupportedProtocolVersion 0x84
    ├── TopicFilterInvalid       0x8F
    ├── TopicNameInvalid         0x90
    ├── PacketTooLarge           0x95
    └── QuotaExceeded            0x97  more entries in one packet than the codec takes
    Unencodable                  our own fault: a value that no packet can carry

Decoding raises nothing but ``ProtocolViolation``, encoding nothing but ``Unencodable``.
"""

from __future__ import annotations

from typing import ClassVar

from edge.wire.reason_codes import ReasonCode


class ProtocolViolation(Exception):  # noqa: N818 - the tree is named for what the peer did
    """The peer broke the protocol: close the connection, with ``reason_code`` where a packet can say it.

    ``clause`` is the broken statement (``MQTT5-3.1.2-3``) or section (``MQTT5 §2.2.2.2``). ``protocol_version`` is 3, 4
    or 5, or 0 while no CONNECT has told it: a 3.1.1 client gets no reason, its connection is just closed
    [MQTT311-3.1.4-1].
    """

    reason_code: ClassVar[ReasonCode] = ReasonCode.UNSPECIFIED_ERROR

    def __init__(self, message: str, clause: str, protocol_version: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.clause = clause
        self.protocol_version = protocol_version

    def __str__(self) -> str:
        return f"{self.message} [{self.clause}]"

    def __reduce__(self) -> tuple[type[ProtocolViolation], tuple[str, str, int]]:
        return type(self), (self.message, self.clause, self.protocol_version)


class MalformedPacket(ProtocolViolation):
    """The packet cannot be parsed according to the standard (MQTT 5.0 §1.2)."""

    reason_code = ReasonCode.MALFORMED_PACKET


class ProtocolError(ProtocolViolation):
    """The packet parses, but holds what the protocol does not allow (MQTT 5.0 §1.2)."""

    reason_code = ReasonCode.PROTOCOL_ERROR


class UnsupportedProtocolVersion(ProtocolViolation):
    """CONNECT asks for a protocol that is neither MQIsdp 3, MQTT 4 nor MQTT 5.

    ``protocol_level`` is the level asked for, or None when the protocol name is not one of MQTT's: then just close.
    """

    reason_code = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION

    def __init__(self, message: str, clause: str, protocol_version: int = 0, protocol_level: int | None = None) -> None:
        super().__init__(message, clause, protocol_version)
        self.protocol_level = protocol_level


class TopicFilterInvalid(ProtocolViolation):
    """A topic filter that can never be subscribed to."""

    reason_code = ReasonCode.TOPIC_FILTER_INVALID


class TopicNameInvalid(ProtocolViolation):
    """A topic name that is empty or holds a wildcard."""

    reason_code = ReasonCode.TOPIC_NAME_INVALID


class PacketTooLarge(ProtocolViolation):
    """The packet is larger than the receiver takes: known from its Remaining Length, before anything is buffered."""

    reason_code = ReasonCode.PACKET_TOO_LARGE


class QuotaExceeded(ProtocolViolation):
    """The packet repeats a property or a topic filter more often than ``reader.REPEATED_MAX``."""

    reason_code = ReasonCode.QUOTA_EXCEEDED


class Unencodable(ValueError):  # noqa: N818 - see above
    """A packet of ours that no wire can carry: a string too long, packet identifier 0, a property out of place."""
