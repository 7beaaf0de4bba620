"""Alerts from each device's own history: MQTT messages in, `analytics/alerts/<kind>/<device>` out.

Kinds: range (outside the limits), rate (changes too fast), zscore (far from its running mean), stuck (the same value
for too long), silence (not heard of for too long). Each episode is raised once and cleared once; both records carry
the episode's `id`, so whoever reads them drops an (id, state) that it has seen: a fault may repeat a record.

State needs micro-batches (`--trigger micro:5s`). `--trigger realtime` is a stateless path for --range alone: every
reading outside is an alert of its own (state `out`), within tens of milliseconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.errors import ConfigurationError
from schemas.routes import ANALYTICS
from spark_streaming.anomaly.device import STATE_VERSION
from spark_streaming.anomaly.processor import OUTPUT_SCHEMA, AnomalyProcessor
from spark_streaming.anomaly.rules import Range, Rules
from spark_streaming.durations import parse_duration
from spark_streaming.job import Job, run_job
from spark_streaming.options import (
    CommonOptions,
    add_reading_arguments,
    common_options,
    job_parser,
    parse_arguments,
    parse_device_levels,
    topic_filters,
)
from spark_streaming.runner import PRIMARY_QUERY, default_data_folder, run_main
from spark_streaming.sinks.kafka import kafka_writer
from spark_streaming.sources.kafka import input_kafka_topics, message_records, read_committed
from spark_streaming.transforms.anomaly import alert_records, arrivals, out_of_range
from spark_streaming.transforms.device_stats import ReadingRules, parsed, readings

JOB = "anomaly"
_STATEFUL = ("rate", "zscore", "stuck", "silence")  # rules that need to remember


@dataclass(frozen=True, slots=True)
class Options:
    """All of the job's settings."""

    common: CommonOptions
    reading: ReadingRules
    rules: Rules


def argument_parser() -> argparse.ArgumentParser:
    parser = job_parser(JOB, __doc__, trigger="micro:5s")
    add_reading_arguments(parser)
    parser.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="METRIC=LOW..HIGH",
        help="what a metric may be; either bound may be left out, the metric * is every other one; may be repeated",
    )
    parser.add_argument(
        "--rate", action="append", metavar="METRIC=N", help="how much it may change per second; may be repeated"
    )
    parser.add_argument(
        "--zscore", type=float, metavar="N", help="how many deviations from its running mean (default 4; 0: off)"
    )
    parser.add_argument(
        "--zscore-after", type=int, default=30, metavar="N", help="readings before that mean counts (default 30)"
    )
    parser.add_argument("--stuck", metavar="DURATION", help="how long a value may stay the same (default: for ever)")
    parser.add_argument("--silence", metavar="DURATION", help="how long a device may say nothing (default: for ever)")
    parser.add_argument(
        "--clear-after", type=int, default=3, metavar="N", help="good readings in a row that end an alert (default 3)"
    )
    parser.add_argument(
        "--forget",
        default="7d",
        metavar="DURATION",
        help="state of a device not heard of for so long goes (default 7d)",
    )
    return parser


def read_options(arguments: Sequence[str]) -> Options:
    """Checked settings. Raises ConfigurationError."""
    found = parse_arguments(argument_parser(), arguments)
    common = common_options(JOB, found, default_data_folder())
    reading = ReadingRules(
        routes=common.routes,
        topic_filters=topic_filters(found),
        device_levels=parse_device_levels(found.device_levels),
        use_ingest_time=found.event_time == "ingest",
        ahead_max=parse_duration(found.ahead_max, "--ahead-max", positive=False),
    )
    rules = _rules(found)
    if rules.silence_ms is not None and common.batch_records_max is not None:
        raise ConfigurationError(
            "--silence: a batch must take all that there is to know who is silent; drop --batch-records"
        )
    if common.trigger.is_realtime:
        given = [f"--{name}" for name in _STATEFUL if getattr(found, name)]
        if given or not rules.ranges:
            raise ConfigurationError(
                f"--trigger realtime: without state there is only --range METRIC=LOW..HIGH"
                f"{'; drop ' + ', '.join(given) if given else ''}, or use --trigger micro:5s"
            )
    return Options(common, reading, rules)


