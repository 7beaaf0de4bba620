"""The log on Apache Kafka: our own producer and fetcher on aiokafka's connections, metadata and record codec.

An error that leaves a gap in the producer's sequence numbers becomes ProducerPoisoned, and ``renew_producer`` replaces
the producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from typing import Any

from bridge.kafka_connection import EARLIEST, LATEST, KafkaConnection
from bridge.kafka_consumer import KafkaLogConsumer
from bridge.kafka_producer import KafkaProducer
from bridge.kafka_transactions import KafkaTransactionalProducer
from bridge.log import LogError, LogUnavailable, PendingRecord, Position, ProducerPoisoned
from bridge.shared.kafka_lease import KafkaLeases

REQUEST_TIMEOUT_MS = 10_000  # a dead connection is given up after this; the batch is sent again with its number
RETRY_BACKOFF_MS = 50


class KafkaLog:
    """Kafka behind the bridge's interface. ``options`` are aiokafka's own for TLS and SASL."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "headwater",
        options: Mapping[str, Any] | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._client_id = client_id
        self._options = dict(options or {})
        self._request_timeout_ms = request_timeout_ms
        self._connection: KafkaConnection | None = None
        self._producer: KafkaProducer | None = None
        self._consumers: list[KafkaLogConsumer] = []
        self._counts = dict.fromkeys(("batches", "producers"), 0)

    async def start(self) -> None:
        assert self._connection is None, "started once"
        connection = KafkaConnection(
            self._bootstrap_servers, self._client_id, self._request_timeout_ms, self._connection_options()
        )
        await connection.start()
        try:
            self._producer = await self._new_producer(connection)
        except LogError:
            await connection.stop()
            raise
        self._connection = connection

    async def stop(self) -> None:
        for consumer in list(self._consumers):
            await consumer.stop()
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.abandon(LogUnavailable("the log was stopped"))
        if self._connection is not None:
            await self._connection.stop()

    def submit(self, kafka_topic: str, partition: int, records: list[PendingRecord]) -> asyncio.Future[int]:
        if self._producer is None:
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            future.set_exception(LogUnavailable("the log is not started"))
            return future
        self._counts["batches"] += 1
        return self._producer.submit((kafka_topic, partition), records)

    async def renew_producer(self) -> None:
        """The old producer goes on trying until the new one has its id: what it still gets done needs no repetition."""
        assert self._connection is not None, "start the log first"
        producer = await self._new_producer(self._connection)
        old, self._producer = self._producer, producer
        if old is not None:
            old.abandon(ProducerPoisoned("the producer was renewed"))

    async def end_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        if self._connection is None:
            raise LogUnavailable("the log is not started")
        return await self._connection.offsets(partitions, LATEST)

    async def start_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        if self._connection is None:
            raise LogUnavailable("the log is not started")
        return await self._connection.offsets(partitions, EARLIEST)

    async def offsets_for_times(self, times_ms: Mapping[Position, int]) -> dict[Position, int]:
        if self._connection is None:
            raise LogUnavailable("the log is not started")
        ends = await self._connection.offsets(times_ms, LATEST)  # before: what is appended meanwhile lies behind them
        found: dict[Position, int] = {}
        for time_ms in set(times_ms.values()):
            asked = {position for position, each in times_ms.items() if each == time_ms}
            found.update(await self._connection.offsets(asked, max(0, time_ms)))
        return {position: offset if offset >= 0 else ends[position] for position, offset in found.items()}

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> KafkaLogConsumer:
        assert self._connection is not None, "start the log first"
        consumer = KafkaLogConsumer(self._connection, group_id, read_committed=read_committed)
        self._consumers = [*(held for held in self._consumers if not held.is_stopped), consumer]
        return consumer

    def transactional_producer(self, transactional_id: str) -> KafkaTransactionalProducer:
        assert self._connection is not None, "start the log first"
        return KafkaTransactionalProducer(self._connection, transactional_id, self._request_timeout_ms)

    def leases(self) -> KafkaLeases:
        assert self._connection is not None, "start the log first"
        return KafkaLeases(self._connection)

    def statistics(self) -> dict[str, Any]:
        return {**self._counts, "batches_open": self._producer.open_batches if self._producer is not None else 0}

    def _connection_options(self) -> dict[str, Any]:
        return {"retry_backoff_ms": RETRY_BACKOFF_MS, **self._options}

    async def _new_producer(self, connection: KafkaConnection) -> KafkaProducer:
        self._counts["producers"] += 1
        producer = KafkaProducer(connection, self._request_timeout_ms)
        try:
            await producer.start()
        except BaseException:
            producer.abandon(LogUnavailable("the producer did not start"))
            raise
        return producer
