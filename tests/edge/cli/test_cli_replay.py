"""`headwater replay`, `tail` and `get` against a real Kafka."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.edges import memory_edge, mqtt_address, records_of
from support.replay import TABLE
from typer.testing import CliRunner, Result

from bridge.kafka_log import KafkaLog
from bridge.memory_log import MemoryLog
from bridge.topics_admin import apply
from edge.cli.app import app
from schemas.catalogue import catalogue
from schemas.message import Message
from schemas.records import encode_headers
from schemas.retained import RetainedMessage, encode_retained

WAIT_S = 40.0


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"KAFKA_BOOTSTRAP_SERVERS": None}).invoke(app, arguments)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def kafka_address(kafka_bootstrap: str) -> str:
    asyncio.run(apply(kafka_bootstrap, catalogue(), replication_factor=1))
    return kafka_bootstrap


def with_log(kafka_address: str, work: Callable[[KafkaLog], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        log = KafkaLog(kafka_address)
        await log.start()
        try:
            await work(log)
        finally:
            await log.stop()

    asyncio.run(run())


def publish(kafka_address: str, site: str, count: int, first: int = 0) -> None:
    """As edges append: QoS 1 as it comes, each third message with QoS 2 in a transaction."""

    async def append(log: KafkaLog) -> None:
        producer = log.transactional_producer(f"test.{site}")
        await producer.start()
        for number in range(first, first + count):
            name = f"sensors/{site}/{number % 5}/temp"
            message = Message(name, b"", qos=2 if number % 3 == 2 else 1, client_id=f"c{number % 5}")
            record = (TABLE.destination(name).key, b'{"n":%d}' % number, encode_headers(message))
            if message.qos == 2:
                await producer.commit([(TABLE.destination(name).twin().position, record)])
            else:
                await log.submit(*TABLE.destination(name).position, [record])

    with_log(kafka_address, append)


def payload_numbers(told: list[dict[str, Any]]) -> list[int]:
    return [json.loads(each["payload"])["n"] for each in told if "payload" in each]


def test_history_comes_back_merged_by_time(kafka_address: str, tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    publish(kafka_address, site, 60)
    kafka = ("--kafka", kafka_address)
    done = invoke("replay", f"sensors/{site}/#", "--output", "json", "--hash", *kafka)
    assert done.exit_code == 0, (done.output, done.exception)
    told = lines(done.stdout)
    assert sorted(payload_numbers(told)) == list(range(60))
    for device in range(5):  # what was appended in one millisecond has no order over partitions
        mine = payload_numbers([each for each in told if each.get("topic_name") == f"sensors/{site}/{device}/temp"])
        assert [n for n in mine if n % 3 < 2] == [n for n in range(60) if n % 5 == device and n % 3 < 2]
        assert [n for n in mine if n % 3 == 2] == [n for n in range(60) if n % 5 == device and n % 3 == 2]
    stamps = [each["timestamp_ms"] for each in told if "payload" in each]
    assert stamps == sorted(stamps)
    end = told[-1]["end"]
    assert end["records"] == 60
    path = tmp_path / "out.jsonl"
    again = invoke("replay", f"sensors/{site}/#", "--to-file", str(path), "--hash", *kafka)
    assert again.exit_code == 0, (again.output, again.exception)
    assert lines(path.read_text())[-1]["end"]["partitions"] == end["partitions"]
    publish(kafka_address, site, 5, first=60)
    rest = invoke("replay", f"sensors/{site}/#", "--from", end["token"], "--output", "json", *kafka)
    assert sorted(payload_numbers(lines(rest.stdout))) == list(range(60, 65))
    table = invoke("replay", f"sensors/{site}/2/temp", "--grep", "n<10", "--output", "table", *kafka).stdout
    assert table.count("sensors/") == 2
    assert "60 records" not in invoke("replay", f"sensors/{site}/#", "--dry-run", *kafka).stdout
    assert "in all: 65 records" in invoke("replay", f"sensors/{site}/#", "--dry-run", *kafka).stdout


def test_a_prefix_and_an_interruption(kafka_address: str, tmp_path: Path) -> None:
    """A process is stopped in the middle, and another one goes on: nothing twice, nothing missing."""
    site = uuid.uuid4().hex
    publish(kafka_address, site, 90)
    state = tmp_path / "state"
    asked = ["replay", f"sensors/{site}/#", "--to-prefix", f"r/{site}", "--state", str(state), "--kafka", kafka_address]
    process = subprocess.Popen(
        [sys.executable, "-m", "edge.cli.app", *asked, "--speed", "40/s"], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not state.exists() or json.loads(state.read_text())["records"] == 0:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    assert "--resume goes on" in said
    done = invoke(*asked, "--speed", "max", "--resume")
    assert done.exit_code == 0, (done.output, done.exception)
    told = lines(invoke("replay", f"r/{site}/#", "--output", "json", "--kafka", kafka_address).stdout)
    found = [each for each in told if "payload" in each and '"n"' in each["payload"]]
    assert sorted(payload_numbers(found)) == list(range(90))
    for device in range(5):
        mine = [each for each in found if f"/{device}/" in each["topic_name"]]
        for qos in (1, 2):
            sent = payload_numbers([each for each in mine if each["qos"] == qos])
            assert sent == sorted(sent)
    (marker,) = [each for each in told if each.get("topic_name") == f"r/{site}/$end"]
    assert json.loads(marker["payload"])["end"]["records"] == 90


def test_tail_follows(kafka_address: str) -> None:
    site = uuid.uuid4().hex
    publish(kafka_address, site, 4)
    kafka = ("--kafka", kafka_address)
    asked = ["tail", f"sensors/{site}/#", "--from", "-1h", "--count", "9", "--output", "json", *kafka]
    process = subprocess.Popen([sys.executable, "-m", "edge.cli.app", *asked], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(4)]
        publish(kafka_address, site, 5, first=4)
        rest, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    told = payload_numbers(lines("".join(first) + rest))
    assert sorted(told[:4]) == list(range(4))
    assert sorted(told) == list(range(9))


def test_get_now_and_then(kafka_address: str) -> None:
    site = uuid.uuid4().hex

    def retain(value: bytes) -> int:
        """As an edge does it: the message, then its retained record; when it was appended."""
        name = f"sensors/{site}/1/state"
        to = TABLE.destination(name)
        at: list[int] = []

        async def append(log: KafkaLog) -> None:
            headers = encode_headers(Message(name, value, retain=True, client_id="c"))
            offset = await log.submit(*to.position, [(to.key, value, headers)])
            consumer = log.consumer(None)
            consumer.assign({to.position: offset})
            ((_, records),) = await consumer.fetch(WAIT_S)
            at.append(records[0].timestamp)
            await consumer.stop()
            message = RetainedMessage(name.encode(), value, (), *to.position, offset, at[0])
            key, stored, more = encode_retained(message)
            await log.submit("headwater.retained", 0, [(key, stored, list(more))])

        with_log(kafka_address, append)
        return at[0]

    first_ms = retain(b"on")
    second_ms = retain(b"off")
    third_ms = retain(b"")
    asked = ("get", f"sensors/{site}/#", "--output", "json", "--kafka", kafka_address)
    now = invoke(*asked)
    assert (now.exit_code, lines(now.stdout)) == (1, [])
    if first_ms < second_ms < third_ms:
        assert [each["payload"] for each in lines(invoke(*asked, "--at", str(first_ms)).stdout)] == ["on"]
        (then,) = lines(invoke(*asked, "--at", str(second_ms)).stdout)
        assert (then["payload"], then["retain"], then["topic_name"]) == ("off", 1, f"sensors/{site}/1/state")
    assert invoke(*asked, "--at", str(first_ms - 1)).exit_code == 1
    assert "give a time" in str(invoke(*asked, "--at", "beginning").exception)


async def test_a_window_of_kafka_is_played_by_clients(kafka_address: str) -> None:
    site, there = uuid.uuid4().hex, MemoryLog()
    await asyncio.to_thread(publish, kafka_address, site, 30)
    async with memory_edge(there) as node:
        host, port = mqtt_address(node)
        asked = ["replay", f"sensors/{site}/#", "--as-clients", f"{host}:{port}", "--speed", "max", "--output", "json"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edge.cli.app", *asked, "--kafka", kafka_address), stdout=subprocess.PIPE
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, out
        (report,) = lines(out.decode())
        assert (report["sent"], report["arrived"], report["clients"], report["differences"]) == (30, 30, 5, {})
    told = [*records_of(there, "mqtt.sensors"), *records_of(there, "mqtt.sensors.q2")]
    assert sorted(json.loads(record.value or b"")["n"] for record in told) == list(range(30))
