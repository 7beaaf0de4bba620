"""The archive over real Kafka: killed, restarted, compacted; it equals the log, message by message."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession
from support.spark_runs import Run, all_records, create_kafka_topics

from spark_streaming.archive_files import visible_files
from spark_streaming.jobs.archive import compact, read_options
from spark_streaming.progress import Reporter

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

COLUMNS = ["kafka_topic", "kafka_partition", "kafka_offset", "key", "payload", "topic_name", "qos", "client_id"]


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Whatever is started is ended."""
    started: list[Run] = []
    yield started
    for run in started:
        run.close()


def archived(archive: Path) -> Counter[tuple[Any, ...]]:
    """The archive as any reader of Parquet sees it."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for file in visible_files(archive):
        table = pyarrow.parquet.ParquetFile(file).read(columns=COLUMNS)
        rows.update(tuple(row[name] for name in COLUMNS) for row in table.to_pylist())
    return rows


async def log_of(bootstrap: str, kafka_topics: dict[str, int]) -> Counter[tuple[Any, ...]]:
    """The same, computed from what a read-committed consumer gets."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for record in await all_records(bootstrap, kafka_topics):
        headers = dict(record.headers)
        rows[
            record.topic,
            record.partition,
            record.offset,
            record.key,
            record.value,
            headers["mqtt.topic"].decode(),
            int(headers.get("mqtt.qos", b"1")),
            headers["mqtt.client_id"].decode(),
        ] += 1
    return rows


async def publish(bootstrap: str, kafka_topics: list[str], count: int, start: int) -> None:
    """To the first plainly, to the second in transactions of which every other one is taken back."""
    plain = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    twice = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"test-{uuid.uuid4().hex}")
    await plain.start()
    await twice.start()
    try:
        for number in range(start, start + count):
            headers = [("mqtt.topic", b"a/%d" % number), ("mqtt.client_id", b"c")]
            value = json.dumps({"n": number}).encode()
            await plain.send_and_wait(kafka_topics[0], value, key=b"%d" % number, headers=headers)
            if number % 5 == 0:
                await twice.begin_transaction()
                await twice.send_and_wait(kafka_topics[1], value, key=b"q", headers=[*headers, ("mqtt.qos", b"2")])
                await (twice.commit_transaction() if number % 2 else twice.abort_transaction())
    finally:
        await twice.stop()
        await plain.stop()


@pytest.mark.timeout(400)
async def test_the_archive_equals_the_log_through_kill_restart_and_compaction(
    kafka_bootstrap: str, tmp_path: Path, runs: list[Run], spark: SparkSession
) -> None:
    name = f"archive.{uuid.uuid4().hex[:8]}"
    kafka_topics = dict.fromkeys((name, f"{name}.q2"), 2)
    await create_kafka_topics(kafka_bootstrap, kafka_topics)
    routes = tmp_path / "routes.json"
    routes.write_text(json.dumps([{"filter": "#", "kafka_topic": name, "partitions": 2}]))
    archive = tmp_path / "archive"

    def start(*options: str) -> Run:
        places = ["--archive", str(archive), "--checkpoint", str(tmp_path / "checkpoint"), "--routes", str(routes)]
        runs.append(Run(tmp_path / "spark.log", "archive", kafka_bootstrap, *places, *options))
        return runs[-1]

    await publish(kafka_bootstrap, list(kafka_topics), 60, 0)
    job = start("--trigger", "micro:1s", "--batch-records", "25")
    await asyncio.to_thread(job.await_event, "ready")
    await publish(kafka_bootstrap, list(kafka_topics), 20, 60)
    await asyncio.to_thread(job.kill)  # at any moment of some batch
    await publish(kafka_bootstrap, list(kafka_topics), 60, 80)

    job = start("--trigger", "available-now")
    await asyncio.to_thread(job.await_event, "done")
    assert await asyncio.to_thread(job.to_its_end) == 0
    expected = await log_of(kafka_bootstrap, kafka_topics)
    assert sum(1 for row in expected if row[0] == name) == 140
    assert {row[6] for row in expected} == {1, 2}
    assert archived(archive) == expected
    small = visible_files(archive)
    assert len(small) > 1

    options = ["--archive", str(archive), "--checkpoint", str(tmp_path / "checkpoint"), "--open-hours", "0"]
    assert compact(spark, read_options([*options, "--keep", "0s"]), Reporter("archive", as_json=True)) > 0
    assert len(visible_files(archive)) < len(small)
    assert archived(archive) == expected
