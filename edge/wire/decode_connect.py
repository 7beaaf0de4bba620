"""Decoding CONNECT (§3.1) and CONNACK (§3.2)."""

from __future__ import annotations

from typing import Final

from edge.wire import packet_types
from edge.wire.decode_publish import check_topic_name
from edge.wire.errors import UnsupportedProtocolVersion
from edge.wire.packets import Connack, Connect, Will
from edge.wire.properties import WILL, Properties
from edge.wire.reader import Reader
from edge.wire.reason_codes import CONNACK_CODES, reason_code_from_return_code

_LEVELS: Final = {b"MQIsdp": frozenset({3}), b"MQTT": frozenset({4, 5})}

_USER_NAME: Final = 0x80
_PASSWORD: Final = 0x40
_WILL_RETAIN: Final = 0x20
_WILL_QOS: Final = 0x18
_WILL: Final = 0x04
_CLEAN_START: Final = 0x02
_RESERVED: Final = 0x01


def decode_connect(reader: Reader) -> Connect:
    """Decode a CONNECT of any version; the reader's version is set to the one it names.

    Whether an empty client identifier is acceptable, and whether the client may connect at all, the session decides.
    """
    version = reader.protocol_version = _protocol_version(reader)
    flags = reader.byte("connect flags")
    _check_flags(reader, flags)
    keep_alive_s = reader.two_bytes("keep alive")
    properties = reader.properties(packet_types.CONNECT) if version == 5 else None
    client_id = reader.string(
        "client identifier"
    )  # [MQTT5-3.1.3-3] [MQTT5-3.1.3-4] [MQTT311-3.1.3-3] [MQTT311-3.1.3-4]
    will = _will(reader, flags) if flags & _WILL else None
    user_name = reader.string("user name") if flags & _USER_NAME else None  # [MQTT5-3.1.2-17] [MQTT311-3.1.2-19]
    password = reader.binary("password") if flags & _PASSWORD else None  # [MQTT5-3.1.2-19] [MQTT311-3.1.2-21]
    reader.finish()
    clean_start = flags & _CLEAN_START != 0
    return Connect(version, client_id, clean_start, keep_alive_s, will, user_name, password, properties or Properties())


def _protocol_version(reader: Reader) -> int:
    # Until the level is known, nobody knows which standard's clause a short packet breaks: say 3.1.1's.
    reader.protocol_version = 0
    name = reader.binary("protocol name")
    levels = _LEVELS.get(name)
    if levels is None:  # [MQTT5-3.1.2-1] [MQTT311-3.1.2-1]
        raise UnsupportedProtocolVersion("the protocol name is not MQTT's", "MQTT311-3.1.2-1")
    level = reader.byte("protocol level")
    if level not in levels:  # [MQTT5-3.1.2-2] [MQTT311-3.1.2-2]
        clause = "MQTT5-3.1.2-2" if level > 5 else "MQTT311-3.1.2-2"
        raise UnsupportedProtocolVersion(f"protocol level {level} is not supported", clause, 0, level)
    return level


def _check_flags(reader: Reader, flags: int) -> None:
    if flags & _RESERVED:  # [MQTT5-3.1.2-3] [MQTT311-3.1.2-3]
        raise reader.malformed("the reserved connect flag is set", "MQTT5-3.1.2-3", "MQTT311-3.1.2-3")
    if flags & _WILL_QOS == _WILL_QOS:  # [MQTT5-3.1.2-12] [MQTT311-3.1.2-14]
        raise reader.malformed("will QoS 3", "MQTT5-3.1.2-12", "MQTT311-3.1.2-14")
    if not flags & _WILL:
        if flags & _WILL_QOS:  # [MQTT5-3.1.2-11] [MQTT311-3.1.2-13]
            raise reader.malformed("will QoS without a will", "MQTT5-3.1.2-11", "MQTT311-3.1.2-13")
        if flags & _WILL_RETAIN:  # [MQTT5-3.1.2-13] [MQTT311-3.1.2-15]
            raise reader.malformed("will retain without a will", "MQTT5-3.1.2-13", "MQTT311-3.1.2-15")
    if flags & _PASSWORD and not flags & _USER_NAME and reader.protocol_version < 5:  # [MQTT311-3.1.2-22]
        raise reader.malformed("a password without a user name", "", "MQTT311-3.1.2-22")


def _will(reader: Reader, flags: int) -> Will:
    """Read the will's fields, in the order of [MQTT5-3.1.3-1] and [MQTT311-3.1.3-1]."""
    properties = reader.properties(WILL) if reader.protocol_version == 5 else None
    topic_name = reader.string("will topic")  # [MQTT5-3.1.3-11] [MQTT311-3.1.3-10]
    check_topic_name(topic_name, reader.protocol_version)
    payload = reader.binary("will payload")
    return Will(topic_name, payload, flags >> 3 & 3, flags & _WILL_RETAIN != 0, properties or Properties())


def decode_connack(reader: Reader) -> Connack:
    """Decode a CONNACK; a 3.1.1 return code becomes the reason code it stands for."""
    flags = reader.byte("connect acknowledge flags")
    if reader.protocol_version == 3:
        flags = 0  # 3.1 reserves this byte, and knows no session present flag
    if flags > 1:  # [MQTT5-3.2.2-1]
        raise reader.malformed("reserved connect acknowledge flags are set", "MQTT5-3.2.2-1", "MQTT311 §3.2.2.1")
    code = reader.byte("reason code")
    is_5 = reader.protocol_version == 5
    reason_code = CONNACK_CODES.get(code) if is_5 else reason_code_from_return_code(code)
    if reason_code is None:  # [MQTT5-3.2.2-8]
        raise reader.protocol_error(f"0x{code:02X} is no code of CONNACK", "MQTT5-3.2.2-8", "MQTT311 §3.2.2.3")
    if flags and code:  # [MQTT5-3.2.2-6] [MQTT311-3.2.2-4]
        raise reader.protocol_error("session present on a refusal", "MQTT5-3.2.2-6", "MQTT311-3.2.2-4")
    properties = reader.properties(packet_types.CONNACK) if is_5 else None
    reader.finish()
    return Connack(flags == 1, reason_code, properties or Properties())
