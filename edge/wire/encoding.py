"""From a packet to its bytes: ``encode``, and ``encode_within`` for a peer with a Maximum Packet Size.

Encoding raises ``Unencodable`` only: for values that the decoder of the same version would refuse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edge.wire import packet_types
from edge.wire.decode_publish import check_topic_name, check_topic_name_utf8
from edge.wire.encode_publish import encode_publish
from edge.wire.errors import ProtocolViolation, Unencodable
from edge.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from edge.wire.properties import WILL
from edge.wire.reason_codes import (
    AUTH_CODES,
    CONNACK_CODES,
    DISCONNECT_CODES,
    PUBACK_CODES,
    PUBREL_CODES,
    SUBACK_CODES,
    UNSUBACK_CODES,
    ReasonCode,
    ReasonCodes,
    connack_return_code,
)
from edge.wire.writer import binary, packet_id_bytes, properties_bytes, string, two_bytes, variable_bytes

_ACKNOWLEDGEMENT_CODES: Final = {
    packet_types.PUBACK: PUBACK_CODES,
    packet_types.PUBREC: PUBACK_CODES,
    packet_types.PUBREL: PUBREL_CODES,
    packet_types.PUBCOMP: PUBREL_CODES,
}


def encode(packet: Packet, protocol_version: int) -> bytes:
    """Encode a packet. In 3.1.1 properties and most reason codes have no place on the wire and are left out.

    Raises Unencodable, also for a CONNACK whose reason code 3.1.1 cannot say: ask ``connack_return_code`` first.
    """
    match packet:
        case Publish():
            return _encode_publish(packet, protocol_version)
        case Puback() | Pubrec() | Pubrel() | Pubcomp():
            return _encode_acknowledgement(packet, protocol_version)
        case Pingreq():
            return b"\xc0\x00"
        case Pingresp():
            return b"\xd0\x00"
        case Connect():
            return _frame(0x10, _connect(packet))
        case Connack():
            return _frame(0x20, _connack(packet, protocol_version))
        case Subscribe():
            return _frame(0x82, _subscribe(packet, protocol_version))
        case Suback():
            return _frame(0x90, _suback(packet, protocol_version))
        case Unsubscribe():
            return _frame(0xA2, _unsubscribe(packet, protocol_version))
        case Unsuback():
            return _frame(0xB0, _unsuback(packet, protocol_version))
        case Disconnect():
            return _frame(0xE0, _disconnect(packet) if protocol_version == 5 else b"")
        case Auth():
            return _frame(0xF0, _auth(packet, protocol_version))


def encode_within(
    packet: Packet, protocol_version: int, packet_bytes_max: int | None, *, problem_information: bool = True
) -> bytes | None:
    """Encode for a peer with a Maximum Packet Size: too long, a packet loses user properties, then its reason string.

    None when it is too large all the same: it is not sent, as if it had been [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]. A
    PUBLISH keeps what its publisher put in. ``problem_information`` False is the client's wish to see neither of the
    two but on PUBLISH, CONNACK and DISCONNECT [MQTT5-3.1.2-29].
    """
    if not problem_information and not isinstance(packet, Connack | Disconnect):
        packet = _without(packet, reason_string=True)
    encoded = encode(packet, protocol_version)
    if packet_bytes_max is None or len(encoded) <= packet_bytes_max:
        return encoded
    for reason_string in (False, True):  # [MQTT5-3.2.2-19] [MQTT5-3.2.2-20] and the same of every other answer
        encoded = encode(_without(packet, reason_string=reason_string), protocol_version)
        if len(encoded) <= packet_bytes_max:
            return encoded
    return None


def _without(packet: Packet, *, reason_string: bool) -> Packet:
    """Give the packet without user properties, and without reason string if so wished."""
    if (
        isinstance(packet, Publish | Pingreq | Pingresp | Connect | Subscribe | Unsubscribe)
        or packet.properties is None
    ):
        return packet
    properties = replace(packet.properties, user_properties=())
    if reason_string:
        properties.reason_string = None
    return replace(packet, properties=properties)


def _frame(first_byte: int, body: bytes) -> bytes:
    return bytes((first_byte,)) + variable_bytes(len(body)) + body


def _reason(reason_code: ReasonCode, codes: ReasonCodes, what: str) -> bytes:
    if reason_code not in codes:
        raise Unencodable(f"{what} cannot carry reason code 0x{reason_code:02X}")
    return bytes((reason_code,))


def _encode_publish(packet: Publish, protocol_version: int) -> bytes:
    properties = packet.properties
    aliased = protocol_version == 5 and properties is not None and properties.topic_alias is not None
    if packet.topic_name_utf8 or not aliased:
        try:
            check_topic_name_utf8(packet.topic_name_utf8, protocol_version)
        except ProtocolViolation as violation:
            raise Unencodable(str(violation)) from None
    return encode_publish(
        packet.topic_name_utf8,
        packet.payload,
        packet.qos,
        packet.retain,
        packet.dup,
        packet.packet_id,
        properties,
        protocol_version,
    )


def _encode_acknowledgement(packet: Puback | Pubrec | Pubrel | Pubcomp, protocol_version: int) -> bytes:
    """Leave out what may be left out: no properties, no property length; no reason either on success (§3.4.2.1)."""
    packet_type = packet.packet_type
    first_byte = packet_type << 4 | (2 if packet_type == packet_types.PUBREL else 0)
    body = packet_id_bytes(packet.packet_id)
    if protocol_version == 5:
        properties = properties_bytes(packet.properties, packet_type)
        if properties != b"\0" or packet.reason_code:
            name = packet_types.NAMES[packet_type]
            body += _reason(packet.reason_code, _ACKNOWLEDGEMENT_CODES[packet_type], name)
        if properties != b"\0":
            body += properties
    return _frame(first_byte, body)


def _connect(packet: Connect) -> bytes:
    version = packet.protocol_version
    if version not in (3, 4, 5):
        raise Unencodable(f"protocol version {version}")
    if version < 5 and packet.password is not None and packet.user_name is None:  # [MQTT311-3.1.2-22]
        raise Unencodable("a password without a user name")
    name = b"\x00\x06MQIsdp" if version == 3 else b"\x00\x04MQTT"
    parts = [name, bytes((version, _connect_flags(packet))), two_bytes(packet.keep_alive_s, "keep alive")]
    if version == 5:
        parts.append(properties_bytes(packet.properties, packet_types.CONNECT))
    parts.append(string(packet.client_id, "client identifier"))
    if packet.will is not None:
        parts.append(_will(packet.will, version))
    if packet.user_name is not None:
        parts.append(string(packet.user_name, "user name"))
    if packet.password is not None:
        parts.append(binary(packet.password, "password"))
    return b"".join(parts)


def _connect_flags(packet: Connect) -> int:
    flags = (packet.user_name is not None) << 7 | (packet.password is not None) << 6 | packet.clean_start << 1
    if packet.will is not None:
        flags |= packet.will.retain << 5 | packet.will.qos << 3 | 0x04
    return flags


def _will(will: Will, version: int) -> bytes:
    if not 0 <= will.qos <= 2:
        raise Unencodable(f"will QoS {will.qos}")
    try:
        check_topic_name(will.topic_name, version)
    except ProtocolViolation as violation:
        raise Unencodable(str(violation)) from None
    properties = properties_bytes(will.properties, WILL) if version == 5 else b""
    return properties + string(will.topic_name, "will topic") + binary(will.payload, "will payload")


def _connack(packet: Connack, protocol_version: int) -> bytes:
    if packet.session_present and packet.reason_code:  # [MQTT5-3.2.2-6] [MQTT311-3.2.2-4]
        raise Unencodable("session present on a refusal")
    if protocol_version == 5:
        code = _reason(packet.reason_code, CONNACK_CODES, "CONNACK")
        return bytes((packet.session_present,)) + code + properties_bytes(packet.properties, packet_types.CONNACK)
    return_code = connack_return_code(packet.reason_code)
    if return_code is None:  # [MQTT311-3.2.2-6]
        raise Unencodable(f"3.1.1 has no return code for 0x{packet.reason_code:02X}: close instead")
    # 3.1 knows no session present flag: its byte is reserved.
    return bytes((packet.session_present and protocol_version == 4, return_code))


def _subscribe(packet: Subscribe, protocol_version: int) -> bytes:
    if not packet.subscriptions:  # [MQTT5-3.8.3-2] [MQTT311-3.8.3-3]
        raise Unencodable("SUBSCRIBE without a topic filter")
    parts = [packet_id_bytes(packet.packet_id)]
    if protocol_version == 5:
        parts.append(properties_bytes(packet.properties, packet_types.SUBSCRIBE))
    for request in packet.subscriptions:
        parts.append(_topic_filter(request.topic_filter))
        parts.append(bytes((_subscription_options(request, protocol_version),)))
    return b"".join(parts)


def _topic_filter(topic_filter: str) -> bytes:
    if not topic_filter:  # [MQTT5-4.7.3-1] [MQTT311-4.7.3-1]
        raise Unencodable("topic filter is empty")
    return string(topic_filter, "topic filter")


def _subscription_options(request: SubscriptionRequest, protocol_version: int) -> int:
    if not (0 <= request.qos <= 2 and 0 <= request.retain_handling <= 2):
        raise Unencodable(f"QoS {request.qos}, retain handling {request.retain_handling}")
    if protocol_version < 5:
        return request.qos
    if request.no_local and request.topic_filter.startswith("$share/"):  # [MQTT5-3.8.3-4]
        raise Unencodable("no local on a shared subscription")
    return request.retain_handling << 4 | request.retain_as_published << 3 | request.no_local << 2 | request.qos


def _suback(packet: Suback, protocol_version: int) -> bytes:
    if not packet.reason_codes:
        raise Unencodable("SUBACK without a reason code")
    head = packet_id_bytes(packet.packet_id)
    codes = b"".join(_reason(code, SUBACK_CODES, "SUBACK") for code in packet.reason_codes)  # [MQTT5-3.9.3-2]
    if protocol_version < 5:
        return head + bytes(min(code, 0x80) for code in codes)  # [MQTT311-3.9.3-2]
    return head + properties_bytes(packet.properties, packet_types.SUBACK) + codes


def _unsubscribe(packet: Unsubscribe, protocol_version: int) -> bytes:
    if not packet.topic_filters:  # [MQTT5-3.10.3-2] [MQTT311-3.10.3-2]
        raise Unencodable("UNSUBSCRIBE without a topic filter")
    head = packet_id_bytes(packet.packet_id)
    if protocol_version == 5:
        head += properties_bytes(packet.properties, packet_types.UNSUBSCRIBE)
    return head + b"".join(_topic_filter(topic_filter) for topic_filter in packet.topic_filters)


def _unsuback(packet: Unsuback, protocol_version: int) -> bytes:
    head = packet_id_bytes(packet.packet_id)
    if protocol_version < 5:
        return head
    if not packet.reason_codes:
        raise Unencodable("UNSUBACK without a reason code")
    codes = b"".join(_reason(code, UNSUBACK_CODES, "UNSUBACK") for code in packet.reason_codes)  # [MQTT5-3.11.3-2]
    return head + properties_bytes(packet.properties, packet_types.UNSUBACK) + codes


def _disconnect(packet: Disconnect) -> bytes:
    properties = properties_bytes(packet.properties, packet_types.DISCONNECT)
    if properties == b"\0":
        properties = b""
        if not packet.reason_code:
            return b""
    return _reason(packet.reason_code, DISCONNECT_CODES, "DISCONNECT") + properties


def _auth(packet: Auth, protocol_version: int) -> bytes:
    if protocol_version != 5:
        raise Unencodable("AUTH is 5.0 only")
    if not packet.reason_code and packet.properties is None:
        return b""
    return _reason(packet.reason_code, AUTH_CODES, "AUTH") + properties_bytes(packet.properties, packet_types.AUTH)
