"""The sampled publishes and the delivery ledger, as steps of messages; figures as Kafka records."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from schemas.catalogue import EVENTS
from schemas.events import LEDGER_KINDS
from schemas.records import HEADER_CONTENT_TYPE, HEADER_TOPIC
from schemas.routes import ANALYTICS, Q2_SUFFIX
from schemas.sampling import OF
from spark_streaming.slo.folding import PUBLISHED
from spark_streaming.transforms.presence import topic_level
from spark_streaming.transforms.results import header

TOPIC_NAME_ROOT = "analytics/slo"
_EVENT = (
    "struct<kind:string,client_id:string,at_ms:bigint,"
    "detail:struct<kafka_topic:string,partition:int,offset:bigint,published_ms:bigint,qos:int>>"
)
_TWIN = f"{Q2_SUFFIX.replace('.', '[.]')}$"


def steps(records: DataFrame, below: int) -> DataFrame:
    """One row for each step of a sampled message: published (a record of a route's Kafka topic), delivered or
    acknowledged (a record of headwater.events). The sample is that of `schemas.sampling`."""
    is_event = fn.col("topic") == EVENTS
    published = records.where(~is_event & (_place_hash("topic", "partition", "offset") < below)).select(
        fn.lit(PUBLISHED).alias("kind"),
        _route("topic").alias("route"),
        _position("topic", "partition", "offset").alias("position"),
        fn.unix_millis("timestamp").alias("published_ms"),
        fn.lit("").alias("client_id"),
        fn.unix_millis("timestamp").alias("at_ms"),
        fn.lit(0).alias("qos"),
    )
    text = fn.try_validate_utf8(fn.col("value").cast("string"))
    events = records.where(is_event).select(fn.from_json(text, _EVENT).alias("event"))
    place = ("event.detail.kafka_topic", "event.detail.partition", "event.detail.offset")
    whole = fn.col("event.detail.published_ms").isNotNull() & fn.col("event.at_ms").isNotNull()
    noted = events.where(fn.col("event.kind").isin(*LEDGER_KINDS) & whole & (_place_hash(*place) < below)).select(
        fn.col("event.kind").alias("kind"),
        _route(place[0]).alias("route"),
        _position(*place).alias("position"),
        fn.col("event.detail.published_ms").alias("published_ms"),
        fn.col("event.client_id").alias("client_id"),
        fn.col("event.at_ms").alias("at_ms"),
        fn.coalesce("event.detail.qos", fn.lit(0)).alias("qos"),
    )
    return published.unionAll(noted)


def slim(records: DataFrame) -> DataFrame:
    """What `steps` needs of the records: no payloads."""
    value = fn.when(fn.col("topic") == EVENTS, fn.col("value"))
    return records.select("topic", "partition", "offset", "timestamp", value.alias("value"))


def slo_records(figures: DataFrame) -> DataFrame:
    """Rows of route and body as Kafka records for `analytics/slo/<route>`."""
    topic_name = fn.concat_ws("/", fn.lit(TOPIC_NAME_ROOT), topic_level(fn.col("route")))
    return figures.select(
        fn.col("route").cast("binary").alias("key"),
        fn.col("body").cast("binary").alias("value"),
        fn.array(header(HEADER_TOPIC, topic_name), header(HEADER_CONTENT_TYPE, fn.lit("application/json"))).alias(
            "headers"
        ),
        fn.lit(ANALYTICS).alias("topic"),
    )


def _position(kafka_topic: str, partition: str, offset: str) -> Column:
    return fn.concat_ws("/", kafka_topic, partition, offset)


def _place_hash(kafka_topic: str, partition: str, offset: str) -> Column:
    return fn.crc32(_position(kafka_topic, partition, offset).cast("binary")) % OF


def _route(kafka_topic: str) -> Column:
    return fn.regexp_replace(kafka_topic, _TWIN, "")
