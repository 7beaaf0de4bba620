"""What can go wrong around a Spark job; wrong options are schemas' ConfigurationError.

HeadwaterError
└── SparkJobError              the job cannot start or go on; the text says what to do
    ├── JavaUnusable           no Java that runs Spark
    ├── PysparkMissing         the `spark` extra is not installed
    ├── JarsUnavailable        the Kafka connector cannot be had
    ├── KafkaUnusable          Kafka does not answer, or lacks a Kafka topic
    ├── CheckpointMismatch     the checkpoint belongs to a job of another shape
    └── RecordsLost            Kafka has deleted what the job has not read
"""

from __future__ import annotations

from schemas.errors import HeadwaterError


class SparkJobError(HeadwaterError):
    """The job cannot start or go on; the text says what to do."""


class JavaUnusable(SparkJobError):  # noqa: N818 (names a state, as KeyboardInterrupt)
    """No Java that runs Spark."""


class PysparkMissing(SparkJobError):  # noqa: N818 (names a state, as KeyboardInterrupt)
    """The `spark` extra is not installed."""


class JarsUnavailable(SparkJobError):  # noqa: N818 (names a state, as KeyboardInterrupt)
    """The Kafka connector cannot be had."""


class KafkaUnusable(SparkJobError):  # noqa: N818 (names a state, as KeyboardInterrupt)
    """Kafka does not answer, or lacks a Kafka topic."""


class CheckpointMismatch(SparkJobError):  # noqa: N818 (names a state, as KeyboardInterrupt)
    """The checkpoint belongs to a job of another shape."""


class RecordsLost(SparkJobError):  # noqa: N818 (names a state, as KeyboardInterrupt)
    """Kafka has deleted what the job has not read."""
