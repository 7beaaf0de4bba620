"""Edges for tests: a node on a log in memory, `headwater up` as real processes, conditions to wait for."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
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
        "sys": {"interval_s": 0, "client_events": False},  # tests count records
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


async def until(condition: Callable[[], Any], what: str | Callable[[], str] = "", wait_s: float = WAIT_S) -> None:
    """Wait for a condition, with a bound; `what` is what is missing, or says so then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while not condition():
        assert loop.time() < deadline, f"not within {wait_s} s: {what() if callable(what) else what or condition}"
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
        for name in [(dict(record.headers).get("mqtt.topic") or b"").decode()]
        if (name == topic_name if topic_name is not None else not name.startswith("$SYS"))
    ]


class ErrorLog(logging.Handler):
    """Collects what was logged as an error or worse."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage() + (f": {record.exc_info[1]!r}" if record.exc_info else ""))


@dataclass(frozen=True)
class EdgeProcess:
    """One edge of a `headwater up`."""

    node_id: str
    mqtt: tuple[str, int]
    http: tuple[str, int]
    pid: int


class Up:
    """A real `headwater up` with its children; `stop` is Ctrl-C, `kill` is kill -9."""

    def __init__(self, data: Path, kafka: str | None, edges: int = 2, *, more: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "edge.cli.app", "up", "--dev", "--json", "--edges", str(edges)]
        command += ["--mqtt-port", "0", "--http-port", "0", "--data", str(data)]
        self._stderr = (data / "up.log").open("wb")
        self.process = subprocess.Popen(
            command + (["--kafka", kafka] if kafka else []) + list(more), stdout=subprocess.PIPE, stderr=self._stderr
        )
        self.parts: list[dict[str, Any]] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.parts.append(json.loads(line))
            if self.parts[-1]["part"] == "ready":
                break
        assert self.parts, f"up did not start: {(data / 'up.log').read_text()}"
        assert self.parts[-1]["part"] == "ready", f"up did not get ready: {(data / 'up.log').read_text()}"
        self.bootstrap: str = self.parts[-1]["bootstrap"]
        self.edges = [
            EdgeProcess(part["node"], _address(part["mqtt"]), _address(part["http"]), part["pid"])
            for part in self.parts
            if part["part"] == "edge"
        ]

    @property
    def pids(self) -> list[int]:
        """Every process that it has said to have started."""
        return [part["pid"] for part in self.parts if "pid" in part]

    def stop(self) -> int:
        """Ctrl-C, and wait; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self._wait()

    def kill(self) -> None:
        """kill -9 of the parent alone."""
        self.process.kill()
        self._wait()

    def _wait(self) -> int:
        code = self.process.wait(40)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()
        return code


@contextmanager
def up(data: Path, kafka: str | None, edges: int = 2) -> Iterator[Up]:
    """`headwater up`, stopped at the end."""
    running = Up(data, kafka, edges)
    try:
        yield running
    finally:
        running.stop()


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
