"""A queue of received messages, for code that reads them one by one (tests, tools)."""

from __future__ import annotations

import asyncio

from edge.wire.packets import Publish


class Inbox:
    """Messages in the order of arrival; bounded: the newest is dropped and counted when nobody reads."""

    def __init__(self, messages_max: int) -> None:
        self._queue: asyncio.Queue[Publish] = asyncio.Queue(messages_max)
        self.dropped = 0

    def put(self, message: Publish) -> None:
        """The ``on_message`` callback."""
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self.dropped += 1

    async def get(self, timeout_s: float = 10.0) -> Publish:
        """The next message.

        Raises:
            TimeoutError: none came in time.
        """
        async with asyncio.timeout(timeout_s):
            return await self._queue.get()

    async def get_many(self, count: int, timeout_s: float = 30.0) -> list[Publish]:
        """The next ``count`` messages.

        Raises:
            TimeoutError: fewer came in time.
        """
        async with asyncio.timeout(timeout_s):
            return [await self._queue.get() for _ in range(count)]

    def drain(self) -> list[Publish]:
        """What is there now."""
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    def __len__(self) -> int:
        return self._queue.qsize()
