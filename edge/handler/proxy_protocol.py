"""Where a client comes from: the socket's word, or that of a proxy that is trusted (PROXY protocol, version 2). Pure.

    header    signature (12 bytes), version and command, family and protocol, length (2 bytes); then `length` bytes:
              source and destination addresses and ports, then TLVs
    PROXY     the client's address is the source address
    LOCAL     the proxy speaks for itself (a health check): the socket's own address counts

TLVs are skipped: what a proxy says of a client's certificate or name is never believed. The text form (version 1) is
refused. The format is that of https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt, section 2.2.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Any, Final

FIXED_BYTES: Final = 16
HEADER_BYTES_MAX: Final = 16 * 1024  # addresses are 216 bytes at most; the rest is TLVs, a certificate among them
UNIX_PEER: Final = "unix"  # as in `edge.access.principal`

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_TEXT_FORM: Final = b"PROXY "
_VERSION: Final = 2
_LOCAL, _PROXY = 0, 1
# family and protocol -> bytes of both addresses and ports; TCP over IPv4, over IPv6, Unix stream sockets
_TCP4, _TCP6, _UNIX_STREAM = 0x11, 0x21, 0x31
_ADDRESS_BYTES: Final = {_TCP4: 12, _TCP6: 36, _UNIX_STREAM: 216}


class ProxyHeaderError(Exception):
    """The connection does not begin with a PROXY header that is taken: close it."""


def following_bytes(fixed: bytes) -> int:
    """How many bytes of the header follow its first 16. Raises ProxyHeaderError."""
    assert len(fixed) == FIXED_BYTES
    if fixed.startswith(_TEXT_FORM):
        raise ProxyHeaderError("version 1 of the PROXY protocol (text) is not taken: make the proxy send version 2")
    if not fixed.startswith(_SIGNATURE):
        raise ProxyHeaderError("no PROXY header: does the proxy send one?")
    length = int.from_bytes(fixed[14:16], "big")
    if length > HEADER_BYTES_MAX - FIXED_BYTES:
        raise ProxyHeaderError(f"a PROXY header of more than {HEADER_BYTES_MAX} bytes")
    return length


def parse_header(header: bytes) -> str | None:
    """The client's address without its port; None: the socket's own address counts (LOCAL).

    `header` is whole: 16 bytes and what `following_bytes` said. Raises ProxyHeaderError.
    """
    assert len(header) == FIXED_BYTES + following_bytes(header[:FIXED_BYTES])
    version, command = header[12] >> 4, header[12] & 0x0F
    if version != _VERSION:
        raise ProxyHeaderError(f"PROXY header of version {version}, not {_VERSION}")
    if command == _LOCAL:
        return None
    if command != _PROXY:
        raise ProxyHeaderError(f"PROXY header with the unknown command {command}")
    family = header[13]
    address_bytes = _ADDRESS_BYTES.get(family)
    if address_bytes is None:  # unspecified, or datagrams: nobody could be held to the limits
        raise ProxyHeaderError(f"PROXY header of the family {family:#04x}: neither TCP nor a Unix stream socket")
    addresses = header[FIXED_BYTES:]
    if len(addresses) < address_bytes:
        raise ProxyHeaderError("a PROXY header too short for its addresses")
    if family == _UNIX_STREAM:
        return UNIX_PEER
    return normal_address(str(ip_address(addresses[: 4 if family == _TCP4 else 16])))


def peer_of(peer_name: Any) -> str:
    """A socket's peer as limits, bans and events know it: the address without its port, `unix` for a Unix socket."""
    return normal_address(str(peer_name[0])) if isinstance(peer_name, tuple) and peer_name else UNIX_PEER


def normal_address(address: str) -> str:
    """An IPv4 address mapped into IPv6, as a dual-stack socket gives it, as IPv4; anything else as it is."""
    if not address.startswith("::ffff:"):
        return address
    mapped = IPv6Address(address).ipv4_mapped
    return str(mapped) if mapped is not None else address
