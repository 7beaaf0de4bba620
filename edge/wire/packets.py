"""The control packets of MQTT 3.1, 3.1.1 and 5.0 as plain values: one class per packet, the same for all versions.

What a version does not have is at its default: reason code SUCCESS, no properties, options off. Strings are ``str``,
except the topic name of a PUBLISH: it stays raw bytes (``topic_name_utf8``), because an edge looks it up in a cache by
its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from edge.wire import packet_types
from edge.wire.properties import Properties
from edge.wire.reason_codes import ReasonCode


@dataclass(slots=True)
class Will:
    """The message a server publishes for a client that is gone (§3.1.2.5)."""

    topic_name: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Connect:
    """CONNECT (§3.1). ``protocol_version``: 3 (MQIsdp), 4 (3.1.1) or 5; ``clean_start`` is 3.1.1's Clean Session."""

    packet_type: ClassVar[int] = packet_types.CONNECT
    protocol_version: int
    client_id: str = ""
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = field(default=None, repr=False)
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Connack:
    """CONNACK (§3.2). 3.1.1's return codes are mapped by ``connack_return_code``."""

    packet_type: ClassVar[int] = packet_types.CONNACK
    session_present: bool = False
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Publish:
    """PUBLISH (§3.3). ``packet_id`` is 0 for QoS 0; ``topic_name_utf8`` is empty when a Topic Alias stands in (5.0)."""

    packet_type: ClassVar[int] = packet_types.PUBLISH
    topic_name_utf8: bytes
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties | None = None


@dataclass(slots=True)
class Puback:
    """PUBACK (§3.4): the answer to a QoS 1 PUBLISH."""

    packet_type: ClassVar[int] = packet_types.PUBACK
    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties | None = None


@dataclass(slots=True)
class Pubrec:
    """PUBREC (§3.5): the first answer to a QoS 2 PUBLISH."""

    packet_type: ClassVar[int] = packet_types.PUBREC
    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties | None = None


@dataclass(slots=True)
class Pubrel:
    """PUBREL (§3.6): the sender of a QoS 2 PUBLISH lets its packet identifier go."""

    packet_type: ClassVar[int] = packet_types.PUBREL
    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties | None = None


@dataclass(slots=True)
class Pubcomp:
    """PUBCOMP (§3.7): the end of a QoS 2 flow."""

    packet_type: ClassVar[int] = packet_types.PUBCOMP
    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties | None = None


@dataclass(slots=True)
class SubscriptionRequest:
    """One topic filter of a SUBSCRIBE with its Subscription Options (§3.8.3.1). 3.1.1 knows ``qos`` only."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE (§3.8). A Subscription Identifier is ``properties.subscription_identifiers[0]``."""

    packet_type: ClassVar[int] = packet_types.SUBSCRIBE
    packet_id: int
    subscriptions: tuple[SubscriptionRequest, ...]
    properties: Properties | None = None


@dataclass(slots=True)
class Suback:
    """SUBACK (§3.9): one reason code per topic filter, in order."""

    packet_type: ClassVar[int] = packet_types.SUBACK
    packet_id: int
    reason_codes: tuple[ReasonCode, ...]
    properties: Properties | None = None


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE (§3.10)."""

    packet_type: ClassVar[int] = packet_types.UNSUBSCRIBE
    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties | None = None


@dataclass(slots=True)
class Unsuback:
    """UNSUBACK (§3.11). ``reason_codes`` is empty in 3.1.1, which has none."""

    packet_type: ClassVar[int] = packet_types.UNSUBACK
    packet_id: int
    reason_codes: tuple[ReasonCode, ...] = ()
    properties: Properties | None = None


@dataclass(slots=True)
class Pingreq:
    """PINGREQ (§3.12)."""

    packet_type: ClassVar[int] = packet_types.PINGREQ


@dataclass(slots=True)
class Pingresp:
    """PINGRESP (§3.13)."""

    packet_type: ClassVar[int] = packet_types.PINGRESP


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT (§3.14). In 3.1.1 only a client sends it, without a reason."""

    packet_type: ClassVar[int] = packet_types.DISCONNECT
    reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION
    properties: Properties | None = None


@dataclass(slots=True)
class Auth:
    """AUTH (§3.15), 5.0 only."""

    packet_type: ClassVar[int] = packet_types.AUTH
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties | None = None


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
