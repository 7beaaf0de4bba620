"""Writing the data types of §1.5 and the properties of §2.2.2. They raise ``Unencodable`` only."""

from __future__ import annotations

from typing import Final

from edge.wire import packet_types
from edge.wire.errors import Unencodable
from edge.wire.properties import PROPERTIES, WILL, DataType, Properties, PropertySpec

VARIABLE_BYTES_MAX: Final = 268_435_455
_BITS: Final = {DataType.FLAG: 1, DataType.BIT: 1, DataType.TWO_BYTES: 0xFFFF, DataType.FOUR_BYTES: 0xFFFFFFFF}
_SINGLE: Final = tuple(bytes((value,)) for value in range(128))


def variable_bytes(value: int) -> bytes:
    """Write a Variable Byte Integer in its shortest form [MQTT5-1.5.5-1]."""
    if 0 <= value < 0x80:
        return _SINGLE[value]
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if not 0 <= value <= VARIABLE_BYTES_MAX:
        raise Unencodable(f"{value} does not fit a variable byte integer")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def two_bytes(value: int, what: str) -> bytes:
    """Write a Two Byte Integer."""
    if not 0 <= value <= 0xFFFF:
        raise Unencodable(f"{what}: {value} does not fit two bytes")
    return value.to_bytes(2, "big")


def packet_id_bytes(packet_id: int) -> bytes:
    """Write a packet identifier, never 0 [MQTT5-2.2.1-4] [MQTT311-2.3.1-1]."""
    if not 0 < packet_id <= 0xFFFF:
        raise Unencodable(f"packet identifier {packet_id}")
    return packet_id.to_bytes(2, "big")


def binary(value: bytes, what: str) -> bytes:
    """Write Binary Data: its length in two bytes, then the bytes."""
    if len(value) > 0xFFFF:
        raise Unencodable(f"{what}: {len(value)} bytes, more than 65,535")
    return len(value).to_bytes(2, "big") + value


def string(value: str, what: str) -> bytes:
    """Write a UTF-8 Encoded String [MQTT5-1.5.4-1] [MQTT5-1.5.4-2] [MQTT311-1.5.3-1] [MQTT311-1.5.3-2]."""
    try:
        raw = value.encode("utf-8")
    except UnicodeEncodeError:
        raise Unencodable(f"{what}: holds a surrogate") from None
    if b"\0" in raw:
        raise Unencodable(f"{what}: holds U+0000")
    return binary(raw, what)


def properties_bytes(properties: Properties | None, place: int) -> bytes:
    """Write the properties of a place (a packet type or WILL) behind their length; none are a 0 [MQTT5-2.2.2-1]."""
    if properties is None:
        return b"\0"
    parts: list[bytes] = []
    for spec in PROPERTIES:
        value = getattr(properties, spec.name)
        if value is None or value == ():
            continue
        if not spec.places >> place & 1:
            where = "a will" if place == WILL else packet_types.NAMES[place]
            raise Unencodable(f"{where} cannot carry {spec.name}")
        _append(parts, spec, value, place)
    body = b"".join(parts)
    return variable_bytes(len(body)) + body


def _append(parts: list[bytes], spec: PropertySpec, value: object, place: int) -> None:
    identifier = _SINGLE[spec.identifier]
    if isinstance(value, str):
        parts.append(identifier + string(value, spec.name))
    elif isinstance(value, bytes):
        parts.append(identifier + binary(value, spec.name))
    elif isinstance(value, int):
        parts.append(identifier + _number(spec, value))
    elif isinstance(value, tuple):
        if len(value) > 1 and spec.once_in >> place & 1:
            raise Unencodable(f"{spec.name} more than once")
        append_repeated(parts, spec, value)
    else:
        raise Unencodable(f"{spec.name}: {type(value).__name__}")


def append_repeated(parts: list[bytes], spec: PropertySpec, values: tuple[object, ...]) -> None:
    """Append one property per value, in order: subscription identifiers or user properties [MQTT5-3.3.2-18]."""
    identifier = _SINGLE[spec.identifier]
    for value in values:
        if isinstance(value, int):
            if value == 0:
                raise Unencodable(f"{spec.name} is 0")
            parts.append(identifier + variable_bytes(value))
        elif isinstance(value, tuple):
            name, text = value
            parts.append(identifier + string(name, spec.name) + string(text, spec.name))
        else:
            raise Unencodable(f"{spec.name}: {type(value).__name__}")


def _number(spec: PropertySpec, value: int) -> bytes:
    if not (spec.not_zero <= value <= _BITS.get(spec.data_type, -1)):
        raise Unencodable(f"{spec.name} is {value}")
    size = {DataType.TWO_BYTES: 2, DataType.FOUR_BYTES: 4}.get(spec.data_type, 1)
    return int(value).to_bytes(size, "big")
