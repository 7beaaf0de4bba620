"""Playbook tests of the session engine: `>>` is an event that goes in, `<<` what must come out.

    book = connected(5)
    book >> Publish(b"a", b"x", qos=1, packet_id=7) << AppendRecord
    book >> Appended(7) << Puback(7)
    book.silent()

`durable` is the same for a session that outlives its connection, `resumed` its next connection.

A packet or bytes after `>>` are what the client sends; after `<<` a packet must be the next one on the wire, an effect
(or its class) the next effect. `silent` says that nothing else came out. Time stands still until `at` moves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, TypeVar

from bridge.delivery import Delivery
from bridge.log import Position
from bridge.partitioning import Destination
from bridge.subscriptions import Grant
from edge.access.limits import Limits, development_limits
from edge.session.connect import Capabilities
from edge.session.effects import (
    AppendExactlyOnce,
    AppendRecord,
    AppendRun,
    Authenticate,
    CloseConnection,
    OpenSubscriptions,
    PublishTarget,
)
from edge.session.engine import SessionEngine
from edge.session.exactly_once import Outbound
from edge.session.late import deliver_late
from edge.session.resuming import InFlight, Resuming
from edge.wire import (
    Connack,
    Connect,
    Framer,
    Packet,
    Properties,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    check_topic_name_utf8,
    decode_for_client,
    encode,
)
from schemas.message import Message

P = TypeVar("P")

START_S = 1_000.0
WALL_OFFSET_MS = 0.0
LIMITS = development_limits()  # the packet and flow limits of production, no rates
FORBIDDEN = b"forbidden/"
POSITION: Position = ("mqtt.messages", 0)  # where `delivery` is, unless told otherwise
EXACTLY_ONCE = Capabilities(qos_max=2, retain_available=True, session_expiry_s_max=3_600)


def target_of(raw: bytes) -> PublishTarget | ReasonCode:
    """A route of one partition; names below `forbidden/` are refused, and what is no topic name raises."""
    check_topic_name_utf8(raw)
    if raw.startswith(FORBIDDEN):
        return ReasonCode.NOT_AUTHORIZED
    plain = [("mqtt.topic", raw), ("mqtt.client_id", b"c")]
    return PublishTarget(
        Destination("mqtt.messages", 0, raw), ([*plain, ("mqtt.qos", b"0")], plain, [*plain, ("mqtt.qos", b"2")])
    )


def delivery(
    topic_name: str = "a/b",
    payload: bytes = b"x",
    qos: int = 1,
    *,
    retain: bool = False,
    client_id: str = "somebody",
    expiry_s: int | None = None,
    timestamp_ms: int = int(START_S * 1000),
    properties: Message | None = None,
    partition: int = 0,
    offset: int = 0,
) -> Delivery:
    """A record on its way to subscribers."""
    return Delivery(
        topic_name.encode(),
        payload,
        qos,
        retain,
        client_id,
        expiry_s,
        timestamp_ms,
        (),
        properties,
        "mqtt.messages",
        partition,
        offset,
    )


def grant(
    qos: int = 1, *, no_local: bool = False, retain_as_published: bool = False, ids: tuple[int, ...] = ()
) -> Grant:
    """The subscriptions of the engine's client that match, merged into one."""
    return Grant(_NOBODY, qos, no_local, retain_as_published, ids, None)


class _Nobody:
    def deliver(self, delivery: Delivery, grant: Grant) -> None:
        raise AssertionError("the playbook delivers by itself")


_NOBODY = _Nobody()


@dataclass(frozen=True)
class Accept:
    """The client may connect; with a session, what it left in flight and what of its own had come."""

    session_present: bool = False
    resuming: Resuming | None = None
    received: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Refuse:
    """The client may not connect."""

    reason_code: ReasonCode
    reason: str = "no"


@dataclass(frozen=True)
class Appended:
    """Kafka has acknowledged the record of this packet identifier."""

    packet_id: int


@dataclass(frozen=True)
class AppendedRun:
    """Kafka has acknowledged the records of these packet identifiers together."""

    packet_ids: tuple[int, ...]


