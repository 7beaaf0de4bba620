"""What a job says on stdout: one line per event, JSON or words."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


class Reporter:
    """Writes events to stdout; safe to call from any thread."""

    def __init__(self, job: str, as_json: bool) -> None:
        self._job = job
        self._as_json = as_json
        self._lock = threading.Lock()

    def say(self, event: str, text: str, **detail: Any) -> None:
        """One event: `text` for people, `detail` for programs."""
        if self._as_json:
            self.line({"event": event, "job": self._job, **detail})
        else:
            self._write(f"{self._job}: {text}")

    def line(self, content: dict[str, Any]) -> None:
        self._write(json.dumps(content, separators=(",", ":")))

    def _write(self, line: str) -> None:
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


# Takes what `progress_line` makes of a batch; called from Spark's listener thread, so it must not wait.
ProgressTarget = Callable[[dict[str, Any]], None]


class ProgressListener(StreamingQueryListener):
    """Tells its targets of each finished batch. A real-time query finishes one per interval of its trigger."""

    def __init__(self, *targets: ProgressTarget) -> None:
        self._targets = targets

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        line = progress_line(json.loads(event.progress.json))
        for target in self._targets:
            target(line)


def progress_line(progress: dict[str, Any]) -> dict[str, Any]:
    """What matters of Spark's progress: rows, rates, lag, state and rows dropped because they came too late."""
    states = progress.get("stateOperators") or [{}]
    lag = partition_lags(progress.get("sources") or [])
    metrics = [source.get("metrics") or {} for source in progress.get("sources") or []]
    behind_max = max((int(one.get("maxOffsetsBehindLatest") or 0) for one in metrics), default=0)
    watermark = (progress.get("eventTime") or {}).get("watermark")
    return {
        "event": "progress",
        "query": progress.get("name"),
        "batch": progress.get("batchId"),
        "at": progress.get("timestamp"),
        "rows": progress.get("numInputRows"),
        "rows_out": max((progress.get("sink") or {}).get("numOutputRows") or 0, 0),
        "rows_per_s": progress.get("processedRowsPerSecond"),
        "duration_ms": (progress.get("durationMs") or {}).get("triggerExecution"),
        "lag_records_max": max((behind_max, *lag.values())),
        "lag_records": lag,
        "watermark": watermark,
        "watermark_delay_s": _seconds_between(watermark, progress.get("timestamp")),
        "state_rows": sum(state.get("numRowsTotal") or 0 for state in states),
        "state_bytes": sum(state.get("memoryUsedBytes") or 0 for state in states),
        "late": sum(state.get("numRowsDroppedByWatermark") or 0 for state in states),
    }


def partition_lags(sources: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Records that are in Kafka and were not read when the batch ended, by `<kafka topic>-<partition>`."""
    lags: dict[str, int] = {}
    for source in sources:
        read, latest = source.get("endOffset"), source.get("latestOffset")
        if not isinstance(read, dict) or not isinstance(latest, dict):
            continue  # no Kafka source
        for kafka_topic, ends in latest.items():
            for partition, end in ends.items():
                position = (read.get(kafka_topic) or {}).get(partition, 0)
                lags[f"{kafka_topic}-{partition}"] = max(0, int(end) - int(position))
    return lags


def _seconds_between(watermark: str | None, at: str | None) -> float | None:
    """How far the watermark is behind the clock; None before the first row gave one (Spark then says 1970)."""
    if watermark is None or at is None or watermark.startswith("1970-"):
        return None
    return round((datetime.fromisoformat(at) - datetime.fromisoformat(watermark)).total_seconds(), 3)
