"""Where chaos happens: a real Kafka with a listener per edge, so that each edge reaches it by a fault proxy of its own,
and real edges with a fault proxy in front of each.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from support.chaos_history import Recorder, Sample
from support.chaos_invariants import above, baseline, recovered_after_s
from support.chaos_proxy import FaultProxy

from benchmarks.sessions.fleet import LIMITS, PORTS, FleetEdge
from bridge import topics_admin
from bridge.embedded_kafka import EmbeddedKafka
from bridge.embedded_kafka.server import free_port, is_port_free
from bridge.embedded_kafka.settings import HOST
from bridge.kafka_log import KafkaLog
from bridge.log import Position
from bridge.memory_log import MemoryRecord
from bridge.replay.jsonl import read_file
from edge.node.config import make_config
from schemas.catalogue import SESSIONS, catalogue

Log = dict[Position, list[MemoryRecord]]

POLL_S = 0.05
SAMPLE_S = 2.0
BACK_WITHIN_S = 15.0
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
STOPPED_WITHIN_S = 5.0
DENY_SECRETS = (
    {"permit": "deny", "action": "all", "filter": "secret/#"},
    {"permit": "allow", "action": "all", "filter": "#"},
)


class ChaosEdge(FleetEdge):
    """An edge behind two proxies: `to_kafka`, and `to_clients` in front of it."""

    def __init__(self, node_id: str, to_kafka: FaultProxy, folder: Path, ports: tuple[int, int]) -> None:
        super().__init__(node_id, f"{HOST}:{to_kafka.address[1]}", folder, {})
        self.to_kafka = to_kafka
        self.address, self.http_port = (HOST, ports[0]), ports[1]
        self.to_clients = FaultProxy(0, self.address)
        self.environment: dict[str, str] = {}  # of its next process; start no other edge at the same time
        self.configure(
            acl=DENY_SECRETS,
            limits=LIMITS,
            listeners=[{"port": ports[0]}],
            http={"port": ports[1], "page": False},
        )

    def configure(self, **table: Any) -> None:
        """Other settings, from the next start on."""
        self._config = make_config(self._config.model_dump(mode="python") | table, "chaos")

    async def start(self) -> None:
        """Return when clients are served."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            await super().start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    @property
    def is_running(self) -> bool:
        return self._child is not None

    async def sample(self) -> tuple[int, int, int | None] | None:
        """Resident KiB, open descriptors, asyncio tasks; None when it does not run."""
        try:
            process = Path(f"/proc/{self.pid}")
            pages = int((process / "statm").read_text().split()[1])
            files = len(list((process / "fd").iterdir()))
        except (AssertionError, OSError):
            return None
        try:
            async with asyncio.timeout(SAMPLE_S):
                tasks: int | None = int((await self.figures())["tasks"])
        except (aiohttp.ClientError, TimeoutError, OSError, KeyError):
            tasks = None
        return pages * PAGE_KB, files, tasks

    async def terminate(self) -> tuple[int, float]:
        """SIGTERM; its exit code, and how long it took."""
        child, self._child = self._child, None
        assert child is not None
        began = time.monotonic()
        os.kill(child.pid, signal.SIGTERM)
        code = await child.wait()
        await child.stop()
        return code, time.monotonic() - began

    async def readyz(self) -> int:
        """The status of /readyz; 0: no answer."""
        timeout = aiohttp.ClientTimeout(2)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"http://{HOST}:{self.http_port}/readyz") as answer,
            ):
                return answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0


