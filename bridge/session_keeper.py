"""Looks after sessions that no connection owns: expiry, delayed wills, and what a dead edge has left behind.

Every edge sees every claim and every stored session. For each session that is due for something one live edge, the same
for all who see the same nodes (rendezvous hashing), becomes its owner by a claim, like a client that connects; so a
client that comes back at that moment is later in the log, and wins, or earlier, and the edge finds nothing due.

* an edge is dead (stale, or started anew): its unreleased claims are adopted. Connections are over then: wills are due,
  expiry begins [MQTT5-3.1.2-8] [MQTT311-3.1.2-8]
* a delayed will's time has come [MQTT5-3.1.3-9]
* a session has expired: its records and its claim go [MQTT5-4.1.0-2]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from bridge.claims import OpenClaim
from bridge.log import LogError, PendingRecord, Position
from bridge.murmur2 import murmur2
from bridge.ownership import Ownership
from bridge.partitioning import RouteTable
from bridge.publisher import Publisher
from bridge.retained import RetainedMessages
from bridge.session_store import SessionLost, SessionStore, session_position
from bridge.wills import store_with_will
from schemas.sessions import SessionState, StoredSession, StoredWill, deletion_records, progress_record, state_record

log = logging.getLogger(__name__)

INTERVAL_S = 0.5  # how exact wills and expiry are
TOGETHER_MAX = 200  # sessions settled at a time: each is a claim and a transaction, both batched


class SessionKeeper:
    """One edge's part of the work. `live` names the live nodes, this one among them; `on_adopted` hears of the clients
    whose connection was lost with their edge, and which edge that was.

    Runs as a task of the node; `run` ends only by being cancelled.
    """

    def __init__(
        self,
        ownership: Ownership,
        sessions: SessionStore,
        routes: RouteTable,
        publisher: Publisher,
        retained: RetainedMessages | None,
        live: Callable[[], Iterable[str]],
        clock_ms: Callable[[], int],
        on_over: Callable[[SessionState], None] = lambda state: None,
        on_adopted: Callable[[str, str], None] = lambda client_id, node_id: None,
    ) -> None:
        self._ownership = ownership
        self._sessions = sessions
        self._routes = routes
        self._publisher = publisher
        self._retained = retained
        self._live = live
        self._clock_ms = clock_ms
        self._on_over = on_over
        self._on_adopted = on_adopted
        self._counts = dict.fromkeys(("adopted", "expired", "wills", "failures"), 0)

    async def run(self) -> None:
        """Look around every half second."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.settle_due()
            except Exception:
                self._counts["failures"] += 1
                log.exception("the session keeper goes on after an unexpected error")

    async def settle_due(self) -> None:
        """Settle what is due now and ours to settle."""
        nodes = sorted(self._live())
        mine = self._ownership.node_id
        ours = {client: claim for client, claim in self._ownership.orphans() if chosen(client, nodes) == mine}
        for client_id in self._sessions.view.due(self._clock_ms()):
            claim = self._ownership.owner(client_id)
            if claim is not None and claim.is_released and chosen(client_id, nodes) == mine:
                ours[client_id] = claim
        due = list(ours.items())
        for start in range(0, len(due), TOGETHER_MAX):
            together = due[start : start + TOGETHER_MAX]
            await asyncio.gather(*(self._guarded(client_id, claim) for client_id, claim in together))

    def statistics(self) -> dict[str, int]:
        """Totals since the start of the node."""
        return dict(self._counts)

    async def _guarded(self, client_id: str, claim: OpenClaim) -> None:
        try:
            await self._settle(client_id, claim)
        except SessionLost:
            pass  # its client came back meanwhile
        except LogError as error:
            self._counts["failures"] += 1
            log.warning("client %s: its session could not be settled yet: %s", client_id, error)

    async def _settle(self, client_id: str, claim: OpenClaim) -> None:
        ownership = self._ownership
        is_orphan = not claim.is_released
        if not claim.claim.durable:
            ownership.forget(client_id, claim.epoch)  # nothing is stored
            if is_orphan:
                self._on_adopted(client_id, claim.node_id)
            return
        claimed = await ownership.claim(client_id, claim.claim.principal, True)
        keeps = True
        try:
            if claimed.is_void:
                return
            stored = await self._load(client_id, claimed.epoch)
            if ownership.is_owner(client_id, claimed.epoch):
                self._counts["adopted"] += is_orphan
                if is_orphan:
                    self._on_adopted(client_id, claim.node_id)
                keeps = await self._store(client_id, claimed.epoch, stored)
        finally:
            if keeps:
                ownership.release(client_id, claimed.epoch)
            else:
                ownership.forget(client_id, claimed.epoch)

    async def _load(self, client_id: str, epoch: int) -> StoredSession | None:
        left = await self._ownership.released(client_id, epoch)
        return await self._sessions.load(client_id, {each.claim.node_id for each in left} - {self._ownership.node_id})

    async def _store(self, client_id: str, epoch: int, stored: StoredSession | None) -> bool:
        """Publish the will if it is due, then store what stays; whether anything does."""
        state, will = settled(stored.state, self._clock_ms()) if stored is not None else (None, None)
        if will is not None:
            self._counts["wills"] += 1
        position = session_position(client_id)
        stale = self._sessions.stale_keys(client_id, epoch)
        records: list[tuple[Position, PendingRecord]] = [(position, record) for record in deletion_records(stale)]
        if state is not None and stored is not None:
            records.insert(0, (position, progress_record(client_id, epoch, stored.progress)))
            records.insert(0, (position, state_record(epoch, state)))
        if records:
            await store_with_will(
                will,
                records,
                lambda records: self._sessions.write_now(client_id, epoch, records),
                self._routes,
                self._publisher,
                self._retained,
            )
        if state is None and stored is not None:
            self._counts["expired"] += 1
            self._on_over(stored.state)
        return state is not None


def chosen(client_id: str, nodes: Iterable[str]) -> str | None:
    """Which of the live nodes looks after the session: rendezvous hashing (Thaler and Ravishankar, 1998)."""
    return max(nodes, key=lambda node_id: (murmur2(f"{client_id}\0{node_id}".encode()), node_id), default=None)


def settled(state: SessionState, now_ms: int) -> tuple[SessionState | None, StoredWill | None]:
    """What a session without an owner becomes at `now_ms` (None: it is over), and the will that is due.

    A session that says it is connected has lost its edge: its connection ended now at the latest.
    """
    if state.connected:
        delay_s = min(state.will.delay_s, state.expiry_s) if state.will is not None else 0
        due_ms = now_ms + delay_s * 1000 if state.will is not None else None
        state = replace(state, connected=False, disconnected_ms=now_ms, will_due_ms=due_ms)
    expires_ms = state.expires_ms
    if expires_ms is not None and expires_ms <= now_ms:
        return None, state.will
    if state.will is not None and (state.will_due_ms is None or state.will_due_ms <= now_ms):
        return replace(state, will=None, will_due_ms=None), state.will
    return state, None
