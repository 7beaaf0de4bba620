"""Which selector each of a client's subscriptions has: its own, the server's, or what was stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.handler.sharing import SharedMember
from edge.rules.selectors import SELECTOR_PROPERTY, Selector
from edge.session.connect import MQTT_5
from edge.wire import Subscribe
from schemas.sessions import StoredSubscription

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler
    from edge.handler.services import EdgeServices

REASON_BYTES_MAX = 1_024  # a client that takes no packet of that size is told the code alone


def asked_selector(handler: EdgeProtocolHandler, packet: Subscribe) -> Selector | None:
    """What the SUBSCRIBE says for all its filters, in a User Property; None: nothing. Raises SelectorError."""
    properties = packet.properties.user_properties if packet.properties is not None else ()
    expression = next((value for name, value in properties if name == SELECTOR_PROPERTY), "")
    return handler.services.selectors.compiled(expression) if expression else None


def selector_for(handler: EdgeProtocolHandler, topic_filter: str, asked: Selector | None) -> Selector | None:
    """The selector of a new subscription: what the client has asked for, else what the server's configuration says."""
    principal, services = handler.principal, handler.services
    assert principal is not None
    if asked is not None:
        return asked
    rules = (rule for rule in services.rules.selectors if rule.is_about(principal, topic_filter))
    rule = next(rules, None)
    return services.selectors.compiled(rule.expression) if rule is not None else None


def stored_selector(services: EdgeServices, subscription: StoredSubscription) -> Selector | None:
    """The selector of a stored subscription."""
    return services.selectors.stored(subscription.selector)


def differs_from_group(handler: EdgeProtocolHandler, share_filter: str, selector: Selector | None) -> bool:
    """Whether another member of the shared subscription on this edge has another selector: a message goes to one
    member, and what that one's selector does not take is done with for the group."""
    group = handler.services.shared.groups().get(share_filter)
    expression = selector.expression if selector is not None else ""
    others = group.members if group is not None else ()
    return any(
        each.filters[share_filter].selector != expression
        for each in others
        if isinstance(each, SharedMember) and each is not handler.sharing and share_filter in each.filters
    )


def reason_for(handler: EdgeProtocolHandler, reason: str) -> str:
    """The Reason String, if the client wants to hear it and takes packets of its size [MQTT5-3.9.2-1]."""
    negotiated = handler.engine.negotiated
    if negotiated is None or not negotiated.problem_information or handler.engine.protocol_version < MQTT_5:
        return ""
    return reason if negotiated.packet_bytes_max >= REASON_BYTES_MAX else ""
