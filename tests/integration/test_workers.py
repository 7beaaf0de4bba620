"""`--workers 2`: two processes on the same ports, each a node of its own, joined by Kafka alone."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import psutil
import pytest
from support.edges import Up, is_running, until

from edge.client import MqttClient

pytestmark = pytest.mark.kafka


def free_port() -> int:
    """A port below those that the kernel hands out by itself: nobody takes it while the edge starts."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("100 ports were tried and none was free")


async def test_workers_share_the_ports_and_end_with_up(kafka_bootstrap: str, tmp_path: Path) -> None:
    more = ["--workers", "2", "--mqtt-port", str(free_port()), "--http-port", str(free_port())]
    running = await asyncio.to_thread(Up, tmp_path, kafka_bootstrap, 1, more=more)
    children = [child.pid for child in psutil.Process(running.process.pid).children(recursive=True)]
    try:
        assert len(children) == 3, "the edge and its two workers"
        clients = [MqttClient(*running.edges[0].mqtt, f"worker-test-{number}") for number in range(8)]
        for each in clients:
            await each.connect()
            await each.subscribe("workers/#", 1)
        inboxes = [each.inbox() for each in clients]
        for number, each in enumerate(clients):  # the kernel spreads them: some pairs are on different workers
            future = each.publish(f"workers/{number}", b"x", 1)
            assert future is not None
            await future
        async with asyncio.timeout(20):
            for inbox in inboxes:
                names = {(await inbox.get()).topic_name_utf8 for _ in clients}
                assert names == {b"workers/%d" % number for number in range(8)}
        for each in clients:
            await each.disconnect()
    finally:
        running.kill()
    await until(lambda: not any(map(is_running, children)), f"of {children} some still run", 30)
