"""Jobs as users start them: `spark_streaming.submit` processes, what they say, and Kafka topics of a test's own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError

READY_S = 180.0  # 16 s on a quiet machine; CI has two cores for everything
_ROOT = Path(__file__).parents[2]
_STOP_S = 35.0


class Run:
    """One run of a job; `events` is what it has said so far."""

    def __init__(self, log: Path, job: str, kafka: str, *options: str) -> None:
        command = [sys.executable, "-m", "spark_streaming.submit", job, "--kafka", kafka, "--json", *options]
        environ = {**os.environ, "PYTHONPATH": str(_ROOT)}
        self.log = log
        with log.open("a") as stderr:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ, cwd=_ROOT
            )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))
        self._lines.put({"event": "end of output"})

    def await_event(self, event: str, timeout_s: float = READY_S) -> dict[str, Any]:
        """The next event of this name."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {event!r} after {timeout_s} s:\n{self.log.read_text()[-4000:]}") from None
            self.events.append(line)
            if line["event"] == event:
                return line
            assert line["event"] != "end of output", f"ended before {event!r}:\n{self.log.read_text()[-4000:]}"

    def to_its_end(self, timeout_s: float = READY_S) -> int:
        """The exit code of a job that ends by itself."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """kill -9 of the JVM; the rest follows it."""
        ready = next(event for event in self.events if event["event"] == "ready")
        os.kill(ready["jvm_pid"], signal.SIGKILL)
        assert self.process.wait(30) != 0

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_S)
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


async def create_kafka_topics(bootstrap: str, partitions: Mapping[str, int], **configs: str) -> None:
    """Those that are missing, with LogAppendTime."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    settings = {"message.timestamp.type": "LogAppendTime", **{k.replace("_", "."): v for k, v in configs.items()}}
    try:
        for name, count in partitions.items():
            with suppress(TopicAlreadyExistsError):
                await admin.create_topics([NewTopic(name, count, 1, topic_configs=settings)])
    finally:
        await admin.close()


async def all_records(bootstrap: str, kafka_topics: Mapping[str, int], *, committed: bool = True) -> list[Any]:
    """Every record that there is now in Kafka topics of so many partitions, partition by partition."""
    level = "read_committed" if committed else "read_uncommitted"
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest")
    await consumer.start()
    try:
        places = [TopicPartition(name, number) for name, count in kafka_topics.items() for number in range(count)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        found: list[Any] = []
        while any([await consumer.position(place) < ends[place] for place in places]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                found += batch
        return found
    finally:
        await consumer.stop()
