"""What a node has for sessions, and nothing else: claims, the store, a sink that writes down what it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bridge.log import Log, PendingRecord, Position, RecordRefused
from bridge.ownership import Claimed, Ownership
from bridge.publisher import Publisher
from bridge.session_store import SessionStore
from schemas.catalogue import CLAIMS, SESSIONS
from schemas.sessions import (
    SessionProgress,
    SessionState,
    StoredSession,
    deletion_records,
    incoming_record,
    progress_record,
    state_record,
)

PARTITIONS = 12


@dataclass(slots=True)
class RecordingStoreSink:
    """Writes down every outcome, in order."""

    outcomes: list[tuple[Any, ...]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def stored(self, token: Any, offsets: list[int]) -> None:
        self._note("stored", token, offsets)

    def store_refused(self, token: Any, error: RecordRefused) -> None:
        self._note("refused", token, error.reason)

    def store_lost(self, token: Any) -> None:
        self._note("lost", token)

    def store_unknown(self, token: Any) -> None:
        self._note("unknown", token)

    def _note(self, *outcome: Any) -> None:
        self.outcomes.append(outcome)
        self.changed.set()

    @property
    def told(self) -> list[tuple[str, Any]]:
        """Outcomes and tokens, without offsets and reasons."""
        return [(outcome[0], outcome[1]) for outcome in self.outcomes]

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.outcomes) < count:
                self.changed.clear()
                await self.changed.wait()


class SessionNode:
    """One edge's share of sessions on a log. ``live`` names the live nodes; the test changes it."""

    def __init__(
        self,
        log: Log,
        node_id: str,
        live: set[str],
        *,
        incarnation: str = "1",
        prefix: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        claims, sessions = (f"{prefix}.c", f"{prefix}.s") if prefix else (CLAIMS, SESSIONS)
        self.log = log
        self.node_id = node_id
        self.publisher = Publisher(log)
        self.lost: list[tuple[str, int]] = []
        self.batches = 0
        self.sink = RecordingStoreSink()
        self.ownership = Ownership(
            log,
            self.publisher.append_future,
            node_id,
            incarnation,
            lambda node, _: node in live,
            lambda client_id, epoch: self.lost.append((client_id, epoch)),
            kafka_topic=claims,
            partitions=PARTITIONS,
        )
        self.store = SessionStore(
            log, node_id, self.ownership, self._after_batch, kafka_topic=sessions, partitions=PARTITIONS, clock=clock
        )
        live.add(node_id)

    def _after_batch(self) -> None:
        self.batches += 1

    async def start(self) -> None:
        await self.store.start()
        await self.ownership.start()

    async def stop(self) -> None:
        await self.store.stop(0)
        await self.ownership.stop()
        await self.publisher.stop(0)

    # What an edge does with a session

    async def claim(self, client_id: str, principal: str = "p") -> Claimed:
        return await self.ownership.claim(client_id, principal, True)

    async def open(self, client_id: str, timeout_s: float = 5.0) -> tuple[int, StoredSession | None]:
        """As an edge does: claim, wait or fence, load, store under the new epoch."""
        claimed = await self.claim(client_id)
        left = await self.ownership.released(client_id, claimed.epoch, timeout_s)
        stored = await self.store.load(client_id, {each.node_id for each in left})
        progress = stored.progress if stored is not None else SessionProgress()
        await self.store.write_now(client_id, claimed.epoch, self.first_records(client_id, claimed.epoch, progress))
        return claimed.epoch, stored

    def first_records(
        self, client_id: str, epoch: int, progress: SessionProgress
    ) -> list[tuple[Position, PendingRecord]]:
        position = self.store.position(client_id)
        records = [
            state_record(epoch, self.state(client_id)),
            progress_record(client_id, epoch, progress),
            *deletion_records(self.store.stale_keys(client_id, epoch)),
        ]
        return [(position, record) for record in records]

    def state(self, client_id: str, *, connected: bool = True) -> SessionState:
        return SessionState(client_id, "p", 5, 3_600, (), None, connected, self.node_id, "1")

    def received(self, client_id: str, epoch: int, packet_id: int) -> None:
        """Store the packet id of a QoS 2 message; the sink's token is (client id, packet id)."""
        record = (self.store.position(client_id), incoming_record(client_id, epoch, packet_id))
        self.store.write(client_id, epoch, [record], self.sink, (client_id, packet_id))

    def incoming(self, client_id: str) -> set[int] | None:
        """The packet ids that this node's view has."""
        stored = self.store.view.get(client_id)
        return stored.progress.incoming if stored is not None else None


@asynccontextmanager
async def running(*nodes: SessionNode) -> AsyncIterator[None]:
    """Started in order, stopped in any case."""
    try:
        for node in nodes:
            await node.start()
        yield
    finally:
        for node in nodes:
            await node.stop()
