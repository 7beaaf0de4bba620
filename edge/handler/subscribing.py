"""SUBSCRIBE and UNSUBSCRIBE: rights, the subscription table, and the partitions that the node then consumes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bridge.log import Position
from bridge.subscriptions import Subscription
from edge.access.acl import underlying_filter
from edge.handler.exclusive import name_of, strip_exclusive, take
from edge.handler.replaying import Replays
from edge.handler.retaining import NOT_AVAILABLE, CaughtUp
from edge.handler.selecting import asked_selector, differs_from_group, reason_for, selector_for
from edge.handler.sharing import SharedMember
from edge.rules.selectors import Selector, SelectorError
from edge.wire import ReasonCode, Subscribe, SubscriptionRequest, Unsubscribe
from schemas.errors import TopicError
from schemas.replay_filter import REPLAY_PREFIX
from schemas.sessions import StoredSubscription
from schemas.topics import BESIDE_PREFIXES, EXCLUSIVE_PREFIX, SHARE_PREFIX, check_topic_filter

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler

OTHER_SELECTOR = "other members of the shared subscription have another selector; all need the same"
POSITIONS_TIMEOUT_S = 10.0  # Kafka has not told the end offsets by then: the client hears of it and may try again


async def open_subscriptions(handler: EdgeProtocolHandler, packet: Subscribe) -> tuple[tuple[ReasonCode, ...], str]:
    """Grant or refuse each filter, in order [MQTT5-3.9.3-1] [MQTT311-3.9.3-1]; done when the positions are known. The
    codes, and a Reason String where they do not say enough.

    `Rules.rewrite_subscribe` comes before all: from there on the packet has the filters that count.

    0. `Publisher.hold`: what clients of this edge publish from here on will be behind the ends that are asked for
    1. `RetainedPacer.caught_up`: what was acknowledged until now is known, retained and where the partitions end
    2. `_refusal`: the filter's form, the client's right to every name it can match, the number of subscriptions
    3. `SubscriptionTable.add`: matches from the next record on
    4. `RetainedPacer.begin`: the subscription is due what is retained; it flows after SUBACK
    5. `Deliverer.add_filter`: the node's position on the filter's partitions becomes known
    """
    assert handler.principal is not None
    handler.services.rules.rewrite_subscribe(handler.principal, packet)
    try:
        asked = asked_selector(handler, packet)
    except SelectorError as error:
        return (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,) * len(packet.subscriptions), reason_for(handler, str(error))
    names = [request.topic_filter for request in packet.subscriptions]
    exclusive = strip_exclusive(packet)
    release = handler.services.publisher.hold(_partitions(handler, packet))
    try:
        codes = await _opened(handler, packet, exclusive, asked)
    finally:
        release()
    _record(handler, "subscribed", names)
    is_odd = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR in codes
    return codes, reason_for(handler, OTHER_SELECTOR) if is_odd else ""


def _partitions(handler: EdgeProtocolHandler, packet: Subscribe) -> set[Position]:
    """Where the messages lie that the SUBSCRIBE is about."""
    routes, found = handler.services.routes, set[Position]()
    for request in packet.subscriptions[: handler.services.limits.filters_per_subscribe_max]:
        if not request.topic_filter.startswith(BESIDE_PREFIXES) and _is_filter(handler, request.topic_filter):
            found |= routes.partitions(request.topic_filter)
    return found


def _is_filter(handler: EdgeProtocolHandler, topic_filter: str) -> bool:
    limits = handler.services.limits
    try:
        check_topic_filter(topic_filter, levels_max=limits.topic_levels_max, bytes_max=limits.topic_name_bytes_max)
    except TopicError:
        return False
    return True


async def _opened(
    handler: EdgeProtocolHandler, packet: Subscribe, exclusive: frozenset[int], asked: Selector | None
) -> tuple[ReasonCode, ...]:
    codes: list[ReasonCode] = []
    waiters: list[asyncio.Future[None]] = []
    fresh: list[str] = []
    pacer = handler.services.pacer
    moment = await pacer.caught_up(handler, packet) if pacer is not None else NOT_AVAILABLE
    identifiers = packet.properties.subscription_identifiers if packet.properties is not None else ()
    identifier = identifiers[0] if identifiers else None
    filters_max = handler.services.limits.filters_per_subscribe_max
    for number, request in enumerate(packet.subscriptions):
        refusal = _refusal(handler, request) if number < filters_max else ReasonCode.QUOTA_EXCEEDED
        if refusal is None and number in exclusive:
            refusal = await take(handler, request.topic_filter)
        if refusal is not None:
            codes.append(refusal)
            continue
        selector = selector_for(handler, underlying_filter(request.topic_filter) or request.topic_filter, asked)
        if request.topic_filter.startswith(SHARE_PREFIX):
            if handler.sharing is None:
                handler.sharing = SharedMember(handler)
            if differs_from_group(handler, request.topic_filter, selector):
                codes.append(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
                continue
            codes.append(await handler.sharing.subscribe(request, identifier, selector))
            continue
        if request.topic_filter.startswith(REPLAY_PREFIX):
            codes.append(await _replay(handler, request, identifier, selector))
            continue
        if number not in exclusive and handler.exclusive is not None:
            handler.exclusive.drop(request.topic_filter)  # where it was: the same filter, and others may have it again
        waiter = _add(handler, request, identifier, fresh, moment, selector)
        if waiter is not None:
            waiters.append(waiter)
        codes.append(ReasonCode(min(request.qos, handler.services.capabilities.qos_max)))
    if waiters:
        codes = await _positions_known(handler, packet, codes, waiters, fresh)
    return tuple(codes)


async def close_subscriptions(handler: EdgeProtocolHandler, packet: Unsubscribe) -> tuple[ReasonCode, ...]:
    """Delete by literal comparison [MQTT5-3.10.4-1] [MQTT311-3.10.4-1]; the last one gives the partitions back."""
    assert handler.principal is not None
    handler.services.rules.rewrite_unsubscribe(handler.principal, packet)
    codes = tuple(
        ReasonCode.SUCCESS if remove_subscription(handler, topic_filter) else ReasonCode.NO_SUBSCRIPTION_EXISTED
        for topic_filter in packet.topic_filters
    )
    if handler.exclusive is not None:
        await handler.exclusive.settled()
    _record(handler, "unsubscribed", list(packet.topic_filters))
    return codes


def filters_of(handler: EdgeProtocolHandler) -> tuple[str, ...]:
    """What the client is subscribed to, shared subscriptions included."""
    shared = handler.sharing.filters if handler.sharing is not None else ()
    replays = handler.replaying.filters if handler.replaying is not None else ()
    return (*(name_of(handler, each) for each in handler.services.table.filters_of(handler)), *shared, *replays)


def remove_subscription(handler: EdgeProtocolHandler, topic_filter: str) -> bool:
    """Remove one subscription of this client; False if there was none."""
    if topic_filter.startswith(SHARE_PREFIX):
        return handler.sharing is not None and handler.sharing.unsubscribe(topic_filter)
    if topic_filter.startswith(REPLAY_PREFIX):
        return handler.replaying is not None and handler.replaying.unsubscribe(topic_filter)
    exclusive = handler.exclusive.filters if handler.exclusive is not None else {}
    if topic_filter.startswith(EXCLUSIVE_PREFIX):
        topic_filter = topic_filter.removeprefix(EXCLUSIVE_PREFIX)
        if handler.exclusive is None or not handler.exclusive.drop(topic_filter):
            return False
    elif topic_filter in exclusive:
        return False  # the client knows it by its other name
    return _remove(handler, topic_filter)


def _remove(handler: EdgeProtocolHandler, topic_filter: str) -> bool:
    if handler.services.table.remove(topic_filter, handler) is None:
        return False
    handler.services.deliverer.remove_filter(topic_filter)
    if handler.behind is not None:
        handler.services.catch_up.filters_removed(handler)
    return True


def request_of(stored: StoredSubscription) -> SubscriptionRequest:
    """The SUBSCRIBE that would make this subscription."""
    return SubscriptionRequest(
        stored.topic_filter, stored.qos, stored.no_local, stored.retain_as_published, stored.retain_handling
    )


def may_keep(handler: EdgeProtocolHandler, topic_filter: str) -> bool:
    """Whether the client may have the subscription, by its rights or because the server has given it."""
    principal, services = handler.principal, handler.services
    assert principal is not None
    if services.access.authorizer.may_subscribe(principal, topic_filter.removeprefix(EXCLUSIVE_PREFIX)):
        return True
    return services.rules.auto_subscriptions.grants(principal, topic_filter)


def remove_all(handler: EdgeProtocolHandler) -> None:
    """The session ends: its subscriptions go, and what they are due; a SUBSCRIBE may be done only after that."""
    if handler.retaining is not None:
        handler.retaining.close()
    for topic_filter in list(handler.services.table.filters_of(handler)):
        _remove(handler, topic_filter)
    if handler.exclusive is not None:
        handler.exclusive.gone(for_ever=False)  # taken by a SUBSCRIBE that was done too late


def _refusal(handler: EdgeProtocolHandler, request: SubscriptionRequest) -> ReasonCode | None:
    services = handler.services
    limits = services.limits
    topic_filter = request.topic_filter
    if not _is_filter(handler, topic_filter):
        return ReasonCode.TOPIC_FILTER_INVALID  # [MQTT5-4.7.1-1] [MQTT311-4.7.1-2]
    if not services.capabilities.shared_subscription_available and topic_filter.startswith(SHARE_PREFIX):
        return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    held = filters_of(handler)
    if topic_filter not in held and len(held) >= limits.subscriptions_per_client_max:
        return ReasonCode.QUOTA_EXCEEDED
    assert handler.principal is not None
    if not services.access.authorizer.may_subscribe(handler.principal, topic_filter):
        services.event("denied", handler.client_id, action="subscribe", topic_filter=topic_filter)
        return ReasonCode.NOT_AUTHORIZED
    return None


async def _replay(
    handler: EdgeProtocolHandler, request: SubscriptionRequest, identifier: int | None, selector: Selector | None
) -> ReasonCode:
    if handler.replaying is None:
        handler.replaying = Replays(handler)
    return await handler.replaying.subscribe(
        StoredSubscription(
            request.topic_filter,
            min(request.qos, handler.services.capabilities.qos_max),
            request.no_local,
            request.retain_as_published,
            subscription_id=identifier,
            selector=selector.expression if selector is not None else "",
        )
    )


def _add(
    handler: EdgeProtocolHandler,
    request: SubscriptionRequest,
    identifier: int | None,
    fresh: list[str],
    moment: CaughtUp,
    selector: Selector | None,
) -> asyncio.Future[None] | None:
    """Put it into force, and have the node read what it can match."""
    topic_filter = request.topic_filter
    if put(handler, request, identifier, moment, selector):  # the flow goes on [MQTT5-3.8.4-3] [MQTT311-3.8.4-3]
        return None
    fresh.append(topic_filter)
    waiter = handler.services.deliverer.add_filter(topic_filter)
    if waiter is not None and handler.retaining is not None:
        waiter.add_done_callback(lambda _: _live_from_here(handler, topic_filter))
    return waiter


def put(
    handler: EdgeProtocolHandler,
    request: SubscriptionRequest,
    identifier: int | None,
    moment: CaughtUp,
    selector: Selector | None,
) -> bool:
    """The subscription matches from here on, and is due what is retained; whether it replaces one."""
    services = handler.services
    topic_filter = request.topic_filter
    held = services.table.subscription(topic_filter, handler)
    replaces = held is not None
    changes, ends = moment
    starts = services.deliverer.start_positions(topic_filter)
    starts = {position: max(start, ends.get(position, 0)) for position, start in starts.items()}
    subscription = Subscription(
        subscriber=handler,
        topic_filter=topic_filter,
        qos=min(request.qos, services.capabilities.qos_max),
        no_local=request.no_local,
        retain_as_published=request.retain_as_published,
        subscription_id=identifier,
        not_before=held.not_before if held is not None else starts,  # the log may be read again from before it
        selector=selector,
    )
    services.table.add(subscription)
    if services.pacer is not None:
        services.pacer.begin(handler, request, subscription, changes, starts, replaces=replaces)
    return replaces


def _live_from_here(handler: EdgeProtocolHandler, topic_filter: str) -> None:
    """The filter's partitions were new to this edge: their live flow begins where it reads now."""
    if handler.retaining is not None:
        handler.retaining.raise_live_from(topic_filter, handler.services.deliverer.positions())


async def _positions_known(
    handler: EdgeProtocolHandler,
    packet: Subscribe,
    codes: list[ReasonCode],
    waiters: list[asyncio.Future[None]],
    fresh: list[str],
) -> list[ReasonCode]:
    done, pending = await asyncio.wait(waiters, timeout=POSITIONS_TIMEOUT_S)
    if not pending and all(not waiter.cancelled() and waiter.exception() is None for waiter in done):
        return codes
    for topic_filter in fresh:
        remove_subscription(handler, name_of(handler, topic_filter))
    return [
        ReasonCode.UNSPECIFIED_ERROR if code < ReasonCode.UNSPECIFIED_ERROR and request.topic_filter in fresh else code
        for code, request in zip(codes, packet.subscriptions, strict=True)
    ]


def _record(handler: EdgeProtocolHandler, kind: str, topic_filters: list[str]) -> None:
    handler.services.event(kind, handler.client_id, topic_filters=topic_filters)
