"""The two ways a client's bytes travel: plain TCP (or TLS), and WebSocket frames over it.

A link is an ``asyncio.Protocol`` that reports to its ``LinkOwner`` and is thrown away with its connection.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

WRITE_BUFFER_BYTES = 256 * 1024  # beyond it the owner is told to pause


class LinkOwner(Protocol):
    """What a link tells."""

    def link_ready(self) -> None:
        """MQTT can start."""

    def link_data(self, data: bytes) -> None:
        """Bytes of the MQTT stream, in order, chunked anyhow."""

    def link_lost(self, error: Exception | None) -> None:
        """The connection is gone; called once."""

    def link_writable(self, is_writable: bool) -> None:
        """The write buffer is over its limit, or drained."""


class TcpLink(asyncio.Protocol):
    """MQTT directly on the transport."""

    def __init__(self, owner: LinkOwner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._owner.link_ready()

    def data_received(self, data: bytes) -> None:
        self._owner.link_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.link_lost(exc)

    def pause_writing(self) -> None:
        self._owner.link_writable(False)

    def resume_writing(self) -> None:
        self._owner.link_writable(True)

    def write(self, data: bytes) -> None:
        """Send bytes of the MQTT stream."""
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close after what is written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now, like a device that loses its power."""
        if self._transport is not None:
            self._transport.abort()


class WebSocketLink(TcpLink):
    """MQTT in binary frames, subprotocol ``mqtt`` [MQTT5-6.0.0-1] [MQTT5-6.0.0-3]."""

    def __init__(self, owner: LinkOwner, url: str, message_bytes_max: int) -> None:
        super().__init__(owner)
        self._frames = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol("mqtt")], max_size=message_bytes_max)
        self._failure: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._frames.send_request(self._frames.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Response):
                self._handshake()
            elif isinstance(event, Frame):
                self._frame(event)
        self._flush()

    def eof_received(self) -> bool:
        self._frames.receive_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.link_lost(exc or self._failure or self._frames.handshake_exc)

    def write(self, data: bytes) -> None:
        self._frames.send_binary(data)
        self._flush()

    def close(self) -> None:
        if self._frames.handshake_exc is None and self._frames.close_sent is None:
            self._frames.send_close(1000)
            self._flush()
        super().close()

    def _handshake(self) -> None:
        if self._frames.handshake_exc is not None:
            self.abort()
        elif self._frames.subprotocol != "mqtt":  # [MQTT5-6.0.0-4]
            self._failure = ConnectionError("the server does not speak the subprotocol mqtt")
            self.abort()
        else:
            self._owner.link_ready()

    def _frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._owner.link_data(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:  # [MQTT5-6.0.0-1]
            self._failure = ConnectionError("the server sent a text frame")
            self.abort()

    def _flush(self) -> None:
        for data in self._frames.data_to_send():
            if data:
                super().write(data)
            else:
                super().close()
