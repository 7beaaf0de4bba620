"""Edges for tests: a node on the in-memory log in this process, and conditions to wait for instead of sleeping."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from bridge.memory_log import MemoryLog, MemoryRecord
from edge.node.config import EdgeConfig, make_config
from edge.node.node import EdgeNode

WAIT_S = 10.0
_POLL_S = 0.01


def edge_config(**table: Any) -> EdgeConfig:
    """A `--dev` edge on free ports of loopback; what is given replaces its keys."""
    base: dict[str, Any] = {
        "node_id": "edge-test",
        "dev": True,
        "listeners": [{"port": 0}],
        "http": {"port": 0},
    }
    return make_config(base | table, "test")


@asynccontextmanager
async def memory_edge(log: MemoryLog | None = None, **table: Any) -> AsyncIterator[EdgeNode]:
    """One node on a log in memory, started and stopped."""
    node = EdgeNode(edge_config(**table), log or MemoryLog())
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def until(condition: Callable[[], Any], what: str = "", wait_s: float = WAIT_S) -> None:
    """Wait for a condition, with a bound."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while not condition():
        assert loop.time() < deadline, f"not within {wait_s} s: {what or condition}"
        await asyncio.sleep(_POLL_S)


def mqtt_address(node: EdgeNode) -> tuple[str, int]:
    """Where devices connect."""
    return node.mqtt_addresses[0]


def http_address(node: EdgeNode) -> tuple[str, int]:
    """Where HTTP and WebSocket are served."""
    assert node.http_address is not None
    return node.http_address


def address_of(node: EdgeNode, transport: str) -> tuple[str, int]:
    """The one or the other."""
    return mqtt_address(node) if transport == "tcp" else http_address(node)


def records_of(log: MemoryLog, kafka_topic: str) -> list[MemoryRecord]:
    """Every record of a Kafka topic, partition by partition."""
    return [record for partition in range(12) for record in log.records(kafka_topic, partition)]


def values_of(log: MemoryLog, kafka_topic: str = "mqtt.messages", topic_name: str | None = None) -> list[bytes]:
    """The payloads of a Kafka topic, of one topic name or of all but `$SYS`."""
    return [
        record.value or b""
        for record in records_of(log, kafka_topic)
        for name in [dict(record.headers).get("mqtt.topic", b"").decode()]
        if (name == topic_name if topic_name is not None else not name.startswith("$SYS"))
    ]


class ErrorLog(logging.Handler):
    """Collects what was logged as an error or worse."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage() + (f": {record.exc_info[1]!r}" if record.exc_info else ""))
