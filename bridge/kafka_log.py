"""The log on Apache Kafka: aiokafka's idempotent producer below, our own fetcher for reading.

The producer appends whole batches: linger 0, acks=all, idempotent. aiokafka has one produce request per Kafka broker
under way, which carries a batch of each of several partitions, and retries inside without end. What it cannot do is get
over a gap in its sequence numbers (its issue 1017): every error that leaves such a gap becomes ProducerPoisoned here,
and ``renew_producer`` replaces it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Set
from typing import Any

import aiokafka.errors as errors
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from bridge.kafka_connection import LATEST, KafkaConnection
from bridge.kafka_consumer import KafkaLogConsumer
from bridge.log import LogError, LogUnavailable, PendingRecord, Position, ProducerPoisoned, RecordRefused

log = logging.getLogger(__name__)

BATCH_BYTES_MAX = 2 * 1024 * 1024  # the builder's limit, far above the publisher's own cap
REQUEST_TIMEOUT_MS = 10_000  # a dead connection is given up after this; the batch is sent again with its number
RETRY_BACKOFF_MS = 50
START_S = 10.0  # for a new producer to get its producer id

_ONE_RECORDS_FAULT = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidTimestampError,
    errors.UnsupportedForMessageFormatError,
    errors.PolicyViolationError,
)
_ALL_RECORDS_FAULT = (
    errors.TopicAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.InvalidTopicError,
)


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
        self._producer: AIOKafkaProducer | None = None
        self._open: set[asyncio.Future[int]] = set()
        self._slow: dict[Position, deque[tuple[Any, asyncio.Future[int]]]] = {}  # batches that wait for metadata
        self._tasks: set[asyncio.Task[None]] = set()
        self._consumers: list[KafkaLogConsumer] = []
        self._counts = dict.fromkeys(("batches", "producers"), 0)

    async def start(self) -> None:
        assert self._connection is None, "started once"
        connection = KafkaConnection(
            self._bootstrap_servers, self._client_id, self._request_timeout_ms, self._connection_options()
        )
        await connection.start()
        try:
            self._producer = await self._new_producer()
        except LogError:
            await connection.stop()
            raise
        self._connection = connection

    async def stop(self) -> None:
        for consumer in self._consumers:
            await consumer.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await _abandon(producer)
        self._fail_open(LogUnavailable("the log was stopped"))
        if self._connection is not None:
            await self._connection.stop()

    def submit(self, kafka_topic: str, partition: int, records: list[PendingRecord]) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        if self._producer is None:
            future.set_exception(LogUnavailable("the log is not started"))
            return future
        self._counts["batches"] += 1
        try:
            batch = self._build(self._producer, records)
        except (TypeError, ValueError, AttributeError) as error:
            future.set_exception(RecordRefused(f"a record cannot be encoded: {error}", divisible=True))
            return future
        if batch is None:
            future.set_exception(RecordRefused("the records do not fit into one batch", divisible=True))
            return future
        position = (kafka_topic, partition)
        if position in self._slow:
            self._slow[position].append((batch, future))
        else:
            self._send(position, batch, future)
        return future

    async def renew_producer(self) -> None:
        """The old producer goes on trying until the new one has its id: what it still gets done needs no repetition."""
        producer = await self._new_producer()
        old, self._producer = self._producer, producer
        self._slow.clear()
        self._fail_open(ProducerPoisoned("the producer was renewed"))
        if old is not None:
            self._spawn(_abandon(old), "headwater-producer-end")

    async def end_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        if self._connection is None:
            raise LogUnavailable("the log is not started")
        return await self._connection.offsets(partitions, LATEST)

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> KafkaLogConsumer:
        assert self._connection is not None, "start the log first"
        consumer = KafkaLogConsumer(self._connection, group_id, read_committed=read_committed)
        self._consumers.append(consumer)
        return consumer

    def statistics(self) -> dict[str, Any]:
        return {**self._counts, "batches_open": len(self._open)}

    def _connection_options(self) -> dict[str, Any]:
        return {"retry_backoff_ms": RETRY_BACKOFF_MS, **self._options}

    async def _new_producer(self) -> AIOKafkaProducer:
        self._counts["producers"] += 1
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap_servers,
            client_id=f"{self._client_id}-{self._counts['producers']}",
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_batch_size=BATCH_BYTES_MAX,
            request_timeout_ms=self._request_timeout_ms,
            **self._connection_options(),
        )
        try:
            async with asyncio.timeout(START_S):
                await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await _abandon(producer)
            raise LogUnavailable(f"no producer could be started: {error!r}") from error
        except BaseException:
            await _abandon(producer)
            raise
        return producer

    @staticmethod
    def _build(producer: AIOKafkaProducer, records: list[PendingRecord]) -> Any:
        """The records as one batch; None when they do not fit."""
        batch = producer.create_batch()
        append = batch._builder.append  # under the batch's own append, which costs twice as much as the work
        now_ms = int(time.time() * 1000)  # Kafka puts its own in: LogAppendTime
        for index, (key, value, headers) in enumerate(records):
            if append(index, now_ms, key, value, headers if type(headers) is list else list(headers)) is None:
                return None
        batch._relative_offset = len(records)
        batch.close()
        return batch

    def _send(self, position: Position, batch: Any, future: asyncio.Future[int]) -> None:
        """Hand the batch over at once when the partition is known, which is always but the first time.

        The coroutine then ends at its first step, so no task is needed. Otherwise it is thrown away before it has
        done anything, and a task takes over this and the following batches of the partition, in order.
        """
        assert self._producer is not None, "checked by submit"
        sending = self._producer.send_batch(batch, position[0], partition=position[1])
        try:
            sending.send(None)
        except StopIteration as done:
            self._follow(done.value, future)
        except Exception as error:
            future.set_exception(_as_log_error(error))
        else:
            sending.close()
            self._slow[position] = waiting = deque([(batch, future)])
            self._spawn(self._send_slowly(position, waiting, self._producer), "headwater-send")

    async def _send_slowly(
        self, position: Position, waiting: deque[tuple[Any, asyncio.Future[int]]], producer: AIOKafkaProducer
    ) -> None:
        try:
            while waiting:
                batch, future = waiting.popleft()
                if future.done():
                    continue
                try:
                    self._follow(await producer.send_batch(batch, position[0], partition=position[1]), future)
                except Exception as error:
                    if not future.done():
                        future.set_exception(_as_log_error(error))
        finally:
            if self._slow.get(position) is waiting:
                del self._slow[position]

    def _follow(self, sent: asyncio.Future[Any], future: asyncio.Future[int]) -> None:
        def done(sent: asyncio.Future[Any]) -> None:
            error = LogUnavailable("cancelled") if sent.cancelled() else sent.exception()
            if future.done():
                return
            if error is None:
                future.set_result(sent.result().offset)
            else:
                future.set_exception(_as_log_error(error))

        sent.add_done_callback(done)

    def _fail_open(self, error: LogError) -> None:
        for future in list(self._open):
            if not future.done():
                future.set_exception(error)

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _as_log_error(error: BaseException) -> LogError:
    """What an error of aiokafka means to us; one that is not understood has the producer renewed, and it goes again."""
    match error:
        case LogError():
            return error
        case _ if isinstance(error, _ONE_RECORDS_FAULT):
            return RecordRefused(type(error).__name__, divisible=True)
        case _ if isinstance(error, _ALL_RECORDS_FAULT):
            return RecordRefused(type(error).__name__)
        case AssertionError():  # aiokafka's word for a partition that the Kafka topic does not have
            return RecordRefused("no such partition")
        case errors.UnknownTopicOrPartitionError() | errors.KafkaTimeoutError() | errors.NodeNotReadyError():
            return LogUnavailable(repr(error))
        case _:
            return ProducerPoisoned(repr(error))


async def _abandon(producer: AIOKafkaProducer) -> None:
    """End a producer now. Its own ``stop`` would first wait for everything that is pending, perhaps for ever."""
    producer._closed = True
    task = producer._sender.sender_task
    if task is not None:
        task.cancel()
    await producer.client.close()
    if task is not None:
        await asyncio.wait([task], timeout=2 * REQUEST_TIMEOUT_MS / 1000)
    producer._message_accumulator.fail_all(errors.ProducerClosed())
