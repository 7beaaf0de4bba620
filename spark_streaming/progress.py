"""What a job says on stdout: one line per event, JSON or words."""

from __future__ import annotations

import json
import sys
import threading
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


class ProgressListener(StreamingQueryListener):
    """A JSON line per finished batch. A real-time query finishes one per interval of its trigger."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._reporter.line(progress_line(json.loads(event.progress.json)))


def progress_line(progress: dict[str, Any]) -> dict[str, Any]:
    """What matters of Spark's progress: rows, rates, lag, state and rows dropped because they came too late."""
    states = progress.get("stateOperators") or [{}]
    metrics = [source.get("metrics") or {} for source in progress.get("sources") or []]
    return {
        "event": "progress",
        "query": progress.get("name"),
        "batch": progress.get("batchId"),
        "at": progress.get("timestamp"),
        "rows": progress.get("numInputRows"),
        "rows_per_s": progress.get("processedRowsPerSecond"),
        "duration_ms": (progress.get("durationMs") or {}).get("triggerExecution"),
        "lag_records_max": max((int(one.get("maxOffsetsBehindLatest") or 0) for one in metrics), default=0),
        "watermark": (progress.get("eventTime") or {}).get("watermark"),
        "state_rows": sum(state.get("numRowsTotal") or 0 for state in states),
        "state_bytes": sum(state.get("memoryUsedBytes") or 0 for state in states),
        "late_rows_dropped": sum(state.get("numRowsDroppedByWatermark") or 0 for state in states),
    }