@dataclass(frozen=True)
class RefusedRecord:
    """Kafka has refused the record of this packet identifier for good."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.QUOTA_EXCEEDED
    reason: str = "too large"


@dataclass(frozen=True)
class ExactlyOnceAppended:
    """The QoS 2 message of this packet identifier, and the identifier, are committed."""

    packet_id: int


@dataclass(frozen=True)
class ExactlyOnceRefused:
    """Kafka has refused the QoS 2 message of this packet identifier for good."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.QUOTA_EXCEEDED
    reason: str = "too large"


@dataclass(frozen=True)
class ReceivedForgotten:
    """That PUBREL came is stored."""

    packet_id: int


@dataclass(frozen=True)
class OutgoingStored:
    """Which message has this identifier is stored."""

    packet_id: int


@dataclass(frozen=True)
class ReleaseStored:
    """That PUBREC came is stored."""

    packet_id: int


@dataclass(frozen=True)
class PartitionResumed:
    """What was in flight of a partition has been read again; None: of all."""

    position: Position | None = POSITION


@dataclass(frozen=True)
class Subscribed:
    """The positions of a SUBSCRIBE's filters are known."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...] = (ReasonCode.GRANTED_QOS_1,)


@dataclass(frozen=True)
class Unsubscribed:
    """The subscriptions are gone."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...] = (ReasonCode.SUCCESS,)


@dataclass(frozen=True)
class Deliver:
    """A record matches a subscription of this client."""

    delivery: Delivery
    grant: Grant


@dataclass(frozen=True)
class DeliverLate:
    """A record that the client missed was read again; `Playbook.taken` says whether there was room."""

    delivery: Delivery
    grant: Grant


@dataclass(frozen=True)
class PassOver:
    """A record comes live of a partition that is read again for this client."""

    delivery: Delivery
    grant: Grant


@dataclass(frozen=True)
class Lost:
    """The network connection is gone."""


@dataclass(frozen=True)
class ServerDisconnect:
    """The edge ends the connection."""

    reason_code: ReasonCode
    reason: str = "go"


@dataclass(frozen=True)
class WritingPaused:
    """The socket takes no more."""


@dataclass(frozen=True)
class WritingResumed:
    """The socket takes more again."""


@dataclass(frozen=True)
class BackboneFull:
    """The publisher's buffer is full, or no longer."""

    full: bool


@dataclass(frozen=True)
class TimePasses:
    """Seconds pass; the timer fires if it is due, as the handler's would."""

    seconds: float


