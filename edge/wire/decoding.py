"""From one frame to one packet: ``decode_for_server``, ``decode_for_client`` and ``decode``.

PUBLISH and the success PUBACK come first: they are nearly all of an edge's traffic. All raise ``ProtocolViolation``
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge.wire import packet_types
from edge.wire.decode_connect import decode_connack, decode_connect
from edge.wire.decode_others import (
    decode_auth,
    decode_disconnect,
    decode_pingreq,
    decode_pingresp,
    decode_puback,
    decode_pubcomp,
    decode_pubrec,
    decode_pubrel,
    decode_suback,
    decode_subscribe,
    decode_unsuback,
    decode_unsubscribe,
)
from edge.wire.decode_publish import decode_publish
from edge.wire.errors import MalformedPacket, ProtocolError
from edge.wire.packets import Packet, Puback
from edge.wire.reader import Reader

_DECODERS: Final[tuple[Callable[[Reader], Packet], ...]] = (
    decode_connect,
    decode_connack,
    decode_puback,
    decode_pubrec,
    decode_pubrel,
    decode_pubcomp,
    decode_subscribe,
    decode_suback,
    decode_unsubscribe,
    decode_unsuback,
    decode_pingreq,
    decode_pingresp,
    decode_disconnect,
    decode_auth,
)
_BY_TYPE: Final = (None, *_DECODERS[:2], None, *_DECODERS[2:])  # PUBLISH has its own way in

_SENDERS_PACKETS: Final = (
    packet_types.CLIENT_PACKETS | packet_types.SERVER_PACKETS,
    packet_types.CLIENT_PACKETS,
    packet_types.SERVER_PACKETS,
)

_FLAGS_0010: Final = frozenset({packet_types.PUBREL, packet_types.SUBSCRIBE, packet_types.UNSUBSCRIBE})
_FLAG_CLAUSES: Final = {
    packet_types.PUBREL: ("MQTT5-3.6.1-1", "MQTT311-3.6.1-1"),
    packet_types.SUBSCRIBE: ("MQTT5-3.8.1-1", "MQTT311-3.8.1-1"),
    packet_types.UNSUBSCRIBE: ("MQTT5-3.10.1-1", "MQTT311-3.10.1-1"),
    packet_types.DISCONNECT: ("MQTT5-3.14.1-1", "MQTT311-3.14.1-1"),
    packet_types.AUTH: ("MQTT5-3.15.1-1", "MQTT311 §2.2.1"),
}


def decode_for_server(first_byte: int, body: bytes, protocol_version: int) -> Packet:
    """Decode what a client sent: the packets only a server sends are a protocol error.

    ``protocol_version`` is the connection's (3, 4, 5); before CONNECT any will do, CONNECT brings its own.
    """
    if first_byte == 0x40 and len(body) == 2:
        packet_id = body[0] << 8 | body[1]
        if packet_id:
            return Puback(packet_id)
    elif first_byte & 0xF0 == 0x30:
        return decode_publish(first_byte, body, protocol_version, 1)
    return _decode(first_byte, body, protocol_version, packet_types.FROM_CLIENT)


def decode_for_client(first_byte: int, body: bytes, protocol_version: int) -> Packet:
    """Decode what a server sent: the packets only a client sends are a protocol error."""
    if 0x30 <= first_byte < 0x40:
        return decode_publish(first_byte, body, protocol_version, packet_types.FROM_SERVER)
    return _decode(first_byte, body, protocol_version, packet_types.FROM_SERVER)


def decode(first_byte: int, body: bytes, protocol_version: int) -> Packet:
    """Decode a packet of either side (tools and tests)."""
    if 0x30 <= first_byte < 0x40:
        return decode_publish(first_byte, body, protocol_version)
    return _decode(first_byte, body, protocol_version, packet_types.FROM_ANY)


def _decode(first_byte: int, body: bytes, protocol_version: int, sender: int) -> Packet:
    packet_type = first_byte >> 4
    decoder = _BY_TYPE[packet_type]
    if decoder is None or (packet_type == packet_types.AUTH and protocol_version != 5):
        clause = "MQTT5 §2.1.2" if protocol_version == 5 else "MQTT311 §2.2.1"
        raise MalformedPacket(f"packet type {packet_type} is reserved", clause, protocol_version)
    _check_flags(packet_type, first_byte & 15, protocol_version)
    if packet_type not in _SENDERS_PACKETS[sender]:
        clause = "MQTT5 §2.1.2" if protocol_version == 5 else "MQTT311-4.8.0-1"
        side = "client" if sender == packet_types.FROM_CLIENT else "server"
        raise ProtocolError(f"a {side} sent {packet_types.NAMES[packet_type]}", clause, protocol_version)
    return decoder(Reader(body, protocol_version, sender))


def _check_flags(packet_type: int, flags: int, protocol_version: int) -> None:
    """Check the reserved flags of the fixed header [MQTT5-2.1.3-1] [MQTT311-2.2.2-1] [MQTT311-2.2.2-2]."""
    wanted = 2 if packet_type in _FLAGS_0010 else 0
    if protocol_version == 3 and wanted:
        flags &= 0b0111  # 3.1 lets a resend of these set DUP (V3.1 §2.1)
    if flags != wanted:
        clauses = _FLAG_CLAUSES.get(packet_type, ("MQTT5-2.1.3-1", "MQTT311-2.2.2-2"))
        clause = clauses[0] if protocol_version == 5 else clauses[1]
        name = packet_types.NAMES[packet_type]
        raise MalformedPacket(f"{name} with fixed header flags {flags:04b}", clause, protocol_version)
