"""One client's replay subscriptions: `$replay/<from>[/<to>]/<topic filter>`; the feeds are `bridge.history`'s.

A message of history comes under its own Topic Name, in 5.0 with the time of its append and a position token as user
properties. A session that is stored goes on where it was; a client without one subscribes again with the token of the
last message that it has as ``<from>``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from bridge.delivery import Delivery, SharedDelivery
from bridge.history.feed import TIMESTAMP, ReplayFeed
from bridge.log import LogError, Position
from bridge.subscriptions import Grant, Subscription
from edge.session.connect import PACKET_BYTES_UNLIMITED
from edge.session.frames import MQTT_5, publish_frame
from edge.wire import ReasonCode
from schemas.message import Message
from schemas.replay_filter import parse_replay
from schemas.replay_range import ReplayRangeError
from schemas.sessions import ReplayPlace, StoredSubscription

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler

log = logging.getLogger(__name__)

RESUME_RETRY_S = 1.0
OPEN_TIMEOUT_S = 10.0  # Kafka has not told the offsets by then: the client hears of it and may try again
END_TOPIC_NAME = "$replay/end"

Places = Mapping[Position, ReplayPlace]


class Replays:
    """`EdgeProtocolHandler.replaying` from the client's first replay on; the `ReplayMember` of its feeds."""

    def __init__(self, handler: EdgeProtocolHandler, places: Mapping[str, Places] | None = None) -> None:
        self._handler = handler
        self.filters: dict[str, StoredSubscription] = {}
        self._places: dict[str, Places] = dict(places or {})  # of those that are not open again yet
        self._feeds: dict[str, ReplayFeed] = {}
        self._grants: dict[str, Grant] = {}
        self._opened: list[ReplayFeed] = []  # their SUBACK has not been sent

    # ReplayMember ----------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether one more message would be sent at once: a replay goes at the pace of the client's window."""
        outgoing = self._handler.engine.outgoing
        return outgoing is not None and outgoing.has_room and self._handler.is_open

    def takes(self, delivery: Delivery, feed: ReplayFeed) -> bool:
        """Whether No Local and the selector let it through."""
        handler = self._handler
        if self._grants[feed.replay_filter].no_local and delivery.client_id == handler.client_id:  # [MQTT5-3.8.3-3]
            return False
        subscription = self.filters.get(feed.replay_filter)
        selector = handler.services.selectors.stored(subscription.selector) if subscription is not None else None
        return selector is None or handler.services.selectors.takes(selector, delivery)

    def deliver_replayed(self, delivery: Delivery, feed: ReplayFeed) -> bool:
        """Send one message; whether an acknowledgement follows."""
        handler, grant = self._handler, self._grants[feed.replay_filter]
        if handler.engine.protocol_version == MQTT_5 and not self._fits(delivery, grant):
            delivery = _without_additions(delivery)
        handler.engine.deliver(SharedDelivery.of(delivery, feed), grant, handler.services.loop.time())
        handler.settle()
        return bool(delivery.qos and grant.qos)

    def replay_ended(self, feed: ReplayFeed) -> None:
        """The end marker: nothing more comes of this subscription."""
        payload = orjson.dumps({"filter": feed.replay_filter, "messages": feed.handed})
        properties = tuple(feed.position_properties())
        message = Message("", b"", content_type="application/json", user_properties=properties)
        now_ms = self._handler.services.wall_ms()
        name = END_TOPIC_NAME.encode()
        marker = Delivery(name, payload, 1, False, "", None, now_ms, (), message, "", 0, -1)
        self.deliver_replayed(marker, feed)

    # For the handler -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Tell the feeds what the client has acknowledged; `SharedMember.settle` does, where there is one."""
        outgoing = self._handler.engine.outgoing
        if outgoing is not None and outgoing.shared_done and self._handler.sharing is None:
            done, outgoing.shared_done = outgoing.shared_done, []
            for delivery in done:
                delivery.group.acknowledged(self, (delivery.kafka_topic, delivery.partition), delivery.offset)

    def wake(self) -> None:
        """There may be room again."""
        self.settle()
        if self.has_room():
            for feed in list(self._feeds.values()):
                self._handler.services.history.wake(feed)
            if len(self._feeds) > 1:  # another one is the first to take the room next time
                first = next(iter(self._feeds))
                self._feeds[first] = self._feeds.pop(first)

    async def subscribe(self, subscription: StoredSubscription) -> ReasonCode:
        """Open a replay; the SUBACK code. One with this very filter is replaced, and begins anew."""
        services, replay_filter = self._handler.services, subscription.topic_filter
        if replay_filter not in self.filters and len(self.filters) >= services.limits.replays_per_client_max:
            return ReasonCode.QUOTA_EXCEEDED
        self.unsubscribe(replay_filter)
        self.filters[replay_filter] = subscription
        code = await self._open(subscription)
        if code.is_error and self.filters.get(replay_filter) is subscription:
            self.unsubscribe(replay_filter)
        return code

    def start(self) -> None:
        """SUBACK has been sent: the messages follow."""
        opened, self._opened = self._opened, []
        for feed in opened:
            if not feed.is_closed:
                self._handler.services.history.start(feed)
        self._handler.flush()  # an end marker, with no record that it could leave with

    async def resume(self, subscriptions: tuple[StoredSubscription, ...]) -> None:
        """Go on with what the stored session says; what fails is tried again until the connection ends, or the client
        has subscribed anew."""
        for each in subscriptions:
            while self._is_wanted(each):
                if not (await self._open(each)).is_error:
                    break
                await asyncio.sleep(RESUME_RETRY_S)
            self.start()

    def unsubscribe(self, replay_filter: str) -> bool:
        """Whether there was such a subscription."""
        self._places.pop(replay_filter, None)
        feed = self._feeds.pop(replay_filter, None)
        if feed is not None:
            self._handler.services.history.close(feed)
        return self.filters.pop(replay_filter, None) is not None

    def places(self, entries: Container[int]) -> dict[str, dict[Position, ReplayPlace]]:
        """Where each replay is; what was sent under one of these packet ids the session has in its own records."""
        found = {replay_filter: dict(places) for replay_filter, places in self._places.items()}
        outgoing = self._handler.engine.outgoing
        kept: dict[ReplayFeed, set[tuple[Position, int]]] = {}
        for packet_id, flow in outgoing.flows.items() if outgoing is not None else ():
            each = flow.delivery
            if packet_id in entries and isinstance(each, SharedDelivery):
                kept.setdefault(each.group, set()).add(((each.kafka_topic, each.partition), each.offset))
        return found | {name: feed.places(kept.get(feed, ())) for name, feed in self._feeds.items()}

    def goes_on_in(self, kafka_topic: str) -> bool:
        """Whether a replay that goes on live reads the Kafka topic: it knows nothing of partitions that are new."""
        return any(
            position[0] == kafka_topic
            for replay_filter, feed in self._feeds.items()
            if (parsed := parse_replay(replay_filter)) is not None and parsed.text_to is None
            for position in feed.positions
        )

    def gone(self) -> None:
        """The connection has ended."""
        for feed in self._feeds.values():
            self._handler.services.history.close(feed)
        self._feeds.clear()

    def _fits(self, delivery: Delivery, grant: Grant) -> bool:
        """Whether the client takes a packet of that size, with what the replay has added."""
        negotiated = self._handler.engine.negotiated
        if negotiated is None or negotiated.packet_bytes_max >= PACKET_BYTES_UNLIMITED:
            return True
        qos, now_ms = min(delivery.qos, grant.qos), self._handler.services.wall_ms()
        head, tail = publish_frame(delivery, MQTT_5, qos, delivery.retain, grant.subscription_ids, now_ms)
        return len(head) + 2 + len(tail) <= negotiated.packet_bytes_max

    def _is_wanted(self, subscription: StoredSubscription) -> bool:
        return self._handler.is_open and self.filters.get(subscription.topic_filter) is subscription

    async def _open(self, subscription: StoredSubscription) -> ReasonCode:
        handler, replay_filter = self._handler, subscription.topic_filter
        parsed = parse_replay(replay_filter)
        assert parsed is not None
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                feed = await handler.services.history.open(
                    self,
                    replay_filter,
                    self._places.get(replay_filter),
                    with_positions=handler.engine.protocol_version == MQTT_5,
                )
        except ReplayRangeError as error:
            log.info("client %s: %s: %s", handler.client_id, replay_filter, error)
            return ReasonCode.TOPIC_FILTER_INVALID
        except (LogError, TimeoutError) as error:
            log.warning("client %s: %s cannot begin: %r", handler.client_id, replay_filter, error)
            return ReasonCode.UNSPECIFIED_ERROR
        if not self._is_wanted(subscription):  # another SUBSCRIBE may have come while a session was resumed
            return ReasonCode.UNSPECIFIED_ERROR
        self._grants[replay_filter] = Subscription(
            handler,
            parsed.topic_filter,
            subscription.qos,
            no_local=subscription.no_local,
            retain_as_published=subscription.retain_as_published,
            subscription_id=subscription.subscription_id,
        ).grant()
        self._places.pop(replay_filter, None)
        self._feeds[replay_filter] = feed
        self._opened.append(feed)
        return ReasonCode(subscription.qos)


def _without_additions(delivery: Delivery) -> Delivery:
    """The message as it was published (which may have such a property, too): better than none."""
    message = delivery.properties
    if message is None:
        return delivery
    names = [name for name, _ in message.user_properties]
    count = len(names) - 1 - names[::-1].index(TIMESTAMP) if TIMESTAMP in names else 0  # the end marker has none
    return delivery._replace(properties=replace(message, user_properties=message.user_properties[:count]))
