"""What the engine reports: values for its driver. A received application message is the ``Publish`` packet itself."""

from __future__ import annotations

from dataclasses import dataclass

from edge.wire.packets import Connack, Publish
from edge.wire.reason_codes import ReasonCode

Token = object  # whatever the driver gave along with a request: a future, or None when nobody waits


@dataclass(slots=True)
class Connected:
    """CONNACK with success: the session goes on or has begun."""

    connack: Connack


@dataclass(slots=True)
class Refused:
    """CONNACK with an error."""

    connack: Connack


@dataclass(slots=True)
class Acknowledged:
    """A QoS 1 or 2 message is through (``reason_code`` below 0x80), or refused."""

    token: Token
    reason_code: ReasonCode
    reason_string: str | None = None


@dataclass(slots=True)
class Lost:
    """A message that was in flight in a session the server has forgotten, and is not sent again."""

    token: Token


@dataclass(slots=True)
class Answered:
    """SUBACK or UNSUBACK: one reason code per filter (none for UNSUBACK in 3.1.1)."""

    token: Token
    reason_codes: tuple[ReasonCode, ...]


@dataclass(slots=True)
class Closed:
    """The connection is over: close the transport. ``error`` is None after an orderly DISCONNECT of ours."""

    reason_code: ReasonCode
    error: str | None


Event = Connected | Refused | Acknowledged | Lost | Answered | Closed | Publish
