"""`EdgeProtocolHandler`: one connection, amqtt's `BrokerProtocolHandler` with our reader, send path and QoS flows.

What stays of amqtt: the life cycle (`attach`, `start`, `stop`, `detach`), the `handle_*` extension points, `session`,
`_send_packet`, `wait_disconnect` and the plug-in manager. What is ours: bytes come through asyncio's Protocol callbacks
into a session engine, never through a StreamReader; there is no task, future or awaitable per message.

The pump is one order everywhere: feed the engine -> `_perform` its effects -> `flush` its bytes -> `_arm` its timer.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from amqtt.mqtt.packet import MQTTPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.session import Session

from bridge.delivery import Delivery
from bridge.log import LogError, Position, RecordRefused
from bridge.session_store import SessionLost
from bridge.subscriptions import Grant
from edge.access.enhanced import EnhancedExchange, Step
from edge.access.limits import Ticket
from edge.access.principal import Principal
from edge.handler import subscribing
from edge.handler.amqtt_session import EdgeSession
from edge.handler.connecting import connect_client
from edge.handler.durable import DurableSession
from edge.handler.ending import abandon_session, end_session
from edge.handler.enhanced import step_authentication
from edge.handler.exclusive import Exclusives
from edge.handler.ledger import ledger_of
from edge.handler.opening import Opened, resend_by_position, resend_retained, resume_session
from edge.handler.proxy_protocol import peer_of
from edge.handler.replaying import Places, Replays
from edge.handler.retaining import Retaining, append_retained
from edge.handler.rights import take_rights_away
from edge.handler.services import EdgeServices
from edge.handler.sharing import SharedMember
from edge.handler.targets import resolve_target
from edge.session.authenticating import StepAuthentication
from edge.session.effects import (
    AppendExactlyOnce,
    AppendRecord,
    AppendRetained,
    AppendRun,
    Authenticate,
    CloseConnection,
    CloseSubscriptions,
    Effect,
    FallBehind,
    ForgetReceived,
    OpenSubscriptions,
    PauseReading,
    PublishTarget,
    PublishWill,
    ResumeReading,
    StoreDone,
    StoreOutgoing,
    StoreReleased,
)
from edge.session.engine import SessionEngine
from edge.session.late import deliver_late
from edge.session.transitions import ConnectionState
from edge.wire import Packet, ReasonCode, encode
from schemas.sessions import StoredSubscription
from schemas.topics import SHARE_PREFIX

log = logging.getLogger(__name__)

WRITE_BUFFER_HIGH_BYTES = 256 * 1024  # what the kernel did not take yet; beyond it deliveries wait in the engine
CLOSE_TIMEOUT_S = 5.0  # a peer that takes no bytes is cut off
LINGER_S = 0.5  # how long a client that broke the protocol may go on sending before its bytes reset the connection


class EdgeProtocolHandler(asyncio.Protocol, BrokerProtocolHandler):  # type: ignore[misc]  # amqtt's classes are untyped to mypy
    """Joins one transport, one engine and the shared services; a sink of the publisher, a subscriber of the deliverer.

    amqtt's own constructor is not called: its two queues, four dicts and lock per connection (3 KiB) serve the flows
    that are ours here.
    """

    def __init__(
        self, services: EdgeServices, peer: str = "", ticket: Ticket | None = None, *, is_websocket: bool = False
    ) -> None:
        """`peer` and `ticket`: who comes, and its place, where the listener knows them before the bytes come."""
        self.services = services
        self._loop = services.loop
        self.plugins_manager = services.plugins
        self.logger = log
        self.session: Session | None = None
        self.reader = None
        self.writer = None
        self._disconnect_waiter: asyncio.Future[Any] | None = None
        self.transport: asyncio.Transport | None = None
        self.peer = peer
        self.is_websocket = is_websocket
        self.principal: Principal | None = None
        self.connected_at_ms = 0
        self._ticket = ticket
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._is_dirty = False
        self._room: asyncio.Event | None = None  # set whenever there may be room for what is sent again
        self._closing = False
        self.exchange: EnhancedExchange | None = None  # of an authentication under way
        self.retaining: Retaining | None = None  # what new subscriptions are still due
        self.behind: set[Position] | None = None  # partitions that are read again for this client
        self.durable: DurableSession | None = None  # from CONNACK to the end of the connection
        self.sharing: SharedMember | None = None  # the client's part in shared subscriptions
        self.exclusive: Exclusives | None = None  # its exclusive subscriptions
        self.replaying: Replays | None = None  # its replay subscriptions
        self.will_is_due = False
        self.resends_retained = False  # retained messages of an earlier connection wait for the window
        self.engine = SessionEngine(
            services.limits,
            services.capabilities,
            self.resolve,
            _new_client_id,
            self._loop.time(),
            services.wall_clock_offset_ms,
        )
        self.engine.select = services.select
        if services.ledger_below:
            self.engine.ledger = ledger_of(self)

    # asyncio.Protocol ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A network connection was accepted: is there a place for one more stranger?"""
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        self.peer = self.peer or peer_of(transport.get_extra_info("peername"))
        if self._ticket is None:
            admission = self.services.access.gate.admit(self.peer, self._loop.time())
            if not isinstance(admission, Ticket):
                self.services.counters.refused_total += 1
                transport.abort()
                return
            self._ticket = admission
        self.services.connections.add(self)
        self.services.counters.connections_total += 1
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Bytes arrived: all their packets are worked off, then answered with one write."""
        engine = self.engine
        self.services.counters.bytes_received += len(data)
        engine.receive_data(data, self._loop.time())
        if self.resends_retained:
            resend_retained(self)
        if self._room is not None:
            self._room.set()
        if self.sharing is not None:
            self.sharing.wake()
        if self.replaying is not None:
            self.replaying.wake()
        if engine.effects:
            self._perform()
        if engine.out:
            self.flush()
        if self.behind is not None:
            self._read_on()
        if self.retaining is not None:
            self.retaining.wake()

    def eof_received(self) -> bool:
        """The client closed its side; what is left to do follows in `connection_lost`."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The network connection is gone: the session ends, with its will if no DISCONNECT came."""
        self.engine.connection_lost()
        self._perform()
        if self._room is not None:
            self._room.set()
        self._release()

    def pause_writing(self) -> None:
        """The transport's buffer is full: deliveries wait."""
        self.engine.writing_paused()

    def resume_writing(self) -> None:
        """The transport takes bytes again."""
        self.engine.writing_resumed(self._loop.time())
        self._pump()
        if self._room is not None:
            self._room.set()
        if self.behind is not None:
            self._read_on()
        if self.retaining is not None:
            self.retaining.wake()
        if self.sharing is not None:
            self.sharing.wake()
        if self.replaying is not None:
            self.replaying.wake()

    # LateSubscriber (bridge.deliverer, bridge.catch_up) and AppendSink (bridge.publisher) ----------------------------

    def deliver(self, delivery: Delivery, grant: Grant) -> None:
        """A record matched; the bytes leave with the batch (`EdgeServices.flush`)."""
        engine = self.engine
        outgoing = engine.outgoing
        if (
            self.behind is None
            and self.retaining is None
            and outgoing is not None
            and outgoing.take_live(delivery, grant)
        ):
            if not self._is_dirty:
                self._is_dirty = True
                self.services.dirty.append(self)
            return
        if self.behind is not None and (delivery.kafka_topic, delivery.partition) in self.behind:
            self._pass_over(delivery, grant)
            return
        if self.retaining is not None and not self.retaining.before_live(delivery):
            if delivery.qos and grant.qos:
                self.fall_behind((delivery.kafka_topic, delivery.partition), delivery.offset)
            self._pass_over(delivery, grant)
            return
        engine.deliver(delivery, grant, self._loop.time() if delivery.expiry_s is not None else 0.0)
        if engine.effects:
            self._perform()
        if not self._is_dirty and engine.out:
            self._is_dirty = True
            self.services.dirty.append(self)

    def deliver_run(self, deliveries: list[Delivery], grant: Grant) -> None:
        """Records that follow one another matched."""
        outgoing = self.engine.outgoing
        taken = 0
        if self.behind is None and self.retaining is None and outgoing is not None:
            taken = outgoing.take_live_run(deliveries, grant)
            if taken and not self._is_dirty:
                self._is_dirty = True
                self.services.dirty.append(self)
        for delivery in deliveries[taken:]:
            self.deliver(delivery, grant)

    def deliver_late(self, delivery: Delivery, grant: Grant) -> bool:
        """A record that was missed and read again; False: no room for it yet."""
        engine = self.engine
        if not self.is_open or (self.retaining is not None and not self.retaining.before_live(delivery)):
            return False
        taken = deliver_late(engine, delivery, grant, self._loop.time())
        self.settle()
        return taken

    def settle(self) -> None:
        """The engine may want something done, or have something to send: that leaves with the batch."""
        if self.engine.effects:
            self._perform()
        if self.sharing is not None:
            self.sharing.settle()
        if self.replaying is not None:
            self.replaying.settle()
        if not self._is_dirty and self.engine.out:
            self._is_dirty = True
            self.services.dirty.append(self)

    def caught_up(self, position: Position) -> None:
        """Nothing of the partition is missed any more: it comes live."""
        if self.engine.left_in_flight(position):
            self._spawn(self._resend, position)
        else:
            self.engine.partition_resumed(position)
        if self.behind is not None:
            self.behind.discard(position)
            if not self.behind:
                self.behind = None
                if self.retaining is not None:
                    self.retaining.wake()

    def records_lost(self, position: Position, first: int, following: int) -> None:
        """Records were deleted from Kafka before this client had room for them: never a silent gap."""
        kafka_topic, partition = position
        self.services.event(
            "dropped",
            self.client_id,
            reason="deleted from Kafka before the client had room for them",
            kafka_topic=kafka_topic,
            partition=partition,
            first_offset=first,
            following_offset=following,
        )

    def record_appended(self, token: int, offset: int) -> None:
        """Kafka has acknowledged one of our records."""
        engine = self.engine
        if engine.paused or engine.incoming is None:
            engine.record_appended(token)
            if engine.effects:
                self._perform()
        else:  # the same, short: one per message
            engine.incoming.acknowledge(token)
        if not self._is_dirty and engine.out:
            self._is_dirty = True
            self.services.dirty.append(self)

    def records_appended(self, tokens: list[int], base_offset: int) -> None:
        """Kafka has acknowledged a run of our records."""
        engine = self.engine
        engine.records_appended(tokens)
        if engine.effects:
            self._perform()
        if not self._is_dirty and engine.out:
            self._is_dirty = True
            self.services.dirty.append(self)

    def record_refused(self, token: int, error: RecordRefused) -> None:
        """Kafka has refused one of our records for good."""
        self.engine.record_refused(token, ReasonCode.QUOTA_EXCEEDED, error.reason)
        self._pump()

    def record_unknown(self, token: int) -> None:
        """Nobody knows: close without an answer, so that the client sends it again (design section 5)."""
        self.disconnect(ReasonCode.SERVER_BUSY, "Kafka gave no answer in time; send what is unacknowledged again")

    # For the node and the connection helpers -------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The Client Identifier, assigned or sent; empty before CONNECT."""
        return self.engine.client_id

    @property
    def is_open(self) -> bool:
        """Whether the network connection is still there to be answered."""
        return self.transport is not None and self.engine.state is not ConnectionState.CLOSED

    def accepted(self, principal: Principal, opened: Opened) -> None:
        """CONNECT is accepted: attach the amqtt session, register the client, answer CONNACK, go on where the session
        stood."""
        services = self.services
        if self.is_open:
            resume_session(self, opened)
        if not self.engine.was_accepted:
            abandon_session(self, opened)
            self._pump()
            return
        self.durable = opened.durable
        assert self.engine.connect is not None
        self.engine.connect.password = None  # kept no longer than it is needed
        self.connected_at_ms = services.wall_ms()
        if self._ticket is not None:
            self._ticket.release(authenticated=True)
        services.clients[principal.client_id] = self
        if services.plugins is not None:
            self.attach(EdgeSession(self.engine.connect, principal), None, None)
        self._end_at(principal.expires_at)
        services.event("connected", principal.client_id, peer=self.peer, user=principal.name)
        self._pump()
        self._arm()  # a keep alive may be due before the CONNECT would have been

    def authentication_stepped(self, step: Step) -> bool:
        """The mechanism's answer goes to the client; True: it is known, and its CONNACK comes next."""
        is_known = self.engine.authentication_stepped(step)
        self._pump()
        return is_known

    def reauthenticated(self, principal: Principal) -> None:
        """The client has shown again who it is; its rights are resolved anew."""
        self.principal = principal
        self._end_at(principal.expires_at)
        self.rights_changed()

    def _end_at(self, expires_at: float | None) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if expires_at is not None:
            left_s = max(0.0, expires_at - self.services.wall_ms() / 1000)
            self._expiry = self._loop.call_later(
                left_s, self.disconnect, ReasonCode.NOT_AUTHORIZED, "the token expired"
            )

    def refuse(self, reason_code: ReasonCode, reason: str, server_reference: str | None = None) -> None:
        """CONNECT is refused."""
        self.services.counters.refused_total += 1
        self.engine.refuse(reason_code, reason, server_reference)
        self._pump()

    def disconnect(self, reason_code: ReasonCode, reason: str, server_reference: str | None = None) -> None:
        """End this connection from our side: DISCONNECT for 5.0, then close."""
        self.engine.disconnect(reason_code, reason, server_reference)
        self._pump()

    def taken_over(self) -> None:
        """Another connection of the client id, here or on another edge, has the session [MQTT5-3.1.4-3]
        [MQTT311-3.1.4-2]."""
        services = self.services
        services.counters.taken_over_total += 1
        services.event("taken_over", self.client_id, peer=self.peer)
        self.disconnect(ReasonCode.SESSION_TAKEN_OVER, "another connection uses this client id")

    def stop_reading(self) -> None:
        """Take no more from the client: the node is about to stop."""
        self.engine.backbone_full(True)
        self._pump()

    def backbone_has_room(self) -> None:
        """The publisher takes records again."""
        self.engine.backbone_full(False)
        self._pump()

    def rights_changed(self) -> None:
        """The ACL, or who the client is, has changed."""
        take_rights_away(self)

    def flush(self) -> None:
        """Write what the engine has to send: one write per connection and turn."""
        self._is_dirty = False
        out = self.engine.out
        if not out or self.transport is None or self._closing:  # nothing follows a DISCONNECT [MQTT5-4.13.1-1]
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self.services.counters.bytes_sent += len(data)
        self.transport.write(data)

    # amqtt's life cycle and extension points -------------------------------------------------------------------------

    def _init_session(self, session: Session) -> None:
        """amqtt's, without a LoggerAdapter per connection."""
        self.session = session
        self.keepalive_timeout = session.keep_alive or None

    async def start(self) -> None:
        """Nothing to start: bytes come by callback. Kept for amqtt's life cycle."""
        self._disconnect_waiter = self._loop.create_future()

    async def stop(self) -> None:
        """Close the connection as amqtt's handler does: without a DISCONNECT packet."""
        self._close()

    async def handle_connect(self, connect: Any) -> None:
        """Extension point: a CONNECT that is well-formed; accepts or refuses it."""
        await connect_client(self, connect, self.engine.client_id)

    async def handle_auth(self, step: Any) -> None:
        """Extension point: AUTH."""
        await step_authentication(self, step.data, step.begins)

    async def handle_subscribe(self, subscribe: Any) -> None:
        """Extension point: SUBSCRIBE; answers SUBACK when the positions are known."""
        codes, reason = await subscribing.open_subscriptions(self, subscribe)
        if not self.is_open:
            subscribing.remove_all(self)
            return
        if not await self._stored():
            return
        self.engine.subscribed(subscribe.packet_id, codes, self._loop.time(), reason)
        self._pump()
        if self.retaining is not None:
            self.retaining.open()
        if self.replaying is not None:
            self.replaying.start()

    async def handle_unsubscribe(self, unsubscribe: Any) -> None:
        """Extension point: UNSUBSCRIBE; answers UNSUBACK."""
        codes = await subscribing.close_subscriptions(self, unsubscribe)
        if not await self._stored():
            return
        given_up = zip(unsubscribe.topic_filters, codes, strict=True)
        self.services.forget_shared(
            each for each, code in given_up if each.startswith(SHARE_PREFIX) and code is ReasonCode.SUCCESS
        )
        self.engine.unsubscribed(unsubscribe.packet_id, codes, self._loop.time())
        self._pump()

    async def room(self) -> None:
        """Until the client has taken or acknowledged something, or is gone."""
        if self._room is None:
            self._room = asyncio.Event()
        self._room.clear()
        await self._room.wait()

    async def _resend(self, position: Position) -> None:
        """What no filter of the session matches any more, or is not there any more."""
        await resend_by_position(self, position)
        if self.replaying is not None:  # what was given up has left room, and no answer follows
            self.replaying.wake()
            self.flush()

    def share_again(self, subscriptions: tuple[StoredSubscription, ...]) -> None:
        """A resumed session takes part in its shared subscriptions again."""
        self.sharing = SharedMember(self, subscriptions)
        self._spawn(self.sharing.resume, subscriptions)

    def replay_again(self, subscriptions: tuple[StoredSubscription, ...], places: Mapping[str, Places]) -> None:
        """A resumed session goes on with its replays."""
        self.replaying = Replays(self, places)
        self.replaying.filters |= {each.topic_filter: each for each in subscriptions}
        self._spawn(self.replaying.resume, subscriptions)

    async def _stored(self) -> bool:
        """A stored session's subscriptions are committed; False: they are not, and the connection has ended."""
        if self.durable is None or not self.durable.is_stored or not self.is_open:
            return self.is_open
        try:
            await self.durable.store()
        except SessionLost:
            self.disconnect(ReasonCode.SESSION_TAKEN_OVER, "another connection uses this client id")
        except LogError as error:
            log.warning("client %s: its subscriptions could not be stored: %s", self.client_id, error)
            self.disconnect(ReasonCode.SERVER_BUSY, "Kafka gave no answer in time; subscribe again")
        return self.is_open

    async def handle_connection_closed(self) -> None:
        """Extension point: the connection is gone; called once, after the session's end."""
        await self.handle_disconnect(None)

    async def _send_packet(self, packet: Packet | MQTTPacket[Any, Any, Any]) -> None:
        """Send a packet of ours or of amqtt's (3.1.1); the way of extensions, not of messages."""
        data = packet.to_bytes() if isinstance(packet, MQTTPacket) else encode(packet, self.engine.protocol_version)
        self.engine.out.append(data)
        self.flush()

    # The pump --------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        if self.engine.effects:
            self._perform()
        self.flush()

    def _perform(self) -> None:
        """Perform the engine's effects; appends first and fast, for they are nearly all there are."""
        engine = self.engine
        publisher, counters = self.services.publisher, self.services.counters
        rearm = False
        while engine.effects:
            effects, engine.effects = engine.effects, []
            for effect in effects:
                if type(effect) is AppendRun:
                    packet_ids, target, values, headers = effect
                    counters.messages_received += len(values)
                    counters.messages_qos1_received += len(packet_ids)
                    publisher.append_run(target.destination, values, headers, self if packet_ids else None, packet_ids)
                elif type(effect) is AppendRecord:
                    packet_id, target, value, headers = effect
                    counters.messages_received += 1
                    counters.messages_qos1_received += packet_id > 0
                    publisher.append(target.destination, value, headers, self if packet_id else None, packet_id)
                else:
                    rearm = True
                    self._perform_other(effect)
        if self.services.is_full and self.is_open:
            self.services.waiting_for_room.add(self)
            engine.backbone_full(True)
            for effect in engine.effects:
                self._perform_other(effect)
            engine.effects = []
        if rearm:
            self._arm()

    def _perform_other(self, effect: Effect) -> None:
        if isinstance(effect, AppendRetained):
            append_retained(self, effect)
        elif isinstance(effect, Authenticate):
            self._spawn(self.handle_connect, effect.connect)
        elif isinstance(effect, StepAuthentication):
            self._spawn(self.handle_auth, effect)
        elif isinstance(effect, OpenSubscriptions):
            self._spawn(self.handle_subscribe, effect.packet)
        elif isinstance(effect, CloseSubscriptions):
            self._spawn(self.handle_unsubscribe, effect.packet)
        elif isinstance(effect, AppendExactlyOnce | ForgetReceived | StoreOutgoing | StoreReleased | StoreDone):
            if self.durable is not None:
                self.durable.perform(effect)
        elif isinstance(effect, PublishWill):
            self.will_is_due = True  # what becomes of it is decided with the session
        elif isinstance(effect, PauseReading):
            if self.transport is not None:
                self.transport.pause_reading()
        elif isinstance(effect, ResumeReading):
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
        elif isinstance(effect, FallBehind):
            self.services.catch_up.passed_over(effect.position)
            self.fall_behind(effect.position, effect.offset)
        elif isinstance(effect, CloseConnection):
            self.flush()
            self._close()
            end_session(self)

    def fall_behind(self, position: Position, offset: int) -> None:
        """The buffer is full: what follows on this partition is read from the log when there is room again."""
        if self.behind is None:
            self.behind = set()
        self.behind.add(position)
        self.services.catch_up.fall_behind(self, position, offset)
        log.debug("client %s is behind on %s[%d] from offset %d on", self.client_id, *position, offset)

    def _pass_over(self, delivery: Delivery, grant: Grant) -> None:
        self.services.catch_up.passed_over((delivery.kafka_topic, delivery.partition))
        self.engine.pass_over(delivery, grant)

    def _read_on(self) -> None:
        outgoing = self.engine.outgoing
        if outgoing is not None and outgoing.is_low:
            self.services.catch_up.wake(self)

    def _spawn(self, function: Callable[[Any], Awaitable[None]], argument: Any) -> None:
        """Run one extension point as a task: for the few packets that have to wait for something."""
        task = self._loop.create_task(self._guarded(function, argument))
        self.services.steps.add(task)
        task.add_done_callback(self.services.steps.discard)

    async def _guarded(self, function: Callable[[Any], Awaitable[None]], argument: Any) -> None:
        try:
            await function(argument)
        except Exception:
            log.exception("client %s: %s failed", self.client_id, function.__name__)
            self.disconnect(ReasonCode.UNSPECIFIED_ERROR, "the edge failed; please report it")
            self._close()

    def resolve(self, raw: bytes) -> PublishTarget | ReasonCode:
        """Where a message of this client goes, or the reason code of a definite refusal."""
        assert self.principal is not None
        return resolve_target(self.services, self.principal, raw)

    # Timers and the end ----------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._closing:  # the timer is the one that cuts off
            return
        due = self.engine.get_timer()
        timer = self._timer
        if timer is not None and (due is None or due < timer.when()):
            timer.cancel()
            self._timer = timer = None
        if due is not None and timer is None:
            self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.engine.handle_timer(self._loop.time())
        self._pump()
        self._arm()

    def _close(self) -> None:
        transport = self.transport
        if transport is None or self._closing:
            return
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self.engine.is_violated and transport.can_write_eof():
            # Bytes of the client that nobody has read would reset the connection, and the DISCONNECT that says why
            # might be lost with it: our side ends now, and what still comes is thrown away for a moment
            transport.resume_reading()
            try:
                transport.write_eof()
            except OSError:  # the client is gone already
                self._cut_off(transport)
                return
            self._timer = self._loop.call_later(LINGER_S, self._cut_off, transport)
            return
        self._cut_off(transport)

    def _cut_off(self, transport: asyncio.Transport) -> None:
        transport.close()
        # transport.close() waits for the peer to take what was written; a peer that does not is cut off
        self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, transport.abort)

    def _release(self) -> None:
        services = self.services
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expiry is not None:
            self._expiry.cancel()
        if self._ticket is not None:
            self._ticket.release(authenticated=False)
        services.connections.discard(self)
        if not services.connections:
            services.emptied.set()
        services.waiting_for_room.discard(self)
        self.transport = None
        end_session(self)
        self.engine.let_go()
        if self._disconnect_waiter is not None and not self._disconnect_waiter.done():
            self._disconnect_waiter.set_result(None)


def _new_client_id() -> str:
    return "headwater-" + uuid.uuid4().hex  # [MQTT5-3.2.2-16]: used by no other session
