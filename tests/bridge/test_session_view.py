"""The view of the stored sessions: pure, against a simple model, with and without compaction."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.session_journal import OutgoingJournal
from bridge.session_view import DUE_AGAIN_MS, DUE_PER_CALL_MAX, SessionView
from schemas.errors import RecordError
from schemas.sessions import (
    OutgoingEntry,
    OutgoingState,
    SessionProgress,
    SessionRecord,
    SessionState,
    StoredSession,
    StoredWill,
    amend,
    decode_progress,
    decode_state,
    deletion_records,
    incoming_record,
    outgoing_record,
    parse_session_key,
    progress_record,
    state_record,
)

WILL = StoredWill("w", b"gone", 1, False, 5)
OFFLINE = SessionState("c", "p", 5, 60, connected=False, node_id="a", incarnation="1", disconnected_ms=1_000)


def apply(view: SessionView, *records: SessionRecord) -> SessionView:
    for key, value, _ in records:
        client_id, epoch, kind = parse_session_key(key)
        view.apply(client_id, epoch, kind, value)
    return view


def session(view: SessionView) -> StoredSession:
    stored = view.get("c")
    assert stored is not None
    return stored


def test_a_session_is_its_highest_epoch_with_a_state() -> None:
    view = apply(SessionView(), state_record(5, OFFLINE), incoming_record("c", 9, 1))
    assert (session(view).epoch, session(view).progress.incoming) == (5, set())
    apply(view, state_record(9, replace(OFFLINE, node_id="b")), state_record(7, OFFLINE))
    assert (session(view).epoch, session(view).state.node_id, session(view).progress.incoming) == (9, "b", {1})
    assert view.get("other") is None
    assert ("c" in view, len(view), view.epoch("c")) == (True, 1, 9)


def test_a_progress_replaces_what_the_journal_said() -> None:
    entry = OutgoingEntry("t", 0, 10, 2)
    view = apply(
        SessionView(),
        state_record(1, OFFLINE),
        outgoing_record("c", 1, 3, entry, {}),
        incoming_record("c", 1, 4),
        progress_record("c", 1, SessionProgress({("t", 0): 5})),
    )
    assert session(view).progress == SessionProgress({("t", 0): 5})
    assert sorted(view.journal_keys("c", 1)) == [b"c\x001\x00i4", b"c\x001\x00o3"]
    apply(view, *deletion_records(view.journal_keys("c", 1)), outgoing_record("c", 1, 3, replace(entry, offset=20), {}))
    assert session(view).progress.positions == {("t", 0): 21}
    assert view.journal_keys("c", 1) == [b"c\x001\x00o3"]
    assert view.journal_keys("c", 2) == []


def test_older_keys_are_known_until_their_tombstones_come() -> None:
    view = apply(SessionView(), state_record(1, OFFLINE), progress_record("c", 1, SessionProgress()))
    assert view.stale_keys("c", 1) == []
    assert view.stale_keys("c", 2) == [b"c\x001\x00s", b"c\x001\x00p"]
    apply(view, state_record(2, OFFLINE))
    assert view.stale_keys("c", 2) == [b"c\x001\x00p", b"c\x001\x00s"]
    apply(view, incoming_record("c", 1, 7))  # late: it is not the session's, but it has to go, too
    assert len(view.stale_keys("c", 2)) == 3
    apply(view, *deletion_records(view.stale_keys("c", 3)))
    assert view.stale_keys("c", 3) == []
    assert (view.get("c"), len(view), view.statistics()["bytes"]) == (None, 0, 0)
    assert view.statistics()["pending"] == view.statistics()["clients_with_older_keys"] == 0


def test_a_session_without_its_state_is_none() -> None:
    view = apply(SessionView(), state_record(1, OFFLINE), incoming_record("c", 1, 1))
    apply(view, *deletion_records([b"c\x001\x00s"]))
    assert (view.get("c"), view.stale_keys("c", 2)) == (None, [b"c\x001\x00i1"])
    apply(view, state_record(1, OFFLINE))
    assert session(view).progress.incoming == {1}


def test_a_state_that_cannot_be_read_changes_nothing() -> None:
    view = apply(SessionView(), state_record(1, OFFLINE))
    with pytest.raises(RecordError):
        view.apply("c", 2, b"s", b"?")
    assert session(view).epoch == 1
    view.apply("c", 1, b"p", b"?")  # found out when it is decoded: passed over
    view.apply("c", 1, b"i1", b"?")
    apply(view, incoming_record("c", 1, 2))
    assert session(view).progress.incoming == {2}
    assert view.statistics()["unreadable"] == 2
    view.apply("c", 1, b"s", b'{"expiry_s":1}')
    assert view.get("c") is None


def test_expiry_and_wills_come_due_until_the_record_changes() -> None:
    """[MQTT5-3.1.3-9] [MQTT5-3.1.2.11.2]"""
    view = apply(SessionView(), state_record(1, OFFLINE))
    assert view.next_due_ms == 61_000
    apply(view, state_record(1, replace(OFFLINE, will=WILL, will_due_ms=6_000)))
    assert (view.next_due_ms, view.due(5_999), view.due(6_000)) == (6_000, [], ["c"])
    assert view.due(6_000) == []
    assert view.due(6_000 + DUE_AGAIN_MS) == ["c"], "the node that should have acted may be gone"
    apply(view, state_record(1, OFFLINE))  # the will was published
    assert (view.next_due_ms, view.due(61_000)) == (61_000, ["c"])
    apply(view, state_record(2, replace(OFFLINE, connected=True)))
    assert (view.next_due_ms, view.due(10**9)) == (None, [])
    apply(view, state_record(3, OFFLINE), *deletion_records([b"c\x003\x00s"]))
    assert view.due(10**9) == []


def test_due_is_bounded_and_its_heap_too() -> None:
    view = SessionView()
    for number in range(DUE_PER_CALL_MAX + 5):
        apply(view, state_record(1, replace(OFFLINE, client_id=str(number))))
    assert len(view.due(61_000)) == DUE_PER_CALL_MAX
    assert len(view.due(61_000)) == 5
    for number in range(10_000):
        apply(view, state_record(1, replace(OFFLINE, disconnected_ms=number)))
    assert view.statistics()["timers"] < 2 * len(view) + 1_002
    assert "c" in view.due(69_999) + view.due(69_999)


def test_the_sessions_of_a_dead_node_are_found() -> None:
    view = SessionView()
    for client_id, node_id, incarnation, connected in (
        ("one", "a", "1", True),
        ("two", "a", "2", True),
        ("three", "b", "1", True),
        ("four", "a", "1", False),
    ):
        state = SessionState(client_id, "p", 5, 60, (), None, connected, node_id, incarnation)
        apply(view, state_record(1, state))
    assert view.connected_on("a") == ["one", "two"]
    assert view.connected_on("a", except_incarnation="2") == ["one"]


def test_a_partition_that_is_gone_is_forgotten_whole() -> None:
    view = apply(SessionView(), state_record(1, OFFLINE), state_record(2, OFFLINE), incoming_record("c", 5, 1))
    apply(view, state_record(7, replace(OFFLINE, client_id="other")))
    view.discard(lambda client_id: client_id == "c")
    assert (view.get("c"), view.stale_keys("c", 9), len(view)) == (None, [], 1)
    view.discard(lambda client_id: True)
    assert (view.statistics()["bytes"], view.due(10**9)) == (0, [])


# Against a model


@dataclass
class Model:
    """One client: what each epoch's records say, taken one after the other."""

    states: dict[int, SessionState] = field(default_factory=dict)
    progress: dict[int, SessionProgress] = field(default_factory=dict)
    newest: int = -1

    def apply(self, epoch: int, kind: bytes, value: bytes | None) -> None:
        if kind == b"s":
            if value is None:
                self.states.pop(epoch, None)
            elif epoch >= self.newest:
                self.newest = epoch
                self.states[epoch] = decode_state("c", value)
        elif kind == b"p":
            self.progress[epoch] = decode_progress(value) if value is not None else SessionProgress()
        elif value is not None:
            amend(self.progress.setdefault(epoch, SessionProgress()), kind, value)

    @property
    def session(self) -> StoredSession | None:
        state = self.states.get(self.newest)
        if state is None:
            return None
        return StoredSession(self.newest, state, self.progress.get(self.newest, SessionProgress()))


