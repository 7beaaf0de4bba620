"""A transactional producer on aiokafka's connections (KIP-98): every commit is one short transaction of its own.

``AIOKafkaProducer`` would take several times as long: it adds partitions one after another, sleeps 20 ms and more where
the markers of the transaction before are still on their way, and cannot say whether a failed commit happened. Here::

    start   InitProducerId           the former holder of the transactional id is fenced, its transaction ended
    commit  AddPartitionsToTxn       all partitions in one request to the transaction's coordinator
            AddOffsetsToTxn          for each group whose marks are stored with it
            Produce                  one request per Kafka broker, with a batch per partition; then the next batches
            TxnOffsetCommit          beside Produce, to the group's coordinator, by its member in a generation (KIP-447)
            EndTxn (commit)          from here on a missing answer means CommitUnknown

Where the cluster speaks Kafka's second transaction protocol (`bridge.kafka_transactions_v2`) Produce adds its
partitions itself, and EndTxn answers with the next epoch: two round trips in a row instead of three.

What fails before EndTxn (commit) was sent never becomes visible. What is left of it is cleared away before the next
transaction begins: EndTxn (abort), and a new epoch from InitProducerId (KIP-360). A late request of the old epoch is
then refused, sequence numbers begin anew, and a rival who has taken the id in the meantime keeps it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import aiokafka.errors as errors
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bridge.kafka_connection import KafkaConnection
from bridge.kafka_producer import ALL_RECORDS_FAULT, BATCH_BYTES_MAX, ONE_RECORDS_FAULT, SEQUENCE_MODULO
from bridge.kafka_protocol import LeanProduceAnswer, LeanProduceRequest, MemberOffsetsRequest, NextEpochRequest
from bridge.kafka_transactions_v2 import (
    FEATURE,
    LEVEL,
    AddingProduceRequest,
    EndAndGoOnRequest,
    FeaturesRequest,
    ProduceResponse_v12,
)
from bridge.log import (
    CommitUnknown,
    GroupMarks,
    LogUnavailable,
    MarksRefused,
    PendingRecord,
    Position,
    ProducerFenced,
    RecordRefused,
    TransactionAborted,
)

log = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 10_000  # Kafka aborts what a killed edge has left open; until then it holds up readers
WRITE_S = 8.0  # to begin and write a transaction: it must not come to Kafka's time-out
END_S = 10.0  # to learn that it is committed
START_S = 20.0  # to take the id, the former holder's transaction ended
FEATURES_S = 5.0  # to learn which protocol is spoken
SETTLE_S = 2.0  # after a refusal; what takes longer is done by the next commit
FULL_BATCH_BYTES = (
    512 * 1024
)  # then the partition's next batch: only a record that is larger may be refused as too large
RETRY_S = 0.05
MARKER_WAITS_S = (0.001, 0.001, 0.002, 0.003, 0.005, 0.01)  # for the markers of the transaction before; then the last

_COORDINATOR_MOVED = frozenset((15, 16))  # not available, not the coordinator: what was asked may have been done
_LOADING, _CONCURRENT, _UNKNOWN_PARTITION, _NOT_ATTEMPTED = 14, 51, 3, 55
_AGAIN = _COORDINATOR_MOVED | {_LOADING, _CONCURRENT, _UNKNOWN_PARTITION}
_INVALID_STATE = 48
_NOT_A_MEMBER = frozenset(
    (22, 24, 25, 27, 30, 69, 82)
)  # of the group, in that generation; or it may not, or there is none
_FENCED = frozenset((47, _INVALID_STATE, 49, 90))  # invalid epoch, state or producer id mapping; fenced
_LOST_COUNT = frozenset((45, 46, 59))  # of the sequence numbers: out of order, a duplicate of long ago, unknown
_NOT_AUTHORISED = 53  # for the transactional id
_ABORTABLE = 120  # the transaction cannot go on
_FINAL = _FENCED | _LOST_COUNT | ONE_RECORDS_FAULT | ALL_RECORDS_FAULT | {_NOT_AUTHORISED, _ABORTABLE}  # of a batch
_TROUBLE = (KafkaError, OSError, ValueError)  # also what aiokafka raises on an answer that it cannot decode


class _Batch:
    """Records of one partition that are sent together."""

    __slots__ = ("base_offset", "builder", "count", "data")

    def __init__(self) -> None:
        self.builder: Any = DefaultRecordBatchBuilder(2, 0, 1, -1, -1, 0, BATCH_BYTES_MAX)  # plain, transactional
        self.count = 0
        self.data: bytes | None = None  # built when it is first sent: that fixes its sequence number
        self.base_offset = -1

    def append(self, now_ms: int, record: PendingRecord) -> bool:
        """Whether there was room for it."""
        key, value, headers = record
        if self.count and self.builder.size() >= FULL_BATCH_BYTES:
            return False
        if self.builder.append(self.count, now_ms, key, value, list(headers)) is None:
            return False
        self.count += 1
        return True


class _Written:
    """The records of one commit in batches; ``places`` says where each went."""

    __slots__ = ("places", "waiting")

    def __init__(self, records: Iterable[tuple[Position, PendingRecord]]) -> None:
        self.waiting: dict[Position, deque[_Batch]] = {}
        self.places: list[tuple[_Batch, int]] = []
        now_ms = int(time.time() * 1000)  # Kafka puts its own in: LogAppendTime
        for position, record in records:
            batches = self.waiting.setdefault(position, deque())
            if not batches or not batches[-1].append(now_ms, record):
                batches.append(_Batch())
                if not batches[-1].append(now_ms, record):
                    raise RecordRefused("a record is too large for a batch", divisible=True)
            self.places.append((batches[-1], batches[-1].count - 1))

    def offsets(self) -> list[int]:
        return [batch.base_offset + index for batch, index in self.places]


class KafkaTransactionalProducer:
    """One transactional id with its producer id, epoch and sequence numbers. Belongs to one event loop."""

    def __init__(
        self,
        connection: KafkaConnection,
        transactional_id: str,
        request_timeout_ms: int,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:
        self._connection = connection
        self._transactional_id = transactional_id
        self._request_timeout_ms = request_timeout_ms
        self._transaction_timeout_ms = transaction_timeout_ms
        self._lane = connection.new_lane()
        self._coordinator: int | None = None
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[Position, int] = {}
        self._adds_itself = False  # the second protocol is spoken
        self._usable = False
        self._unsettled = False  # a transaction was begun, and neither committed nor surely aborted
        self._in_doubt = False  # a request to the coordinator was repeated that may have been done before
        self._trouble = "no answer"
        self._busy = False

    async def start(self) -> None:
        with self._alone():
            self._usable = False
            asking = asyncio.ensure_future(self._speaks_second_protocol())  # beside: a fence shall take no longer
            try:
                await self._take_id()
                self._adds_itself = await asking
            finally:
                asking.cancel()
            self._usable = True

    async def _take_id(self) -> None:
        request = InitProducerIdRequest(self._transactional_id, self._transaction_timeout_ms)
        try:
            async with asyncio.timeout(START_S):
                answer, codes = await self._ask(request, lambda answer: (answer.error_code,))
        except TimeoutError:
            self._drop_connections()
            raise LogUnavailable(f"{self._transactional_id} was not taken: {self._trouble}") from None
        if codes:
            raise LogUnavailable(f"{self._transactional_id} was not taken: {_names(codes)}")
        self._begin_epoch(answer.producer_id, answer.producer_epoch)

    async def commit(
        self, records: Sequence[tuple[Position, PendingRecord]], marks: Sequence[GroupMarks] = ()
    ) -> list[int]:
        with self._alone():
            assert self._usable, "start the producer first"
            try:
                written = _Written(records)
            except (TypeError, ValueError, AttributeError) as error:
                raise RecordRefused(f"a record cannot be encoded: {error}", divisible=True) from error
            if not records and not marks:
                return []
            self._usable = False  # until it is known to be: also when this is cancelled
            try:
                await self._write(written, marks)
                await self._end()
            except (RecordRefused, TransactionAborted):
                self._usable = True
                raise
            self._usable = True
            return written.offsets()

    async def stop(self) -> None:
        self._usable = False
        self._connection.close_lanes({self._lane})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        assert not self._busy, "one start or commit at a time"
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    # The steps of a transaction

    async def _write(self, written: _Written, marks: Sequence[GroupMarks]) -> None:
        """Everything before EndTxn (commit). Raises RecordRefused, TransactionAborted or ProducerFenced."""
        self._trouble = "no answer"
        try:
            async with asyncio.timeout(WRITE_S):
                await self._settle()
                await self._await_leaders(written.waiting)
                self._unsettled = True
                if written.waiting and not self._adds_itself:
                    await self._add_partitions(written.waiting)
                for each in marks:
                    await self._add_offsets(each.group_id)
                await _all_of(self._produce(written.waiting), *(self._store_marks(each) for each in marks))
        except TimeoutError:
            self._drop_connections()
            raise TransactionAborted(f"not written in time: {self._trouble}") from None
        except (RecordRefused, TransactionAborted):
            await self._settle_soon()
            raise

    async def _await_leaders(self, positions: Collection[Position]) -> None:
        while missing := [position for position in positions if self._connection.leader(position) is None]:
            self._trouble = f"no leader for {missing[:5]}"
            await self._connection.refresh()
            for kafka_topic, partition in missing:
                known = self._connection.client.cluster.partitions_for_topic(kafka_topic)
                if known and partition not in known:  # they are fixed when the Kafka topic is made
                    raise RecordRefused(f"{kafka_topic} has no partition {partition}", divisible=True)
            await asyncio.sleep(RETRY_S)

    async def _add_partitions(self, positions: Iterable[Position]) -> None:
        by_topic: dict[str, list[int]] = {}
        for kafka_topic, partition in positions:
            by_topic.setdefault(kafka_topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            self._transactional_id, self._producer_id, self._epoch, list(by_topic.items())
        )
        _, codes = await self._ask(
            request, lambda answer: (code for _, partitions in answer.errors for _, code in partitions)
        )
        self._raise_for(codes - {_NOT_ATTEMPTED})

    async def _add_offsets(self, group_id: str) -> None:
        request = AddOffsetsToTxnRequest(self._transactional_id, self._producer_id, self._epoch, group_id)
        _, codes = await self._ask(request, lambda answer: (answer.error_code,))
        if codes & _NOT_A_MEMBER:
            raise MarksRefused({group_id}, _names(codes))
        self._raise_for(codes)

    async def _store_marks(self, marks: GroupMarks) -> None:
        """Raises MarksRefused, or what `_raise_for` makes of other errors."""
        by_topic: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for (kafka_topic, partition), (offset, beyond) in marks.marks.items():
            by_topic[kafka_topic].append((partition, offset, beyond))
        request = MemberOffsetsRequest(
            self._transactional_id,
            marks.group_id,
            self._producer_id,
            self._epoch,
            marks.generation,
            marks.member_id,
            by_topic,
        )
        coordinator: int | None = None
        while True:
            codes: set[int] = set()
            try:
                if coordinator is None:
                    coordinator = await self._connection.group_coordinator(marks.group_id)
                answer = await self._connection.client.send(coordinator, request, group=self._lane)
                codes = {code for _, partitions, _ in answer.topics for _, code, _ in partitions if code}
            except _TROUBLE as error:
                self._trouble = repr(error)
            else:
                if codes & _NOT_A_MEMBER:
                    raise MarksRefused({marks.group_id}, _names(codes))
                if not codes & _AGAIN:
                    self._raise_for(codes)
                    return
                self._trouble = _names(codes)
            if not codes or codes & _COORDINATOR_MOVED:
                self._connection.forget_group_coordinator(marks.group_id)
                coordinator = None
            await asyncio.sleep(RETRY_S)

    async def _produce(self, waiting: dict[Position, deque[_Batch]]) -> None:
        """Every partition's batches, one after another; what another try can mend goes again as it was."""
        while waiting:
            by_node: dict[int, dict[Position, _Batch]] = {}
            for position, batches in waiting.items():
                node = self._connection.leader(position)
                if node is not None:
                    by_node.setdefault(node, {})[position] = batches[0]
            answers = await asyncio.gather(*(self._send(node, batches) for node, batches in by_node.items()))
            codes = {code for answer in answers if answer is not None for code in self._read_answer(answer, waiting)}
            self._raise_for(codes & _FINAL)
            if codes == {_CONCURRENT}:  # the markers of the transaction before are still on their way
                await asyncio.sleep(MARKER_WAITS_S[-1])
            elif codes or None in answers or not by_node:
                if codes:
                    self._trouble = _names(codes)
                log.warning("part of a transaction is not taken yet, trying again: %s", self._trouble)
                await self._connection.refresh()
                await asyncio.sleep(RETRY_S)

    async def _send(self, node: int, batches: dict[Position, _Batch]) -> LeanProduceAnswer | ProduceResponse_v12 | None:
        data = {position: batch.data or self._numbered(position, batch) for position, batch in batches.items()}
        kind = AddingProduceRequest if self._adds_itself else LeanProduceRequest
        request = kind(data.items(), self._request_timeout_ms, self._transactional_id)
        try:
            answer: LeanProduceAnswer | ProduceResponse_v12 = await self._connection.client.send(
                node, request, group=self._lane
            )
        except _TROUBLE as error:
            self._trouble = repr(error)
            return None
        return answer

    def _numbered(self, position: Position, batch: _Batch) -> bytes:
        sequence = self._sequences.get(position, 0)
        self._sequences[position] = (sequence + batch.count) % SEQUENCE_MODULO
        batch.builder.set_producer_state(self._producer_id, self._epoch, sequence)
        batch.data = bytes(batch.builder.build())
        batch.builder = None
        return batch.data

    def _read_answer(
        self, answer: LeanProduceAnswer | ProduceResponse_v12, waiting: dict[Position, deque[_Batch]]
    ) -> Iterator[int]:
        """Take what was written off the lines; yields the error codes of the others."""
        for kafka_topic, partition, code, base_offset in answer.partitions:
            position = (kafka_topic, partition)
            if code:
                yield code
                continue
            waiting[position].popleft().base_offset = base_offset
            if not waiting[position]:
                del waiting[position]

    async def _end(self) -> None:
        """Commit. Raises CommitUnknown, or ProducerFenced when the first answer says that it did not happen."""
        self._in_doubt = False
        try:
            async with asyncio.timeout(END_S):
                answer, codes = await self._ask_to_end(commit=True)
        except TimeoutError:
            self._drop_connections()
            raise CommitUnknown(f"the commit was not answered: {self._trouble}") from None
        if not codes:
            self._unsettled = False
            if self._adds_itself:
                self._begin_epoch(answer.producer_id, answer.producer_epoch)
            return
        if codes & _FENCED and not self._in_doubt:
            raise ProducerFenced(f"{self._transactional_id}: {_names(codes)}")
        # Kafka 4.3 says UNKNOWN_SERVER_ERROR to who commits while a rival's fencing is being written down.
        raise CommitUnknown(f"the commit was answered: {_names(codes)}")

    # What is left of a transaction that failed

    async def _settle(self) -> None:
        """Abort it, and leave its epoch behind. Raises ProducerFenced, TransactionAborted."""
        if not self._unsettled:
            return
        answer, codes = await self._ask_to_end(commit=False)
        self._raise_for(codes - {_INVALID_STATE})  # nothing is open: it never began, or someone has aborted it
        if not codes and self._adds_itself:
            self._begin_epoch(answer.producer_id, answer.producer_epoch)
            return
        request = NextEpochRequest(self._transactional_id, self._transaction_timeout_ms, self._producer_id, self._epoch)
        answer, codes = await self._ask(request, lambda answer: (answer.error_code,))
        self._raise_for(codes)
        self._begin_epoch(answer.producer_id, answer.producer_epoch)

    async def _settle_soon(self) -> None:
        """Now, if it can be done now: an open transaction holds up readers. Else the next commit does it."""
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._settle()
        except TimeoutError:
            self._drop_connections()
        except (ProducerFenced, TransactionAborted) as error:
            log.warning("a transaction is not aborted yet: %s", error)

    def _begin_epoch(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._sequences.clear()
        self._unsettled = False

    def _raise_for(self, codes: Collection[int]) -> None:
        """The error that these codes, if any, make of a transaction whose commit was not asked for."""
        if not codes:
            return
        codes = set(codes)
        if codes & _FENCED:
            raise ProducerFenced(f"{self._transactional_id}: {_names(codes)}")
        if codes & (ONE_RECORDS_FAULT | ALL_RECORDS_FAULT | {_NOT_AUTHORISED}):
            raise RecordRefused(_names(codes), divisible=not codes.isdisjoint(ONE_RECORDS_FAULT))
        raise TransactionAborted(_names(codes))

    # The coordinator

    async def _speaks_second_protocol(self) -> bool:
        """The cluster has agreed on it; asked at each start, for an upgrade may come in between."""
        client = self._connection.client
        try:
            async with asyncio.timeout(FEATURES_S):
                while True:
                    try:
                        answer = await client.send(client.get_random_node(), FeaturesRequest(), group=self._lane)
                    except _TROUBLE:
                        await asyncio.sleep(RETRY_S)
                        continue
                    return not answer.error_code and answer.level(FEATURE) >= LEVEL
        except (TimeoutError, NotImplementedError) as error:  # no answer, or a Kafka that does not know the request
            log.info("Kafka does not say which transactions it knows, so the first protocol is used: %r", error)
            return False

    async def _ask_to_end(self, *, commit: bool) -> tuple[Any, set[int]]:
        kind = EndAndGoOnRequest if self._adds_itself else EndTxnRequest
        request = kind(self._transactional_id, self._producer_id, self._epoch, commit)
        return await self._ask(request, lambda answer: (answer.error_code,))

    async def _ask(self, request: Any, codes_of: Callable[[Any], Iterable[int]]) -> tuple[Any, set[int]]:
        """The coordinator's answer with its error codes, once another try would not change it; the caller limits it."""
        tries = 0
        while True:
            try:
                if self._coordinator is None:
                    self._coordinator = await self._connection.client.coordinator_lookup(
                        CoordinationType.TRANSACTION, self._transactional_id
                    )
                answer = await self._connection.client.send(self._coordinator, request, group=self._lane)
            except _TROUBLE as error:
                self._trouble = repr(error)
                self._in_doubt = True
                self._coordinator = None
                await self._connection.refresh()
                await asyncio.sleep(RETRY_S)
                continue
            codes = {code for code in codes_of(answer) if code}
            if not codes & _AGAIN:
                return answer, codes
            self._trouble = _names(codes)
            if codes & _COORDINATOR_MOVED:
                self._in_doubt = True
                self._coordinator = None
            waits_for_markers = _CONCURRENT in codes
            await asyncio.sleep(MARKER_WAITS_S[min(tries, len(MARKER_WAITS_S) - 1)] if waits_for_markers else RETRY_S)
            tries += 1

    def _drop_connections(self) -> None:
        """They have not answered in time: what is asked next shall not stand behind that."""
        self._coordinator = None
        self._connection.close_lanes({self._lane})


async def _all_of(*steps: Coroutine[Any, Any, None]) -> None:
    """Until all are done; of several errors the one that says most about the producer is raised."""
    found = await asyncio.gather(*steps, return_exceptions=True)
    raised = [each for each in found if isinstance(each, BaseException)]
    for kind in (ProducerFenced, RecordRefused, MarksRefused, BaseException):
        for error in raised:
            if isinstance(error, kind):
                raise error


def _names(codes: Iterable[int]) -> str:
    return ", ".join(sorted(errors.for_code(code).__name__ for code in codes))
