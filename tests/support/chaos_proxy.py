"""A TCP proxy that makes trouble: latency, one direction dropped, held or cut, connections reset.

All connections through one `FaultProxy` share its trouble. What was dropped cannot come later: when the trouble ends,
connections that have lost bytes are reset, as after a real loss. What was held goes on.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

CHUNK_BYTES = 65_536
Mode = Literal["pass", "hold", "drop"]


@dataclass(slots=True)
class Direction:
    """What happens to bytes that go one way."""

    mode: Mode = "pass"
    latency_s: tuple[float, float] = (0.0, 0.0)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Pair:
    writers: list[asyncio.StreamWriter]
    has_lost: bool = False

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class FaultProxy:
    """Listens on a port of loopback and connects to another."""

    def __init__(self, port: int, target: tuple[str, int], seed: int = 0) -> None:
        self.address = ("127.0.0.1", port)
        self.requests = Direction()  # towards the target
        self.answers = Direction()  # from the target
        self._target = target
        self._rng = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; with port 0 on any that is free."""
        self._server = await asyncio.start_server(self._accept, *self.address)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Close everything. Idempotent."""
        if self._server is not None:
            self._server.close()
        self.reset_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set(self, requests: Mode = "pass", answers: Mode = "pass", latency_s: tuple[float, float] = (0.0, 0.0)) -> None:
        """New trouble, or none; connections that have lost bytes end when nothing is dropped any more."""
        for direction, mode in ((self.requests, requests), (self.answers, answers)):
            direction.mode, direction.latency_s = mode, latency_s
            direction.changed.set()
            direction.changed = asyncio.Event()
        if "drop" not in (requests, answers):
            for pair in [pair for pair in self._pairs if pair.has_lost]:
                pair.abort()

    def reset_all(self) -> None:
        """RST on both sides of every connection."""
        for pair in list(self._pairs):
            pair.abort()

    @property
    def connections(self) -> int:
        return len(self._pairs)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        pair = _Pair([writer])
        self._pairs.add(pair)
        try:
            if "hold" in (self.requests.mode, self.answers.mode):  # a SYN is lost, too
                await self._passes(self.requests)
            up_reader, up_writer = await asyncio.open_connection(*self._target)
            pair.writers.append(up_writer)
            await asyncio.gather(
                self._pump(reader, up_writer, self.requests, pair), self._pump(up_reader, writer, self.answers, pair)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            pair.abort()
            self._pairs.discard(pair)
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction, pair: _Pair
    ) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1_000)
        sender = loop.create_task(self._send(queue, writer, direction, pair))
        try:
            while data := await reader.read(CHUNK_BYTES):
                await queue.put((loop.time() + self._rng.uniform(*direction.latency_s), data))
            await queue.put((0.0, b""))
            await sender
        except OSError:
            pair.abort()
        finally:
            sender.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sender

    async def _send(
        self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, direction: Direction, pair: _Pair
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            at, data = await queue.get()
            await asyncio.sleep(max(0.0, at - loop.time()))
            await self._passes(direction)
            if direction.mode == "drop":
                pair.has_lost = True
                continue
            if not data:
                writer.write_eof() if writer.can_write_eof() else None
                return
            writer.write(data)
            await writer.drain()

    async def _passes(self, direction: Direction) -> None:
        while direction.mode == "hold":
            await direction.changed.wait()
