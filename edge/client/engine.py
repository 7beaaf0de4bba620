"""The client's side of MQTT 3.1.1 and 5.0 as a pure machine: bytes and requests in, bytes and events out.

No I/O, no clock: ``now_s`` comes in as an argument, the next deadline is ``get_timer()``. One engine lives as long as
its client: it keeps the session (what is in flight, identifiers of inbound QoS 2, subscriptions) over many connections.

    connection_made -> CONNECTING -> (CONNACK 0) -> CONNECTED -> CLOSED -> connection_made ...
                                  -> (CONNACK error, broken peer, time-out) -> CLOSED
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from edge.client.errors import NotConnected, PublishRefused, QueueFull
from edge.client.events import Acknowledged, Answered, Closed, Connected, Event, Lost, Refused, Token
from edge.client.settings import RECEIVE_MAXIMUM_DEFAULT, ClientSettings, Counters
from edge.wire import decode_for_client, encode, puback
from edge.wire.errors import ProtocolError, ProtocolViolation
from edge.wire.framing import Framer
from edge.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from edge.wire.properties import Properties
from edge.wire.reason_codes import ReasonCode

PACKET_IDS = 65_535
ERROR = 0x80


class State(Enum):
    """Where the connection is."""

    NEW = "new"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


@dataclass(slots=True)
class _Outgoing:
    """A QoS 1 or 2 message from the request to its end. ``released``: PUBREC has come, PUBREL is out."""

    packet: Publish
    token: Token
    released: bool = False


class ClientEngine:
    """See the module. Every method that takes data or a request may leave bytes for ``data_to_send``."""

    __slots__ = (
        "_aliases",
        "_deadline_s",
        "_framer",
        "_in_flight",
        "_inbound_qos2",
        "_keep_alive_s",
        "_last_sent_s",
        "_outgoing",
        "_packet_id",
        "_ping_sent",
        "_requests",
        "_resend",
        "_subscriptions",
        "_waiting",
        "_window",
        "counters",
        "server",
        "settings",
        "state",
    )

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.state = State.NEW
        self.counters = Counters()
        self.server = Properties()  # what CONNACK told
        self._framer = Framer(settings.packet_bytes_max, settings.protocol_version)
        self._outgoing: list[bytes] = []
        self._in_flight: dict[int, _Outgoing] = {}  # in the order of sending
        self._resend: deque[int] = deque()  # in flight, not yet sent again: the new window is smaller than the old one
        self._waiting: deque[_Outgoing] = deque()  # until the window opens, or there is a connection
        self._inbound_qos2: set[int] = set()
        self._requests: dict[int, Token] = {}
        self._subscriptions: dict[str, tuple[SubscriptionRequest, int]] = {}  # filter -> options, identifier
        self._aliases: dict[int, bytes] = {}
        self._packet_id = 0
        self._window = 0
        self._keep_alive_s = float(settings.keep_alive_s)
        self._last_sent_s = 0.0
        self._ping_sent = False
        self._deadline_s: float | None = None

    # -- connection --------------------------------------------------------------------------------------------------

    def connection_made(self, now_s: float) -> None:
        """A transport is there: say CONNECT. Clean Start holds for the first connection only, if a session is kept."""
        assert self.state in (State.NEW, State.CLOSED), self.state
        settings = self.settings
        again = self.counters.connects > 0
        self.state = State.CONNECTING
        self._framer = Framer(settings.packet_bytes_max, settings.protocol_version)
        self._outgoing.clear()
        self._aliases.clear()
        self._resend.clear()
        self._ping_sent = False
        self._deadline_s = None
        self._send(
            Connect(
                protocol_version=settings.protocol_version,
                client_id=settings.client_id or self.server.assigned_client_identifier or "",
                clean_start=settings.clean_start and not (again and settings.session_expiry_s),
                keep_alive_s=settings.keep_alive_s,
                will=settings.will,
                user_name=settings.user_name,
                password=settings.password,
                properties=settings.connect_properties(),
            )
        )
        self._last_sent_s = now_s

    def connection_lost(self) -> list[Token]:
        """The transport is gone: the tokens of unanswered SUBSCRIBE and UNSUBSCRIBE. Messages stay for the next one."""
        self.state = State.CLOSED
        self._deadline_s = None
        self._outgoing.clear()
        tokens = list(self._requests.values())
        self._requests.clear()
        return tokens

    def abandon(self) -> list[Token]:
        """There will be no other connection: the tokens of all messages that are not through."""
        tokens = [outgoing.token for outgoing in (*self._in_flight.values(), *self._waiting)]
        self._in_flight.clear()
        self._waiting.clear()
        return tokens

    def disconnect(self, reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION) -> None:
        """Say goodbye; nothing can be sent after it [MQTT5-3.14.4-1]."""
        if self.state is State.CONNECTED:
            self._send(Disconnect(reason_code))
        self.state = State.CLOSED
        self._deadline_s = None

    # -- requests ----------------------------------------------------------------------------------------------------

    def publish(self, packet: Publish, token: Token = None) -> None:
        """Send a message, or queue it until the window opens or a connection is there (QoS 0 without one: dropped).

        Raises:
            PublishRefused: the server has told that it takes no such message.
            QueueFull: ``queue_messages_max`` messages wait already.
        """
        if packet.qos == 0:
            self._publish_at_most_once(packet)
            return
        if self.state is State.CONNECTED and not self._waiting and len(self._in_flight) < self._window:
            self._send_message(_Outgoing(packet, token))
        elif len(self._waiting) >= self.settings.queue_messages_max:
            self.counters.dropped += 1
            raise QueueFull(f"{len(self._waiting)} messages wait")
        else:
            self._waiting.append(_Outgoing(packet, token))
        self.counters.published += 1

    def subscribe(self, requests: Sequence[SubscriptionRequest], token: Token = None, subscription_id: int = 0) -> None:
        """Send SUBSCRIBE; the filters are subscribed to again whenever the session is new.

        Raises:
            NotConnected: there is no connection now.
        """
        self._expect_connected()
        for request in requests:
            self._subscriptions[request.topic_filter] = (request, subscription_id)
        self._send_subscribe(tuple(requests), token, subscription_id)

    def unsubscribe(self, topic_filters: Sequence[str], token: Token = None) -> None:
        """Send UNSUBSCRIBE.

        Raises:
            NotConnected: there is no connection now.
        """
        self._expect_connected()
        for topic_filter in topic_filters:
            self._subscriptions.pop(topic_filter, None)
        packet_id = self._next_packet_id()
        self._requests[packet_id] = token
        self._send(Unsubscribe(packet_id, tuple(topic_filters)))

    @property
    def unacknowledged(self) -> int:
        """Messages of QoS 1 and 2 that are not through, waiting ones included."""
        return len(self._in_flight) + len(self._waiting)

    def data_to_send(self, now_s: float) -> bytes:
        """Everything to write now, as one piece."""
        outgoing = self._outgoing
        if not outgoing:
            return b""
        data = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        self._last_sent_s = now_s
        self.counters.bytes_out += len(data)
        return data

    @property
    def has_data_to_send(self) -> bool:
        return bool(self._outgoing)

    # -- time --------------------------------------------------------------------------------------------------------

    def get_timer(self) -> float | None:
        """When ``handle_timer`` wants to be called, or None. It moves on with every packet sent [MQTT5-3.1.2-20]."""
        if self.state is not State.CONNECTED or not self._keep_alive_s:
            return None
        return self._deadline_s if self._ping_sent else self._last_sent_s + self._keep_alive_s

    def handle_timer(self, now_s: float) -> list[Event]:
        """Ping when nothing was sent for the keep alive; a ping without an answer ends the connection."""
        deadline_s = self.get_timer()
        if deadline_s is None or now_s < deadline_s:
            return []
        if self._ping_sent:
            closed = self._close(ReasonCode.UNSPECIFIED_ERROR, "no answer to PINGREQ")  # 0x8D only servers may send
            return [Closed(ReasonCode.KEEP_ALIVE_TIMEOUT, closed.error)]
        self._ping_sent = True
        self._deadline_s = now_s + max(1.0, self._keep_alive_s / 2)
        self.counters.pings += 1
        self._send(Pingreq())
        return []

    # -- what the server sends ---------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Event]:
        """All packets of a read. Never raises for what the peer sent: a violation becomes ``Closed``."""
        self.counters.bytes_in += len(data)
        events: list[Event] = []
        framer = self._framer
        version = self.settings.protocol_version
        try:
            for first_byte, body in framer.feed(data):
                self._handle(decode_for_client(first_byte, body, version), events)
                if self.state is State.CLOSED:
                    return events
            if framer.error is not None:
                raise framer.error
        except ProtocolViolation as violation:
            events.append(self._close(violation.reason_code, str(violation)))
        return events

    def _handle(self, packet: Packet, events: list[Event]) -> None:
        if self.state is State.CONNECTING:
            if type(packet) is not Connack:
                raise ProtocolError("the first packet is not CONNACK", "MQTT5-3.2.0-1")
            self._handle_connack(packet, events)
            return
        match packet:
            case Publish():
                self._handle_publish(packet, events)
            case Puback():
                self._finish(packet.packet_id, packet.reason_code, packet.properties, events)
            case Pubcomp():
                self._handle_pubcomp(packet, events)
            case Pubrec():
                self._handle_pubrec(packet, events)
            case Pubrel():
                self._inbound_qos2.discard(packet.packet_id)
                self._send(Pubcomp(packet.packet_id))
            case Suback() | Unsuback():
                if packet.packet_id in self._requests:
                    events.append(Answered(self._requests.pop(packet.packet_id), packet.reason_codes))
            case Pingresp():
                self._ping_sent = False
            case Disconnect():
                text = packet.properties.reason_string if packet.properties else None
                self.state = State.CLOSED
                events.append(Closed(packet.reason_code, text or f"the server disconnects: {packet.reason_code.name}"))
            case _:
                raise ProtocolError(f"unexpected {type(packet).__name__}", "MQTT5 §4.13")

    def _handle_connack(self, connack: Connack, events: list[Event]) -> None:
        if connack.reason_code >= ERROR:
            self.state = State.CLOSED
            events.append(Refused(connack))
            return
        self.state = State.CONNECTED
        self.server = properties = connack.properties
        if properties.server_keep_alive_s is not None:  # [MQTT5-3.1.2-21]
            self._keep_alive_s = float(properties.server_keep_alive_s)
        self._window = min(self.settings.in_flight_max, properties.receive_maximum or RECEIVE_MAXIMUM_DEFAULT)
        self.counters.connects += 1
        events.append(Connected(connack))
        if connack.session_present:
            self._resume()
        elif self.counters.connects > 1:
            self._start_over(events)
        self._fill_window(events)

    def _handle_publish(self, packet: Publish, events: list[Event]) -> None:
        if packet.properties is not None and packet.properties.topic_alias is not None:
            self._resolve_alias(packet, packet.properties.topic_alias)
        if packet.qos == 1:
            self._outgoing.append(puback(packet.packet_id))
        elif packet.qos == 2:
            self._send(Pubrec(packet.packet_id))
            if packet.packet_id in self._inbound_qos2:  # [MQTT5-4.3.3-10]: answered, not delivered again
                return
            self._inbound_qos2.add(packet.packet_id)
        self.counters.received += 1
        events.append(packet)

    def _resolve_alias(self, packet: Publish, alias: int) -> None:
        if alias > self.settings.topic_alias_maximum:
            raise ProtocolError(f"topic alias {alias} was not offered", "MQTT5-3.3.2-11")
        if packet.topic_name_utf8:
            self._aliases[alias] = packet.topic_name_utf8
        elif alias in self._aliases:
            packet.topic_name_utf8 = self._aliases[alias]
        else:
            raise ProtocolError(f"topic alias {alias} is not known", "MQTT5 §3.3.2.3.4")

    def _handle_pubrec(self, packet: Pubrec, events: list[Event]) -> None:
        outgoing = self._in_flight.get(packet.packet_id)
        if packet.reason_code >= ERROR:
            self._finish(packet.packet_id, packet.reason_code, packet.properties, events)
        elif outgoing is None:
            self._send(Pubrel(packet.packet_id, self._not_found()))
        else:
            outgoing.released = True
            self._send(Pubrel(packet.packet_id))

    def _handle_pubcomp(self, packet: Pubcomp, events: list[Event]) -> None:
        """The end of a flow; after a reconnect the server may have come to it before: it has the message, then, and
        does not know the identifier any more (MQTT 5.0 §3.7.2.1)."""
        code = packet.reason_code
        outgoing = self._in_flight.get(packet.packet_id)
        if code is ReasonCode.PACKET_IDENTIFIER_NOT_FOUND and outgoing is not None and outgoing.released:
            code = ReasonCode.SUCCESS
        self._finish(packet.packet_id, code, packet.properties, events)

    def _not_found(self) -> ReasonCode:
        is_5 = self.settings.protocol_version == 5
        return ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if is_5 else ReasonCode.SUCCESS

    def _finish(
        self, packet_id: int, reason_code: ReasonCode, properties: Properties | None, events: list[Event]
    ) -> None:
        outgoing = self._in_flight.pop(packet_id, None)
        if outgoing is None:  # a second answer after a reconnect: nothing waits for it
            return
        if reason_code >= ERROR:
            self.counters.refused += 1
        else:
            self.counters.acknowledged += 1
        events.append(Acknowledged(outgoing.token, reason_code, properties.reason_string if properties else None))
        if self._resend:
            self._send_again()
        elif self._waiting:
            self._fill_window(events)

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, packet: Packet) -> None:
        self._outgoing.append(encode(packet, self.settings.protocol_version))

    def _publish_at_most_once(self, packet: Publish) -> None:
        if self.state is not State.CONNECTED:
            self.counters.dropped += 1
            return
        self._check_server_takes(packet)
        self._send_checked(packet)
        self.counters.published += 1

    def _check_server_takes(self, packet: Publish) -> None:
        if self.server.maximum_qos is not None and packet.qos > self.server.maximum_qos:  # [MQTT5-3.2.2-11]
            raise PublishRefused(ReasonCode.QOS_NOT_SUPPORTED, f"Maximum QoS {self.server.maximum_qos}")
        if packet.retain and self.server.retain_available is False:  # [MQTT5-3.2.2-14]
            raise PublishRefused(ReasonCode.RETAIN_NOT_SUPPORTED)

    def _send_checked(self, packet: Publish) -> None:
        data = encode(packet, self.settings.protocol_version)
        maximum = self.server.maximum_packet_size_bytes
        if maximum is not None and len(data) > maximum:  # [MQTT5-3.2.2-15]
            raise PublishRefused(ReasonCode.PACKET_TOO_LARGE, f"{len(data)} bytes, the server takes {maximum}")
        self._outgoing.append(data)

    def _send_message(self, outgoing: _Outgoing) -> None:
        self._check_server_takes(outgoing.packet)
        outgoing.packet.packet_id = packet_id = self._next_packet_id()
        self._send_checked(outgoing.packet)
        self._in_flight[packet_id] = outgoing

    def _fill_window(self, events: list[Event]) -> None:
        """Send what waits, up to the server's Receive Maximum [MQTT5-3.3.4-7]."""
        while self._waiting and len(self._in_flight) < self._window:
            outgoing = self._waiting.popleft()
            try:
                self._send_message(outgoing)
            except PublishRefused as error:  # told only by this connection's CONNACK
                self.counters.refused += 1
                events.append(Acknowledged(outgoing.token, error.reason_code, error.reason_string))

    def _resume(self) -> None:
        """The server has the session: send again, same identifiers, same order [MQTT5-4.4.0-1] [MQTT5-4.6.0-1]."""
        window = self._window
        for packet_id, outgoing in self._in_flight.items():
            self.counters.resent += 1
            if outgoing.released:
                self._send(Pubrel(packet_id))
                continue
            outgoing.packet.dup = True
            self._resend.append(packet_id)
            if window > 0:  # [MQTT5-3.3.4-7]: also what is sent again counts
                window -= 1
                self._send_again()

    def _send_again(self) -> None:
        """The next message of the old connection; the window must have room."""
        while self._resend:
            outgoing = self._in_flight.get(self._resend.popleft())
            if outgoing is not None and not outgoing.released:  # a server may have answered before it was asked again
                self._send(outgoing.packet)
                return

    def _start_over(self, events: list[Event]) -> None:
        """The server has no session: subscribe again; messages go as new ones or are lost, as the user chose."""
        self._inbound_qos2.clear()
        in_flight = list(self._in_flight.values())
        self._in_flight.clear()
        by_id: dict[int, list[SubscriptionRequest]] = {}
        for request, subscription_id in self._subscriptions.values():
            by_id.setdefault(subscription_id, []).append(request)
        for subscription_id, requests in by_id.items():
            self._send_subscribe(tuple(requests), None, subscription_id)
        again: list[_Outgoing] = []
        for outgoing in in_flight:
            if outgoing.released:  # PUBREC said that the server has it
                self.counters.acknowledged += 1
                events.append(Acknowledged(outgoing.token, ReasonCode.SUCCESS))
            elif self.settings.republish_lost_session:
                outgoing.packet.dup = False
                self.counters.resent += 1
                again.append(outgoing)
            else:
                events.append(Lost(outgoing.token))
        self._waiting.extendleft(reversed(again))

    def _send_subscribe(self, requests: tuple[SubscriptionRequest, ...], token: Token, subscription_id: int) -> None:
        packet_id = self._next_packet_id()
        self._requests[packet_id] = token
        properties = Properties(subscription_identifiers=(subscription_id,)) if subscription_id else None
        self._send(Subscribe(packet_id, requests, properties))

    def _next_packet_id(self) -> int:
        """The next identifier that nothing holds [MQTT5-2.2.1-3]: round and round, so that reuse is late."""
        packet_id = self._packet_id
        for _ in range(PACKET_IDS):
            packet_id = packet_id % PACKET_IDS + 1
            if packet_id not in self._in_flight and packet_id not in self._requests:
                self._packet_id = packet_id
                return packet_id
        raise QueueFull("all 65,535 packet identifiers are in use")

    def _expect_connected(self) -> None:
        if self.state is not State.CONNECTED:
            raise NotConnected(f"the connection is {self.state.value}")

    def _close(self, reason_code: ReasonCode, error: str) -> Closed:
        if self.state is State.CONNECTED and self.settings.protocol_version == 5:
            self._send(Disconnect(reason_code))
        self.state = State.CLOSED
        return Closed(reason_code, error)
