"""A client that answers only what it is told to answer: for flows that are to stay in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from edge.wire import Connack, Connect, Framer, Packet, Properties, decode_for_client, encode

P = TypeVar("P")
WAIT_S = 10.0
EXPIRY_S = 3_600


class NotAnswered(Exception):  # noqa: N818
    """Something else came than was to come, or nothing."""


class WireClient:
    """MQTT 5 packets one by one over TCP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._framer = Framer(1 << 20, 5)
        self._packets: list[Packet] = []
        self.is_closed = False

    async def send(self, *packets: Packet) -> None:
        """All of them with one write; also to a peer that reads nothing."""
        self._writer.write(b"".join(encode(each, 5) for each in packets))
        await asyncio.sleep(0)

    async def connect(self, client_id: str, expiry_s: int = EXPIRY_S) -> Connack:
        """CONNECT of a session that stays, and its answer."""
        properties = Properties(session_expiry_interval_s=expiry_s)
        await self.send(Connect(5, client_id, False, keep_alive_s=0, properties=properties))
        return await self.receive(Connack)

    async def receive(self, kind: type[P], wait_s: float = WAIT_S) -> P:
        """The next packet; raises NotAnswered when it is of another kind, or none comes."""
        try:
            async with asyncio.timeout(wait_s):
                while not self._packets and not self.is_closed:
                    await self._read()
        except TimeoutError:
            pass
        if not self._packets:
            raise NotAnswered(f"no {kind.__name__} came within {wait_s} s" + " (closed)" * self.is_closed)
        first = self._packets.pop(0)
        if not isinstance(first, kind):
            raise NotAnswered(f"{kind.__name__} did not come, but {first!r}")
        return first

    async def until_closed(self, wait_s: float = WAIT_S) -> list[Packet]:
        """What came until the edge closed; raises TimeoutError."""
        async with asyncio.timeout(wait_s):
            while not self.is_closed:
                await self._read()
        packets, self._packets = self._packets, []
        return packets

    def hang_up(self) -> None:
        """Without DISCONNECT."""
        self.is_closed = True
        self._writer.transport.abort()

    async def _read(self) -> None:
        try:
            data = await self._reader.read(65_536)
        except ConnectionError:
            data = b""
        self.is_closed = not data
        for first_byte, body in self._framer.feed(data):
            self._packets.append(decode_for_client(first_byte, body, 5))


@asynccontextmanager
async def dial(address: tuple[str, int]) -> AsyncIterator[WireClient]:
    """A network connection; no CONNECT was sent yet."""
    client = WireClient(*await asyncio.open_connection(*address))
    try:
        yield client
    finally:
        client.hang_up()
