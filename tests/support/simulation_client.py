"""A model client: MQTT 3.1.1 or 5.0 as the specification has it, over many connections; it writes down what it sees.

It keeps what a client's session is (section 4.1): what it sent with QoS 1 and 2 and has not been acknowledged, packet
identifiers of QoS 2 messages that came and are not released, and what it believes the server keeps of it. What the
server may not do on the wire is noticed here, as it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from support.simulation_history import Connection, History, Message, Receipt, SubscriptionSpan
from support.simulation_link import Link
from support.simulation_loop import VirtualLoop

from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Framer,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolViolation,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
    decode_for_client,
    encode,
)

ANSWER_TIMEOUT_S = 9.0  # a client that is not answered tries elsewhere
CONNACK_TIMEOUT_S = 14.0
OUTGOING_MAX = 8


@dataclass(slots=True)
class Plan:
    """What kind of client it is. `expiry_s` 0: its session ends with the connection."""

    name: str
    version: int
    expiry_s: int
    receive_maximum: int = 10
    keep_alive_s: int = 0
    user: str = "user"
    will_qos: int | None = None
    will_retain: bool = False
    will_delay_s: int = 0
    slow_s: float = 0.0  # how long it takes to acknowledge, at most
    alias_maximum: int = 0


@dataclass(slots=True)
class Flow:
    """A message from its first PUBLISH to its end. `since`: of the last packet that waits for an answer."""

    message: Message
    since: float
    is_released: bool = False


@dataclass(slots=True)
class _Wanted:
    """A filter that the client wants, with what became of it in the session."""

    qos: int
    no_local: bool = False
    span: SubscriptionSpan | None = None
    is_asked: bool = False


@dataclass(slots=True)
class _Request:
    """A SUBSCRIBE or UNSUBSCRIBE that waits for its answer."""

    at: float
    filters: list[str]
    spans: list[SubscriptionSpan] = field(default_factory=list)
    is_unsubscribe: bool = False


class ModelClient:
    """`edge_of(link)` is given the link to be connected; see `simulation_world`."""

    def __init__(self, plan: Plan, loop: VirtualLoop, rng: Random, history: History) -> None:
        self.plan = plan
        self.loop = loop
        self.rng = rng
        self.history = history
        self.link: Link | None = None
        self.connection: Connection | None = None
        self.is_connected = False
        self.is_away = True  # it does not want to be connected
        self.session = 0
        self.has_session: bool | None = False  # None: nobody knows
        self.left_at = 0.0  # when the last connection that was accepted ended, as far as it knows
        self.attempts = 0  # connections since then
        self.connections = 0
        self.flows: dict[int, Flow] = {}
        self.received: set[int] = set()
        self.wanted: dict[str, _Wanted] = {}
        self.requests: dict[int, _Request] = {}
        self.has_strays = False  # a CONNECT was never answered: it may come to its edge at any time
        self.has_wiping_strays = False  # one with Clean Start 1
        self.unsure: set[str] = set()  # filters whose UNSUBSCRIBE was not answered: asked again
        self.unacknowledged: dict[int, Receipt] = {}  # PUBLISH packets of this connection, QoS 1 and 2
        self.wills = 0
        self.on_end: Callable[[ModelClient], None] = lambda client: None
        self._framer = Framer(1_000_000, plan.version)
        self._aliases: dict[int, bytes] = {}
        self._packet_id = 0
        self._number = 0
        self._ack_at = 0.0
        self._last_sent = 0.0
        self._server_keep_alive_s = 0
        self._answers_expected: list[int] = []  # packet ids of QoS 1 PUBLISH packets of this connection, in their order

    # Connections

    def connect(self, link: Link, handler_of: Callable[[], Any], *, clean: bool, expiry_s: int | None = None) -> None:
        """Open a connection and send CONNECT."""
        plan, now = self.plan, self.loop.time()
        expiry_s = plan.expiry_s if expiry_s is None else expiry_s
        if plan.version == 4 and clean:
            expiry_s = 0  # Clean Session 1: it ends with the connection, too [MQTT311-3.1.2-6]
        self.is_away = False
        self.connections += 1
        self.link = link
        self._framer = Framer(1_000_000, plan.version)
        self._aliases.clear()
        self.unacknowledged.clear()
        self._answers_expected.clear()
        will = self._will()
        self.connection = connection = Connection(
            plan.name,
            self.connections,
            link.process.name,
            plan.version,
            clean,
            expiry_s,
            now,
            expected=False if clean else self._expected(now),
            will=will,
            will_delay_s=plan.will_delay_s if plan.version == 5 else 0,
            user=plan.user,
            receive_maximum=plan.receive_maximum if plan.version == 5 else 32,
        )
        self.history.connections.append(connection)
        self.attempts += 1
        if clean:  # both sides discard what they have of the session [MQTT5-3.1.2-4]
            self._spans_end(now)
            self._give_up_flows()
            self.received.clear()
            self.session += 1
        if clean or self.has_session is not True:
            self.has_session = None
        link.open(handler_of)
        properties = Properties()
        if plan.version == 5:
            properties = Properties(
                session_expiry_interval_s=expiry_s or None,
                receive_maximum=plan.receive_maximum,
                topic_alias_maximum=plan.alias_maximum or None,
            )
        self._send(
            Connect(
                plan.version,
                plan.name,
                clean,
                plan.keep_alive_s,
                _will_packet(will, plan) if will is not None else None,
                plan.user,
                None,
                properties,
            )
        )
        self.loop.call_later(CONNACK_TIMEOUT_S, self._connack_due, connection)

    def _expected(self, now: float) -> bool | None:
        """What CONNACK should say of session present."""
        if self.has_wiping_strays or (self.has_strays and not self.has_session):
            return None
        if self.has_session is not True:
            return self.has_session
        if self.history.deleted:
            return None  # a session whose messages were deleted begins anew
        age_s, expiry_s = now - self.left_at, self._kept_s
        if expiry_s < 60 and self._edge_was_faulty(now):
            return None  # the server may have seen the end earlier than this client, or later
        if age_s < expiry_s - 2.0:
            return True
        return None if age_s < expiry_s + 45.0 or self.attempts else False

    def _edge_was_faulty(self, now: float) -> bool:
        """In the time of the last connection that was accepted, or since."""
        connection = self._accepted()
        return connection is not None and any(
            fault.until_at > connection.at and fault.from_at < now for fault in self.history.faults
        )

    def _accepted(self) -> Connection | None:
        """The last connection that was accepted."""
        mine = (each for each in reversed(self.history.connections) if each.client == self.plan.name)
        return next((each for each in mine if each.accepted_at is not None and each.user == self.plan.user), None)

    @property
    def _kept_s(self) -> float:
        """For how long the server keeps the session."""
        connection = self._accepted()
        return float(connection.expiry_s) if connection is not None else 0.0

    def _will(self) -> Message | None:
        plan = self.plan
        if plan.will_qos is None:
            return None
        self.wills += 1
        payload = f"will:{plan.name}:{self.wills}".encode()
        message = Message(
            payload, f"will/{plan.name}", plan.will_qos, plan.will_retain, plan.name, self.wills, is_will=True
        )
        self.history.messages[payload] = message
        return message

    def disconnect(self, how: str) -> None:
        """End the connection: "disconnect", "disconnect with will", "closed", "reset", "vanished"."""
        link = self.link
        if link is None:
            return
        if how.startswith("disconnect") and self.is_connected:
            code = ReasonCode.NORMAL_DISCONNECTION
            if how == "disconnect with will" and self.plan.version == 5:
                code = ReasonCode.DISCONNECT_WITH_WILL_MESSAGE
            else:
                how = "disconnect"
            self._send(Disconnect(code))
            link.close()
        elif how == "reset":
            link.reset()
        elif how == "vanished":
            link.peer, link.reads = None, False
        else:
            how = "closed"
            link.close()
        self._ended(how)

    def link_lost(self) -> None:
        """The edge has closed the connection, or is gone."""
        self._ended("server")

    def _ended(self, how: str) -> None:
        connection = self.connection
        if connection is not None and connection.ended_at is None:
            connection.ended_at, connection.end = self.loop.time(), how
        if self.link is None:
            return
        self.link, self.is_connected = None, False
        self.left_elsewhere()
        self.on_end(self)

    def left_elsewhere(self) -> None:
        """The connection is not this client's any more."""
        connection = self.connection
        if connection is not None and connection.accepted_at is None and connection.refused_code is None:
            self.has_strays = True
            self.has_wiping_strays |= connection.clean_start
        if connection is not None and connection.accepted_at is not None:
            self.left_at, self.attempts = self.loop.time(), 0
        for request in self.requests.values():
            if request.is_unsubscribe:
                self.unsure.update(request.filters)
            for topic_filter in request.filters:
                if topic_filter in self.wanted:
                    self.wanted[topic_filter].is_asked = False
        self.requests.clear()
        if connection is not None and connection.accepted_at is not None and connection.expiry_s == 0:
            self._session_over()

    def _session_over(self) -> None:
        """The server has no session of ours any more."""
        self.has_session = False
        self._spans_end(self.loop.time())

    def _spans_end(self, at: float) -> None:
        for wanted in self.wanted.values():
            if wanted.span is not None:
                wanted.span.until_at = min(wanted.span.until_at, at)
                wanted.span = None
            wanted.is_asked = False

    def _connack_due(self, connection: Connection) -> None:
        if self.connection is connection and connection.ended_at is None and connection.accepted_at is None:
            self.disconnect("reset")

    # What the client does

    def publish(
        self, topic_name: str, qos: int, retain: bool, expiry_s: int | None, payload: bytes | None = None
    ) -> bool:
        """Publish a new message; False: it cannot now."""
        if not self.is_connected or len(self.flows) >= OUTGOING_MAX:
            return False
        self._number += 1
        if payload is None:
            payload = f"{self.plan.name}:{self._number}".encode()
        message = Message(payload, topic_name, qos, retain, self.plan.name, self._number, expiry_s)
        self.history.messages[payload] = message
        packet_id = self._next_packet_id() if qos else 0
        if qos:
            self.flows[packet_id] = Flow(message, self.loop.time())
        self._send_publish(message, packet_id, dup=False)
        return True

    def want(self, topic_filter: str, qos: int, no_local: bool = False) -> None:
        """Subscribe, now and whenever the session is new."""
        if topic_filter in self.wanted:
            return
        self.wanted[topic_filter] = _Wanted(qos, no_local and self.plan.version == 5)
        if self.is_connected:
            self._subscribe()

    def unwant(self, topic_filter: str) -> None:
        """Unsubscribe, if there is a connection to do it on."""
        wanted = self.wanted.get(topic_filter)
        if wanted is None or not self.is_connected or wanted.span is None:
            return
        del self.wanted[topic_filter]
        wanted.span.until_at = self.loop.time()
        self._unsubscribe([topic_filter])

    def _unsubscribe(self, filters: list[str]) -> None:
        packet_id = self._next_packet_id()
        self.requests[packet_id] = _Request(self.loop.time(), filters, is_unsubscribe=True)
        self._send(Unsubscribe(packet_id, tuple(filters)))

    def tick(self) -> None:
        """Once in a while: a ping if it is due; who is not answered goes."""
        if not self.is_connected or self.connection is None:
            return
        now = self.loop.time()
        waiting = [flow.since for flow in self.flows.values()] + [request.at for request in self.requests.values()]
        if waiting and now - min(waiting) > ANSWER_TIMEOUT_S:
            self.disconnect("reset")
            return
        self._subscribe()  # what was refused for the moment
        keep_alive_s = self._server_keep_alive_s or self.plan.keep_alive_s
        if keep_alive_s and now - self._last_sent > keep_alive_s * 0.6:
            self._send(Pingreq())

    @property
    def is_idle(self) -> bool:
        """Connected, and nothing waits for an answer."""
        return self.is_connected and not self.flows and not self.requests and all(w.span for w in self.wanted.values())

    def _subscribe(self) -> None:
        filters = [each for each, wanted in self.wanted.items() if not wanted.is_asked]
        if not filters:
            return
        packet_id = self._next_packet_id()
        self.requests[packet_id] = _Request(self.loop.time(), filters)
        for each in filters:
            self.wanted[each].is_asked = True
            self.history.asked.add((self.plan.name, each))
        requests = tuple(
            SubscriptionRequest(each, self.wanted[each].qos, no_local=self.wanted[each].no_local) for each in filters
        )
        self._send(Subscribe(packet_id, requests))

    def _send_publish(self, message: Message, packet_id: int, *, dup: bool) -> None:
        assert self.connection is not None
        message.sends.append((self.loop.time(), self.connection.number))
        properties = None
        if message.expiry_s is not None and self.plan.version == 5:
            properties = Properties(message_expiry_interval_s=message.expiry_s)
        if message.qos == 1:
            self._answers_expected.append(packet_id)
        self._send(
            Publish(
                message.topic_name.encode(), message.payload, message.qos, message.retain, dup, packet_id, properties
            )
        )

    def _next_packet_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % 40 + 1  # few, so that they are used again soon
            if self._packet_id not in self.flows and self._packet_id not in self.requests:
                return self._packet_id

    def _send(self, packet: Any) -> None:
        if self.link is not None:
            self._last_sent = self.loop.time()
            self.link.send(encode(packet, self.plan.version))

    # What comes

    def data_received(self, data: bytes) -> None:
        link = self.link
        try:
            for first_byte, body in self._framer.feed(data):
                self._take(decode_for_client(first_byte, body, self.plan.version))
                if self.link is not link:
                    return
            if self._framer.error is not None:
                raise self._framer.error
        except ProtocolViolation as violation:
            self._wrong("I6", f"a packet that cannot be read: {violation}")

    def _take(self, packet: Any) -> None:
        if isinstance(packet, Connack):
            self._take_connack(packet)
            return
        if not self.is_connected:
            self._wrong("I14", f"{type(packet).__name__} before CONNACK")
            return
        match packet:
            case Publish():
                self._take_publish(packet)
            case Puback():
                self._take_puback(packet)
            case Pubrec():
                self._take_pubrec(packet)
            case Pubrel():
                self.received.discard(packet.packet_id)
                receipt = self.unacknowledged.pop(packet.packet_id, None)
                if receipt is not None and receipt.acknowledged_at is None:
                    self._wrong("I6", f"PUBREL {packet.packet_id} before PUBREC")
                self._answer(Pubcomp(packet.packet_id), None)
            case Pubcomp():
                self._take_pubcomp(packet)
            case Suback():
                self._take_suback(packet)
            case Unsuback():
                if self.requests.pop(packet.packet_id, None) is None:
                    self._wrong("I6", f"UNSUBACK {packet.packet_id} for nothing")
            case Disconnect():
                assert self.connection is not None
                if packet.reason_code == ReasonCode.SESSION_TAKEN_OVER:
                    self.connection.end, self.connection.ended_at = "taken over", self.loop.time()
                elif packet.reason_code in (0x81, 0x82, 0x93, 0x80, 0x83):
                    self._wrong("I6", f"the server finds fault with us: {packet.reason_code!r} {_reason(packet)}")
            case Pingresp():
                pass
            case _:
                self._wrong("I6", f"unexpected {packet!r}")

    def _take_connack(self, packet: Connack) -> None:
        connection, now = self.connection, self.loop.time()
        assert connection is not None
        if self.is_connected:
            self._wrong("I6", "a second CONNACK")
        if packet.reason_code >= 0x80:
            connection.refused_code = packet.reason_code
            self.disconnect("closed")
            return
        self.is_connected = True
        connection.accepted_at, connection.session_present = now, packet.session_present
        self._server_keep_alive_s = packet.properties.server_keep_alive_s or 0
        was_known = self.has_session is True
        self.has_session = True
        if not packet.session_present:
            self.session += 1
            self.received.clear()
            self._spans_end(now)
            self._start_over()
        else:
            if not was_known or self.has_wiping_strays:  # it may be another one than we think
                self._spans_end(now)
                self._give_up_flows()
                self.session += 1
            for packet_id, flow in self.flows.items():
                flow.since = now
                if flow.is_released:
                    self._send(Pubrel(packet_id))
                else:
                    self._send_publish(flow.message, packet_id, dup=True)
        unsure = sorted(self.unsure - self.wanted.keys())
        self.unsure.clear()
        if unsure and packet.session_present:
            self._unsubscribe(unsure)
        self._subscribe()

    def _give_up_flows(self) -> None:
        """A QoS 2 message could come twice if it were sent as a new one."""
        for packet_id, flow in list(self.flows.items()):
            if flow.message.qos == 2:
                flow.message.is_abandoned = True
                del self.flows[packet_id]

    def _start_over(self) -> None:
        """What was in flight with QoS 1 is sent as new."""
        self._give_up_flows()
        left, self.flows = list(self.flows.values()), {}
        for flow in left:
            packet_id = self._next_packet_id()
            self.flows[packet_id] = Flow(flow.message, self.loop.time())
            self._send_publish(flow.message, packet_id, dup=False)

    def _take_publish(self, packet: Publish) -> None:
        name = self._topic_name(packet)
        assert self.connection is not None
        receipt = Receipt(
            self.loop.time(),
            self.plan.name,
            self.connection.number,
            self.session,
            packet.payload,
            name.decode(),
            packet.qos,
            packet.retain,
            packet.dup,
            is_new=True,
        )
        packet_id = packet.packet_id
        if packet.qos:
            if packet_id in self.unacknowledged:
                self._wrong("I6", f"packet id {packet_id} is used again: {packet.payload!r}")
            self.unacknowledged[packet_id] = receipt
            if len(self.unacknowledged) > self.connection.receive_maximum:
                self._wrong("I6", f"{len(self.unacknowledged)} in flight, {self.connection.receive_maximum} allowed")
        if packet.qos == 2:
            receipt.is_new = packet_id not in self.received
            if not receipt.is_new and not packet.dup:
                self._wrong("I6", f"QoS 2 packet id {packet_id} is not released and used for {packet.payload!r}")
            self.received.add(packet_id)
        self.history.receipts.append(receipt)
        if packet.qos == 1:
            self._answer(Puback(packet_id), receipt)
        elif packet.qos == 2:
            self._answer(Pubrec(packet_id), receipt)

    def _topic_name(self, packet: Publish) -> bytes:
        alias = packet.properties.topic_alias if packet.properties is not None else None
        if alias is None:
            return packet.topic_name_utf8
        if not 1 <= alias <= self.plan.alias_maximum:
            self._wrong("I6", f"topic alias {alias}")
        if packet.topic_name_utf8:
            self._aliases[alias] = packet.topic_name_utf8
        return self._aliases.get(alias, b"unknown alias")

    def _answer(self, packet: Puback | Pubrec | Pubcomp, receipt: Receipt | None) -> None:
        """Acknowledge after a while, in the order in which things came [MQTT5-4.6.0-2]."""
        delay_s = self.rng.uniform(0, self.plan.slow_s) if self.plan.slow_s else 0.0
        self._ack_at = max(self._ack_at, self.loop.time() + delay_s)
        if self._ack_at <= self.loop.time():
            self._acknowledge(packet, receipt, self.link)
        else:
            self.loop.call_at(self._ack_at, self._acknowledge, packet, receipt, self.link)

    def _acknowledge(self, packet: Puback | Pubrec | Pubcomp, receipt: Receipt | None, link: Link | None) -> None:
        if link is None or self.link is not link:
            return
        if receipt is not None:
            receipt.acknowledged_at = self.loop.time()
        if isinstance(packet, Puback):
            self.unacknowledged.pop(packet.packet_id, None)
        self._send(packet)

    def _take_puback(self, packet: Puback) -> None:
        flow = self.flows.pop(packet.packet_id, None)
        if flow is None or flow.message.qos != 1:
            self._wrong("I6", f"PUBACK {packet.packet_id} for nothing")
            return
        if self._answers_expected[:1] != [packet.packet_id]:
            self._wrong("I6", f"PUBACK {packet.packet_id} is out of order, {self._answers_expected} are expected")
        if packet.packet_id in self._answers_expected:
            self._answers_expected.remove(packet.packet_id)
        if packet.reason_code >= 0x80:
            flow.message.is_refused = True
        else:
            flow.message.answered_at = flow.message.completed_at = self.loop.time()

    def _take_pubrec(self, packet: Pubrec) -> None:
        flow = self.flows.get(packet.packet_id)
        if flow is None or flow.message.qos != 2:
            self._wrong("I6", f"PUBREC {packet.packet_id} for nothing")
            return
        if packet.reason_code >= 0x80:
            flow.message.is_refused = True
            del self.flows[packet.packet_id]
            return
        flow.is_released, flow.since = True, self.loop.time()
        if flow.message.answered_at is None:
            flow.message.answered_at = self.loop.time()
        self._send(Pubrel(packet.packet_id))

    def _take_pubcomp(self, packet: Pubcomp) -> None:
        flow = self.flows.get(packet.packet_id)
        if flow is None or not flow.is_released:
            self._wrong("I6", f"PUBCOMP {packet.packet_id} for nothing")
            return
        del self.flows[packet.packet_id]
        flow.message.completed_at = self.loop.time()

    def _take_suback(self, packet: Suback) -> None:
        request = self.requests.pop(packet.packet_id, None)
        if request is None or request.is_unsubscribe or len(packet.reason_codes) != len(request.filters):
            self._wrong("I6", f"SUBACK {packet.packet_id} for nothing")
            return
        for topic_filter, code in zip(request.filters, packet.reason_codes, strict=True):
            wanted = self.wanted.get(topic_filter)
            if wanted is None:
                continue
            if code >= 0x80:
                if topic_filter.startswith("secret/"):
                    del self.wanted[topic_filter]
                else:
                    wanted.is_asked = False  # once more, in a while
                continue
            wanted.span = SubscriptionSpan(
                self.plan.name,
                self.session,
                topic_filter,
                int(code),
                request.at,
                self.loop.time(),
                no_local=wanted.no_local,
            )
            self.history.spans.append(wanted.span)

    def _wrong(self, invariant: str, text: str) -> None:
        number = self.connection.number if self.connection is not None else 0
        self.history.violation(invariant, f"t={self.loop.time():.3f} client {self.plan.name}/{number}: {text}")


def _reason(packet: Disconnect) -> str:
    return (packet.properties.reason_string if packet.properties is not None else None) or ""


def _will_packet(will: Message, plan: Plan) -> Will:
    properties = Properties()
    if plan.version == 5 and plan.will_delay_s:
        properties = Properties(will_delay_interval_s=plan.will_delay_s)
    return Will(will.topic_name, will.payload, will.qos, will.retain, properties)
