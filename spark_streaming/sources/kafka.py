"""The Kafka source: message records with headers, and what must be known about Kafka before a query starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j ships no types
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from schemas.errors import ConfigurationError
from schemas.routes import ANALYTICS, DEAD_LETTER, Q2_SUFFIX, Route, message_kafka_topics
from spark_streaming.errors import KafkaUnusable

OUTPUTS = frozenset({ANALYTICS, DEAD_LETTER})  # reading what we write would feed a job its own results
_ADMIN_TIMEOUT_MS = 15_000


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where Kafka is and how to get in; `properties` are Kafka client properties (security.protocol, sasl...)."""

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def spark_options(self) -> dict[str, str]:
        options = {f"kafka.{name}": value for name, value in self.properties.items()}
        return {**options, "kafka.bootstrap.servers": self.bootstrap_servers}


def read_committed(kafka: KafkaSettings) -> KafkaSettings:
    """The same, for reading only what transactions have committed."""
    return replace(kafka, properties={**kafka.properties, "isolation.level": "read_committed"})


def input_kafka_topics(routes: Sequence[Route], *, qos2: bool = False) -> tuple[str, ...]:
    """The routes' Kafka topics without our outputs, with their QoS 2 twins or without.

    Raises ConfigurationError when none is left.
    """
    found = tuple(name for name in message_kafka_topics(routes) if name not in OUTPUTS)
    if not found:
        raise ConfigurationError(
            f"routes: every route leads to {ANALYTICS}, so there is nothing to read; add a route '#'"
        )
    return (*found, *(f"{name}{Q2_SUFFIX}" for name in found)) if qos2 else found


def message_records(
    session: SparkSession,
    kafka: KafkaSettings,
    kafka_topics: Sequence[str],
    *,
    starting_offsets: str,
    accept_data_loss: bool = False,
    batch_records_max: int | None = None,
) -> DataFrame:
    """key, value, headers, topic, partition, offset, timestamp (ingest time) of the records, as a stream."""
    reader = session.readStream.format("kafka").options(**kafka.spark_options)
    reader = reader.option("subscribe", ",".join(kafka_topics)).option("includeHeaders", "true")
    reader = reader.option("startingOffsets", starting_offsets)
    if batch_records_max is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(batch_records_max))
    return reader.option("failOnDataLoss", "false" if accept_data_loss else "true").load()


def end_offsets(kafka: KafkaSettings, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, dict[str, int]]:
    """The end of each partition of the inputs, by Kafka topic and partition number as Spark's JSON has them.

    Asked of Kafka through the connector's own client, before there is a session. Raises KafkaUnusable when Kafka does
    not answer or lacks one of the Kafka topics.
    """
    with kafka_admin(kafka) as admin:
        existing = set(admin.listTopics().names().get())
        if missing := [name for name in (*inputs, *outputs) if name not in existing]:
            raise KafkaUnusable(
                f"Kafka at {kafka.bootstrap_servers} has no {', '.join(missing)}: create them with "
                "`headwater topics apply`, or name your routes with --routes"
            )
        latest = jvm_gateway().org.apache.kafka.clients.admin.OffsetSpec.latest()
        return {name: _offsets_of(admin, name, latest) for name in inputs}


def beginning_offsets(kafka: KafkaSettings, inputs: Sequence[str]) -> dict[str, dict[str, int]]:
    """The oldest record that there is in each partition. Raises KafkaUnusable."""
    with kafka_admin(kafka) as admin:
        earliest = jvm_gateway().org.apache.kafka.clients.admin.OffsetSpec.earliest()
        return {name: _offsets_of(admin, name, earliest) for name in inputs}


def offsets_at(kafka: KafkaSettings, ends: Mapping[str, Mapping[str, int]], at_ms: int) -> dict[str, dict[str, int]]:
    """The first record of each partition that Kafka took at that time or later, else its end. Raises KafkaUnusable."""
    with kafka_admin(kafka) as admin:
        at = jvm_gateway().org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(at_ms)
        found = {name: _offsets_of(admin, name, at) for name in ends}
    return {
        name: {partition: offset if offset >= 0 else ends[name][partition] for partition, offset in partitions.items()}
        for name, partitions in found.items()
    }


def existing_kafka_topics(kafka: KafkaSettings) -> frozenset[str]:
    """The names of all Kafka topics. Raises KafkaUnusable when Kafka does not answer."""
    with kafka_admin(kafka) as admin:
        return frozenset(admin.listTopics().names().get())


@contextmanager
def kafka_admin(kafka: KafkaSettings) -> Iterator[Any]:
    """The connector's admin client. Raises KafkaUnusable where Kafka does not answer, in here or in the body."""
    jvm = jvm_gateway()
    properties = jvm.java.util.Properties()
    for name, value in {**kafka.properties, "bootstrap.servers": kafka.bootstrap_servers}.items():
        properties.setProperty(name, value)
    properties.setProperty("default.api.timeout.ms", str(_ADMIN_TIMEOUT_MS))
    properties.setProperty("request.timeout.ms", str(_ADMIN_TIMEOUT_MS // 2))
    admin = None
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        yield admin
    except Py4JJavaError as error:
        raise KafkaUnusable(
            f"Kafka at {kafka.bootstrap_servers} gives no answer ({_cause(error)}): "
            "check --kafka and --kafka-properties"
        ) from None
    finally:
        if admin is not None:
            admin.close(jvm.java.time.Duration.ofSeconds(1))


def _offsets_of(admin: Any, kafka_topic: str, spec: Any) -> dict[str, int]:
    jvm = jvm_gateway()
    names = jvm.java.util.ArrayList()
    names.add(kafka_topic)
    described = admin.describeTopics(names).allTopicNames().get()
    wanted = jvm.java.util.HashMap()
    partitions = [
        jvm.org.apache.kafka.common.TopicPartition(kafka_topic, one.partition())
        for one in described.get(kafka_topic).partitions()
    ]
    for partition in partitions:
        wanted.put(partition, spec)
    offsets = admin.listOffsets(wanted).all().get()
    return {str(one.partition()): int(offsets.get(one).offset()) for one in partitions}


def jvm_gateway() -> Any:
    """py4j's view of the JVM, which spark-submit has started before there is a session."""
    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _cause(error: Any) -> str:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString()).rsplit(".", 1)[-1] if cause.getMessage() is None else str(cause.getMessage())