class ChaosKafka(EmbeddedKafka):
    """A Kafka with a listener per edge, each advertised as the proxy in front of it."""

    def __init__(self, data: Path, proxies: Mapping[str, tuple[int, int]]) -> None:
        port, controller = free_port(), free_port()
        names = list(proxies)
        plain, internal = f"PLAINTEXT://{HOST}:{port}", f"CONTROLLER://{HOST}:{controller}"
        listeners = [plain, internal, *(f"{name}://{HOST}:{proxies[name][0]}" for name in names)]
        advertised = [plain, *(f"{name}://{HOST}:{proxies[name][1]}" for name in names)]
        super().__init__(
            data,
            port,
            properties={
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "log.cleaner.backoff.ms": "500",  # compaction is soon done where it is forced
                "listeners": ",".join(listeners),
                "advertised.listeners": ",".join(advertised),
                "listener.security.protocol.map": ",".join(
                    f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *names)
                ),
            },
        )

    def kill(self) -> None:
        """kill -9."""
        self.stop(grace_s=0)

    def pause(self) -> None:
        """SIGSTOP; return when no thread of it runs."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + STOPPED_WITHIN_S
        while any(_thread_state(task) not in "Tt" for task in Path(f"/proc/{self.pid}/task").iterdir()):
            assert time.monotonic() < deadline, "Kafka does not stop"

    def go_on(self) -> None:
        """SIGCONT."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


