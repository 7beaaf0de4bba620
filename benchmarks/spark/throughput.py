"""Records a second and core: each job on a log that is there, against a plain Python consumer of the same log.

Both count by the CPU time of their processes. The first batch of a job is left out: it compiles. Spark's share of
Kafka's own CPU time is not counted on either side.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.spark.jobs import BenchJob

KAFKA_TOPIC = "mqtt.sensors"
PARTITIONS = 12
DEVICES = 2_000
WINDOW_MS = 10_000
BATCHES = 4
_BATCH_BYTES = 256 * 1024

# What each job is told beside the common options; every job reads what the edges' default routes would hold.
JOBS: Mapping[str, tuple[str, ...]] = {
    "device_stats": ("--percentiles", "none"),
    "device_stats with percentiles": (),
    "anomaly": ("--range", "temp=-40..60"),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """How many records, in how much CPU time and wall time."""

    records: int
    cpu_s: float
    wall_s: float

    @property
    def per_core(self) -> float:
        return self.records / self.cpu_s


async def fill(bootstrap: str, records: int) -> None:
    """Two readings a record of DEVICES devices over two minutes of event time, as edges write them."""
    randomness = random.Random(1)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=_BATCH_BYTES, linger_ms=20)
    await producer.start()
    start_ms = int(time.time() * 1000) - 180_000
    try:
        for number in range(records):
            device = f"hall/{randomness.randrange(DEVICES)}"
            payload = {
                "ts": start_ms + number * 120_000 // records,
                "temp": round(randomness.gauss(20, 3), 2),
                "hum": randomness.randrange(100),
            }
            headers = [("mqtt.topic", f"sensors/{device}/state".encode())]
            await producer.send(KAFKA_TOPIC, json.dumps(payload).encode(), key=device.encode(), headers=headers)
        await producer.flush()
    finally:
        await producer.stop()


async def spark_rate(job: str, bootstrap: str, folder: Path, records: int) -> Rate:
    """A backfill in BATCHES batches, all but the first measured."""
    batch = math.ceil(records / BATCHES)
    options = ("--trigger", "available-now", "--batch-records", str(batch), "--no-events", *JOBS[job])
    running = await BenchJob.start(job.split()[0], bootstrap, folder, *options)
    try:
        counted, started, cpu_s = 0, 0.0, 0.0
        while True:
            event = await running.event("progress", "done")
            if event["event"] == "progress" and event["query"] == "results":
                if not started:
                    started, cpu_s = time.perf_counter(), running.cpu_s()
                else:
                    counted += event["rows"]
                    ended, ended_cpu_s = time.perf_counter(), running.cpu_s()
            if event["event"] == "done" or (started and counted >= records - batch):
                return Rate(counted, ended_cpu_s - cpu_s, ended - started)
    finally:
        await running.stop()


async def python_rate(bootstrap: str, percentiles: bool) -> Rate:
    """The same windows in one Python process: count, min, max, mean, stddev, last, percentiles, written to Kafka."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=_BATCH_BYTES, linger_ms=20)
    await consumer.start()
    await producer.start()
    started, cpu_s, records = time.perf_counter(), time.process_time(), 0
    try:
        places = [TopicPartition(KAFKA_TOPIC, number) for number in range(PARTITIONS)]
        consumer.assign(places)
        left = sum((await consumer.end_offsets(places)).values())
        groups: dict[tuple[str, str, int], list[Any]] = {}
        while left > 0:
            for batch in (await consumer.getmany(timeout_ms=500, max_records=10_000)).values():
                left -= len(batch)
                records += len(batch)
                for record in batch:
                    _count(groups, record, percentiles)
        for (device, metric, start), group in groups.items():
            body = json.dumps(_result(device, metric, start, group, percentiles)).encode()
            headers = [("mqtt.topic", f"analytics/stats/10s/{metric}/{device}".encode())]
            await producer.send("mqtt.analytics", body, key=device.encode(), headers=headers)
        await producer.flush()
        return Rate(records, time.process_time() - cpu_s, time.perf_counter() - started)
    finally:
        await consumer.stop()
        await producer.stop()


def _count(groups: dict[tuple[str, str, int], list[Any]], record: Any, percentiles: bool) -> None:
    name = next(value for key, value in record.headers if key == "mqtt.topic").decode()
    device = "/".join(name.split("/")[1:3])
    payload = json.loads(record.value)
    at_ms = min(payload.pop("ts"), record.timestamp + 10_000)
    for metric, value in payload.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            continue
        key = (device, metric, at_ms // WINDOW_MS)
        group = groups.get(key)
        if group is None:
            group = groups[key] = [0, value, value, 0.0, 0.0, (at_ms, record.offset, value), []]
        group[0] += 1
        group[1] = min(group[1], value)
        group[2] = max(group[2], value)
        difference = value - group[3]
        group[3] += difference / group[0]
        group[4] += difference * (value - group[3])
        group[5] = max(group[5], (at_ms, record.offset, value))
        if percentiles:
            group[6].append(value)


def _result(device: str, metric: str, start: int, group: list[Any], percentiles: bool) -> dict[str, Any]:
    count, low, high, mean, squares, latest, values = group
    found = {"device": device, "metric": metric, "window_start": start * WINDOW_MS, "count": count}
    found |= {"min": low, "max": high, "mean": mean, "last": latest[2], "last_at": latest[0]}
    found |= {"stddev": math.sqrt(squares / (count - 1)) if count > 1 else None}
    if percentiles:
        values.sort()
        found |= {f"p{p}": values[max(0, math.ceil(p / 100 * count) - 1)] for p in (50, 95, 99)}
    return found
