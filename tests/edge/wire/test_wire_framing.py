"""The framer: sizes are refused before anything is buffered, and what came before an error is not lost."""

from __future__ import annotations

import pytest

from edge.wire import Framer, MalformedPacket, PacketTooLarge

PINGREQ = b"\xc0\x00"
CONNECT_5 = bytes.fromhex("10 0D 00 04 4D 51 54 54 05 02 00 3C 00 00 00")
CONNECT_311 = bytes.fromhex("10 0C 00 04 4D 51 54 54 04 02 00 3C 00 00")


def test_a_large_packet_is_refused_when_its_length_is_read() -> None:
    framer = Framer(1_000)
    assert framer.feed(PINGREQ + b"\x30\xe6\x07") == [(0xC0, b"")]  # 998 + 3 bytes
    assert isinstance(framer.error, PacketTooLarge)
    assert framer.buffered_bytes == 0
    with pytest.raises(PacketTooLarge):
        framer.feed(PINGREQ)


def test_a_packet_of_exactly_the_maximum_passes() -> None:
    packet = b"\x30\xe5\x07" + bytes(997)
    assert Framer(1_000).feed(packet) == [(0x30, bytes(997))]


def test_the_maximum_can_be_raised_between_packets() -> None:
    framer = Framer(64)
    framer.feed(CONNECT_311)
    framer.packet_bytes_max = 1_000
    assert framer.feed(b"\x30\xe5\x07" + bytes(997)) == [(0x30, bytes(997))]


def test_a_packet_in_many_reads_is_buffered_once() -> None:
    framer = Framer(300_000)
    body = bytes(range(256)) * 1_000
    packet = b"\x30\x80\xd0\x0f" + body
    frames = []
    for start in range(0, len(packet), 1_000):
        assert framer.buffered_bytes == start
        frames += framer.feed(packet[start : start + 1_000])
    assert frames == [(0x30, body)]
    assert framer.buffered_bytes == 0


def test_a_fifth_length_byte_is_malformed() -> None:
    framer = Framer(1 << 30)
    assert framer.feed(b"\x30\xff\xff\xff") == []
    assert framer.error is None
    assert framer.feed(b"\xff") == []
    assert isinstance(framer.error, MalformedPacket)


def test_a_length_of_four_bytes_is_read() -> None:
    framer = Framer(1 << 30)
    assert framer.feed(b"\x30\xff\xff\xff\x7f") == []
    assert framer.error is None


@pytest.mark.parametrize(("connect", "is_refused"), [(CONNECT_5, True), (CONNECT_311, False)])
def test_the_version_of_the_connect_decides_on_long_forms(connect: bytes, is_refused: bool) -> None:
    together = Framer(1_000)
    together.feed(connect + b"\xc0\x80\x00")
    apart = Framer(1_000)
    apart.feed(connect)
    apart.feed(b"\xc0\x80\x00")
    assert (together.error is not None) is is_refused
    assert (apart.error is not None) is is_refused


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100])
def test_a_connect_of_5_itself_is_held_to_the_shortest_form(step: int) -> None:
    packet = b"\x10\x8d\x00" + CONNECT_5[2:]
    framer = Framer(1_000)
    for start in range(0, len(packet), step):
        if framer.error is None:
            assert framer.feed(packet[start : start + step]) == []
    assert framer.error is not None
    assert framer.error.clause == "MQTT5-1.5.5-1"


def test_an_empty_read_changes_nothing() -> None:
    framer = Framer(1_000)
    assert framer.feed(b"") == []
    assert framer.feed(b"\xc0") == []
    assert framer.feed(b"") == []
    assert framer.feed(b"\x00") == [(0xC0, b"")]
