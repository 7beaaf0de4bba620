"""Retained messages for new subscriptions, a slice at a time, so that 100,000 matches stall nobody.

One `RetainedPacer` per edge goes round the clients that are due some, one slice each, a few slices per turn of the
loop. A client gets as much as its window and its socket take at once; then it waits until it has acknowledged or read.
What is kept per client is a Topic Name to go on at, never a list of messages.

Which copy a client gets of a Topic Name that is written meanwhile is decided by position. A subscription begins at an
offset in each partition (`Subscription.not_before`): what is before it comes as the retained message, what follows it
comes live, in that order:

* a retained message at or after the beginning is left out here: it comes live;
* when a live message arrives first, the older retained one is sent right before it (`before_live`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bridge.delivery import Delivery
from bridge.log import LogError, Position
from bridge.retained import RetainedMessages
from bridge.retained_names import NamePattern
from bridge.retained_view import retained_delivery
from bridge.subscriptions import Grant, Subscription
from edge.session.effects import AppendRetained
from edge.wire import ReasonCode, Subscribe, SubscriptionRequest
from schemas.errors import TopicError
from schemas.retained import RetainedMessage
from schemas.topics import check_topic_filter

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler
    from edge.handler.services import EdgeServices

log = logging.getLogger(__name__)

SLICE_MESSAGES_MAX = 32  # sent to one client in one go: 0.2 ms
SLICE_VISITS_MAX = 256  # Topic Names looked at in one go: 0.3 ms at worst
SLICE_BYTES_MAX = 64 * 1024  # payloads before they are written and the socket is asked again
TURN_SLICES_MAX = 8  # per turn of the loop, over all clients: 2 ms, then everybody else has theirs
LIVE_NAMES_MAX = 65_536  # written while they were waited for, per subscription: 8 MiB; beyond it order is not watched
CAUGHT_UP_TIMEOUT_S = 2.0  # Kafka does not answer: the subscription goes on with what this edge knows

CaughtUp = tuple[int, Mapping[Position, int]]
"""A moment: the view's change number, and where partitions ended."""

NOT_AVAILABLE: CaughtUp = (0, {})


@dataclass(slots=True, eq=False)
class _Request:
    """What one subscription is still due."""

    topic_filter: str
    pattern: NamePattern
    grant: Grant
    changes: int  # `RetainedView.changes` before it began
    live_from: dict[Position, int]  # from here on the client gets everything live
    behind: dict[Position, int] | None  # a replaced subscription: the live flow has to come this far first
    key: bytes  # the search goes on here: every name before it is done
    wait_until: float  # but no longer than this, on the loop's clock
    is_open: bool = False  # SUBACK was sent
    live_names: set[bytes] = field(default_factory=set)  # at or after `key`, and live already: done

    def is_live(self, message: RetainedMessage) -> bool:
        """Whether the client gets the message live, now or soon. What was there before certainly does not, whatever
        its offset says: the Kafka topic may have been made anew since."""
        if message.change <= self.changes:
            return False
        start = self.live_from.get((message.kafka_topic, message.partition))
        return start is not None and message.offset >= start


