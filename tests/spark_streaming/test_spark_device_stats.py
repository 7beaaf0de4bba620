"""The whole job over real Kafka in real-time mode: killed, restarted, orphaned; its results against a model."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

READY_S = 180.0  # 16 s on a quiet machine; CI has two cores for everything
ARRIVE_S = 60.0
WINDOW_MS = 10_000
STATISTICS = ("count", "min", "max", "mean", "stddev", "last")
ROOT = Path(__file__).parents[2]


@dataclass
class Job:
    """A running `spark_streaming.submit` and what it has said."""

    process: subprocess.Popen[str]
    lines: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))
        self.lines.put({"event": "end of output"})

    def await_event(self, event: str, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            line = self.lines.get(timeout=max(0.1, deadline - time.monotonic()))
            if line["event"] == event:
                return line
            assert line["event"] != "end of output", f"the job ended before it said {event!r}"


@pytest.fixture
def jobs(tmp_path: Path, kafka_bootstrap: str) -> Iterator[Any]:
    """Start jobs on one checkpoint; whatever they leave is ended."""
    started: list[Job] = []
    routes = tmp_path / "routes.json"

    def start(kafka_topic: str, *options: str) -> Job:
        rows = [{"filter": "#", "kafka_topic": kafka_topic, "key": None, "partitions": 2}]
        routes.write_text(json.dumps(rows))
        command = [sys.executable, "-m", "spark_streaming.submit", "device_stats", "--kafka", kafka_bootstrap]
        command += ["--routes", str(routes), "--checkpoint", str(tmp_path / "checkpoint"), "--json", *options]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (tmp_path / "spark.log").open("a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ, cwd=ROOT)
        started.append(Job(process))
        return started[-1]

    yield start
    for job in started:
        if job.process.poll() is None:
            job.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(35)
            job.process.kill()
            job.process.wait()
        assert job.process.stdout is not None
        job.process.stdout.close()


async def create_kafka_topics(bootstrap: str, kafka_topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        for name, partitions in ((kafka_topic, 2), ("mqtt.analytics", 4), ("mqtt.dead_letter", 1)):
            configs = {"message.timestamp.type": "LogAppendTime"}
            with suppress(TopicAlreadyExistsError):
                await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
    finally:
        await admin.close()


@asynccontextmanager
async def producer(bootstrap: str) -> AsyncIterator[AIOKafkaProducer]:
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


class Results:
    """Reads an output topic from its beginning and keeps what belongs to this test's devices."""

    def __init__(self, bootstrap: str, kafka_topic: str) -> None:
        self.records: list[Any] = []
        self._kafka_topic = kafka_topic
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")

    async def __aenter__(self) -> Results:
        await self._consumer.start()
        partitions = 4 if self._kafka_topic == "mqtt.analytics" else 1
        self._consumer.assign([TopicPartition(self._kafka_topic, number) for number in range(partitions)])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def read_until(self, is_enough: Any, timeout_s: float = ARRIVE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_enough():
            assert time.monotonic() < deadline, f"{self._kafka_topic}: not all there after {timeout_s} s"
            for batch in (await self._consumer.getmany(timeout_ms=200)).values():
                self.records += batch


def model(readings: list[tuple[str, str, float, int]]) -> dict[tuple[str, str, int], dict[str, float]]:
    """The statistics of (device, metric, value, event time in ms), in plain Python."""
    groups: dict[tuple[str, str, int], list[tuple[int, int, float]]] = {}
    for position, (device, metric, value, at_ms) in enumerate(readings):
        groups.setdefault((device, metric, at_ms // WINDOW_MS), []).append((at_ms, position, value))
    return {
        group: {
            "count": len(rows),
            "min": min(value for _, _, value in rows),
            "stddev": pytest.approx(statistics.stdev(value for _, _, value in rows)) if len(rows) > 1 else None,
            "max": max(value for _, _, value in rows),
            "mean": pytest.approx(sum(value for _, _, value in rows) / len(rows)),
            "last": max(rows)[2],
        }
        for group, rows in groups.items()
    }


def newest(records: list[Any], run: str) -> dict[tuple[str, str, int], dict[str, float]]:
    """Of each id the record with the highest count, as the model has it."""
    found: dict[tuple[str, str, int], dict[str, float]] = {}
    ids: dict[str, tuple[str, str, int]] = {}
    for record in records:
        body = json.loads(record.value)
        if not body["device"].startswith(run):
            continue
        start_ms = time_ms(body["window_start"])
        group = (body["device"], body["metric"], start_ms // WINDOW_MS)
        assert ids.setdefault(body["id"], group) == group
        assert dict(record.headers)["mqtt.topic"].decode() == f"analytics/stats/10s/{body['metric']}/{body['device']}"
        if group not in found or found[group]["count"] <= body["count"]:
            found[group] = {name: body.get(name) for name in STATISTICS}
    assert len(set(ids.values())) == len(ids)
    return found


def time_ms(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1000)


def processes_with(text: str) -> list[int]:
    """The processes whose command line holds a text."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and text in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(entry.name))
    return found


async def gone(text: str, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while processes_with(text):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


@pytest.mark.timeout(600)
async def test_results_equal_a_model_through_kill_and_restart(kafka_bootstrap: str, jobs: Any, tmp_path: Path) -> None:
    run = uuid.uuid4().hex[:8]
    kafka_topic = f"stats.{run}"
    await create_kafka_topics(kafka_bootstrap, kafka_topic)
    randomness = random.Random(7)
    sent: list[tuple[str, str, float, int]] = []
    base_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS - 2 * WINDOW_MS

    async def publish(client: AIOKafkaProducer, count: int) -> None:
        for _ in range(count):
            device = f"{run}/{randomness.randrange(5)}"
            at_ms = base_ms + randomness.randrange(2 * WINDOW_MS)  # never later than the watermark
            value = round(randomness.uniform(-40, 40), 2)
            payload = json.dumps({"ts": at_ms, "temp": value, "gps": {"lat": value / 2}, "name": "x"})
            headers = [("mqtt.topic", f"sensors/{device}".encode())]
            await client.send_and_wait(kafka_topic, payload.encode(), key=device.encode(), headers=headers)
            sent.extend([(device, "temp", value, at_ms), (device, "gps.lat", value / 2, at_ms)])

    async with producer(kafka_bootstrap) as client, Results(kafka_bootstrap, "mqtt.analytics") as results:
        job = jobs(kafka_topic, "--watermark", "1m", "--dead-letter-every", "1s")
        ready = await asyncio.to_thread(job.await_event, "ready", READY_S)
        assert ready["mode"] == "realtime"
        await publish(client, 150)
        await results.read_until(lambda: newest(results.records, run) == model(sent))

        os.kill(ready["jvm_pid"], signal.SIGKILL)  # the JVM; its Python follows
        assert await asyncio.to_thread(job.process.wait, 30) != 0
        await publish(client, 150)  # nobody reads these yet
        for value in (b"{bad", b"ON"):
            await client.send_and_wait(
                kafka_topic, value, key=b"k", headers=[("mqtt.topic", f"sensors/{run}".encode())]
            )

        job = jobs(kafka_topic, "--watermark", "1m", "--dead-letter-every", "1s")
        await asyncio.to_thread(job.await_event, "ready", READY_S)
        await publish(client, 150)
        await results.read_until(lambda: newest(results.records, run) == model(sent))

        async with Results(kafka_bootstrap, "mqtt.dead_letter") as letters:

            def ours() -> set[bytes]:
                headers = ((record, dict(record.headers)) for record in letters.records)
                return {
                    r.value
                    for r, h in headers
                    if h["mqtt.topic"] == f"sensors/{run}".encode() and "headwater.reason" in h
                }

            await letters.read_until(lambda: ours() == {b"{bad", b"ON"})

        job.process.kill()  # submit itself: neither it nor the kernel passes anything on, the job must notice
        job.process.wait()
        assert await gone(str(tmp_path / "checkpoint"), 30), "the job outlived the submit that started it"


@pytest.mark.timeout(300)
async def test_a_backfill_gives_the_aggregates_of_the_stream(kafka_bootstrap: str, jobs: Any) -> None:
    """The same model as the stream, and percentiles, which real-time mode leaves out."""
    run = uuid.uuid4().hex[:8]
    kafka_topic = f"stats.{run}"
    await create_kafka_topics(kafka_bootstrap, kafka_topic)
    at_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS
    sent = [(f"{run}/d", "value", float(number * 7 % 40), at_ms + number) for number in range(40)]
    async with producer(kafka_bootstrap) as client, Results(kafka_bootstrap, "mqtt.analytics") as results:
        for device, _, value, moment_ms in sent:
            headers = [("mqtt.topic", f"x/{device}".encode())]
            payload = json.dumps({"value": value, "ts": moment_ms}).encode()
            await client.send_and_wait(kafka_topic, payload, key=device.encode(), headers=headers)
        job = jobs(kafka_topic, "--trigger", "available-now")
        await asyncio.to_thread(job.await_event, "done", READY_S)
        assert await asyncio.to_thread(job.process.wait, 30) == 0
        await results.read_until(lambda: newest(results.records, run) == model(sent))
        bodies = [json.loads(record.value) for record in results.records if run in record.value.decode()]
        assert {body["p50"] for body in bodies} == {sorted(value for _, _, value, _ in sent)[19]}


@pytest.mark.timeout(200)
async def test_a_missing_kafka_topic_is_named(kafka_bootstrap: str, jobs: Any, tmp_path: Path) -> None:
    job = jobs(f"absent.{uuid.uuid4().hex}")
    assert await asyncio.to_thread(job.process.wait, READY_S) == 2
    assert "headwater topics apply" in (tmp_path / "spark.log").read_text()


@pytest.mark.timeout(200)
async def test_lost_records_are_named_before_the_start(kafka_bootstrap: str, jobs: Any, tmp_path: Path) -> None:
    kafka_topic = f"stats.{uuid.uuid4().hex[:8]}"
    await create_kafka_topics(kafka_bootstrap, kafka_topic)
    positions = json.dumps({kafka_topic: {"0": 0, "1": 7}})
    for kind, text in (("offsets", f'v1\n{{"batchWatermarkMs":0}}\n{positions}'), ("commits", "v1\n{}")):
        file = tmp_path / "checkpoint" / "results" / kind / "0"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    job = jobs(kafka_topic)
    assert await asyncio.to_thread(job.process.wait, READY_S) == 2
    said = (tmp_path / "spark.log").read_text()
    assert f"{kafka_topic}-1: made anew, it ends at 0 and 7 was the next" in said
    assert "--accept-data-loss" in said
