"""MQTT over WebSocket: aiohttp speaks WebSocket, this makes a transport of it for the protocol handler.

Binary frames only [MQTT5-6.0.0-1] [MQTT311-6.0.0-1]; packets need not align with frames [MQTT5-6.0.0-2]; subprotocol
`mqtt` [MQTT5-6.0.0-4] [MQTT311-6.0.0-4]; no compression; empty frames are ignored.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import WSMsgType, web

from edge.handler.protocol import EdgeProtocolHandler
from edge.handler.proxy_protocol import normal_address
from edge.handler.services import EdgeServices

FRAME_BYTES_MAX = 1_048_576  # one frame may hold several packets; the framer bounds each packet
SUBPROTOCOLS = ("mqtt", "mqttv3.1")  # the latter is what clients of MQTT 3.1 offer [MQTT5-6.0.0-4] [MQTT311-6.0.0-4]


class WebSocketTransport(asyncio.Transport):
    """What a handler uses of an asyncio.Transport, on one WebSocket."""

    def __init__(self, websocket: web.WebSocketResponse, request: web.Request, handler: EdgeProtocolHandler) -> None:
        super().__init__()
        self._websocket = websocket
        self._network = request.transport
        self._handler = handler
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._high_bytes = 64 * 1024
        self._protocol_paused = False
        self._closing = False
        self._wakeup = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes for the next binary frame."""
        if self._closing:
            return
        self._buffer.append(bytes(data))
        self._buffered_bytes += len(data)
        self._wakeup.set()
        if self._buffered_bytes > self._high_bytes and not self._protocol_paused:
            self._protocol_paused = True
            self._handler.pause_writing()

    def can_write_eof(self) -> bool:
        """A WebSocket ends both sides at once."""
        return False

    def close(self) -> None:
        """Send what is queued, then close."""
        self._closing = True
        self._wakeup.set()
        self._may_read.set()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._buffer.clear()
        self._wakeup.set()
        self._may_read.set()
        if self._network is not None:
            self._network.abort()

    def is_closing(self) -> bool:
        """Whether `close` or `abort` was called."""
        return self._closing

    def pause_reading(self) -> None:
        """Take no further frame."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        """Take frames again."""
        self._may_read.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bytes queued before the handler is told to wait."""
        self._high_bytes = high if high is not None else 64 * 1024

    def get_write_buffer_size(self) -> int:
        """Bytes queued here and in the network transport."""
        return self._buffered_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the network transport knows: peername, ssl_object."""
        return self._network.get_extra_info(name, default) if self._network is not None else default

    async def read_frames(self) -> None:
        """Feed the handler until the WebSocket closes; a text frame ends it."""
        while not self._closing:
            await self._may_read.wait()
            message = await self._websocket.receive()
            if message.type is not WSMsgType.BINARY:
                return
            if message.data:
                self._handler.data_received(message.data)

    async def write_frames(self) -> None:
        """Send what is queued, one frame for all of it; ends after `close`."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._buffer:
                data = b"".join(self._buffer)
                self._buffer.clear()
                await self._websocket.send_bytes(data)
                self._buffered_bytes -= len(data)
                if self._protocol_paused and self._buffered_bytes <= self._high_bytes // 4:
                    self._protocol_paused = False
                    self._handler.resume_writing()
            if self._closing:
                await self._websocket.close()
                return


async def serve_websocket(services: EdgeServices, request: web.Request, peer: str) -> web.StreamResponse:
    """One WebSocket connection from upgrade to close; `peer` is the client's address."""
    offered = {name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")}
    if offered.isdisjoint(SUBPROTOCOLS):  # [MQTT5-6.0.0-3] [MQTT311-6.0.0-3]
        raise web.HTTPBadRequest(text="MQTT over WebSocket: offer the subprotocol mqtt\n")
    websocket = web.WebSocketResponse(protocols=SUBPROTOCOLS, compress=False, max_msg_size=FRAME_BYTES_MAX)
    await websocket.prepare(request)
    handler = EdgeProtocolHandler(services, normal_address(peer), is_websocket=True)
    transport = WebSocketTransport(websocket, request, handler)
    handler.connection_made(transport)
    writer = asyncio.get_running_loop().create_task(transport.write_frames())
    reader = asyncio.get_running_loop().create_task(transport.read_frames())
    try:
        # the peer's close ends the reader, ours (after the last bytes) the writer
        await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
    finally:
        transport.close()
        reader.cancel()
        await asyncio.wait((reader,))
        handler.connection_lost(None)
        await asyncio.wait((writer,), timeout=5.0)
        writer.cancel()
    return websocket
