"""Records of `headwater.sessions`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RecordError
from schemas.records import EXPIRY_S_MAX
from schemas.sessions import (
    OutgoingEntry,
    SessionProgress,
    SessionState,
    StoredSubscription,
    StoredWill,
    amend,
    decode_progress,
    decode_state,
    deletion_records,
    incoming_record,
    marker_key,
    outgoing_record,
    outline_state,
    parse_session_key,
    progress_record,
    session_key,
    state_record,
)

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
NUMBERS = st.integers(0, 2**60)
PACKET_IDS = st.integers(1, 65_535)
SUBSCRIPTIONS = st.builds(
    StoredSubscription,
    TEXTS,
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
    st.none() | st.integers(1, 2**28),
)
WILLS = st.builds(
    StoredWill,
    TEXTS,
    st.binary(max_size=20),
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, EXPIRY_S_MAX),
    st.lists(st.tuples(TEXTS, st.binary(max_size=10)), max_size=3).map(tuple),
)
STATES = st.builds(
    SessionState,
    TEXTS,
    TEXTS,
    st.sampled_from([4, 5]),
    st.integers(0, EXPIRY_S_MAX),
    st.lists(SUBSCRIPTIONS, max_size=3).map(tuple),
    st.none() | WILLS,
    st.booleans(),
    TEXTS,
    TEXTS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
)
ENTRIES = st.builds(
    OutgoingEntry,
    TEXTS,
    st.integers(0, 99),
    NUMBERS,
    st.integers(1, 2),
    st.sampled_from(["sent", "released"]),
    st.none() | TEXTS,
)
PROGRESSES = st.builds(
    SessionProgress,
    st.dictionaries(st.tuples(TEXTS, st.integers(0, 99)), NUMBERS, max_size=4),
    st.dictionaries(PACKET_IDS, ENTRIES, max_size=4),
    st.sets(PACKET_IDS, max_size=4),
)


@given(STATES, NUMBERS)
def test_a_state_comes_back_as_it_was(state: SessionState, epoch: int) -> None:
    key, value, headers = state_record(epoch, state)
    assert value is not None
    assert parse_session_key(key) == (state.client_id, epoch, b"s")
    assert decode_state(state.client_id, value) == state
    assert headers == ()
    outline = outline_state(value)
    assert (outline.connected, outline.node_id, outline.incarnation) == (
        state.connected,
        state.node_id,
        state.incarnation,
    )
    assert outline.expires_ms == state.expires_ms
    is_waiting = state.will is not None and not state.connected
    assert outline.will_due_ms == (state.will_due_ms if is_waiting else None)


@given(TEXTS, NUMBERS, PROGRESSES)
def test_a_progress_comes_back_as_it_was(client_id: str, epoch: int, progress: SessionProgress) -> None:
    key, value, _ = progress_record(client_id, epoch, progress)
    assert value is not None
    assert parse_session_key(key) == (client_id, epoch, b"p")
    assert decode_progress(value) == progress


def test_a_session_expires_only_offline_and_not_with_the_highest_interval() -> None:
    """[MQTT5-3.1.2.11.2]"""
    state = SessionState("c", "p", 5, 10, connected=False, disconnected_ms=1_000)
    assert state.expires_ms == 11_000
    assert replace(state, connected=True).expires_ms is None
    assert replace(state, expiry_s=EXPIRY_S_MAX).expires_ms is None
    assert replace(state, disconnected_ms=None).expires_ms is None


def amended(progress: SessionProgress, record: tuple[bytes, bytes | None, Any]) -> SessionProgress:
    key, value, _ = record
    assert value is not None
    amend(progress, parse_session_key(key)[2], value)
    return progress


def test_the_journal_amends_what_came_before() -> None:
    entry = OutgoingEntry("t.q2", 3, 41, 2)
    progress = SessionProgress({("t.q2", 3): 7})
    assert amended(progress, incoming_record("c", 1, 9)).incoming == {9}
    assert amended(progress, incoming_record("c", 1, 9, is_done=True)).incoming == set()
    assert amended(progress, outgoing_record("c", 1, 5, entry, {})).outgoing == {5: entry}
    assert progress.positions == {("t.q2", 3): 42}
    amended(progress, outgoing_record("c", 1, 5, replace(entry, state="released"), {}))
    assert progress.outgoing[5].state == "released"
    assert amended(progress, outgoing_record("c", 1, 5, replace(entry, state="done"), {})).outgoing == {}
    assert progress.positions == {("t.q2", 3): 42}, "it was sent all the same"
    amended(progress, outgoing_record("c", 1, 6, replace(entry, offset=3), {}))
    assert progress.positions == {("t.q2", 3): 42}, "a position never goes back"


def test_a_retained_message_moves_no_position() -> None:
    entry = OutgoingEntry("t.q2", 3, 41, 2, topic_name="a/b")
    progress = amended(SessionProgress(), outgoing_record("c", 1, 5, entry, {}))
    assert (progress.outgoing, progress.positions) == ({5: entry}, {})


def test_a_packet_id_that_is_used_again_remembers_where_it_was() -> None:
    record = outgoing_record("c", 1, 5, OutgoingEntry("t", 0, 9, 2), {("t", 1): 7, ("t", 2): 3})
    progress = amended(SessionProgress({("t", 2): 4}), record)
    assert progress.positions == {("t", 0): 10, ("t", 1): 7, ("t", 2): 4}


def test_keys_are_told_apart() -> None:
    assert session_key("c", 12, b"i7") == b"c\x0012\x00i7"
    assert marker_key("headwater.edge.a").startswith(b"\0")
    assert deletion_records([b"k"]) == [(b"k", None, ())]


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"c",
        b"c\x001",
        b"\x001\x00s",
        b"c\x00x\x00s",
        b"c\x00-1\x00s",
        b"c\x00" + b"1" * 20 + b"\x00s",
        b"c\x001\x00",
        b"c\x001\x00x",
        b"c\x001\x00i",
        b"c\x001\x00i0",
        b"c\x001\x00o65536",
        b"c\x001\x00i1\x00",
        b"\xff\x001\x00s",
    ],
)
def test_wrong_keys_are_told(key: bytes | None) -> None:
    with pytest.raises(RecordError):
        parse_session_key(key)


STATE: dict[str, Any] = orjson.loads(
    state_record(1, SessionState("c", "p", 5, 10, (StoredSubscription("a", 1),), StoredWill("w", b"x", 1, False, 0)))[1]
    or b""
)


@pytest.mark.parametrize(
    "change",
    [
        {"principal": 1},
        {"protocol_version": "5"},
        {"expiry_s": -1},
        {"expiry_s": None},
        {"connected": 1},
        {"node_id": None},
        {"disconnected_ms": "x"},
        {"subscriptions": [["a"]]},
        {"subscriptions": [[1, 1, False, False, 0]]},
        {"subscriptions": 1},
        {"will": []},
        {"will": {}},
        {"will": STATE["will"] | {"payload": "?"}},
        {"will": STATE["will"] | {"headers": [["a"]]}},
    ],
)
def test_wrong_states_are_told(change: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        decode_state("c", orjson.dumps(STATE | change))


@pytest.mark.parametrize("change", [{"expiry_s": -1}, {"connected": 1}, {"node_id": 1}, {"will_due_ms": -1}])
def test_wrong_outlines_are_told(change: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        outline_state(orjson.dumps(STATE | change))


@pytest.mark.parametrize(
    "values",
    [
        {"positions": []},
        {"positions": {"t": [[0]]}},
        {"positions": {"t": [[0, -1]]}},
        {"outgoing": [[0, "t", 0, 0, 2, "sent"]]},
        {"outgoing": [[1, "t", 0, 0, 2, "lost"]]},
        {"outgoing": [[1, "t", 0, 0]]},
        {"outgoing": [[1, "t", 0, 0, 2, []]]},
        {"incoming": [65_536]},
        {"incoming": ["1"]},
        {"incoming": 1},
    ],
)
def test_wrong_progress_is_told(values: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        decode_progress(orjson.dumps(values))


@pytest.mark.parametrize(("kind", "value"), [(b"o1", b"{}"), (b"o1", b'{"entry":[]}'), (b"i1", b"x"), (b"x1", b"{}")])
def test_a_wrong_journal_is_told(kind: bytes, value: bytes) -> None:
    with pytest.raises(RecordError):
        amend(SessionProgress(), kind, value)
