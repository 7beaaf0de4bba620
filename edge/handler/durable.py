"""What of one connection's session is kept in `headwater.sessions`, from CONNACK to the end of the connection.

Two records say all of a session: its state (subscriptions, will) and its progress (positions, what is in flight). The
steps of QoS 2 flows are written one by one, before the other side hears of them. All writes of an edge go through one
transactional writer in the order of the calls (`bridge.session_store`), so a progress record may speak of steps that
are still waiting in front of it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bridge.delivery import Delivery, SharedDelivery
from bridge.history.feed import ReplayFeed
from bridge.log import PendingRecord, Position, RecordRefused
from bridge.retained_view import RetainedDelivery
from bridge.session_journal import OutgoingJournal
from bridge.session_store import session_position
from bridge.session_writer import HandoverRefused
from edge.handler.exclusive import name_of
from edge.session.effects import AppendExactlyOnce, ForgetReceived, StoreDone, StoreOutgoing, StoreReleased
from edge.session.transitions import ConnectionState
from edge.wire import ReasonCode
from schemas.sessions import (
    OutgoingEntry,
    SessionProgress,
    SessionRecord,
    SessionState,
    StoredSubscription,
    StoredWill,
    incoming_record,
    progress_record,
    state_record,
)

if TYPE_CHECKING:
    from bridge.shared.group import Handover
    from edge.handler.protocol import EdgeProtocolHandler

log = logging.getLogger(__name__)

SessionEffect = AppendExactlyOnce | ForgetReceived | StoreOutgoing | StoreReleased | StoreDone


class DurableSession:
    """Writes for one owner epoch; the `StoreSink` of these writes.

    `is_stored`: there are records of this session. Without, only QoS 2 messages pass through here.
    """

    __slots__ = (
        "_giving",
        "_handler",
        "_journal",
        "_last_progress",
        "_position",
        "client_id",
        "entries",
        "epoch",
        "is_stored",
        "will",
    )

    def __init__(self, handler: EdgeProtocolHandler, client_id: str, epoch: int, *, is_stored: bool) -> None:
        self._handler = handler
        self.client_id = client_id
        self.epoch = epoch
        self.is_stored = is_stored
        self.will: StoredWill | None = None
        self._journal = OutgoingJournal(client_id, epoch)
        self._giving: set[int] = set()  # under these shared subscriptions' messages are being handed over
        self.entries: dict[int, OutgoingEntry] = {}  # QoS 2 messages in flight to the client
        self._position = session_position(client_id)
        self._last_progress: SessionProgress | None = None

    # Effects of the engine -------------------------------------------------------------------------------------------

    def perform(self, effect: SessionEffect) -> None:
        """Store one step of a QoS 2 flow; the engine hears when it is committed."""
        client_id, epoch = self.client_id, self.epoch
        if isinstance(effect, AppendExactlyOnce):
            self._append(effect)
        elif isinstance(effect, ForgetReceived):
            self._write(incoming_record(client_id, epoch, effect.packet_id, is_done=True), effect)
        elif isinstance(effect, StoreOutgoing):
            self._begin(effect)
        else:
            self._advance(effect)

    def _append(self, effect: AppendExactlyOnce) -> None:
        destination = effect.target.destination.twin()
        records: list[tuple[Position, PendingRecord]] = [
            (destination.position, (destination.key, effect.value, effect.headers))
        ]
        if self._handler.engine.is_durable:
            records.append((self._position, incoming_record(self.client_id, self.epoch, effect.packet_id)))
        self._handler.services.counters.messages_received += 1
        self._handler.services.counters.messages_qos2_received += 1
        self._handler.services.sessions.write(self.client_id, self.epoch, records, self, effect)

    def _begin(self, effect: StoreOutgoing) -> None:
        """The record moves the session's position past the message. If something of the partition was sent with QoS 1
        (the subscription's) and is not acknowledged, the whole progress is written instead: it knows of both, and
        of the places of replays."""
        delivery, outgoing = effect.delivery, self._handler.engine.outgoing
        assert outgoing is not None
        if (handover := _handover_of(effect)) is not None:
            self._hand_over(effect, handover)
            return
        entry = self.entries[effect.packet_id] = outgoing_entry(delivery, 2)
        place = (delivery.kafka_topic, delivery.partition)
        beside = isinstance(delivery, SharedDelivery | RetainedDelivery)
        replayed = isinstance(delivery, SharedDelivery) and isinstance(delivery.group, ReplayFeed)
        unsure = not beside and any((each.kafka_topic, each.partition) == place for each in outgoing.inflight.values())
        if replayed or unsure:
            self._write(self._progress_record(self.progress()), effect)
        else:
            self._write(self._journal.record(effect.packet_id, entry), effect)

    def _hand_over(self, effect: StoreOutgoing, handover: Handover) -> None:
        """A shared subscription's message: the group gives it up and the session gets it in one transaction, so that
        it is one session's whatever fails. Also where nothing is stored of the session."""
        if not handover.begin():
            self._handler.engine.outgoing_refused(effect.packet_id, self._handler.services.loop.time())
            return
        self._giving.add(effect.packet_id)
        records: list[tuple[Position, PendingRecord]] = []
        if self._handler.engine.is_durable:
            record = self._journal.record(effect.packet_id, outgoing_entry(effect.delivery, 2))
            records.append((self._position, record))
        self._handler.services.sessions.write(self.client_id, self.epoch, records, self, effect, handover)

    def _handed_over(self, effect: StoreOutgoing, handover: Handover) -> None:
        engine = self._handler.engine
        self._giving.discard(effect.packet_id)
        if engine.is_durable:
            self.entries[effect.packet_id] = outgoing_entry(effect.delivery, 2)
        if engine.state is ConnectionState.CONNECTED or (engine.is_durable and engine.session_expiry_s):
            handover.committed()
        else:
            handover.failed()  # the session ended before anything of it was sent

    def _not_handed_over(self, token: Any) -> bool:
        """Whether this was a hand-over: then the message is still the group's."""
        handover = _handover_of(token)
        if handover is None:
            return False
        self._giving.discard(token.packet_id)
        self._handler.engine.outgoing_refused(token.packet_id, self._handler.services.loop.time())
        handover.failed()
        return True

    def _advance(self, effect: StoreReleased | StoreDone) -> None:
        entry = self.entries.pop(effect.packet_id, None)
        if entry is None:
            return  # a QoS 1 message that could not be sent again: the next progress record is without it
        is_done = isinstance(effect, StoreDone)
        entry = replace(entry, state="done" if is_done else "released")
        if not is_done:
            self.entries[effect.packet_id] = entry
        self._write(self._journal.record(effect.packet_id, entry), None if is_done else effect)

    def _write(self, record: SessionRecord, token: SessionEffect | None) -> None:
        sink = self if token is not None else None
        records: list[tuple[Position, PendingRecord]] = [(self._position, record)]
        self._handler.services.sessions.write(self.client_id, self.epoch, records, sink, token)

    # StoreSink -------------------------------------------------------------------------------------------------------

    def stored(self, token: Any, offsets: list[int]) -> None:
        """A write is committed."""
        handler = self._handler
        engine = handler.engine
        if isinstance(token, AppendExactlyOnce):
            if token.retain:
                self._retain(token, offsets[0])
                return
            engine.exactly_once_appended(token)
        elif isinstance(token, ForgetReceived):
            engine.received_forgotten(token.packet_id)
        elif isinstance(token, StoreOutgoing):
            if (handover := _handover_of(token)) is not None:
                self._handed_over(token, handover)
            engine.outgoing_stored(token.packet_id, handler.services.loop.time())
        elif isinstance(token, StoreReleased):
            engine.release_stored(token.packet_id)
        handler.settle()

    def store_refused(self, token: Any, error: RecordRefused) -> None:
        """Kafka refused the write for good, or the group does not give the message away."""
        if self._not_handed_over(token) and isinstance(error, HandoverRefused):
            self._handler.settle()
        elif isinstance(token, AppendExactlyOnce):
            self._handler.engine.exactly_once_refused(token, ReasonCode.QUOTA_EXCEEDED, error.reason)
            self._handler.settle()
        else:
            self._handler.disconnect(ReasonCode.QUOTA_EXCEEDED, f"the session cannot be stored: {error.reason}")

    def store_lost(self, token: Any) -> None:
        """Another owner has the session now; this connection is on its way out."""
        self._not_handed_over(token)
        self._handler.disconnect(ReasonCode.SESSION_TAKEN_OVER, "another connection uses this client id")

    def store_unknown(self, token: Any) -> None:
        """Nobody knows: close without an answer, so that the client asks again (design section 5)."""
        if (handover := _handover_of(token)) is not None:
            handover.doubtful()
        self._handler.disconnect(
            ReasonCode.SERVER_BUSY, "Kafka gave no answer in time; send what is unacknowledged again"
        )

    def _retain(self, effect: AppendExactlyOnce, offset: int) -> None:
        """A QoS 2 message with RETAIN 1 is answered when it is retained, too [MQTT5-3.3.1-5] [MQTT311-3.3.1-5]."""
        retained = self._handler.services.retained
        assert retained is not None, "the engine asks for it only where retained messages are available"
        if retained.has_room_for(effect.headers[0][1], effect.value):
            destination = self._handler.services.routes.destination(effect.headers[0][1].decode()).twin()
            retained.retain(destination, offset, effect.value, effect.headers, _RetainSink(self), effect)
        else:
            log.error("client %s: %r is delivered, but not retained: no room", self.client_id, effect.headers[0][1])
            self.retain_done(effect)

    def retain_done(self, effect: AppendExactlyOnce) -> None:
        """Message and retained record are acknowledged."""
        self._handler.engine.exactly_once_appended(effect)
        self._handler.settle()

    # Whole records ---------------------------------------------------------------------------------------------------

    async def store(self) -> None:
        """State and progress, committed when this returns: before CONNACK, SUBACK, UNSUBACK.

        Raises SessionLost, RecordRefused, LogUnavailable.
        """
        await self._handler.services.sessions.write_now(self.client_id, self.epoch, self.records(connected=True))

    def checkpoint(self) -> None:
        """Store the progress if there is any, without waiting."""
        progress = self.progress()
        if self.is_stored and self._handler.engine.is_durable and progress != self._last_progress:
            self._write(self._progress_record(progress), None)

    def first_records(
        self, subscriptions: tuple[StoredSubscription, ...], progress: SessionProgress
    ) -> list[tuple[Position, PendingRecord]]:
        """What a new owner writes before CONNACK: what it goes on with."""
        assert self._handler.engine.negotiated is not None
        expiry_s = self._handler.engine.negotiated.session_expiry_s
        return self._records(self._state(subscriptions, expiry_s, connected=True, will_due_ms=None), progress)

    def unchanged_records(
        self, subscriptions: tuple[StoredSubscription, ...], progress: SessionProgress, expiry_s: int
    ) -> list[tuple[Position, PendingRecord]]:
        """A session that was opened for a client that did not stay for CONNACK: as it was found."""
        self.will = None  # never for a CONNECT that was not accepted (invariant I10)
        return self._records(self._state(subscriptions, expiry_s, connected=False, will_due_ms=None), progress)

    def records(self, *, connected: bool, will_due_ms: int | None = None) -> list[tuple[Position, PendingRecord]]:
        """The session as of now."""
        progress = self.progress()
        table = self._handler.services.table
        filters = table.filters_of(self._handler)
        subscriptions = tuple(
            StoredSubscription(
                name_of(self._handler, each.topic_filter),
                each.qos,
                each.no_local,
                each.retain_as_published,
                subscription_id=each.subscription_id,
                selector=each.selector.expression if each.selector is not None else "",
            )
            for topic_filter in filters
            if (each := table.subscription(topic_filter, self._handler)) is not None
        )
        if self._handler.sharing is not None:
            subscriptions += tuple(self._handler.sharing.filters.values())
        if self._handler.replaying is not None:
            subscriptions += tuple(self._handler.replaying.filters.values())
        expiry_s = self._handler.engine.session_expiry_s
        state = self._state(subscriptions, expiry_s, connected=connected, will_due_ms=will_due_ms)
        return self._records(state, progress)

    def _records(self, state: SessionState, progress: SessionProgress) -> list[tuple[Position, PendingRecord]]:
        return [
            (self._position, state_record(self.epoch, state)),
            (self._position, self._progress_record(progress)),
        ]

    def _progress_record(self, progress: SessionProgress) -> SessionRecord:
        self._last_progress = progress
        self._journal.clear()
        return progress_record(self.client_id, self.epoch, progress)

    def _state(
        self,
        subscriptions: tuple[StoredSubscription, ...],
        expiry_s: int,
        *,
        connected: bool,
        will_due_ms: int | None,
    ) -> SessionState:
        handler, services = self._handler, self._handler.services
        assert handler.principal is not None
        return SessionState(
            client_id=self.client_id,
            principal=handler.principal.name,
            protocol_version=handler.engine.protocol_version,
            expiry_s=expiry_s,
            subscriptions=subscriptions,
            will=self.will,
            connected=connected,
            node_id=services.node_id,
            incarnation=services.ownership.incarnation,
            disconnected_ms=None if connected else services.wall_ms(),
            will_due_ms=will_due_ms,
        )

    def progress(self) -> SessionProgress:
        """Where the client is in each partition that its filters need, and what it has not acknowledged."""
        engine = self._handler.engine
        outgoing = dict(self.entries)
        if engine.outgoing is not None:
            for packet_id, delivery in engine.outgoing.inflight.items():
                if not isinstance(delivery, SharedDelivery):  # another member gets it
                    outgoing[packet_id] = outgoing_entry(delivery, 1)
            if engine.outgoing.resuming is not None:
                for entry in engine.outgoing.resuming.left():
                    outgoing[entry.packet_id] = OutgoingEntry(
                        *entry.position, entry.offset, entry.qos, "sent", entry.retained_name, entry.is_shared
                    )
        progress = SessionProgress(self._positions(), outgoing)
        if engine.flows is not None:
            progress.incoming.update(engine.flows.received())
            progress.unsettled.update(engine.flows.unsettled())
        progress.unsettled_outgoing.update(self._giving)
        if self._handler.replaying is not None:
            progress.replays = self._handler.replaying.places(self.entries.keys())
        return progress

    def _positions(self) -> dict[Position, int]:
        handler = self._handler
        services, outgoing = handler.services, handler.engine.outgoing
        deliverer, catch_up = services.deliverer, services.catch_up
        waiting = outgoing.first_waiting() if outgoing is not None else {}
        resuming = outgoing.resuming if outgoing is not None else None
        positions: dict[Position, int] = {}
        for position, begin in self._begins().items():
            at = catch_up.need_of(handler, position)
            if at is None and not begin and deliverer.position_of(position) is None:
                continue  # new by a resize: the edge does not know yet where it is read from
            if at is None:
                at = deliverer.position_of(position) or 0
                if deliverer.is_in_hand(position):
                    at -= 1  # it may not have come to this client yet
            at = max(min(at, waiting.get(position, at)), begin)
            if outgoing is not None:
                at = max(at, outgoing.sent_to.get(position, 0))
            if resuming is not None:
                at = max(at, resuming.starts.get(position, 0))
            positions[position] = at
        return positions

    def _begins(self) -> dict[Position, int]:
        """Where the session's subscriptions begin, per partition: the lowest of those that need it."""
        handler = self._handler
        table = handler.services.table
        begins: dict[Position, int] = {}
        for topic_filter in table.filters_of(handler):
            subscription = table.subscription(topic_filter, handler)
            not_before = (subscription.not_before if subscription is not None else None) or {}
            for position in handler.services.deliverer.partitions_of(topic_filter):
                begin = not_before.get(position, 0)
                begins[position] = min(begins.get(position, begin), begin)
        return begins


class _RetainSink:
    """Hears when the retained record of a QoS 2 message is in the log."""

    def __init__(self, durable: DurableSession) -> None:
        self._durable = durable

    def record_appended(self, token: AppendExactlyOnce, offset: int) -> None:
        self._durable.retain_done(token)

    def record_refused(self, token: AppendExactlyOnce, error: RecordRefused) -> None:
        log.error("client %s: a message is delivered, but not retained: %s", self._durable.client_id, error.reason)
        self._durable.retain_done(token)

    def record_unknown(self, token: AppendExactlyOnce) -> None:
        self._durable.store_unknown(token)


def _handover_of(token: Any) -> Handover | None:
    """By which a shared subscription gives this message to the session."""
    delivery = token.delivery if isinstance(token, StoreOutgoing) else None
    return delivery.handover if isinstance(delivery, SharedDelivery) else None


def outgoing_entry(delivery: Delivery, qos: int) -> OutgoingEntry:
    """How a message in flight is found again."""
    topic_name = delivery.topic_name if isinstance(delivery, RetainedDelivery) else None
    is_shared = isinstance(delivery, SharedDelivery)
    return OutgoingEntry(delivery.kafka_topic, delivery.partition, delivery.offset, qos, "sent", topic_name, is_shared)
