"""A client that does what the test says, right or wrong: a socket, the codec, and nothing that helps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, Protocol, TypeVar

import aiohttp

from edge.wire import Connack, Connect, Framer, Packet, ReasonCode, decode_for_client, encode

WAIT_S = 10.0  # for what must come; a loaded machine is slow
Transport = Literal["tcp", "websocket"]
P = TypeVar("P")


class Link(Protocol):
    """Bytes to and from the edge."""

    async def write(self, data: bytes) -> None: ...

    async def read(self) -> bytes:
        """The next bytes; empty when the edge has closed."""
        ...

    async def close(self) -> None: ...


class TcpLink:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self) -> bytes:
        try:
            return await self.reader.read(65_536)
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


class WebSocketLink:
    def __init__(self, session: aiohttp.ClientSession, websocket: aiohttp.ClientWebSocketResponse) -> None:
        self.session = session
        self.websocket = websocket

    async def write(self, data: bytes) -> None:
        await self.websocket.send_bytes(data)

    async def read(self) -> bytes:
        message = await self.websocket.receive()
        return message.data if message.type is aiohttp.WSMsgType.BINARY else b""

    async def close(self) -> None:
        await self.websocket.close()
        await self.session.close()


class WireClient:
    """Sends packets or bytes, hands out packets one by one, and knows when the edge has closed."""

    def __init__(self, link: Link, protocol_version: int) -> None:
        self.link = link
        self.protocol_version = protocol_version
        self._framer = Framer(1 << 28, protocol_version)
        self._packets: list[Packet] = []
        self.is_closed = False

    async def send(self, *packets: Packet | bytes) -> None:
        """All of them with one write."""
        parts = [each if isinstance(each, bytes) else encode(each, self.protocol_version) for each in packets]
        try:
            await self.link.write(b"".join(parts))
        except ConnectionError:
            pass

    async def receive(self, kind: type[P], wait_s: float = WAIT_S) -> P:
        """The next packet, which must be of this kind."""
        async with asyncio.timeout(wait_s):
            while not self._packets and not self.is_closed:
                await self._read()
        assert self._packets, f"closed; no {kind.__name__} came"
        first = self._packets.pop(0)
        assert isinstance(first, kind), f"{kind.__name__} did not come, but {first!r}"
        return first

    async def until_closed(self, wait_s: float = WAIT_S) -> list[Packet]:
        """Read until the edge closes; what came before that."""
        async with asyncio.timeout(wait_s):
            while not self.is_closed:
                await self._read()
        packets, self._packets = self._packets, []
        return packets

    async def connect(self, client_id: str = "c", **fields: object) -> Connack:
        """CONNECT, and the CONNACK to it, be it a refusal."""
        packet = Connect(self.protocol_version, client_id, **({"keep_alive_s": 60} | fields))  # type: ignore[arg-type]
        await self.send(packet)
        return await self.receive(Connack)

    async def close(self) -> None:
        """Hang up, without DISCONNECT."""
        self.is_closed = True
        await self.link.close()

    async def _read(self) -> None:
        data = await self.link.read()
        self.is_closed = not data
        for first_byte, body in self._framer.feed(data):
            self._packets.append(decode_for_client(first_byte, body, self.protocol_version))
        assert self._framer.error is None, self._framer.error


@asynccontextmanager
async def dial(
    address: tuple[str, int], protocol_version: int = 5, transport: Transport = "tcp"
) -> AsyncIterator[WireClient]:
    """A network connection; no CONNECT was sent yet."""
    host, port = address
    link: Link
    if transport == "tcp":
        link = TcpLink(*await asyncio.open_connection(host, port))
    else:
        session = aiohttp.ClientSession()
        link = WebSocketLink(session, await session.ws_connect(f"http://{host}:{port}/mqtt", protocols=("mqtt",)))
    client = WireClient(link, protocol_version)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def connected(
    address: tuple[str, int],
    client_id: str = "c",
    protocol_version: int = 5,
    transport: Transport = "tcp",
    **fields: object,
) -> AsyncIterator[WireClient]:
    """A client that has been accepted."""
    async with dial(address, protocol_version, transport) as client:
        connack = await client.connect(client_id, **fields)
        assert connack.reason_code is ReasonCode.SUCCESS, connack
        yield client