class Playbook:
    """One engine, the records it asked for, and what came out of it and has not been looked at."""

    def __init__(
        self,
        protocol_version: int = 5,
        limits: Limits = LIMITS,
        capabilities: Capabilities | None = None,
        wall_offset_ms: float = WALL_OFFSET_MS,
    ) -> None:
        self.protocol_version = protocol_version
        self.now = START_S
        self.engine = SessionEngine(
            limits, capabilities or Capabilities(), target_of, lambda: "assigned", self.now, wall_offset_ms
        )
        self.records: dict[int, AppendRecord] = {}
        self.exactly_once: dict[int, AppendExactlyOnce] = {}
        self.taken = False
        self._packets: list[Packet] = []
        self._effects: list[Any] = []
        self._framer = Framer(1 << 28)
        self._framer.protocol_version = protocol_version

    def __rshift__(self, event: Any) -> Self:
        """Let an event happen."""
        engine = self.engine
        match event:
            case bytes():
                engine.receive_data(event, self.now)
            case Accept():
                engine.accept(event.session_present, self.now, event.resuming, event.received)
            case Refuse():
                engine.refuse(event.reason_code, event.reason)
            case Appended():
                self.records.pop(event.packet_id)
                engine.record_appended(event.packet_id)
            case AppendedRun():
                for packet_id in event.packet_ids:
                    self.records.pop(packet_id)
                engine.records_appended(list(event.packet_ids))
            case RefusedRecord():
                self.records.pop(event.packet_id)
                engine.record_refused(event.packet_id, event.reason_code, event.reason)
            case ExactlyOnceAppended():
                engine.exactly_once_appended(self.exactly_once.pop(event.packet_id))
            case ExactlyOnceRefused():
                refused = self.exactly_once.pop(event.packet_id)
                engine.exactly_once_refused(refused, event.reason_code, event.reason)
            case ReceivedForgotten():
                engine.received_forgotten(event.packet_id)
            case OutgoingStored():
                engine.outgoing_stored(event.packet_id, self.now)
            case ReleaseStored():
                engine.release_stored(event.packet_id)
            case PartitionResumed():
                engine.partition_resumed(event.position)
            case Subscribed():
                engine.subscribed(event.packet_id, event.reason_codes, self.now)
            case Unsubscribed():
                engine.unsubscribed(event.packet_id, event.reason_codes, self.now)
            case Deliver():
                engine.deliver(event.delivery, event.grant, self.now)
            case DeliverLate():
                self.taken = deliver_late(engine, event.delivery, event.grant, self.now)
            case PassOver():
                engine.pass_over(event.delivery, event.grant)
            case Lost():
                engine.connection_lost()
            case ServerDisconnect():
                engine.disconnect(event.reason_code, event.reason)
            case WritingPaused():
                engine.writing_paused()
            case WritingResumed():
                engine.writing_resumed(self.now)
            case BackboneFull():
                engine.backbone_full(event.full)
            case TimePasses():
                self._pass(event.seconds)
            case _:
                engine.receive_data(encode(event, self.protocol_version), self.now)
        self._take()
        return self

    def __lshift__(self, expected: Any) -> Self:
        """Take the next packet or effect and compare."""
        is_packet = hasattr(expected, "packet_type")
        came = self._packets if is_packet else self._effects
        assert came, f"{expected!r} did not come; there are {self._packets} and {self._effects}"
        first = came.pop(0)
        if isinstance(expected, type):
            assert isinstance(first, expected), f"{expected.__name__} did not come, but {first!r}"
        else:
            assert first == expected
        return self

    def packet(self, kind: type[P]) -> P:
        """Take the next packet, which must be of this kind."""
        assert self._packets, f"no {kind.__name__} came; effects: {self._effects}"
        first = self._packets.pop(0)
        assert isinstance(first, kind), f"{kind.__name__} did not come, but {first!r}"
        return first

    def effect(self, kind: type[P]) -> P:
        """Take the next effect, which must be of this kind."""
        assert self._effects, f"no {kind.__name__} came; packets: {self._packets}"
        first = self._effects.pop(0)
        assert isinstance(first, kind), f"{kind.__name__} did not come, but {first!r}"
        return first

    def packets(self) -> list[Packet]:
        """Take all packets."""
        packets, self._packets = self._packets, []
        return packets

    def effects(self) -> list[Any]:
        """Take all effects."""
        effects, self._effects = self._effects, []
        return effects

    def silent(self) -> Self:
        """Nothing else came out."""
        assert self._packets == []
        assert self._effects == []
        return self

    def closed(self) -> Self:
        """The connection ends now, and nothing else comes."""
        self << CloseConnection
        assert self.engine.is_closed()
        assert self.engine.get_timer() is None
        return self.silent()

    def _pass(self, seconds: float) -> None:
        end = self.now + seconds
        due = self.engine.get_timer()
        while due is not None and due <= end:
            self.now = max(self.now, due)
            self.engine.handle_timer(self.now)
            again = self.engine.get_timer()
            assert again is None or again > self.now, "the timer would fire for ever"
            due = again
        self.now = end

    def _take(self) -> None:
        frames = self._framer.feed(b"".join(self.engine.out))
        self.engine.out.clear()
        assert self._framer.error is None, self._framer.error
        self._packets += [decode_for_client(first, body, self.protocol_version) for first, body in frames]
        effects = each_record(self.engine.effects)
        self._effects += effects
        self.records |= {
            effect.packet_id: effect for effect in effects if isinstance(effect, AppendRecord) and effect.packet_id
        }
        self.exactly_once |= {effect.packet_id: effect for effect in effects if isinstance(effect, AppendExactlyOnce)}
        self.engine.effects = []


