"""What happens to a job, in `headwater.events`: spark.started, spark.progress, spark.terminated, keyed by its name.

Written through the connector's own Kafka client. Nothing waits for an event, and a job runs on without them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j ships no types

from schemas.catalogue import EVENTS
from schemas.events import Event
from spark_streaming.sources.kafka import KafkaSettings, existing_kafka_topics, jvm_gateway

PROGRESS_EVERY_S = 10.0  # of each query; short micro-batches must not fill the audit trail
_BLOCK_MS_MAX = 2_000  # how long a send may wait for Kafka: Spark's listener thread waits with it
_CLOSE_S = 2

_NOT_IN_EVENTS = frozenset({"event", "lag_records"})  # the lag of each partition is a metric


class EventWriter:
    """Appends a job's events; says nothing where there is no Kafka topic for them."""

    def __init__(
        self, kafka: KafkaSettings, job: str, clock_s: Callable[[], float] = time.monotonic, producer: Any = None
    ) -> None:
        self._job = job
        self._node_id = f"spark/{socket.gethostname()}/{os.getpid()}"
        self._clock_s = clock_s
        self._next_s: dict[str, float] = {}
        self._producer = producer if producer is not None else _producer(kafka)

    def record(self, kind: str, **detail: Any) -> None:
        """Append one event."""
        if self._producer is None:
            return
        event = Event(f"spark.{kind}", "", self._node_id, time.time_ns() // 1_000_000, {"job": self._job, **detail})
        with suppress(Py4JError):  # Kafka is away: the job's own sink says so louder
            self._producer.send(self._job, event.to_json().decode())

    def __call__(self, line: dict[str, Any]) -> None:
        """One line of `progress_line`, but no more than one per query in PROGRESS_EVERY_S."""
        query, now_s = line["query"] or "", self._clock_s()
        if now_s >= self._next_s.get(query, 0.0):
            self._next_s[query] = now_s + PROGRESS_EVERY_S
            self.record("progress", **{name: value for name, value in line.items() if name not in _NOT_IN_EVENTS})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._producer is not None:
            with suppress(Py4JError):
                self._producer.close()


class _KafkaProducer:
    """A Java KafkaProducer of texts for one Kafka topic."""

    def __init__(self, kafka: KafkaSettings, kafka_topic: str) -> None:
        self._jvm = jvm_gateway()
        self._kafka_topic = kafka_topic
        properties = self._jvm.java.util.Properties()
        settings = {
            **kafka.properties,
            "bootstrap.servers": kafka.bootstrap_servers,
            "max.block.ms": str(_BLOCK_MS_MAX),
            "client.id": "headwater-spark-events",
        }
        for name, value in settings.items():
            properties.setProperty(name, value)
        texts = self._jvm.org.apache.kafka.common.serialization.StringSerializer
        self._producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(properties, texts(), texts())

    def send(self, key: str, value: str) -> None:
        self._producer.send(self._jvm.org.apache.kafka.clients.producer.ProducerRecord(self._kafka_topic, key, value))

    def close(self) -> None:
        self._producer.close(self._jvm.java.time.Duration.ofSeconds(_CLOSE_S))


def _producer(kafka: KafkaSettings) -> _KafkaProducer | None:
    return _KafkaProducer(kafka, EVENTS) if EVENTS in existing_kafka_topics(kafka) else None
