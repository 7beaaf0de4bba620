"""All rules of one edge together: `EdgeServices.rules`."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge.access.principal import Principal
from edge.rules.auto_subscriptions import AutoSubscriptions
from edge.rules.payload_schemas import PayloadSchemas
from edge.rules.rewrite import Rewrites
from edge.rules.selectors import SelectorRule
from edge.wire import Subscribe, Unsubscribe


@dataclass(slots=True)
class Rules:
    """What the configuration of the edge says beyond routes, rights and limits."""

    rewrites: Rewrites = field(default_factory=Rewrites)
    auto_subscriptions: AutoSubscriptions = field(default_factory=AutoSubscriptions)
    payload_schemas: PayloadSchemas = field(default_factory=PayloadSchemas)
    selectors: tuple[SelectorRule, ...] = ()

    def rewrite_subscribe(self, principal: Principal, packet: Subscribe) -> None:
        """Put the filters that count into the packet."""
        if self.rewrites.changes_filters:
            for request in packet.subscriptions:
                request.topic_filter = self.rewrites.topic_filter(request.topic_filter, principal)

    def rewrite_unsubscribe(self, principal: Principal, packet: Unsubscribe) -> None:
        """The same, so that a client gives up what it has asked for under the name that it used."""
        if self.rewrites.changes_filters:
            packet.topic_filters = tuple(self.rewrites.topic_filter(each, principal) for each in packet.topic_filters)