class Retaining:
    """What one client is still due; `EdgeProtocolHandler.retaining` while there is anything."""

    __slots__ = ("_handler", "_pacer", "_requests", "is_scheduled")

    def __init__(self, handler: EdgeProtocolHandler, pacer: RetainedPacer) -> None:
        self._handler = handler
        self._pacer = pacer
        self._requests: dict[str, _Request] = {}
        self.is_scheduled = False

    def add(self, request: _Request) -> None:
        """A subscription was made or replaced; a replaced one starts from the beginning."""
        self._requests.pop(request.topic_filter, None)
        self._requests[request.topic_filter] = request

    def open(self) -> None:
        """SUBACK is sent: what follows may be sent, too."""
        for request in self._requests.values():
            request.is_open = True
        self.wake()

    def raise_live_from(self, topic_filter: str, positions: Mapping[Position, int]) -> None:
        """The filter's partitions were new to this edge, so the live flow began later than the subscription."""
        request = self._requests.get(topic_filter)
        if request is not None:
            for position, start in request.live_from.items():
                request.live_from[position] = max(start, positions.get(position, 0))

    def wake(self) -> None:
        """There may be room, or something to do."""
        self._pacer.schedule(self)

    def before_live(self, delivery: Delivery) -> None:
        """A live message is about to be sent: an older retained one goes first, and none goes after it."""
        name = delivery.topic_name_utf8
        message = self._pacer.view.get(name, self._pacer.wall_ms())
        for request in list(self._requests.values()):
            if name < request.key or name in request.live_names or not request.pattern.matches(name):
                continue
            if message is not None and _is_at_or_after(message, delivery):
                continue  # the flow has to come this far first
            if len(request.live_names) < LIVE_NAMES_MAX:
                request.live_names.add(name)
            if message is not None and not request.is_live(message):
                self._send(request, message)

    def advance(self) -> bool:
        """Send one slice; whether there is more to do right now."""
        handler = self._handler
        request = next((request for request in self._requests.values() if request.is_open), None)
        if not handler.is_open or not self._requests:
            self._requests.clear()
            handler.retaining = None
            return False
        if request is None or self._is_behind(request):
            return False
        held = handler.services.table.filters_of(handler)
        if request.topic_filter not in held or self._search(
            request
        ):  # unsubscribed [MQTT5-3.10.4-2], no longer allowed
            del self._requests[request.topic_filter]
        if not self._requests:
            handler.retaining = None
            return False
        return self._has_room()

    def _search(self, request: _Request) -> bool:
        """Look for the next names and send their messages; whether that was all."""
        view = self._pacer.view
        names, key = view.search(request.pattern, request.key, SLICE_MESSAGES_MAX, SLICE_VISITS_MAX)
        wall_ms = self._pacer.wall_ms()
        size_bytes = 0
        for name in names:
            request.key = name
            if size_bytes >= SLICE_BYTES_MAX:
                self._handler.flush()
                size_bytes = 0
            if not self._has_room():
                self._handler.flush()
                return False
            if name in request.live_names:
                request.live_names.discard(name)
                continue
            message = view.get(name, wall_ms)
            if message is not None and message.value is not None and not request.is_live(message):
                size_bytes += len(message.value)
                self._send(request, message)
        self._handler.flush()
        if key is None:
            return True
        request.key = key
        return False

    def _send(self, request: _Request, message: RetainedMessage) -> None:
        self._pacer.sent += 1
        engine = self._handler.engine
        engine.deliver(retained_delivery(message), request.grant, self._handler.services.loop.time())

    def _has_room(self) -> bool:
        outgoing = self._handler.engine.outgoing
        return outgoing is not None and outgoing.has_room

    def _is_behind(self, request: _Request) -> bool:
        if request.behind is None:
            return False
        services = self._handler.services
        positions = services.deliverer.positions()
        is_behind = any(positions.get(position, end) < end for position, end in request.behind.items())
        if is_behind and services.loop.time() < request.wait_until:
            self._pacer.wait_for_live(self)
            return True
        request.behind = None
        return False


