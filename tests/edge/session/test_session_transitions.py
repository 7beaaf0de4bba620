"""The table of transitions: whole, without dead ends, and the same as the diagram in ARCHITECTURE.md."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from edge.session.transitions import TRANSITIONS, ConnectionEvent, ConnectionState, mermaid, next_state

ARCHITECTURE = Path(__file__).parents[3] / "ARCHITECTURE.md"
BEGIN, END = "<!-- transitions -->", "<!-- /transitions -->"


def test_every_state_has_its_row_and_closed_is_the_end() -> None:
    assert set(TRANSITIONS) == set(ConnectionState)
    assert TRANSITIONS[ConnectionState.CLOSED] == {}


def test_every_event_happens_somewhere() -> None:
    assert {event for row in TRANSITIONS.values() for event in row} == set(ConnectionEvent)


def test_every_state_is_reached_and_leads_to_the_end() -> None:
    reached = {ConnectionState.AWAITING_CONNECT}
    for _ in ConnectionState:
        reached |= {target for state in reached for target in TRANSITIONS[state].values()}
    assert reached == set(ConnectionState)
    for state in set(ConnectionState) - {ConnectionState.CLOSED}:
        assert ConnectionState.CLOSED in TRANSITIONS[state].values()
        assert TRANSITIONS[state][ConnectionEvent.CONNECTION_LOST] is ConnectionState.CLOSED


@pytest.mark.parametrize(("state", "event"), list(product(ConnectionState, ConnectionEvent)))
def test_next_state_is_the_table(state: ConnectionState, event: ConnectionEvent) -> None:
    if event in TRANSITIONS[state]:
        assert next_state(state, event) is TRANSITIONS[state][event]
    else:
        with pytest.raises(KeyError):
            next_state(state, event)


def test_the_diagram_in_architecture_md_is_the_table() -> None:
    assert ARCHITECTURE.is_file(), f"ARCHITECTURE.md is missing: the diagram belongs there, between {BEGIN} and {END}"
    text = ARCHITECTURE.read_text(encoding="utf-8")
    assert (text.count(BEGIN), text.count(END)) == (1, 1), f"ARCHITECTURE.md needs {BEGIN} and {END} once each"
    shown = text.partition(BEGIN)[2].partition(END)[0].strip().removeprefix("```mermaid").removesuffix("```").strip()
    assert shown == mermaid(), "write the output of `python -m edge.session.transitions` into ARCHITECTURE.md"
