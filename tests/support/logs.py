"""Logs for tests: one that does what the test says, sinks that write down what they are told, a virtual clock."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition

from bridge.delivery import Delivery
from bridge.kafka_log import KafkaLog
from bridge.log import LogConsumer, LogError, LogUnavailable, PendingRecord, Position, ProducerPoisoned, RecordRefused
from bridge.memory_log import MemoryLog
from bridge.partitioning import Destination
from bridge.subscriptions import Grant

READ_S = 20.0  # for what must come; a loaded machine is slow


@dataclass(slots=True)
class Submission:
    """One call of ``submit``: the test completes or fails it."""

    kafka_topic: str
    partition: int
    records: list[PendingRecord]
    future: asyncio.Future[int]

    @property
    def values(self) -> list[bytes]:
        return [value or b"" for _, value, _ in self.records]


class ScriptedLog:
    """A log whose every answer the test gives."""

    def __init__(self) -> None:
        self.submissions: list[Submission] = []
        self.renewals = 0
        self.renewal_errors: list[LogError] = []
        self._submitted = asyncio.Event()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def submit(self, kafka_topic: str, partition: int, records: list[PendingRecord]) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.submissions.append(Submission(kafka_topic, partition, list(records), future))
        self._submitted.set()
        return future

    async def submitted(self, count: int) -> None:
        """Until that many batches were submitted in all."""
        async with asyncio.timeout(5):
            while len(self.submissions) < count:
                self._submitted.clear()
                await self._submitted.wait()

    async def renew_producer(self) -> None:
        await asyncio.sleep(0)
        if self.renewal_errors:
            raise self.renewal_errors.pop(0)
        self.renewals += 1
        for submission in self.submissions:
            if not submission.future.done():
                submission.future.set_exception(ProducerPoisoned("renewed"))

    async def end_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        raise LogUnavailable("not scripted")

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> LogConsumer:
        raise NotImplementedError

    def statistics(self) -> dict[str, Any]:
        return {}

    @property
    def open(self) -> list[Submission]:
        return [submission for submission in self.submissions if not submission.future.done()]


@dataclass(slots=True)
class RecordingSink:
    """Writes down every outcome, in order."""

    outcomes: list[tuple[Any, ...]] = field(default_factory=list)

    def record_appended(self, token: Any, offset: int) -> None:
        self.outcomes.append(("appended", token, offset))

    def records_appended(self, tokens: list[Any], base_offset: int) -> None:
        for number, token in enumerate(tokens):
            self.outcomes.append(("appended", token, base_offset + number if base_offset >= 0 else base_offset))

    def record_refused(self, token: Any, error: RecordRefused) -> None:
        self.outcomes.append(("refused", token, error.reason))

    def record_unknown(self, token: Any) -> None:
        self.outcomes.append(("unknown", token))

    def tokens(self, outcome: str) -> list[Any]:
        return [entry[1] for entry in self.outcomes if entry[0] == outcome]


@dataclass(slots=True)
class VirtualClock:
    """A clock that stands still until the test moves it."""

    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


async def turns(count: int = 5) -> None:
    """Let the event loop go round; what is ready then has happened."""
    for _ in range(count):
        await asyncio.sleep(0)


def destination(partition: int = 0, kafka_topic: str = "mqtt.messages", key: bytes = b"k") -> Destination:
    return Destination(kafka_topic, partition, key)


class LogHarness:
    """A log under the conformance suite, and what the suite does behind its back."""

    def __init__(self, log: Any, kafka_topic: str, admin: AIOKafkaAdminClient | None) -> None:
        self.log = log
        self.kafka_topic = kafka_topic
        self._admin = admin

    def at(self, partition: int) -> Position:
        return (self.kafka_topic, partition)

    async def append(self, partition: int, *values: bytes) -> int:
        return int(await self.log.submit(self.kafka_topic, partition, [(b"k", value, []) for value in values]))

    async def truncate(self, partition: int, start: int) -> None:
        if self._admin is None:
            self.log.truncate(self.kafka_topic, partition, start)
            return
        where = TopicPartition(self.kafka_topic, partition)
        await self._admin.delete_records({where: RecordsToDelete(before_offset=start)})

    async def read(self, consumer: LogConsumer, count: int) -> list[tuple[Position, Any]]:
        """The next ``count`` records, each with its partition; fails rather than wait for ever."""
        records: list[tuple[Position, Any]] = []
        async with asyncio.timeout(READ_S):
            while len(records) < count:
                for position, part in await consumer.fetch(READ_S):
                    records += [(position, record) for record in part]
        return records


@asynccontextmanager
async def memory_harness() -> AsyncIterator[LogHarness]:
    log = MemoryLog()
    await log.start()
    yield LogHarness(log, "test.messages", None)
    await log.stop()


@asynccontextmanager
async def kafka_harness(bootstrap: str, partitions: int = 12, **options: Any) -> AsyncIterator[LogHarness]:
    """A Kafka topic of its own on a real Kafka, every partition with its leader."""
    kafka_topic = f"test.{uuid.uuid4().hex}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(2 * 1024 * 1024)}
    await admin.create_topics([NewTopic(kafka_topic, partitions, 1, topic_configs=config)])
    log = KafkaLog(bootstrap, **options)
    await log.start()
    await log.end_offsets({(kafka_topic, partition) for partition in range(partitions)})
    try:
        yield LogHarness(log, kafka_topic, admin)
    finally:
        await log.stop()
        await admin.delete_topics([kafka_topic])
        await admin.close()


class RecordingSubscriber:
    """Keeps what it is handed; can say when it has as much as the test waits for."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self._arrived = asyncio.Event()

    def deliver(self, delivery: Delivery, grant: Grant) -> None:
        self.deliveries.append(delivery)
        self._arrived.set()

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.deliveries]

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(READ_S):
            while len(self.deliveries) < count:
                self._arrived.clear()
                await self._arrived.wait()
