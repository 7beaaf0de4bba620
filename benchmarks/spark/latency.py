"""From a publish at one edge to the aggregate or alert received at another, at a steady rate."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.processes import BenchmarkError
from benchmarks.spark.jobs import BenchJob
from edge.cli.up import RunningCluster
from edge.client import MqttClient, Publish

RATE_PER_S = 500
DEVICES = 100
WARM_UP_S = 25.0  # code is compiled and state stores are opened; every record arrives, but late
ALERT_EVERY = 10  # one reading of so many is out of range
_TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class Scene:
    """A job in real-time mode, where its results are, and which field says when their newest reading was published."""

    job: str
    options: tuple[str, ...]
    topic_filter: str
    time_field: str


SCENES: Mapping[str, Scene] = {
    "aggregate": Scene("device_stats", (), "analytics/stats/#", "last_at"),
    "alert": Scene("anomaly", ("--trigger", "realtime", "--range", "v=..1"), "analytics/alerts/#", "at"),
}


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds, of so many results at so many messages a second."""

    results: int
    published: int
    seconds: float
    p50_ms: float
    p99_ms: float
    worst_ms: float


async def measure(scene: Scene, cluster: RunningCluster, folder: Path, seconds: float) -> Latency:
    """Start the job, let it warm up under the load, then measure. Raises BenchmarkError when nothing arrives."""
    job = await BenchJob.start(scene.job, cluster.bootstrap, folder, *scene.options)
    received: list[tuple[float, float]] = []  # published at, took: seconds

    def on_message(message: Publish) -> None:
        now_s = time.time()
        said = json.loads(message.payload)[scene.time_field]
        published_s = datetime.fromisoformat(said).timestamp()
        received.append((published_s, now_s - published_s))

    try:
        await job.event("ready")
        async with _client(cluster, 0, "publisher") as publisher, _client(cluster, 1, "dashboard") as dashboard:
            dashboard.on_message(on_message)
            await dashboard.subscribe(scene.topic_filter)
            await _publish(publisher, WARM_UP_S)
            began_s, received_before = time.time(), len(received)
            published = await _publish(publisher, seconds)
            await asyncio.sleep(2.0)
        del received[:received_before]
        took = sorted(latency for published_s, latency in received if published_s >= began_s)
        if not took:
            raise BenchmarkError(f"no result of {scene.job} arrived{job.log_tail()}")
        return Latency(
            len(took),
            published,
            seconds,
            *(1000 * took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.99, 1.0)),
        )
    finally:
        await job.stop()


def _client(cluster: RunningCluster, edge: int, name: str) -> MqttClient:
    host, _, port = cluster.edges[edge].mqtt.rpartition(":")
    return MqttClient(host, int(port), f"bench-{name}-{time.time_ns()}", connect_timeout_s=30.0)


async def _publish(client: MqttClient, seconds: float) -> int:
    """RATE_PER_S messages of QoS 1 a second, evenly."""
    began, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < seconds:
        for number in range(sent, int(elapsed * RATE_PER_S)):
            payload = {"ts": int(time.time() * 1000), "v": 2 if number % ALERT_EVERY == 0 else 0}
            client.publish(f"sensors/hall/{number % DEVICES}/state", json.dumps(payload).encode(), qos=1)
            sent += 1
        await asyncio.sleep(_TICK_S)
    await client.drain()
    return sent
