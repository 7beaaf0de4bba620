"""The anomaly job over real Kafka: killed and restarted, each episode's alerts come once, as computed offline."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from support.spark_runs import READY_S, Run, all_records, create_kafka_topics

from schemas.events import Event
from spark_streaming.anomaly.device import Device
from spark_streaming.anomaly.rules import Alert, Arrival
from spark_streaming.jobs.anomaly import read_options

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

RULES = ("--range", "t=0..10", "--clear-after", "1", "--silence", "9s", "--zscore", "6", "--zscore-after", "20")
ARRIVE_S = 60.0


@pytest.fixture
def start(tmp_path: Path, kafka_bootstrap: str) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def run(kafka_topic: str, *options: str) -> Run:
        routes = tmp_path / "routes.json"
        routes.write_text(json.dumps([{"filter": "#", "kafka_topic": kafka_topic, "partitions": 2}]))
        more = ("--routes", str(routes), "--checkpoint", str(tmp_path / "checkpoint"))
        runs.append(Run(tmp_path / "spark.log", "anomaly", kafka_bootstrap, *more, *options))
        return runs[-1]

    yield run
    for one in runs:
        one.close()


def offline(records: list[Any], end_ms: int) -> dict[tuple[str, str], Alert]:
    """The alerts by (id, state) of plain Python over the same records, in the order of the log."""
    devices: dict[str, Device] = {}
    found: dict[tuple[str, str], Alert] = {}
    for record in sorted(records, key=lambda r: (r.timestamp, r.topic, r.partition, r.offset)):
        name = dict(record.headers)["mqtt.topic"].decode().partition("/")[2]
        device = devices.setdefault(name, Device(name, read_options(RULES).rules))
        values = tuple(json.loads(record.value).items())
        position = f"{record.topic}/{record.partition}/{record.offset}"
        for alert in device.arrived(Arrival(position, record.timestamp, record.timestamp, values)):
            found[alert.id, alert.state] = alert
    for device in devices.values():
        for alert in device.time_passed(end_ms):
            found[alert.id, alert.state] = alert
    return found


@pytest.mark.timeout(400)
async def test_alerts_come_once_through_kill_and_restart(kafka_bootstrap: str, start: Callable[..., Run]) -> None:
    run = uuid.uuid4().hex[:8]
    kafka_topic = f"anomaly.{run}"
    await create_kafka_topics(kafka_bootstrap, {kafka_topic: 2, "mqtt.analytics": 4, "headwater.events": 4})
    client = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all", enable_idempotence=True)
    await client.start()

    async def publish(device: str, *values: float) -> None:
        for value in values:
            headers = [("mqtt.topic", f"site/{run}/{device}".encode())]
            body = json.dumps({"t": value}).encode()
            await client.send_and_wait(kafka_topic, body, key=device.encode(), headers=headers)

    async def alerts() -> list[tuple[tuple[str, str], dict[str, Any]]]:
        """As a consumer that keeps the dedupe rule would not yet have them: with repetitions."""
        records = await all_records(kafka_bootstrap, {"mqtt.analytics": 4})
        bodies = [(json.loads(r.value), dict(r.headers)) for r in records]
        ours = [(body, headers) for body, headers in bodies if run in body.get("device", "")]
        for body, headers in ours:
            assert headers["mqtt.topic"].decode() == f"analytics/alerts/{body['kind']}/{body['device']}"
            assert headers["mqtt.user.state"].decode() == body["state"]
        return [((body["id"], body["state"]), body) for body, _ in ours]

    async def until(expected: Callable[[], dict[tuple[str, str], Alert]]) -> None:
        deadline = time.monotonic() + ARRIVE_S
        while {key for key, _ in await alerts()} != set(expected()):
            assert time.monotonic() < deadline, (await alerts(), expected())
            await asyncio.sleep(0.5)

    try:
        job = start(kafka_topic, "--trigger", "micro:1s", *RULES)
        await asyncio.to_thread(job.await_event, "ready", READY_S)
        await publish("a", *(5 + n % 2 for n in range(30)), 11, 12)  # raises range and zscore
        await publish("b", 5, 20, 5)  # raises and clears
        await publish("c", 5)  # then nothing, for ever
        a_start = await all_records(kafka_bootstrap, {kafka_topic: 2})
        await until(lambda: offline(a_start, 0))

        job.kill()
        await publish("a", 5, 5, 30)  # nobody reads these yet: clears what was raised before, and raises again
        await publish("b", 21)
        job = start(kafka_topic, "--trigger", "micro:1s", *RULES)
        await asyncio.to_thread(job.await_event, "ready", READY_S)
        await publish("d", 1)
        written = await all_records(kafka_bootstrap, {kafka_topic: 2})
        await until(lambda: offline(written, int(time.time() * 1000)))  # silence of all four comes by the clock

        final = offline(written, int(time.time() * 1000))
        found = await alerts()
        assert {key: body["kind"] for key, body in found} == {key: alert.kind for key, alert in final.items()}
        bodies = dict(found)
        assert all(bodies[key] == json.loads(alert.to_json()) for key, alert in final.items())
        assert [alert.state for alert in final.values() if (alert.kind, alert.device[-1]) == ("range", "a")] == [
            "raised",
            "cleared",
            "raised",
        ]
        assert sum(alert.kind == "silence" and alert.device[-1] == "c" for alert in final.values()) == 1
    finally:
        await client.stop()
    job.process.terminate()
    assert await asyncio.to_thread(job.to_its_end) == 0
    events = [
        Event.from_json(r.value)
        for r in await all_records(kafka_bootstrap, {"headwater.events": 4})
        if r.key == b"anomaly"
    ]
    assert {"spark.started", "spark.progress", "spark.terminated"} <= {event.kind for event in events}
    assert events[-1].detail["job"] == "anomaly"
