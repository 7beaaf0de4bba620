"""Every message as a row of the archive: names, properties, the payload as it came and as JSON, its place in Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from schemas.records import (
    HEADER_CLIENT_ID,
    HEADER_CONTENT_TYPE,
    HEADER_CORRELATION_DATA,
    HEADER_EXPIRY_S,
    HEADER_PAYLOAD_FORMAT,
    HEADER_QOS,
    HEADER_RESPONSE_TOPIC,
    HEADER_RETAIN,
    HEADER_USER_PREFIX,
    QOS_DEFAULT,
)
from schemas.routes import Q2_SUFFIX, Route
from spark_streaming.transforms import naming

PARTITION_COLUMNS = ("date", "hour", "route")
SORT_COLUMNS = ("kafka_topic", "kafka_partition", "kafka_offset")


def archive_rows(
    records: DataFrame, routes: Sequence[Route], device_levels: tuple[int, int | None] | None = None
) -> DataFrame:
    """One row for each record, unreadable ones included (their `topic_name` is null, or `json`).

    Date, hour and route come from the record alone, never from the routes of today: a batch that is written again
    lands in the same files.
    """
    named = records.select(
        "*", naming.topic_name(fn.col("headers"), fn.col("topic"), fn.col("key"), routes).alias("topic_name")
    )
    text = fn.try_validate_utf8(fn.col("value").cast("string"))
    return named.select(
        "topic_name",
        fn.split("topic_name", "/").alias("levels"),
        naming.device(fn.col("topic_name"), routes, device_levels).alias("device"),
        _text(HEADER_CLIENT_ID).alias("client_id"),
        fn.coalesce(_number(HEADER_QOS), fn.lit(QOS_DEFAULT)).cast("int").alias("qos"),
        fn.coalesce(_text(HEADER_RETAIN) == "1", fn.lit(False)).alias("retain"),
        _number(HEADER_EXPIRY_S).alias("expiry_s"),
        _text(HEADER_CONTENT_TYPE).alias("content_type"),
        _text(HEADER_RESPONSE_TOPIC).alias("response_topic"),
        naming.header(fn.col("headers"), HEADER_CORRELATION_DATA).alias("correlation_data"),
        _number(HEADER_PAYLOAD_FORMAT).cast("int").alias("payload_format"),
        _user_properties().alias("user_properties"),
        fn.col("value").alias("payload"),
        fn.try_parse_json(text).alias("json"),
        fn.col("key"),
        fn.col("headers"),
        fn.col("topic").alias("kafka_topic"),
        fn.col("partition").alias("kafka_partition"),
        fn.col("offset").alias("kafka_offset"),
        fn.col("timestamp").alias("at"),
        fn.date_format("timestamp", "yyyy-MM-dd").alias("date"),
        fn.date_format("timestamp", "HH").alias("hour"),
        _route().alias("route"),
    )


def _route() -> Column:
    """The route's Kafka topic; its QoS 2 twin belongs to it."""
    name = fn.col("topic")
    without = fn.substring(name, fn.lit(1), fn.length(name) - len(Q2_SUFFIX))
    return fn.when(name.endswith(Q2_SUFFIX), without).otherwise(name)


def _text(name: str) -> Column:
    return fn.try_validate_utf8(naming.header(fn.col("headers"), name).cast("string"))


def _number(name: str) -> Column:
    return _text(name).try_cast("bigint")


def _user_properties() -> Column:
    found = fn.filter("headers", lambda one: one["key"].startswith(HEADER_USER_PREFIX) & one["value"].isNotNull())
    return fn.transform(
        found,
        lambda one: fn.struct(
            fn.substring(one["key"], fn.lit(len(HEADER_USER_PREFIX) + 1), fn.length(one["key"])).alias("name"),
            fn.try_validate_utf8(one["value"].cast("string")).alias("value"),
        ),
    )
