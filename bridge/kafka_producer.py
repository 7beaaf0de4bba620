"""An idempotent producer on aiokafka's connections and compiled batch builder (KIP-98, without transactions).

Why not ``AIOKafkaProducer``: it costs about 190 us per batch, which is most of an edge's time when a node's traffic is
spread over many partitions; it never gives up a batch that was sent; and a gap in its sequence numbers breaks it for
good (aiokafka issue 1017). Here a produce request carries the batches of all partitions that wait, and a batch is:

1. ``submit``: built, put in line behind the earlier batches of its partition
2. ``_send_all``: one request per Kafka broker under way; a partition has one batch in it at most, so its order is kept
3. acknowledged: the future has the base offset; refused: RecordRefused; anything that another try can mend (leader
   moved, time-out, connection lost): sent again with the same sequence number, which Kafka stores once
4. a gap in the sequence or a lost producer id: ProducerPoisoned; the caller renews the producer and submits again
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from typing import Any

import aiokafka.errors as errors
from aiokafka.errors import KafkaError
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bridge.kafka_connection import KafkaConnection
from bridge.kafka_protocol import LeanProduceAnswer, LeanProduceRequest
from bridge.log import LogError, LogUnavailable, PendingRecord, Position, ProducerPoisoned, RecordRefused

log = logging.getLogger(__name__)

BATCH_BYTES_MAX = 2 * 1024 * 1024  # the builder's limit, far above the publisher's own cap
REQUEST_BYTES_MAX = 8 * 1024 * 1024  # Kafka's socket.request.max.bytes is 100 MiB; one answer should not take long
RETRY_S = 0.05
START_S = 10.0  # to get a producer id
SEQUENCE_MODULO = 1 << 31

_DUPLICATE_SEQUENCE = 46
_POISONED = frozenset((45, 47, 59, 90))  # out of order, invalid epoch, unknown producer id, fenced
ONE_RECORDS_FAULT = frozenset((10, 18, 32, 43, 44, 87))  # too large, list too large, timestamp, format, policy, invalid
ALL_RECORDS_FAULT = frozenset((17, 29, 31))  # invalid Kafka topic, not authorised for it or for the cluster


class _Batch:
    __slots__ = ("builder", "count", "data", "future")

    def __init__(self, builder: Any, count: int, future: asyncio.Future[int]) -> None:
        self.builder = builder
        self.count = count
        self.future = future
        self.data: bytes | None = None  # built when it is first sent: that fixes its sequence number


class KafkaProducer:
    """One producer id with its sequence numbers. Belongs to one event loop."""

    def __init__(self, connection: KafkaConnection, request_timeout_ms: int) -> None:
        self._connection = connection
        self._timeout_ms = request_timeout_ms
        self._lane = connection.new_lane()
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[Position, int] = {}
        self._waiting: dict[Position, deque[_Batch]] = {}  # the first of each is the one to send next
        self._sending: set[Position] = set()
        self._senders: dict[int, asyncio.Task[None]] = {}  # by Kafka broker
        self._handle: asyncio.Handle | None = None
        self._leaders: asyncio.Task[None] | None = None
        self._abandoned = False
        self.requests = 0

    async def start(self) -> None:
        """Get a producer id; raises LogUnavailable when Kafka gives none in time."""
        request = InitProducerIdRequest(None, self._timeout_ms)  # no transactional id
        trouble: object = "no Kafka broker"
        try:
            async with asyncio.timeout(START_S):
                while True:
                    try:
                        node = self._connection.client.get_random_node()
                        answer = await self._connection.client.send(node, request, group=self._lane)
                    except (KafkaError, OSError) as error:
                        trouble = error
                    else:
                        if not answer.error_code:
                            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                            return
                        trouble = errors.for_code(answer.error_code).__name__
                    await self._connection.refresh()
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise LogUnavailable(f"Kafka gave no producer id: {trouble!r}") from None

    def submit(self, position: Position, records: list[PendingRecord]) -> asyncio.Future[int]:
        """Append one batch; the future is its base offset (-1: Kafka had it already). Fails with a LogError."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            builder = _build(records)
        except (TypeError, ValueError, AttributeError) as error:
            future.set_exception(RecordRefused(f"a record cannot be encoded: {error}", divisible=True))
            return future
        if builder is None:
            future.set_exception(RecordRefused("the records do not fit into one batch", divisible=True))
            return future
        waiting = self._waiting.get(position)
        if waiting is None:
            waiting = self._waiting[position] = deque()
        waiting.append(_Batch(builder, len(records), future))
        self._schedule()
        return future

    @property
    def open_batches(self) -> int:
        """Batches without an outcome."""
        return sum(map(len, self._waiting.values()))

    def abandon(self, error: LogError) -> None:
        """Send nothing more; what is open fails with `error`."""
        self._abandoned = True
        for waiting in self._waiting.values():
            for batch in waiting:
                if not batch.future.done():
                    batch.future.set_exception(error)
        self._waiting.clear()
        for task in (*self._senders.values(), *((self._leaders,) if self._leaders is not None else ())):
            task.cancel()
        self._connection.close_lanes({self._lane})

    # Sending

    def _schedule(self) -> None:
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._send_all)

    def _send_all(self) -> None:
        """Start a request to every Kafka broker that has none under way and leads a partition with a batch."""
        self._handle = None
        if self._abandoned:
            return
        by_node: dict[int, list[Position]] = {}
        for position in self._waiting:
            if position in self._sending:
                continue
            node = self._connection.leader(position)
            if node is None:
                self._ask_for_leaders()
            elif node not in self._senders:
                by_node.setdefault(node, []).append(position)
        for node, positions in by_node.items():
            task = asyncio.get_running_loop().create_task(self._send(node, positions), name="headwater-produce")
            self._senders[node] = task
            task.add_done_callback(partial(self._ended, node))

    def _ended(self, node: int, task: asyncio.Task[None]) -> None:
        del self._senders[node]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a produce request failed unexpectedly", exc_info=error)
        if self._waiting:
            self._schedule()

    async def _send(self, node: int, positions: list[Position]) -> None:
        batches: dict[Position, _Batch] = {}
        size = 0
        for position in positions:
            batch = self._waiting[position][0]
            if batch.data is None:
                batch.data = self._numbered(position, batch)
            batches[position] = batch
            size += len(batch.data)
            if size >= REQUEST_BYTES_MAX:
                break
        self._sending.update(batches)
        self.requests += 1
        try:
            request = LeanProduceRequest(((at, batch.data or b"") for at, batch in batches.items()), self._timeout_ms)
            answer = await self._connection.client.send(node, request, group=self._lane)
        except (KafkaError, OSError, ValueError) as error:
            log.warning("producing to Kafka broker %s failed, trying again: %r", node, error)
            await self._rest()
        else:
            await self._read_answer(answer, batches)
        finally:
            self._sending.difference_update(batches)

    def _numbered(self, position: Position, batch: _Batch) -> bytes:
        sequence = self._sequences.get(position, 0)
        self._sequences[position] = (sequence + batch.count) % SEQUENCE_MODULO
        batch.builder.set_producer_state(self._producer_id, self._epoch, sequence)
        data = bytes(batch.builder.build())
        batch.builder = None
        return data

    async def _read_answer(self, answer: LeanProduceAnswer, batches: dict[Position, _Batch]) -> None:
        again: set[int] = set()
        for kafka_topic, partition, code, base_offset in answer.partitions:
            position = (kafka_topic, partition)
            batch = batches[position]
            if not code or code == _DUPLICATE_SEQUENCE:
                self._done(position)
                if not batch.future.done():
                    batch.future.set_result(base_offset if not code else -1)
                continue
            error = _as_log_error(code)
            if error is None:
                again.add(code)
                continue
            self._done(position)
            if isinstance(error, RecordRefused):  # nothing was stored: its sequence numbers are free again
                self._sequences[position] = (self._sequences[position] - batch.count) % SEQUENCE_MODULO
            if not batch.future.done():
                batch.future.set_exception(error)
        if again:
            names = ", ".join(sorted(errors.for_code(code).__name__ for code in again))
            log.warning("Kafka took some batches not yet, trying again: %s", names)
            await self._rest()

    def _done(self, position: Position) -> None:
        waiting = self._waiting[position]
        waiting.popleft()
        if not waiting:
            del self._waiting[position]

    async def _rest(self) -> None:
        await self._connection.refresh()
        await asyncio.sleep(RETRY_S)

    # Partitions without a known leader

    def _ask_for_leaders(self) -> None:
        if self._leaders is None:
            self._leaders = asyncio.get_running_loop().create_task(self._await_leaders(), name="headwater-leaders")

    async def _await_leaders(self) -> None:
        try:
            await self._connection.refresh()
            self._refuse_unknown_partitions()
            await asyncio.sleep(RETRY_S)
        finally:
            self._leaders = None
            if self._waiting and not self._abandoned:
                self._schedule()

    def _refuse_unknown_partitions(self) -> None:
        """A Kafka topic's partitions are fixed at its creation: one that it does not have it never will."""
        for position in list(self._waiting):
            known = self._connection.client.cluster.partitions_for_topic(position[0])
            if known and position[1] not in known:
                for batch in self._waiting.pop(position):
                    if not batch.future.done():
                        batch.future.set_exception(RecordRefused(f"{position[0]} has no partition {position[1]}"))


def _build(records: list[PendingRecord]) -> Any:
    """The records in aiokafka's compiled builder; None when they do not fit."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, 0, BATCH_BYTES_MAX)  # format 2, plain, numbered later
    append = builder.append
    now_ms = int(time.time() * 1000)  # Kafka puts its own in: LogAppendTime
    for index, (key, value, headers) in enumerate(records):
        if append(index, now_ms, key, value, headers if type(headers) is list else list(headers)) is None:
            return None
    return builder


def _as_log_error(code: int) -> LogError | None:
    """What Kafka's error code means to us; None: the same batch goes again."""
    if code in _POISONED:
        return ProducerPoisoned(errors.for_code(code).__name__)
    if code in ONE_RECORDS_FAULT:
        return RecordRefused(errors.for_code(code).__name__, divisible=True)
    if code in ALL_RECORDS_FAULT:
        return RecordRefused(errors.for_code(code).__name__)
    return None