PACKET_IDS = st.integers(1, 3)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("state"), st.integers(0, 9)),
        st.tuples(st.just("progress"), st.booleans()),
        st.tuples(st.just("in"), PACKET_IDS, st.booleans()),
        st.tuples(st.just("out"), PACKET_IDS, st.sampled_from(["sent", "released", "done"]), st.integers(0, 1)),
        st.tuples(st.just("owner"), st.booleans()),
        st.tuples(st.just("delete")),
        st.tuples(st.just("late"), PACKET_IDS),
    ),
    max_size=40,
)


class Writer:
    """What owners write, by the rules: a new epoch begins with a state, tombstones go behind what makes them true."""

    def __init__(self) -> None:
        self.log: list[SessionRecord] = []
        self.view = SessionView()
        self.model = Model()
        self.epoch = 1
        self.offset = 0
        self.is_stored = False
        self.outgoing = OutgoingJournal("c", 1)

    def append(self, *records: SessionRecord) -> None:
        for record in records:
            key, value, _ = record
            _, epoch, kind = parse_session_key(key)
            self.log.append(record)
            self.view.apply("c", epoch, kind, value)
            self.model.apply(epoch, kind, value)

    def perform(self, name: str, *rest: object) -> None:
        if name == "owner":
            self.epoch += 10
            self.begin(OFFLINE, keeps=bool(rest[0]))
        elif name == "state" or not self.is_stored:
            self.begin(replace(OFFLINE, disconnected_ms=self.offset), keeps=True)
        elif name == "progress":
            self.append(progress_record("c", self.epoch, self.progress()))
            self.outgoing.clear()
            if rest[0]:
                self.append(*deletion_records(self.view.journal_keys("c", self.epoch)))
        elif name == "delete":
            self.append(*deletion_records(self.view.stale_keys("c", self.epoch + 1)))
            self.epoch += 1
            self.is_stored = False
        else:
            self.journal(name, *rest)

    def begin(self, state: SessionState, *, keeps: bool) -> None:
        progress = self.progress() if keeps else SessionProgress()
        self.append(state_record(self.epoch, state), progress_record("c", self.epoch, progress))
        self.append(*deletion_records(self.view.stale_keys("c", self.epoch)))
        self.is_stored = True
        self.outgoing = OutgoingJournal("c", self.epoch)

    def progress(self) -> SessionProgress:
        session = self.view.get("c")
        return deepcopy(session.progress) if session is not None else SessionProgress()

    def journal(self, name: str, *rest: object) -> None:
        packet_id = rest[0]
        assert isinstance(packet_id, int)
        if name == "late":
            self.append(incoming_record("c", self.epoch - 1, packet_id))
        elif name == "in":
            self.append(incoming_record("c", self.epoch, packet_id, is_done=bool(rest[1])))
        else:
            self.offset += 1
            state: OutgoingState = rest[1]  # type: ignore[assignment]
            entry = OutgoingEntry("t", int(bool(rest[2])), self.offset, 2, state)
            self.append(self.outgoing.record(packet_id, entry))


