"""The stored sessions as one node sees them: what `headwater.sessions` says, folded record by record. Pure.

A session is its records under its highest epoch with a state. They are kept as they are, the last one of each kind, in
the order of the log: that is what compaction leaves, too, so a view is the same with it or without. They are decoded
when somebody asks (`get`), for most sessions are asked for seldom.

Of older epochs only the keys are remembered, until their tombstones come: the new owner writes these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from sys import intern

import orjson

from schemas.errors import RecordError
from schemas.sessions import (
    KIND_PROGRESS,
    KIND_STATE,
    SessionProgress,
    StateOutline,
    StoredSession,
    amend,
    decode_progress,
    decode_state,
    outline_state,
    session_key,
)

DUE_AGAIN_MS = 10_000  # what was due is told again after this, for the node that should have acted may be gone
DUE_PER_CALL_MAX = 1_000
_NO_STATE = StateOutline(False, "", "", None, None)


class _Session:
    """The records of one client and epoch, by kind, each put last when it was written last."""

    __slots__ = ("due_ms", "epoch", "outline", "records")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.records: dict[bytes, bytes] = {}
        self.outline = _NO_STATE
        self.due_ms: int | None = None  # what the heap has of it


class SessionView:
    """Client id -> stored session."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._pending: dict[str, dict[int, _Session]] = {}  # later epochs without a state, as compaction may leave them
        self._older: dict[str, set[bytes]] = {}  # keys of earlier epochs that have no tombstone yet
        self._due: list[tuple[int, str]] = []  # a heap; an entry may be out of date
        self._bytes = 0
        self._unreadable = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[str]:
        """The client ids."""
        return iter(self._sessions)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._sessions

    def apply(self, client_id: str, epoch: int, kind: bytes, value: bytes | None) -> None:
        """Take one record, in the order of the log; None is a tombstone.

        Raises:
            RecordError: a state that cannot be read; nothing has changed.
        """
        outline = outline_state(value) if kind == KIND_STATE and value is not None else None
        held = self._sessions.get(client_id)
        if held is not None and epoch < held.epoch:
            self._note_older(client_id, session_key(client_id, epoch, kind), is_gone=value is None)
        elif value is None:
            self._delete(client_id, held, epoch, kind)
        else:
            self._put(client_id, held, epoch, kind, value, outline)

    def discard(self, is_gone: Callable[[str], bool]) -> None:
        """Drop all that is known of the clients that ``is_gone`` names: their part of the log is gone."""
        for client_id in [each for each in self._sessions if is_gone(each)]:
            self._bytes -= sum(map(len, self._sessions.pop(client_id).records.values()))
        for client_id in [each for each in self._pending if is_gone(each)]:
            for session in self._pending.pop(client_id).values():
                self._bytes -= sum(map(len, session.records.values()))
        for client_id in [each for each in self._older if is_gone(each)]:
            del self._older[client_id]

    # Asking

    def get(self, client_id: str) -> StoredSession | None:
        """The session as its records say; None: nothing is stored."""
        held = self._sessions.get(client_id)
        if held is None:
            return None
        try:
            state = decode_state(client_id, held.records[KIND_STATE])
        except RecordError:
            self._unreadable += 1
            return None
        progress = SessionProgress()
        for kind, value in held.records.items():
            try:
                if kind == KIND_PROGRESS:
                    progress = _after(progress, decode_progress(value))
                elif kind != KIND_STATE:
                    amend(progress, kind, value)
            except RecordError:
                self._unreadable += 1
        return StoredSession(held.epoch, state, progress)

    def holds_filter(self, topic_filter: str) -> bool:
        """Whether a session has this subscription. All sessions are looked at: 0.2 s for a million."""
        needle = orjson.dumps(topic_filter)
        return any(needle in session.records[KIND_STATE] for session in self._sessions.values())

    def epoch(self, client_id: str) -> int | None:
        """Under which epoch the session was stored."""
        held = self._sessions.get(client_id)
        return held.epoch if held is not None else None

    def stale_keys(self, client_id: str, epoch: int) -> list[bytes]:
        """The keys before this epoch that have no tombstone: they go when the session is stored under it, or ends."""
        keys = sorted(self._older.get(client_id, ()))
        sessions = list(self._pending.get(client_id, {}).values())
        held = self._sessions.get(client_id)
        if held is not None:
            sessions.insert(0, held)
        for session in sessions:
            if session.epoch < epoch:
                keys += [session_key(client_id, session.epoch, kind) for kind in session.records]
        return keys

    def journal_keys(self, client_id: str, epoch: int) -> list[bytes]:
        """The keys of what has been written beside the progress: they go when a progress is written that has it."""
        session = self._find(client_id, epoch)
        if session is None:
            return []
        kinds = session.records.keys() - {KIND_STATE, KIND_PROGRESS}
        return [session_key(client_id, epoch, kind) for kind in kinds]

    def connected_on(self, node_id: str, *, except_incarnation: str | None = None) -> list[str]:
        """The clients whose session says that they are connected to this node (not counting that incarnation).

        All sessions are looked at: 0.1 s for a million.
        """
        return [
            client_id
            for client_id, session in self._sessions.items()
            if session.outline.connected
            and session.outline.node_id == node_id
            and session.outline.incarnation != except_incarnation
        ]

    # Time

    @property
    def next_due_ms(self) -> int | None:
        """When `due` has something, at the earliest."""
        while self._due:
            due_ms, client_id = self._due[0]
            held = self._sessions.get(client_id)
            if held is not None and held.due_ms == due_ms:
                return due_ms
            heappop(self._due)
        return None

    def due(self, now_ms: int) -> list[str]:
        """The clients whose offline session expires, or whose will is due, at most 1,000 at a time.

        As long as the record does not change, each is told again after 10 s.
        """
        clients: list[str] = []
        while len(clients) < DUE_PER_CALL_MAX and (due_ms := self.next_due_ms) is not None and due_ms <= now_ms:
            _, client_id = heappop(self._due)
            clients.append(client_id)
            self._arm(client_id, self._sessions[client_id], now_ms + DUE_AGAIN_MS)
        return clients

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and `$SYS`."""
        return {
            "sessions": len(self._sessions),
            "bytes": self._bytes,
            "pending": len(self._pending),
            "clients_with_older_keys": len(self._older),
            "timers": len(self._due),
            "unreadable": self._unreadable,
        }

    def snapshot(self) -> dict[str, StoredSession]:
        """All sessions, to compare two views."""
        sessions = ((client_id, self.get(client_id)) for client_id in self._sessions)
        return {client_id: session for client_id, session in sessions if session is not None}

    # Records

    def _put(
        self, client_id: str, held: _Session | None, epoch: int, kind: bytes, value: bytes, outline: StateOutline | None
    ) -> None:
        session = held if held is not None and held.epoch == epoch else self._pending_session(client_id, epoch)
        former = session.records.pop(kind, None)
        session.records[kind] = value
        self._bytes += len(value) - (len(former) if former is not None else 0)
        if outline is None:
            return
        outline.node_id, outline.incarnation = intern(outline.node_id), intern(outline.incarnation)
        session.outline = outline
        if session is not held:
            self._promote(client_id, held, session)
        due = [at for at in (outline.expires_ms, outline.will_due_ms) if at is not None]
        self._arm(client_id, session, min(due, default=None))

    def _pending_session(self, client_id: str, epoch: int) -> _Session:
        pending = self._pending.setdefault(client_id, {})
        if epoch not in pending:
            pending[epoch] = _Session(epoch)
        return pending[epoch]

    def _promote(self, client_id: str, held: _Session | None, session: _Session) -> None:
        """The epoch has a state now: it is the session, and what was before is older."""
        self._sessions[client_id] = session
        pending = self._pending.pop(client_id)
        del pending[session.epoch]
        former = [other for other in pending.values() if other.epoch < session.epoch]
        for other in former if held is None else [*former, held]:
            pending.pop(other.epoch, None)
            for kind, value in other.records.items():
                self._bytes -= len(value)
                self._note_older(client_id, session_key(client_id, other.epoch, kind), is_gone=False)
        if pending:
            self._pending[client_id] = pending

    def _delete(self, client_id: str, held: _Session | None, epoch: int, kind: bytes) -> None:
        session = self._find(client_id, epoch)
        if session is None or kind not in session.records:
            self._note_older(client_id, session_key(client_id, epoch, kind), is_gone=True)
            return
        self._bytes -= len(session.records.pop(kind))
        if session is held and kind == KIND_STATE:
            del self._sessions[client_id]
            session.outline, session.due_ms = _NO_STATE, None
            if session.records:
                self._pending.setdefault(client_id, {})[epoch] = session
        elif not session.records:
            pending = self._pending[client_id]
            del pending[epoch]
            if not pending:
                del self._pending[client_id]

    def _find(self, client_id: str, epoch: int) -> _Session | None:
        held = self._sessions.get(client_id)
        if held is not None and held.epoch == epoch:
            return held
        return self._pending.get(client_id, {}).get(epoch)

    def _note_older(self, client_id: str, key: bytes, *, is_gone: bool) -> None:
        if not is_gone:
            self._older.setdefault(client_id, set()).add(key)
        elif client_id in self._older:
            keys = self._older[client_id]
            keys.discard(key)
            if not keys:
                del self._older[client_id]

    def _arm(self, client_id: str, session: _Session, due_ms: int | None) -> None:
        session.due_ms = due_ms
        if due_ms is None:
            return
        heappush(self._due, (due_ms, client_id))
        if len(self._due) > 2 * len(self._sessions) + 1_000:  # sessions that changed leave entries behind
            live = ((each.due_ms, client_id) for client_id, each in self._sessions.items())
            self._due = [(at, client_id) for at, client_id in live if at is not None]
            heapify(self._due)


def _after(journaled: SessionProgress, progress: SessionProgress) -> SessionProgress:
    """The progress with what the journal in front of it says of the packet ids that it calls unsettled."""
    progress.incoming |= progress.unsettled & journaled.incoming
    for packet_id in progress.unsettled_outgoing:
        entry = journaled.outgoing.get(packet_id)
        if entry is not None and entry.shared:
            progress.outgoing[packet_id] = entry
    progress.unsettled.clear()
    progress.unsettled_outgoing.clear()
    return progress
