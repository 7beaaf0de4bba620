"""`quality` and `slo` over what two real edges have written to Kafka; both equal an offline computation."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.edges import edge_config, mqtt_address, until
from support.spark_runs import Run, all_records

from bridge import topics_admin
from bridge.kafka_log import KafkaLog
from edge.cli.catalogue import read_entries
from edge.client import MqttClient
from edge.node.node import EdgeNode
from schemas.catalogue import catalogue
from schemas.events import LEDGER_KINDS, Event
from schemas.routes import load_routes
from spark_streaming.slo.folding import Slo, Step

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

WAIT_S = 40.0
WINDOW_MS = 1_000
PAYLOADS = (b'{"c": 21.5}', b'{"c": "warm", "ok": true}', b"{bad", b"ON", b"")


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Whatever is started is ended."""
    started: list[Run] = []
    yield started
    for run in started:
        run.close()


@asynccontextmanager
async def edge(bootstrap: str, routes: list[dict[str, Any]]) -> AsyncIterator[EdgeNode]:
    name = f"edge-{uuid.uuid4().hex[:6]}"
    config = edge_config(node_id=name, http=None, routes=routes, events={"delivery_sample": 1000.0})
    node = EdgeNode(config, KafkaLog(bootstrap))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def publish_and_receive(a: EdgeNode, b: EdgeNode) -> None:
    """From one edge to the other, all qualities of service, until everything has arrived."""
    async with (
        MqttClient(*mqtt_address(a), client_id="writer") as writer,
        MqttClient(*mqtt_address(b), client_id="once") as once,
        MqttClient(*mqtt_address(a), client_id="twice") as twice,
    ):
        inboxes = [once.inbox(), twice.inbox()]
        await once.subscribe("plant/#", 1)
        await twice.subscribe("plant/#", 2)
        for number in range(60):
            writer.publish(f"plant/{number % 3}", PAYLOADS[number % len(PAYLOADS)], number % 3)
            writer.publish(f"other/{number}", b"nobody listens", 1)
        for inbox in inboxes:
            for _ in range(60):
                await asyncio.wait_for(inbox.get(), WAIT_S)
        over = time.time() + 2 * WINDOW_MS / 1000
        await until(lambda: time.time() > over, "the windows are over", WAIT_S)
        writer.publish("other/last", b"", 1)
        await writer.drain()


async def steps_of(bootstrap: str, name: str) -> tuple[list[Step], int]:
    """What `transforms.slo.steps` should find, and the time of the newest record."""
    found, newest_ms = [], 0
    for record in await all_records(bootstrap, {name: 2, f"{name}.q2": 2, "headwater.events": 4}):
        newest_ms = max(newest_ms, record.timestamp)
        if record.topic != "headwater.events":
            position = f"{record.topic}/{record.partition}/{record.offset}"
            found.append(Step("published", name, position, record.timestamp, at_ms=record.timestamp))
            continue
        event = Event.from_json(record.value)
        if event.kind in LEDGER_KINDS and event.detail["kafka_topic"].startswith(name):
            detail = event.detail
            position = f"{detail['kafka_topic']}/{detail['partition']}/{detail['offset']}"
            at_ms, client_id, qos = event.at_ms, event.client_id, detail["qos"]
            found.append(Step(event.kind, name, position, detail["published_ms"], client_id, at_ms, qos))
    return found, newest_ms


@pytest.mark.timeout(400)
async def test_what_two_edges_have_written(kafka_bootstrap: str, tmp_path: Path, runs: list[Run]) -> None:
    name = f"quality.{uuid.uuid4().hex[:8]}"
    rows = [{"filter": "#", "kafka_topic": name, "partitions": 2}]
    (tmp_path / "routes.json").write_text(json.dumps(rows))
    await topics_admin.apply(kafka_bootstrap, catalogue(load_routes(rows)), 1, {})
    async with edge(kafka_bootstrap, rows) as a, edge(kafka_bootstrap, rows) as b:
        await publish_and_receive(a, b)

    for job, options in (
        ("quality", ["--table", str(tmp_path / "catalogue.jsonl"), "--family", "plant/1"]),
        ("slo", ["--window", "1s", "--wait", "0s", "--sample", "1000"]),
    ):
        places = ["--routes", str(tmp_path / "routes.json"), "--checkpoint", str(tmp_path / job)]
        more = ["--trigger", "available-now", *places, *options]
        runs.append(Run(tmp_path / f"{job}.log", job, kafka_bootstrap, *more))
    for run in runs:
        await asyncio.to_thread(run.await_event, "done")
        assert await asyncio.to_thread(run.to_its_end) == 0

    log = KafkaLog(kafka_bootstrap)
    await log.start()
    try:
        entries = {entry.family: entry for entry in await read_entries(log) if entry.kafka_topic == name}
    finally:
        await log.stop()
    written = (tmp_path / "catalogue.jsonl").read_bytes().splitlines()
    assert sorted(written) == sorted(entry.to_json() for entry in entries.values())
    families: Counter[str] = Counter()
    malformed: Counter[str] = Counter()
    for record in await all_records(kafka_bootstrap, {name: 2, f"{name}.q2": 2}):
        topic_name = dict(record.headers)["mqtt.topic"].decode()
        family = topic_name if topic_name == "plant/1" else f"{topic_name.split('/')[0]}/#"
        families[family] += 1
        malformed[family] += record.value == b"{bad"
    assert {family: entry.messages for family, entry in entries.items()} == families
    assert {family: entry.malformed for family, entry in entries.items()} == malformed
    fields = {path: kind for path, (kind, _) in entries["plant/#"].fields.items()}
    assert fields == {"": "object", "c": "mixed", "ok": "boolean"}

    found, newest_ms = await steps_of(kafka_bootstrap, name)
    expected = {each["id"]: each for each in Slo(WINDOW_MS, 0).fold(found, newest_ms)}
    results = [json.loads(record.value) for record in await all_records(kafka_bootstrap, {"mqtt.analytics": 4})]
    assert {each["id"]: each for each in results if each.get("route") == name} == expected
    assert sum(each["deliveries"] for each in expected.values()) >= 120
    assert sum(each["lost"] + each["duplicates"] for each in expected.values()) == 0
