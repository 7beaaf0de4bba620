"""The way in where something comes before MQTT: a place among the strangers, a PROXY header, a TLS handshake.

    accept -> PROXY header (trusted proxies only) -> a place (`ConnectionGate.admit`) -> TLS handshake -> the protocol

The socket is asyncio's only after the header: it is read byte for byte, so that the ClientHello behind it stays where
the TLS layer looks for it. Every step has its limit in time; what fails is closed and counted, without an answer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from edge.access.limits import ConnectionGate, Refusal, Ticket
from edge.handler.proxy_protocol import FIXED_BYTES, ProxyHeaderError, following_bytes, parse_header, peer_of
from edge.handler.services import EdgeServices
from edge.node.tls import ServerTls

log = logging.getLogger(__name__)

ACCEPT_MAX: Final = 256  # connections in one turn of the loop; the others wait in the kernel's queue
ACCEPT_AGAIN_S: Final = 1.0  # after the process has run out of descriptors, as asyncio's servers wait
COMPLAIN_S: Final = 60.0  # at most one line a minute about connections that were refused

Network = IPv4Network | IPv6Network
MakeProtocol = Callable[[str, Ticket | None], asyncio.BaseProtocol]


class Refused(Exception):  # noqa: N818
    """The connection is closed; the reason is for the log."""


class Entrance:
    """Accepts on listening sockets and hands on what has come through, on the running loop.

    `make_protocol` is called with the client's address and its place, which the protocol then owns. Without `gate`
    nobody needs a place. With `trusted_proxies` every connection must begin with a PROXY header.
    """

    def __init__(
        self,
        services: EdgeServices,
        sockets: Sequence[socket.socket],
        make_protocol: MakeProtocol,
        tls: ServerTls | None,
        trusted_proxies: Sequence[Network] = (),
        *,
        gate: ConnectionGate | None = None,
    ) -> None:
        self._services = services
        self._loop = services.loop
        self._limits = services.limits
        self._make_protocol = make_protocol
        self._tls = tls
        self._trusted_proxies = tuple(trusted_proxies)
        self._gate = gate
        self._entering: set[asyncio.Task[None]] = set()
        self._complain_at = 0.0
        self.sockets = list(sockets)
        for each in self.sockets:
            self._listen(each)
        if tls is not None:
            tls.watch()

    def close(self) -> None:
        """Take no more connections; those on their way in are closed, those that are in stay."""
        listening, self.sockets = self.sockets, []
        for each in listening:
            self._loop.remove_reader(each)
            each.close()
        for task in self._entering:
            task.cancel()
        if self._tls is not None:
            self._tls.close()

    def _listen(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_MAX):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("cannot accept connections: %s", error.strerror)
                self._loop.remove_reader(listening)
                self._loop.call_later(ACCEPT_AGAIN_S, self._listen, listening)
                return
            if len(self._entering) >= self._limits.unauthenticated_max:
                self._refused(f"{len(self._entering)} connections are on their way in")
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._enter(connection, peer_of(address)))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, connection: socket.socket, peer: str) -> None:
        try:
            if self._trusted_proxies:
                peer = await self._proxied_peer(connection, peer)
            ticket = self._admit(peer)
        except BaseException as error:
            connection.close()
            if not isinstance(error, Refused | OSError):
                raise
            self._refused(str(error))
            return
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(peer, ticket),
                connection,
                ssl=self._tls.context if self._tls is not None else None,
                ssl_handshake_timeout=self._limits.tls_handshake_timeout_s if self._tls is not None else None,
            )
        except BaseException as error:  # the transport has closed the connection
            if ticket is not None:
                ticket.release(authenticated=False)
            if not isinstance(error, OSError):
                raise
            self._services.counters.refused_total += 1
            log.debug("%s: no TLS: %s", peer, error)

    def _admit(self, peer: str) -> Ticket | None:
        if self._gate is None:
            return None
        admission = self._gate.admit(peer, self._loop.time())
        if isinstance(admission, Refusal):
            raise Refused(f"{peer}: {admission.value}")
        return admission

    async def _proxied_peer(self, connection: socket.socket, proxy: str) -> str:
        if not self._is_trusted(proxy):
            raise Refused(f"{proxy} is none of trusted_proxies")
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                header = await self._read(connection, FIXED_BYTES)
                header += await self._read(connection, following_bytes(header))
            return parse_header(header) or proxy
        except TimeoutError:
            raise Refused(f"proxy {proxy}: no PROXY header in time") from None
        except ProxyHeaderError as error:
            raise Refused(f"proxy {proxy}: {error}") from None

    def _is_trusted(self, proxy: str) -> bool:
        address = ip_address(proxy.partition("%")[0])
        return any(address in network for network in self._trusted_proxies)

    async def _read(self, connection: socket.socket, length: int) -> bytes:
        data = b""
        while len(data) < length:
            received = await self._loop.sock_recv(connection, length - len(data))
            if not received:
                raise Refused("closed within the PROXY header")
            data += received
        return data

    def _refused(self, reason: str) -> None:
        self._services.counters.refused_total += 1
        now = self._loop.time()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_S
            log.warning("a connection was closed: %s (and perhaps others; at most one such line a minute)", reason)
