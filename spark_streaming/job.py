"""What every job does around its queries: ask Kafka, check the checkpoint, make the session, listen, run, end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streaming.checkpoint import Offsets, lost_records, next_records, positions_of, words_for_loss
from spark_streaming.errors import KafkaUnusable, RecordsLost, SparkJobError
from spark_streaming.events import EventWriter
from spark_streaming.fingerprint import check_fingerprint, has_start, kept_start
from spark_streaming.metrics import JobMetrics
from spark_streaming.options import CHECKPOINT_START, CommonOptions, start_time_ms
from spark_streaming.progress import ProgressListener, ProgressTarget, Reporter
from spark_streaming.runner import Stopper, run_queries
from spark_streaming.session import job_session, slots_needed
from spark_streaming.sources.kafka import beginning_offsets, end_offsets, offsets_at


@dataclass(frozen=True)
class Job:
    """A job, ready to run.

    `shape` is what the checkpoint's state depends on, `inputs` and `outputs` are Kafka topics that must exist, and
    `writers` makes the queries from the session and the starting offsets, the main one first.
    """

    name: str
    common: CommonOptions
    shape: Mapping[str, str | int]
    inputs: Sequence[str]
    outputs: Sequence[str]
    writers: Callable[[SparkSession, str], Sequence[DataStreamWriter]]
    settings: Mapping[str, str] = field(default_factory=dict)  # of the session, beside those that all jobs share


def run_job(job: Job) -> int:
    """Run until told to stop, or until everything has been read; the exit code. Raises HeadwaterError."""
    stopper = Stopper()
    stopper.listen()
    common = job.common
    reporter = Reporter(job.name, common.as_json)
    ends = end_offsets(common.kafka, job.inputs, job.outputs)
    check_fingerprint(common.checkpoint, job.shape)
    wanted_start = "" if has_start(common.checkpoint) else starting_point(job, ends)
    starting_offsets = kept_start(common.checkpoint, wanted_start)
    check_loss(job, ends, reporter)
    partitions = sum(map(len, ends.values()))
    slots = slots_needed(partitions, common.shuffle_partitions)
    with ExitStack() as stack:
        events, targets = _targets(job, reporter, stack)
        session = job_session(job.name, slots, common.shuffle_partitions, common.state_store, job.settings)
        if targets:
            session.streams.addListener(ProgressListener(*targets))
        detail = {"partitions": partitions, "checkpoint": str(common.checkpoint)}
        reporter.say("starting", f"reading {partitions} partitions", **detail)
        if events is not None:
            events.record("started", **detail, trigger=common.trigger.kind)
        why = "stopped"
        try:
            run_queries(session, job.writers(session, starting_offsets), common.trigger, stopper, reporter)
        except SparkJobError as error:
            why = str(error)
            with suppress(KafkaUnusable):
                check_loss(job, ends, reporter)  # if that is what ended it: which records
            raise
        finally:
            if events is not None:
                events.record("terminated", reason=why)
            session.stop()
    return 0


def starting_point(job: Job, ends: Offsets) -> str:
    """Where a new checkpoint starts, as Spark takes it. Raises ConfigurationError for a checkpoint that is none."""
    common = job.common
    if common.starting_offsets == "earliest":
        return common.starting_offsets
    found = ends
    if common.starting_offsets.startswith(CHECKPOINT_START):
        kept = positions_of(Path(common.starting_offsets.removeprefix(CHECKPOINT_START)))
        # -2: a partition that the old job did not know is read from its beginning
        found = {name: {one: kept.get(name, {}).get(one, -2) for one in parts} for name, parts in ends.items()}
    elif (at_ms := start_time_ms(common.starting_offsets, time.time_ns() // 1_000_000)) is not None:
        found = offsets_at(common.kafka, ends, at_ms)
    return json.dumps(found)


def check_loss(job: Job, ends: Offsets, reporter: Reporter) -> None:
    """Say what Kafka has deleted before this job could read it. Raises RecordsLost unless that is accepted."""
    if not (positions := next_records(job.common.checkpoint)):
        return
    lost = lost_records(positions, beginning_offsets(job.common.kafka, job.inputs), ends)
    if lost and not job.common.accept_data_loss:
        raise RecordsLost(
            f"Kafka no longer has records that this job has not read: {words_for_loss(lost)}. Start once with "
            "--accept-data-loss to go on with the oldest there are; raise retention.ms above the longest stop"
        )
    if lost:
        reporter.say("records_lost", f"records lost and accepted: {words_for_loss(lost)}", partitions=lost)


def _targets(job: Job, reporter: Reporter, stack: ExitStack) -> tuple[EventWriter | None, list[ProgressTarget]]:
    """Who hears of progress: stdout, metrics and headwater.events, as the options say."""
    common = job.common
    targets: list[ProgressTarget] = [reporter.line] if common.progress else []
    if common.metrics_port is not None:
        metrics = stack.enter_context(JobMetrics(job.name))
        port = metrics.serve(common.metrics_host, common.metrics_port)
        reporter.say("metrics", f"metrics on http://{common.metrics_host}:{port}/metrics", port=port)
        targets.append(metrics)
    if not common.events:
        return None, targets
    events = stack.enter_context(EventWriter(common.kafka, job.name))
    return events, [*targets, events]
