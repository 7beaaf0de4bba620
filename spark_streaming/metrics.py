"""A job's Prometheus metrics, from the progress of its queries.

A real-time query reports once per interval of its trigger: its figures are that old at most.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from schemas.errors import ConfigurationError

_PREFIX = "headwater_spark_"


class JobMetrics:
    """One registry per job, and the HTTP server that shows it."""

    def __init__(self, job: str) -> None:
        self.registry = CollectorRegistry()
        self._job = job
        self._server: Any = None
        labels = ("job", "query")
        self._counters = {
            field: Counter(_PREFIX + name, text, labels, registry=self.registry)
            for field, name, text in (
                ("rows", "records_in", "records read"),
                ("rows_out", "records_out", "records written, where the sink says"),
                ("late", "late_rows", "rows that came after the watermark and were not counted"),
            )
        }
        self._batches = Counter(_PREFIX + "batches", "batches finished", labels, registry=self.registry)
        self._gauges = {
            field: Gauge(_PREFIX + name, text, labels, registry=self.registry)
            for field, name, text in (
                ("duration_s", "batch_duration_seconds", "how long the last batch took"),
                ("state_rows", "state_rows", "rows in the state store"),
                ("state_bytes", "state_bytes", "memory that the state store uses"),
                ("watermark_delay_s", "watermark_delay_seconds", "how far the watermark was behind the clock"),
                ("finished_s", "last_progress_timestamp_seconds", "when the last batch was reported"),
            )
        }
        where = (*labels, "partition")
        self._lag = Gauge(_PREFIX + "lag_records", "records not read yet", where, registry=self.registry)

    def __call__(self, line: dict[str, Any]) -> None:
        """Take one line of `progress_line`."""
        query = line["query"] or ""
        self._batches.labels(self._job, query).inc()
        for field, counter in self._counters.items():
            counter.labels(self._job, query).inc(line[field] or 0)
        found = {**line, "finished_s": time.time(), "duration_s": (line["duration_ms"] or 0) / 1000}
        for field, gauge in self._gauges.items():
            if found[field] is not None:
                gauge.labels(self._job, query).set(found[field])
        for partition, records in line["lag_records"].items():
            self._lag.labels(self._job, query, partition).set(records)

    def serve(self, host: str, port: int) -> int:
        """Show them on http://host:port/metrics; the port, which was chosen when 0 was asked for."""
        try:
            self._server, _thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise ConfigurationError(f"--metrics-port: cannot listen on {host}:{port}: {error.strerror}") from None
        return int(self._server.server_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
