"""What an edge does over a resize of a Kafka topic's partitions: follows the layout's record in `headwater.control`.

What each step asks of the edge before it says that it has done it, in its heartbeat:

1. ``reading``: the deliverers and the shared subscriptions read the partitions of the next count, too.
2. ``frozen``: nothing of the Kafka topic is handed out any more; nothing new is written, and what was on its way is in
   the log. QoS 0 and 1 wait in the publisher, everything transactional in the session writer: milliseconds, and never
   longer than `FREEZE_MS`: then the edge reads `headwater.control` to its end and, if there is no switch, goes on as
   before. A switch that comes later still is void (`Layout.as_of`), so nobody writes by both counts.
3. ``settled`` with one generation more, the switch: what waits is written by the new count, what was written before is
   handed out before what was written after.

An edge that sees a switch without having been frozen for it was cut off or stood still. It may have written by the old
count meanwhile (readers read that, too, only the order is not kept), so its clients are closed and come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from bridge.control import Held
from bridge.log import LogError, Position
from bridge.partitioning import RouteTable
from bridge.publisher import Publisher
from bridge.session_store import SessionStore
from bridge.shared.shared_subscriptions import SharedSubscriptions
from bridge.twins import TwinCatchUp, TwinDeliverer
from schemas.layouts import FREEZE_MS, FROZEN, LAYOUT_KIND, Layout, offset_of
from schemas.routes import Q2_SUFFIX

log = logging.getLogger(__name__)

MARGIN_S = 2.0  # behind FREEZE_MS, for the clocks of two Kafka brokers: a switch that counts is in the log by then
RETRY_S = 0.5


class Pausable(Protocol):
    """Who writes messages in transactions."""

    async def pause(self) -> None:
        """Begin none until `go_on`; returns when what is under way is settled."""
        ...

    def go_on(self) -> None: ...


@dataclass(slots=True)
class _Followed:
    """One Kafka topic."""

    layout: Layout
    revision: int
    done: int = -1  # the last revision whose step is done
    is_frozen: bool = False
    is_holding: bool = False  # something was paused, whether all of it is or not
    task: asyncio.Task[None] | None = None
    thaw: asyncio.Task[None] | None = None


class ResizeFollower:
    """Belongs to one event loop.

    Args:
        control_caught_up: `Control.caught_up`.
        moved: called with the Kafka topic in the step in which its names go elsewhere: whoever keeps destinations
            forgets them.
        missed: called when a switch was missed: close all clients.
        announce: called when there is something new to say in the heartbeat (`told`).
        others: who else writes messages.
    """

    def __init__(
        self,
        routes: RouteTable,
        publisher: Publisher,
        sessions: SessionStore,
        deliverer: TwinDeliverer,
        catch_up: TwinCatchUp,
        shared: SharedSubscriptions,
        control_caught_up: Callable[[], Awaitable[None]],
        *,
        moved: Callable[[str], None],
        missed: Callable[[], None],
        announce: Callable[[], None],
        others: Callable[[], Iterable[Pausable]] = lambda: (),
    ) -> None:
        self._routes = routes
        self._publisher = publisher
        self._sessions = sessions
        self._deliverer = deliverer
        self._catch_up = catch_up
        self._shared = shared
        self._control_caught_up = control_caught_up
        self._moved = moved
        self._missed = missed
        self._announce = announce
        self._others = others
        self._followed: dict[str, _Followed] = {}
        self._foreign: dict[str, tuple[str, int, int]] = {}
        self.has_clients = False  # before, nothing can have been missed
        deliverer.plain.on_passed = lambda: catch_up.plain.keep_order()
        deliverer.exactly_once.on_passed = lambda: catch_up.exactly_once.keep_order()

    def told(self) -> tuple[tuple[str, int, int], ...]:
        """For the heartbeat: (Kafka topic, revision that is done, oldest generation that somebody here needs)."""
        told = (
            (kafka_topic, followed.done, self._oldest_needed(kafka_topic, followed.layout))
            for kafka_topic, followed in self._followed.items()
        )
        return tuple(sorted((*told, *self._foreign.values())))

    def take(self, key: str, held: Held | None) -> None:
        """What `Control` calls with each record that is in force."""
        kind, _, kafka_topic = key.partition("/")
        if kind != LAYOUT_KIND:
            return
        if kafka_topic not in self._routes.kafka_topics:
            self._take_foreign(kafka_topic, held)
            return
        before = self._followed.get(kafka_topic)
        if held is None:
            if before is not None:  # only when `headwater.control` was made anew
                log.error("the layout of %s is gone from Kafka; this edge goes on by the last one", kafka_topic)
            return
        assert isinstance(held.entry, Layout)
        layout = held.entry.as_of(held.at_ms)
        if before is None:
            before = _Followed(self._routes.layout(kafka_topic), -1)
        self._cancel(before)
        now = self._followed[kafka_topic] = _Followed(
            layout, held.revision, before.done, before.is_frozen, before.is_holding
        )
        self._routes.set_layout(kafka_topic, layout)
        log.info("%s: step %s, partitions %s", kafka_topic, layout.step, layout.counts)
        if layout.written.number != before.layout.written.number:
            self._switch(kafka_topic, now)
        elif layout.step != FROZEN and now.is_holding:
            self._let_go(kafka_topic, now)
        now.task = self._spawn(lambda: self._do(kafka_topic, now))

    def _take_foreign(self, kafka_topic: str, held: Held | None) -> None:
        """No route of this edge leads there: there is nothing to do."""
        if held is not None and isinstance(held.entry, Layout):
            self._foreign[kafka_topic] = (kafka_topic, held.revision, held.entry.written.number)
            self._announce()

    async def stop(self) -> None:
        """Follow no more, and hold nothing back."""
        for kafka_topic, followed in self._followed.items():
            tasks = [task for task in (followed.task, followed.thaw) if task is not None]
            self._cancel(followed)
            if tasks:
                await asyncio.wait(tasks)
            if followed.is_holding:
                self._let_go(kafka_topic, followed)

    # Steps

    async def _do(self, kafka_topic: str, followed: _Followed) -> None:
        """What the step asks for beside the switch itself."""
        if (known := self._deliverer.relayout()) is not None:
            await known
        await self._shared.relayout(kafka_topic)
        if followed.layout.step == FROZEN:
            await self._freeze(kafka_topic, followed)
        else:
            self._deliverer.confirm()
        followed.done = followed.revision
        self._announce()

    async def _freeze(self, kafka_topic: str, followed: _Followed) -> None:
        followed.is_holding = True
        followed.thaw = self._spawn(lambda: self._thaw_in_time(kafka_topic, followed))
        await self._deliverer.pause(kafka_topic)
        self._shared.pause(kafka_topic)
        pauses = (each.pause() for each in (self._sessions, *self._others()))
        await asyncio.gather(self._publisher.freeze(kafka_topic), *pauses)
        followed.is_frozen = True

    def _switch(self, kafka_topic: str, followed: _Followed) -> None:
        layout = followed.layout
        if self.has_clients and not followed.is_frozen:
            log.error("%s was resized while this edge was away: its clients are closed", kafka_topic)
            self._deliverer.relayout()
            self._deliverer.restart_fresh(lambda position: _begin(layout, position))
            self._missed()
        self._write_on(kafka_topic, followed)
        self._moved(kafka_topic)
        self._shared.go_on()
        self._deliverer.go_on(kafka_topic, layout.written.since)

    def _let_go(self, kafka_topic: str, followed: _Followed) -> None:
        """Go on as before."""
        self._write_on(kafka_topic, followed)
        self._shared.go_on()
        self._deliverer.go_on(kafka_topic, None)

    def _write_on(self, kafka_topic: str, followed: _Followed) -> None:
        followed.is_holding = followed.is_frozen = False
        self._publisher.thaw(kafka_topic, self._routes.place)
        if not any(other.is_holding for other in self._followed.values()):
            for each in (self._sessions, *self._others()):
                each.go_on()

    async def _thaw_in_time(self, kafka_topic: str, followed: _Followed) -> None:
        await asyncio.sleep(FREEZE_MS / 1000 + MARGIN_S)
        while True:
            try:
                await self._control_caught_up()  # a switch that counts ends this task
                break
            except LogError as error:
                log.warning("%s: whether it was resized is not known: %s", kafka_topic, error)
                await asyncio.sleep(RETRY_S)
        log.warning("%s: no switch has come: this edge goes on as before", kafka_topic)
        if followed.task is not None:
            followed.task.cancel()
        self._let_go(kafka_topic, followed)

    # Helpers

    def _oldest_needed(self, kafka_topic: str, layout: Layout) -> int:
        barriers = len(layout.in_force) - 1
        passed = min(
            self._catch_up.passed_barriers(kafka_topic), self._deliverer.passed_barriers(kafka_topic, barriers)
        )
        if self._shared.is_ordering():
            passed = 0
        return layout.in_force[passed].number

    def _cancel(self, followed: _Followed) -> None:
        for task in (followed.task, followed.thaw):
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._guarded(work), name="headwater-resize")
        return task

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:
            log.exception("a step of a resize failed; the operator is told that this edge has not done it")


def _begin(layout: Layout, position: Position) -> int:
    """Where the first record of the written generation can be."""
    kafka_topic, partition = position
    return offset_of(layout.written.begins[kafka_topic.endswith(Q2_SUFFIX)], partition)
