"""Exactly once between a client that keeps to the specification and the engine, whatever is lost and whenever.

Hypothesis plays the network, Kafka and the user: packets wait on both sides of the wire and are lost with the
connection, what is stored is committed late and in any order, the client comes back and its session is resumed as the
handler does it. Checked after every step: no message of QoS 2 is taken or delivered twice, no packet identifier is in
flight twice, the Receive Maximum holds (invariant I6). At the end everything settles: nothing is missing.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.playbook import (
    EXACTLY_ONCE,
    LIMITS,
    Accept,
    Appended,
    Deliver,
    DeliverLate,
    ExactlyOnceAppended,
    ExactlyOnceRefused,
    Lost,
    OutgoingStored,
    PartitionResumed,
    PassOver,
    Playbook,
    ReceivedForgotten,
    ReleaseStored,
    WritingPaused,
    WritingResumed,
    delivery,
    durable_connect,
    grant,
)

from bridge.log import Position
from edge.session.effects import (
    AppendExactlyOnce,
    AppendRecord,
    Authenticate,
    FallBehind,
    ForgetReceived,
    PauseReading,
    ResumeReading,
    StoreDone,
    StoreOutgoing,
    StoreReleased,
)
from edge.session.publishing import unacknowledged
from edge.session.resuming import InFlight, Resuming
from edge.wire import Connack, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, ReasonCode

MODEL_LIMITS = replace(LIMITS, receive_maximum_in=3, receive_maximum_out=3, buffer_messages_max=3)
PARTITIONS: tuple[Position, ...] = (("mqtt.messages", 0), ("mqtt.messages", 1))
NAMES = (b"a/0", b"a/1")
TURNS_MAX = 300  # to settle: some dozen messages of four steps each
REFUSED = ReasonCode.QUOTA_EXCEEDED


@dataclass
class Client:
    """What section 4 of the specification asks of a client, and no more."""

    version: int
    window: int  # its Receive Maximum
    in_flight: dict[int, Publish | Pubrel] = field(default_factory=dict)  # in the order of sending
    inbound: dict[int, bytes] = field(default_factory=dict)  # QoS 2, from PUBLISH to PUBREL
    unanswered: set[int] = field(default_factory=set)  # what counts to its Receive Maximum on this connection
    aliases: dict[int, bytes] = field(default_factory=dict)
    to_server: deque[Packet] = field(default_factory=deque)
    got: Counter[bytes] = field(default_factory=Counter)  # what came of QoS 2
    got_1: Counter[bytes] = field(default_factory=Counter)
    declined: set[bytes] = field(default_factory=set)
    told_refused: set[bytes] = field(default_factory=set)

    def connected(self) -> None:
        """[MQTT5-4.4.0-1] [MQTT311-4.4.0-1]"""
        self.unanswered.clear()
        self.aliases.clear()
        self.to_server.clear()
        for packet in self.in_flight.values():
            self.to_server.append(replace(packet, dup=True) if isinstance(packet, Publish) else packet)

    def publish(self, payload: bytes, qos: int) -> None:
        packet_id = next(each for each in range(1, 100) if each not in self.in_flight)
        self.in_flight[packet_id] = packet = Publish(b"a", payload, qos, packet_id=packet_id)
        self.to_server.append(packet)

    def take(self, packet: Packet, declines: bool) -> None:
        match packet:
            case Publish():
                self._take_publish(packet, declines)
            case Puback():
                assert isinstance(self.in_flight.pop(packet.packet_id), Publish)
            case Pubrec() if packet.reason_code.is_error:
                refused = self.in_flight.pop(packet.packet_id)
                assert isinstance(refused, Publish)
                self.told_refused.add(refused.payload)
            case Pubrec():
                assert packet.packet_id in self.in_flight
                self.in_flight[packet.packet_id] = release = Pubrel(packet.packet_id)
                self.to_server.append(release)
            case Pubcomp():
                assert isinstance(self.in_flight.pop(packet.packet_id), Pubrel)
            case Pubrel():
                self.inbound.pop(packet.packet_id, None)
                self.unanswered.discard(packet.packet_id)
                self.to_server.append(Pubcomp(packet.packet_id))
            case _:
                raise AssertionError(packet)

    def _take_publish(self, packet: Publish, declines: bool) -> None:
        packet_id, payload = packet.packet_id, packet.payload
        alias = packet.properties.topic_alias if packet.properties else None
        if alias is not None:
            assert alias == 1
            name = self.aliases[alias] = packet.topic_name_utf8 or self.aliases[alias]
        else:
            name = packet.topic_name_utf8
        assert payload.startswith(name)
        assert packet_id not in self.unanswered, "the packet identifier is in flight"
        self.unanswered.add(packet_id)
        assert len(self.unanswered) <= self.window, "Receive Maximum"
        if packet.qos == 1:
            self.got_1[payload] += 1
            self.unanswered.discard(packet_id)
            self.to_server.append(Puback(packet_id))
        elif packet_id in self.inbound:
            assert packet.dup
            assert self.inbound[packet_id] == payload, "the packet identifier is in use for another message"
            self.to_server.append(Pubrec(packet_id))
        elif declines:
            self.declined.add(payload)
            self.unanswered.discard(packet_id)
            self.to_server.append(Pubrec(packet_id, REFUSED))
        else:
            self.inbound[packet_id] = payload
            self.got[payload] += 1
            assert self.got[payload] == 1, "delivered twice"
            self.to_server.append(Pubrec(packet_id))


class FlowsMachine(RuleBasedStateMachine):
    """The network, Kafka, the handler and the user."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[list[tuple[bytes, int]]] = [[], []]  # per partition: payload and QoS
        self.live = [0, 0]  # per partition: what comes next to a client that is not behind
        self.behind: dict[Position, int] = {}
        self.entries: dict[int, InFlight] = {}  # QoS 2 in flight to the client, as it is stored
        self.pending: list[Any] = []
        self.to_client: deque[Packet] = deque()
        self.published: list[tuple[bytes, int]] = []
        self.accepted: Counter[bytes] = Counter()
        self.accepted_1: Counter[bytes] = Counter()
        self.is_connected = False

    @initialize(version=st.sampled_from([4, 5]), window=st.integers(1, 3))
    def begin(self, version: int, window: int) -> None:
        self.client = Client(version, window)
        self.book = self._connect(None, frozenset())

    # The user

    @precondition(lambda self: self.is_connected and len(self.client.in_flight) < 3)
    @rule(qos=st.sampled_from([1, 2, 2]))
    def client_publishes(self, qos: int) -> None:
        payload = b"in %d" % len(self.published)
        self.published.append((payload, qos))
        self.client.publish(payload, qos)

    @rule(partition=st.integers(0, 1), qos=st.sampled_from([1, 2, 2]))
    def somebody_publishes(self, partition: int, qos: int) -> None:
        log = self.logs[partition]
        log.append((b"%b %d" % (NAMES[partition], len(log)), qos))
        if self.is_connected:
            self.live[partition] = len(log)
            event = self._delivery(partition, len(log) - 1)
            self._happens(PassOver(*event) if PARTITIONS[partition] in self.behind else Deliver(*event))

    # The network

    @precondition(lambda self: self.is_connected and self.client.to_server)
    @rule(count=st.integers(1, 4))
    def server_reads(self, count: int) -> None:
        for _ in range(count):
            if self.client.to_server and not self.book.engine.paused:
                self._happens(self.client.to_server.popleft())

    @precondition(lambda self: self.is_connected and self.to_client)
    @rule(count=st.integers(1, 4), declines=st.sampled_from([False, False, False, True]))
    def client_reads(self, count: int, declines: bool) -> None:
        for _ in range(min(count, len(self.to_client))):
            self.client.take(self.to_client.popleft(), declines and self.client.version == 5)

    @precondition(lambda self: self.is_connected)
    @rule(paused=st.booleans())
    def socket(self, paused: bool) -> None:
        self._happens(WritingPaused() if paused else WritingResumed())

    @precondition(lambda self: self.is_connected)
    @rule()
    def connection_is_lost(self) -> None:
        self._happens(Lost())
        self.is_connected = False
        self.to_client.clear()

    @precondition(lambda self: not self.is_connected)
    @rule(data=st.data())
    def client_comes_back(self, data: st.DataObject) -> None:
        """What was written is through before the session is read again: writes keep their order."""
        while self.pending:
            self._complete(data.draw(st.integers(0, len(self.pending) - 1)), data.draw(st.booleans()))
        self._come_back()

    # Kafka

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 100), refuses=st.sampled_from([False, False, False, True]))
    def a_write_is_through(self, which: int, refuses: bool) -> None:
        self._complete(which % len(self.pending), refuses)

    @precondition(lambda self: self.is_connected and self.behind)
    @rule(which=st.integers(0, 1), count=st.integers(1, 4))
    def the_log_is_read_again(self, which: int, count: int) -> None:
        position = sorted(self.behind)[which % len(self.behind)]
        for _ in range(count):
            if not self._read_again(position):
                return

    @precondition(lambda self: self.is_connected and not self.book.engine.paused)
    @rule()
    def all_goes_well_for_a_turn(self) -> None:
        self._settles()

    # The end

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        if not self.is_connected:
            while self.pending:
                self._complete(0, False)
            self._come_back()
        self._happens(WritingResumed())
        for _ in range(TURNS_MAX):
            if not self._settles():
                break
        else:
            raise AssertionError("it does not settle")
        client = self.client
        assert not client.in_flight
        assert not client.inbound
        for payload, qos in self.published:
            if qos == 1:
                assert self.accepted_1[payload] >= 1
            else:
                assert self.accepted[payload] == (payload not in client.told_refused)
        for payload, qos in self.logs[0] + self.logs[1]:
            if qos == 1:
                assert client.got_1[payload] >= 1, payload
            else:
                assert client.got[payload] == 1 or payload in client.declined, payload
        engine = self.book.engine
        assert engine.outgoing is not None
        assert not engine.outgoing.inflight
        assert not engine.outgoing.flows
        assert engine.outgoing.resuming is None
        assert not self.entries
        assert engine.flows is None or not engine.flows.received()
        assert unacknowledged(engine) == 0

    def _settles(self) -> bool:
        """One turn without faults; False: there is nothing left to do."""
        work = bool(self.pending or self.client.to_server or self.to_client)
        while self.pending:
            self._complete(0, False)
        while self.client.to_server:
            self._happens(self.client.to_server.popleft())
        while self.to_client:
            self.client.take(self.to_client.popleft(), False)
        for position in sorted(self.behind):
            while position in self.behind and self._read_again(position):
                work = True
        return work or bool(self.behind)

    # The handler

    def _come_back(self) -> None:
        flows = self.book.engine.flows
        self.book = self._connect(self._left(), flows.received() if flows is not None else frozenset())

    def _connect(self, resuming: Resuming | None, received: frozenset[int]) -> Playbook:
        client = self.client
        limits = replace(MODEL_LIMITS, receive_maximum_out=client.window) if client.version == 4 else MODEL_LIMITS
        properties = {"receive_maximum": client.window, "topic_alias_maximum": 1} if client.version == 5 else {}
        self.book = book = Playbook(client.version, limits, EXACTLY_ONCE)
        book >> durable_connect(client.version, **properties) << Authenticate
        self.live = [len(log) for log in self.logs]
        needs = resuming.needs() if resuming is not None else {}
        self.behind = {position: need for position, need in needs.items() if need < self.live[position[1]]}
        book >> Accept(resuming is not None, resuming or Resuming.of({}, ()), received)
        assert book.packet(Connack).session_present is (resuming is not None)
        self.is_connected = True
        client.connected()
        self.to_client.clear()
        self._look()
        return book

    def _left(self) -> Resuming:
        outgoing = self.book.engine.outgoing
        assert outgoing is not None
        resuming = outgoing.resuming
        waiting = outgoing.first_waiting()
        starts = {}
        for number, position in enumerate(PARTITIONS):
            at = self.behind.get(position, self.live[number])
            at = max(min(at, waiting.get(position, at)), outgoing.sent_to.get(position, 0))
            starts[position] = max(at, resuming.starts.get(position, 0)) if resuming is not None else at
        entries = dict(self.entries)
        for packet_id, sent in outgoing.inflight.items():
            entries[packet_id] = InFlight(packet_id, 1, (sent.kafka_topic, sent.partition), sent.offset)
        if resuming is not None:
            entries |= {entry.packet_id: entry for entry in resuming.left()}
        return Resuming.of(starts, entries.values())

    def _read_again(self, position: Position) -> bool:
        """One record of a partition that is behind; False: no room, or through."""
        log, need = self.logs[position[1]], self.behind[position]
        if need < len(log):
            self._happens(DeliverLate(*self._delivery(position[1], need)))
            if self.book.taken and position in self.behind:
                self.behind[position] = need + 1
            return self.book.taken
        del self.behind[position]
        self._happens(PartitionResumed(position))
        return False

    def _delivery(self, partition: int, offset: int) -> tuple[Any, Any]:
        payload, qos = self.logs[partition][offset]
        name = NAMES[partition].decode()
        return delivery(name, payload, qos, partition=partition, offset=offset), grant(2)

    def _happens(self, event: Any) -> None:
        self.book >> event
        self._look()

    def _look(self) -> None:
        """Take what came out of the engine."""
        packets = self.book.packets()
        if self.is_connected:
            self.to_client += packets
        for effect in self.book.effects():
            match effect:
                case AppendRecord() | AppendExactlyOnce() | ForgetReceived():
                    self.pending.append(effect)
                case StoreOutgoing():
                    sent = effect.delivery
                    assert effect.packet_id not in self.entries
                    place = (sent.kafka_topic, sent.partition)
                    self.entries[effect.packet_id] = InFlight(effect.packet_id, 2, place, sent.offset)
                    self.pending.append(effect)
                case StoreReleased():
                    entry = self.entries[effect.packet_id]
                    self.entries[effect.packet_id] = replace(entry, is_released=True)
                    self.pending.append(effect)
                case StoreDone():
                    self.entries.pop(effect.packet_id, None)  # of QoS 1 nothing is stored step by step
                case FallBehind():
                    self.behind.setdefault(effect.position, effect.offset)
                case PauseReading() | ResumeReading():
                    pass  # `server_reads` looks at it
                case _:
                    raise AssertionError(f"{effect}: {self.book.engine.reason}")

    def _complete(self, which: int, refuses: bool) -> None:
        effect = self.pending.pop(which)
        packet_id = effect.packet_id
        match effect:
            case AppendRecord():
                self.accepted_1[effect.value] += 1
                self._happens(Appended(packet_id))
            case AppendExactlyOnce() if refuses and self.client.version == 5:
                self._happens(ExactlyOnceRefused(packet_id, REFUSED))
            case AppendExactlyOnce():
                self.accepted[effect.value] += 1
                assert self.accepted[effect.value] == 1, "taken twice"
                self._happens(ExactlyOnceAppended(packet_id))
            case ForgetReceived():
                self._happens(ReceivedForgotten(packet_id))
            case StoreOutgoing():
                self._happens(OutgoingStored(packet_id))
            case StoreReleased():
                self._happens(ReleaseStored(packet_id))


TestFlows = FlowsMachine.TestCase
TestFlows.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
