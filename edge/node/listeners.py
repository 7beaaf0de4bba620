"""The sockets on which devices speak MQTT over TCP, with or without TLS."""

from __future__ import annotations

import asyncio
import ssl

from edge.handler.protocol import EdgeProtocolHandler
from edge.handler.services import EdgeServices
from edge.node.config import ListenerConfig, TlsConfig
from schemas.errors import ConfigurationError

BACKLOG = 4_096  # a fleet that reconnects at once queues here instead of timing out; the kernel may cap it


def tls_context(config: TlsConfig) -> ssl.SSLContext:
    """A server context of TLS 1.2 or later; with `client_ca`, clients must present a certificate.

    Raises ConfigurationError when a file cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate, config.key)
        if config.client_ca is not None:
            context.load_verify_locations(config.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"TLS: {config.certificate}, {config.key}: {error}") from None
    return context


async def open_listener(services: EdgeServices, config: ListenerConfig, reuse_port: bool) -> asyncio.Server:
    """Accept MQTT connections on one address; raises ConfigurationError when it is taken."""
    try:
        return await services.loop.create_server(
            lambda: EdgeProtocolHandler(services),
            config.host,
            config.port,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
            ssl=tls_context(config.tls) if config.tls is not None else None,
            ssl_handshake_timeout=services.limits.tls_handshake_timeout_s if config.tls is not None else None,
        )
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from None


def bound_address(server: asyncio.Server) -> tuple[str, int]:
    """The address a server listens on, with the port that the kernel chose for port 0."""
    host, port = server.sockets[0].getsockname()[:2]
    return str(host), int(port)
