"""The life of one connection as a table (the shape of h11's `_state.py`): rules on top, the diagram made from them.

`python -m edge.session.transitions` prints the diagram of ARCHITECTURE.md; a test holds the two together.
"""

from collections.abc import Mapping
from enum import Enum


class ConnectionState(Enum):
    """Where a network connection stands between accept and close."""

    AWAITING_CONNECT = "awaiting CONNECT"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    CLOSED = "closed"


class ConnectionEvent(Enum):
    """What moves a connection from one state to the next."""

    CONNECT_RECEIVED = "CONNECT received"
    ACCEPTED = "CONNACK 0x00 sent"
    REFUSED = "CONNACK with an error sent"
    DISCONNECT_RECEIVED = "DISCONNECT received"
    SERVER_DISCONNECT = "DISCONNECT sent"
    VIOLATION = "malformed packet or protocol error"
    KEEP_ALIVE_EXPIRED = "1.5 x keep alive passed"
    CONNECT_TIMEOUT = "no CONNECT in time"
    CONNECTION_LOST = "connection lost"


_S, _E = ConnectionState, ConnectionEvent

TRANSITIONS: Mapping[ConnectionState, Mapping[ConnectionEvent, ConnectionState]] = {
    _S.AWAITING_CONNECT: {
        _E.CONNECT_RECEIVED: _S.AUTHENTICATING,  # [MQTT5-3.1.0-1] [MQTT311-3.1.0-1]
        _E.REFUSED: _S.CLOSED,
        _E.VIOLATION: _S.CLOSED,  # [MQTT5-3.1.4-1] [MQTT311-3.1.4-1]
        _E.CONNECT_TIMEOUT: _S.CLOSED,
        _E.SERVER_DISCONNECT: _S.CLOSED,
        _E.CONNECTION_LOST: _S.CLOSED,
    },
    _S.AUTHENTICATING: {
        _E.ACCEPTED: _S.CONNECTED,  # [MQTT5-3.1.4-5] [MQTT311-3.1.4-4]
        _E.REFUSED: _S.CLOSED,  # [MQTT5-3.2.2-7] [MQTT311-3.2.2-5]
        _E.DISCONNECT_RECEIVED: _S.CLOSED,  # within enhanced authentication [MQTT5-3.1.2-30]
        _E.VIOLATION: _S.CLOSED,
        _E.CONNECT_TIMEOUT: _S.CLOSED,
        _E.SERVER_DISCONNECT: _S.CLOSED,
        _E.CONNECTION_LOST: _S.CLOSED,
    },
    _S.CONNECTED: {
        _E.DISCONNECT_RECEIVED: _S.CLOSED,  # [MQTT5-3.14.4-2]
        _E.SERVER_DISCONNECT: _S.CLOSED,
        _E.VIOLATION: _S.CLOSED,  # [MQTT5-4.13.1-1] [MQTT311-4.8.0-1]
        _E.KEEP_ALIVE_EXPIRED: _S.CLOSED,  # [MQTT5-3.1.2-22] [MQTT311-3.1.2-24]
        _E.CONNECTION_LOST: _S.CLOSED,
    },
    _S.CLOSED: {},
}


def next_state(state: ConnectionState, event: ConnectionEvent) -> ConnectionState:
    """The state after `event`; raises KeyError for an event that this state does not know: a fault of ours."""
    return TRANSITIONS[state][event]


def mermaid() -> str:
    """The table as a Mermaid state diagram, one line per transition."""
    lines = ["stateDiagram-v2", f"    [*] --> {_S.AWAITING_CONNECT.name}"]
    lines += [
        f"    {state.name} --> {target.name}: {event.value}"
        for state, row in TRANSITIONS.items()
        for event, target in row.items()
    ]
    return "\n".join([*lines, f"    {_S.CLOSED.name} --> [*]"])


if __name__ == "__main__":
    print(mermaid())