class Site:
    """Kafka, edges and proxies of one run, and the recorder of its history."""

    def __init__(self, folder: Path, edges: int, recorder: Recorder) -> None:
        self.folder = folder
        self.recorder = recorder
        self.before_deletion: Log = {}  # what DeleteRecords or compaction has taken
        self.credentials: dict[str, object] = {}  # of all clients
        self.at_end = ExitStack()
        self.calm_at = 0.0  # on the monotonic clock: all faults should be forgotten
        self._sampling: asyncio.Task[None] | None = None
        self._started: list[Sample] = []
        free = random.sample(PORTS, edges * 20)  # each once: they are bound later
        ports = {f"EDGE{number}": _free(free) for number in range(edges)}  # Kafka comes back to them after kill -9
        targets = [(HOST, port) for port in ports.values()]
        self.proxies = [FaultProxy(_free(free), target, seed) for seed, target in enumerate(targets)]
        shown = {
            name: (port, proxy.address[1]) for (name, port), proxy in zip(ports.items(), self.proxies, strict=True)
        }
        self.kafka = ChaosKafka(folder / "kafka", shown)
        self.edges = [
            ChaosEdge(f"edge-{number}", proxy, folder, (_free(free), _free(free)))
            for number, proxy in enumerate(self.proxies)
        ]

    async def start(self) -> None:
        await asyncio.to_thread(self.kafka.start)
        for proxy in self.proxies:
            await proxy.start()
        await topics_admin.apply(self.kafka.bootstrap, catalogue(), 1)
        await asyncio.gather(*(edge.start() for edge in self.edges))
        for edge in self.edges:
            await edge.to_clients.start()
        await self._sample("start")
        self._sampling = asyncio.create_task(self._keep_sampling())

    async def stop(self) -> None:
        """Whatever state they are in."""
        await self._stop_sampling()
        if self.kafka.is_running:
            self.kafka.go_on()
        for edge in self.edges:
            edge.to_kafka.set()
        await asyncio.gather(*(edge.stop() for edge in self.edges), return_exceptions=True)
        for edge in self.edges:
            await edge.to_clients.stop()
            await edge.to_kafka.stop()
        await asyncio.to_thread(self.kafka.stop)
        self.at_end.close()

    async def until_left(self) -> None:
        """All clients have gone: wait until the edges have what they had in the beginning, or for 15 s."""
        await self._stop_sampling()
        deadline = time.monotonic() + BACK_WITHIN_S
        base = baseline(self._started)
        while True:
            samples = await self._samples("left")
            if not any(above(each, base) for each in samples) or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        await self._sample("left")

    async def _keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self._sample("run")

    async def _stop_sampling(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    async def _sample(self, phase: str) -> None:
        samples = await self._samples(phase)
        if phase == "start":
            self._started = samples
        for each in samples:
            self.recorder.write(
                "sample", edge=each.edge, phase=phase, memory_kb=each.memory_kb, files=each.files, tasks=each.tasks
            )

    async def _samples(self, phase: str) -> list[Sample]:
        found = await asyncio.gather(*(edge.sample() for edge in self.edges))
        return [
            Sample(0.0, edge.node_id, phase, *values)
            for edge, values in zip(self.edges, found, strict=True)
            if values is not None
        ]

    def addresses(self, first: int) -> list[tuple[str, int]]:
        """Where clients connect: all edges, from one on, through the proxies in front of them."""
        order = [*self.edges[first:], *self.edges[:first]]
        return [edge.to_clients.address for edge in order]

    @asynccontextmanager
    async def fault(self, kind: str, edge: str = "kafka") -> AsyncIterator[None]:
        """The time of a fault, in the history."""
        self.recorder.write("fault", kind=kind, edge=edge)
        try:
            yield
        finally:
            self.recorder.write("healed", kind=kind, edge=edge)
            self.calm_at = max(self.calm_at, time.monotonic() + recovered_after_s(edge))

    async def read_log(self) -> Log:
        """Everything that Kafka has committed."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_bytes=16 << 20,
        )
        await consumer.start()
        try:
            partitions = [
                TopicPartition(spec.name, n)
                for spec in catalogue()
                for n in range(spec.partitions)
                if spec.cleanup_policy != "compact"
            ]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            log: Log = {(each.topic, each.partition): [] for each in partitions}
            async with asyncio.timeout(60):
                while await _behind(consumer, ends):
                    for place, records in (await consumer.getmany(timeout_ms=200, max_records=5_000)).items():
                        log[place.topic, place.partition] += [
                            MemoryRecord(each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
                            for each in records
                        ]
        finally:
            await consumer.stop()
        log |= await self._read_compacted()
        assert any(records for place, records in log.items() if place[0] == SESSIONS), "nothing was read"
        return log

    async def _read_compacted(self) -> Log:
        """By the edges' own reader: aiokafka's fails on transaction markers that compaction has emptied."""
        source = KafkaLog(self.kafka.bootstrap, client_id="chaos")
        await source.start()
        try:
            places = {
                (spec.name, n)
                for spec in catalogue()
                for n in range(spec.partitions)
                if spec.cleanup_policy == "compact"
            }
            ends, consumer = await source.end_offsets(places), source.consumer(None, read_committed=True)
            consumer.assign(await source.start_offsets(places))
            log: Log = {place: [] for place in places}
            async with asyncio.timeout(60):
                while any((consumer.position_of(place) or 0) < end for place, end in ends.items()):
                    for place, records in await consumer.fetch(0.5):
                        log[place] += [
                            MemoryRecord(each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
                            for each in records
                        ]
            return log
        finally:
            await source.stop()

    async def replay(self, path: Path) -> Log:
        """What `headwater replay` says that the log holds of messages."""
        command = [sys.executable, "-P", "-m", "edge.cli.app", "replay", "#", "--from", "beginning"]
        process = await asyncio.create_subprocess_exec(
            *command,
            *("--to-file", str(path), "--overwrite", "--kafka", self.kafka.bootstrap),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        found: Log = {}
        for item in read_file(path):
            if not isinstance(item, dict):
                _, position, record, _ = item
                found.setdefault(position, []).append(
                    MemoryRecord(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
                )
        return found

    async def delete_records(self, kafka_topic: str) -> None:
        """DeleteRecords of all that a Kafka topic holds; it stays in `before_deletion`."""
        self.before_deletion = await self.read_log()
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        await admin.start()
        try:
            await admin.delete_records(
                {
                    TopicPartition(*place): RecordsToDelete(records[-1].offset + 1)
                    for place, records in self.before_deletion.items()
                    if place[0] == kafka_topic and records
                }
            )
        finally:
            await admin.close()


async def _behind(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    for partition, end in ends.items():
        if await consumer.position(partition) < end:
            return True
    return False


def _free(candidates: list[int]) -> int:
    """One of them that nobody listens on now."""
    while not is_port_free(port := candidates.pop()):
        pass
    return port


def _thread_state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"  # the thread has ended


async def until_status(edge: ChaosEdge, status: int, wait_s: float) -> float | None:
    """How long it took until /readyz said so; None: longer than `wait_s`."""
    began = time.monotonic()
    while time.monotonic() - began < wait_s:
        if await edge.readyz() == status:
            return time.monotonic() - began
        await asyncio.sleep(POLL_S)
    return None
