"""From an authenticated CONNECT to a session: one owner in the cluster, and what the session has left (design 6).

1. `Ownership.claim`: the claim's offset is the owner epoch; an older connection, here or elsewhere, ends (0x8E)
2. `Ownership.released`: the older owner has stored the session, or is given up after 1.5 s
3. `SessionStore.load`: fences an owner that was given up, then reads up to the end
4. Clean Start 1, expired or truncated: what is stored goes; else it is what the session goes on with
5. the new state is committed under the new epoch; the node reads what the subscriptions need
6. `EdgeProtocolHandler.accepted`: subscriptions, CONNACK, what was in flight, what was missed, in one step
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bridge.log import LogError, PendingRecord, Position
from bridge.retained_view import retained_delivery
from bridge.session_store import SessionLost, session_position
from bridge.subscriptions import Subscription
from bridge.wills import store_with_will
from edge.access.principal import Principal
from edge.handler import exclusive, subscribing
from edge.handler.durable import DurableSession
from edge.handler.retaining import NOT_AVAILABLE, CaughtUp
from edge.handler.rights import may_receive
from edge.handler.selecting import selector_for, stored_selector
from edge.session.publish_headers import record_headers
from edge.session.resuming import InFlight, Resuming
from edge.wire import Publish, ReasonCode, Subscribe, Will
from schemas.replay_filter import REPLAY_PREFIX
from schemas.sessions import SessionProgress, StoredSession, StoredSubscription, StoredWill, deletion_records
from schemas.topics import BESIDE_PREFIXES, EXCLUSIVE_PREFIX, SHARE_PREFIX

if TYPE_CHECKING:
    from bridge.ownership import Claimed
    from edge.handler.protocol import EdgeProtocolHandler

log = logging.getLogger(__name__)

RELEASE_TIMEOUT_S = 1.5  # an older owner that has not released by then is fenced (design section 6)
POSITIONS_TIMEOUT_S = 10.0  # Kafka has not told the end offsets by then: the client may try again

Refused = tuple[ReasonCode, str]
_SUPERSEDED: Refused = (ReasonCode.SERVER_BUSY, "another connection uses this client id")
_UNAVAILABLE: Refused = (ReasonCode.SERVER_UNAVAILABLE, "the session could not be opened; try again")


@dataclass(slots=True)
class Opened:
    """A session that this connection owns; `filters` are being read by the node for it already."""

    durable: DurableSession
    session_present: bool = False
    progress: SessionProgress = field(default_factory=SessionProgress)
    subscriptions: tuple[StoredSubscription, ...] = ()
    ordinary: tuple[StoredSubscription, ...] = ()  # those that are neither shared nor replays
    granted: frozenset[str] = frozenset()  # filters of those that the server has just given to the session
    moment: CaughtUp = NOT_AVAILABLE  # from which on these get messages
    expiry_s: int = 0  # of the session as it was found, in case the client does not stay for CONNACK

    def resuming(self) -> Resuming | None:
        """What was left in flight; None: there is nothing to go on with."""
        if not self.session_present:
            return None
        return Resuming.of(
            self.progress.positions,
            (
                InFlight(
                    packet_id,
                    entry.qos,
                    (entry.kafka_topic, entry.partition),
                    entry.offset,
                    entry.state == "released",
                    entry.topic_name,
                    entry.shared,
                )
                for packet_id, entry in self.progress.outgoing.items()
            ),
        )


async def open_session(handler: EdgeProtocolHandler, principal: Principal) -> Opened | Refused:
    """Make this connection the owner of the client's session, or say why not. The claim is given back then."""
    services, engine = handler.services, handler.engine
    connect, negotiated = engine.connect, engine.negotiated
    assert connect is not None
    assert negotiated is not None
    client_id = principal.client_id
    stores = negotiated.session_expiry_s > 0 or connect.will is not None or not connect.clean_start
    asked_ms = services.wall_ms()  # what is due after this is not: the client is back
    try:
        claimed = await services.ownership.claim(client_id, principal.name, stores)
    except LogError as error:
        log.warning("client %s: no claim: %s", client_id, error)
        return _UNAVAILABLE
    if claimed.is_void:
        return ReasonCode.NOT_AUTHORIZED, "this client id belongs to another user"
    durable = DurableSession(handler, client_id, claimed.epoch, is_stored=stores)
    is_kept = True
    try:
        opened = await _opened(handler, claimed, durable, asked_ms)
        is_kept = client_id in services.sessions.view
    except SessionLost:
        opened = _SUPERSEDED
    except LogError as error:
        log.warning("client %s: the session could not be opened: %s", client_id, error)
        opened = _UNAVAILABLE
    except BaseException:
        services.ownership.release(client_id, claimed.epoch)
        raise
    if not isinstance(opened, Opened):
        if handler.exclusive is not None:
            handler.exclusive.gone(for_ever=False)
        # a claim without a session would keep the client id from everybody else for ever
        give_back = services.ownership.release if is_kept else services.ownership.forget
        give_back(client_id, claimed.epoch)
    return opened


