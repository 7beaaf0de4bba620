"""JSON that nodes exchange: round trip, tolerance for newer writers, errors for what is not ours."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RecordError
from schemas.events import EVENT_KINDS, Event
from schemas.nodes import NodeHeartbeat

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COUNTS = st.integers(0, 2**53)
HEARTBEATS = st.builds(
    NodeHeartbeat,
    TEXTS,
    TEXTS,
    COUNTS,
    COUNTS,
    TEXTS,
    TEXTS,
    state=st.sampled_from(["up", "draining"]),
    connections=COUNTS,
    consumed=st.lists(st.tuples(TEXTS, COUNTS, COUNTS), max_size=3).map(tuple),
    messages_in_per_s=st.floats(0, 1e9),
    memory_bytes=COUNTS,
)
HEARTBEAT = NodeHeartbeat("n", "i", 1, 2, "m:1", "h:2", consumed=(("mqtt.messages", 3, 4),))
EVENTS = st.builds(
    Event,
    st.sampled_from(sorted(EVENT_KINDS)),
    TEXTS,
    TEXTS,
    COUNTS,
    st.dictionaries(TEXTS, TEXTS | st.integers(0, 9), max_size=3),
)


@given(HEARTBEATS)
def test_heartbeat_round_trip(heartbeat: NodeHeartbeat) -> None:
    assert NodeHeartbeat.from_json(heartbeat.to_json()) == heartbeat


def test_a_newer_nodes_heartbeat_is_read() -> None:
    values = json.loads(HEARTBEAT.to_json()) | {"version": 2, "invented_later": [1]}
    assert NodeHeartbeat.from_json(json.dumps(values).encode()) == dataclasses.replace(HEARTBEAT, version=2)


def test_an_older_nodes_heartbeat_is_read() -> None:
    values = json.loads(HEARTBEAT.to_json())
    del values["cpu_percent"], values["consumed"]
    assert NodeHeartbeat.from_json(json.dumps(values).encode()) == dataclasses.replace(HEARTBEAT, consumed=())


@pytest.mark.parametrize(
    "change",
    [
        {"node_id": 5},
        {"connections": "many"},
        {"connections": True},
        {"memory_bytes": 1.5},
        {"cpu_percent": None},
        {"consumed": 7},
        {"consumed": [["mqtt.messages", 1]]},
        {"consumed": [["mqtt.messages", "x", 1]]},
        {"consumed": None},
    ],
)
def test_a_wrong_field_is_told(change: dict[str, object]) -> None:
    values = json.loads(HEARTBEAT.to_json()) | change
    with pytest.raises(RecordError, match="heartbeat"):
        NodeHeartbeat.from_json(json.dumps(values).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"{}", b'{"kind": "connected"}'])
def test_what_is_neither(data: bytes) -> None:
    with pytest.raises(RecordError):
        NodeHeartbeat.from_json(data)
    with pytest.raises(RecordError):
        Event.from_json(data)


@given(EVENTS)
def test_event_round_trip(event: Event) -> None:
    assert Event.from_json(event.to_json()) == event


def test_a_newer_kind_of_event_is_kept() -> None:
    values = {"kind": "teleported", "client_id": "c", "node_id": "n", "at_ms": 1, "invented_later": 2}
    assert Event.from_json(json.dumps(values).encode()) == Event("teleported", "c", "n", 1)


def test_we_write_known_kinds_only() -> None:
    with pytest.raises(AssertionError):
        Event("teleported", "c", "n", 1).to_json()


@pytest.mark.parametrize("change", [{"kind": 1}, {"client_id": None}, {"at_ms": "1"}, {"at_ms": True}, {"detail": []}])
def test_a_wrong_event_is_told(change: dict[str, object]) -> None:
    values = {"kind": "connected", "client_id": "c", "node_id": "n", "at_ms": 1} | change
    with pytest.raises(RecordError, match="event"):
        Event.from_json(json.dumps(values).encode())
