"""Reading the data types of §1.5 and the properties of §2.2.2 out of one packet's body, never past its end.

Every method raises ``MalformedPacket`` when the body is too short or the bytes are wrong, with the clause of the
reader's protocol version; ``properties`` also raises ``ProtocolError``. Sections named without a version are those of
MQTT 5.0.
"""

from __future__ import annotations

from typing import Final

from edge.wire import packet_types
from edge.wire.errors import MalformedPacket, ProtocolError, QuotaExceeded
from edge.wire.properties import SPECS, WILL, DataType, Properties, PropertySpec

# Plain numbers: looking a member up on its Enum class costs more than reading the property.
_FLAG: Final = DataType.FLAG.value
_TWO_BYTES: Final = DataType.TWO_BYTES.value
_FOUR_BYTES: Final = DataType.FOUR_BYTES.value
_VARIABLE_BYTES: Final = DataType.VARIABLE_BYTES.value
_STRING: Final = DataType.STRING.value
_BINARY: Final = DataType.BINARY.value
_STRING_PAIR: Final = DataType.STRING_PAIR.value

# User properties, subscription identifiers or topic filters in one packet. An edge's own limits are lower and
# configurable (32 and 100); this one bounds what a packet of the largest size can cost before they are asked: 3 ms.
REPEATED_MAX: Final = 1_024


