"""Whom an HTTP connection is for: the socket's word, or that of a trusted proxy (`edge.node.entrance`)."""

from __future__ import annotations

import asyncio

from aiohttp import web


class ProxiedHandler(web.RequestHandler):
    """aiohttp's part of a connection that came through the entrance; `peer` is the client's address."""

    __slots__ = ("peer",)

    def __init__(self, server: web.Server, peer: str) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]  # as web.AppRunner does
        self.peer = peer


def remote_of(request: web.Request) -> str:
    """The client's address."""
    protocol = request.protocol
    return protocol.peer if isinstance(protocol, ProxiedHandler) else request.remote or ""
