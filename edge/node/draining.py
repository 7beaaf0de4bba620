"""Drain: the clients of this node move to the other nodes, so many a second, each when nothing of it is in flight.

For each client: 1. nothing new is sent to it, and what it was sent is acknowledged; 2. nothing more is read from it,
and what it has sent is acknowledged; 3. DISCONNECT 0x9C with the addresses of the others (3.1.1: the connection is
closed). Steps 1 and 2 have their limits in time: a client that does not answer must not hold up the node. What is not
acknowledged by then is in its session, or the client sends it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edge.handler.services import EdgeServices
from edge.wire import ReasonCode

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler

SETTLE_S: Final = 1.0  # for each of the two steps: a healthy client needs a round trip, Kafka some milliseconds
POLL_S: Final = 0.02
SPREAD: Final = 0.7  # of the time that there is: the rest is for the last clients to settle


class Drain:
    """Runs once; `run` again, faster, when it was cancelled. ``server_reference`` gives a client's."""

    def __init__(self, services: EdgeServices, server_reference: Callable[[EdgeProtocolHandler], str | None]) -> None:
        self._services = services
        self._server_reference = server_reference
        self._moving: list[asyncio.Task[None]] = []
        self.moved = 0

    async def run(self, clients_per_s: float, within_s: float | None = None) -> None:
        """Until every client has gone. With ``within_s`` the rate is raised so that there is time for all."""
        loop = self._services.loop
        try:
            while left := list(self._services.clients.values()):  # again: CONNECTs may have been under way
                if within_s is not None:
                    clients_per_s = max(clients_per_s, len(left) / (within_s * SPREAD))
                began = loop.time()
                for number, handler in enumerate(left):
                    if (wait_s := began + number / clients_per_s - loop.time()) > 0:
                        await asyncio.sleep(wait_s)
                    self._moving.append(loop.create_task(self._move(handler), name="headwater-drain"))
                await asyncio.wait(self._moving)
                self._moving.clear()
            await self._settled()
        finally:
            for task in self._moving:
                task.cancel()
            self._moving.clear()

    async def _settled(self) -> None:
        """What the sessions keep is stored, so that their next owners need not wait."""
        if self._services.endings:
            await asyncio.wait(set(self._services.endings))

    async def _move(self, handler: EdgeProtocolHandler) -> None:
        outgoing = handler.engine.outgoing
        if outgoing is not None:
            outgoing.writable = False  # deliveries wait in the buffer; who is behind reads the log again elsewhere
            await _until(lambda: not (outgoing.inflight or outgoing.flows) or not handler.is_open)
        if handler.is_open:
            handler.stop_reading()
            await _until(lambda: _is_answered(handler) or not handler.is_open)
        self.moved += 1
        reference = self._server_reference(handler)
        code = ReasonCode.USE_ANOTHER_SERVER if reference is not None else ReasonCode.SERVER_SHUTTING_DOWN
        handler.disconnect(code, "this edge is being drained; use another one", reference)


def _is_answered(handler: EdgeProtocolHandler) -> bool:
    """Whether the client has every PUBACK and PUBREC that it is due."""
    incoming, flows = handler.engine.incoming, handler.engine.flows
    return not (incoming is not None and incoming.unacknowledged) and not (flows is not None and flows.pending)


async def _until(is_done: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(SETTLE_S):
            while not is_done():  # noqa: ASYNC110 - several things change it, none of them often
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        pass
