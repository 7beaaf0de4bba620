"""Ways to an edge other than plain TCP: TLS, a Unix socket, behind a proxy; each gives a `WireClient`."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import aiohttp
from support.wire_client import Link, TcpLink, WebSocketLink, WireClient

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def proxy_header(
    source: str = "203.0.113.7", *, version_command: int = 0x21, family: int | None = None, tlvs: bytes = b""
) -> bytes:
    """A PROXY header of version 2 for a client at `source`: an address, or the path of a Unix socket."""
    if "/" in source:
        addresses, natural = source.encode().ljust(108, b"\0") * 2, 0x31
    else:
        packed = ip_address(source).packed
        addresses, natural = packed + packed + bytes(4), 0x11 if len(packed) == 4 else 0x21
    rest = addresses + tlvs
    fixed = bytes((version_command, natural if family is None else family))
    return SIGNATURE + fixed + len(rest).to_bytes(2, "big") + rest


@asynccontextmanager
async def dial_link(
    address: tuple[str, int], *, tls: ssl.SSLContext | None = None, before: bytes = b"", version: int = 5
) -> AsyncIterator[WireClient]:
    """TCP, with `before` sent ahead of everything, then TLS where a context is given."""
    loop = asyncio.get_running_loop()
    made = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    made.setblocking(False)
    await loop.sock_connect(made, address)
    if before:
        await loop.sock_sendall(made, before)
    host = address[0] if tls is not None else None
    async with _client(TcpLink(*await asyncio.open_connection(sock=made, ssl=tls, server_hostname=host)), version) as c:
        yield c


@asynccontextmanager
async def dial_unix(path: Path, version: int = 5) -> AsyncIterator[WireClient]:
    """A Unix socket."""
    async with _client(TcpLink(*await asyncio.open_unix_connection(path)), version) as client:
        yield client


@asynccontextmanager
async def dial_wss(address: tuple[str, int], tls: ssl.SSLContext) -> AsyncIterator[WireClient]:
    """MQTT over WebSocket over TLS."""
    session = aiohttp.ClientSession()
    url = f"https://{address[0]}:{address[1]}/mqtt"
    try:
        link = WebSocketLink(session, await session.ws_connect(url, protocols=("mqtt",), ssl=tls))
    except BaseException:
        await session.close()
        raise
    async with _client(link, 5) as client:
        yield client


@asynccontextmanager
async def _client(link: Link, version: int) -> AsyncIterator[WireClient]:
    client = WireClient(link, version)
    try:
        yield client
    finally:
        await client.close()
