"""A topic catalogue: fields, drift, rate and malformed payloads of each family of Topic Names, to headwater.catalogue.

One query, in micro-batches, without Spark state: each batch is reduced to a row per family and minute, and these are
folded into the catalogue, which is a file per batch beside the checkpoint (`spark_streaming.quality.folding`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.catalogue import CATALOGUE
from schemas.errors import ConfigurationError, TopicError
from schemas.families import PAYLOAD_KINDS
from schemas.routes import Q2_SUFFIX
from schemas.topics import check_topic_filter
from spark_streaming.durations import Duration, parse_duration
from spark_streaming.job import Job, run_job
from spark_streaming.options import CommonOptions, common_options, job_parser, parse_arguments, parse_trigger
from spark_streaming.progress import Reporter
from spark_streaming.quality.folding import Catalogue, Profile
from spark_streaming.runner import PRIMARY_QUERY, default_data_folder, run_main
from spark_streaming.sinks.batches import batch_writer, refuse_realtime
from spark_streaming.sinks.kafka import write_records
from spark_streaming.sources.kafka import input_kafka_topics, message_records, read_committed
from spark_streaming.transforms.quality import catalogue_records, profiles

JOB = "quality"
SHAPE_VERSION = 1
STATE_FOLDER = "catalogue"


@dataclass(frozen=True, slots=True)
class Options:
    """All of the job's settings."""

    common: CommonOptions
    families: tuple[str, ...]
    families_max: int
    forget: Duration
    table: Path | None


def read_options(arguments: Sequence[str]) -> Options:
    """Checked settings. Raises ConfigurationError."""
    parser = job_parser(JOB, __doc__, trigger="micro:10s")
    parser.add_argument(
        "--family", action="append", default=[], metavar="FILTER", help="a family of its own; may be repeated"
    )
    parser.add_argument("--families-max", type=int, default=2000, metavar="N", help="more are not looked at (2000)")
    parser.add_argument("--forget", default="30d", metavar="DURATION", help="families that are silent so long (30d)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="the catalogue as JSON lines, too, always whole")
    parser.add_argument("--batch-records", type=int, default=200_000, metavar="N", help="per batch at most (200000)")
    found = parse_arguments(parser, arguments)
    refuse_realtime(JOB, parse_trigger(found.trigger))
    common = common_options(JOB, found, default_data_folder())
    for topic_filter in found.family:
        try:
            check_topic_filter(topic_filter)
        except TopicError as error:
            raise ConfigurationError(f"--family: {error}") from None
    if found.families_max < 1:
        raise ConfigurationError(f"--families-max: {found.families_max} is not above 0")
    return Options(
        common=common,
        families=tuple(found.family),
        families_max=found.families_max,
        forget=parse_duration(found.forget, "--forget"),
        table=found.table.absolute() if found.table else None,
    )


class Folder:
    """Folds batches into the catalogue and tells Kafka what has changed."""

    def __init__(self, options: Options, reporter: Reporter) -> None:
        self._options = options
        self._reporter = reporter
        self._catalogue = Catalogue(options.families_max, round(options.forget.seconds * 1000))
        self._folder = options.common.checkpoint / STATE_FOLDER

    def take(self, batch: DataFrame, number: int) -> None:
        """Kafka first, then the file: a repeated batch writes the same values under the same keys."""
        options, catalogue = self._options, self._catalogue
        catalogue.load(self._folder, number)
        catalogue.fold(map(profile, profiles(batch, options.common.routes, options.families).collect()))
        rows: list[tuple[str, bytes | None]] = [(entry.family, entry.to_json()) for entry in catalogue.changed]
        rows += [(family, None) for family in catalogue.forgotten]
        if rows:
            frame = batch.sparkSession.createDataFrame(rows, "family string, value binary")
            write_records(catalogue_records(frame), options.common.kafka)
        stored = catalogue.store(self._folder, number)
        if options.table is not None:
            part = options.table.with_name(f".{options.table.name}.part")
            part.write_bytes(stored.read_bytes())
            part.replace(options.table)
        if catalogue.left_out:
            text = f"{catalogue.left_out} messages are of families beyond --families-max {options.families_max}"
            self._reporter.say("left_out", text, messages=catalogue.left_out)


def profile(row: object) -> Profile:
    """A row of `profiles`."""
    values = row.asDict()  # type: ignore[attr-defined]  # pyspark's Row
    kinds = {kind: values.pop(kind) for kind in PAYLOAD_KINDS}
    return Profile(kinds={kind: count for kind, count in kinds.items() if count}, **values)


def writer(session: SparkSession, options: Options, starting_offsets: str) -> DataStreamWriter:
    """The query, ready to start."""
    common = options.common
    records = message_records(
        session,
        read_committed(common.kafka),
        inputs(common),
        starting_offsets=starting_offsets,
        accept_data_loss=common.accept_data_loss,
        batch_records_max=common.batch_records_max,
    )
    folder = Folder(options, Reporter(JOB, common.as_json))
    return batch_writer(records, folder.take, PRIMARY_QUERY, common.checkpoint / PRIMARY_QUERY, common.trigger)


def inputs(common: CommonOptions) -> tuple[str, ...]:
    """The routes' Kafka topics with their QoS 2 twins, without results of Spark jobs."""
    return tuple(name for each in input_kafka_topics(common.routes) for name in (each, each + Q2_SUFFIX))


def main(arguments: Sequence[str]) -> int:
    """Run the job until it is told to stop; its exit code."""
    options = read_options(arguments)
    job = Job(
        name=JOB,
        common=options.common,
        shape={"job": JOB, "shape": SHAPE_VERSION},
        inputs=inputs(options.common),
        outputs=(CATALOGUE,),
        writers=lambda session, starting_offsets: [writer(session, options, starting_offsets)],
    )
    return run_job(job)


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
