"""One client's exclusive subscriptions, `$exclusive/<filter>`: what it has taken, and what becomes of that.

In the subscription table such a subscription is an ordinary one to `<filter>`; everywhere a client or an operator sees
it, and in the stored session, it has its prefix.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bridge.log import LogError, LogUnavailable
from bridge.ownership import EXCLUSIVE_KEY
from edge.wire import ReasonCode, Subscribe
from schemas.sessions import StoredSession, StoredSubscription
from schemas.topics import BESIDE_PREFIXES, EXCLUSIVE_PREFIX

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler
    from edge.handler.services import EdgeServices

log = logging.getLogger(__name__)


class Exclusives:
    """`EdgeProtocolHandler.exclusive` from the client's first one on; `filters` has them with the claims' epochs."""

    def __init__(self, handler: EdgeProtocolHandler) -> None:
        self._handler = handler
        self.filters: dict[str, int] = {}
        self._ending: list[tuple[str, int]] = []

    async def take(self, topic_filter: str) -> ReasonCode | None:
        """Make it this client's; None, or the code of the refusal."""
        if topic_filter in self.filters:
            return None
        handler = self._handler
        exclusive = handler.services.exclusive
        if exclusive is None or topic_filter.startswith((*BESIDE_PREFIXES, EXCLUSIVE_PREFIX)):
            return ReasonCode.TOPIC_FILTER_INVALID
        try:
            epoch = await exclusive.take(handler.client_id, topic_filter)
        except LogError as error:
            log.warning("client %s: nobody knows who has %s: %s", handler.client_id, topic_filter, error)
            return ReasonCode.UNSPECIFIED_ERROR
        if epoch is None:
            return ReasonCode.QUOTA_EXCEEDED  # as EMQX says it
        self.filters[topic_filter] = epoch
        return None

    def drop(self, topic_filter: str) -> bool:
        """The client has it no more, if it had it; `settled` waits until others may have it."""
        epoch = self.filters.pop(topic_filter, None)
        if epoch is not None and self._handler.services.exclusive is not None:
            self._handler.services.exclusive.forget(topic_filter, epoch)
            self._ending.append((topic_filter, epoch))
        return epoch is not None

    async def settled(self) -> None:
        """Until what was dropped is free: before UNSUBACK."""
        ending, self._ending = self._ending, []
        if self._handler.services.exclusive is not None:
            for topic_filter, epoch in ending:
                await self._handler.services.exclusive.given_back(topic_filter, epoch)

    def gone(self, *, for_ever: bool) -> None:
        """The connection has ended, perhaps with its session."""
        exclusive, filters = self._handler.services.exclusive, self.filters
        self.filters = {}
        if exclusive is not None:
            for topic_filter, epoch in filters.items():
                (exclusive.forget if for_ever else exclusive.leave)(topic_filter, epoch)


def strip_exclusive(packet: Subscribe) -> frozenset[int]:
    """Take the prefix away where there is one; the numbers of these requests."""
    found = set()
    for number, request in enumerate(packet.subscriptions):
        if request.topic_filter.startswith(EXCLUSIVE_PREFIX):
            request.topic_filter = request.topic_filter.removeprefix(EXCLUSIVE_PREFIX)
            found.add(number)
    return frozenset(found)


def name_of(handler: EdgeProtocolHandler, topic_filter: str) -> str:
    """How the client knows a subscription of the table."""
    is_exclusive = handler.exclusive is not None and topic_filter in handler.exclusive.filters
    return EXCLUSIVE_PREFIX + topic_filter if is_exclusive else topic_filter


async def take(handler: EdgeProtocolHandler, topic_filter: str) -> ReasonCode | None:
    """`Exclusives.take`, of a client that may not have one yet."""
    if handler.exclusive is None:
        handler.exclusive = Exclusives(handler)
    return await handler.exclusive.take(topic_filter)


async def take_again(
    handler: EdgeProtocolHandler, subscriptions: tuple[StoredSubscription, ...]
) -> tuple[StoredSubscription, ...]:
    """A stored session comes to this edge, and what is exclusive with it; without what it has lost meanwhile.

    Raises LogUnavailable: Kafka does not tell.
    """
    kept = []
    for each in subscriptions:
        if each.topic_filter.startswith(EXCLUSIVE_PREFIX):
            refusal = await take(handler, each.topic_filter.removeprefix(EXCLUSIVE_PREFIX))
            if refusal is ReasonCode.UNSPECIFIED_ERROR:
                raise LogUnavailable(f"nobody knows who has {each.topic_filter}")
            if refusal is not None:
                why = "another session has the exclusive subscription"
                handler.services.event("unsubscribed", handler.client_id, topic_filters=[each.topic_filter], reason=why)
                continue
        kept.append(each)
    return tuple(kept)


def forget_all(handler: EdgeProtocolHandler, stored: StoredSession) -> None:
    """The client begins anew: what its stored session had is free."""
    if handler.services.exclusive is not None:
        names = (each.topic_filter for each in stored.state.subscriptions)
        filters = [each.removeprefix(EXCLUSIVE_PREFIX) for each in names if each.startswith(EXCLUSIVE_PREFIX)]
        handler.services.exclusive.forget_all(stored.state.client_id, filters)


def lose_exclusive(services: EdgeServices, key: str, epoch: int) -> None:
    """The claim of an exclusive filter that a connection here has taken does not count any more: the client is on
    another edge, or this one has stood still and the filter was given away."""
    services.ownership.release(key, epoch)
    topic_filter = key.removeprefix(EXCLUSIVE_KEY)
    for handler in list(services.clients.values()):
        if handler.exclusive is not None and handler.exclusive.filters.get(topic_filter) == epoch:
            holder = services.ownership.owner(key)
            if holder is None or holder.principal != handler.client_id:
                handler.disconnect(ReasonCode.SESSION_TAKEN_OVER, "another session has an exclusive subscription")
