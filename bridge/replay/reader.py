"""Reads many partitions at once, a bounded part of each, and gives out their records merged by time.

Two readers of the log share the work: the QoS 2 twins are read committed. A partition that is far ahead of the others
is not read on until they have come up; the one that is furthest behind always is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

from bridge.log import Log, LogTruncated, Position, Record
from bridge.replay.merging import Lane, horizon_ms, take_all, take_merged
from bridge.replay.selection import Item, Selection
from schemas.routes import Q2_SUFFIX

FETCH_TIMEOUT_S = 1.0
BUFFER_RECORDS_MAX = 200_000  # of all partitions, about 200 MB with payloads of some hundred bytes
LANE_RECORDS_MIN = 1_000  # a partition's part, however many there are: two of Kafka's portions
LANE_RECORDS_MAX = 20_000
LANE_BYTES_MAX = 8 * 1024 * 1024  # of payloads, for those with large ones


class ReplayReader:
    """Belongs to one event loop; ``batches`` is gone through once, then ``stop``.

    Args:
        bounds: per partition the first offset and the one after the last (None: go on live).
    """

    def __init__(self, source: Log, bounds: Mapping[Position, tuple[int, int | None]], selection: Selection) -> None:
        self.lanes = [Lane(position, first, end) for position, (first, end) in sorted(bounds.items())]
        self._is_live = any(lane.end is None for lane in self.lanes)
        self._starts = {lane.position: lane.at for lane in self.lanes}
        room = min(LANE_RECORDS_MAX, max(LANE_RECORDS_MIN, BUFFER_RECORDS_MAX // max(1, len(self.lanes))))
        self._halves: list[_Half] = []
        for twins in (False, True):
            lanes = [lane for lane in self.lanes if lane.position[0].endswith(Q2_SUFFIX) == twins]
            if lanes:
                self._halves.append(_Half(source, lanes, selection, room, read_committed=twins))
        self.records_read = 0

    async def batches(self) -> AsyncGenerator[list[Item], None]:
        """The records of all partitions, in the order of time and of each partition.

        A live reader gives out what comes as it comes. Raises LogUnavailable.
        """
        take: Callable[[Iterable[Lane]], list[Item]] = take_all if self._is_live else take_merged
        while any(not lane.is_done for lane in self.lanes):
            behind_ms = horizon_ms(self.lanes)
            waiting = [half.fetching(behind_ms) for half in self._halves if half.is_open]
            done, _ = await asyncio.wait([task for task in waiting if task], return_when=asyncio.FIRST_COMPLETED)
            for half in self._halves:
                if half.task in done:
                    self.records_read += half.take()
            if batch := take(self.lanes):
                yield batch
        if rest := take_merged(self.lanes):
            yield rest

    def positions(self) -> dict[Position, int]:
        """The next offset of each partition behind what has been given out."""
        return {lane.position: lane.emitted_to for lane in self.lanes}

    def lost(self) -> int:
        """Records that retention deleted before they could be read."""
        return sum(lane.lost for lane in self.lanes)

    async def stop(self) -> None:
        await asyncio.gather(*(half.stop() for half in self._halves))


class _Half:
    """The partitions that are read in one way."""

    def __init__(
        self, source: Log, lanes: Sequence[Lane], selection: Selection, room: int, *, read_committed: bool
    ) -> None:
        self._lanes = {lane.position: lane for lane in lanes}
        self._selection = selection
        self._room = room
        self._consumer = source.consumer(None, read_committed=read_committed)
        self._may_wait = read_committed or any(lane.end is None for lane in lanes)
        self._assigned: dict[Position, int] | None = None
        self._is_stuck = False  # nothing came in time, and the ends have been asked for anew
        self._mean_bytes: dict[Position, float] = {}  # of a payload, in the last portion
        self.task: asyncio.Task[list[tuple[Position, Sequence[Record]]]] | None = None

    @property
    def is_open(self) -> bool:
        return any(not lane.is_done for lane in self._lanes.values())

    def fetching(self, behind_ms: int | None) -> asyncio.Task[list[tuple[Position, Sequence[Record]]]] | None:
        """The fetch under way; None when every partition of this half is far enough ahead."""
        if self.task is not None and self.task.done():
            return self.task  # what it has brought is not in the lanes yet: their positions are old
        wanted = sorted(
            (lane for lane in self._lanes.values() if self._is_wanted(lane, behind_ms)), key=lambda lane: lane.time_ms
        )
        if self._assigned is None or self._assigned.keys() != {lane.position for lane in wanted}:
            self._assigned = {lane.position: lane.at for lane in wanted}  # those behind come first
            self._consumer.assign(self._assigned)
        if self.task is None and wanted:
            self.task = asyncio.get_running_loop().create_task(
                self._consumer.fetch(FETCH_TIMEOUT_S), name="headwater-replay-fetch"
            )
        return self.task

    def take(self) -> int:
        """What the fetch has brought; how many records that were."""
        task, self.task = self.task, None
        assert task is not None
        count = 0
        try:
            fetched = task.result()
        except LogTruncated as error:
            lane = self._lanes[error.partition]
            begins = error.start if lane.end is None else min(error.start, lane.end)
            lane.lost += max(0, begins - lane.at)
            lane.at = begins
            self._assigned = None
            return 0
        for position, records in fetched:
            count += self._take_records(self._lanes[position], records)
        has_moved = bool(fetched)
        for position in self._assigned or ():
            lane, at = self._lanes[position], self._consumer.position_of(position)
            if at is not None and at > lane.at:
                lane.at = at if lane.end is None else min(at, lane.end)
                has_moved = True
        if has_moved or self._may_wait:  # for a transaction to end, or for what is published next
            self._is_stuck = False
        else:
            self._skip_gap()
        return count

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await self._consumer.stop()

    def _take_records(self, lane: Lane, records: Sequence[Record]) -> int:
        if lane.is_done or not records:
            return 0
        if lane.end is not None and records[-1].offset >= lane.end:
            records = [record for record in records if record.offset < lane.end]
            lane.at = lane.end
        if records:
            items, lane.time_ms = self._selection.take(lane.position, records, lane.time_ms)
            lane.items += items
            if items:
                self._mean_bytes[lane.position] = sum(len(item[2].value or b"") for item in items) / len(items)
            lane.at = max(lane.at, records[-1].offset + 1)
        return len(records)

    def _skip_gap(self) -> None:
        """Compaction may leave nothing between our position and the end. Asked anew, Kafka tells the end without a
        record: then there is none."""
        for position in self._assigned or () if self._is_stuck else ():
            lane = self._lanes[position]
            if lane.end is not None and (self._consumer.end_of(position) or 0) >= lane.end:
                lane.at = lane.end
        self._is_stuck = not self._is_stuck
        self._consumer.assign({})  # forgets the ends that it knows
        self._assigned = None

    def _is_wanted(self, lane: Lane, behind_ms: int | None) -> bool:
        if lane.is_done:
            return False
        if behind_ms is None or lane.time_ms <= behind_ms:
            return True
        waiting = len(lane.items)
        return waiting < self._room and waiting * self._mean_bytes.get(lane.position, 0.0) < LANE_BYTES_MAX
