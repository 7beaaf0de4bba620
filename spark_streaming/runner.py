"""Running a job's queries: start, say when they work, stop on request, explain what ended them."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.errors import HeadwaterError
from spark_streaming.control import report_error, watch_control
from spark_streaming.errors import SparkJobError
from spark_streaming.options import Trigger
from spark_streaming.progress import Reporter

EXIT_USAGE = 2
_POLL_S = 0.2
_DATA_LOSS = re.compile(r"KAFKA_DATA_LOSS|failOnDataLoss|data may have been lost|data was aged out", re.IGNORECASE)


class Stopper:
    """A flag that SIGTERM, SIGINT and the control line raise."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def listen(self) -> None:
        """To signals and to the control line. Call it from the main thread, first thing."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ask())
        watch_control(self.ask)


def run_main(main: Callable[[], int]) -> int:
    """A job's exit code; our own errors are one line on stderr."""
    try:
        return main()
    except HeadwaterError as error:
        if not report_error(str(error)):
            print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_USAGE


def run_queries(
    session: SparkSession, writers: Sequence[DataStreamWriter], trigger: Trigger, stopper: Stopper, reporter: Reporter
) -> None:
    """Until told to stop, or until the queries have read everything there was. Raises SparkJobError if one fails.

    The first writer is the main one: the others start when it works, so that they do not slow it down.
    """
    queries = [writers[0].start()]
    started, is_ready = time.monotonic(), False
    while not stopper.is_asked:
        running = [query for query in queries if query.isActive]
        for query in queries:
            if not query.isActive and (error := query.exception()) is not None:
                _stop_all(session, queries)
                raise SparkJobError(explain(error))
        if not running and is_ready:
            reporter.say("done", "everything there was has been read", trigger=trigger.kind)
            return
        if not is_ready and (not running or _is_working(session, queries[0], trigger)):
            is_ready = True
            detail = {"mode": trigger.kind, "pid": os.getpid(), "jvm_pid": os.getppid()}
            reporter.say("ready", f"ready ({trigger.kind})", **detail, wait_s=round(time.monotonic() - started, 1))
            queries += [writer.start() for writer in writers[1:]]
        time.sleep(_POLL_S)
    _stop_all(session, queries)
    reporter.say("stopped", "stopped")


def _is_working(session: SparkSession, query: StreamingQuery, trigger: Trigger) -> bool:
    """A micro-batch query has finished its first batch, or waits for one; a real-time one (no batch ends for minutes)
    runs its tasks."""
    if query.lastProgress is not None:
        return True
    if not trigger.is_realtime:
        return str(query.status["message"]).startswith("Waiting for")
    tracker = session.sparkContext.statusTracker()
    jobs = tracker.getJobIdsForGroup(str(query.runId))
    stages = [
        tracker.getStageInfo(stage) for job in jobs for stage in (getattr(tracker.getJobInfo(job), "stageIds", ()))
    ]
    return bool(stages) and all(stage is not None and stage.numActiveTasks == stage.numTasks for stage in stages)


PRIMARY_QUERY = "results"  # the one query of a job that may be real-time


def _stop_all(session: SparkSession, queries: Sequence[StreamingQuery]) -> None:
    """Stopping cancels running tasks, which Spark logs as errors: they are not, so the log is off from here."""
    session.sparkContext.setLogLevel("OFF")
    for query in queries:
        query.stop()


def explain(error: StreamingQueryException | Exception) -> str:
    """What ended a query, and what to do about it."""
    text = str(error)
    first = next((line for line in text.splitlines() if line.strip()), "no reason given")
    if _DATA_LOSS.search(text):
        return (
            "Kafka no longer has records that this job has not read yet (their retention ended, or the Kafka topic was "
            "deleted and made anew). Restart with --accept-data-loss once to go on with the oldest records there are, "
            "or with a new --checkpoint folder; raise the topic's retention.ms above the longest stop. "
            f"Spark says: {first[:500]}"
        )
    return f"the query failed and goes on from its checkpoint at the next start: {text[:2000]}"


def default_data_folder() -> Path:
    """`$XDG_DATA_HOME/headwater`, or below `~/.local/share`."""
    root = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(root) / "headwater"
