"""JSON payloads, read leniently: an object's finite numbers are metrics, a bare number is the metric ``value``.

One nested level is flattened (``{"gps": {"lat": 1}}`` is the metric ``gps.lat``). Booleans, texts, arrays and numbers
beyond a double's range are no metrics. Nothing here can fail under ANSI mode: only ``try_`` functions are used.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as fn

METRICS_MAX = 256  # per record: bounds what one payload can blow up to
METRIC_LENGTH_MAX = 128  # characters; it becomes a level of a Topic Name
BARE_METRIC = "value"
TIME_FIELDS = ("ts", "time", "timestamp")  # the first that holds a usable time wins; none of them is a metric

_FINITE_MAX = 1.7976931348623157e308


def parse(value: Column) -> Column:
    """The payload as a Variant; null when it is empty or no JSON."""
    return fn.try_parse_json(value.cast("string"))


def is_number(variant: Column) -> Column:
    """Whether a Variant holds a number (not a text or boolean that could be cast to one)."""
    kind = fn.schema_of_variant(variant)
    return kind.isin("BIGINT", "DOUBLE", "FLOAT") | kind.startswith("DECIMAL")


def metrics(json: Column) -> Column:
    """array<struct<metric: string, value: double>> of a parsed payload; empty when it has none."""
    fields = fn.flatten(fn.transform(_entries(json), _field_metrics))
    bare = fn.array(_metric(fn.lit(BARE_METRIC), json))
    found = fn.when(is_number(json), bare).otherwise(fn.coalesce(fields, fn.array().cast(_ARRAY_TYPE)))
    return fn.slice(fn.filter(found, _is_usable), 1, METRICS_MAX)


def fault(value: Column, json: Column, content_type: Column) -> Column:
    """Why a payload belongs into the dead letter; null when it does not.

    An empty payload and one that says it is not JSON are not for us; valid JSON without a number is no fault.
    """
    is_ours = (fn.octet_length(value) > 0) & (fn.coalesce(content_type, fn.lit("json")).contains("json"))
    return (
        fn.when(is_ours & json.isNull(), fn.lit("payload is not JSON"))
        .when(is_number(json) & ~_is_finite(json.try_cast("double")), fn.lit("number is beyond a double's range"))
        .otherwise(fn.lit(None).cast("string"))
    )


_ARRAY_TYPE = "array<struct<metric:string,value:double>>"


def _entries(variant: Column) -> Column:
    return fn.map_entries(variant.try_cast("map<string,variant>"))


def _metric(name: Column, variant: Column) -> Column:
    number = fn.when(is_number(variant), variant.try_cast("double"))
    return fn.struct(name.alias("metric"), number.alias("value"))


def _field_metrics(entry: Column) -> Column:
    name, variant = entry["key"], entry["value"]
    nested = fn.transform(
        _entries(variant), lambda inner: _metric(fn.concat(name, fn.lit("."), inner["key"]), inner["value"])
    )
    is_time = name.isin(*TIME_FIELDS)
    return (
        fn.when(is_time, fn.array().cast(_ARRAY_TYPE))
        .when(fn.schema_of_variant(variant).startswith("OBJECT"), nested)
        .otherwise(fn.array(_metric(name, variant)))
    )


def _is_usable(metric: Column) -> Column:
    return _is_finite(metric["value"]) & fn.length(metric["metric"]).between(1, METRIC_LENGTH_MAX)


def _is_finite(number: Column) -> Column:
    return number.isNotNull() & ~fn.isnan(number) & (fn.abs(number) <= fn.lit(_FINITE_MAX))
