"""Every message to Parquet files by date, hour and route, each once; `--compact` makes large files of small ones.

One query, in micro-batches. Kafka is read committed, the routes' QoS 2 twins included, so what a transaction has taken
back is not archived. The files and how they stay exact: `spark_streaming.archive_files`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.errors import ConfigurationError
from schemas.routes import Q2_SUFFIX, message_kafka_topics
from spark_streaming import archive_files
from spark_streaming.durations import Duration, parse_duration
from spark_streaming.errors import SparkJobError
from spark_streaming.job import Job, run_job
from spark_streaming.options import CommonOptions, common_options, job_parser, parse_arguments, parse_trigger
from spark_streaming.progress import Reporter
from spark_streaming.runner import PRIMARY_QUERY, Stopper, default_data_folder, run_main
from spark_streaming.session import job_session
from spark_streaming.sinks.batches import batch_writer, refuse_realtime
from spark_streaming.sources.kafka import message_records, read_committed
from spark_streaming.transforms.archive import PARTITION_COLUMNS, SORT_COLUMNS, archive_rows

JOB = "archive"
SHAPE_VERSION = 1
_SLOTS = 2  # of a compaction
_SETTINGS = {
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what other readers understand best
}


@dataclass(frozen=True, slots=True)
class Options:
    """All of the job's settings."""

    common: CommonOptions
    archive: Path
    compact: bool
    list_files: bool
    open_hours: int
    keep: Duration


def argument_parser() -> argparse.ArgumentParser:
    parser = job_parser(JOB, __doc__, trigger="micro:30s")
    parser.add_argument("--archive", type=Path, metavar="DIR", help="the archive (default: below the data folder)")
    parser.add_argument("--compact", action="store_true", help="compact the hours that are over, then stop")
    parser.add_argument("--list", action="store_true", help="print the files that count, one a line, then stop")
    parser.add_argument("--open-hours", type=int, default=1, metavar="N", help="leave the last N hours alone (1)")
    parser.add_argument(
        "--keep", default="10m", metavar="DURATION", help="how long compacted small files stay for readers (10m)"
    )
    parser.add_argument("--batch-records", type=int, default=500_000, metavar="N", help="per batch at most (500000)")
    return parser


def read_options(arguments: Sequence[str]) -> Options:
    """Checked settings. Raises ConfigurationError."""
    found = parse_arguments(argument_parser(), arguments)
    refuse_realtime(JOB, parse_trigger(found.trigger))
    common = common_options(JOB, found, default_data_folder())
    if not 0 <= found.open_hours <= 10_000:
        raise ConfigurationError(f"--open-hours: {found.open_hours} is not between 0 and 10000")
    return Options(
        common=common if found.starting else replace(common, starting_offsets="earliest"),
        archive=(found.archive or default_data_folder() / JOB).absolute(),
        compact=found.compact,
        list_files=found.list,
        open_hours=found.open_hours,
        keep=parse_duration(found.keep, "--keep", positive=False),
    )


def writer(session: SparkSession, options: Options, inputs: Sequence[str], starting_offsets: str) -> DataStreamWriter:
    """The query, ready to start."""
    common = options.common
    records = message_records(
        session,
        read_committed(common.kafka),
        inputs,
        starting_offsets=starting_offsets,
        accept_data_loss=common.accept_data_loss,
        batch_records_max=common.batch_records_max,
    )

    def take(batch: DataFrame, number: int) -> None:
        staged = options.archive / archive_files.STAGING / f"batch-{number}"
        write_folders(batch, staged)
        archive_files.place_batch(options.archive, staged, number)

    rows = archive_rows(records, common.routes)
    return batch_writer(rows, take, PRIMARY_QUERY, common.checkpoint / PRIMARY_QUERY, common.trigger)


def write_folders(rows: DataFrame, folder: Path) -> None:
    """One Parquet file for each date, hour and route."""
    spread = rows.repartition(*PARTITION_COLUMNS).sortWithinPartitions(*PARTITION_COLUMNS, *SORT_COLUMNS)
    spread.write.mode("overwrite").partitionBy(*PARTITION_COLUMNS).parquet(str(folder))


def compact(session: SparkSession, options: Options, reporter: Reporter) -> int:
    """Compact what is closed and delete what has been compacted long ago; how many folders were compacted.

    Raises SparkJobError when a compacted file has not the rows of its parts; nothing has changed then.
    """
    committed = archive_files.committed_batch(options.common.checkpoint / PRIMARY_QUERY)
    chosen = archive_files.compactable(
        archive_files.leaves(options.archive), committed, archive_files.utc_now(), options.open_hours
    )
    for number, leaf in enumerate(chosen):
        staged = options.archive / archive_files.STAGING / f"compact-{number}"
        parts = session.read.parquet(*map(str, leaf.files))
        parts.coalesce(1).sortWithinPartitions(*SORT_COLUMNS).write.mode("overwrite").parquet(str(staged))
        before, after = parts.count(), session.read.parquet(str(staged)).count()
        if before != after:
            raise SparkJobError(f"{leaf.path}: {before} rows became {after}; the small files stay")
        (file,) = staged.glob("part-*.parquet")
        placed = archive_files.place_compacted(leaf, file)
        reporter.say("compacted", f"{len(leaf.files)} files to {placed}", file=str(placed), parts=len(leaf.files))
    deleted = archive_files.delete_stale(options.archive, options.keep.seconds, archive_files.utc_now().timestamp())
    reporter.say("done", f"{len(chosen)} folders compacted, {deleted} old files deleted", deleted=deleted)
    return len(chosen)


def main(arguments: Sequence[str]) -> int:
    """Run the job until it is told to stop; its exit code."""
    options = read_options(arguments)
    if options.list_files:
        for file in archive_files.visible_files(options.archive):
            print(file)
        return 0
    common = options.common
    archive_files.claim_archive(options.archive, common.checkpoint)
    if options.compact:
        Stopper().listen()  # it runs to its end or is ended by force: whatever it leaves is right
        session = job_session(JOB, _SLOTS, common.shuffle_partitions, common.state_store, _SETTINGS)
        compact(session, options, Reporter(JOB, common.as_json))
        session.stop()
        return 0
    inputs = archived_kafka_topics(common)
    job = Job(
        name=JOB,
        common=common,
        shape={"job": JOB, "shape": SHAPE_VERSION, "archive": str(options.archive)},
        inputs=inputs,
        outputs=(),
        writers=lambda session, starting_offsets: [writer(session, options, inputs, starting_offsets)],
        settings=_SETTINGS,
    )
    return run_job(job)


def archived_kafka_topics(common: CommonOptions) -> tuple[str, ...]:
    """Those of all routes with their QoS 2 twins."""
    return tuple(name for each in message_kafka_topics(common.routes) for name in (each, each + Q2_SUFFIX))


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
