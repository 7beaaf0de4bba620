"""Decoding every packet but CONNECT, CONNACK and PUBLISH."""

from __future__ import annotations

from typing import Final

from edge.wire import packet_types
from edge.wire.errors import TopicFilterInvalid
from edge.wire.packets import (
    Auth,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from edge.wire.properties import Properties
from edge.wire.reader import Reader
from edge.wire.reason_codes import (
    AUTH_CLIENT_CODES,
    AUTH_CODES,
    AUTH_SERVER_CODES,
    DISCONNECT_CLIENT_CODES,
    DISCONNECT_CODES,
    DISCONNECT_SERVER_CODES,
    PUBACK_CODES,
    PUBREL_CODES,
    SUBACK_CODES,
    SUBACK_CODES_311,
    UNSUBACK_CODES,
    ReasonCode,
    ReasonCodes,
)

# By sender: FROM_ANY, FROM_CLIENT, FROM_SERVER.
_DISCONNECT_CODES: Final = (DISCONNECT_CODES, DISCONNECT_CLIENT_CODES, DISCONNECT_SERVER_CODES)
_AUTH_CODES: Final = (AUTH_CODES, AUTH_CLIENT_CODES, AUTH_SERVER_CODES)


def _reason(reader: Reader, codes: ReasonCodes, clause_5: str, clause_311: str = "") -> ReasonCode:
    code = reader.byte("reason code")
    reason_code = codes.get(code)
    if reason_code is None:
        raise reader.protocol_error(f"0x{code:02X} is no reason code of this packet", clause_5, clause_311)
    return reason_code


def _acknowledgement(
    reader: Reader, place: int, codes: ReasonCodes, clause: str
) -> tuple[int, ReasonCode, Properties | None]:
    """Read what PUBACK, PUBREC, PUBREL and PUBCOMP share: reason code and properties may be left out (§3.4.2.1)."""
    packet_id = reader.packet_id()
    reason_code, properties = ReasonCode.SUCCESS, None
    if reader.protocol_version == 5 and reader.position < reader.end:
        reason_code = _reason(reader, codes, clause)
        if reader.position < reader.end:
            properties = reader.properties(place)
    reader.finish()
    return packet_id, reason_code, properties


def decode_puback(reader: Reader) -> Puback:
    """Decode a PUBACK."""
    return Puback(*_acknowledgement(reader, packet_types.PUBACK, PUBACK_CODES, "MQTT5-3.4.2-1"))


def decode_pubrec(reader: Reader) -> Pubrec:
    """Decode a PUBREC."""
    return Pubrec(*_acknowledgement(reader, packet_types.PUBREC, PUBACK_CODES, "MQTT5-3.5.2-1"))


def decode_pubrel(reader: Reader) -> Pubrel:
    """Decode a PUBREL."""
    return Pubrel(*_acknowledgement(reader, packet_types.PUBREL, PUBREL_CODES, "MQTT5-3.6.2-1"))


def decode_pubcomp(reader: Reader) -> Pubcomp:
    """Decode a PUBCOMP."""
    return Pubcomp(*_acknowledgement(reader, packet_types.PUBCOMP, PUBREL_CODES, "MQTT5-3.7.2-1"))


def decode_subscribe(reader: Reader) -> Subscribe:
    """Decode a SUBSCRIBE. Filters are checked for UTF-8 and emptiness; the session judges the syntax of each."""
    packet_id = reader.packet_id()
    properties = reader.properties(packet_types.SUBSCRIBE) if reader.protocol_version == 5 else None
    subscriptions = []
    while reader.position < reader.end:
        subscriptions.append(_subscription(reader))
        reader.check_repeated(len(subscriptions), "topic filters")
    if not subscriptions:  # [MQTT5-3.8.3-2] [MQTT311-3.8.3-3]
        raise reader.protocol_error("SUBSCRIBE without a topic filter", "MQTT5-3.8.3-2", "MQTT311-3.8.3-3")
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _topic_filter(reader: Reader) -> str:
    topic_filter = reader.string(
        "topic filter"
    )  # [MQTT5-3.8.3-1] [MQTT5-3.10.3-1] [MQTT311-3.8.3-1] [MQTT311-3.10.3-1]
    if not topic_filter:  # [MQTT5-4.7.3-1] [MQTT311-4.7.3-1]
        clause = "MQTT5-4.7.3-1" if reader.protocol_version == 5 else "MQTT311-4.7.3-1"
        raise TopicFilterInvalid("topic filter is empty", clause, reader.protocol_version)
    return topic_filter


def _subscription(reader: Reader) -> SubscriptionRequest:
    topic_filter = _topic_filter(reader)
    options = reader.byte("subscription options")
    qos = options & 3
    if reader.protocol_version < 5:
        if options > 2:  # [MQTT311-3-8.3-4]
            raise reader.malformed(f"requested QoS byte 0x{options:02X}", "", "MQTT311-3-8.3-4")
        return SubscriptionRequest(topic_filter, qos)
    if options & 0xC0:  # [MQTT5-3.8.3-5]
        raise reader.malformed("reserved subscription options are set", "MQTT5-3.8.3-5", "")
    no_local = options & 4 != 0
    retain_handling = options >> 4
    if qos == 3:
        raise reader.protocol_error("subscription with QoS 3", "MQTT5 §3.8.3.1")
    if retain_handling == 3:
        raise reader.protocol_error("retain handling 3", "MQTT5 §3.8.3.1")
    if no_local and topic_filter.startswith("$share/"):  # [MQTT5-3.8.3-4]
        raise reader.protocol_error("no local on a shared subscription", "MQTT5-3.8.3-4")
    return SubscriptionRequest(topic_filter, qos, no_local, options & 8 != 0, retain_handling)


def _reasons(reader: Reader, codes: ReasonCodes, clause_5: str, clause_311: str) -> tuple[ReasonCode, ...]:
    reason_codes = []
    while reader.position < reader.end:
        reason_codes.append(_reason(reader, codes, clause_5, clause_311))
        reader.check_repeated(len(reason_codes), "reason codes")
    if not reason_codes:
        raise reader.malformed("no reason code", "MQTT5 §3.9.3", "MQTT311 §3.9.3")
    return tuple(reason_codes)


def decode_suback(reader: Reader) -> Suback:
    """Decode a SUBACK."""
    packet_id = reader.packet_id()
    is_5 = reader.protocol_version == 5
    properties = reader.properties(packet_types.SUBACK) if is_5 else None
    codes = SUBACK_CODES if is_5 else SUBACK_CODES_311
    return Suback(packet_id, _reasons(reader, codes, "MQTT5-3.9.3-2", "MQTT311-3.9.3-2"), properties)


def decode_unsubscribe(reader: Reader) -> Unsubscribe:
    """Decode an UNSUBSCRIBE."""
    packet_id = reader.packet_id()
    properties = reader.properties(packet_types.UNSUBSCRIBE) if reader.protocol_version == 5 else None
    topic_filters = []
    while reader.position < reader.end:
        topic_filters.append(_topic_filter(reader))
        reader.check_repeated(len(topic_filters), "topic filters")
    if not topic_filters:  # [MQTT5-3.10.3-2] [MQTT311-3.10.3-2]
        raise reader.protocol_error("UNSUBSCRIBE without a topic filter", "MQTT5-3.10.3-2", "MQTT311-3.10.3-2")
    return Unsubscribe(packet_id, tuple(topic_filters), properties)


def decode_unsuback(reader: Reader) -> Unsuback:
    """Decode an UNSUBACK; 3.1.1 has no payload."""
    packet_id = reader.packet_id()
    if reader.protocol_version < 5:
        reader.finish()
        return Unsuback(packet_id)
    properties = reader.properties(packet_types.UNSUBACK)
    return Unsuback(packet_id, _reasons(reader, UNSUBACK_CODES, "MQTT5-3.11.3-2", ""), properties)


def decode_pingreq(reader: Reader) -> Pingreq:
    """Decode a PINGREQ."""
    reader.finish()
    return Pingreq()


def decode_pingresp(reader: Reader) -> Pingresp:
    """Decode a PINGRESP."""
    reader.finish()
    return Pingresp()


def decode_disconnect(reader: Reader) -> Disconnect:
    """Decode a DISCONNECT; reason code and properties may be left out (§3.14.2)."""
    packet = Disconnect()
    if reader.protocol_version == 5 and reader.end:
        packet.reason_code = _reason(reader, _DISCONNECT_CODES[reader.sender], "MQTT5-3.14.2-1")
        if reader.position < reader.end:
            packet.properties = reader.properties(packet_types.DISCONNECT)
        _check_disconnect_sender(reader, packet.properties)
    reader.finish()
    return packet


def _check_disconnect_sender(reader: Reader, properties: Properties | None) -> None:
    if properties is None:
        return
    if reader.sender == packet_types.FROM_SERVER and properties.session_expiry_interval_s is not None:
        raise reader.protocol_error("a server sent a session expiry interval", "MQTT5-3.14.2-2")  # [MQTT5-3.14.2-2]
    if reader.sender == packet_types.FROM_CLIENT and properties.server_reference is not None:
        raise reader.protocol_error("a client sent a server reference", "MQTT5 §3.14.2.2.5")


def decode_auth(reader: Reader) -> Auth:
    """Decode an AUTH. It names its authentication method, but an AUTH 0x00 of a server may be empty (§3.15.2.1)."""
    packet = Auth()
    if reader.end or reader.sender == packet_types.FROM_CLIENT:
        packet.reason_code = _reason(reader, _AUTH_CODES[reader.sender], "MQTT5-3.15.2-1")
        packet.properties = reader.properties(packet_types.AUTH)
        if packet.properties is None or packet.properties.authentication_method is None:
            raise reader.protocol_error("AUTH without an authentication method", "MQTT5 §3.15.2.2.2")
    reader.finish()
    return packet
