"""From records of `headwater.events` to what happened to clients, and from changes to Kafka records."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from schemas.records import HEADER_CONTENT_TYPE, HEADER_TOPIC
from schemas.routes import ANALYTICS
from spark_streaming.presence.client import JUDGEMENTS
from spark_streaming.transforms.results import header

TOPIC_NAME_ROOT = "analytics/presence"
KINDS = ("connected", "disconnected", "taken_over", "denied")
_EVENT = (
    "struct<kind:string,client_id:string,node_id:string,"
    "detail:struct<action:string,peer:string,reason:string,of_node:string>>"
)
_ESCAPED = (("%", "%25"), ("/", "%2F"), ("+", "%2B"), ("#", "%23"))
_CONTROL_CHARACTERS = "[\\x00-\\x1f\\x7f]"


def happenings(records: DataFrame) -> DataFrame:
    """One row per event of a client that matters here; what cannot be read is left out."""
    text = fn.try_validate_utf8(fn.col("value").cast("string"))
    parsed = records.select("partition", "offset", "timestamp", fn.from_json(text, _EVENT).alias("event"))
    known = fn.col("event.kind").isin(*KINDS) & (fn.length("event.client_id") > 0) & fn.col("event.node_id").isNotNull()
    return parsed.where(known).select(
        fn.col("event.client_id").alias("client_id"),
        fn.col("event.kind").alias("kind"),
        fn.coalesce("event.detail.of_node", "event.node_id").alias("node_id"),  # another edge tells of one that is gone
        fn.unix_millis("timestamp").alias("at_ms"),
        "partition",
        "offset",
        fn.col("event.detail.action").alias("action"),
        fn.col("event.detail.peer").alias("peer"),
        fn.col("event.detail.reason").alias("reason"),
        "timestamp",
    )


def presence_records(changes: DataFrame) -> DataFrame:
    """Rows of client_id, state, id, body as Kafka records for `analytics/presence/<client id>`, judgements for
    `analytics/presence/<flapping or abusive>/<client id>`."""
    client = topic_level(fn.col("client_id"))
    place = fn.when(fn.col("state").isin(*JUDGEMENTS), fn.concat_ws("/", "state", client)).otherwise(client)
    topic_name = fn.concat_ws("/", fn.lit(TOPIC_NAME_ROOT), place)
    return changes.select(
        fn.col("client_id").cast("binary").alias("key"),
        fn.col("body").cast("binary").alias("value"),
        fn.array(header(HEADER_TOPIC, topic_name), header(HEADER_CONTENT_TYPE, fn.lit("application/json"))).alias(
            "headers"
        ),
        fn.lit(ANALYTICS).alias("topic"),
    )


def topic_level(text: Column) -> Column:
    """Any text as one level of a Topic Name, so that no two become the same: `%`, `/`, `+` and `#` percent-encoded."""
    for character, code in _ESCAPED:
        text = fn.replace(text, fn.lit(character), fn.lit(code))
    return fn.regexp_replace(text, _CONTROL_CHARACTERS, "_")
