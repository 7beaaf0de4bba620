"""Which messages are followed: decided by their place in Kafka, so that every edge and Spark pick the same ones.

The samples are nested: what a smaller share picks, a larger one picks as well.
"""

from __future__ import annotations

from zlib import crc32

OF = 1_000_000
PER_MILLE_MAX = 1000.0


def threshold(per_mille: float) -> int:
    """What `is_sampled` compares with."""
    return round(per_mille * OF / 1000)


def is_sampled(kafka_topic: str, partition: int, offset: int, below: int) -> bool:
    """Whether the message at this position belongs to the sample."""
    return crc32(b"%b/%d/%d" % (kafka_topic.encode(), partition, offset)) % OF < below
