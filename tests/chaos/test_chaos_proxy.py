"""The fault proxy does what it says, before anything is concluded from what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.chaos_proxy import FaultProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1_000):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[FaultProxy, Streams]]:
    """A proxy in front of an echo, and a connection through it."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = FaultProxy(0, server.sockets[0].getsockname()[:2])
    await proxy.start()
    reader, writer = await asyncio.open_connection(*proxy.address)
    try:
        yield proxy, (reader, writer)
    finally:
        writer.transport.abort()
        await proxy.stop()
        server.close()


async def said(streams: Streams, data: bytes, wait_s: float = 5.0) -> bytes:
    reader, writer = streams
    writer.write(data)
    async with asyncio.timeout(wait_s):
        return await reader.read(1_000)


async def test_it_passes_what_comes() -> None:
    async with proxied() as (_, streams):
        assert await said(streams, b"one") == b"one"


async def test_held_bytes_come_later() -> None:
    async with proxied() as (proxy, streams):
        assert await said(streams, b"one") == b"one"
        proxy.set(requests="hold", answers="hold")
        with pytest.raises(TimeoutError):
            await said(streams, b"two", 0.2)
        proxy.set()
        async with asyncio.timeout(5):
            assert await streams[0].read(1_000) == b"two"


async def test_dropped_answers_end_the_connection_when_it_is_over() -> None:
    async with proxied() as (proxy, streams):
        proxy.set(answers="drop")
        with pytest.raises(TimeoutError):
            await said(streams, b"one", 0.2)
        proxy.set()
        with pytest.raises(ConnectionError):
            await said(streams, b"two")


async def test_a_reset_is_a_reset() -> None:
    async with proxied() as (proxy, streams):
        assert await said(streams, b"one") == b"one"
        proxy.reset_all()
        with pytest.raises(ConnectionError):
            await said(streams, b"two")


async def test_latency_keeps_the_order() -> None:
    async with proxied() as (proxy, (reader, writer)):
        proxy.set(latency_s=(0.05, 0.1))
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(5):
            writer.write(b"%d" % number)
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            assert await reader.readexactly(5) == b"01234"
        assert loop.time() - began >= 0.1  # there and back


async def test_no_connection_while_it_holds() -> None:
    async with proxied() as (proxy, _):
        proxy.set(requests="hold")
        streams = await asyncio.open_connection(*proxy.address)
        with pytest.raises(TimeoutError):
            await said(streams, b"one", 0.2)
        proxy.set()
        async with asyncio.timeout(5):
            assert await streams[0].read(1_000) == b"one"
        streams[1].transport.abort()
