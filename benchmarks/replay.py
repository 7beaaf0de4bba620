"""`python -m benchmarks.replay`: a million records replayed into a file, and compared with the log byte for byte.

An embedded Kafka (or KAFKA_BOOTSTRAP_SERVERS) is filled with messages of many devices, with every sixteenth of QoS 2 in
transactions, and some payloads that are no text. Then `headwater replay` writes all of it to
a file of JSON lines, with and without hashes. What the file holds is decoded and hashed anew, and compared with the
hashes of a plain consumer of another Kafka client that reads the partitions one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from bridge.embedded_kafka import EmbeddedKafka
from bridge.kafka_log import KafkaLog
from bridge.log import PendingRecord, Position
from bridge.partitioning import RouteTable
from bridge.replay.digest import Digests
from bridge.replay.jsonl import digest_file, read_file
from bridge.replay.lines import LineRecord
from bridge.topics_admin import apply
from schemas.catalogue import catalogue
from schemas.message import Message
from schemas.records import encode_headers
from schemas.routes import DEFAULT_ROUTES, Route

DEVICES = 2_000
BATCH = 500
TABLE = RouteTable(DEFAULT_ROUTES)


def main() -> None:
    """Run it once; exit code 1 when anything differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    with _kafka() as bootstrap, tempfile.TemporaryDirectory() as folder:
        begun_s = time.monotonic()
        appended = asyncio.run(_fill(bootstrap, options.records))
        print(f"appended {appended:,} records in {time.monotonic() - begun_s:.0f} s", flush=True)
        wanted = asyncio.run(_hashes(bootstrap))
        equal = True
        for arguments in (("--to-file", "plain.jsonl"), ("--to-file", "hashed.jsonl", "--hash"), ("--dry-run",)):
            _replay(bootstrap, Path(folder), arguments, options.records)
        for name in ("plain.jsonl", "hashed.jsonl"):
            found, end = digest_file(Path(folder) / name)
            told = end["partitions"] if end is not None else {}
            same = found.told() == wanted and (name == "plain.jsonl" or told == wanted)
            in_time = _is_in_time(Path(folder) / name)
            records = sum(each["records"] for each in found.told().values())
            print(
                f"{name}: {records:,} records, {len(wanted)} partitions: {'equal' if same else 'DIFFERENT'}, {in_time}"
            )
            equal = equal and same and records == options.records
    sys.exit(0 if equal else 1)


def _is_in_time(path: Path) -> str:
    """Whether the lines are in the order of their times."""
    last_ms, backwards = 0, 0
    for each in read_file(path):
        if not isinstance(each, dict):
            backwards += each[0] < last_ms
            last_ms = each[0]
    return f"{backwards:,} lines go back in time" if backwards else "in the order of time"


def _replay(bootstrap: str, folder: Path, arguments: tuple[str, ...], records: int) -> None:
    command = [sys.executable, "-m", "edge.cli.app", "replay", "sensors/#", "--from", "beginning", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    begun_s, before = time.monotonic(), os.times()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    elapsed_s, after = time.monotonic() - begun_s, os.times()
    if done.returncode:
        sys.exit(f"headwater replay failed: {done.stderr}")
    cpu_us = (after.children_user + after.children_system - before.children_user - before.children_system) * 1e6
    what = " ".join(arguments)
    rate = f"{records / elapsed_s:,.0f} records/s with the start of Python"
    own = [line for line in done.stderr.splitlines() if "records/s" in line]
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"replay {what}: {elapsed_s:.1f} s, {rate}, {cpu_us / records:.1f} us CPU per record, {peak_mib:.0f} MiB")
    print("  ", *own, flush=True)


async def _fill(bootstrap: str, count: int) -> int:
    """Messages of all devices in turn; their headers as an edge writes them."""
    await apply(bootstrap, _specs(), replication_factor=1)
    log = KafkaLog(bootstrap)
    await log.start()
    producer = log.transactional_producer("benchmark.replay")
    await producer.start()
    waiting: dict[Position, list[PendingRecord]] = {}
    twins: list[tuple[Position, PendingRecord]] = []
    places: dict[int, tuple[Any, Any]] = {}
    open_batches: list[asyncio.Future[int]] = []
    try:
        for number in range(count):
            device = number % DEVICES
            if device not in places:
                places[device] = _place(device)
            to, headers = places[device]
            payload = b'{"n": %d, "temp": %d.5, "unit": "C", "site": "plant %d"}' % (number, number % 40, device % 7)
            if number % 50 == 0:
                payload = b"\xff\x00" + payload
            if number % 16 == 15:
                twins.append((to.twin().position, (to.key, payload, [*headers, ("mqtt.qos", b"2")])))
                if len(twins) == BATCH:
                    await producer.commit(twins)
                    twins = []
                continue
            batch = waiting.setdefault(to.position, [])
            batch.append((to.key, payload, headers))
            if len(batch) == BATCH:
                open_batches.append(log.submit(*to.position, waiting.pop(to.position)))
                if len(open_batches) == 40:
                    await asyncio.gather(*open_batches)
                    open_batches = []
        open_batches += [log.submit(*position, batch) for position, batch in waiting.items()]
        await asyncio.gather(*open_batches)
        if twins:
            await producer.commit(twins)
    finally:
        await producer.stop()
        await log.stop()
    return count


def _place(device: int) -> tuple[Any, Any]:
    name = f"sensors/plant-{device % 7}/device-{device}/temp"
    return TABLE.destination(name), encode_headers(Message(name, b"", client_id=f"device-{device}"))


def _specs() -> Any:
    return catalogue(
        (Route("sensors/{site}/{device}/#", "mqtt.sensors", "{site}/{device}"), Route("#", "mqtt.messages"))
    )


async def _hashes(bootstrap: str) -> dict[str, dict[str, Any]]:
    """What each partition holds, by aiokafka's own consumer, one partition after the other."""
    digests = Digests(hashing=True)
    for kafka_topic in ("mqtt.sensors", "mqtt.sensors.q2"):
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=8 << 20,
        )
        await consumer.start()
        try:
            for partition in range(12):
                where = TopicPartition(kafka_topic, partition)
                consumer.assign([where])
                await consumer.seek_to_beginning(where)
                end = (await consumer.end_offsets([where]))[where]
                while await consumer.position(where) < end:
                    for found in (await consumer.getmany(timeout_ms=500, max_records=20_000)).values():
                        records = [
                            LineRecord(each.offset, each.timestamp, each.key, each.value, each.headers)
                            for each in found
                        ]
                        digests.add_records((kafka_topic, partition), records)
        finally:
            await consumer.stop()
    return digests.told()


@contextmanager
def _kafka() -> Iterator[str]:
    if bootstrap := os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        yield bootstrap
        return
    with tempfile.TemporaryDirectory() as data, EmbeddedKafka(Path(data)) as server:
        yield server.bootstrap


if __name__ == "__main__":
    main()
