"""Event time: what the payload says, held against the time at which Kafka took the record in.

Ingest time is the record's timestamp (LogAppendTime), so the answer is the same whenever a record is read again. One
device whose clock is ahead would move the watermark and make Spark drop everyone's later rows: its rows are clamped to
ingest time or quarantined.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as fn

from spark_streaming.transforms.payload import NUMBER, TIME_FIELDS

# A number is an epoch in the unit in which it lies between the years 2000 and 2100; anything else is no time.
_EPOCH_S_MIN = 946_684_800
_EPOCH_S_MAX = 4_102_444_800
_UNITS_PER_S = (1, 1_000, 1_000_000, 1_000_000_000)
_ISO_8601 = r"^\d{4}-\d{2}-\d{2}([T ].+)?$"  # without it, "12:30" would be today and "2026" a year


def from_payload(fields: Column) -> Column:
    """The time in the first of the payload's time fields that holds one, else null; `fields` maps names to texts."""
    return fn.coalesce(*(_moment(fn.try_element_at(fields, fn.lit(name))) for name in TIME_FIELDS))


def is_ahead(stated: Column, ingest_time: Column, ahead_max_s: float) -> Column:
    """Whether a stated time (null: none) is further ahead of ingest time than a good clock can be."""
    return fn.coalesce(fn.unix_micros(stated) > fn.unix_micros(ingest_time) + _micros(ahead_max_s), fn.lit(False))


def is_behind(stated: Column, ingest_time: Column, behind_max_s: float) -> Column:
    """Whether a stated time (null: none) is further behind ingest time than is wanted."""
    return fn.coalesce(fn.unix_micros(stated) < fn.unix_micros(ingest_time) - _micros(behind_max_s), fn.lit(False))


def clamped(stated: Column, ingest_time: Column, ahead_max_s: float) -> Column:
    """The stated time, or ingest time where none is stated or it is too far ahead."""
    return fn.when(is_ahead(stated, ingest_time, ahead_max_s), ingest_time).otherwise(fn.coalesce(stated, ingest_time))


def _moment(text: Column) -> Column:
    written = fn.when(text.rlike(_ISO_8601), text.try_cast("timestamp"))
    return fn.when(text.rlike(NUMBER), _from_epoch(text.try_cast("double"))).otherwise(written)


def _from_epoch(number: Column) -> Column:
    seconds = fn.lit(None).cast("double")
    for units in _UNITS_PER_S:
        fits = number.between(_EPOCH_S_MIN * units, _EPOCH_S_MAX * units)
        seconds = fn.when(fits, number / units).otherwise(seconds)
    return fn.timestamp_micros(fn.round(seconds * 1e6).cast("bigint"))


def _micros(seconds: float) -> Column:
    return fn.lit(round(seconds * 1e6)).cast("bigint")
