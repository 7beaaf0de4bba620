"""The replay subscriptions of one node: where each begins, one reader for all, and the timer of those with a rate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from bridge.history.feed import ReplayFeed, ReplayMember
from bridge.log import Log, Position
from bridge.partitioning import RouteTable
from bridge.shared.reader import DeadLetter, SharedReader
from schemas.replay_filter import ReplayFilter, parse_replay
from schemas.replay_range import (
    BEGINNING,
    PointKind,
    ReplayPoint,
    ReplayRange,
    ReplayRangeError,
    parse_from_to,
    parse_point,
)
from schemas.sessions import ReplayPlace

Places = Mapping[Position, ReplayPlace]

AHEAD_MAX_MS = 5_000  # a `to` that is so little later than now is taken for now: clocks differ


class ReplayFeeds:
    """Opens and feeds replays. ``per_s``: messages of history per second and replay, 0: no limit."""

    def __init__(
        self,
        source: Log,
        routes: RouteTable,
        *,
        per_s: float,
        after_batch: Callable[[], None],
        dead_letter: DeadLetter,
        clock_ms: Callable[[], int],
    ) -> None:
        self._log = source
        self._routes = routes
        self._per_s = per_s
        self._after_batch = after_batch
        self._clock_ms = clock_ms
        self._reader = SharedReader(source, routes, after_batch, dead_letter, clock_ms=clock_ms)
        self._timers: dict[ReplayFeed, asyncio.TimerHandle | None] = {}
        self._counts = dict.fromkeys(("opened", "handed"), 0)

    async def stop(self) -> None:
        for feed in list(self._timers):
            self.close(feed)
        await self._reader.stop()

    async def open(
        self, member: ReplayMember, replay_filter: str, places: Places | None, *, with_positions: bool
    ) -> ReplayFeed:
        """Begin a replay, or go on with one from its ``places``, to where it was to end when it began; `start` it when
        SUBACK has been sent.

        The filter must have passed ``check_topic_filter``.

        Raises:
            ReplayRangeError: from and to cannot be read, or contradict each other.
            LogUnavailable: Kafka has not said where to begin.
        """
        parsed = parse_replay(replay_filter)
        assert parsed is not None
        known: Places = {}
        until: Mapping[Position, int] = {}
        while (partitions := self._partitions(parsed, places)) != known.keys():  # a resize meanwhile: once more
            known, until = await self._begin(parsed, places, partitions)
        self._counts["opened"] += 1
        return ReplayFeed(
            replay_filter,
            member,
            known,
            until,
            is_bounded=parsed.text_to is not None,
            per_s=self._per_s,
            with_positions=with_positions,
            on_hungry=self._reader.changed,
            on_fed=self.wake,
            clock_ms=self._clock_ms,
        )

    def start(self, feed: ReplayFeed) -> None:
        """Feed it from now on."""
        parsed = parse_replay(feed.replay_filter)
        assert parsed is not None
        self._timers[feed] = None
        self._reader.add(feed, parsed.topic_filter)
        self._reader.changed()
        self.wake(feed)

    def wake(self, feed: ReplayFeed) -> None:
        """There is something for the member, or it has room again."""
        if feed not in self._timers:
            return
        loop = asyncio.get_running_loop()
        at = feed.hand_out(loop.time())
        if at is not None and feed in self._timers and self._timers[feed] is None:
            self._timers[feed] = loop.call_at(at, self._due, feed)

    def close(self, feed: ReplayFeed) -> None:
        """The subscription is over. Idempotent."""
        feed.close()
        if feed not in self._timers:
            return
        timer = self._timers.pop(feed)
        if timer is not None:
            timer.cancel()
        self._counts["handed"] += feed.handed
        self._reader.remove(feed)

    def statistics(self) -> dict[str, Any]:
        """Figures for /metrics; `replays` has those of each."""
        return {
            "opened": self._counts["opened"],
            "handed": self._counts["handed"] + sum(feed.handed for feed in self._timers),
            "open": len(self._timers),
            "reader": self._reader.statistics(),
        }

    def _due(self, feed: ReplayFeed) -> None:
        self._timers[feed] = None
        self.wake(feed)
        self._after_batch()

    def _partitions(self, parsed: ReplayFilter, places: Places | None) -> frozenset[Position]:
        """Those that it reads. One with a ``to`` that goes on: nothing of its range is in what was added since."""
        partitions = self._routes.kept_partitions(parsed.topic_filter)
        return partitions & places.keys() if places is not None and parsed.text_to is not None else partitions

    async def _begin(
        self, parsed: ReplayFilter, places: Places | None, partitions: frozenset[Position]
    ) -> tuple[Places, Mapping[Position, int]]:
        """Where to begin in each partition, and where its history ends."""
        span = self._span(parsed, is_new=places is None)
        ends = await self._log.end_offsets(partitions)
        known = {position: place for position, place in (places or {}).items() if position in partitions}
        if fresh := partitions - known.keys():
            starts = await self._offsets(span.start, fresh, ends)
            known |= {position: ReplayPlace(start) for position, start in starts.items()}
        if span.end is None:
            return known, ends
        fixed = {position: place.until for position, place in known.items() if place.until is not None}
        return known, await self._offsets(span.end, partitions - fixed.keys(), ends) | fixed

    def _span(self, parsed: ReplayFilter, *, is_new: bool) -> ReplayRange:
        now_ms = self._clock_ms()
        if not is_new:  # by now -1h may lie behind a `to` that was a time; new partitions are read whole
            end = parse_point(parsed.text_to, now_ms, "to") if parsed.text_to is not None else None
            return ReplayRange(BEGINNING, end)
        span = parse_from_to(parsed.text_from, parsed.text_to, now_ms)
        if span.end is not None and span.end.kind is PointKind.TIME and span.end.time_ms > now_ms + AHEAD_MAX_MS:
            raise ReplayRangeError("to lies in the future: leave it away to go on live")
        return span

    async def _offsets(
        self, point: ReplayPoint, partitions: frozenset[Position], ends: Mapping[Position, int]
    ) -> dict[Position, int]:
        """Where a point is in each of the partitions."""
        if point.kind is PointKind.END:
            return {position: ends[position] for position in partitions}
        if point.kind is PointKind.BEGINNING:
            return await self._log.start_offsets(partitions)
        named = {position: point.positions[position] for position in partitions & point.positions.keys()}
        by_time = partitions - named.keys()
        found = await self._log.offsets_for_times(dict.fromkeys(by_time, point.time_ms)) if by_time else {}
        return named | found
