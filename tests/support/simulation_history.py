"""What happened in a simulated run, as the clients saw it: what the checkers look at."""

from __future__ import annotations

from dataclasses import dataclass, field

INFINITY = float("inf")


@dataclass(slots=True)
class Message:
    """One application message; its payload is used once, so it tells which message a delivery is."""

    payload: bytes
    topic_name: str
    qos: int
    retain: bool
    publisher: str
    number: int  # in the order of the publisher's first sends
    expiry_s: int | None = None
    is_will: bool = False
    sends: list[tuple[float, int]] = field(default_factory=list)  # when, and on which connection
    answered_at: float | None = None  # PUBACK, or PUBREC, of success
    completed_at: float | None = None  # PUBACK or PUBCOMP
    is_refused: bool = False
    is_abandoned: bool = False  # the publisher's session was lost with it

    @property
    def sent_at(self) -> float:
        return self.sends[0][0] if self.sends else INFINITY


@dataclass(slots=True)
class Receipt:
    """One PUBLISH that came to a client. `is_new`: the application gets it (not a QoS 2 packet that is known)."""

    at: float
    client: str
    connection: int
    session: int  # of the client: counted up whenever CONNACK says that there was none
    payload: bytes
    topic_name: str
    qos: int
    retain: bool
    dup: bool
    is_new: bool
    acknowledged_at: float | None = None


@dataclass(slots=True)
class SubscriptionSpan:
    """From SUBACK to whatever may have ended it. `granted_qos` is what SUBACK said."""

    client: str
    session: int
    topic_filter: str
    granted_qos: int
    asked_at: float
    from_at: float
    until_at: float = INFINITY
    no_local: bool = False


@dataclass(slots=True)
class Connection:
    """One network connection of a client. `expected`: what the model says of session present (None: either)."""

    client: str
    number: int
    edge: str
    version: int
    clean_start: bool
    expiry_s: int
    at: float
    expected: bool | None = None
    will: Message | None = None
    will_delay_s: int = 0
    user: str = ""
    accepted_at: float | None = None
    refused_code: int | None = None
    session_present: bool | None = None
    ended_at: float | None = None
    end: str = ""  # "disconnect", "disconnect with will", "closed", "reset", "vanished", "server", "taken over"
    receive_maximum: int = 32


@dataclass(slots=True)
class Stored:
    """A committed record of `headwater.sessions`, in the order of the log of its partition."""

    at: float
    partition: int
    offset: int
    client: str
    epoch: int
    kind: bytes
    node_id: str
    value: bytes | None


@dataclass(slots=True)
class Fault:
    """Something was wrong with an edge."""

    edge: str
    kind: str
    from_at: float
    until_at: float = INFINITY


@dataclass(slots=True)
class History:
    """All of a run."""

    messages: dict[bytes, Message] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)
    spans: list[SubscriptionSpan] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    asked: set[tuple[str, str]] = field(default_factory=set)  # (client, Topic Filter) of every SUBSCRIBE
    found: list[tuple[str, str]] = field(
        default_factory=list
    )  # what the model clients noticed at once: (invariant, text)
    trace: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    deleted: set[bytes] = field(default_factory=set)  # payloads that were deleted from the log before the end
    ended_at: float = 0.0

    def violation(self, invariant: str, text: str) -> None:
        self.found.append((invariant, text))
