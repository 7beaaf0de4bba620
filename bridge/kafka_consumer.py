"""Reads partitions from Kafka by its fetch protocol, on aiokafka's connections and compiled record reader.

Why not ``AIOKafkaConsumer``: its ``assign`` replaces all state and leaves the old long poll on the connection, so that
a new partition's first record waits up to ``fetch_max_wait_ms`` behind it; a corrupt record loses what was read with
it; and it makes a second object per record. Here the positions are a plain dict: a changed one makes a fetch of its own
on another connection while the long poll of the others goes on, and an answer counts only for partitions whose position
is still the one that was asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence, Set
from typing import Any

import aiokafka.errors as errors
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from bridge.kafka_batch import FetchedRecords
from bridge.kafka_connection import EARLIEST, LATEST, KafkaConnection
from bridge.kafka_protocol import LeanFetchAnswer, LeanFetchRequest, OffsetDeleteRequest
from bridge.log import LogError, LogTruncated, LogUnavailable, Position, Record

log = logging.getLogger(__name__)

FETCH_RECORDS_MAX = 500  # handed out at once: about 1 ms of the pump's work, in which the next fetch is under way
FETCH_WAIT_MS = 500  # the long poll; data ends it at once
FETCH_BYTES_MAX = 4 * 1024 * 1024  # of one answer, so of what is held in memory
PARTITION_BYTES_MAX = 1024 * 1024  # a larger batch comes alone, whole (KIP-74)
LANES_MAX = 4  # connections per Kafka broker: one for all partitions, the others while it is in a long poll
RETRY_S = 0.05
_OUT_OF_RANGE = 1
_GROUP_NOT_FOUND = 69
_NO_GENERATION = -1
_REFRESH_CODES = frozenset((3, 5, 6, 9, 74, 75, 76, 100, 103))  # unknown, moved or leaderless partitions, epochs, ids


class KafkaLogConsumer:
    """A reader with positions of its own; commits are only for Kafka's group tools."""

    def __init__(self, connection: KafkaConnection, group_id: str | None, *, read_committed: bool) -> None:
        self._connection = connection
        self._group_id = group_id
        self._isolation = 1 if read_committed else 0
        self._positions: dict[Position, int] = {}
        self._followed: dict[Position, int] = {}  # where the records that were handed out end: skipped ones may follow
        self._ends: dict[Position, int] = {}
        self._fetched: dict[Position, FetchedRecords] = {}
        self._asked: Counter[tuple[Position, int]] = Counter()  # partitions with their offset in requests under way
        self._lanes = [connection.new_lane() for _ in range(LANES_MAX)]
        self._fetches: dict[tuple[int, int], asyncio.Task[None]] = {}  # by (Kafka broker, lane)
        self._errors: deque[LogError] = deque()
        self._broken: set[Position] = set()  # truncated ones: nothing is read until they are assigned anew
        self._event = asyncio.Event()
        self._stopped = False
        self._counts = dict.fromkeys(("fetches", "records", "assignments", "fetch_errors", "discarded"), 0)

    def assign(self, positions: Mapping[Position, int]) -> None:
        self._counts["assignments"] += 1
        self._followed, followed = dict(positions), self._followed
        positions = {
            position: self._positions[position] if offset == followed.get(position) else offset
            for position, offset in positions.items()
        }
        for position in list(self._fetched):
            if positions.get(position) != self._positions[position]:
                del self._fetched[position]
        for position in self._ends.keys() - positions.keys():
            del self._ends[position]
        self._broken = {at for at in self._broken if positions.get(at) == self._positions[at]}
        self._positions = positions
        self._send_fetches()
        self._event.set()

    async def fetch(self, timeout_s: float) -> list[tuple[Position, Sequence[Record]]]:
        if self.is_stopped:
            raise LogUnavailable("the reader was stopped")
        loop = asyncio.get_running_loop()
        taken, moved = self._take()
        if moved or self._errors:
            return self._handed_out(taken)
        deadline_s = loop.time() + timeout_s
        timer = loop.call_later(timeout_s, self._event.set)
        try:
            while not self._stopped:
                self._event.clear()
                self._send_fetches()
                await self._event.wait()
                taken, moved = self._take()
                if moved or self._errors or loop.time() >= deadline_s:
                    return self._handed_out(taken)
        finally:
            timer.cancel()
        return []

    async def commit(self, positions: Mapping[Position, int]) -> None:
        assert self._group_id is not None, "a reader without a group commits nothing"
        by_topic: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for (kafka_topic, partition), offset in positions.items():
            by_topic[kafka_topic].append((partition, offset, ""))
        request = OffsetCommitRequest(self._group_id, _NO_GENERATION, "", -1, list(by_topic.items()))
        await self._connection.ask_coordinator(self._group_id, "commit", request, _partition_codes)

    async def committed(self) -> dict[Position, int]:
        assert self._group_id is not None, "a reader without a group has committed nothing"
        request = OffsetFetchRequest(self._group_id, None)
        answer = await self._connection.ask_coordinator(
            self._group_id, "committed offsets", request, lambda answer: [answer.error_code]
        )
        return {
            (kafka_topic, partition): offset
            for kafka_topic, partitions in answer.topics
            for partition, offset, _, code in partitions
            if not code and offset >= 0
        }

    async def forget(self, partitions: Set[Position]) -> None:
        assert self._group_id is not None, "a reader without a group forgets nothing"
        by_topic: dict[str, list[int]] = defaultdict(list)
        for kafka_topic, partition in partitions:
            by_topic[kafka_topic].append(partition)
        request = OffsetDeleteRequest(self._group_id, list(by_topic.items()))
        await self._connection.ask_coordinator(self._group_id, "deletion of offsets", request, _deletion_codes)

    def end_of(self, partition: Position) -> int | None:
        return self._ends.get(partition)

    def position_of(self, partition: Position) -> int | None:
        return self._positions.get(partition)

    def statistics(self) -> dict[str, Any]:
        return {**self._counts, "partitions": len(self._positions), "fetches_under_way": len(self._fetches)}

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._event.set()
        tasks = list(self._fetches.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._connection.close_lanes(set(self._lanes))

    # Handing out

    def _take(self) -> tuple[list[tuple[Position, Sequence[Record]]], bool]:
        """What has come, and whether a position has moved: transaction markers and aborted records come to nothing."""
        taken: list[tuple[Position, Sequence[Record]]] = []
        moved = False
        room = FETCH_RECORDS_MAX
        for position in list(self._fetched):
            fetched = self._fetched[position]
            records = fetched.take(room)
            moved = moved or fetched.next_offset != self._positions[position]
            self._positions[position] = fetched.next_offset
            if fetched.exhausted:
                del self._fetched[position]
            if records:
                self._followed[position] = records[-1].offset + 1
                taken.append((position, records))
                room -= len(records)
                if not room:
                    break
        self._counts["records"] += FETCH_RECORDS_MAX - room
        if moved:
            self._send_fetches()
        return taken, moved

    def _handed_out(self, taken: list[tuple[Position, Sequence[Record]]]) -> list[tuple[Position, Sequence[Record]]]:
        if not taken and self._errors:
            raise self._errors.popleft()
        return taken

    # Fetching

    def _send_fetches(self) -> None:
        """Ask for what is not being asked for, once everything that came has been handed out.

        The first lane's request holds all partitions of a Kafka broker; while it is under way, another lane asks for
        those alone that are new or were sought elsewhere.
        """
        if self._fetched or self._stopped:
            return
        by_node: dict[int, list[tuple[Position, int]]] = defaultdict(list)
        leaderless = False
        for position, offset in self._positions.items():
            if position in self._broken:
                continue
            node = self._connection.leader(position)
            if node is None:
                leaderless = True
            else:
                by_node[node].append((position, offset))
        for node, wanted in by_node.items():
            new = [entry for entry in wanted if entry not in self._asked]
            if not new:
                continue
            for lane in self._lanes:
                if (node, lane) not in self._fetches:
                    self._start_fetch(node, lane, wanted if lane == self._lanes[0] else new)
                    break
        if leaderless and (-1, 0) not in self._fetches:
            self._start_task((-1, 0), self._await_leaders())

    def _start_fetch(self, node: int, lane: int, wanted: list[tuple[Position, int]]) -> None:
        self._counts["fetches"] += 1
        self._asked.update(wanted)
        self._start_task((node, lane), self._fetch(node, lane, wanted))

    def _start_task(self, place: tuple[int, int], work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name="headwater-fetch")
        self._fetches[place] = task
        task.add_done_callback(lambda done: self._ended(place, done))

    def _ended(self, place: tuple[int, int], task: asyncio.Task[None]) -> None:
        del self._fetches[place]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._counts["fetch_errors"] += 1
            log.error("a fetch failed unexpectedly", exc_info=error)
        if self._fetched or self._errors:
            self._event.set()
        else:
            self._send_fetches()

    async def _await_leaders(self) -> None:
        await self._connection.refresh()
        await asyncio.sleep(RETRY_S)

    async def _fetch(self, node: int, lane: int, wanted: list[tuple[Position, int]]) -> None:
        request = LeanFetchRequest(
            wanted,
            wait_ms=FETCH_WAIT_MS,
            bytes_max=FETCH_BYTES_MAX,
            partition_bytes_max=PARTITION_BYTES_MAX,
            isolation=self._isolation,
        )
        try:
            answer = await self._connection.client.send(node, request, group=lane)
        except Exception as error:  # also what aiokafka raises on an answer it cannot decode
            self._counts["fetch_errors"] += 1
            log.warning("fetching from Kafka broker %s failed: %r", node, error)
            await asyncio.sleep(RETRY_S)
            return
        finally:
            self._asked.subtract(wanted)
            self._asked += Counter()  # drops the zeros
        troubled = self._read_answer(answer, dict(wanted))
        if troubled:
            try:
                await self._handle_codes(troubled)
            except LogError as error:
                log.warning("partitions are out of range, and where they begin is not known yet: %s", error)

    def _read_answer(self, answer: LeanFetchAnswer, asked: Mapping[Position, int]) -> dict[Position, int]:
        """Keep what the answer brought; returns the error codes of partitions that have one."""
        troubled: dict[Position, int] = {}
        for kafka_topic, partition, code, end, aborted, data in answer.partitions:
            position = (kafka_topic, partition)
            if self._positions.get(position) != asked[position] or position in self._fetched:
                self._counts["discarded"] += 1
            elif code:
                troubled[position] = code
            else:
                self._ends[position] = end
                if data:
                    self._fetched[position] = FetchedRecords(data, asked[position], aborted)
        return troubled

    async def _handle_codes(self, troubled: Mapping[Position, int]) -> None:
        out_of_range = {position for position, code in troubled.items() if code == _OUT_OF_RANGE}
        if out_of_range:
            asked = {position: self._positions[position] for position in out_of_range}
            starts = await self._connection.offsets(out_of_range, EARLIEST)
            ends = await self._connection.offsets(out_of_range, LATEST)
            for position, offset in asked.items():
                outside = not starts[position] <= offset <= ends[position]
                if outside and self._positions.get(position) == offset:
                    self._broken.add(position)
                    self._errors.append(
                        LogTruncated(position, offset, min(max(offset, starts[position]), ends[position]))
                    )
        codes = set(troubled.values()) - {_OUT_OF_RANGE}
        if codes:
            self._counts["fetch_errors"] += 1
            names = sorted(errors.for_code(code).__name__ for code in codes)
            log.warning("Kafka could not serve %d partitions: %s", len(troubled), ", ".join(names))
            if codes & _REFRESH_CODES:
                await self._connection.refresh()
            await asyncio.sleep(RETRY_S)


def _partition_codes(answer: Any) -> list[int]:
    return [code for _, partitions in answer.topics for _, code in partitions]


def _deletion_codes(answer: Any) -> list[int]:
    codes = [answer.error_code, *_partition_codes(answer)]
    return [code for code in codes if code != _GROUP_NOT_FOUND]  # nothing was stored: nothing to delete
