"""Retained messages for new subscriptions, a slice at a time, so that 100,000 matches stall nobody.

One `RetainedPacer` per edge goes round the clients that are due some, one slice each, a few slices per turn of the
loop. A client gets as much as its window and its socket take at once; then it waits until it has acknowledged or read.
What is kept per client is a Topic Name to go on at, never a list of messages.

Which copy a client gets of a Topic Name that is written meanwhile is decided by position. A subscription begins at an
offset in each partition (`Subscription.not_before`): what is before it comes as the retained message, what follows it
comes live, in that order:

* a retained message at or after the beginning is left out here: it comes live;
* when a live message arrives first, the older retained one is sent right before it (`before_live`);
* a message from before the beginning whose retained record lands late (its publisher has no answer yet) is sent when it
  does (`late`): for that a subscription lingers for a second after it has been sent the others.
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
from schemas.topics import BESIDE_PREFIXES, check_topic_filter

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler
    from edge.handler.services import EdgeServices

log = logging.getLogger(__name__)

SLICE_MESSAGES_MAX = 32  # sent to one client in one go: 0.2 ms
SLICE_VISITS_MAX = 256  # Topic Names looked at in one go: 0.3 ms at worst
SLICE_BYTES_MAX = 64 * 1024  # payloads before they are written and the socket is asked again
TURN_SLICES_MAX = 8  # per turn of the loop, over all clients: 2 ms, then everybody else has theirs
LIVE_NAMES_MAX = 65_536  # written while they were waited for, per subscription: 8 MiB; beyond it order is not watched
LINGER_S = 1.0  # from a message's append to its retained record: 2 ms, and 50 when Kafka is busy
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
    linger_until: float | None = None  # everything was sent; when to forget it, on the loop's clock
    live_names: set[bytes] = field(default_factory=set)  # at or after `key`, and live already: done
    passed_live: set[bytes] = field(default_factory=set)  # before `key`, and live since: nothing older may follow

    def has_passed(self, name: bytes) -> bool:
        """Whether the search will not come to the name any more."""
        return self.linger_until is not None or name < self.key

    def is_live(self, message: RetainedMessage) -> bool:
        """Whether the client gets the message live, now or soon. What was there before certainly does not, whatever
        its offset says: the Kafka topic may have been made anew since."""
        if message.change <= self.changes:
            return False
        start = self.live_from.get((message.kafka_topic, message.partition))
        return start is not None and message.offset >= start


class Retaining:
    """What one client is still due; `EdgeProtocolHandler.retaining` while there is anything."""

    __slots__ = ("_handler", "_pacer", "_requests", "_timer", "is_scheduled")

    def __init__(self, handler: EdgeProtocolHandler, pacer: RetainedPacer) -> None:
        self._handler = handler
        self._pacer = pacer
        self._requests: dict[str, _Request] = {}
        self._timer: asyncio.TimerHandle | None = None
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
        if self._next_request() is not None:
            self._pacer.schedule(self)

    def close(self) -> None:
        """The client is due nothing more."""
        self._requests.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._handler.retaining = None
        self._pacer.forget(self)

    def before_live(self, delivery: Delivery) -> bool:
        """A live message is about to be sent: an older retained one goes first, and none goes after it. False: there is
        no room for the older one, so the live one cannot go now, either."""
        name = delivery.topic_name_utf8
        message = self._pacer.view.get(name, self._pacer.wall_ms())
        table = self._handler.services.table
        for topic_filter, request in list(self._requests.items()):
            if name in request.live_names or not request.pattern.matches(name):
                continue
            if table.subscription(topic_filter, self._handler) is None:
                continue  # unsubscribed, or no longer allowed
            if request.has_passed(name):
                if len(request.passed_live) < LIVE_NAMES_MAX:
                    request.passed_live.add(name)
                continue
            if message is not None and _is_at_or_after(message, delivery):
                continue  # the flow has to come this far first
            due = message if message is not None and not request.is_live(message) else None
            if due is not None and not self._has_room_for(due):
                return False
            if len(request.live_names) < LIVE_NAMES_MAX:
                request.live_names.add(name)
            if due is not None:
                self._send(request, due)
        return True

    def late(self, message: RetainedMessage) -> None:
        """A retained record has landed behind the search: it is sent unless it comes, or something newer came, live."""
        name = message.topic_name_utf8
        held = self._handler.services.table.filters_of(self._handler)
        for topic_filter, request in list(self._requests.items()):
            if (
                request.has_passed(name)
                and not request.is_live(message)
                and name not in request.passed_live
                and len(request.passed_live) < LIVE_NAMES_MAX
                and topic_filter in held
                and request.pattern.matches(name)
            ):
                if self._has_room_for(message):
                    self._send(request, message)
                    self._handler.flush()
                else:  # the search goes back to it; what is sent twice by that is sent in order
                    request.key, request.linger_until = name, None

    def advance(self) -> bool:
        """Send one slice; whether there is more to do right now."""
        handler = self._handler
        request = self._next_request()
        if request is None or not handler.is_open or self._is_behind(request):
            return False
        if request.topic_filter not in handler.services.table.filters_of(handler):
            del self._requests[request.topic_filter]  # unsubscribed [MQTT5-3.10.4-2], or no longer allowed
            if not self._requests:
                self.close()
        elif self._search(request):
            request.live_names.clear()
            request.linger_until = handler.services.loop.time() + LINGER_S
            if self._timer is None:
                self._timer = handler.services.loop.call_at(request.linger_until, self._end_lingering)
        return self._next_request() is not None and self._has_room()

    def _next_request(self) -> _Request | None:
        due = (request for request in self._requests.values() if request.is_open and request.linger_until is None)
        return next(due, None)

    def _end_lingering(self) -> None:
        self._timer = None
        loop = self._handler.services.loop
        lingering: list[float] = []
        for topic_filter, request in list(self._requests.items()):
            if request.linger_until is not None:
                if request.linger_until <= loop.time():
                    del self._requests[topic_filter]
                else:
                    lingering.append(request.linger_until)
        if not self._requests:
            self.close()
        elif lingering:
            self._timer = loop.call_at(min(lingering), self._end_lingering)

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
            if name in request.live_names or name in request.passed_live:
                request.live_names.discard(name)
                request.passed_live.add(name)
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
        if engine.effects:
            self._handler.settle()

    def _has_room(self) -> bool:
        """A client that is behind has none: older messages than the retained ones may be on their way to it."""
        outgoing = self._handler.engine.outgoing
        return outgoing is not None and outgoing.has_room and self._handler.behind is None

    def _has_room_for(self, message: RetainedMessage) -> bool:
        outgoing = self._handler.engine.outgoing
        return outgoing is not None and outgoing.has_room_for(len(message.value or b""))

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
        self._active: dict[Retaining, None] = {}  # due something, or lingering
        self._last_starts: dict[Position, int] = {}  # the highest `live_from` of the active ones
        self._handle: asyncio.Handle | None = None
        self.view = retained.view
        self.wall_ms = services.wall_ms
        retained.on_stored = self._stored
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
            self._active[handler.retaining] = None
        for position, start in starts.items():
            if start > self._last_starts.get(position, -1):
                self._last_starts[position] = start
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

    def forget(self, retaining: Retaining) -> None:
        """The client is due nothing more, or gone."""
        self._active.pop(retaining, None)
        self._waiting.pop(retaining, None)
        if not self._active:
            self._last_starts.clear()

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
        for retaining in list(self._active):
            retaining.close()

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics."""
        return {"sent": self.sent, "clients_active": len(self._active)}

    def _stored(self, message: RetainedMessage) -> None:
        """A retained record landed while we follow; nearly always it is newer than every active subscription."""
        if message.offset < self._last_starts.get((message.kafka_topic, message.partition), 0):
            for retaining in list(self._active):
                retaining.late(message)

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
    """Neither shared (such a subscription is sent no retained messages, MQTT 5.0 section 4.8.2) nor a replay, and
    well-formed."""
    try:
        check_topic_filter(topic_filter)
    except TopicError:
        return False
    return not topic_filter.startswith(BESIDE_PREFIXES)


def _is_at_or_after(message: RetainedMessage, delivery: Delivery) -> bool:
    same = message.partition == delivery.partition and message.kafka_topic == delivery.kafka_topic
    return same and message.offset >= delivery.offset


def append_retained(handler: EdgeProtocolHandler, effect: AppendRetained) -> None:
    """Append a message with RETAIN 1; it is answered when Kafka has acknowledged it and its retained record."""
    services = handler.services
    retained = services.retained
    assert retained is not None, "the engine asks for it only where retained messages are available"
    services.counters.messages_received += 1
    services.counters.messages_qos1_received += effect.packet_id > 0
    if retained.has_room_for(effect.headers[0][1], effect.value):
        sink = handler if effect.packet_id else None
        retained.publish(effect.target.destination, effect.value, effect.headers, sink, effect.packet_id)
    elif effect.packet_id:
        handler.engine.record_refused(
            effect.packet_id, ReasonCode.QUOTA_EXCEEDED, "this edge retains no more topic names"
        )
    else:
        services.counters.messages_dropped += 1
