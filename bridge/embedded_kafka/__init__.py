"""A real Apache Kafka without Docker: pinned jars from Maven Central, run by the Java of this machine."""

from bridge.embedded_kafka.errors import (
    DataFolderInUse,
    EmbeddedKafkaError,
    JarsUnavailable,
    JavaNotFound,
    KafkaDidNotStart,
)
from bridge.embedded_kafka.server import EmbeddedKafka

__all__ = [
    "DataFolderInUse",
    "EmbeddedKafka",
    "EmbeddedKafkaError",
    "JarsUnavailable",
    "JavaNotFound",
    "KafkaDidNotStart",
]