async def _opened(
    handler: EdgeProtocolHandler, claimed: Claimed, durable: DurableSession, asked_ms: int
) -> Opened | Refused:
    services, connect = handler.services, handler.engine.connect
    assert connect is not None
    opened = Opened(durable)
    will: StoredWill | None = None
    if claimed.had_session or claimed.predecessors:
        stored = await _loaded(handler, durable)
        if not services.ownership.is_owner(durable.client_id, durable.epoch):
            return _SUPERSEDED
        if stored is not None:
            is_over = connect.clean_start or await _is_over(handler, stored, asked_ms)
            will = _will_due(stored, is_over, asked_ms)
            if not is_over:
                opened.session_present = True
                opened.progress = stored.progress
                opened.expiry_s = stored.state.expiry_s
                opened.subscriptions = await exclusive.take_again(handler, _still_allowed(handler, stored))
                opened.ordinary = tuple(
                    replace(each, topic_filter=each.topic_filter.removeprefix(EXCLUSIVE_PREFIX))
                    for each in opened.subscriptions
                    if not each.topic_filter.startswith(BESIDE_PREFIXES)
                )
            else:
                exclusive.forget_all(handler, stored)
                services.forget_shared(each.topic_filter for each in stored.state.subscriptions if _is_shared(each))
    durable.entries = {packet_id: entry for packet_id, entry in opened.progress.outgoing.items() if entry.qos == 2}
    _grant(handler, opened)
    if not await _read_filters(handler, opened.ordinary):
        return _UNAVAILABLE
    if opened.granted:
        await _begin_granted(handler, opened)
    if not handler.is_open or not services.ownership.is_owner(durable.client_id, durable.epoch):
        close_filters(handler, opened.ordinary)
        return _SUPERSEDED
    try:
        await _store(handler, opened, will)
    except BaseException:
        close_filters(handler, opened.ordinary)
        raise
    return opened


def _grant(handler: EdgeProtocolHandler, opened: Opened) -> None:
    """Auto-subscriptions that the session does not have yet: from here on they are its own."""
    assert handler.principal is not None
    held = {each.topic_filter for each in opened.ordinary}
    of_client = handler.services.rules.auto_subscriptions.of(handler.principal)
    granted = tuple(_with_selector(handler, each) for each in of_client if each.topic_filter not in held)
    opened.granted = frozenset(each.topic_filter for each in granted)
    opened.subscriptions += granted
    opened.ordinary += granted


def _with_selector(handler: EdgeProtocolHandler, each: StoredSubscription) -> StoredSubscription:
    selector = selector_for(handler, each.topic_filter, None)
    return replace(each, selector=selector.expression) if selector is not None else each


async def _begin_granted(handler: EdgeProtocolHandler, opened: Opened) -> None:
    """Where they begin, for the session's record and for its retained messages."""
    services = handler.services
    if services.pacer is not None:
        granted = [each for each in opened.ordinary if each.topic_filter in opened.granted]
        requests = tuple(subscribing.request_of(each) for each in granted)
        opened.moment = await services.pacer.caught_up(handler, Subscribe(0, requests))
    for topic_filter in opened.granted:
        for position, start in services.deliverer.start_positions(topic_filter).items():
            opened.progress.positions.setdefault(position, start)


async def _loaded(handler: EdgeProtocolHandler, durable: DurableSession) -> StoredSession | None:
    services = handler.services
    client_id, epoch = durable.client_id, durable.epoch
    left = await services.ownership.released(client_id, epoch, RELEASE_TIMEOUT_S)
    silent = {claim.claim.node_id for claim in left} - {services.node_id}
    if silent:
        log.debug("client %s: %s did not release the session and is fenced", client_id, ", ".join(sorted(silent)))
    return await services.sessions.load(client_id, silent)


def _will_due(stored: StoredSession, is_over: bool, asked_ms: int) -> StoredWill | None:
    """The will that an earlier connection has left, if it is to be published now; it is dropped if the client came back
    before its Will Delay Interval had passed [MQTT5-3.1.2-8] [MQTT5-3.1.3-9]."""
    state = stored.state
    if state.will is None:
        return None
    is_due = not state.will.delay_s if state.connected else (state.will_due_ms or 0) <= asked_ms
    return state.will if is_due or is_over else None


