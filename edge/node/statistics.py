"""One source of figures for /metrics, `$SYS` and the live page: `node_statistics`."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edge.handler.services import EdgeServices


def node_statistics(services: EdgeServices) -> dict[str, Any]:
    """What the node does now and has done since its start; counts are totals, sizes bytes."""
    counters = services.counters
    publisher = services.publisher.statistics()
    deliverer = services.deliverer.statistics()
    catch_up = services.catch_up.statistics()
    return {
        "connections": len(services.connections),
        "clients": len(services.clients),
        "subscriptions": services.table.statistics()["subscriptions"],
        "connections_total": counters.connections_total,
        "refused_total": counters.refused_total,
        "taken_over_total": counters.taken_over_total,
        "bytes_received": counters.bytes_received,
        "bytes_sent": counters.bytes_sent,
        "messages_received": counters.messages_received,
        "messages_qos0_received": (
            counters.messages_received - counters.messages_qos1_received - counters.messages_qos2_received
        ),
        "messages_qos1_received": counters.messages_qos1_received,
        "messages_qos2_received": counters.messages_qos2_received,
        "messages_sent": deliverer["deliveries"] - catch_up["passed_over"] + catch_up["deliveries"],
        "messages_dropped": counters.messages_dropped + publisher["dropped_records"],
        "wills_published": counters.wills_published,
        "payloads_refused": counters.payloads_refused,
        "tasks": len(asyncio.all_tasks(services.loop)),
        "cpu_s": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
        "publisher": publisher,
        "deliverer": {name: value for name, value in deliverer.items() if isinstance(value, int | float)},
        "catch_up": catch_up,
        "gate": services.access.gate.statistics(),
        "bans": services.access.bans.statistics(),
        "table": services.table.statistics(),
        "retained": _retained_statistics(services),
        "history": {name: each for name, each in services.history.statistics().items() if isinstance(each, int)},
        "claims": services.ownership.statistics(),
        "sessions": services.sessions.statistics(),
        "shared_subscriptions": len(services.shared.groups()),
        "exclusive": services.exclusive.statistics() if services.exclusive is not None else {},
        "delayed": services.delayed.statistics() if services.delayed is not None else {},
        "selectors": services.selectors.statistics(),
    }


def _retained_statistics(services: EdgeServices) -> dict[str, int]:
    if services.retained is None or services.pacer is None:
        return {}
    return services.retained.statistics() | services.pacer.statistics()


_TOTALS = frozenset(
    {
        "connections_total",
        "refused_total",
        "taken_over_total",
        "bytes_received",
        "bytes_sent",
        "messages_received",
        "messages_qos0_received",
        "messages_qos1_received",
        "messages_qos2_received",
        "messages_sent",
        "messages_dropped",
        "wills_published",
        "payloads_refused",
        "cpu_s",
    }
)
_COUNTERS_BELOW = frozenset({"publisher", "deliverer", "catch_up", "exclusive", "delayed", "selectors"})
_GAUGES_BELOW = frozenset(
    {
        "bytes",
        "compiled",
        "messages",
        "buffered_bytes",
        "in_flight_batches",
        "lanes",
        "filters",
        "partitions",
        "lag_records",
        "subscribers_behind",
        "partitions_behind",
        "held_records",
        "held_bytes",
    }
)


class NodeCollector(Collector):
    """Turns `node_statistics` into Prometheus metrics named `headwater_…`."""

    def __init__(self, services: EdgeServices) -> None:
        self._services = services

    def collect(self) -> Iterable[Metric]:
        """Every figure as one metric with the label `node`."""
        for name, value in node_statistics(self._services).items():
            if isinstance(value, dict):
                for inner, figure in value.items():
                    counter = name in _COUNTERS_BELOW and inner not in _GAUGES_BELOW
                    yield self._metric(f"{name}_{inner}", figure, counter)
            else:
                yield self._metric(name, value, name in _TOTALS)

    def _metric(self, name: str, value: float, counter: bool) -> Metric:
        family = CounterMetricFamily if counter else GaugeMetricFamily
        metric: Metric = family(f"headwater_{name}", name.replace("_", " "), labels=("node",))
        metric.add_metric([self._services.node_id], value)  # type: ignore[attr-defined]
        return metric


def prometheus_text(services: EdgeServices) -> bytes:
    """The text exposition of all metrics of this node."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(services))
    return generate_latest(registry)
