"""What happened to clients: the JSON records of ``headwater.events``, keyed by client id (presence, audit, Spark)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.errors import RecordError
from schemas.nodes import json_object

EVENT_VERSION = 1
LEDGER_KINDS = frozenset({"delivered", "acknowledged"})  # of sampled messages, where `[events] delivery_sample` says so
EVENT_KINDS = LEDGER_KINDS | {
    *("connected", "disconnected", "subscribed", "unsubscribed", "denied", "dropped", "taken_over", "admin")
}
SPARK_EVENT_KINDS = frozenset({"spark.started", "spark.progress", "spark.terminated"})  # keyed by the job's name


@dataclass(frozen=True, slots=True)
class Event:
    """One event; ``detail`` holds what belongs to its kind (reason code, topic_filter, peer address, ...)."""

    kind: str
    client_id: str
    node_id: str
    at_ms: int
    detail: dict[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> bytes:
        """The record value."""
        assert self.kind in EVENT_KINDS or self.kind in SPARK_EVENT_KINDS, self.kind
        values = {
            "version": EVENT_VERSION,
            "kind": self.kind,
            "client_id": self.client_id,
            "node_id": self.node_id,
            "at_ms": self.at_ms,
            "detail": self.detail,
        }
        return orjson.dumps(values)

    @classmethod
    def from_json(cls, data: bytes) -> Event:
        """Read a record value; unknown fields are ignored and kinds of a newer version kept. Raises RecordError."""
        values = json_object(data, "event")
        kind, client_id, node_id = (values.get(name) for name in ("kind", "client_id", "node_id"))
        at_ms, detail = values.get("at_ms"), values.get("detail", {})
        if not isinstance(kind, str) or not isinstance(client_id, str) or not isinstance(node_id, str):
            raise RecordError("event: kind, client_id and node_id must be texts")
        if type(at_ms) is not int or not isinstance(detail, dict):
            raise RecordError("event: at_ms must be an integer and detail an object")
        return cls(kind, client_id, node_id, at_ms, detail)
