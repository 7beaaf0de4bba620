"""A network connection between a model client and an edge: in order, with delays, a small buffer, and ways to end.

The edge's side is an `asyncio.Transport` as far as `EdgeProtocolHandler` uses one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from support.simulation_loop import Process


class Peer(Protocol):
    """The client's side."""

    def data_received(self, data: bytes) -> None: ...

    def link_lost(self) -> None: ...


class Link:
    """`reads`: whether the client takes what has come; what it does not take fills the edge's buffer."""

    def __init__(self, peer: Peer, process: Process, rng: Random, high_bytes: int) -> None:
        self.peer: Peer | None = peer
        self.process = process
        self.transport = LinkTransport(self, high_bytes)
        self.reads = True
        self._outside = process.loop.outside
        self._rng = rng
        self._to_edge_at = 0.0
        self._to_client_at = 0.0
        self._handler: Any = None

    # The client

    def open(self, handler_of: Callable[[], Any]) -> None:
        """The connection is accepted by the edge after a while."""
        self._edge_soon(self._accepted, handler_of)

    def send(self, data: bytes) -> None:
        self._edge_soon(self._edge_received, data)

    def close(self) -> None:
        """Everything that was sent arrives, then the end."""
        if self.peer is not None:
            self.peer = None
            self._edge_soon(self.transport.peer_gone, None)

    def reset(self) -> None:
        """What is under way is lost."""
        if self.peer is not None:
            self.peer = None
            self.transport.is_reset = True
            self._edge_soon(self.transport.peer_gone, ConnectionResetError())

    def read_on(self) -> None:
        self.reads = True
        self._move()

    # The edge is gone

    def edge_killed(self) -> None:
        self._client_soon(self._lose)

    def _lose(self) -> None:
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.link_lost()

    # Under way

    def _edge_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._to_edge_at = max(self._to_edge_at, self.process.loop.time() + self._rng.uniform(0.0002, 0.003))
        self.process.call_at(self._to_edge_at, callback, *args)

    def _client_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._to_client_at = max(self._to_client_at, self.process.loop.time() + self._rng.uniform(0.0002, 0.003))
        self._outside.call_at(self._to_client_at, callback, *args)

    def _accepted(self, handler_of: Callable[[], Any]) -> None:
        self._handler = self.transport.handler = handler_of()
        self._handler.connection_made(self.transport)

    def _edge_received(self, data: bytes) -> None:
        transport = self.transport
        if transport.is_closing() or transport.is_reset:
            return
        if transport.is_reading:
            self._handler.data_received(data)
        else:
            transport.held.append(data)

    def to_client(self, data: bytes) -> None:
        self.transport.unread += len(data)
        self._client_soon(self._arrived, data)

    def _arrived(self, data: bytes) -> None:
        self.transport.arrived.append(data)
        self._move()

    def _move(self) -> None:
        """The client takes what has arrived."""
        transport = self.transport
        while transport.arrived and (self.reads or self.peer is None):
            data = transport.arrived.pop(0)
            transport.unread -= len(data)
            if self.peer is not None and not transport.is_reset:
                self.peer.data_received(data)
        if not transport.is_reset:
            self.process.call_at(self.process.loop.time(), transport.was_read)


class LinkTransport(asyncio.Transport):
    """What the edge holds."""

    def __init__(self, link: Link, high_bytes: int) -> None:
        super().__init__()
        self.handler: Any = None
        self.is_reading = True
        self.is_reset = False
        self.held: list[bytes] = []
        self.arrived: list[bytes] = []
        self.unread = 0
        self._link = link
        self._high_bytes = high_bytes
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The simulation's are smaller."""

    def write(self, data: Any) -> None:
        if self._is_lost or self.is_reset:
            return
        self._link.to_client(bytes(data))
        if self.unread > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self.handler.pause_writing()

    def was_read(self) -> None:
        if self._is_lost:
            return
        if self._is_paused and self.unread <= self._high_bytes // 4:
            self._is_paused = False
            self.handler.resume_writing()
        if self._is_closing and not self.unread:
            self._lost(None)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        self._link.process.call_at(self._link.process.loop.time(), self._read_on)

    def _read_on(self) -> None:
        while self.held and self.is_reading and not self._is_closing:
            self.handler.data_received(self.held.pop(0))

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self.unread:
                self._soon(None)

    def abort(self) -> None:
        self._is_closing = True
        self._soon(None)

    def peer_gone(self, error: Exception | None) -> None:
        """The client has closed, or reset, the connection."""
        if self.is_reading or self._is_closing or error is not None:
            self._is_closing = True
            self._lost(error)
        else:  # an end that is not read yet
            self._link.process.call_at(self._link.process.loop.time() + 0.1, self.peer_gone, error)

    def _soon(self, error: Exception | None) -> None:
        self._link.process.call_at(self._link.process.loop.time(), self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._link._client_soon(self._link._lose)
        if self.handler is not None:
            self.handler.connection_lost(error)