class RetainedPacer:
    """Goes round the clients that are due retained messages."""

    def __init__(self, services: EdgeServices, retained: RetainedMessages) -> None:
        self._services = services
        self._retained = retained
        self._scheduled: deque[Retaining] = deque()
        self._waiting: dict[Retaining, None] = {}
        self._handle: asyncio.Handle | None = None
        self.view = retained.view
        self.wall_ms = services.wall_ms
        self.sent = 0

    async def caught_up(self, handler: EdgeProtocolHandler, packet: Subscribe) -> CaughtUp:
        """Before a SUBSCRIBE is worked off: the view has what was acknowledged until now. Returns where the view and
        the message partitions of its filters were then; no partitions when no filter wants retained messages or Kafka
        does not answer."""
        deliverer = handler.services.deliverer
        wanted: set[Position] = set()
        for request in packet.subscriptions[: handler.services.limits.filters_per_subscribe_max]:
            if request.retain_handling != 2 and _is_ordinary(request.topic_filter):
                wanted.update(deliverer.start_positions(request.topic_filter))
        changes = self.view.changes
        if not wanted:
            return changes, {}
        try:
            async with asyncio.timeout(CAUGHT_UP_TIMEOUT_S):
                return await self._retained.caught_up(wanted)
        except (LogError, TimeoutError):
            log.warning("client %s: Kafka does not answer; retained messages as far as known", handler.client_id)
            return changes, {}

    def begin(
        self,
        handler: EdgeProtocolHandler,
        request: SubscriptionRequest,
        subscription: Subscription,
        changes: int,
        starts: Mapping[Position, int],
        *,
        replaces: bool,
    ) -> None:
        """A subscription was just put into the table: it is due the retained messages that it matches, unless its
        Retain Handling says no [MQTT5-3.3.1-9] [MQTT5-3.3.1-10] [MQTT5-3.3.1-11] [MQTT311-3.3.1-6]."""
        if request.retain_handling == 2 or (request.retain_handling == 1 and replaces):
            return
        pattern = NamePattern(request.topic_filter)
        if handler.retaining is None:
            handler.retaining = Retaining(handler, self)
        loop = self._services.loop
        grant = replace(subscription.grant(), retain_as_published=True)  # RETAIN is 1 [MQTT311-3.3.1-8]
        if replaces:
            loop.call_later(CAUGHT_UP_TIMEOUT_S, handler.retaining.wake)
        handler.retaining.add(
            _Request(
                request.topic_filter,
                pattern,
                grant,
                changes,
                dict(starts),
                dict(starts) if replaces else None,
                pattern.start,
                loop.time() + CAUGHT_UP_TIMEOUT_S,
            )
        )

    def schedule(self, retaining: Retaining) -> None:
        """The client has its turn soon."""
        if not retaining.is_scheduled:
            retaining.is_scheduled = True
            self._scheduled.append(retaining)
            if self._handle is None:
                self._handle = self._services.loop.call_soon(self._turn)

    def wait_for_live(self, retaining: Retaining) -> None:
        """The client has its turn again when the deliverer has come further."""
        self._waiting[retaining] = None

    def live_came(self) -> None:
        """The deliverer has come further."""
        waiting, self._waiting = self._waiting, {}
        for retaining in waiting:
            self.schedule(retaining)

    @property
    def is_waiting(self) -> bool:
        """Whether `live_came` has somebody to tell."""
        return bool(self._waiting)

    def stop(self) -> None:
        """Send nothing more."""
        if self._handle is not None:
            self._handle.cancel()
        self._scheduled.clear()
        self._waiting.clear()

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics."""
        return {"sent": self.sent, "clients_due": len(self._scheduled) + len(self._waiting)}

    def _turn(self) -> None:
        self._handle = None
        for _ in range(min(TURN_SLICES_MAX, len(self._scheduled))):
            retaining = self._scheduled.popleft()
            retaining.is_scheduled = False
            if retaining.advance():
                retaining.is_scheduled = True
                self._scheduled.append(retaining)
        if self._scheduled and self._handle is None:
            self._handle = self._services.loop.call_soon(self._turn)


def _is_ordinary(topic_filter: str) -> bool:
    """Not shared (such a subscription is sent no retained messages, MQTT 5.0 section 4.8.2), and well-formed."""
    try:
        check_topic_filter(topic_filter)
    except TopicError:
        return False
    return not topic_filter.startswith("$share/")


def _is_at_or_after(message: RetainedMessage, delivery: Delivery) -> bool:
    same = message.partition == delivery.partition and message.kafka_topic == delivery.kafka_topic
    return same and message.offset >= delivery.offset


def append_retained(handler: EdgeProtocolHandler, effect: AppendRetained) -> None:
    """Append a message with RETAIN 1; it is answered when Kafka has acknowledged it and its retained record."""
    services = handler.services
    retained = services.retained
    assert retained is not None, "the engine asks for it only where retained messages are available"
    services.counters.messages_received += 1
    if retained.has_room_for(effect.headers[0][1], effect.value):
        sink = handler if effect.packet_id else None
        retained.publish(effect.target.destination, effect.value, effect.headers, sink, effect)
    elif effect.packet_id:
        handler.engine.record_refused(effect, ReasonCode.QUOTA_EXCEEDED, "this edge retains no more topic names")
    else:
        services.counters.messages_dropped += 1
