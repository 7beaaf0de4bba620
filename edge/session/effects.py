"""What a session engine asks its handler to do: effects as values, each awaited one with its completion method.

| effect | completion on `SessionEngine` |
|---|---|
| `Authenticate` | `accept` or `refuse` |
| `StepAuthentication` | `authentication_stepped` |
| `AppendRecord`, `AppendRetained` | `record_appended` (QoS > 0), `record_refused`; none for QoS 0 |
| `AppendRun` | `records_appended`, or the same for each of its packet identifiers |
| `AppendExactlyOnce` | `exactly_once_appended` or `exactly_once_refused` |
| `ForgetReceived`, `StoreOutgoing`, `StoreReleased` | `received_forgotten`, `outgoing_stored`, `release_stored` |
| `StoreDone` | none: stored with what comes next |
| `OpenSubscriptions` | `subscribed` |
| `CloseSubscriptions` | `unsubscribed` |
| `FallBehind` | none; what was missed comes by `deliver_late` |
| `PublishWill`, `PauseReading`, `ResumeReading`, `CloseConnection` | none |

The shape follows mitmproxy's `proxy/commands.py`; a packet to send is not an effect but bytes in `SessionEngine.out`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.delivery import Delivery
from bridge.partitioning import Destination
from edge.session.authenticating import StepAuthentication
from edge.wire import Connect, ReasonCode, Subscribe, Unsubscribe, Will

RecordHeaders = Sequence[tuple[str, bytes]]


@dataclass(slots=True)
class PublishTarget:
    """Where one topic name goes, resolved once per session and topic name: routed, checked against the ACL, encoded.

    `headers[qos]` are the record headers of a plain publish of that QoS, shared by all records of the topic name.
    """

    destination: Destination
    headers: tuple[list[tuple[str, bytes]], list[tuple[str, bytes]], list[tuple[str, bytes]]]
    retains: bool = True  # RETAIN 1 takes effect when the message is appended


@dataclass(slots=True)
class CheckedTarget(PublishTarget):
    """Messages that are looked at one by one: `is_accepted` (payload) holds them against the route's schema."""

    is_accepted: Callable[[bytes], bool] = lambda payload: True

    def of(self, payload: bytes) -> PublishTarget | ReasonCode:
        """The target of one message, or the reason code of its refusal."""
        return self if self.is_accepted(payload) else ReasonCode.PAYLOAD_FORMAT_INVALID


@dataclass(slots=True)
class DelayedTarget(CheckedTarget):
    """Messages that are kept until they are due, each at a place of its own: `place` (payload size) makes it, or says
    None when there is no room."""

    place: Callable[[int], Destination | None] = lambda size_bytes: None

    def of(self, payload: bytes) -> PublishTarget | ReasonCode:
        """The target of one message, or the reason code of its refusal."""
        if not self.is_accepted(payload):
            return ReasonCode.PAYLOAD_FORMAT_INVALID
        place = self.place(len(payload))
        return PublishTarget(place, self.headers, retains=False) if place is not None else ReasonCode.QUOTA_EXCEEDED


class AppendRecord(NamedTuple):
    """Append one application message to Kafka. The packet identifier of a QoS 0 message is 0: it has no answer.

    A tuple: one is made per message, and a tuple costs a third of an object.
    """

    packet_id: int
    target: PublishTarget
    value: bytes
    headers: RecordHeaders


class AppendRun(NamedTuple):
    """Append messages that came together and go to one place: the same as an `AppendRecord` for each, in one step.

    Those of QoS 0 have no packet identifiers at all.
    """

    packet_ids: list[int]
    target: PublishTarget
    values: list[bytes]
    headers: RecordHeaders


class AppendRetained(AppendRecord):
    """The same for a message with RETAIN 1: answered when it is retained, too [MQTT5-3.3.1-5] [MQTT311-3.3.1-5]."""

    __slots__ = ()


@dataclass(slots=True)
class AppendExactlyOnce:
    """Append one QoS 2 message and, for a session that is stored, its packet identifier, in one transaction."""

    packet_id: int
    target: PublishTarget
    value: bytes
    headers: RecordHeaders
    retain: bool


@dataclass(slots=True)
class ForgetReceived:
    """Store that PUBREL came: the identifier may be used for another message."""

    packet_id: int


@dataclass(slots=True)
class StoreOutgoing:
    """Store which message has this identifier, before the client can see it."""

    packet_id: int
    delivery: Delivery


@dataclass(slots=True)
class StoreReleased:
    """Store that the client has the message, before it may forget that."""

    packet_id: int


@dataclass(slots=True)
class StoreDone:
    """The identifier is free again."""

    packet_id: int


@dataclass(slots=True)
class Authenticate:
    """Check limits, credentials and the will's right; nothing may change before (invariant I14)."""

    connect: Connect
    client_id: str


@dataclass(slots=True)
class OpenSubscriptions:
    """Check the ACL and make the node consume what the filters can match; done when the positions are known."""

    packet: Subscribe


@dataclass(slots=True)
class CloseSubscriptions:
    packet: Unsubscribe


@dataclass(slots=True)
class PublishWill:
    """Append the will [MQTT5-3.1.2-8] [MQTT311-3.1.2-8]."""

    will: Will


@dataclass(slots=True)
class PauseReading:
    """Stop reading from the socket: the bound on unfinished work of this client is reached."""


@dataclass(slots=True)
class ResumeReading:
    """Read again."""


@dataclass(slots=True)
class FallBehind:
    """The buffer is full: this partition is needed from `offset` on, when there is room again."""

    position: tuple[str, int]
    offset: int


@dataclass(slots=True)
class CloseConnection:
    """Write what is in `out`, then close the network connection."""

    reason: str


Effect = (
    AppendRecord
    | AppendRun
    | AppendExactlyOnce
    | ForgetReceived
    | StoreOutgoing
    | StoreReleased
    | StoreDone
    | Authenticate
    | StepAuthentication
    | OpenSubscriptions
    | CloseSubscriptions
    | PublishWill
    | PauseReading
    | ResumeReading
    | FallBehind
    | CloseConnection
)
