"""Windowed statistics per device and metric."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from spark_streaming.durations import Duration


def device_windows(readings: DataFrame, window: Duration, watermark: Duration) -> DataFrame:
    """One row per device, metric and tumbling window: count, min, max, mean and the last value.

    `readings` has device, metric, value, event_time, kafka_topic, partition, offset. The last value is the one with
    the latest event time, ties broken by its place in Kafka: the same in every run over the same records.
    """
    position = fn.struct("event_time", "kafka_topic", "partition", "offset", "value")
    grouped = readings.withWatermark("event_time", watermark.spark).groupBy(
        "device", "metric", fn.window("event_time", window.spark).alias("bounds")
    )
    found = grouped.agg(
        fn.count("value").alias("count"),
        fn.min("value").alias("min"),
        fn.max("value").alias("max"),
        fn.avg("value").alias("mean"),
        fn.max(position).alias("latest"),
    )
    return found.select(
        "device",
        "metric",
        fn.col("bounds.start").alias("window_start"),
        fn.col("bounds.end").alias("window_end"),
        "count",
        "min",
        "max",
        "mean",
        fn.col("latest.value").alias("last"),
        fn.col("latest.event_time").alias("last_at"),
    )
