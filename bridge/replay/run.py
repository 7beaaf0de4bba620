"""The loop of a replay: read, wait until due, write, remember."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from bridge.log import Position
from bridge.replay.digest import Digests
from bridge.replay.pacing import Pacer
from bridge.replay.selection import Item
from bridge.replay.sink import Sink
from bridge.replay.state import ReplayState
from schemas.replay_range import position_token

CHECKPOINT_S = 2.0  # so much is written again at most, and then cut off or found to be there already
PROGRESS_S = 0.2


class Reader(Protocol):
    """What the loop needs of a `ReplayReader`."""

    def batches(self) -> AsyncGenerator[list[Item], None]: ...

    def positions(self) -> dict[Position, int]: ...


@dataclass(slots=True)
class Progress:
    """How far it is. ``done`` and ``total`` are offsets, so they include what the filter does not match."""

    records: int = 0
    bytes: int = 0
    done: int = 0
    total: int = 0
    time_ms: int = 0


@dataclass(slots=True)
class ReplayRun:
    """One replay. ``state_path`` None: nothing is remembered. ``records_max``: enough after so many."""

    reader: Reader
    pacer: Pacer
    sink: Sink
    digests: Digests
    state: ReplayState
    state_path: Path | None = None
    records_max: int | None = None
    on_progress: Callable[[Progress], None] = lambda _: None
    remarks: Callable[[], dict[str, Any]] = dict
    progress: Progress = field(default_factory=Progress)
    first_ms: int | None = None
    _whole: dict[Position, tuple[int, int]] = field(default_factory=dict)
    _positions: dict[Position, int] = field(default_factory=dict)
    _saved_at_s: float = 0.0
    _told_at_s: float = 0.0
    _is_clean: bool = True  # what was written and what is remembered agree

    async def run(self) -> dict[str, Any]:
        """Go through all of it; what the end marker says.

        Interrupted (cancelled, or by an error of the log or the sink) it has saved where ``--resume`` goes on.
        """
        whole = self._whole = self.state.whole()
        self.progress.total = sum(end - first for first, end in whole.values())
        self.progress.records, self.progress.bytes = self.state.records, self.state.bytes
        self.first_ms = self.state.first_ms
        self._positions = {**{at: end for at, (_, end) in whole.items()}, **self.reader.positions()}
        await self._save()
        try:
            await self._replay()
        except asyncio.CancelledError:
            if self._is_clean:
                await self._save()
            raise
        await self.sink.checkpoint()  # what became of the last records is known then
        end = self._end()
        await self.sink.finish(end)
        self.state.is_done = True
        await self._save(finished=True)
        return end

    async def _replay(self) -> None:
        async with aclosing(self.reader.batches()) as batches:
            async for batch in batches:
                room = None if self.records_max is None else self.records_max - self.progress.records
                await self._play(batch[:room])
                if room is None or len(batch) <= room:
                    self._positions.update(self.reader.positions())
                await self._look_around()
                if room is not None and len(batch) >= room:
                    return
        self._positions.update(self.reader.positions())

    async def _play(self, left: Sequence[Item]) -> None:
        """Write each when it is due."""
        while left:
            count, wait_s = self.pacer.due(left, asyncio.get_running_loop().time())
            if count:
                await self._write(left[:count])
                left = left[count:]
            if left and wait_s:
                await self._look_around()
                await asyncio.sleep(wait_s)

    async def _write(self, items: Sequence[Item]) -> None:
        self._is_clean = False
        await self.sink.write(items)
        self.digests.add(items)
        for _, position, record, _ in items:
            self._positions[position] = record.offset + 1
        if self.first_ms is None:
            self.first_ms = items[0][0]
        self.progress.records += len(items)
        self.progress.bytes += sum(len(item[2].value or b"") for item in items)
        self.progress.time_ms = items[-1][0]
        self._is_clean = True

    async def _look_around(self) -> None:
        """Between two portions: tell, remember, let others have a turn."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_at_s >= PROGRESS_S:
            self._told_at_s = now_s
            self._tell()
        if self.state_path is not None and now_s - self._saved_at_s >= CHECKPOINT_S:
            await self._save()
        await asyncio.sleep(0)

    def _tell(self) -> None:
        self.progress.done = sum(self._positions[at] - first for at, (first, _) in self._whole.items())
        self.on_progress(self.progress)

    async def _save(self, *, finished: bool = False) -> None:
        if self.state_path is None:
            return
        positions = dict(self._positions)
        saved = self.state.sink if finished else await self.sink.checkpoint()
        self._saved_at_s = asyncio.get_running_loop().time()
        if saved is None:
            return
        self.state.sink = saved
        self.state.positions = position_token(positions)
        self.state.records, self.state.bytes = self.progress.records, self.progress.bytes
        self.state.first_ms, self.state.partitions = self.first_ms, self.digests.told()
        self.state.save(self.state_path)

    def _end(self) -> dict[str, Any]:
        self._tell()
        return {
            "records": self.progress.records,
            "bytes": self.progress.bytes,
            "from": time_text(self.first_ms),
            "to": time_text(self.progress.time_ms if self.progress.time_ms else None),
            "token": position_token(self._positions, self.progress.time_ms),
            **self.remarks(),
            "partitions": self.digests.told(),
        }


def time_text(time_ms: int | None) -> str | None:
    """A time as people read it, in UTC; None stays None."""
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
