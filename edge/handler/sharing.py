"""One client's part in shared subscriptions: a member of the node's `ShareGroup`s (MQTT 5.0 section 4.8.2).

A message is handed to a member that has room for it, and to nobody else until the member has acknowledged it or is
gone. MQTT 3.1.1 clients may use `$share/` filters, too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bridge.delivery import Delivery, SharedDelivery
from bridge.log import LogError
from bridge.subscriptions import Grant
from edge.rules.selectors import Selector
from edge.wire import ReasonCode, SubscriptionRequest
from schemas.sessions import StoredSubscription

if TYPE_CHECKING:
    from bridge.shared.group import ShareGroup
    from edge.handler.protocol import EdgeProtocolHandler

log = logging.getLogger(__name__)

SUBSCRIBE_TIMEOUT_S = 10.0  # the group is not ready by then: the client hears of it and may try again


class SharedMember:
    """`EdgeProtocolHandler.sharing` from the client's first shared subscription on; a `ShareMember`."""

    def __init__(self, handler: EdgeProtocolHandler, stored: tuple[StoredSubscription, ...] = ()) -> None:
        self._handler = handler
        self.filters = {each.topic_filter: each for each in stored}  # at once: the session may be stored again
        self._selectors: dict[str, Selector] = {}

    # ShareMember -----------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The Client Identifier."""
        return self._handler.client_id

    @property
    def inflight(self) -> int:
        """Messages that were sent and are not acknowledged, of all the client's subscriptions."""
        outgoing = self._handler.engine.outgoing
        return len(outgoing.inflight) + len(outgoing.flows) if outgoing is not None else 0

    def has_room(self) -> bool:
        """Whether one more message would be sent at once."""
        outgoing = self._handler.engine.outgoing
        return outgoing is not None and outgoing.has_room and self._handler.is_open

    def deliver_shared(self, delivery: Delivery, grant: Grant, group: ShareGroup) -> None:
        """A message of one of the groups."""
        handler = self._handler
        selector = self._selectors.get(group.share_filter)
        if selector is not None and not handler.services.selectors.takes(selector, delivery):
            if delivery.qos and grant.qos:
                group.acknowledged(self, (delivery.kafka_topic, delivery.partition), delivery.offset)
            return  # done with, for the group: all members have the same selector
        shared = SharedDelivery.of(delivery, group)
        if delivery.qos == grant.qos == 2:
            shared.handover = group.hand_over(self, delivery)
        handler.engine.deliver(shared, grant, handler.services.loop.time())
        handler.settle()

    # For the handler -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Tell the groups what the client has acknowledged."""
        outgoing = self._handler.engine.outgoing
        if outgoing is not None and outgoing.shared_done:
            done, outgoing.shared_done = outgoing.shared_done, []
            for delivery in done:
                delivery.group.acknowledged(self, (delivery.kafka_topic, delivery.partition), delivery.offset)

    def wake(self) -> None:
        """There may be room again."""
        self.settle()
        if self.has_room():
            self._handler.services.shared.wake(self)

    async def subscribe(
        self, request: SubscriptionRequest, subscription_id: int | None, selector: Selector | None = None
    ) -> ReasonCode:
        """Take part; the SUBACK code."""
        return await self._subscribe(
            StoredSubscription(
                request.topic_filter,
                request.qos,
                retain_as_published=request.retain_as_published,
                subscription_id=subscription_id,
                selector=selector.expression if selector is not None else "",
            )
        )

    async def resume(self, subscriptions: tuple[StoredSubscription, ...]) -> None:
        """Take part again, as the stored session says; what fails is tried again until the connection ends."""
        for each in subscriptions:
            while self._handler.is_open and each.topic_filter in self.filters:
                if not (await self._subscribe(each)).is_error:
                    break

    def unsubscribe(self, share_filter: str) -> bool:
        """Whether there was such a subscription."""
        self.filters.pop(share_filter, None)
        self._selectors.pop(share_filter, None)
        return self._handler.services.shared.unsubscribe(self, share_filter)

    def gone(self, *, for_ever: bool) -> None:
        """The connection has ended, perhaps with its session. What was sent with QoS 2 stays this session's
        [MQTT5-4.8.2-4] [MQTT5-4.8.2-5]; the rest others get."""
        services, outgoing = self._handler.services, self._handler.engine.outgoing
        self.settle()
        services.shared.member_gone(self, outgoing.shared_flows() if outgoing is not None else ())
        if for_ever:
            services.forget_shared(self.filters)

    async def _subscribe(self, subscription: StoredSubscription) -> ReasonCode:
        services, share_filter = self._handler.services, subscription.topic_filter
        known = self.filters.get(share_filter)
        self.filters[share_filter] = subscription
        selector = services.selectors.stored(subscription.selector)
        if selector is not None:
            self._selectors[share_filter] = selector
        else:
            self._selectors.pop(share_filter, None)
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                await services.shared.subscribe(
                    self,
                    share_filter,
                    subscription.qos,
                    retain_as_published=subscription.retain_as_published,
                    subscription_id=subscription.subscription_id,
                )
        except (LogError, TimeoutError) as error:
            log.warning("client %s: %s is not ready: %r", self.client_id, share_filter, error)
            if known is None:
                self.unsubscribe(share_filter)
            return ReasonCode.UNSPECIFIED_ERROR
        if not self._handler.is_open:
            self.gone(for_ever=False)
        return ReasonCode(subscription.qos)
