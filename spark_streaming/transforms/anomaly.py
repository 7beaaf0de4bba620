"""From records to messages of devices, and from alerts to Kafka records; and the stateless range check."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from schemas.records import HEADER_CONTENT_TYPE, HEADER_TOPIC, HEADER_USER_PREFIX
from schemas.routes import ANALYTICS
from spark_streaming.anomaly.rules import EVERY_METRIC, RANGE, Range
from spark_streaming.transforms import event_time, naming, payload
from spark_streaming.transforms.device_stats import ReadingRules
from spark_streaming.transforms.results import header

TOPIC_NAME_ROOT = "analytics/alerts"
OUT = "out"  # the state of a stateless alert: this reading is out of range, nothing is known of those before


def arrivals(parsed_records: DataFrame, rules: ReadingRules) -> DataFrame:
    """One row per readable message, with its numbers; a message without numbers is a sign of life as well."""
    stated = event_time.clamped(fn.col("stated_time"), fn.col("timestamp"), rules.ahead_max.seconds)
    return parsed_records.where(fn.col("topic_name").isNotNull()).select(
        naming.device(fn.col("topic_name"), rules.routes, rules.device_levels).alias("device"),
        fn.col("topic").alias("kafka_topic"),
        "partition",
        "offset",
        fn.unix_millis("timestamp").alias("ingest_ms"),
        fn.unix_millis(stated).alias("event_ms"),
        fn.coalesce(
            payload.metrics(fn.col("fields")), fn.array().cast("array<struct<metric:string,value:double>>")
        ).alias("metrics"),
    )


def alert_records(alerts: DataFrame) -> DataFrame:
    """Rows of device, kind, state, id, body as Kafka records for `analytics/alerts/<kind>/<device>`."""
    topic_name = fn.concat_ws("/", fn.lit(TOPIC_NAME_ROOT), "kind", "device")
    headers = fn.array(
        header(HEADER_TOPIC, topic_name),
        header(HEADER_CONTENT_TYPE, fn.lit("application/json")),
        header(f"{HEADER_USER_PREFIX}id", fn.col("id")),
        header(f"{HEADER_USER_PREFIX}state", fn.col("state")),
    )
    return alerts.select(
        fn.col("device").cast("binary").alias("key"),
        fn.col("body").cast("binary").alias("value"),
        headers.alias("headers"),
        fn.lit(ANALYTICS).alias("topic"),
    )


def out_of_range(readings: DataFrame, ranges: Mapping[str, Range]) -> DataFrame:
    """Each reading outside its metric's range, as an alert of its own: what real-time mode can do without state."""
    wrong = readings.where(_is_outside(fn.col("metric"), fn.col("value"), ranges))
    place = fn.concat_ws("/", "kafka_topic", "partition", "offset")
    identity = fn.substring(fn.sha2(fn.concat_ws("\x1f", fn.lit(RANGE), "device", "metric", place), 256), 1, 32)
    named = wrong.select("*", identity.alias("id"), fn.lit(RANGE).alias("kind"), fn.lit(OUT).alias("state"))
    at = fn.col("event_time").alias("at")
    body = fn.to_json(fn.struct("id", "kind", "state", "device", "metric", "value", at))
    return named.select("device", "kind", "state", "id", body.alias("body"))


def _is_outside(metric: Column, value: Column, ranges: Mapping[str, Range]) -> Column:
    found = _outside(value, ranges[EVERY_METRIC]) if EVERY_METRIC in ranges else fn.lit(False)
    for name, limits in ranges.items():
        if name != EVERY_METRIC:
            found = fn.when(metric == name, _outside(value, limits)).otherwise(found)
    return found


def _outside(value: Column, limits: Range) -> Column:
    below = value < limits.low if limits.low is not None else fn.lit(False)
    above = value > limits.high if limits.high is not None else fn.lit(False)
    return below | above
