"""A sink of one's own: a function that takes each micro-batch. Spark repeats a batch after a fault under its number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.errors import ConfigurationError
from spark_streaming.options import Trigger


def batch_writer(
    rows: DataFrame,
    take: Callable[[DataFrame, int], None],
    name: str,
    checkpoint: Path,
    trigger: Trigger,
    output_mode: str = "append",
) -> DataStreamWriter:
    """A writer that calls `take(batch, number)`, ready to `start()`."""
    writer = rows.writeStream.foreachBatch(take).queryName(name).outputMode(output_mode)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if trigger.interval is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger.interval.spark)


def refuse_realtime(job: str, trigger: Trigger) -> None:
    """Raises ConfigurationError for a trigger that such a job cannot have."""
    if trigger.is_realtime:
        raise ConfigurationError(f"--trigger: {job} works in micro-batches; write micro:5s or available-now")