def stateful_shape(options: Options) -> dict[str, str | int]:
    """What the checkpoint's state depends on: not on the limits, they may change from start to start."""
    common = options.common
    return {
        "job": JOB,
        "shape": STATE_VERSION,
        "mode": common.trigger.kind,
        "shuffle_partitions": common.shuffle_partitions,
        "state": common.state_store,
    }


def writers(session: SparkSession, options: Options, starting_offsets: str) -> list[DataStreamWriter]:
    """The one query, ready to start."""
    common = options.common
    source = message_records(
        session,
        read_committed(common.kafka) if common.qos2 else common.kafka,
        input_kafka_topics(common.routes, qos2=common.qos2),
        starting_offsets=starting_offsets,
        accept_data_loss=common.accept_data_loss,
        batch_records_max=common.batch_records_max,
    )
    records = parsed(source, options.reading)
    if common.trigger.is_realtime:
        alerts = out_of_range(readings(records, options.reading), options.rules.ranges)
    else:
        # a backfill has no clock to go by, and with timers it would never end
        timers = common.trigger.interval is not None
        alerts = (
            arrivals(records, options.reading)
            .groupBy("device")
            .transformWithState(
                AnomalyProcessor(options.rules, timers=timers),
                OUTPUT_SCHEMA,
                "Update",
                "ProcessingTime" if timers else "None",
            )
        )
    place = common.checkpoint / PRIMARY_QUERY
    return [kafka_writer(alert_records(alerts), common.kafka, PRIMARY_QUERY, place, "update", common.trigger)]


def main(arguments: Sequence[str]) -> int:
    """Run the job until it is told to stop; its exit code."""
    options = read_options(arguments)
    job = Job(
        name=JOB,
        common=options.common,
        shape=stateful_shape(options),
        inputs=input_kafka_topics(options.common.routes, qos2=options.common.qos2),
        outputs=(ANALYTICS,),
        writers=lambda session, starting_offsets: writers(session, options, starting_offsets),
    )
    return run_job(job)


def _rules(found: argparse.Namespace) -> Rules:
    if found.zscore is not None and not 0 <= found.zscore <= 1000:
        raise ConfigurationError(f"--zscore: {found.zscore:g} is not between 0 and 1000")
    for name in ("zscore_after", "clear_after"):
        if not 1 <= getattr(found, name) <= 100_000:
            raise ConfigurationError(f"--{name.replace('_', '-')}: {getattr(found, name)} is not between 1 and 100000")
    silence_ms, forget_ms = _milliseconds(found.silence, "--silence"), _milliseconds(found.forget, "--forget")
    assert forget_ms is not None
    if silence_ms is not None and silence_ms >= forget_ms:
        raise ConfigurationError(f"--silence {found.silence} is not shorter than --forget {found.forget}")
    return Rules(
        ranges=dict(_range(text) for text in found.range),
        rates=dict(_rate(text) for text in found.rate or ()),
        zscore=4.0 if found.zscore is None else found.zscore or None,
        zscore_after=found.zscore_after,
        stuck_ms=_milliseconds(found.stuck, "--stuck"),
        silence_ms=silence_ms,
        clear_after=found.clear_after,
        forget_ms=forget_ms,
    )


def _milliseconds(text: str | None, option: str) -> int | None:
    return None if text is None else round(parse_duration(text, option).seconds * 1000)


def _range(text: str) -> tuple[str, Range]:
    metric, _, bounds = text.partition("=")
    low, dots, high = bounds.partition("..")
    try:
        limits = Range(float(low) if low else None, float(high) if high else None)
    except ValueError:
        limits = Range(None, None)
    if not metric or not dots or limits == Range(None, None) or not _is_ordered(limits):
        raise ConfigurationError(f"--range: {text!r} is none; write for example temp=-20..60 or humidity=..95")
    return metric, limits


def _is_ordered(limits: Range) -> bool:
    """NaN is not: it compares with nothing."""
    low, high = limits.low, limits.high
    return (float("-inf") if low is None else low) <= (float("inf") if high is None else high)


def _rate(text: str) -> tuple[str, float]:
    metric, _, number = text.partition("=")
    try:
        rate = float(number)
    except ValueError:
        rate = -1.0
    if not metric or not 0 <= rate < float("inf"):
        raise ConfigurationError(f"--rate: {text!r} is none; write for example temp=2.5")
    return metric, rate


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
