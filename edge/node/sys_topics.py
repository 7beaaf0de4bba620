"""`$SYS`: what a node says of itself under the names that users of EMQX know, for subscribers on every edge.

=========================================================  ========  =====================================
`$SYS/brokers`                                             retained  the live nodes, apart by commas
`$SYS/brokers/<node>/version`, `/sysdescr`                 retained  texts
`$SYS/brokers/<node>/uptime`, `/datetime`                  -         seconds; RFC 3339
`$SYS/brokers/<node>/stats/...`                            -         what there is now: decimal numbers
`$SYS/brokers/<node>/metrics/...`                          -         totals since the node's start
`$SYS/brokers/<node>/clients/<client id>/connected`        -         JSON; likewise `disconnected`
`$SYS/cluster/...`                                         -         all live nodes together, by one of them
=========================================================  ========  =====================================

Retained is what EMQX retains. All of it has QoS 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import orjson

from edge.handler.services import EdgeServices
from edge.node.statistics import node_statistics
from schemas.nodes import NodeHeartbeat
from schemas.records import HEADER_CONTENT_TYPE, HEADER_QOS, HEADER_RETAIN, HEADER_TOPIC, Header

DESCRIPTION: Final = "Headwater, an MQTT broker on Apache Kafka"
CLIENT_EVENTS: Final = frozenset(("connected", "disconnected"))
_STATS: Final = {
    "connections/count": "connections",
    "sessions/count": "clients",
    "subscriptions/count": "subscriptions",
    "subscribers/count": "subscribers",
    "subscriptions/shared/count": "shared_subscriptions",
    "topics/count": "filters",
    "retained/count": "retained",
    "delayed/count": "delayed",
}
_METRICS: Final = {
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
    "messages/received": "messages_received",
    "messages/qos0/received": "messages_qos0_received",
    "messages/qos1/received": "messages_qos1_received",
    "messages/qos2/received": "messages_qos2_received",
    "messages/sent": "messages_sent",
    "messages/dropped": "messages_dropped",
    "messages/delayed": "messages_delayed",
    "client/connected": "connections_total",
    "client/refused": "refused_total",
    "session/takenover": "taken_over_total",
}


def package_version() -> str:
    """The release that is installed."""
    try:
        return version("headwater")
    except PackageNotFoundError:
        return "source"


def stats_and_metrics(figures: Mapping[str, Any]) -> dict[str, int]:
    """The names behind `$SYS/brokers/<node>/` with their figures, of `node_statistics`."""
    flat = dict(figures)
    flat["subscribers"] = figures["table"]["subscribers"]
    flat["filters"] = figures["table"]["filters_exact"] + figures["table"]["filters_wildcard"]
    flat["retained"] = figures["retained"].get("messages", 0)
    flat["delayed"] = figures["delayed"].get("messages", 0)
    flat["messages_delayed"] = figures["delayed"].get("accepted", 0)
    return {f"stats/{name}": int(flat[key]) for name, key in _STATS.items()} | {
        f"metrics/{name}": int(flat[key]) for name, key in _METRICS.items()
    }


def cluster_figures(heartbeats: Iterable[NodeHeartbeat]) -> dict[str, int]:
    """What all live nodes have together."""
    nodes = list(heartbeats)
    return {
        "nodes/count": len(nodes),
        "connections/count": sum(each.connections for each in nodes),
        "sessions/count": sum(each.sessions for each in nodes),
        "subscriptions/count": sum(each.subscriptions for each in nodes),
    }


class SysTopics:
    """Publishes them. `heartbeats` gives the live nodes, this one among them; `started_ms` is this node's start."""

    def __init__(
        self,
        services: Callable[[], EdgeServices],
        node_id: str,
        heartbeats: Callable[[], Sequence[NodeHeartbeat]],
        started_ms: int,
        *,
        interval_s: float,
        client_events: bool,
    ) -> None:
        self._services = services
        self._prefix = f"$SYS/brokers/{node_id}/"
        self._node_id = node_id
        self._heartbeats = heartbeats
        self._started_ms = started_ms
        self._interval_s = interval_s
        self._client_events = client_events
        self._highest: dict[str, int] = {}

    async def run(self) -> None:
        """Publish everything at every interval, for ever."""
        while True:
            self.publish()
            await asyncio.sleep(self._interval_s)

    def publish(self) -> None:
        """Everything, now."""
        now_ms = self._services().wall_ms()
        nodes = sorted(self._heartbeats(), key=lambda each: each.node_id)
        self._append("$SYS/brokers", ",".join(each.node_id for each in nodes).encode(), retain=True)
        self._append(self._prefix + "version", package_version().encode(), retain=True)
        self._append(self._prefix + "sysdescr", DESCRIPTION.encode(), retain=True)
        self._append(self._prefix + "uptime", b"%d" % ((now_ms - self._started_ms) // 1000))
        self._append(self._prefix + "datetime", datetime.fromtimestamp(now_ms / 1000, UTC).isoformat().encode())
        for name, figure in self._with_highest(stats_and_metrics(node_statistics(self._services()))).items():
            self._append(self._prefix + name, b"%d" % figure)
        if nodes and nodes[0].node_id == self._node_id:
            for name, figure in cluster_figures(nodes).items():
                self._append("$SYS/cluster/" + name, b"%d" % figure)

    def client(self, kind: str, client_id: str, detail: Mapping[str, Any]) -> None:
        """A client has come or gone. A client id with a wildcard makes no Topic Name: left out."""
        if not self._client_events or "+" in client_id or "#" in client_id:
            return
        now_ms = self._services().wall_ms()
        told: dict[str, Any] = {"clientid": client_id, "ipaddress": detail.get("peer", ""), f"{kind}_at": now_ms}
        handler = self._services().clients.get(client_id)
        connect = handler.engine.connect if handler is not None else None
        if kind == "connected" and connect is not None:
            told["username"] = connect.user_name
            told["proto_ver"] = connect.protocol_version
            told["keepalive"] = connect.keep_alive_s
            told["clean_start"] = connect.clean_start
        elif kind == "disconnected":
            told["reason"] = detail.get("reason", "")
        headers = [(HEADER_CONTENT_TYPE, b"application/json")]
        self._append(f"{self._prefix}clients/{client_id}/{kind}", orjson.dumps(told), headers)

    def _with_highest(self, figures: dict[str, int]) -> dict[str, int]:
        """With the highest that each count was, as far as it was looked at."""
        for name in [name for name in figures if name.endswith("/count")]:
            highest = self._highest[name] = max(self._highest.get(name, 0), figures[name])
            figures[name.removesuffix("count") + "max"] = highest
        return figures

    def _append(self, topic_name: str, payload: bytes, more: Sequence[Header] = (), *, retain: bool = False) -> None:
        services = self._services()
        destination = services.routes.destination(topic_name)
        headers: list[Header] = [(HEADER_TOPIC, topic_name.encode()), (HEADER_QOS, b"0"), *more]
        if retain and services.retained is not None:
            headers.append((HEADER_RETAIN, b"1"))
            if services.retained.has_room_for(headers[0][1], payload):
                services.retained.publish(destination, payload, headers, None, None)
                return
        services.publisher.append(destination, payload, headers, None, None)
