"""The topic catalogue: what has been seen of each family of Topic Names. Records of ``headwater.catalogue``, compacted.

The key is the family, a Topic Filter; the value is JSON with ``"version": 1``; a tombstone says that nothing has been
seen of the family for long. Written by the Spark job ``quality``, printed by ``headwater topics catalogue``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from schemas.errors import RecordError
from schemas.nodes import json_object

FAMILY_VERSION: Final = 1
PAYLOAD_KINDS: Final = ("json", "text", "binary", "empty")


@dataclass(slots=True)
class FamilyEntry:
    """One family: how much, how often, how well-formed, and with which fields.

    ``fields`` maps the path of each JSON field (``gps.lat``, ``readings[]``) to ``[type, last minute seen]``, minutes
    since the epoch. ``minutes`` are the newest minutes with their messages and malformed ones. ``drift`` are the newest
    changes of the fields.
    """

    family: str
    kafka_topic: str
    messages: int = 0
    payload_bytes: int = 0
    malformed: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    first_ms: int = 0
    last_ms: int = 0
    schema_version: int = 0
    fields: dict[str, list[Any]] = field(default_factory=dict)
    fields_left_out: int = 0
    minutes: list[list[int]] = field(default_factory=list)
    drift: list[dict[str, Any]] = field(default_factory=list)
    fault: str | None = None  # of the last malformed message

    @property
    def error_share(self) -> float:
        """Malformed messages of all, 0 to 1."""
        return self.malformed / self.messages if self.messages else 0.0

    @property
    def recent_error_share(self) -> float:
        """The same in the newest minutes."""
        messages = sum(minute[1] for minute in self.minutes)
        return sum(minute[2] for minute in self.minutes) / messages if messages else 0.0

    @property
    def rate_per_s(self) -> float:
        """Messages a second over the newest minutes, up to the last message."""
        if not self.minutes:
            return 0.0
        start_ms = max(self.first_ms, min(minute[0] for minute in self.minutes) * 60_000)
        return sum(minute[1] for minute in self.minutes) * 1000 / max(1000, self.last_ms - start_ms)

    def to_json(self) -> bytes:
        """The record value; what is computed is there for readers without this class."""
        computed = {
            "error_share": round(self.error_share, 6),
            "recent_error_share": round(self.recent_error_share, 6),
            "rate_per_s": round(self.rate_per_s, 3),
        }
        return orjson.dumps({"version": FAMILY_VERSION, **asdict(self), **computed}, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, data: bytes) -> FamilyEntry:
        """Read a record value; unknown fields are ignored. Raises RecordError."""
        values = json_object(data, "catalogue")
        if values.get("version") != FAMILY_VERSION:
            raise RecordError(f"catalogue: its version is not {FAMILY_VERSION}")
        try:
            return cls(**{name: values[name] for name in cls.__slots__})
        except KeyError as error:
            raise RecordError(f"catalogue: {error.args[0]!r} is missing") from None
