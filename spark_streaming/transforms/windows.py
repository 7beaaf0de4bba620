"""Windowed statistics per device and metric."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from spark_streaming.durations import Duration

PERCENTILE_ACCURACY = 1000  # the rank is off by 1/1000 at most; exact while a window has fewer readings
STATISTICS = ("count", "min", "max", "mean", "stddev", "last", "last_at")


@dataclass(frozen=True, slots=True)
class Windows:
    """Which windows, how late a reading may be, and which percentiles are wanted (0 < p < 100)."""

    length: Duration
    watermark: Duration
    slide: Duration | None = None  # None: tumbling
    percentiles: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """As it stands in Topic Names: ``1m``, or ``1m-10s`` for windows of a minute that start every ten seconds."""
        return self.length.label if self.slide is None else f"{self.length.label}-{self.slide.label}"

    @property
    def percentile_columns(self) -> tuple[str, ...]:
        return tuple(f"p{percentile}" for percentile in self.percentiles)


def device_windows(readings: DataFrame, windows: Windows) -> DataFrame:
    """One row per device, metric and window: count, min, max, mean, stddev, the last value, and percentiles.

    `readings` has device, metric, value, event_time, kafka_topic, partition, offset. The last value is the one with
    the latest event time, ties broken by its place in Kafka: the same in every run over the same records. stddev is
    the sample's, null for a single reading; percentiles are values that occurred, approximate in large windows.
    """
    position = fn.struct("event_time", "kafka_topic", "partition", "offset", "value")
    slide = (windows.slide or windows.length).spark
    grouped = readings.withWatermark("event_time", windows.watermark.spark).groupBy(
        "device", "metric", fn.window("event_time", windows.length.spark, slide).alias("bounds")
    )
    aggregates = [
        fn.count("value").alias("count"),
        fn.min("value").alias("min"),
        fn.max("value").alias("max"),
        fn.avg("value").alias("mean"),
        fn.stddev_samp("value").alias("stddev"),
        fn.max(position).alias("latest"),
    ]
    if windows.percentiles:
        shares = [percentile / 100 for percentile in windows.percentiles]
        aggregates.append(fn.percentile_approx("value", shares, PERCENTILE_ACCURACY).alias("percentiles"))
    return grouped.agg(*aggregates).select(
        "device",
        "metric",
        fn.col("bounds.start").alias("window_start"),
        fn.col("bounds.end").alias("window_end"),
        "count",
        "min",
        "max",
        "mean",
        "stddev",
        *(fn.col("percentiles")[number].alias(name) for number, name in enumerate(windows.percentile_columns)),
        fn.col("latest.value").alias("last"),
        fn.col("latest.event_time").alias("last_at"),
    )


def with_heartbeat(readings: DataFrame, idle_after: Duration) -> DataFrame:
    """Readings, and one a second of no device whose event time is `idle_after` behind the clock.

    The watermark is the latest event time of all partitions, so an idle partition does not hold it; but when nobody
    sends, it stands, and a window's final result waits for the next reading. The heartbeat moves it. Its rows make
    windows of no device, which `without_heartbeat` takes out again.
    """
    clock = readings.sparkSession.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1)
    columns = {
        "device": fn.lit(""),
        "metric": fn.lit(""),
        "value": fn.lit(float("nan")),
        "event_time": fn.col("timestamp") - fn.expr(f"INTERVAL {idle_after.spark}"),
        "kafka_topic": fn.lit(""),
        "partition": fn.lit(0),
        "offset": fn.lit(0).cast("long"),
    }
    beats = clock.load().select(*(column.alias(name) for name, column in columns.items()))
    return readings.select(*columns).unionByName(beats)


def without_heartbeat(stats: DataFrame) -> DataFrame:
    """The windows of devices.

    Told by a value that no reading has: a condition on the device would be pushed down below the watermark, and the
    heartbeat would not reach it.
    """
    return stats.where(~fn.isnan("last"))
