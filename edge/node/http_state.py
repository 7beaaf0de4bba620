"""What the state API tells: this node's clients and subscriptions, the cluster's nodes, sessions, bans. Read only.

Lists come in pages: so many items after a key, and the key to go on after. A list that changes meanwhile loses nothing
that was there all the time, and tells nothing twice.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bridge.control import ControlView
from bridge.membership import Membership
from bridge.retained_names import NamePattern
from edge.access.acl import Acl, AclRule, Authorizer
from edge.handler.services import EdgeServices
from edge.handler.subscribing import filters_of
from schemas.control import Ban
from schemas.errors import ConfigurationError, TopicError
from schemas.nodes import NodeHeartbeat
from schemas.sessions import StoredSession
from schemas.topics import check_topic_filter

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler

STALE: Final = "stale"
RETAINED_VISITS_MAX: Final = 10_000  # Topic Names looked at for one page: some milliseconds
TIMESTAMP_S_MAX: Final = 253_402_300_799  # the end of the year 9999, beyond which datetime cannot write it

T = TypeVar("T", str, bytes, tuple[str, str])


@dataclass(frozen=True, slots=True)
class Page:
    """Items, and after what to go on; None: these were the last."""

    items: list[dict[str, Any]]
    following: str | None


# Nodes ---------------------------------------------------------------------------------------------------------------


def nodes(membership: Membership) -> list[dict[str, Any]]:
    """Every node that has not left, by node id."""
    live = [_node(heartbeat, heartbeat.state) for heartbeat in membership.live()]
    return sorted(live + [_node(each, STALE) for each in membership.stale()], key=lambda node: str(node["node_id"]))


def _node(heartbeat: NodeHeartbeat, state: str) -> dict[str, Any]:
    return {
        "node_id": heartbeat.node_id,
        "state": state,
        "incarnation": heartbeat.incarnation,
        "started_at": time_text(heartbeat.started_ms / 1000),
        "heard_at": time_text(heartbeat.sent_ms / 1000),
        "mqtt_address": heartbeat.mqtt_address,
        "http_address": heartbeat.http_address,
        "connections": heartbeat.connections,
        "clients": heartbeat.sessions,
        "subscriptions": heartbeat.subscriptions,
        "partitions": len(heartbeat.consumed) + len(heartbeat.consumed_exactly_once),
        "lag_records": heartbeat.lag_records,
        "routes_version": heartbeat.routes_version,
    }


# Clients -------------------------------------------------------------------------------------------------------------


def clients(services: EdgeServices, limit: int, after: str) -> Page:
    """Those that are connected to this node, by client id."""
    found, following = _next_keys(services.clients, limit, after)
    return Page([client(services.clients[client_id]) for client_id in found], following)


def client(handler: EdgeProtocolHandler) -> dict[str, Any]:
    """One that is connected."""
    engine, principal = handler.engine, handler.principal
    figures = engine.statistics()
    return {
        "client_id": handler.client_id,
        "node": handler.services.node_id,
        "user": principal.name if principal is not None else None,
        "peer": handler.peer,
        "protocol_version": engine.protocol_version,
        "connected_at": time_text(handler.connected_at_ms / 1000),
        "keep_alive_s": engine.negotiated.keep_alive_s if engine.negotiated is not None else None,
        "session_expiry_s": engine.session_expiry_s,
        "subscriptions": len(filters_of(handler)),
        "received": figures["received"],
        "unacknowledged": figures["unacknowledged"],
        "sent": figures.get("sent", 0),
        "inflight": figures.get("inflight", 0),
        "queue": figures.get("queue_length", 0),
        "queue_bytes": figures.get("queue_bytes", 0),
        "dropped": figures.get("dropped", 0),
        "is_behind": handler.behind is not None,
    }


def subscriptions(services: EdgeServices, limit: int, after: str) -> Page:
    """Those of the clients of this node, by client id and Topic Filter."""
    client_id_from, _, filter_from = _decoded(after).decode(errors="replace").partition("\0")
    start = (client_id_from, filter_from)
    # as many clients as there are items, for a client that is counted has at least one subscription
    holders = ((each, handler) for each, handler in services.clients.items() if each >= start[0])
    first = nsmallest(limit + 2, ((each, handler) for each, handler in holders if filters_of(handler)), _first)
    keys = [(client_id, topic_filter) for client_id, handler in first for topic_filter in filters_of(handler)]
    found, following = _next_keys(keys, limit, start)
    items = [_subscription(services.clients[client_id], topic_filter) for client_id, topic_filter in found]
    return Page(items, _encoded("\0".join(following).encode()) if following is not None else None)


def subscriptions_of(handler: EdgeProtocolHandler) -> list[dict[str, Any]]:
    """Those of one client."""
    return [_subscription(handler, topic_filter) for topic_filter in sorted(filters_of(handler))]


def _subscription(handler: EdgeProtocolHandler, topic_filter: str) -> dict[str, Any]:
    shared = handler.sharing.filters.get(topic_filter) if handler.sharing is not None else None
    held = shared or handler.services.table.subscription(topic_filter, handler)
    assert held is not None, topic_filter
    return {
        "client_id": handler.client_id,
        "topic_filter": topic_filter,
        "qos": held.qos,
        "no_local": held.no_local,
        "retain_as_published": held.retain_as_published,
        "subscription_id": held.subscription_id,
    }


# What is stored ------------------------------------------------------------------------------------------------------


def sessions(services: EdgeServices, limit: int, after: str) -> Page:
    """Those that are stored, of the whole cluster, by client id."""
    view = services.sessions.view
    found, following = _next_keys(view, limit, after)
    stored = (view.get(client_id) for client_id in found)
    return Page([session(each) for each in stored if each is not None], following)


def session(stored: StoredSession, *, whole: bool = False) -> dict[str, Any]:
    """One stored session; `whole`: with its subscriptions and positions."""
    state, progress = stored.state, stored.progress
    told: dict[str, Any] = {
        "client_id": state.client_id,
        "user": state.principal,
        "protocol_version": state.protocol_version,
        "connected": state.connected,
        "node": state.node_id,
        "owner_epoch": stored.epoch,
        "expiry_s": state.expiry_s,
        "disconnected_at": time_text(state.disconnected_ms / 1000 if state.disconnected_ms is not None else None),
        "expires_at": time_text(state.expires_ms / 1000 if state.expires_ms is not None else None),
        "subscriptions": len(state.subscriptions),
        "inflight": len(progress.outgoing),
        "has_will": state.will is not None,
    }
    if whole:
        told["subscriptions"] = [{"topic_filter": each.topic_filter, "qos": each.qos} for each in state.subscriptions]
        told["positions"] = [
            {"kafka_topic": kafka_topic, "partition": partition, "offset": offset}
            for (kafka_topic, partition), offset in sorted(progress.positions.items())
        ]
    return told


def retained(services: EdgeServices, topic_filter: str, limit: int, after: str) -> Page:
    """The Topic Names that match and have a retained message, in byte order. A page may have fewer items than asked
    for, or none, and yet not be the last. Raises ConfigurationError for what is no Topic Filter."""
    try:
        check_topic_filter(topic_filter)
    except TopicError as error:
        raise ConfigurationError(f"filter={topic_filter}: {error}") from None
    if services.retained is None:
        return Page([], None)
    view = services.retained.view
    pattern = NamePattern(topic_filter)
    start = _decoded(after) if after else pattern.start
    names, following = view.search(pattern, start, limit, RETAINED_VISITS_MAX)
    found = ((name, view.get(name, services.wall_ms())) for name in names)
    items = [
        {
            "topic_name": name.decode(),
            "payload_bytes": len(message.value or b""),
            "stored_at": time_text(message.timestamp / 1000),
            "expires_at": time_text(message.expiry_ms / 1000 if message.expiry_ms is not None else None),
        }
        for name, message in found
        if message is not None
    ]
    return Page(items, _encoded(following) if following is not None else None)


# What operators have decided -----------------------------------------------------------------------------------------


def acl(view: ControlView, authorizer: Authorizer) -> dict[str, Any]:
    """The rules in force on this node; without a revision they are those of its file."""
    rules = [_rule(rule) for rule in authorizer.rules] if isinstance(authorizer, Acl) else None
    found = view.acl()
    if found is None:
        return {"revision": None, "applied_at": None, "created_by": None, "rules": rules}
    entry, held = found
    return {
        "revision": held.revision,
        "applied_at": time_text(held.at_ms / 1000),
        "created_by": entry.created_by,
        "rules": rules,
    }


def _rule(rule: AclRule) -> dict[str, Any]:
    told = {"permit": "allow" if rule.allow else "deny", "action": rule.action, "filter": rule.topic_filter}
    return told | {key: value for key, value in (("user", rule.user), ("client_id", rule.client_id)) if value}


def bans(held: Iterable[Ban], now: float, limit: int, after: str) -> Page:
    """Those in force, by their keys."""
    by_key = {each.key: each for each in held if not each.is_over(now)}
    found, following = _next_keys(by_key, limit, after)
    return Page([ban(by_key[key]) for key in found], following)


def ban(each: Ban) -> dict[str, Any]:
    """One ban."""
    return {
        "kind": each.kind,
        "value": each.value,
        "expires_at": time_text(each.expires_at),
        "reason": each.reason,
        "created_by": each.created_by,
    }


# Pages ---------------------------------------------------------------------------------------------------------------


def time_text(at_s: float | None) -> str | None:
    """RFC 3339, in UTC, to the millisecond."""
    if at_s is None:
        return None
    return datetime.fromtimestamp(min(at_s, TIMESTAMP_S_MAX), UTC).isoformat(timespec="milliseconds")


def _next_keys(keys: Iterable[T], limit: int, after: T) -> tuple[list[T], T | None]:
    """The first keys after that one, and the last of them if there are more."""
    found = nsmallest(limit + 1, (key for key in keys if key > after))
    return found[:limit], found[limit - 1] if len(found) > limit else None


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _encoded(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode()


def _decoded(text: str) -> bytes:
    """Raises ConfigurationError for what is no `next` of ours."""
    try:
        return base64.b64decode(text.encode(), altchars=b"-_", validate=True)
    except ValueError:
        raise ConfigurationError(f"after={text}: give what `next` said, as it is") from None
