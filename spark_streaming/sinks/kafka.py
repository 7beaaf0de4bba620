"""The Kafka sink: rows of key, value, headers, topic."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streaming.options import Trigger
from spark_streaming.sources.kafka import KafkaSettings

# A repeated record after a fault is possible (Spark's Kafka sink is at least once): records carry deterministic ids.
_PRODUCER = {"kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.linger.ms": "0", "includeHeaders": "true"}


def kafka_writer(
    rows: DataFrame, kafka: KafkaSettings, name: str, checkpoint: Path, output_mode: str, trigger: Trigger
) -> DataStreamWriter:
    """A writer that appends the rows to Kafka, ready to `start()`."""
    options = {**_PRODUCER, **kafka.spark_options, "checkpointLocation": str(checkpoint)}
    writer = rows.writeStream.format("kafka").options(**options).queryName(name).outputMode(output_mode)
    if trigger.interval is None:
        return writer.trigger(availableNow=True)
    if trigger.is_realtime:
        return writer.trigger(realTime=trigger.interval.spark)  # type: ignore[call-overload, no-any-return]  # not in its stub
    return writer.trigger(processingTime=trigger.interval.spark)


def write_records(rows: DataFrame, kafka: KafkaSettings) -> None:
    """Append the rows of a batch to Kafka, now."""
    rows.write.format("kafka").options(**_PRODUCER, **kafka.spark_options).save()
