"""Windowed statistics per device and metric: MQTT messages in, `analytics/stats/<window>/<metric>/<device>` out.

Two queries: `results` (real-time mode unless --trigger says otherwise) and `dead_letters`. The second is always a
micro-batch query: real-time mode refuses a stateful operator before a union and allows one such query per application.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.errors import ConfigurationError
from schemas.routes import ANALYTICS, DEAD_LETTER
from spark_streaming.durations import Duration, parse_duration
from spark_streaming.job import Job, run_job
from spark_streaming.options import (
    CommonOptions,
    Trigger,
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
from spark_streaming.transforms.device_stats import ReadingRules, faulty, parsed, readings
from spark_streaming.transforms.results import dead_letters, stats_records
from spark_streaming.transforms.windows import Windows, device_windows, with_heartbeat, without_heartbeat

JOB = "device_stats"
SHAPE_VERSION = 2  # raise it when the aggregate's keys or columns change

WINDOWS_PER_READING_MAX = 60


@dataclass(frozen=True, slots=True)
class Options:
    """All of the job's settings."""

    common: CommonOptions
    rules: ReadingRules
    windows: Windows
    final: bool
    idle_after: Duration | None
    dead_letter_every: Duration


def argument_parser() -> argparse.ArgumentParser:
    parser = job_parser(JOB, __doc__)
    parser.add_argument("--window", default="10s", metavar="DURATION", help="length of the windows (default 10s)")
    parser.add_argument(
        "--slide", metavar="DURATION", help="a window starts so often, and they overlap (default: tumbling windows)"
    )
    parser.add_argument(
        "--percentiles", metavar="LIST", help="whole numbers, or none (default 50,95,99; real-time mode has none)"
    )
    parser.add_argument("--watermark", default="10s", metavar="DURATION", help="how late a row may come (default 10s)")
    parser.add_argument(
        "--emit",
        choices=("early", "final"),
        default="early",
        help="each update of a window, or each window once when it is over (not in real-time mode)",
    )
    parser.add_argument(
        "--idle-after",
        metavar="DURATION",
        help="with --emit final: when no device sends, windows end by the clock, so much after it (default: they wait)",
    )
    add_reading_arguments(parser)
    parser.add_argument(
        "--ahead",
        choices=("clamp", "quarantine"),
        default="clamp",
        help="further ahead: use ingest time, or dead letter",
    )
    parser.add_argument(
        "--behind-max",
        metavar="DURATION",
        help="rows further behind ingest time go to the dead letter (default: no limit)",
    )
    parser.add_argument(
        "--dead-letter-every", default="30s", metavar="DURATION", help="trigger of the dead-letter query (default 30s)"
    )
    return parser


def read_options(arguments: Sequence[str]) -> Options:
    """Checked settings. Raises ConfigurationError."""
    found = parse_arguments(argument_parser(), arguments)
    common = common_options(JOB, found, default_data_folder())
    if found.emit == "final" and common.trigger.is_realtime:
        raise ConfigurationError(
            "--emit final: real-time mode writes every update; add --trigger micro:5s, or leave it out"
        )
    idle_after = parse_duration(found.idle_after, "--idle-after") if found.idle_after else None
    if idle_after is not None and (found.emit != "final" or common.trigger.interval is None):
        raise ConfigurationError(
            "--idle-after: only windows that are sent once wait; add --emit final --trigger micro:5s"
        )
    rules = ReadingRules(
        routes=common.routes,
        topic_filters=topic_filters(found),
        device_levels=parse_device_levels(found.device_levels),
        use_ingest_time=found.event_time == "ingest",
        ahead_max=parse_duration(found.ahead_max, "--ahead-max", positive=False),
        behind_max=parse_duration(found.behind_max, "--behind-max") if found.behind_max else None,
        quarantine_ahead=found.ahead == "quarantine",
    )
    return Options(
        common=common,
        rules=rules,
        windows=_windows(found, common.trigger),
        final=found.emit == "final",
        idle_after=idle_after,
        dead_letter_every=parse_duration(found.dead_letter_every, "--dead-letter-every"),
    )


def stateful_shape(options: Options) -> dict[str, str | int]:
    """What the checkpoint's state depends on."""
    common = options.common
    return {
        "job": JOB,
        "shape": SHAPE_VERSION,
        "mode": "realtime" if common.trigger.is_realtime else "micro-batch",
        "emit": "final" if options.final else "early",
        "window": options.windows.label,
        "watermark": options.windows.watermark.label,
        "percentiles": ",".join(options.windows.percentile_columns),
        "idle_after": options.idle_after.label if options.idle_after else "never",
        "shuffle_partitions": common.shuffle_partitions,
        "state": common.state_store,
    }


def writers(session: SparkSession, options: Options, starting_offsets: str) -> list[DataStreamWriter]:
    """Both queries, ready to start."""
    common = options.common
    source = message_records(
        session,
        read_committed(common.kafka) if common.qos2 else common.kafka,
        input_kafka_topics(common.routes, qos2=common.qos2),
        starting_offsets=starting_offsets,
        accept_data_loss=common.accept_data_loss,
        batch_records_max=common.batch_records_max,
    )
    records = parsed(source, options.rules)
    found = readings(records, options.rules)
    if options.idle_after is None:
        stats = device_windows(found, options.windows)
    else:
        stats = without_heartbeat(device_windows(with_heartbeat(found, options.idle_after), options.windows))
    output_mode = "append" if options.final else "update"
    side = common.trigger if common.trigger.interval is None else Trigger("micro", options.dead_letter_every)
    rows = stats_records(stats, options.windows, final=options.final)
    letters = dead_letters(faulty(records))
    return [
        kafka_writer(rows, common.kafka, PRIMARY_QUERY, common.checkpoint / PRIMARY_QUERY, output_mode, common.trigger),
        kafka_writer(letters, common.kafka, "dead_letters", common.checkpoint / "dead_letters", "append", side),
    ]


def main(arguments: Sequence[str]) -> int:
    """Run the job until it is told to stop; its exit code."""
    options = read_options(arguments)
    job = Job(
        name=JOB,
        common=options.common,
        shape=stateful_shape(options),
        inputs=input_kafka_topics(options.common.routes, qos2=options.common.qos2),
        outputs=(ANALYTICS, DEAD_LETTER),
        writers=lambda session, starting_offsets: writers(session, options, starting_offsets),
    )
    return run_job(job)


def _windows(found: argparse.Namespace, trigger: Trigger) -> Windows:
    length = parse_duration(found.window, "--window")
    slide = parse_duration(found.slide, "--slide") if found.slide else None
    if slide is not None and not slide.seconds <= length.seconds <= WINDOWS_PER_READING_MAX * slide.seconds:
        raise ConfigurationError(
            f"--slide {found.slide}: give at most --window {found.window} and at least 1/{WINDOWS_PER_READING_MAX} of "
            "it: every reading is counted in each window that it lies in"
        )
    wanted = found.percentiles or ("none" if trigger.is_realtime else "50,95,99")
    texts = [] if wanted == "none" else wanted.split(",")
    if texts and trigger.is_realtime:
        raise ConfigurationError("--percentiles: not in real-time mode; add --trigger micro:5s, or leave them out")
    if not all(text.strip().isdecimal() and 0 < int(text) < 100 for text in texts):
        raise ConfigurationError(f"--percentiles: {found.percentiles!r} is none; write for example 50,95,99 or none")
    return Windows(
        length=length,
        watermark=parse_duration(found.watermark, "--watermark", positive=False),
        slide=None if slide == length else slide,
        percentiles=tuple(sorted({int(text) for text in texts})),
    )


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
