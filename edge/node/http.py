"""The edge's HTTP server: `/livez`, `/readyz`, `/metrics`, the live page, MQTT over WebSocket under `/mqtt`, and the
state API under `/api/v1` (`edge.node.http_api`)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import cast

from aiohttp import web

from edge.handler.services import EdgeServices
from edge.handler.websocket import serve_websocket
from edge.node.config import HttpConfig
from edge.node.entrance import Entrance, Network
from edge.node.http_api import StateApi
from edge.node.http_peer import ProxiedHandler, remote_of
from edge.node.listeners import BACKLOG, bind
from edge.node.statistics import prometheus_text
from edge.node.tls import ALPN_HTTP, ServerTls
from edge.page import page_files

SERVICES = web.AppKey("services", EdgeServices)
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def start_http(services: EdgeServices, config: HttpConfig, reuse_port: bool, api: StateApi) -> web.AppRunner:
    """Serve HTTP; raises ConfigurationError when the address is taken. `AppRunner.cleanup` stops it."""
    application = web.Application()
    application[SERVICES] = services
    application.add_routes(
        [
            web.get("/livez", _livez),
            web.get("/readyz", _readyz),
            web.get("/metrics", api.guard_metrics(_metrics)),
            web.get("/mqtt", _mqtt),
        ]
    )
    api.add_to(application)
    if config.page:
        application.add_routes([web.get("/{path:.*}", _page)])
    tls = ServerTls(config.tls, ALPN_HTTP) if config.tls is not None else None
    sockets = bind(config.host, config.port, reuse_port)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=2.0, handle_signals=False)
    await runner.setup()
    if tls is not None or config.proxy_protocol:
        await _EntranceSite(runner, services, sockets, tls, config.trusted_proxies).start()
    else:
        for each in sockets:
            await web.SockSite(runner, each, backlog=BACKLOG).start()
    return runner


class _EntranceSite(web.BaseSite):
    """aiohttp's part of an `Entrance`: a certificate that changes needs no restart, and a PROXY header is believed of
    trusted proxies."""

    def __init__(
        self,
        runner: web.AppRunner,
        services: EdgeServices,
        sockets: Sequence[socket.socket],
        tls: ServerTls | None,
        trusted_proxies: Sequence[Network],
    ) -> None:
        super().__init__(runner)
        self._parts = services, sockets, tls, trusted_proxies

    @property
    def name(self) -> str:
        return "https" if self._parts[2] is not None else "http"

    async def start(self) -> None:
        """Accept connections; `stop` closes the entrance."""
        await super().start()
        services, sockets, tls, trusted_proxies = self._parts
        server = self._runner.server
        assert server is not None
        # aiohttp closes it and asks for its sockets, no more
        entrance = Entrance(services, sockets, lambda peer, _: ProxiedHandler(server, peer), tls, trusted_proxies)
        self._server = cast(asyncio.AbstractServer, entrance)


async def _livez(request: web.Request) -> web.Response:
    return web.json_response({"status": "alive", "node": request.app[SERVICES].node_id})


async def _readyz(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    ready = services.ready()
    body = {"status": "ready" if ready else "not ready", "node": services.node_id}
    return web.json_response(body, status=200 if ready else 503)


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(
        body=prometheus_text(request.app[SERVICES]),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


async def _mqtt(request: web.Request) -> web.StreamResponse:
    return await serve_websocket(request.app[SERVICES], request, remote_of(request))


async def _page(request: web.Request) -> web.StreamResponse:
    found = page_files().get("/" + request.match_info["path"])
    if found is None:
        raise web.HTTPNotFound(text="there is no such page\n")
    path, content_type = found
    return web.FileResponse(path, headers={**_PAGE_HEADERS, "Content-Type": content_type})
