"""From Kafka records to device statistics and dead letters, as Kafka records again.

``records`` are the Kafka source's columns: key, value, headers, topic, partition, offset, timestamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from schemas.records import HEADER_CONTENT_TYPE
from schemas.routes import DEFAULT_ROUTES, Route
from spark_streaming.durations import Duration
from spark_streaming.transforms import event_time, naming, payload

_SOURCE_COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
AHEAD_MAX = Duration(10, "s")  # NTP keeps clocks within milliseconds; ten seconds is a bad one


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """How records become readings."""

    routes: tuple[Route, ...] = DEFAULT_ROUTES
    topic_filters: tuple[str, ...] = ()  # none: all
    device_levels: tuple[int, int | None] | None = None  # None: as the route says
    use_ingest_time: bool = False  # True: the payload's time fields are not looked at
    ahead_max: Duration = AHEAD_MAX
    behind_max: Duration | None = None
    quarantine_ahead: bool = False  # False: a clock too far ahead is clamped to ingest time


def parsed(records: DataFrame, rules: ReadingRules) -> DataFrame:
    """The records that are for us, with topic_name, fields, stated_time and fault (null: readable)."""
    name = naming.topic_name(fn.col("headers"), fn.col("topic"), fn.col("key"), rules.routes)
    named = records.where(fn.octet_length("value") > 0).select(
        *_SOURCE_COLUMNS, *_once(name.alias("topic_name"), fn.col("value").cast("string").alias("text"))
    )
    chosen = named.where(_is_chosen(fn.col("topic_name"), rules.topic_filters))
    read = chosen.select("*", *_once(payload.fields(fn.col("text")).alias("fields")))
    stated = fn.lit(None).cast("timestamp") if rules.use_ingest_time else event_time.from_payload(fn.col("fields"))
    timed = read.select("*", *_once(stated.alias("stated_time")))
    return timed.select("*", *_once(_fault(rules).alias("fault")))


def readings(parsed_records: DataFrame, rules: ReadingRules) -> DataFrame:
    """One row per metric of each readable record."""
    found = parsed_records.where(fn.col("fault").isNull()).select(
        naming.device(fn.col("topic_name"), rules.routes, rules.device_levels).alias("device"),
        event_time.clamped(fn.col("stated_time"), fn.col("timestamp"), rules.ahead_max.seconds).alias("event_time"),
        fn.col("topic").alias("kafka_topic"),
        "partition",
        "offset",
        fn.explode_outer(payload.metrics(fn.col("fields"))).alias("reading"),
    )
    return found.where(fn.col("reading").isNotNull()).select(
        "device",
        fn.col("reading.metric").alias("metric"),
        fn.col("reading.value").alias("value"),
        "event_time",
        "kafka_topic",
        "partition",
        "offset",
    )


def faulty(parsed_records: DataFrame) -> DataFrame:
    """The records that cannot be read, as they came, with the reason."""
    return parsed_records.where(fn.col("fault").isNotNull()).select(
        "key", "value", "headers", "topic", "partition", "offset", fn.col("fault").alias("reason")
    )


def _once(*columns: Column) -> list[Column]:
    """The columns as a generator's output: the optimizer copies no expression of theirs into filters above.

    Without this each use of a parsed payload in a later condition would parse it again.
    """
    return [fn.inline_outer(fn.array(fn.struct(*columns)))]


def _is_chosen(topic_name: Column, topic_filters: Sequence[str]) -> Column:
    """A record without a Topic Name is chosen too: it goes to the dead letter, unless only some names are wanted."""
    if not topic_filters:
        return fn.coalesce(~topic_name.startswith("$"), fn.lit(True))
    found = fn.lit(False)
    for topic_filter in topic_filters:
        found = found | naming.matches(topic_name, topic_filter)
    return found


def _fault(rules: ReadingRules) -> Column:
    content_type = naming.header(fn.col("headers"), HEADER_CONTENT_TYPE).cast("string")
    stated, ingest_time = fn.col("stated_time"), fn.col("timestamp")
    fault = fn.coalesce(
        fn.when(
            fn.col("topic_name").isNull(), fn.lit("no readable mqtt.topic header, and the key gives no Topic Name")
        ),
        payload.fault(fn.col("text"), fn.col("fields"), content_type),
    )
    if rules.quarantine_ahead:
        is_ahead = event_time.is_ahead(stated, ingest_time, rules.ahead_max.seconds)
        fault = fn.coalesce(
            fault, fn.when(is_ahead, fn.lit(f"event time is over {rules.ahead_max.label} ahead of ingest time"))
        )
    if rules.behind_max is not None:
        is_behind = event_time.is_behind(stated, ingest_time, rules.behind_max.seconds)
        reason = f"event time is over {rules.behind_max.label} behind ingest time"
        fault = fn.coalesce(fault, fn.when(is_behind, fn.lit(reason)))
    return fault
