"""The edge's HTTP server: `/livez`, `/readyz`, `/metrics`, the live page, and MQTT over WebSocket under `/mqtt`."""

from __future__ import annotations

from aiohttp import web

from edge.handler.services import EdgeServices
from edge.handler.websocket import serve_websocket
from edge.node.config import HttpConfig
from edge.node.listeners import BACKLOG, tls_context
from edge.node.statistics import prometheus_text
from edge.page import page_files
from schemas.errors import ConfigurationError

SERVICES = web.AppKey("services", EdgeServices)
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def start_http(services: EdgeServices, config: HttpConfig, reuse_port: bool) -> web.AppRunner:
    """Serve HTTP; raises ConfigurationError when the address is taken. `AppRunner.cleanup` stops it."""
    application = web.Application()
    application[SERVICES] = services
    application.add_routes(
        [
            web.get("/livez", _livez),
            web.get("/readyz", _readyz),
            web.get("/metrics", _metrics),
            web.get("/mqtt", _mqtt),
        ]
    )
    if config.page:
        application.add_routes([web.get("/{path:.*}", _page)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=2.0, handle_signals=False)
    await runner.setup()
    site = web.TCPSite(
        runner,
        config.host,
        config.port,
        backlog=BACKLOG,
        reuse_port=reuse_port or None,
        ssl_context=tls_context(config.tls) if config.tls is not None else None,
    )
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigurationError(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from None
    return runner


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
    return await serve_websocket(request.app[SERVICES], request)


async def _page(request: web.Request) -> web.StreamResponse:
    found = page_files().get("/" + request.match_info["path"])
    if found is None:
        raise web.HTTPNotFound(text="there is no such page\n")
    path, content_type = found
    return web.FileResponse(path, headers={**_PAGE_HEADERS, "Content-Type": content_type})