async def _is_over(handler: EdgeProtocolHandler, stored: StoredSession, asked_ms: int) -> bool:
    """Whether the session had expired when the client came, or Kafka has deleted what it was due: it begins anew."""
    services = handler.services
    expires_ms = stored.state.expires_ms
    if not stored.state.expiry_s:  # it ended with its connection, whatever became of that: its edge may have died
        return True
    if expires_ms is not None and expires_ms <= asked_ms:
        return True
    needs = Resuming.of(stored.progress.positions, ()).needs()
    starts = await services.start_offsets(frozenset(needs)) if needs else {}
    lost = {position: start for position, start in starts.items() if start > needs[position]}
    for (kafka_topic, partition), start in lost.items():
        services.event(
            "dropped",
            stored.state.client_id,
            reason="the session ends: Kafka has deleted messages before they could be delivered",
            kafka_topic=kafka_topic,
            partition=partition,
            following_offset=start,
        )
    return bool(lost)


def _still_allowed(handler: EdgeProtocolHandler, stored: StoredSession) -> tuple[StoredSubscription, ...]:
    return tuple(each for each in stored.state.subscriptions if subscribing.may_keep(handler, each.topic_filter))


def _is_shared(subscription: StoredSubscription) -> bool:
    return subscription.topic_filter.startswith(SHARE_PREFIX)


async def _read_filters(handler: EdgeProtocolHandler, subscriptions: tuple[StoredSubscription, ...]) -> bool:
    """The node reads what the filters can match; False: Kafka did not tell where in time, and nothing is read."""
    deliverer = handler.services.deliverer
    waiters = [waiter for each in subscriptions if (waiter := deliverer.add_filter(each.topic_filter)) is not None]
    if not waiters:
        return True
    done, pending = await asyncio.wait(waiters, timeout=POSITIONS_TIMEOUT_S)
    if not pending and all(not waiter.cancelled() and waiter.exception() is None for waiter in done):
        return True
    close_filters(handler, subscriptions)
    return False


def close_filters(handler: EdgeProtocolHandler, subscriptions: tuple[StoredSubscription, ...]) -> None:
    """Undo `_read_filters`."""
    for each in subscriptions:
        handler.services.deliverer.remove_filter(each.topic_filter)


async def _store(handler: EdgeProtocolHandler, opened: Opened, former_will: StoredWill | None) -> None:
    services, durable = handler.services, opened.durable
    position = session_position(durable.client_id)
    stale = services.sessions.stale_keys(durable.client_id, durable.epoch)
    records: list[tuple[Position, PendingRecord]] = []
    if durable.is_stored:
        durable.will = stored_will(handler)
        records = durable.first_records(opened.subscriptions, opened.progress)
    records += [(position, record) for record in deletion_records(stale)]
    if records:
        services.counters.wills_published += former_will is not None
        await store_with_will(
            former_will,
            records,
            lambda records: services.sessions.write_now(durable.client_id, durable.epoch, records),
            services.routes,
            services.publisher,
            services.retained,
        )


def stored_will(handler: EdgeProtocolHandler) -> StoredWill | None:
    """The will of this connection, ready to be published by whichever edge is there then [MQTT5-3.1.2-7]."""
    will = handler.engine.will
    if will is None:
        return None
    headers = will_headers(handler, will)
    if headers is None:
        return None
    delay_s = will.properties.will_delay_interval_s or 0
    topic_name = headers[0][1].decode()  # as it was rewritten
    return StoredWill(topic_name, will.payload, will.qos, will.retain, delay_s, tuple(headers))


def will_headers(handler: EdgeProtocolHandler, will: Will) -> list[tuple[str, bytes]] | None:
    """The record headers of a will; None: it cannot be published."""
    raw = will.topic_name.encode()
    target = handler.resolve(raw)
    if isinstance(target, ReasonCode):
        return None
    packet = Publish(raw, will.payload, will.qos, will.retain, False, 0, will.properties)
    headers = record_headers(packet, target, handler.services.limits)
    return None if isinstance(headers, ReasonCode) else headers


