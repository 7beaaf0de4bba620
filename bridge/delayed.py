"""Delayed publish: messages wait in `headwater.delayed`, and are published once when they are due.

1. An edge appends the message with its delay, and answers its client when that is acknowledged; with QoS 2 in the
   transaction that stores the packet identifier, too.
2. Every edge follows the Kafka topic. Of each partition one live edge, the same for all who see the same nodes
   (rendezvous hashing), publishes what is due.
3. Publication and tombstone are one transaction, by a producer whose transactional id belongs to the partition. An edge
   whose turn begins takes the id, which fences the edge before it, then reads the partition to its end: so it knows of
   every tombstone that there is, and of none that comes later from somebody else.

A delayed message of any QoS goes to the `.q2` twin of its route, which is read committed: what an edge has written into
a transaction that did not come to its end is never delivered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.delayed_view import DelayedView, Waiting
from bridge.log import (
    Log,
    LogError,
    PendingRecord,
    Position,
    Record,
    RecordRefused,
    TransactionAborted,
    TransactionalProducer,
)
from bridge.murmur2 import partition_for_key
from bridge.partitioning import Destination, RouteTable
from bridge.publisher import FUTURE_SINK
from bridge.session_keeper import chosen
from bridge.topic_tail import LOAD_TIMEOUT_S, TopicTail
from schemas.catalogue import DELAYED, catalogue
from schemas.delayed import decode_delayed
from schemas.errors import RecordError
from schemas.records import HEADER_DEAD_LETTER_REASON, HEADER_DEAD_LETTER_SOURCE, HEADER_RETAIN, HEADER_TOPIC
from schemas.routes import DEAD_LETTER

if TYPE_CHECKING:
    from bridge.retained import RetainedMessages

log = logging.getLogger(__name__)

PARTITIONS = next(spec.partitions for spec in catalogue() if spec.name == DELAYED)
INTERVAL_S = 0.25  # how late a message is at most, on a node with nothing else to do
BATCH_MESSAGES_MAX = 500  # of one transaction
BATCH_BYTES_MAX = 1024 * 1024
RETRY_S = 1.0  # after a failure: the cluster's view of its nodes may need a moment
REASON_BYTES_MAX = 512


@dataclass(frozen=True, slots=True)
class KeptDestination(Destination):
    """Where a message waits: with QoS 2, too."""

    def twin(self) -> Destination:
        """The same."""
        return self


class DelayedMessages:
    """This edge's part. ``live`` names the live nodes, this one among them; `run` is a task of the node."""

    def __init__(
        self,
        source: Log,
        routes: RouteTable,
        retained: RetainedMessages | None,
        node_id: str,
        incarnation: str,
        live: Callable[[], Iterable[str]],
        *,
        messages_max: int,
        bytes_max: int,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.view = DelayedView(PARTITIONS)
        self._log = source
        self._routes = routes
        self._retained = retained
        self._node_id = node_id
        self._prefix = f"{node_id}/{incarnation}/".encode()
        self._last_number = 0
        self._live = live
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._clock_ms = clock_ms
        self._tail = TopicTail(
            source, DELAYED, PARTITIONS, self._take, on_truncated=self.view.clear, read_committed=True
        )
        self._may_publish = asyncio.Event()  # cleared while `pause`d
        self._may_publish.set()
        self._settled = asyncio.Event()  # set while no transaction is under way
        self._settled.set()
        self._producers: dict[int, TransactionalProducer] = {}
        self._ready: set[int] = set()  # partitions whose transactional id is ours, and whose tombstones we know
        self._counts = dict.fromkeys(("accepted", "no_room", "published", "refused", "unreadable", "failures"), 0)

    async def start(self, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Read the whole Kafka topic, then follow it.

        Raises:
            LogUnavailable: it could not be read to its end in time.
        """
        await self._tail.start(timeout_s)

    async def stop(self) -> None:
        """Publish nothing more; call it when `run` was cancelled."""
        await self._tail.stop()
        for producer in self._producers.values():
            await producer.stop()

    def place(self, topic_name: str, size_bytes: int) -> Destination | None:
        """Where one more message to this Topic Name is to be kept; None: there is no room for it."""
        view = self.view
        if view.messages >= self._messages_max or view.size_bytes + size_bytes > self._bytes_max:
            self._counts["no_room"] += 1
            return None
        self._counts["accepted"] += 1
        self._last_number += 1
        partition = partition_for_key(topic_name.encode(), PARTITIONS)
        return KeptDestination(DELAYED, partition, self._prefix + b"%d" % self._last_number)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics."""
        return {**self._counts, "messages": self.view.messages, "bytes": self.view.size_bytes}

    # Following

    def _take(self, partition: int, record: Record) -> None:
        key = record.key or b""
        if record.value is None:
            self.view.remove(partition, key)
            return
        try:
            delay_s, headers = decode_delayed(record.headers)
        except RecordError as error:
            self._counts["unreadable"] += 1
            log.warning("%s[%d]@%d is skipped: %s", DELAYED, partition, record.offset, error)
            return
        due_ms = record.timestamp + delay_s * 1000
        self.view.add(partition, Waiting(key, due_ms, record.offset, record.value, headers))

    # Publishing

    async def run(self) -> None:
        """Publish what is due, for ever."""
        while True:
            await asyncio.sleep(self._wait_s())
            try:
                await self.publish_due()
            except LogError as error:
                self._counts["failures"] += 1
                log.warning("delayed messages are not published yet: %s", error)
                await asyncio.sleep(RETRY_S)
            except Exception:
                self._counts["failures"] += 1
                log.exception("delayed messages: going on after an unexpected error")
                await asyncio.sleep(RETRY_S)

    def _wait_s(self) -> float:
        now_ms = self._clock_ms()
        due = [at for partition in range(PARTITIONS) if (at := self.view.next_due_ms(partition)) is not None]
        return max(0.01, min(INTERVAL_S, (min(due) - now_ms) / 1000)) if due else INTERVAL_S

    async def publish_due(self) -> None:
        """What is due now and ours to publish. Raises LogError: the rest is for the next time."""
        nodes = sorted(self._live())
        for partition in range(PARTITIONS):
            if chosen(f"{DELAYED}/{partition}", nodes) != self._node_id:
                self._ready.discard(partition)
                continue
            while self._due(partition):
                await self._may_publish.wait()
                self._settled.clear()
                try:
                    await self._publish_some(partition)
                finally:
                    self._settled.set()

    async def _publish_some(self, partition: int) -> None:
        due = self._due(partition)
        if partition not in self._ready:
            await self._take_over(partition)
        elif len(due) == 1:
            await self._publish_one(partition, due[0])
        elif due:
            await self._publish(partition, due)

    async def pause(self) -> None:
        """Publish nothing until `go_on`; returns when what is under way is settled."""
        self._may_publish.clear()
        await self._settled.wait()

    def go_on(self) -> None:
        """Undo `pause`."""
        self._may_publish.set()

    def _due(self, partition: int) -> list[Waiting]:
        """What goes into one transaction."""
        due = self.view.due(partition, self._clock_ms(), BATCH_MESSAGES_MAX)
        size_bytes = 0
        for number, each in enumerate(due):
            size_bytes += each.size_bytes
            if number and size_bytes > BATCH_BYTES_MAX:
                return due[:number]
        return due

    async def _take_over(self, partition: int) -> None:
        producer = self._producers.get(partition)
        if producer is None:
            producer = self._producers[partition] = self._log.transactional_producer(f"{DELAYED}.{partition}")
        await producer.start()
        await self._tail.caught_up((partition,))
        self._ready.add(partition)

    async def _publish(self, partition: int, due: Sequence[Waiting]) -> None:
        """All of them or none; of one that Kafka does not take, one by one."""
        try:
            await self._commit(partition, due, [self._message(each) for each in due])
        except RecordRefused:
            for each in due:
                await self._publish_one(partition, each)

    async def _publish_one(self, partition: int, waiting: Waiting) -> None:
        try:
            await self._commit(partition, [waiting], [self._message(waiting)])
        except RecordRefused as error:
            self._counts["refused"] += 1
            log.error("a delayed message to %r is refused by Kafka: %s", waiting.headers[0][1], error.reason)
            await self._put_aside(partition, waiting, error.reason)

    async def _put_aside(self, partition: int, waiting: Waiting, reason: str) -> None:
        """To the dead letters, without its payload where that is what Kafka does not take; it must not stay in front of
        others."""
        for value in (waiting.value, b""):
            try:
                await self._commit(partition, [waiting], [_dead_letter(partition, waiting, value, reason)])
                return
            except RecordRefused as error:
                log.error("nor do the dead letters take it: %s", error.reason)
        await self._commit(partition, [waiting], [])

    def _message(self, waiting: Waiting) -> tuple[Position, PendingRecord]:
        destination = self._destination(waiting)
        return destination.position, (destination.key, waiting.value, waiting.headers)

    def _destination(self, waiting: Waiting) -> Destination:
        return self._routes.destination(waiting.headers[0][1].decode()).twin()

    async def _commit(
        self, partition: int, due: Sequence[Waiting], messages: list[tuple[Position, PendingRecord]]
    ) -> None:
        tombstones = [((DELAYED, partition), (each.key, None, ())) for each in due]
        self._ready.discard(partition)  # unless the outcome is definite
        try:
            offsets = await self._producers[partition].commit([*messages, *tombstones])
        except (RecordRefused, TransactionAborted):
            self._ready.add(partition)
            raise
        self._ready.add(partition)
        for each in due:
            self.view.remove(partition, each.key)
        self._counts["published"] += len(due)
        retained = [
            self._retain(each, position, offset)
            for each, (position, _), offset in zip(due, messages, offsets, strict=False)
            if position[0] != DEAD_LETTER and (HEADER_RETAIN, b"1") in each.headers
        ]
        await asyncio.gather(*retained)

    async def _retain(self, waiting: Waiting, position: Position, offset: int) -> None:
        """The message is published whatever becomes of this: it is not repeated."""
        name, retained = waiting.headers[0][1], self._retained
        if retained is None or not retained.has_room_for(name, waiting.value):
            log.error("a delayed message to %r is published, but not retained: no room", name)
            return
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        retained.retain(Destination(*position, name), offset, waiting.value, waiting.headers, FUTURE_SINK, done)
        try:
            await done
        except LogError as error:
            log.error("a delayed message to %r is published, but perhaps not retained: %s", name, error)


def _dead_letter(partition: int, waiting: Waiting, value: bytes, reason: str) -> tuple[Position, PendingRecord]:
    headers = [
        (HEADER_TOPIC, waiting.headers[0][1]),
        (HEADER_DEAD_LETTER_REASON, reason.encode(errors="backslashreplace")[:REASON_BYTES_MAX]),
        (HEADER_DEAD_LETTER_SOURCE, f"{DELAYED}/{partition}/{waiting.offset}".encode()),
    ]
    return (DEAD_LETTER, 0), (waiting.key, value, headers)
