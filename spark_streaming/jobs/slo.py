"""Loss, latency and duplicates per route, from sampled publishes and the edges' delivery ledger, to analytics/slo/...

One query, in micro-batches, without Spark state: Spark picks the sampled records out of all, a batch's few are folded
here (`spark_streaming.slo.folding`). Edges note deliveries where their `[events] delivery_sample` is above 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.catalogue import EVENTS
from schemas.errors import ConfigurationError
from schemas.routes import ANALYTICS, Q2_SUFFIX
from schemas.sampling import PER_MILLE_MAX, threshold
from spark_streaming.durations import Duration, parse_duration
from spark_streaming.job import Job, run_job
from spark_streaming.options import CommonOptions, common_options, job_parser, parse_arguments
from spark_streaming.runner import PRIMARY_QUERY, default_data_folder, run_main
from spark_streaming.sinks.batches import batch_writer, refuse_realtime
from spark_streaming.sinks.kafka import write_records
from spark_streaming.slo.folding import Slo, Step
from spark_streaming.sources.kafka import input_kafka_topics, message_records, read_committed
from spark_streaming.transforms.slo import slim, slo_records, steps

JOB = "slo"
SHAPE_VERSION = 1
STATE_FOLDER = "slo"


@dataclass(frozen=True, slots=True)
class Options:
    """All of the job's settings."""

    common: CommonOptions
    window: Duration
    wait: Duration
    sample: float


def read_options(arguments: Sequence[str]) -> Options:
    """Checked settings. Raises ConfigurationError."""
    parser = job_parser(JOB, __doc__, trigger="micro:5s")
    parser.add_argument("--window", default="1m", metavar="DURATION", help="one result per route and window (1m)")
    parser.add_argument(
        "--wait", default="30s", metavar="DURATION", help="how long after a window its acknowledgements may come (30s)"
    )
    parser.add_argument(
        "--sample",
        type=float,
        default=1.0,
        metavar="PER_MILLE",
        help="messages of a thousand; no more than the edges' [events] delivery_sample (1)",
    )
    found = parse_arguments(parser, arguments)
    common = common_options(JOB, found, default_data_folder())
    refuse_realtime(JOB, common.trigger)
    if not 0 < found.sample <= PER_MILLE_MAX:
        raise ConfigurationError(f"--sample: {found.sample} is not above 0 and at most 1000, of a thousand messages")
    return Options(
        common=common,
        window=parse_duration(found.window, "--window"),
        wait=parse_duration(found.wait, "--wait", positive=False),
        sample=found.sample,
    )


class Folder:
    """Folds batches and sends the figures of closed windows."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._slo = Slo(round(options.window.seconds * 1000), round(options.wait.seconds * 1000))
        self._folder = options.common.checkpoint / STATE_FOLDER

    def take(self, batch: DataFrame, number: int) -> None:
        """Kafka first, then the file: a repeated batch sends the same figures under the same ids."""
        records = slim(batch).persist()
        try:
            newest = records.agg(fn.max(fn.unix_millis("timestamp"))).collect()[0][0]
            found = [Step(**row.asDict()) for row in steps(records, threshold(self._options.sample)).collect()]
        finally:
            records.unpersist()
        self._slo.load(self._folder, number)
        figures = self._slo.fold(found, newest or 0)
        if figures:
            rows = [(each["route"], json.dumps(each)) for each in figures]
            frame = batch.sparkSession.createDataFrame(rows, "route string, body string")
            write_records(slo_records(frame), self._options.common.kafka)
        self._slo.store(self._folder, number)


def inputs(common: CommonOptions) -> tuple[str, ...]:
    """The routes' Kafka topics with their QoS 2 twins, and the events."""
    return (*(name for each in input_kafka_topics(common.routes) for name in (each, each + Q2_SUFFIX)), EVENTS)


def writer(session: SparkSession, options: Options, starting_offsets: str) -> DataStreamWriter:
    """The query, ready to start."""
    common = options.common
    records = message_records(
        session,
        read_committed(common.kafka),
        inputs(common),
        starting_offsets=starting_offsets,
        accept_data_loss=common.accept_data_loss,
    )
    checkpoint = common.checkpoint / PRIMARY_QUERY
    return batch_writer(records, Folder(options).take, PRIMARY_QUERY, checkpoint, common.trigger)


def main(arguments: Sequence[str]) -> int:
    """Run the job until it is told to stop; its exit code."""
    options = read_options(arguments)
    job = Job(
        name=JOB,
        common=options.common,
        shape={"job": JOB, "shape": SHAPE_VERSION, "window": options.window.label, "sample": str(options.sample)},
        inputs=inputs(options.common),
        outputs=(ANALYTICS,),
        writers=lambda session, starting_offsets: [writer(session, options, starting_offsets)],
    )
    return run_job(job)


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
