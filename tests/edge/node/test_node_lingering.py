"""What a client still sends after it broke the protocol does not take the DISCONNECT from it."""

from __future__ import annotations

import asyncio
import socket

from support.edges import memory_edge, mqtt_address, until

from edge.handler.protocol import LINGER_S
from edge.node.node import EdgeNode
from edge.wire import Connect, Pingreq, Subscribe, SubscriptionRequest, encode

CONNECT = encode(Connect(5, client_id="talker"), 5)
NO_FILTER = encode(Subscribe(1, (SubscriptionRequest("a"),)), 5)[:1] + b"\x03\x00\x01\x00"  # [MQTT5-3.8.3-2]


async def broken(node: EdgeNode) -> socket.socket:
    """A connection that has broken the protocol; nothing that the edge has sent is read yet."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    await loop.sock_connect(client, mqtt_address(node))
    await loop.sock_sendall(client, CONNECT)
    await until(lambda: node.services.clients.get("talker") is not None)
    handler = node.services.clients["talker"]
    await loop.sock_sendall(client, NO_FILTER)
    await until(lambda: handler.engine.is_closed())
    return client


async def received(client: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    async with asyncio.timeout(10):
        while chunk := await loop.sock_recv(client, 65_536):
            data += chunk
    return data


async def test_a_client_that_goes_on_sending_hears_why_it_was_cut_off() -> None:
    """[MQTT5-4.13.1-1]: bytes that nobody reads would have reset the connection."""
    async with memory_edge() as node:
        client = await broken(node)
        with client:
            for _ in range(10):
                await asyncio.get_running_loop().sock_sendall(client, encode(Pingreq(), 5) * 100)
            data = await received(client)
        assert data[0] == 0x20
        disconnect = data[2 + data[1] :]
        assert disconnect[:1] == b"\xe0"
        assert disconnect[2] == 0x82
        assert len(disconnect) == 2 + disconnect[1], "nothing follows it"


async def test_the_edge_does_not_wait_long_for_the_client_to_close() -> None:
    async with memory_edge() as node:
        client = await broken(node)
        with client:
            start = asyncio.get_running_loop().time()
            await until(lambda: not node.services.connections)
            assert asyncio.get_running_loop().time() - start < LINGER_S + 2
