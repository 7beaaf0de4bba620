"""The demo from beginning to end, on a cluster that is there: fleet, observers, Spark, telemetry, report.

1. the data is read and the schedule made, 2. Spark starts, 3. the observers subscribe, 4. the fleet connects,
5. ``Fleet.publish_all``, 6. what is on its way arrives, 7. Spark's windows arrive, 8. the report.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from edge.demo.cluster import ClusterLike, split_address
from edge.demo.display import Display
from edge.demo.fleet import Fleet
from edge.demo.ledger import Ledger
from edge.demo.observers import Observers
from edge.demo.report import Report
from edge.demo.schedule import Schedule
from edge.demo.spark import SparkJob

STATUS_TOPIC_NAME = "demo/status/run"
SETTLE_TIMEOUT_S = 30.0
SPARK_READY_TIMEOUT_S = 120.0
WINDOWS_TIMEOUT_S = 60.0
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """How to run: with Spark or without, and where to keep what goes away with the run."""

    folder: Path
    spark: bool = True


class Demo:
    """One run."""

    def __init__(self, cluster: ClusterLike, schedule: Schedule, settings: DemoSettings, display: Display) -> None:
        self._cluster = cluster
        self._schedule = schedule
        self._settings = settings
        self._display = display
        addresses = [split_address(edge.mqtt) for edge in cluster.edges]
        self._ledger = Ledger()
        self._fleet = Fleet(schedule, addresses, self._ledger)
        self._observers = Observers(addresses, self._fleet.home, self._ledger)
        self._spark: SparkJob | None = None
        self._spark_is_told_of = False
        self._started_s: float | None = None
        self._elapsed_s = 0.0

    async def run(self, stop: asyncio.Event) -> Report:
        """Run until the schedule ends or ``stop`` is set; then wait for what is on its way.

        Raises:
            ConfigurationError: Spark is wanted and not installed. MqttClientError: the edges do not take the fleet.
        """
        async with self._spark_job(), self._clients(stop):
            if stop.is_set():
                return self._report()
            self._display.say("Publishing. One simulated day takes " + _seconds(86_400 / self._schedule.speed))
            async with self._reporting():
                self._started_s = time.monotonic()
                await self._fleet.publish_all(self._started_s, stop)
                self._elapsed_s = time.monotonic() - self._started_s
                await self._until(lambda: self._ledger.is_settled, SETTLE_TIMEOUT_S)
                await self._await_windows(stop)
            self._publish_status(is_over=True)
            return self._report()

    @contextlib.asynccontextmanager
    async def _spark_job(self) -> AsyncIterator[None]:
        if not self._settings.spark:
            yield
            return
        self._display.say("Starting the Spark job device_stats (about 20 s)")
        self._spark = await SparkJob.start(self._cluster.bootstrap, self._settings.folder)
        try:
            yield
        finally:
            await self._spark.stop()

    @contextlib.asynccontextmanager
    async def _clients(self, stop: asyncio.Event) -> AsyncIterator[None]:
        total = len(self._schedule.devices)
        try:
            await self._observers.start()
            started_s = time.monotonic()
            await self._fleet.connect(
                lambda done: self._display.progress("Connecting devices", done, total, f"{done:,}")
            )
            self._display.say(f"{total:,} devices connected in {_seconds(time.monotonic() - started_s)}")
            if self._spark is not None and not await self._spark.wait_ready(SPARK_READY_TIMEOUT_S):
                self._display.say(f"The Spark job is not ready. It said:\n{self._spark.log}")
                self._spark_is_told_of = self._spark.ended.is_set()
            yield
        finally:
            await self._fleet.disconnect()
            await self._observers.stop()

    async def _await_windows(self, stop: asyncio.Event) -> None:
        spark = self._spark
        if spark is not None and not self._observers.windows and not stop.is_set():
            self._display.say("Waiting for the first window of Spark")
            await self._until(lambda: bool(self._observers.windows) or spark.ended.is_set(), WINDOWS_TIMEOUT_S)
            if not self._observers.windows and not self._spark_is_told_of:
                self._display.say(f"No window came. The Spark job said:\n{spark.log}")

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline_s:  # noqa: ASYNC110 - several counters, no one event
            await asyncio.sleep(LOOK_S)

    # -- telling -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _reporting(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._report_every_second())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _report_every_second(self) -> None:
        before = 0
        while True:
            await asyncio.sleep(1.0)
            ledger = self._ledger
            self._publish_status(is_over=False)
            figures = f"{ledger.published - before:>5,}/s  {ledger.published:,} published"
            figures += f", {ledger.delivered:,} on the other edge"
            if self._spark is not None:
                figures += f", {len(self._observers.windows):,} windows"
            before = ledger.published
            self._display.progress(
                "Publishing", min(self._run_s(), self._schedule.seconds), self._schedule.seconds, figures
            )

    def _run_s(self) -> float:
        if self._started_s is None:
            return 0.0
        return self._elapsed_s or time.monotonic() - self._started_s

    def _publish_status(self, is_over: bool) -> None:
        """The demo's own account, for the live page: JSON on ``demo/status/run``."""
        ledger = self._ledger
        simulated = datetime.fromtimestamp(self._schedule.simulated_s(self._run_s()), UTC)
        status = {
            "ts": time.time() * 1000.0,
            "elapsed_s": round(self._run_s(), 1),
            "seconds": self._schedule.seconds,
            "speed": self._schedule.speed,
            "simulated_at": simulated.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "devices": self._fleet.connected,
            "published": ledger.published,
            "delivered": ledger.delivered,
            "lost": ledger.lost if is_over else ledger.gaps,  # until the end the newest are just on their way
            "duplicated": ledger.duplicated,
            "p50_ms": ledger.latencies.percentile(0.5),
            "p99_ms": ledger.latencies.percentile(0.99),
            "is_over": is_over,
            "edges": [
                {
                    "node": edge.node_id,
                    "connections": self._fleet.connected_at(index),
                    "messages_received": self._fleet.acknowledged_at[index],
                    "messages_sent": self._observers.received_at[index],
                }
                for index, edge in enumerate(self._cluster.edges)
            ],
        }
        self._observers.publish_status(STATUS_TOPIC_NAME, orjson.dumps(status))

    def _report(self) -> Report:
        ledger = self._ledger
        return Report(
            devices=len(self._schedule.devices),
            edges=len(self._cluster.edges),
            seconds=self._run_s(),
            published=ledger.published,
            acknowledged=ledger.acknowledged,
            delivered=ledger.delivered,
            lost=ledger.lost,
            duplicated=ledger.duplicated,
            out_of_order=ledger.out_of_order,
            refused=self._fleet.refused,
            reconnects=self._fleet.reconnects,
            p50_ms=ledger.latencies.percentile(0.5),
            p99_ms=ledger.latencies.percentile(0.99),
            windows=len(self._observers.windows) if self._spark is not None else None,
            results=self._observers.results,
        )


def _seconds(value: float) -> str:
    return f"{value:.1f} s"
