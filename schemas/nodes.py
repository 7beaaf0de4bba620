"""The heartbeat that each edge node writes to ``headwater.nodes`` under its node id; a tombstone is a clean leave."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import orjson

from schemas.errors import RecordError

HEARTBEAT_VERSION = 1
HEARTBEAT_INTERVAL_S = 2.0
HEARTBEAT_STALE_S = 6.0  # three missed heartbeats
STATE_UP = "up"
STATE_DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """What a node says of itself. ``consumed`` lists (Kafka topic, partition, position) of its consumer,
    ``consumed_exactly_once`` those of the second one, which reads the QoS 2 twins. ``layouts`` lists (Kafka topic,
    revision, generation): the last record of a resize that the node has done, and the oldest generation of partitions
    that its clients still need.

    ``incarnation`` differs at each start of the process, so a restarted node is told from one that paused.
    Times are milliseconds since the epoch on the node's own clock; staleness is judged by when a heartbeat was received
    (by Kafka's append time while the view is loaded).
    """

    node_id: str
    incarnation: str
    started_ms: int
    sent_ms: int
    mqtt_address: str
    http_address: str
    state: str = STATE_UP
    connections: int = 0
    sessions: int = 0
    subscriptions: int = 0
    consumed: tuple[tuple[str, int, int], ...] = ()
    consumed_exactly_once: tuple[tuple[str, int, int], ...] = ()
    messages_in_per_s: float = 0.0
    messages_out_per_s: float = 0.0
    lag_records: int = 0
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    routes_version: str = ""
    layouts: tuple[tuple[str, int, int], ...] = ()
    software_version: str = ""
    version: int = HEARTBEAT_VERSION

    def to_json(self) -> bytes:
        """The record value."""
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> NodeHeartbeat:
        """Read a record value; unknown fields are ignored. Raises RecordError when a needed one is missing or wrong."""
        values = json_object(data, "heartbeat")
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        try:
            for name in ("consumed", "consumed_exactly_once", "layouts"):
                known[name] = tuple((str(t), int(p), int(o)) for t, p, o in known.get(name, ()))
            heartbeat = cls(**known)
        except (TypeError, ValueError) as error:
            raise RecordError(f"heartbeat: {error}") from None
        _check_types(heartbeat)
        return heartbeat


_TEXTS = ("node_id", "incarnation", "mqtt_address", "http_address", "state", "routes_version", "software_version")
_INTEGERS = (
    "started_ms", "sent_ms", "connections", "sessions", "subscriptions", "lag_records", "memory_bytes", "version"
)  # fmt: skip
_NUMBERS = ("messages_in_per_s", "messages_out_per_s", "cpu_percent")
_FIELD_TYPES: tuple[tuple[tuple[str, ...], tuple[type, ...]], ...] = (
    (_TEXTS, (str,)),
    (_INTEGERS, (int,)),
    (_NUMBERS, (int, float)),
)


def _check_types(heartbeat: NodeHeartbeat) -> None:
    for names, kinds in _FIELD_TYPES:
        for name in names:
            if type(getattr(heartbeat, name)) not in kinds:
                raise RecordError(f"heartbeat: field {name!r} has the wrong type")


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object out of stored bytes; raises RecordError that names ``what`` it was meant to be."""
    try:
        values = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{what}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise RecordError(f"{what}: not a JSON object")
    return values
