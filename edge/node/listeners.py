"""The sockets on which devices speak MQTT: TCP, with or without TLS and a PROXY header, and Unix sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from edge.access.limits import Ticket
from edge.handler.protocol import EdgeProtocolHandler
from edge.handler.services import EdgeServices
from edge.node.config import ListenerConfig
from edge.node.entrance import Entrance
from edge.node.tls import ServerTls
from edge.node.unix_socket import bind_unix_socket, inode_of, remove_unix_socket
from schemas.errors import ConfigurationError

BACKLOG = 4_096  # a fleet that reconnects at once queues here instead of timing out; the kernel may cap it


class Listener:
    """One of the configured listeners, open. `sockets` is empty once it is closed."""

    def __init__(self, sockets: Sequence[socket.socket], close: Sequence[Callable[[], None]]) -> None:
        self.sockets = tuple(sockets)
        self._address = _address(self.sockets[0])
        self._close = close

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect, with the port that the kernel chose for port 0; a Unix socket's path has port 0."""
        return self._address

    def close(self) -> None:
        """Take no more connections; those that are there stay."""
        self.sockets = ()
        for each in self._close:
            each()


async def open_listener(services: EdgeServices, config: ListenerConfig, reuse_port: bool) -> Listener:
    """Accept MQTT connections on one address; raises ConfigurationError when it is taken or TLS has no certificate."""
    if config.unix is not None:
        return await _open_unix(services, config, reuse_port)
    tls = ServerTls(config.tls) if config.tls is not None else None
    sockets = bind(config.host, config.port, reuse_port)
    if tls is None and not config.proxy_protocol:
        loop = services.loop
        servers = [
            await loop.create_server(lambda: EdgeProtocolHandler(services), sock=each, backlog=BACKLOG)
            for each in sockets
        ]
        return Listener(sockets, [server.close for server in servers])

    def make_protocol(peer: str, ticket: Ticket | None) -> EdgeProtocolHandler:
        return EdgeProtocolHandler(services, peer, ticket)

    entrance = Entrance(services, sockets, make_protocol, tls, config.trusted_proxies, gate=services.access.gate)
    return Listener(sockets, [entrance.close])


async def _open_unix(services: EdgeServices, config: ListenerConfig, reuse_port: bool) -> Listener:
    path = config.unix
    assert path is not None
    if reuse_port:
        raise ConfigurationError(f"workers share ports, and a Unix socket has none: {path} is for a single process")
    bound = bind_unix_socket(path, config.mode)
    inode = inode_of(path)
    server = await services.loop.create_unix_server(lambda: EdgeProtocolHandler(services), sock=bound, backlog=BACKLOG)
    return Listener([bound], [server.close, lambda: remove_unix_socket(path, inode)])


def bind(host: str, port: int, reuse_port: bool) -> list[socket.socket]:
    """Listening sockets for every address of `host`, all with one port; `::` takes IPv4, too.

    Raises ConfigurationError when there is no such address or it is taken.
    """
    made: list[socket.socket] = []
    try:
        wanted = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in wanted):
            chosen = made[0].getsockname()[1] if made else address[1]
            made.append(
                socket.create_server(
                    (address[0], chosen, *address[2:]),  # IPv6 has four parts
                    family=family,
                    backlog=BACKLOG,
                    reuse_port=reuse_port,
                    dualstack_ipv6=address[0] == "::" and socket.has_dualstack_ipv6(),
                )
            )
            made[-1].setblocking(False)
            made[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is accepted inherits it
    except OSError as error:
        for each in made:
            each.close()
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return made


def bound_address(listener: Listener) -> tuple[str, int]:
    """Where a listener's clients connect: `Listener.address`."""
    return listener.address


def address_text(address: tuple[str, int]) -> str:
    """`host:port`, `[host]:port` for IPv6, or the path of a Unix socket."""
    host, port = address
    if host.startswith("/") or not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(listening: socket.socket) -> tuple[str, int]:
    name = listening.getsockname()
    return (name, 0) if isinstance(name, str) else (str(name[0]), int(name[1]))
