"""Kafka stopped (SIGSTOP) and resumed under two real edges: no PUBACK without Kafka, nothing lost, ready again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from support.edges import EdgeProcess, until, up
from support.wire_client import dial

from bridge.embedded_kafka import EmbeddedKafka
from edge.client import MqttClient
from edge.wire import ReasonCode

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def stoppable(kafka_server: EmbeddedKafka | None, tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A Kafka whose process is ours to stop: the run's own one, or another when that is not ours."""
    if kafka_server is not None:
        yield kafka_server
        return
    with EmbeddedKafka(tmp_path / "kafka") as server:
        yield server


@contextmanager
def stopped(server: EmbeddedKafka) -> Iterator[None]:
    """No thread of Kafka runs in here."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 5
        while any(_state(task) not in "Tt" for task in Path(f"/proc/{server.pid}/task").iterdir()):
            assert time.monotonic() < deadline, "Kafka does not stop"
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


async def readyz(edge: EdgeProcess) -> int:
    host, port = edge.http
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/readyz") as response:
        return response.status


async def until_readyz(edge: EdgeProcess, status: int, wait_s: float) -> float:
    began = time.monotonic()
    async with asyncio.timeout(wait_s):
        while await readyz(edge) != status:  # noqa: ASYNC110 - HTTP has no event for us
            await asyncio.sleep(0.1)
    return time.monotonic() - began


async def test_no_puback_without_kafka_and_none_lost_after(stoppable: EmbeddedKafka, tmp_path: Path) -> None:
    name = f"stop/{uuid.uuid4().hex}"
    folder = tmp_path / "up"
    folder.mkdir()
    with up(folder, stoppable.bootstrap) as edges:
        one, two = edges.edges
        async with MqttClient(*one.mqtt) as writer, MqttClient(*two.mqtt) as reader:
            inbox = reader.inbox()
            await reader.subscribe(f"{name}/#", 1)
            with stopped(stoppable):
                futures = [writer.publish(f"{name}/{number % 5}", b"%d" % number, 1) for number in range(500)]
                assert await until_readyz(one, 503, 10) < 7.5
                async with dial(one.mqtt) as late, dial(one.mqtt, 4) as later:
                    assert (await late.connect("late")).reason_code is ReasonCode.SERVER_UNAVAILABLE
                    assert (await later.connect("later")).reason_code is ReasonCode.SERVER_UNAVAILABLE
                assert [future for future in futures if future is None or future.done()] == []
                assert not len(inbox)
            async with asyncio.timeout(30):
                codes = await asyncio.gather(*(future for future in futures if future is not None))
            assert codes == [ReasonCode.SUCCESS] * 500
            got = await inbox.get_many(500, 30)
            by_name: dict[bytes, list[int]] = {}
            for packet in got:
                by_name.setdefault(packet.topic_name_utf8, []).append(int(packet.payload))
            assert {number for numbers in by_name.values() for number in numbers} == set(range(500))
            assert all(numbers == sorted(numbers) for numbers in by_name.values())
            assert not len(inbox)
            await until_readyz(one, 200, 10)
            await until(lambda: writer.is_connected and reader.is_connected)
