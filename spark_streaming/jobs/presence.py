"""Who is online and who flaps, from headwater.events; with `--enforce`, flapping clients are banned for a time.

One query, in micro-batches: `transformWithState` needs them. With `--enforce`, a client that connects too often or
keeps trying what it may not is banned through headwater.control, which every edge follows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.catalogue import CONTROL, EVENTS
from schemas.errors import ConfigurationError
from schemas.routes import ANALYTICS
from spark_streaming.durations import parse_duration
from spark_streaming.job import Job, run_job
from spark_streaming.options import CommonOptions, common_options, job_parser, parse_arguments
from spark_streaming.presence.banning import BanRules, Judgement, Ledger
from spark_streaming.presence.client import JUDGEMENTS, Rules
from spark_streaming.presence.processor import OUTPUT_SCHEMA, PresenceProcessor
from spark_streaming.progress import Reporter
from spark_streaming.runner import PRIMARY_QUERY, default_data_folder, run_main
from spark_streaming.sinks.batches import batch_writer, refuse_realtime
from spark_streaming.sinks.kafka import write_records
from spark_streaming.sources.kafka import message_records
from spark_streaming.transforms.presence import happenings, presence_records

JOB = "presence"
SHAPE_VERSION = 1  # raise it when `Client` cannot read the state of an earlier version
LATENESS = "10 minutes"  # of the watermark; it only decides when long silent clients are forgotten


@dataclass(frozen=True, slots=True)
class Options:
    """All of the job's settings."""

    common: CommonOptions
    rules: Rules
    enforce: bool
    bans: BanRules


def read_options(arguments: Sequence[str]) -> Options:
    """Checked settings. Raises ConfigurationError."""
    parser = job_parser(JOB, __doc__, trigger="micro:1s")
    parser.add_argument("--connects-max", type=int, default=15, metavar="N", help="so many in a window: flapping (15)")
    parser.add_argument("--denied-max", type=int, default=100, metavar="N", help="so many in a window: abuse (100)")
    parser.add_argument("--flapping-window", default="1m", metavar="DURATION", help="the window of both (1m)")
    parser.add_argument("--enforce", action="store_true", help="ban flapping and abusive clients for a time")
    parser.add_argument("--ban-for", default="5m", metavar="DURATION", help="how long (5m)")
    parser.add_argument(
        "--never-ban", action="append", default=[], metavar="PATTERN", help="client ids, as backend-*; may be repeated"
    )
    parser.add_argument("--bans-per-minute", type=int, default=30, metavar="N", help="at most (30)")
    parser.add_argument("--forget", default="30d", metavar="DURATION", help="clients that are silent so long (30d)")
    found = parse_arguments(parser, arguments)
    common = common_options(JOB, found, default_data_folder())
    refuse_realtime(JOB, common.trigger)
    for name in ("connects_max", "denied_max", "bans_per_minute"):
        if not 1 <= getattr(found, name) <= 10_000:
            option = name.replace("_", "-")
            raise ConfigurationError(f"--{option}: {getattr(found, name)} is not between 1 and 10000")
    return Options(
        common=common if found.starting else replace(common, starting_offsets="earliest"),
        rules=Rules(
            connects_max=found.connects_max,
            denied_max=found.denied_max,
            window_ms=round(parse_duration(found.flapping_window, "--flapping-window").seconds * 1000),
            ban_ms=round(parse_duration(found.ban_for, "--ban-for").seconds * 1000),
            forget_ms=round(parse_duration(found.forget, "--forget").seconds * 1000),
        ),
        enforce=found.enforce,
        bans=BanRules(tuple(pattern for pattern in found.never_ban if pattern), found.bans_per_minute),
    )


def changes(records: DataFrame, rules: Rules) -> DataFrame:
    """What subscribers hear about clients, from records of headwater.events."""
    found = happenings(records).withWatermark("timestamp", LATENESS)
    return found.groupBy("client_id").transformWithState(PresenceProcessor(rules), OUTPUT_SCHEMA, "Update", "EventTime")


class Enforcer:
    """Bans whom a batch judges, through headwater.control."""

    def __init__(self, options: Options, reporter: Reporter) -> None:
        self._options = options
        self._reporter = reporter
        self._file = options.common.checkpoint / "headwater-bans.json"
        self._ledger = Ledger.load(self._file)

    def enforce(self, batch: DataFrame) -> None:
        """Kafka first, then the ledger: see `presence.banning`."""
        rows = batch.where(batch.state.isin(*JUDGEMENTS)).select("client_id", "state", "id", "until_ms").collect()
        if not rows:
            return
        found = [Judgement(row.client_id, row.state, row.id, row.until_ms) for row in rows]
        bans, held_back = self._ledger.decide(found, self._options.bans, time.time_ns() // 1_000_000)
        if bans:
            values = [(ban.key.encode(), ban.to_json(), CONTROL) for ban in bans]
            frame = batch.sparkSession.createDataFrame(values, "key binary, value binary, topic string")
            write_records(frame, self._options.common.kafka)
            self._ledger.save(self._file)
        for ban in bans:
            self._reporter.say("banned", f"banned {ban.value}: {ban.reason}", client_id=ban.value, reason=ban.reason)
        for each in held_back:
            text = f"{each.client_id} is {each.state}, but there were too many bans in this minute"
            self._reporter.say("held_back", text, client_id=each.client_id, state=each.state)


def writer(session: SparkSession, options: Options, starting_offsets: str) -> DataStreamWriter:
    """The query, ready to start."""
    common = options.common
    records = message_records(
        session,
        common.kafka,
        (EVENTS,),
        starting_offsets=starting_offsets,
        accept_data_loss=common.accept_data_loss,
    )
    enforcer = Enforcer(options, Reporter(JOB, common.as_json)) if options.enforce else None

    def take(batch: DataFrame, _number: int) -> None:
        batch.persist()
        try:
            if enforcer is not None:
                enforcer.enforce(batch)
            write_records(presence_records(batch), common.kafka)
        finally:
            batch.unpersist()

    checkpoint: Path = common.checkpoint / PRIMARY_QUERY
    return batch_writer(changes(records, options.rules), take, PRIMARY_QUERY, checkpoint, common.trigger, "update")


def main(arguments: Sequence[str]) -> int:
    """Run the job until it is told to stop; its exit code."""
    options = read_options(arguments)
    job = Job(
        name=JOB,
        common=options.common,
        shape={
            "job": JOB,
            "shape": SHAPE_VERSION,
            "shuffle_partitions": options.common.shuffle_partitions,
            "state": options.common.state_store,
        },
        inputs=(EVENTS,),
        outputs=(ANALYTICS, CONTROL) if options.enforce else (ANALYTICS,),
        writers=lambda session, starting_offsets: [writer(session, options, starting_offsets)],
    )
    return run_job(job)


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
