"""The one table of Kafka topics: admin code creates and checks them from it, the documentation is printed from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from schemas.routes import ANALYTICS, DEAD_LETTER, DEFAULT_ROUTES, Route

CLAIMS = "headwater.claims"
SESSIONS = "headwater.sessions"
RETAINED = "headwater.retained"
NODES = "headwater.nodes"
EVENTS = "headwater.events"
CONTROL = "headwater.control"
DELAYED = "headwater.delayed"
CATALOGUE = "headwater.catalogue"

MESSAGE_BYTES_MAX = 2 * 1024 * 1024  # a 1 MB packet with its headers, and room for a batch of one
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MESSAGE_RETENTION_MS = 7 * DAY_MS  # an offline session's queue is the log: session expiry is capped to this less 24 h


@dataclass(frozen=True, slots=True)
class KafkaTopicSpec:
    """How one Kafka topic must be made; ``config`` is complete, ``cleanup.policy`` included."""

    name: str
    partitions: int
    cleanup_policy: str
    key: str
    value: str
    why: str
    config: Mapping[str, str] = field(hash=False)


def catalogue(routes: Iterable[Route] = DEFAULT_ROUTES) -> tuple[KafkaTopicSpec, ...]:
    """Every Kafka topic that an installation with these routes needs, each once."""
    specs: dict[str, KafkaTopicSpec] = {}
    for route in routes:
        for spec in _route_specs(route):
            specs.setdefault(spec.name, spec)
    for spec in _FIXED_SPECS:
        specs.setdefault(spec.name, spec)
    return tuple(specs.values())


def markdown_table(routes: Iterable[Route] = DEFAULT_ROUTES) -> str:
    """The catalogue as a Markdown table, for the documentation."""
    lines = [
        "| Kafka topic | partitions | key | value | cleanup | settings | why |",
        "|---|---|---|---|---|---|---|",
    ]
    for spec in catalogue(routes):
        settings = ", ".join(f"{name}={value}" for name, value in spec.config.items() if name != "cleanup.policy")
        cells = (f"`{spec.name}`", str(spec.partitions), spec.key, spec.value, spec.cleanup_policy, settings, spec.why)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _spec(
    name: str, partitions: int, cleanup_policy: str, key: str, value: str, why: str, **config: int
) -> KafkaTopicSpec:
    settings = {"cleanup.policy": cleanup_policy, "message.timestamp.type": "LogAppendTime"}
    settings["max.message.bytes"] = str(MESSAGE_BYTES_MAX)
    settings.update({setting.replace("_", "."): str(value) for setting, value in config.items()})
    return KafkaTopicSpec(name, partitions, cleanup_policy, key, value, why, settings)


def _route_specs(route: Route) -> tuple[KafkaTopicSpec, KafkaTopicSpec]:
    key = "the whole Topic Name" if route.key is None else route.key
    if route.producer_keys:
        key += ", or what a Kafka producer chose"
    first = "JSON" if route.kafka_topic == ANALYTICS else "payload, byte for byte"
    why = f"QoS 0 and 1 messages of {route.filter}"
    if route.kafka_topic == ANALYTICS:
        why = f"Spark results; also delivered to MQTT subscribers of {route.filter}"
    twin_why = f"QoS 2 messages of {route.filter}, read committed: no QoS 0/1 reader waits behind a transaction"
    partitions = route.partitions_total
    return (
        _spec(route.kafka_topic, partitions, "delete", key, first, why, retention_ms=MESSAGE_RETENTION_MS),
        _spec(
            route.q2_kafka_topic,
            partitions,
            "delete",
            key,
            "payload, byte for byte",
            twin_why,
            retention_ms=MESSAGE_RETENTION_MS,
        ),
    )


# Compacted topics: a tombstone stays readable for a day, so that an edge that was away sees it; a segment is rolled
# after an hour so that compaction can reach it. claims and sessions have equal counts: one client, one number.
_FIXED_SPECS = (
    _spec(
        CLAIMS,
        12,
        "compact",
        "client id",
        "claim, JSON",
        "who owns a session; the claim's offset is the owner epoch",
        segment_ms=HOUR_MS,
        min_compaction_lag_ms=HOUR_MS // 4,  # a new owner waits for those before it, for ten minutes at most
        delete_retention_ms=DAY_MS,
    ),
    _spec(
        SESSIONS,
        12,
        "compact",
        "client id and epoch",
        "subscriptions, positions, in flight",
        "durable sessions",
        segment_ms=HOUR_MS,
        delete_retention_ms=DAY_MS,
    ),
    _spec(
        RETAINED,
        12,
        "compact",
        "Topic Name",
        "payload and source position",
        "materialised retained messages",
        segment_ms=HOUR_MS,
        delete_retention_ms=DAY_MS,
    ),
    _spec(
        DELAYED,
        4,  # each is published from by one edge at a time, with a transactional producer of its own
        "compact",
        "unique per message",
        "payload, byte for byte",
        "delayed messages until they are due",
        segment_ms=HOUR_MS,
        delete_retention_ms=DAY_MS,
    ),
    _spec(
        NODES,
        1,
        "compact",
        "node id",
        "heartbeat, address, load, routes version",
        "membership, expiry, cluster view",
        segment_ms=HOUR_MS // 6,  # a heartbeat every 2 s: keep what a starting edge must read small
        delete_retention_ms=HOUR_MS,
    ),
    _spec(
        EVENTS,
        4,
        "delete",
        "client id",
        "connected, disconnected, subscribed, denied, dropped, JSON",
        "presence, audit, Spark",
        retention_ms=MESSAGE_RETENTION_MS,
    ),
    _spec(
        CONTROL,
        1,
        "compact",
        "kind and id",
        "routes, ACL, bans, auto-subscriptions",
        "configuration with history, hot on every edge",
        segment_ms=DAY_MS,
        delete_retention_ms=DAY_MS,
    ),
    _spec(
        CATALOGUE,
        1,
        "compact",
        "family, a Topic Filter",
        "fields, rates, error share, JSON",
        "topic catalogue, written by Spark",
        segment_ms=HOUR_MS,
        delete_retention_ms=DAY_MS,
    ),
    _spec(
        DEAD_LETTER,
        4,
        "delete",
        "as source",
        "as source, with a reason header",
        "nothing is thrown away silently",
        retention_ms=2 * MESSAGE_RETENTION_MS,
    ),
    _spec(
        ANALYTICS,
        4,
        "delete",
        "device or key",
        "JSON",
        "Spark results (no route delivers them to MQTT)",
        retention_ms=MESSAGE_RETENTION_MS,
    ),
)
