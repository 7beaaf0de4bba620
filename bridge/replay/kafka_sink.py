"""Writes into Kafka: under another prefix, for one client, into another cluster, or (with a rate) where it came from.

Each record keeps its key's meaning, payload and headers, and gets three (`schemas.replay_headers`). By these a run that
was interrupted finds what it had written behind its last checkpoint, and does not write it again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from bridge.log import Headers, Log, LogTruncated, LogUnavailable, PendingRecord, Position, Record, RecordRefused
from bridge.partitioning import Destination, RouteTable
from bridge.replay.selection import Item
from schemas.errors import ConfigurationError, TopicError
from schemas.records import HEADER_CONTENT_TYPE, HEADER_TOPIC
from schemas.replay_headers import (
    HEADER_REPLAY_RUN,
    HEADER_REPLAY_SOURCE,
    HEADER_REPLAY_TIMESTAMP,
    parse_source,
    source_text,
)
from schemas.routes import Q2_SUFFIX
from schemas.topics import check_topic_name

BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 512 * 1024  # a larger record comes alone: no other is refused with it
OPEN_BATCHES_MAX = 64  # at most 32 MiB wait for Kafka
FETCH_TIMEOUT_S = 2.0
NAMES_MAX = 100_000
END_LEVEL = "$end"  # the end marker's Topic Name is the prefix and this
_OURS = frozenset((HEADER_REPLAY_TIMESTAMP, HEADER_REPLAY_SOURCE, HEADER_REPLAY_RUN))


@dataclass(frozen=True, slots=True)
class Target:
    """Where records go: ``prefix`` is put before each Topic Name; without one they keep it.

    ``same_partitions``: the same Kafka topic and partition as in the source, for a copy into another cluster.
    """

    prefix: str | None = None
    same_partitions: bool = False


def prefix_target(prefix: str) -> Target:
    """Under this prefix. Raises ConfigurationError when it makes no Topic Name."""
    prefix = prefix.rstrip("/")
    try:
        check_topic_name(prefix)
    except TopicError as error:
        raise ConfigurationError(f"the prefix {prefix!r}: {error}") from None
    if prefix.startswith("$"):
        raise ConfigurationError(f"the prefix {prefix!r} starts with $, which is for the edges themselves")
    return Target(prefix)


class KafkaSink:
    """Appends to a log. ``run_id`` tells this run's records from all others.

    ``partitions`` are the source's, which the target must have, too, when it keeps them.
    """

    def __init__(
        self, log: Log, routes: RouteTable, target: Target, run_id: str, partitions: Iterable[Position] = ()
    ) -> None:
        self._log = log
        self._routes = routes
        self._target = target
        self._run_id = run_id
        self._places: dict[tuple[Position, bytes], tuple[Position, bytes | None, bytes]] = {}
        self._open: deque[tuple[asyncio.Future[int], Position, list[PendingRecord]]] = deque()
        self._written: set[tuple[str, int, int]] = set()  # sources that are there from before the interruption
        self._watched = self._destinations(partitions)
        self.refused = 0
        self.repeated = 0

    async def open(self, saved: dict[str, Any] | None) -> None:
        try:
            await self._log.end_offsets(self._watched)
        except LogUnavailable as error:
            raise LogUnavailable(
                f"{error} (`headwater topics check` says whether the Kafka topics are there)"
            ) from None
        if saved is not None:
            self._run_id = str(saved["run"])
            await self._find_written({_position(text): int(end) for text, end in saved["ends"].items()})

    async def write(self, items: Sequence[Item]) -> None:
        batches: dict[Position, list[PendingRecord]] = {}
        sizes: dict[Position, int] = {}
        for _, position, record, name in items:
            if self._written and (*position, record.offset) in self._written:
                self._written.discard((*position, record.offset))
                self.repeated += 1
                continue
            place = self._places.get((position, name)) or self._place(position, name)
            if place is None:
                self.refused += 1
                continue
            to, key, new_name = place
            size = len(record.value or b"") + 256
            if to in batches and (len(batches[to]) >= BATCH_RECORDS_MAX or sizes[to] + size > BATCH_BYTES_MAX):
                await self._submit(to, batches.pop(to))
            if to not in batches:
                batches[to], sizes[to] = [], 0
            sizes[to] += size
            headers = self._headers(position, record, new_name)
            batches[to].append((record.key if key is None else key, record.value, headers))
        for to, batch in batches.items():
            await self._submit(to, batch)

    async def checkpoint(self) -> dict[str, Any]:
        await self._settle(0)
        ends = await self._log.end_offsets(self._watched)
        return {"run": self._run_id, "ends": {f"{at[0]}/{at[1]}": end for at, end in ends.items()}}

    async def finish(self, end: dict[str, Any]) -> None:
        await self._settle(0)
        if self._target.prefix is not None:
            name = f"{self._target.prefix}/{END_LEVEL}"
            to = self._routes.destination(name)
            headers: Headers = [(HEADER_TOPIC, name.encode()), (HEADER_CONTENT_TYPE, b"application/json")]
            await self._log.submit(to.kafka_topic, to.partition, [(to.key, orjson.dumps({"end": end}), headers)])

    async def close(self) -> None:
        for future, _, _ in self._open:
            future.cancel()

    # Where to

    def _destinations(self, partitions: Iterable[Position]) -> frozenset[Position]:
        if self._target.same_partitions:
            return frozenset(partitions)
        below = f"{self._target.prefix}/#" if self._target.prefix is not None else None
        filters = [below] if below is not None else [route.topic_filter for route in self._routes.routes]
        found: set[Position] = set()
        for topic_filter in filters:
            found |= self._routes.partitions(topic_filter) | self._routes.twin_partitions(topic_filter)
        return frozenset(found)

    def _place(self, position: Position, name: bytes) -> tuple[Position, bytes | None, bytes] | None:
        """Partition, key (None: the record's own) and Topic Name; None when that would be no Topic Name."""
        if self._target.same_partitions:
            place: tuple[Position, bytes | None, bytes] = (position, None, name)
        else:
            text = name.decode()
            topic_name = text if self._target.prefix is None else f"{self._target.prefix}/{text}"
            try:
                check_topic_name(topic_name)
            except TopicError:
                return None
            to: Destination = self._routes.destination(topic_name)
            if position[0].endswith(Q2_SUFFIX):
                to = to.twin()
            place = (to.position, to.key, topic_name.encode())
        if len(self._places) >= NAMES_MAX:
            self._places.clear()
        self._places[position, name] = place
        return place

    def _headers(self, position: Position, record: Record, name: bytes) -> list[tuple[str, bytes | None]]:
        headers: list[tuple[str, bytes | None]] = [(HEADER_TOPIC, name)]
        headers += [each for each in record.headers if each[0] != HEADER_TOPIC and each[0] not in _OURS]
        headers.append((HEADER_REPLAY_TIMESTAMP, b"%d" % record.timestamp))
        headers.append((HEADER_REPLAY_SOURCE, source_text(*position, record.offset).encode()))
        headers.append((HEADER_REPLAY_RUN, self._run_id.encode()))
        return headers

    # Appending

    async def _submit(self, to: Position, records: list[PendingRecord]) -> None:
        self._open.append((self._log.submit(*to, records), to, records))
        await self._settle(OPEN_BATCHES_MAX)

    async def _settle(self, left: int) -> None:
        """Until so few batches are open. Raises LogError when nobody knows what became of one."""
        while len(self._open) > left:
            future, to, records = self._open.popleft()
            try:
                await future
            except RecordRefused as error:
                if error.divisible and len(records) > 1:
                    self._open.extend((self._log.submit(*to, [record]), to, [record]) for record in records)
                else:
                    self.refused += len(records)

    async def _find_written(self, since: dict[Position, int]) -> None:
        """What this run appended behind its last checkpoint. Raises LogUnavailable."""
        ends = await self._log.end_offsets(frozenset(since))
        left = {position: at for position, at in since.items() if at < ends[position]}
        run_id = self._run_id.encode()
        consumer = self._log.consumer(None)
        try:
            while left:
                consumer.assign(left)
                try:
                    fetched = await consumer.fetch(FETCH_TIMEOUT_S)
                except LogTruncated as error:
                    left[error.partition] = error.start
                    continue
                for _, records in fetched:
                    for record in records:
                        headers = dict(record.headers)
                        source = parse_source(headers.get(HEADER_REPLAY_SOURCE) or b"")
                        if source is not None and headers.get(HEADER_REPLAY_RUN) == run_id:
                            self._written.add(source)
                left = {at: consumer.position_of(at) or offset for at, offset in left.items()}
                left = {at: offset for at, offset in left.items() if offset < ends[at]}
        finally:
            await consumer.stop()


def _position(text: str) -> Position:
    kafka_topic, _, partition = text.rpartition("/")
    return kafka_topic, int(partition)
