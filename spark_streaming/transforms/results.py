"""Results as Kafka records: key, value, headers, topic."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from schemas.records import (
    HEADER_CONTENT_TYPE,
    HEADER_DEAD_LETTER_REASON,
    HEADER_DEAD_LETTER_SOURCE,
    HEADER_TOPIC,
    HEADER_USER_PREFIX,
)
from schemas.routes import ANALYTICS, DEAD_LETTER
from spark_streaming.transforms.windows import Windows

TOPIC_NAME_ROOT = "analytics/stats"
_NO_LEVEL = "[/+#\\x00-\\x1f]"  # what cannot stand in one level of a Topic Name, or should not
_HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def stats_records(stats: DataFrame, windows: Windows, *, final: bool) -> DataFrame:
    """Each row of `device_windows` as a JSON record for `analytics/stats/<window>/<metric>/<device>`.

    `id` names the window of a device and metric: the same in every run and every update. While a window is open its
    result is written again with a higher `count`, so of one id the record with the highest count is the newest.
    """
    level = fn.regexp_replace("metric", _NO_LEVEL, "_")
    topic_name = fn.concat_ws("/", fn.lit(TOPIC_NAME_ROOT), fn.lit(windows.label), level, fn.col("device"))
    identity = _identity(windows)
    body = fn.struct(
        identity.alias("id"),
        *("device", "metric", "window_start", "window_end", "count", "min", "max", "mean", "stddev"),
        *windows.percentile_columns,
        *("last", "last_at"),
        fn.lit(final).alias("final"),
    )
    properties = {
        "id": identity,
        "window_start": _iso(fn.col("window_start")),
        "window_end": _iso(fn.col("window_end")),
        "watermark": fn.lit(windows.watermark.label),
        "emit": fn.lit("final" if final else "early"),
    }
    headers = fn.array(
        header(HEADER_TOPIC, topic_name),
        header(HEADER_CONTENT_TYPE, fn.lit("application/json")),
        *(header(f"{HEADER_USER_PREFIX}{name}", value) for name, value in properties.items()),
    )
    return stats.select(
        fn.col("device").cast("binary").alias("key"),
        fn.to_json(body).cast("binary").alias("value"),
        headers.alias("headers"),
        fn.lit(ANALYTICS).alias("topic"),
    )


def dead_letters(faulty: DataFrame) -> DataFrame:
    """Each unreadable record as it came, with the reason and its place in Kafka as two more headers."""
    source = fn.concat_ws("/", "topic", "partition", "offset")
    more = fn.array(header(HEADER_DEAD_LETTER_REASON, fn.col("reason")), header(HEADER_DEAD_LETTER_SOURCE, source))
    headers = fn.concat(fn.coalesce(fn.col("headers"), fn.array().cast(_HEADERS_TYPE)), more)
    return faulty.select("key", "value", headers.alias("headers"), fn.lit(DEAD_LETTER).alias("topic"))


def _identity(windows: Windows) -> Column:
    parts = fn.concat_ws("\x1f", fn.lit(windows.label), "metric", "device", fn.unix_micros("window_start"))
    return fn.substring(fn.sha2(parts, 256), 1, 32)


def _iso(moment: Column) -> Column:
    return fn.date_format(moment, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def header(name: str, value: Column) -> Column:
    """One header of a record to be written."""
    return fn.struct(fn.lit(name).alias("key"), value.cast("binary").alias("value"))
