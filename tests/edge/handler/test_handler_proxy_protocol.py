"""The PROXY header, version 2, as a pure function."""

from __future__ import annotations

import random

import pytest
from support.links import SIGNATURE, proxy_header

from edge.handler.proxy_protocol import (
    FIXED_BYTES,
    HEADER_BYTES_MAX,
    ProxyHeaderError,
    following_bytes,
    normal_address,
    parse_header,
    peer_of,
)


def read(header: bytes) -> str | None:
    """As an entrance reads it: 16 bytes, then what they announce."""
    length = following_bytes(header[:FIXED_BYTES])
    assert len(header) == FIXED_BYTES + length
    return parse_header(header)


@pytest.mark.parametrize(
    ("source", "peer"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("/var/run/client", "unix"),
    ],
)
def test_the_source_address_is_the_peer(source: str, peer: str) -> None:
    assert read(proxy_header(source)) == peer


def test_tlvs_are_skipped() -> None:
    """An SSL TLV that names a client, a broken one, and one as long as is taken: the address is all that counts."""
    ssl_tlv = b"\x20\x00\x0c\x07\x00\x00\x00\x00\x22\x00\x04root"
    for tlvs in (ssl_tlv, b"\xff\xff\xff", bytes(HEADER_BYTES_MAX - FIXED_BYTES - 12)):
        assert read(proxy_header("192.0.2.9", tlvs=tlvs)) == "192.0.2.9"


@pytest.mark.parametrize("family", [0x00, 0x11, 0x21, 0x31, 0xFF])
def test_local_is_the_proxy_itself(family: int) -> None:
    assert read(proxy_header(version_command=0x20, family=family)) is None
    assert read(SIGNATURE + bytes((0x20, family, 0, 0))) is None


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (b"PROXY TCP4 203.0.113.7 10.0.0.1 56324 1883\r\n", "version 1 of the PROXY protocol"),
        (b"\x10\x11\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x04abcd", "no PROXY header"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(9), "no PROXY header"),
        (SIGNATURE[:11] + b"X\x21\x11\x00\x0c" + bytes(12), "no PROXY header"),
        (proxy_header(version_command=0x11), "version 1, not 2"),
        (proxy_header(version_command=0x31), "version 3, not 2"),
        (proxy_header(version_command=0x22), "unknown command 2"),
        (proxy_header(version_command=0x2F), "unknown command 15"),
        (proxy_header(family=0x00), "family 0x00"),
        (proxy_header(family=0x12), "family 0x12"),
        (proxy_header(family=0x32), "family 0x32"),
        (proxy_header("192.0.2.1", family=0x21), "too short"),
        (proxy_header("2001:db8::1", family=0x31), "too short"),
        (SIGNATURE + b"\x21\x11\x00\x00", "too short"),
        (SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11), "too short"),
        (proxy_header(tlvs=bytes(HEADER_BYTES_MAX - FIXED_BYTES - 11)), "more than 16384 bytes"),
        (SIGNATURE + b"\x21\x11\xff\xff", "more than 16384 bytes"),
    ],
)
def test_what_is_refused_says_why(header: bytes, complaint: str) -> None:
    with pytest.raises(ProxyHeaderError, match=complaint):
        parse_header(header[: FIXED_BYTES + following_bytes(header[:FIXED_BYTES])])


def test_any_bytes_give_a_peer_or_the_one_error() -> None:
    seed = 20261121
    random.seed(seed)
    for _ in range(20_000):
        header = bytearray(proxy_header(random.choice(("192.0.2.1", "2001:db8::1", "/x")), tlvs=random.randbytes(8)))
        for _ in range(random.randrange(4)):
            header[random.randrange(len(header))] = random.randrange(256)
        try:
            length = following_bytes(bytes(header[:FIXED_BYTES]))
            peer = parse_header(bytes(header[:FIXED_BYTES] + header[FIXED_BYTES:].ljust(length, b"\0")[:length]))
        except ProxyHeaderError:
            continue
        assert peer is None or peer == "unix" or "." in peer or ":" in peer, f"seed {seed}"


def test_a_sockets_peer() -> None:
    assert peer_of(("192.0.2.1", 5)) == "192.0.2.1"
    assert peer_of(("::ffff:192.0.2.1", 5, 0, 0)) == "192.0.2.1"
    assert peer_of(("2001:db8::1", 5, 0, 0)) == "2001:db8::1"
    for nobody in ("", b"", None, ()):
        assert peer_of(nobody) == "unix"
    assert normal_address("::ffff:0:1") == "0.0.0.1"
