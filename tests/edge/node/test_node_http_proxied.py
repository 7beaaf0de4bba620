"""The PROXY protocol on the HTTP listener: for the state API and for MQTT over WebSocket."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from support.edges import edge_config, http_address, memory_edge
from support.links import proxy_header
from websockets.asyncio.client import connect

from edge.wire import Connack, Connect, Framer, ReasonCode, decode_for_client, encode
from schemas.errors import ConfigurationError

PROXIED: dict[str, Any] = {"port": 0, "proxy_protocol": True, "trusted_proxies": ["127.0.0.0/8"]}


async def get(address: tuple[str, int], path: str, before: bytes) -> bytes:
    """The first line of the answer; empty when there was none."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(before + f"GET {path} HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n\r\n".encode())
    try:
        async with asyncio.timeout(20):
            answer = await reader.read()
    except ConnectionResetError:
        answer = b""
    writer.close()
    return answer.partition(b"\r\n")[0]


async def test_over_http_the_client_is_whom_the_header_names() -> None:
    """The state API answers the networks that it may answer, whoever the proxy is."""
    async with memory_edge(http=PROXIED | {"api_networks": ["203.0.113.0/24"]}) as node:
        address = http_address(node)
        assert b"200" in await get(address, "/livez", proxy_header("198.51.100.1"))
        assert b"401" in await get(address, "/api/v1/clients", proxy_header("203.0.113.7"))  # who are you?
        assert b"403" in await get(address, "/api/v1/clients", proxy_header("198.51.100.1"))
        assert b"200" in await get(address, "/", proxy_header("198.51.100.1"))


async def test_over_http_nothing_is_answered_without_a_header_or_to_other_proxies() -> None:
    async with memory_edge(http=PROXIED) as node:
        assert await get(http_address(node), "/livez", b"") == b""
    async with memory_edge(http=PROXIED | {"trusted_proxies": ["10.0.0.0/8"]}) as node:
        assert await get(http_address(node), "/livez", proxy_header("10.0.0.1")) == b""


async def test_over_websocket_the_client_is_whom_the_header_names() -> None:
    async with memory_edge(http=PROXIED) as node:
        loop = asyncio.get_running_loop()
        made = socket.socket()
        made.setblocking(False)
        await loop.sock_connect(made, http_address(node))
        await loop.sock_sendall(made, proxy_header("2001:db8::7"))
        uri = "ws://edge/mqtt"
        async with connect(uri, sock=made, subprotocols=["mqtt"], proxy=None) as websocket:  # type: ignore[list-item]
            await websocket.send(encode(Connect(5, "c", keep_alive_s=60), 5))
            data = await asyncio.wait_for(websocket.recv(), 20)
            assert isinstance(data, bytes)
            [(first_byte, body)] = Framer(1_000, 5).feed(data)
            connack = decode_for_client(first_byte, body, 5)
            assert isinstance(connack, Connack)
            assert connack.reason_code is ReasonCode.SUCCESS
            assert node.services.clients["c"].peer == "2001:db8::7"


@pytest.mark.parametrize(
    "http",
    [{"proxy_protocol": True}, {"trusted_proxies": ["10.0.0.0/8"]}, PROXIED | {"trusted_proxies": ["0.0.0.0/0"]}],
)
def test_proxies_have_to_be_named(http: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="trusted_proxies"):
        edge_config(http=http)