def run(operations: list[tuple[object, ...]]) -> Writer:
    writer = Writer()
    for name, *rest in operations:
        writer.perform(str(name), *rest)
    return writer


@settings(max_examples=300, deadline=None)
@given(OPERATIONS)
def test_the_view_is_the_model(operations: list[tuple[object, ...]]) -> None:
    writer = run(operations)
    assert writer.view.get("c") == writer.model.session


@settings(max_examples=300, deadline=None)
@given(OPERATIONS, st.data())
def test_compaction_at_any_point_gives_the_same_view(operations: list[tuple[object, ...]], data: st.DataObject) -> None:
    writer = run(operations)
    log = writer.log
    cut = data.draw(st.integers(0, len(log)), label="compacted up to")
    is_purged = data.draw(st.booleans(), label="without its tombstones")
    last = {key: index for index, (key, _, _) in enumerate(log[:cut])}
    view = SessionView()
    for index, record in enumerate(log):
        is_left = last.get(record[0]) == index and not (is_purged and record[1] is None)
        if index >= cut or is_left:
            apply(view, record)
    assert view.snapshot() == writer.view.snapshot()
    assert view.statistics()["bytes"] == writer.view.statistics()["bytes"]


def test_what_was_unsettled_is_what_the_journal_said_before_the_progress() -> None:
    """A commit was under way when the progress was taken down: it happened (1), or it did not (2)."""
    view = SessionView()
    state = SessionState("c", "ann", 5, 600)
    progress = SessionProgress(incoming={3}, unsettled={1, 2})
    for key, value, _ in (
        state_record(7, state),
        incoming_record("c", 7, 1),
        incoming_record("c", 7, 4),
        progress_record("c", 7, progress),
    ):
        view.apply(*parse_session_key(key), value)
    stored = view.get("c")
    assert stored is not None
    assert stored.progress == SessionProgress(incoming={1, 3})
