"""JSON payloads, read leniently: an object's numbers are metrics, a bare number is the metric ``value``.

One nested level is flattened (``{"gps": {"lat": 1}}`` is the metric ``gps.lat``). A text that is a number counts as
one (``"21.5"``); booleans, other texts, arrays, NaN and numbers beyond a double's range are no metrics. An object is
read as map<string, string>: a Variant keeps the types but costs ten times as much here. Nothing can fail under ANSI
mode: only ``try_`` functions are used.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as fn

METRICS_MAX = 256  # per record: bounds what one payload can blow up to
METRIC_LENGTH_MAX = 128  # characters; it becomes a level of a Topic Name
BARE_METRIC = "value"
TIME_FIELDS = ("ts", "time", "timestamp")  # the first that holds a usable time wins; none of them is a metric
NUMBER = r"^\s*-?\d+(\.\d+)?([eE][+-]?\d+)?\s*$"

_FINITE_MAX = 1.7976931348623157e308
_METRICS_TYPE = "array<struct<metric:string,value:double>>"
_FIELDS_TYPE = "map<string,string>"


def fields(text: Column) -> Column:
    """The fields of a JSON object, each as text; a bare number as the one field ``value``; else null."""
    bare = fn.create_map(fn.lit(BARE_METRIC), text)
    return fn.when(text.rlike(NUMBER), bare).when(_is_object(text), fn.from_json(text, _FIELDS_TYPE))


def metrics(found: Column) -> Column:
    """array<struct<metric: string, value: double>> of `fields`; empty when there are none."""
    listed = fn.flatten(fn.transform(fn.map_entries(found), _field_metrics))
    return fn.slice(fn.filter(listed, _is_usable), 1, METRICS_MAX)


def fault(text: Column, found: Column, content_type: Column) -> Column:
    """Why a payload belongs into the dead letter; null when it does not.

    A payload that says it is something else than JSON is not for us; other valid JSON is no fault, it has no metrics.
    """
    is_ours = fn.coalesce(content_type, fn.lit("json")).contains("json")
    is_json = text.isNotNull() & fn.try_parse_json(text).isNotNull()
    return (
        fn.when(found.isNotNull() & ~text.rlike(NUMBER), fn.lit(None).cast("string"))
        .when(found.isNotNull() & ~_is_finite(_number(text)), fn.lit("number is beyond a double's range"))
        .when(found.isNull() & is_ours & ~is_json, fn.lit("payload is not JSON"))
    )


def _is_object(text: Column) -> Column:
    return fn.ltrim(text).startswith("{")


def _number(text: Column) -> Column:
    return fn.when(text.rlike(NUMBER), fn.trim(text).try_cast("double"))


def _metric(name: Column, text: Column) -> Column:
    return fn.struct(name.alias("metric"), _number(text).alias("value"))


def _field_metrics(entry: Column) -> Column:
    name, text = entry["key"], entry["value"]
    inner = fn.map_entries(fn.from_json(text, _FIELDS_TYPE))
    nested = fn.transform(inner, lambda one: _metric(fn.concat(name, fn.lit("."), one["key"]), one["value"]))
    none = fn.array().cast(_METRICS_TYPE)
    return (
        fn.when(name.isin(*TIME_FIELDS), none)
        .when(_is_object(text), fn.coalesce(nested, none))
        .otherwise(fn.array(_metric(name, text)))
    )


def _is_usable(metric: Column) -> Column:
    return _is_finite(metric["value"]) & fn.length(metric["metric"]).between(1, METRIC_LENGTH_MAX)


def _is_finite(number: Column) -> Column:
    return number.isNotNull() & ~fn.isnan(number) & (fn.abs(number) <= fn.lit(_FINITE_MAX))
