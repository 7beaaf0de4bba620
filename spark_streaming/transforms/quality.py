"""What a batch says about each family of Topic Names, minute by minute."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from schemas.catalogue import CATALOGUE
from schemas.families import PAYLOAD_KINDS
from schemas.records import HEADER_CONTENT_TYPE, HEADER_PAYLOAD_FORMAT
from schemas.routes import Q2_SUFFIX, Route
from spark_streaming.transforms import naming

NO_NAME = "$unnamed"  # the family of records whose Topic Name cannot be told


def profiles(records: DataFrame, routes: Sequence[Route], families: Sequence[str] = ()) -> DataFrame:
    """One row for each family and minute.

    A payload is malformed when it is not what it says: its Content Type is JSON or it begins like an object or an
    array, but it is no JSON; its Payload Format Indicator says UTF-8, but it is not. Plain texts and numbers are none.
    """
    named = records.select(
        "topic",
        "timestamp",
        "value",
        _header(HEADER_CONTENT_TYPE).alias("content_type"),
        _header(HEADER_PAYLOAD_FORMAT).alias("payload_format"),
        naming.topic_name(fn.col("headers"), fn.col("topic"), fn.col("key"), routes).alias("topic_name"),
        fn.try_validate_utf8(fn.col("value").cast("string")).alias("text"),
    )
    parsed = named.select("*", fn.try_parse_json("text").alias("json"))
    judged = parsed.select(
        family(fn.col("topic_name"), routes, families).alias("family"),
        fn.regexp_replace("topic", f"{Q2_SUFFIX.replace('.', '[.]')}$", "").alias("kafka_topic"),
        fn.floor(fn.unix_seconds("timestamp") / 60).cast("bigint").alias("minute"),
        fn.unix_millis("timestamp").alias("at_ms"),
        fn.coalesce(fn.octet_length("value"), fn.lit(0)).alias("size"),
        _kind().alias("kind"),
        _fault().alias("fault"),
        "json",
    )
    counts = [fn.count_if(fn.col("kind") == kind).alias(kind) for kind in PAYLOAD_KINDS]
    schema = fn.when(fn.count("json") > 0, fn.schema_of_variant_agg("json"))
    return judged.groupBy("family", "minute").agg(
        fn.max("kafka_topic").alias("kafka_topic"),
        fn.count("*").alias("messages"),
        fn.sum("size").alias("payload_bytes"),
        fn.count("fault").alias("malformed"),
        *counts,
        fn.min("at_ms").alias("first_ms"),
        fn.max("at_ms").alias("last_ms"),
        schema.alias("schema"),
        fn.max("fault").alias("fault"),
    )


def family(topic_name: Column, routes: Sequence[Route], families: Sequence[str]) -> Column:
    """The first of `families` that the Topic Name matches, else its route's filter; below the route `#` the first level
    makes the family, else everything would be one."""
    first_level = fn.concat(fn.substring_index(topic_name, "/", 1), fn.lit("/#"))
    found = fn.lit(NO_NAME)
    for route in reversed(routes):
        name = first_level if route.topic_filter == "#" else fn.lit(route.topic_filter)
        found = fn.when(topic_name.rlike(naming.filter_pattern(route.topic_filter)), name).otherwise(found)
    for topic_filter in reversed(families):
        found = fn.when(naming.matches(topic_name, topic_filter), fn.lit(topic_filter)).otherwise(found)
    return found


def catalogue_records(entries: DataFrame) -> DataFrame:
    """Rows of family and value (null: forgotten) as records of headwater.catalogue."""
    return entries.select(
        fn.col("family").cast("binary").alias("key"), fn.col("value"), fn.lit(CATALOGUE).alias("topic")
    )


def _header(name: str) -> Column:
    return fn.try_validate_utf8(naming.header(fn.col("headers"), name).cast("string"))


def _kind() -> Column:
    return (
        fn.when(fn.coalesce(fn.octet_length("value"), fn.lit(0)) == 0, fn.lit("empty"))
        .when(fn.col("json").isNotNull(), fn.lit("json"))
        .when(fn.col("text").isNotNull(), fn.lit("text"))
        .otherwise(fn.lit("binary"))
    )


def _fault() -> Column:
    is_empty = fn.coalesce(fn.octet_length("value"), fn.lit(0)) == 0
    is_json = fn.col("json").isNotNull()
    says_json = fn.coalesce(fn.lower("content_type").contains("json"), fn.lit(False))
    begins_so = fn.coalesce(fn.ltrim("text").rlike(r"^[\[{]"), fn.lit(False))
    says_utf8 = fn.coalesce(fn.col("payload_format") == "1", fn.lit(False))
    return (
        fn.when(fn.col("topic_name").isNull(), fn.lit("no readable Topic Name"))
        .when(is_empty | is_json, fn.lit(None).cast("string"))
        .when(says_utf8 & fn.col("text").isNull(), fn.lit("its Payload Format Indicator says UTF-8, but it is not"))
        .when(says_json, fn.lit("its Content Type says JSON, but it is not"))
        .when(begins_so, fn.lit("it begins like JSON, but it is not"))
    )
