"""What can go wrong with the embedded Kafka; each text says what to do about it.

EmbeddedKafkaError
 +- JavaNotFound        no Java 17 or newer
 +- JarsUnavailable     a jar can neither be found in the cache nor be downloaded, or its checksum is wrong
 +- DataFolderInUse     another Kafka runs on the same data folder
 +- KafkaDidNotStart    the child ended or did not answer in time; the text carries the tail of its log
"""

from __future__ import annotations

from schemas.errors import HeadwaterError


class EmbeddedKafkaError(HeadwaterError):
    """Root of this package's errors."""


class JavaNotFound(EmbeddedKafkaError):  # noqa: N818
    """No Java 17 or newer on this machine."""


class JarsUnavailable(EmbeddedKafkaError):  # noqa: N818
    """Kafka's jars can neither be found nor be downloaded intact."""


class DataFolderInUse(EmbeddedKafkaError):  # noqa: N818
    """Another process runs a Kafka on this data folder."""


class KafkaDidNotStart(EmbeddedKafkaError):  # noqa: N818
    """Kafka's process ended or stayed silent."""
