"""Rights that change while a client is connected (invariant I14: the ACL in force allows every delivery)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.access.acl import underlying_filter
from edge.handler import subscribing
from schemas.replay_filter import REPLAY_PREFIX
from schemas.topics import matches

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler

_OUR_OWN = REPLAY_PREFIX.encode()  # of the edge itself, about a replay


def take_rights_away(handler: EdgeProtocolHandler) -> None:
    """Publish targets are resolved anew; subscriptions that are no longer allowed go, and so does what was not sent
    yet and may not be received any more."""
    engine = handler.engine
    if engine.incoming is not None:
        engine.incoming.forget_targets()
    if handler.principal is None or handler.durable is None:
        return
    for topic_filter in subscribing.filters_of(handler):
        if not subscribing.may_keep(handler, topic_filter):
            subscribing.remove_subscription(handler, topic_filter)
    if engine.outgoing is not None:
        engine.outgoing.purge(lambda topic_name_utf8: may_receive(handler, topic_name_utf8))


def may_receive(handler: EdgeProtocolHandler, topic_name_utf8: bytes) -> bool:
    """Whether the ACL in force allows a delivery, or the server has given the client a subscription that does."""
    if topic_name_utf8.startswith(_OUR_OWN):
        return True
    assert handler.principal is not None
    topic_name = topic_name_utf8.decode()
    if handler.services.access.authorizer.may_receive(handler.principal, topic_name):
        return True
    filters = (underlying_filter(each) for each in subscribing.filters_of(handler))
    return any(each is not None and matches(each, topic_name) for each in filters)
