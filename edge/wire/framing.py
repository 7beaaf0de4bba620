"""Cutting a byte stream into frames: a packet's first byte and its body (§2.1), whatever the chunking.

The Framer never buffers more than one packet of ``packet_bytes_max``: a longer one is refused when its Remaining Length
is read. Pure: bytes in, frames out.
"""

from __future__ import annotations

from edge.wire.errors import MalformedPacket, PacketTooLarge, ProtocolViolation

Frame = tuple[int, bytes]

_CONNECT_5 = b"\x00\x04MQTT\x05"


class Framer:
    """An incremental framer for one direction of one connection.

    ``packet_bytes_max`` (whole packet, fixed header included) may be changed at any time; it holds for the packets
    whose header is read afterwards. ``protocol_version`` is 0 until it is known: the Framer takes it from the first
    frame when that is a CONNECT, a client sets it. From 5 on, a Remaining Length must be in its shortest form
    [MQTT5-1.5.5-1].
    """

    __slots__ = ("_needed_bytes", "_partial", "error", "packet_bytes_max", "protocol_version")

    def __init__(self, packet_bytes_max: int, protocol_version: int = 0) -> None:
        self.packet_bytes_max = packet_bytes_max
        self.protocol_version = protocol_version
        self.error: ProtocolViolation | None = None
        self._partial = bytearray()
        self._needed_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """The bytes of the packet that is not whole yet; 0 between packets."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[Frame]:
        """Take what was read, give every packet that is now complete.

        A violation does not swallow the packets before it: they are returned, ``error`` is set, and the caller closes
        after handling them. Feeding again after an error raises it.
        """
        if self.error is not None:
            raise self.error
        if self._partial:
            partial = self._partial
            if len(partial) + len(data) < self._needed_bytes:
                partial += data
                return []
            data = b"".join((partial, data))
            partial.clear()
        frames: list[Frame] = []
        position, end = 0, len(data)
        maximum = self.packet_bytes_max
        needed_bytes = 2
        while end - position >= 2:
            start = position + 2
            size = data[position + 1]
            if size >= 0x80:
                if start < end and 0 < data[start] < 0x80:  # two bytes, up to 16,383: inline, most packets end here
                    size = size & 0x7F | data[start] << 7
                    start += 1
                else:
                    start, size = self._long_length(data, position, frames)
                    if start == 0:  # the Remaining Length is not whole yet, or wrong
                        needed_bytes = end - position + 1
                        break
            stop = start + size
            if stop - position > maximum:
                self.error = self._too_large(stop - position)
                break
            if stop > end:
                needed_bytes = stop - position
                break
            frames.append((data[position], data[start:stop]))
            position = stop
        if self.error is None and position < end:
            self._partial += data[position:] if position else data
            self._needed_bytes = needed_bytes
        if frames and not self.protocol_version:
            self.protocol_version = _version_of(frames[0])
        return frames

    def _long_length(self, data: bytes, position: int, frames: list[Frame]) -> tuple[int, int]:
        """Read a Remaining Length of two to four bytes: (body's start, its size), or (0, 0) if not whole or wrong."""
        size = 0
        for index in range(4):
            if position + 1 + index >= len(data):
                return 0, 0
            byte = data[position + 1 + index]
            size |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                start = position + 2 + index
                if byte == 0 and self._is_version_5(data, position, start, frames):  # [MQTT5-1.5.5-1]
                    self.error = MalformedPacket("Remaining Length: not the shortest form", "MQTT5-1.5.5-1", 5)
                    return 0, 0
                return start, size
        clause = "MQTT5 §2.1.4" if self.protocol_version == 5 else "MQTT311 §2.2.3"
        self.error = MalformedPacket("Remaining Length: a fifth byte", clause, self.protocol_version)
        return 0, 0

    def _is_version_5(self, data: bytes, position: int, start: int, frames: list[Frame]) -> bool:
        """Tell whether the packet at ``position`` is of 5.0, be it the first one, which says so itself."""
        if self.protocol_version:
            return self.protocol_version == 5
        first = frames[0] if frames else (data[position], data[start : start + len(_CONNECT_5)])
        return _version_of(first) == 5

    def _too_large(self, packet_bytes: int) -> PacketTooLarge:
        clause = "MQTT5 §3.1.2.11.4" if self.protocol_version == 5 else "MQTT311 §2.2.3"
        message = f"a packet of {packet_bytes} bytes, more than {self.packet_bytes_max}"
        return PacketTooLarge(message, clause, self.protocol_version)


def _version_of(first: Frame) -> int:
    """Give 5 for a CONNECT of 5.0, 4 for anything else: all that framing needs to know."""
    return 5 if first[0] == 0x10 and first[1].startswith(_CONNECT_5) else 4
