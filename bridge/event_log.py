"""What happened to clients, appended to `headwater.events`: presence, audit, input for Spark.

Fire and forget: no client ever waits for an event, and when Kafka is away the newest are dropped and counted by the
publisher. Denials come from whoever floods us, so they are sampled: so many a second, and the next one says how many
were left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from bridge.log import Headers
from bridge.murmur2 import partition_for_key
from bridge.partitioning import Destination
from schemas.catalogue import EVENTS, catalogue
from schemas.events import EVENT_KINDS, Event

SAMPLED_KINDS = frozenset({"denied", "dropped"})
SAMPLED_PER_S = 50  # of each sampled kind and node: enough to see who, too few to hurt
TEXT_LENGTH_MAX = 1024  # of each text in an event's detail; Topic Filters may be longer than that
_CONTENT_TYPE = (("content-type", b"application/json"),)


class AppendRecord(Protocol):
    """`Publisher.append`; with the sink None nobody is told what became of the record."""

    def __call__(
        self, destination: Destination, value: bytes | None, headers: Headers, sink: None, token: None
    ) -> None: ...


class EventLog:
    """Appends this node's events through one narrow callable. Never waits, never raises for what a client did."""

    def __init__(
        self,
        append: AppendRecord,
        node_id: str,
        *,
        partitions: int | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._append = append
        self._node_id = node_id
        self._partitions = partitions or next(spec.partitions for spec in catalogue() if spec.name == EVENTS)
        self._clock_ms = clock_ms
        self._counts = dict.fromkeys(sorted(EVENT_KINDS), 0)
        self._second = 0
        self._this_second = dict.fromkeys(SAMPLED_KINDS, 0)
        self._left_out = dict.fromkeys(SAMPLED_KINDS, 0)

    def record(self, kind: str, client_id: str, **detail: Any) -> None:
        """Append one event; `kind` is one of schemas.events.EVENT_KINDS, `detail` what orjson can write."""
        assert kind in EVENT_KINDS, kind
        self._counts[kind] += 1
        now_ms = self._clock_ms()
        if kind in SAMPLED_KINDS:
            if not self._is_sampled(kind, now_ms // 1000):
                self._left_out[kind] += 1
                return
            if left_out := self._left_out[kind]:
                detail["left_out"] = left_out
                self._left_out[kind] = 0
        event = Event(
            kind, client_id, self._node_id, now_ms, {name: _shortened(value) for name, value in detail.items()}
        )
        key = client_id.encode("utf-8", "replace")
        destination = Destination(EVENTS, partition_for_key(key, self._partitions), key)
        self._append(destination, event.to_json(), _CONTENT_TYPE, None, None)

    def statistics(self) -> dict[str, int]:
        """Events by kind, sampled ones that were left out included."""
        return dict(self._counts)

    def _is_sampled(self, kind: str, second: int) -> bool:
        if second != self._second:
            self._second = second
            self._this_second = dict.fromkeys(SAMPLED_KINDS, 0)
        self._this_second[kind] += 1
        return self._this_second[kind] <= SAMPLED_PER_S


def _shortened(value: Any) -> Any:
    return value[:TEXT_LENGTH_MAX] if isinstance(value, str) else value