def each_record(effects: list[Any]) -> list[Any]:
    """The effects with every run as its records."""
    each: list[Any] = []
    for effect in effects:
        if isinstance(effect, AppendRun):
            packet_ids = effect.packet_ids or [0] * len(effect.values)
            pairs = zip(packet_ids, effect.values, strict=True)
            each += [AppendRecord(packet_id, effect.target, value, effect.headers) for packet_id, value in pairs]
        else:
            each.append(effect)
    return each


def connected(
    protocol_version: int = 5, connect: Connect | None = None, limits: Limits = LIMITS, **options: Any
) -> Playbook:
    """A client that has its CONNACK."""
    book = Playbook(protocol_version, limits, **options)
    book >> (connect or Connect(protocol_version, "c", keep_alive_s=60)) << Authenticate
    book >> Accept()
    assert book.packet(Connack).reason_code is ReasonCode.SUCCESS
    return book.silent()


def subscribed(protocol_version: int = 5, connect: Connect | None = None, **options: Any) -> Playbook:
    """A client with one subscription."""
    book = connected(protocol_version, connect, **options)
    book >> Subscribe(1, (SubscriptionRequest("a/#", 1),)) << OpenSubscriptions
    book >> Subscribed(1) << Suback(1, (ReasonCode.GRANTED_QOS_1,))
    return book.silent()


def durable(
    protocol_version: int = 5, connect: Connect | None = None, limits: Limits = LIMITS, qos: int = 2
) -> Playbook:
    """A client whose session outlives its connection, with one subscription."""
    book = connected(protocol_version, connect or durable_connect(protocol_version), limits, capabilities=EXACTLY_ONCE)
    book >> Subscribe(1, (SubscriptionRequest("a/#", qos),)) << OpenSubscriptions
    book >> Subscribed(1, (ReasonCode(qos),)) << Suback(1, (ReasonCode(qos),))
    return book.silent()


def durable_connect(protocol_version: int = 5, **properties: Any) -> Connect:
    """CONNECT of a client that wants to find its session again."""
    if protocol_version == 5:
        properties = {"session_expiry_interval_s": 600} | properties
    return Connect(protocol_version, "c", clean_start=False, keep_alive_s=60, properties=Properties(**properties))


def resumed(
    resuming: Resuming | None = None,
    received: frozenset[int] = frozenset(),
    protocol_version: int = 5,
    limits: Limits = LIMITS,
    **properties: Any,
) -> Playbook:
    """A client that has found its session again; what it is sent first comes behind this."""
    book = Playbook(protocol_version, limits, EXACTLY_ONCE)
    book >> durable_connect(protocol_version, **properties) << Authenticate
    book >> Accept(True, resuming or Resuming.of({}, ()), received)
    assert book.packet(Connack).session_present
    return book


def left_in_flight(engine: SessionEngine, starts: dict[Position, int]) -> Resuming:
    """What the next connection has to go on with, as the handler finds it in what is stored."""
    outgoing = engine.outgoing
    assert outgoing is not None
    entries = [_in_flight(packet_id, 1, delivery) for packet_id, delivery in outgoing.inflight.items()]
    for packet_id, flow in outgoing.flows.items():
        is_released = flow.state in (Outbound.RELEASING, Outbound.RELEASED)
        entries.append(
            InFlight(packet_id, 2, POSITION, -1, True)
            if is_released or flow.delivery is None
            else _in_flight(packet_id, 2, flow.delivery)
        )
    if outgoing.resuming is not None:
        entries += outgoing.resuming.left()
    return Resuming.of(starts, entries)


def _in_flight(packet_id: int, qos: int, delivery: Delivery) -> InFlight:
    return InFlight(packet_id, qos, (delivery.kafka_topic, delivery.partition), delivery.offset)