def resume_session(handler: EdgeProtocolHandler, opened: Opened) -> None:
    """Subscriptions, CONNACK, and the way to what was missed, in one step: no record comes in between."""
    services, engine = handler.services, handler.engine
    resuming = opened.resuming() or (Resuming.of({}, ()) if opened.granted else None)
    needs = resuming.needs() if resuming is not None else {}
    needed: set[Position] = set()
    for each in opened.ordinary:
        if each.topic_filter in opened.granted:
            selector = selector_for(handler, each.topic_filter, None)
            subscribing.put(handler, subscribing.request_of(each), None, opened.moment, selector)
            continue
        partitions = services.deliverer.partitions_of(each.topic_filter)
        needed |= partitions
        for position, begin in services.routes.begins(each.topic_filter).items():
            needs.setdefault(position, begin)  # partitions that the session has not heard of: a resize since
        services.table.add(_subscription(handler, each, {position: needs.get(position, 0) for position in partitions}))
    for position in needed:
        live = services.deliverer.position_of(position)
        if live is not None and needs.get(position, 0) < live:
            handler.fall_behind(position, needs.get(position, 0))
    if handler.behind is not None:
        services.catch_up.keep_order(handler)
    received = frozenset(opened.progress.incoming)
    engine.accept(opened.session_present, services.loop.time(), resuming, received)
    if resuming is None or engine.outgoing is None:
        return
    resend_retained(handler)
    beside = {entry.position for entry in resuming.beside if entry.is_shared}
    for position in {entry.position for entry in resuming.left() if not entry.is_beside} - needed | beside:
        handler.caught_up(position)  # unsubscribed since, or shared
    services.catch_up.wake(handler)
    if handler.retaining is not None:
        handler.retaining.open()
    shared = tuple(each for each in opened.subscriptions if _is_shared(each))
    if shared:
        handler.share_again(shared)
    replays = tuple(each for each in opened.subscriptions if each.topic_filter.startswith(REPLAY_PREFIX))
    if replays:
        handler.replay_again(replays, opened.progress.replays)


async def resend_by_position(handler: EdgeProtocolHandler, position: Position) -> None:
    """Read what was in flight on a partition by its offsets and send it again, as far as it is there
    [MQTT5-3.10.4-3] [MQTT311-3.10.4-3]."""
    services, engine = handler.services, handler.engine
    entries = {entry.offset: entry for entry in engine.left_in_flight(position)}
    if engine.outgoing is not None:
        engine.outgoing.reserve({entry.packet_id for entry in entries.values()})
    for delivery in await services.point_reader.read({position: entries.keys()}):
        outgoing, entry = engine.outgoing, entries[delivery.offset]
        while handler.is_open and outgoing is not None and not outgoing.may_resend(entry.packet_id):
            await handler.room()
        if not handler.is_open or outgoing is None or outgoing.resuming is None:
            return
        now_ms = services.wall_ms()
        may_go = delivery.remaining_expiry_s(now_ms) != 0 and may_receive(handler, delivery.topic_name_utf8)
        if may_go and entry.packet_id in outgoing.resuming.packet_ids:
            outgoing.resend(delivery, entry, False, (), now_ms)
            handler.settle()
            handler.flush()
    if handler.is_open:
        engine.partition_resumed(position)
        handler.settle()
        handler.flush()


def _subscription(
    handler: EdgeProtocolHandler, stored: StoredSubscription, not_before: dict[Position, int]
) -> Subscription:
    return Subscription(
        subscriber=handler,
        topic_filter=stored.topic_filter,
        qos=stored.qos,
        no_local=stored.no_local,
        retain_as_published=stored.retain_as_published,
        subscription_id=stored.subscription_id,
        not_before=not_before,
        selector=stored_selector(handler.services, stored),
    )


def resend_retained(handler: EdgeProtocolHandler) -> None:
    """Retained messages that were in flight, as far as the window goes; one that has been replaced since is given up:
    the newer one comes live."""
    services, outgoing = handler.services, handler.engine.outgoing
    handler.resends_retained = False
    resuming = outgoing.resuming if outgoing is not None else None
    if outgoing is None or resuming is None:
        return
    for entry in resuming.beside:
        if entry.packet_id not in resuming.packet_ids or entry.retained_name is None:
            continue
        if not outgoing.has_room:
            handler.resends_retained = True  # and on, when the client has acknowledged something
            return
        name = entry.retained_name.encode()
        message = services.retained.view.get(name, services.wall_ms()) if services.retained is not None else None
        place = (*entry.position, entry.offset)
        is_there = message is not None and (message.kafka_topic, message.partition, message.offset) == place
        if message is not None and is_there and may_receive(handler, name):
            outgoing.resend(retained_delivery(message), entry, True, (), services.wall_ms())
        else:
            outgoing.give_up([entry])