class Reader:
    """A position in one packet's body. ``sender`` is FROM_CLIENT, FROM_SERVER or FROM_ANY."""

    __slots__ = ("body", "end", "position", "protocol_version", "sender")

    def __init__(
        self, body: bytes, protocol_version: int, sender: int = packet_types.FROM_ANY, position: int = 0
    ) -> None:
        self.body = body
        self.position = position
        self.end = len(body)
        self.protocol_version = protocol_version
        self.sender = sender

    def malformed(self, message: str, clause_5: str, clause_311: str) -> MalformedPacket:
        """Build the error with the clause of this packet's version."""
        clause = clause_5 if self.protocol_version == 5 else clause_311
        return MalformedPacket(message, clause, self.protocol_version)

    def protocol_error(self, message: str, clause_5: str, clause_311: str = "MQTT311-4.8.0-1") -> ProtocolError:
        """Build the error with the clause of this packet's version."""
        clause = clause_5 if self.protocol_version == 5 else clause_311
        return ProtocolError(message, clause, self.protocol_version)

    def _take(self, size: int, what: str) -> int:
        position = self.position
        if position + size > self.end:
            raise self._ends_inside(what)
        self.position = position + size
        return position

    def _ends_inside(self, what: str) -> MalformedPacket:
        return self.malformed(f"the packet ends inside its {what}", "MQTT5 §2.1.4", "MQTT311 §2.2.3")

    def byte(self, what: str) -> int:
        """Read one byte."""
        position = self._take(1, what)
        return self.body[position]

    def two_bytes(self, what: str) -> int:
        """Read a Two Byte Integer, big-endian (§1.5.2)."""
        position = self._take(2, what)
        body = self.body
        return body[position] << 8 | body[position + 1]

    def four_bytes(self, what: str) -> int:
        """Read a Four Byte Integer, big-endian (§1.5.3)."""
        position = self._take(4, what)
        return int.from_bytes(self.body[position : position + 4], "big")

    def variable_bytes(self, what: str) -> int:
        """Read a Variable Byte Integer of at most four bytes, in its shortest form (§1.5.5)."""
        position = self.position
        if position < self.end and self.body[position] < 0x80:  # one byte: nearly always
            self.position = position + 1
            return self.body[position]
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte(what)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:  # [MQTT5-1.5.5-1]
                    raise self.malformed(f"{what}: not the shortest form", "MQTT5-1.5.5-1", "MQTT311 §2.2.3")
                return value
        raise self.malformed(f"{what}: a fifth byte", "MQTT5 §1.5.5", "MQTT311 §2.2.3")

    def binary(self, what: str) -> bytes:
        """Read Binary Data: a length of two bytes, then the bytes (§1.5.6)."""
        body, position, end = self.body, self.position, self.end
        start = position + 2
        stop = start + (body[position] << 8 | body[position + 1]) if start <= end else start
        if stop > end:
            raise self._ends_inside(what)
        self.position = stop
        return body[start:stop]

    def string(self, what: str) -> str:
        """Read a UTF-8 Encoded String: no surrogates, no U+0000; U+FEFF is kept (§1.5.4)."""
        try:
            # [MQTT5-1.5.4-1] [MQTT5-1.5.4-3] [MQTT311-1.5.3-1] [MQTT311-1.5.3-3]
            value = str(self.binary(what), "utf-8")
        except UnicodeDecodeError:
            raise self.malformed(f"{what}: not UTF-8", "MQTT5-1.5.4-1", "MQTT311-1.5.3-1") from None
        if "\0" in value:  # [MQTT5-1.5.4-2] [MQTT311-1.5.3-2]
            raise self.malformed(f"{what}: holds U+0000", "MQTT5-1.5.4-2", "MQTT311-1.5.3-2")
        return value

    def packet_id(self) -> int:
        """Read a packet identifier, which is never 0."""
        packet_id = self.two_bytes("packet identifier")
        if packet_id == 0:  # [MQTT5-2.2.1-3] [MQTT311-2.3.1-1]
            raise self.protocol_error("packet identifier 0", "MQTT5-2.2.1-3", "MQTT311-2.3.1-1")
        return packet_id

    def check_repeated(self, number: int, what: str) -> None:
        """Raise QuotaExceeded for the entry after the last one that a packet may have."""
        if number > REPEATED_MAX:
            clause = "MQTT5 §4.13" if self.protocol_version == 5 else "MQTT311 §4.8"
            raise QuotaExceeded(f"more than {REPEATED_MAX} {what}", clause, self.protocol_version)

    def finish(self) -> None:
        """Check that nothing is left: a packet is exactly as long as its Remaining Length says."""
        if self.position != self.end:
            left = self.end - self.position
            raise self.malformed(f"{left} bytes after the packet's last field", "MQTT5 §2.1.4", "MQTT311 §2.2.3")

    def properties(self, place: int) -> Properties | None:
        """Read a property length and the properties of ``place`` (a packet type or WILL); None when there are none.

        Raises MalformedPacket for an unknown identifier or one out of place, ProtocolError for a repetition or a value
        that is out of range (§2.2.2.2).
        """
        length = self.variable_bytes("property length")
        if length == 0:
            return None
        position = self._take(length, "properties")
        packet_end = self.end
        self.position, self.end = position, position + length
        properties = Properties()
        repeated: tuple[list[int], list[tuple[str, str]]] = ([], [])  # lists: appending to tuples would be quadratic
        seen = 0
        while self.position < self.end:
            spec = self._next_spec(place, seen)
            seen |= 1 << spec.identifier
            if spec.data_type == _STRING_PAIR:
                repeated[1].append((self.string(spec.name), self.string(spec.name)))  # [MQTT5-1.5.7-1]
                self.check_repeated(len(repeated[1]), spec.name)
            elif spec.data_type == _VARIABLE_BYTES:
                repeated[0].append(self._number(spec, self.variable_bytes(spec.name)))
                self.check_repeated(len(repeated[0]), spec.name)
            else:
                setattr(properties, spec.name, self._value(spec))
        properties.subscription_identifiers = tuple(repeated[0])
        properties.user_properties = tuple(repeated[1])  # [MQTT5-3.3.2-18]
        self.end = packet_end
        self._check_together(properties)
        return properties

    def _next_spec(self, place: int, seen: int) -> PropertySpec:
        """Read the next property's identifier; check that it may stand here."""
        identifier = self.body[self.position]
        self.position += 1
        spec = SPECS[identifier]
        if spec is None or not spec.places >> place & 1:
            where = "a will" if place == WILL else packet_types.NAMES[place]
            raise self.malformed(f"property 0x{identifier:02X} is not one of {where}", "MQTT5 §2.2.2.2", "")
        if seen >> identifier & 1 and spec.once_in >> place & 1:
            raise self.protocol_error(f"{spec.name} more than once", "MQTT5 §2.2.2.2")
        return spec

    def _value(self, spec: PropertySpec) -> int | bool | str | bytes:
        data_type = spec.data_type
        if data_type == _STRING:
            return self.string(spec.name)
        if data_type == _BINARY:
            return self.binary(spec.name)
        if data_type == _FOUR_BYTES:
            return self._number(spec, self.four_bytes(spec.name))
        if data_type == _TWO_BYTES:
            return self._number(spec, self.two_bytes(spec.name))
        value = self.byte(spec.name)
        if value > 1:
            raise self.protocol_error(f"{spec.name} is {value}: neither 0 nor 1", f"MQTT5 {spec.section}")
        return value == 1 if data_type == _FLAG else value

    def _number(self, spec: PropertySpec, value: int) -> int:
        if value == 0 and spec.not_zero:
            raise self.protocol_error(f"{spec.name} is 0", f"MQTT5 {spec.section}")
        return value

    def _check_together(self, properties: Properties) -> None:
        """Check what no single property shows."""
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise self.protocol_error("authentication data without a method", "MQTT5 §3.1.2.11.10")
        response_topic = properties.response_topic
        if response_topic is not None and ("+" in response_topic or "#" in response_topic):  # [MQTT5-3.3.2-14]
            raise self.protocol_error("response topic holds a wildcard", "MQTT5-3.3.2-14")
