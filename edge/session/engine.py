"""One MQTT connection as a pure machine: bytes and completions in, bytes (`out`) and effects (`effects`) out.

The handler's pump is the same in every callback: feed, perform `effects`, write `out`, re-arm `get_timer()`. Nothing
raises across this edge: a violation becomes a reason code in `SessionEngine._violated`, and only there.
"""

from collections.abc import Callable
from functools import partial

from bridge.delivery import Delivery
from bridge.log import Position
from bridge.subscriptions import Grant
from edge.access.enhanced import Step
from edge.access.limits import ClientRate, Limits
from edge.session import reading
from edge.session.acknowledging import on_puback, on_pubcomp, on_pubrec
from edge.session.authenticating import Authentication, Denied, check_before_connack, received_auth
from edge.session.connect import MQTT_5, PACKET_BYTES_UNLIMITED, Capabilities, Negotiated, Refusal, connack, negotiate
from edge.session.effects import (
    AppendExactlyOnce,
    Authenticate,
    CloseConnection,
    CloseSubscriptions,
    Effect,
    FallBehind,
    OpenSubscriptions,
    PauseReading,
    PublishWill,
    ResumeReading,
)
from edge.session.ends import is_normal, may_be_told, on_disconnect, take_session_expiry
from edge.session.exactly_once import IncomingFlows
from edge.session.incoming import Incoming, Resolve
from edge.session.ledger import Ledger, LedgerOutgoing
from edge.session.outgoing import Outgoing
from edge.session.publishing import flows_of, negative_puback, on_publish, on_pubrel, release_early, unacknowledged
from edge.session.resuming import InFlight, Resuming
from edge.session.transitions import ConnectionEvent, ConnectionState, next_state
from edge.wire import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Framer,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolError,
    ProtocolViolation,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    UnsupportedProtocolVersion,
    Will,
    connack_return_code,
    decode_for_server,
    encode,
    encode_within,
)

Select = Callable[[Delivery, Grant], Grant | None]
_PINGRESP = encode(Pingresp(), 4)
_HELD_MAX = 64  # packets that wait behind a CONNECT or a SUBSCRIBE before reading pauses; one read brings about as many
_SHORT_PACKET_BYTES = 16_387  # what the short ways take at most: a Remaining Length of two bytes


class SessionEngine:
    """The state of one connection. Single-threaded; every method runs to completion.

    `resolve` finds a publish's target and is set once the client is known; `new_client_id` makes an identifier for a
    client that sent none. `wall_offset_ms` turns `now` into milliseconds since the epoch, for message expiry.
    """

    __slots__ = (
        "_accepted_at",
        "_framer",
        "_held",
        "_last_received",
        "_leaving",
        "_new_client_id",
        "_rate",
        "_read_again_at",
        "_writable",
        "authentication",
        "capabilities",
        "client_id",
        "connect",
        "effects",
        "flows",
        "incoming",
        "is_durable",
        "is_violated",
        "ledger",
        "limits",
        "negotiated",
        "out",
        "outgoing",
        "paused",
        "protocol_version",
        "reason",
        "resolve",
        "select",
        "session_expiry_s",
        "state",
        "wall_offset_ms",
        "was_accepted",
    )

    def __init__(
        self,
        limits: Limits,
        capabilities: Capabilities,
        resolve: Resolve,
        new_client_id: Callable[[], str],
        now: float,
        wall_offset_ms: float,
    ) -> None:
        self.limits = limits
        self.capabilities = capabilities
        self.resolve = resolve
        self.select: Select = _whole  # what is left of a grant for a message
        self._new_client_id = new_client_id
        self.wall_offset_ms = wall_offset_ms
        self._framer = Framer(limits.connect_packet_bytes_max)
        self._accepted_at = now
        self._last_received = now
        self._held: list[Packet] | None = None
        self._leaving: Disconnect | None = None  # waits among the held; nothing behind it is read
        self.paused = 0
        self._writable = True
        self._read_again_at: float | None = None
        self._rate: ClientRate | None = None
        self.state = ConnectionState.AWAITING_CONNECT
        self.protocol_version = 4
        self.client_id = ""
        self.connect: Connect | None = None
        self.authentication: Authentication | None = None  # where CONNECT named a method
        self.negotiated: Negotiated | None = None
        self.incoming: Incoming | None = None
        self.flows: IncomingFlows | None = None  # QoS 2 on its way in
        self.outgoing: Outgoing | None = None
        self.ledger: Ledger | None = None  # notes what becomes of sampled messages
        self.session_expiry_s = 0  # what holds at the end of the connection
        self.was_accepted = False  # CONNACK of success was sent
        self.is_durable = False  # the session outlives it, so each step of a QoS 2 flow is stored
        self.out: list[bytes] = []
        self.effects: list[Effect] = []
        self.reason = ""
        self.is_violated = False  # the client broke the protocol: that is why the connection ends

    # Events --------------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> None:
        """Bytes from the client, in any chunking; every packet that is whole is worked off."""
        if self.is_closed() or self._leaving is not None:  # [MQTT5-3.14.4-1] [MQTT311-3.14.4-1]
            return
        self._last_received = now
        incoming, outgoing = self.incoming, self.outgoing
        before = incoming.received if incoming is not None else 0
        octets = len(data)
        try:
            # Two short ways for nearly all traffic; what they leave goes the long way
            if not self._framer.buffered_bytes and self._held is None:
                taken = 0
                if incoming is not None and self._framer.packet_bytes_max >= _SHORT_PACKET_BYTES:
                    is_5 = self.protocol_version == MQTT_5
                    answers_max = self.limits.receive_maximum_in if is_5 else reading.UNACKNOWLEDGED_MAX_3
                    if self.flows is not None:
                        answers_max -= self.flows.begun
                    taken = incoming.take_plain(data, is_5, answers_max, self.effects)
                if outgoing is not None and not taken:
                    taken = outgoing.take_acknowledgements(data, now, self.wall_offset_ms)
                if taken:
                    data = data[taken:]
            if data:
                self._receive_frames(data, now)
        except ProtocolViolation as violation:
            self._violated(violation)
            return
        if not self._writable and (self.out or self.effects):  # it asks and does not listen: answers must not pile up
            self.pause(reading.UNREAD)
        if self._rate is not None:
            incoming = self.incoming
            messages = incoming.received - before if incoming is not None else 0
            wait_s = self._rate.take(messages, octets, now)
            if wait_s > 0:
                self._read_again_at = now + wait_s
                self.pause(reading.RATE)

    def _receive_frames(self, data: bytes, now: float) -> None:
        for first_byte, body in self._framer.feed(data):
            self._on_packet(decode_for_server(first_byte, body, self.protocol_version), now)
            if self.is_closed() or self._leaving is not None:
                return
        if self._framer.error is not None:
            raise self._framer.error

    def accept(
        self,
        session_present: bool,
        now: float,
        resuming: Resuming | None = None,
        received: frozenset[int] = frozenset(),
    ) -> None:
        """The client may connect: CONNACK, then whatever it sent meanwhile [MQTT5-3.2.0-1] [MQTT311-3.2.0-1].

        With a session present, `resuming` is what it left in flight to the client and `received` the identifiers of
        the client's QoS 2 messages between PUBREC and PUBREL.
        """
        if self.state is not ConnectionState.AUTHENTICATING:
            return
        assert self.negotiated is not None
        self.state = next_state(self.state, ConnectionEvent.ACCEPTED)
        self.session_expiry_s = self.negotiated.session_expiry_s
        self.is_durable = self.session_expiry_s > 0
        answer = connack(self.negotiated, self.limits, self.capabilities, session_present)
        if self.authentication is not None:
            self.authentication.connected(answer.properties)
        if not self.send(answer):  # no CONNACK fits: the client would wait for ever
            self.state = next_state(self.state, ConnectionEvent.SERVER_DISCONNECT)
            self.close("CONNACK is larger than the client's Maximum Packet Size")
            return
        self.was_accepted = True
        self._framer.packet_bytes_max = self.limits.packet_bytes_max
        if self.limits.messages_per_s or self.limits.bytes_per_s:
            self._rate = ClientRate(self.limits)
        self._last_received = now
        if received:
            flows_of(self, received)
        if resuming is not None:
            self._opened_outgoing().resume(resuming)
        self._release_held(now)

    def authentication_stepped(self, step: Step) -> bool:
        """The mechanism's answer; True: the client is known, and `accept` or `refuse` comes next."""
        authentication = self.authentication
        if self.state is ConnectionState.CLOSED:
            return False
        assert authentication is not None
        answer = authentication.stepped(step)
        if isinstance(answer, Auth) and not self.send(answer):  # [MQTT5-3.1.2-24]
            answer = Denied(ReasonCode.PACKET_TOO_LARGE, "AUTH is larger than the client's Maximum Packet Size")
        if isinstance(answer, Denied):
            end = self.disconnect if self.state is ConnectionState.CONNECTED else self.refuse
            end(answer.reason_code, answer.reason)
        return answer is None

    def refuse(self, reason_code: ReasonCode, reason: str, server_reference: str | None = None) -> None:
        """CONNACK with an error, then close [MQTT5-3.2.2-7] [MQTT311-3.2.2-5]."""
        if self.state not in (ConnectionState.AWAITING_CONNECT, ConnectionState.AUTHENTICATING):
            return
        self.state = next_state(self.state, ConnectionEvent.REFUSED)
        properties = Properties(server_reference=server_reference if self.protocol_version == MQTT_5 else None)
        if self.protocol_version == MQTT_5 and (self.negotiated is None or self.negotiated.problem_information):
            properties.reason_string = reason
        if self.protocol_version == MQTT_5 or connack_return_code(reason_code) is not None:  # [MQTT311-3.2.2-6]
            self.send(Connack(session_present=False, reason_code=reason_code, properties=properties))
        self.close(reason)

    def record_appended(self, packet_id: int) -> None:
        """Kafka holds the record on all in-sync replicas: PUBACK in its turn [MQTT5-4.3.2-4] [MQTT311-4.3.2-2]."""
        incoming = self.incoming
        assert incoming is not None
        incoming.acknowledge(packet_id)
        if self.paused & reading.UNACKNOWLEDGED and incoming.unacknowledged <= reading.UNACKNOWLEDGED_MAX_3 // 2:
            self.resume(reading.UNACKNOWLEDGED)

    def records_appended(self, packet_ids: list[int]) -> None:
        """The same for all records of a run."""
        incoming = self.incoming
        assert incoming is not None
        incoming.acknowledge_run(packet_ids)
        if self.paused & reading.UNACKNOWLEDGED and incoming.unacknowledged <= reading.UNACKNOWLEDGED_MAX_3 // 2:
            self.resume(reading.UNACKNOWLEDGED)

    def record_refused(self, packet_id: int, reason_code: ReasonCode, reason: str) -> None:
        """Kafka refused the record for good: a negative PUBACK, or, in 3.1.1, which has none, the end."""
        incoming = self.incoming
        assert incoming is not None
        incoming.refused += 1
        if self.state is ConnectionState.CLOSED:
            return
        if self.protocol_version == MQTT_5:
            incoming.answer(packet_id, negative_puback(self, packet_id, reason_code, reason))
        else:
            self.disconnect(reason_code, reason)

    def exactly_once_appended(self, effect: AppendExactlyOnce) -> None:
        """Message and identifier are committed: PUBREC in its turn."""
        assert self.flows is not None
        self.flows.committed(effect.packet_id)
        release_early(self, self.flows)
        if self.paused & reading.UNACKNOWLEDGED and self.flows.pending <= reading.UNACKNOWLEDGED_MAX_3 // 2:
            self.resume(reading.UNACKNOWLEDGED)

    def exactly_once_refused(self, effect: AppendExactlyOnce, reason_code: ReasonCode, reason: str) -> None:
        """Kafka refused the message for good: a negative PUBREC, or, in 3.1.1, which has none, the end."""
        assert self.flows is not None
        if self.incoming is not None:
            self.incoming.refused += 1
        if self.protocol_version == MQTT_5 and self.state is ConnectionState.CONNECTED:
            self.flows.refused(effect.packet_id, reason_code, reason)
            release_early(self, self.flows)
        else:
            self.flows.withdraw(effect.packet_id)
            self.disconnect(reason_code, reason)

    def received_forgotten(self, packet_id: int) -> None:
        """The removal of the identifier is stored: PUBCOMP."""
        assert self.flows is not None
        self.flows.forgotten(packet_id)

    def outgoing_stored(self, packet_id: int, now: float) -> None:
        """Identifier and position are stored: PUBLISH."""
        if self.outgoing is not None and self.state is ConnectionState.CONNECTED:
            self.outgoing.stored(packet_id, self.wall_ms(now))

    def outgoing_refused(self, packet_id: int, now: float) -> None:
        """The message is another session's: nothing of it was sent."""
        if self.outgoing is not None and self.state is ConnectionState.CONNECTED:
            self.outgoing.refused(packet_id, self.wall_ms(now))

    def release_stored(self, packet_id: int) -> None:
        """That the client has the message is stored: PUBREL."""
        if self.outgoing is not None and self.state is ConnectionState.CONNECTED:
            self.outgoing.release_stored(packet_id)

    def subscribed(self, packet_id: int, reason_codes: tuple[ReasonCode, ...], now: float, reason: str = "") -> None:
        """The positions are known: SUBACK, so that nothing published from here on is missed. `reason`: what a code of
        refusal means, for a client that wants to know."""
        if self.state is not ConnectionState.CONNECTED:
            return
        self.send(Suback(packet_id, reason_codes, Properties(reason_string=reason) if reason else None))
        self._release_held(now)

    def unsubscribed(self, packet_id: int, reason_codes: tuple[ReasonCode, ...], now: float) -> None:
        """UNSUBACK [MQTT5-3.10.4-4] [MQTT311-3.10.4-4]."""
        if self.state is not ConnectionState.CONNECTED:
            return
        self.send(Unsuback(packet_id, reason_codes))
        self._release_held(now)

    def deliver(self, delivery: Delivery, grant: Grant, now: float) -> None:
        """A message that matches a subscription of this client."""
        outgoing = self.outgoing
        if outgoing is None or self.state is not ConnectionState.CONNECTED:
            return
        if grant.is_conditional:
            selected = self.select(delivery, grant)
            if selected is None or (selected.no_local and delivery.client_id == self.client_id):  # [MQTT5-3.8.3-3]
                return
            grant = selected
        outgoing.deliver(delivery, grant, self.wall_ms(now) if delivery.expiry_s is not None else 0)
        if outgoing.overflowed:
            outgoing.overflowed = False
            self.effects.append(FallBehind((delivery.kafka_topic, delivery.partition), delivery.offset))

    def left_in_flight(self, position: Position) -> list[InFlight]:
        """What was in flight on the partition and has not been sent again."""
        outgoing = self.outgoing
        return outgoing.resuming.left(position) if outgoing is not None and outgoing.resuming is not None else []

    def partition_resumed(self, position: Position | None) -> None:
        """All of a partition (None: whatever is left anywhere) that was in flight has been read again; what did not
        come has expired or is gone."""
        if self.outgoing is not None:
            self.outgoing.partition_resumed(position)

    def pass_over(self, delivery: Delivery, grant: Grant) -> None:
        """A message that cannot be taken now: QoS 0 is dropped and counted, the others are in the log."""
        is_own = grant.no_local and delivery.client_id == self.client_id
        if not (delivery.qos and grant.qos) and not is_own and self.outgoing is not None:
            self.outgoing.dropped += 1

    def writing_paused(self) -> None:
        """The socket takes no more: deliveries wait in the bounded buffer."""
        self._writable = False
        if self.outgoing is not None:
            self.outgoing.writable = False

    def writing_resumed(self, now: float) -> None:
        """The socket takes more again."""
        self._writable = True
        self.resume(reading.UNREAD)
        if self.outgoing is not None and self.state is ConnectionState.CONNECTED:
            self.outgoing.writable = True
            self.outgoing.drain(self.wall_ms(now))

    def backbone_full(self, full: bool) -> None:
        """The publisher's buffer is full (or no longer): stop reading rather than drop."""
        if full:
            self.pause(reading.BACKBONE)
        else:
            self.resume(reading.BACKBONE)

    def disconnect(self, reason_code: ReasonCode, reason: str, server_reference: str | None = None) -> None:
        """The edge ends the connection; a 5.0 client is told why [MQTT5-4.13.1-1]."""
        if self.state is ConnectionState.CLOSED:
            return
        connected = self.state is ConnectionState.CONNECTED
        self.state = next_state(self.state, ConnectionEvent.SERVER_DISCONNECT)
        self._say_goodbye(connected, reason_code, reason, server_reference)

    def connection_lost(self) -> None:
        """The network connection is gone without a DISCONNECT: the will is due [MQTT5-3.1.2-8] [MQTT311-3.1.2-8]."""
        if self.state is ConnectionState.CLOSED:
            return
        connected = self.state is ConnectionState.CONNECTED
        self.state = next_state(self.state, ConnectionEvent.CONNECTION_LOST)
        self.reason = self.reason or "connection lost"
        self._end()
        if connected:
            self.publish_will()

    def let_go(self) -> None:
        """The connection is over and its session is taken down: nothing refers back to its owner or to this, so that
        both go at once, and not with some later garbage collection."""
        self.resolve = _nowhere
        if self.incoming is not None:
            self.incoming.let_go(_nowhere)
        if self.flows is not None:
            self.flows.let_go()
        if self.outgoing is not None:
            self.outgoing.let_go()

    def handle_timer(self, now: float) -> None:
        """`now` has reached `get_timer()`: act on whatever is due."""
        if self._read_again_at is not None and now >= self._read_again_at:
            self._read_again_at = None
            self.resume(reading.RATE)
        if self.state in (ConnectionState.AWAITING_CONNECT, ConnectionState.AUTHENTICATING):
            if now >= self._accepted_at + self.limits.connect_timeout_s:
                self.state = next_state(self.state, ConnectionEvent.CONNECT_TIMEOUT)
                self.close("no CONNECT within the time limit")
        elif self.state is ConnectionState.CONNECTED and self._silent_until() <= now:
            if self.paused & ~reading.UNREAD:  # it is we who do not listen: the silence starts anew
                self._last_received = now
                return
            self.state = next_state(self.state, ConnectionEvent.KEEP_ALIVE_EXPIRED)
            self._say_goodbye(True, ReasonCode.KEEP_ALIVE_TIMEOUT, "1.5 x keep alive passed without a packet")

    def get_timer(self) -> float | None:
        """When to call `handle_timer`, on the clock of `now`; None: never."""
        if self.state in (ConnectionState.AWAITING_CONNECT, ConnectionState.AUTHENTICATING):
            return self._accepted_at + self.limits.connect_timeout_s
        if self.state is ConnectionState.CLOSED:
            return None
        due = self._silent_until()
        if self._read_again_at is not None:
            return min(due, self._read_again_at)
        return due if due != float("inf") else None

    def statistics(self) -> dict[str, int]:
        """Figures of this connection, for the state API."""
        figures = {"received": 0, "refused": 0, "unacknowledged": 0}
        if self.incoming is not None:
            figures = {
                "received": self.incoming.received,
                "refused": self.incoming.refused,
                "unacknowledged": unacknowledged(self),
            }
        return figures | (self.outgoing.statistics() if self.outgoing is not None else {})

    # Packets -------------------------------------------------------------------------------------------------------

    def _on_packet(self, packet: Packet, now: float) -> None:
        if isinstance(packet, Connect):
            self._on_connect(packet)
        elif self.state is ConnectionState.AWAITING_CONNECT:
            raise ProtocolError("the first packet must be CONNECT", "MQTT5-3.1.0-1")  # [MQTT311-3.1.0-1]
        elif isinstance(packet, Auth):
            self.effects.append(received_auth(self.authentication, packet))
        elif self.authentication is not None and self.state is ConnectionState.AUTHENTICATING:
            check_before_connack(packet)
            self.state = next_state(self.state, ConnectionEvent.DISCONNECT_RECEIVED)
            self.close("DISCONNECT before CONNACK")
        elif self.state is ConnectionState.AUTHENTICATING or (
            self._held is not None and isinstance(packet, Publish | Subscribe | Unsubscribe | Disconnect)
        ):
            self._hold(packet)
        elif isinstance(packet, Publish):
            on_publish(self, packet)
        elif isinstance(packet, Pingreq):
            self.out.append(_PINGRESP)  # [MQTT5-3.12.4-1] [MQTT311-3.12.4-1]
        elif isinstance(packet, Subscribe):
            self._on_subscribe(packet)
        elif isinstance(packet, Unsubscribe):
            self._held = []
            self.effects.append(CloseSubscriptions(packet))
        elif isinstance(packet, Disconnect):
            on_disconnect(self, packet)
        elif isinstance(packet, Puback):
            on_puback(self, packet, now)
        elif isinstance(packet, Pubrec):
            on_pubrec(self, packet, now)
        elif isinstance(packet, Pubrel):
            on_pubrel(self, packet)
        elif isinstance(packet, Pubcomp):
            on_pubcomp(self, packet, now)
        else:
            raise ProtocolError(f"{type(packet).__name__.upper()} is not expected here", "MQTT5-4.13.1-1")

    def _on_connect(self, packet: Connect) -> None:
        if self.state is not ConnectionState.AWAITING_CONNECT:
            raise ProtocolError("a second CONNECT", "MQTT5-3.1.0-2")  # [MQTT311-3.1.0-2]
        self.protocol_version = packet.protocol_version
        self.connect = packet
        negotiated = negotiate(packet, self.limits, self.capabilities, self._new_client_id())
        if isinstance(negotiated, Refusal):
            self.refuse(negotiated.reason_code, negotiated.reason)
            return
        self.negotiated = negotiated
        self.client_id = negotiated.client_id
        self.state = next_state(self.state, ConnectionEvent.CONNECT_RECEIVED)
        self._held = []
        if packet.properties.authentication_method is not None:
            self.authentication = Authentication(packet.properties.authentication_method)
        self.effects.append(Authenticate(packet, negotiated.client_id))

    def _on_subscribe(self, packet: Subscribe) -> None:
        self._opened_outgoing()
        self._held = []  # what follows waits for the SUBACK, as if it were done at once
        self.effects.append(OpenSubscriptions(packet))

    def _opened_outgoing(self) -> Outgoing:
        if self.outgoing is None:
            negotiated = self.negotiated
            assert negotiated is not None
            make = Outgoing if self.ledger is None else partial(LedgerOutgoing, self.ledger)
            self.outgoing = make(
                self.out,
                self.protocol_version,
                negotiated.receive_maximum,
                negotiated.packet_bytes_max,
                self.limits.buffer_messages_max,
                self.limits.buffer_bytes_max,
                min(negotiated.topic_alias_maximum, self.limits.topic_alias_maximum),
                self._emit if self.is_durable else None,
                self._emit,
            )
            self.outgoing.writable = self._writable
        return self.outgoing

    def _emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    # Ends ----------------------------------------------------------------------------------------------------------

    def _violated(self, violation: ProtocolViolation) -> None:
        """The one place where a violation becomes a reason code on the wire."""
        self.is_violated = True
        before = self.state
        self.state = next_state(self.state, ConnectionEvent.VIOLATION)
        version = violation.protocol_version or self.protocol_version
        if before is ConnectionState.CONNECTED:
            # a CONNECT of whatever form is the second one here [MQTT5-3.1.0-2]; DISCONNECT has no 0x84
            second = isinstance(violation, UnsupportedProtocolVersion)
            self._say_goodbye(True, ReasonCode.PROTOCOL_ERROR if second else violation.reason_code, str(violation))
            return
        waits = before is ConnectionState.AWAITING_CONNECT or self.authentication is not None  # for its CONNACK
        if waits and may_be_told(violation, version):
            self.out.append(encode(Connack(reason_code=violation.reason_code), version or 4))
        self.close(str(violation))

    def _say_goodbye(
        self, connected: bool, reason_code: ReasonCode, reason: str, server_reference: str | None = None
    ) -> None:
        if connected:
            if self.protocol_version == MQTT_5:
                properties = Properties(server_reference=server_reference)
                if self.negotiated is not None and self.negotiated.problem_information:
                    properties.reason_string = reason
                self.send(Disconnect(reason_code, properties))
            self.publish_will()
        self.close(reason)

    def close(self, reason: str) -> None:
        """What is in `out` goes, nothing follows."""
        self._end()
        self.reason = reason
        self._held = None
        self.effects.append(CloseConnection(reason))

    def _end(self) -> None:
        if self.outgoing is not None:
            self.outgoing.writable = False  # nothing is sent any more [MQTT5-3.14.4-1]
        if self._leaving is not None:  # a DISCONNECT that waits counts
            take_session_expiry(self, self._leaving)

    def publish_will(self) -> None:
        """The will is due, unless a DISCONNECT that waits says no [MQTT5-3.14.4-3]."""
        will = self.will
        if will is not None and not is_normal(self._leaving):
            assert self.connect is not None
            self.connect.will = None  # once or not at all [MQTT5-3.1.2-10] [MQTT311-3.1.2-10]
            self.effects.append(PublishWill(will))

    def is_closed(self) -> bool:
        """Nothing more is read or sent [MQTT5-3.14.4-1]."""
        return self.state is ConnectionState.CLOSED

    @property
    def will(self) -> Will | None:
        """The will of this connection, until it is published or discarded."""
        return self.connect.will if self.connect is not None else None

    # Flow ----------------------------------------------------------------------------------------------------------

    def _hold(self, packet: Packet) -> None:
        assert self._held is not None
        self._held.append(packet)
        if isinstance(packet, Disconnect):
            self._leaving = packet
        if len(self._held) >= _HELD_MAX:
            self.pause(reading.HELD)

    def _release_held(self, now: float) -> None:
        held, self._held = self._held, None
        self.resume(reading.HELD)
        try:
            for packet in held or ():
                self._on_packet(packet, now)
                if self.is_closed():
                    return
        except ProtocolViolation as violation:
            self._violated(violation)

    def pause(self, why: int) -> None:
        """Stop reading; `why` is one of `edge.session.reading`."""
        if not self.paused:
            self.effects.append(PauseReading())
        self.paused |= why

    def resume(self, why: int) -> None:
        """Read again, unless there is another reason not to."""
        if self.paused and not (self.paused & ~why):
            self.effects.append(ResumeReading())
        self.paused &= ~why

    def _silent_until(self) -> float:
        assert self.negotiated is not None
        keep_alive_s = self.negotiated.keep_alive_s
        return self._last_received + keep_alive_s * self.limits.keep_alive_factor if keep_alive_s else float("inf")

    def wall_ms(self, now: float) -> int:
        """`now` in milliseconds since the epoch."""
        return int(now * 1000 + self.wall_offset_ms)

    def send(self, packet: Packet) -> bool:
        """Whether the packet is one that the client takes [MQTT5-3.1.2-24]; else it is left out."""
        asked = self.connect.properties.maximum_packet_size_bytes if self.connect is not None else None
        packet_bytes_max = asked or PACKET_BYTES_UNLIMITED  # known before the rest of CONNECT is agreed on
        encoded = encode_within(packet, self.protocol_version, packet_bytes_max)
        if encoded is not None:
            self.out.append(encoded)
        return encoded is not None


def _whole(delivery: Delivery, grant: Grant) -> Grant | None:
    return grant


def _nowhere(raw: bytes) -> ReasonCode:
    return ReasonCode.UNSPECIFIED_ERROR
