"""Changes the partition count of a Kafka topic and its QoS 2 twin under load: the operator's side of a resize.

A small state machine whose state is the layout's record in `headwater.control`, so that it can be run again after any
interruption and goes on where it stood (`schemas.layouts` has the record, `bridge.resize_follower` what edges do):

1. *create*: partitions that Kafka does not have yet.
2. *read*: every edge reads the partitions of the next count, too, and says so. What is written by the old count is read
   as before.
3. *freeze*: every edge holds back what is published, for a moment; when all have said that nothing is on its way any
   more, the ends of all partitions are what parts old from new. An edge that does not say so in time makes the freeze
   be taken back and tried again; when it falls silent it is left out (it closes its clients when it comes back).
4. *switch*: the new count is written, with these ends. The record is void when it lands later than `FREEZE_MS` behind
   the freeze, so nobody has to be asked whether the edges still wait.
5. *drain*: edges hand out what is before the ends first; sessions that are offline read it when they resume.
6. *drop*: the old partitions are no longer read. Only when nobody needs them: no stored session, no shared
   subscription, nobody who is connected; or when Kafka's retention has deleted what was in them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from bridge.control import Control, Held
from bridge.log import Log, Position, Record
from bridge.membership import NodeView
from bridge.partitioning import RouteTable
from bridge.resize_needs import Needs
from bridge.topic_tail import TopicTail
from schemas.catalogue import NODES
from schemas.errors import ConfigurationError, HeadwaterError
from schemas.layouts import FREEZE_MS, FROZEN, SETTLED, Layout, Offsets
from schemas.nodes import HEARTBEAT_STALE_S
from schemas.routes import PARTITIONS_MAX, Q2_SUFFIX, Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from schemas.nodes import NodeHeartbeat

READ_TIMEOUT_S: Final = 30.0  # a shared subscription's group needs some seconds to take new partitions
FREEZE_TIMEOUT_S: Final = FREEZE_MS / 1000 * 0.6  # the rest is for the ends and the switch
SWITCH_TIMEOUT_S: Final = 10.0
FREEZES_MAX: Final = 4
DROP_TIMEOUT_S: Final = 15.0  # stored sessions tell where they are every 5 s
DROP_RETRY_S: Final = 1.0
SILENT_S: Final = 120.0  # an edge that stands still may write by the old count when it goes on, before it knows better
_LOOK_S: Final = 0.2  # how often it is looked whether an edge has gone silent

AddPartitions: TypeAlias = Callable[[Sequence[str], int], Awaitable[int]]
"""(Kafka topics, at least so many partitions) -> how many all of them have now."""


class ResizeFailed(HeadwaterError):  # noqa: N818
    """A step could not be done; the text says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step, how long it took and what came of it."""

    step: str
    took_ms: int
    what: str


@dataclass(slots=True)
class Status:
    """Where a Kafka topic stands; `edges` are the live ones with the revision that each has done."""

    kafka_topic: str
    step: str
    partitions: int
    read: tuple[int, ...]
    kafka_partitions: int
    revision: int
    edges: dict[str, int] = field(default_factory=dict)
    needed_by: tuple[str, ...] = ()


class Resizer:
    """One Kafka topic. `control` follows `headwater.control` already; `told` hears of each step that is done."""

    def __init__(
        self,
        log: Log,
        control: Control,
        routes: Iterable[Route],
        kafka_topic: str,
        add_partitions: AddPartitions,
        *,
        created_by: str = "",
        told: Callable[[StepDone], None] = lambda step: None,
        drop_timeout_s: float = DROP_TIMEOUT_S,
    ) -> None:
        self._log = log
        self._control = control
        self._routes = RouteTable(routes)
        self._kafka_topic = kafka_topic
        if kafka_topic not in self._routes.kafka_topics:
            known = ", ".join(self._routes.kafka_topics)
            raise ConfigurationError(f"no route leads to {kafka_topic!r}; name one of {known}")
        self._add_partitions = add_partitions
        self._created_by = created_by
        self._told = told
        self._drop_timeout_s = drop_timeout_s
        self._nodes = _Nodes(log)
        self._needs = Needs(log, self._routes, kafka_topic)
        self._revision = -1

    async def resize(self, partitions: int) -> Status:
        """Take the Kafka topic to this count, from whatever step it stands at.

        Raises:
            ConfigurationError: this cannot be wanted, or another resize is under way.
            ResizeFailed: a step was not done.
            LogError: Kafka does not answer.
        """
        self._check(partitions)
        layout = self._layout()
        if layout.step != SETTLED and layout.generations[-1].partitions != partitions:
            raise ConfigurationError(
                f"{self._kafka_topic} is on its way to {layout.generations[-1].partitions} partitions: run that again "
                "to go on with it, or take it back with --abort"
            )
        async with self._followed():
            if layout.step != SETTLED or layout.written.partitions != partitions:
                await self._switch(layout, partitions)
            await self._drop()
            return await self._status()

    async def abort(self) -> Status:
        """Take a resize back that has not come to its switch. Raises ConfigurationError when there is none."""
        layout = self._layout()
        if layout.step == SETTLED:
            raise ConfigurationError(
                f"no resize of {self._kafka_topic} waits for its switch; names are written by "
                f"{layout.written.partitions} partitions: resize back if that is not wanted"
            )
        async with self._followed():
            began_s = time.monotonic()
            await self._put(layout.aborted())
            await self._all_done("abort", SWITCH_TIMEOUT_S)
            self._step("abort", began_s, f"names are written by {layout.written.partitions} partitions as before")
            return await self._status()

    async def status(self) -> Status:
        """Where it stands, and who still needs the oldest partitions."""
        async with self._followed():
            return await self._status()

    @asynccontextmanager
    async def _followed(self) -> AsyncIterator[None]:
        """The edges and the stored sessions."""
        async with self._nodes.followed():
            try:
                await self._needs.start()
                yield
            finally:
                await self._needs.stop()

    # Steps

    def _check(self, partitions: int) -> None:
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise ConfigurationError(f"{partitions} partitions; give a whole number from 1 to {PARTITIONS_MAX}")
        for route in self._routes.routes:
            if route.kafka_topic == self._kafka_topic and route.key is not None and "{" not in route.key:
                raise ConfigurationError(
                    f"the route {route.filter!r} gives every name the key {route.key!r}: one partition holds them all"
                )

    async def _switch(self, layout: Layout, partitions: int) -> None:
        if layout.step == SETTLED:
            layout = await self._create(layout, partitions)
            await self._read(layout)
        elif layout.step == FROZEN:
            await self._put(layout.thawed())
            await self._all_done("read", READ_TIMEOUT_S)
        else:
            self._hold()
            await self._all_done("read", READ_TIMEOUT_S)
        for attempt in range(FREEZES_MAX):
            if await self._freeze(attempt):
                return
        raise ResizeFailed(
            f"the edges did not come to rest within {FREEZE_TIMEOUT_S:.0f} s in {FREEZES_MAX} tries "
            f"({self._missing_text()}); everything goes on as before. Run this again, or take it back with --abort"
        )

    async def _create(self, layout: Layout, partitions: int) -> Layout:
        """The layout of the next step."""
        began_s = time.monotonic()
        names = (self._kafka_topic, self._kafka_topic + Q2_SUFFIX)
        before = await self._add_partitions(names, 0)
        begins = await self._ends(before)
        after = await self._add_partitions(names, partitions)
        what = f"{after} partitions in Kafka" + (f", {after - before} of them new" if after > before else "")
        self._step("create", began_s, what)
        return layout.reading(partitions, begins, after)

    async def _read(self, layout: Layout) -> None:
        began_s = time.monotonic()
        self._hold()
        await self._put(layout)
        edges = await self._all_done("read", READ_TIMEOUT_S)
        self._routes.set_layout(self._kafka_topic, layout)
        groups = await self._needs.begin_groups()
        also = f", {groups} shared subscriptions that nobody is connected to" if groups else ""
        self._step("read", began_s, f"{edges} edges read {_counts(layout)} partitions{also}")

    async def _freeze(self, attempt: int) -> bool:
        """Freeze and switch; False: not all edges came to rest, and all go on as before."""
        began_s = time.monotonic()
        layout = self._layout()
        held = await self._put(layout.frozen())
        try:
            edges = await self._all_done("freeze", FREEZE_TIMEOUT_S)
        except ResizeFailed:
            await self._put(layout)
            await self._nodes.until(lambda: not self._missing(), HEARTBEAT_STALE_S * 2)
            return False
        await self._nodes.caught_up()  # edges that have come meanwhile have been seen
        if self._missing():
            await self._put(layout)
            return False
        since = await self._ends(layout.kafka_partitions)
        switched = layout.frozen().switched(since, held.at_ms)
        held = await self._put(switched)
        if switched.as_of(held.at_ms) != switched:
            await self._put(layout)
            return False
        frozen_ms = held.at_ms - switched.frozen_at_ms
        self._step("freeze", began_s, f"{edges} edges at rest, for {frozen_ms} ms (try {attempt + 1})")
        began_s = time.monotonic()
        edges = await self._all_done("switch", SWITCH_TIMEOUT_S)
        self._step("switch", began_s, f"{edges} edges write by {switched.written.partitions} partitions")
        return True

    async def _drop(self) -> None:
        began_s = time.monotonic()
        while len((layout := self._layout()).generations) > 1:
            if not await self._needed_by(layout):
                self._hold()
                await self._put(layout.without_first())
                await self._all_done("drop", SWITCH_TIMEOUT_S)
                self._step("drop", began_s, f"{_counts(self._layout())} partitions are read")
                began_s = time.monotonic()
            elif time.monotonic() - began_s > self._drop_timeout_s:
                self._step(
                    "drop",
                    began_s,
                    f"{_counts(layout)} partitions are read, as long as they are needed: run this again later",
                )
                return
            else:
                await asyncio.sleep(DROP_RETRY_S)

    # Helpers

    def _held(self) -> Held | None:
        return self._control.view.layouts().get(self._kafka_topic)

    def _layout(self) -> Layout:
        """What holds now."""
        held = self._held()
        if held is None or not isinstance(held.entry, Layout):
            return self._routes.layout(self._kafka_topic)
        return held.entry.as_of(held.at_ms)

    def _hold(self) -> None:
        """From here on the record is ours: whoever else writes it makes us stop."""
        held = self._held()
        self._revision = held.revision if held is not None else -1

    async def _put(self, layout: Layout) -> Held:
        if self._revision >= 0 and (held := self._held()) is not None and held.revision != self._revision:
            raise ResizeFailed(f"somebody else is resizing {self._kafka_topic}, too: look at --status, then run again")
        self._revision = await self._control.put(replace(layout, created_by=self._created_by))
        held = self._held()
        if held is None or held.revision != self._revision:
            raise ResizeFailed(f"somebody else is resizing {self._kafka_topic}, too: look at --status, then run again")
        return held

    async def _ends(self, partitions: int) -> tuple[Offsets, Offsets]:
        plain, twin = self._kafka_topic, self._kafka_topic + Q2_SUFFIX
        wanted: set[Position] = {(name, partition) for name in (plain, twin) for partition in range(partitions)}
        ends = await self._log.end_offsets(wanted)
        return (
            tuple(ends[plain, partition] for partition in range(partitions)),
            tuple(ends[twin, partition] for partition in range(partitions)),
        )

    def _missing(self) -> list[str]:
        """The live edges that have not done what the last record says."""
        return [beat.node_id for beat in self._nodes.live() if _done(beat, self._kafka_topic) < self._revision]

    def _missing_text(self) -> str:
        return "missing: " + ", ".join(self._missing()) if self._missing() else "all have now"

    async def _all_done(self, step: str, within_s: float) -> int:
        """Until every live edge has done the step; how many there are."""
        if not await self._nodes.until(lambda: not self._missing(), within_s):
            raise ResizeFailed(
                f"step {step}: {', '.join(self._missing())} did not say within {within_s:.0f} s that it is done. Look "
                "at these edges (are they of this version, do they reach Kafka?), then run this again; before the "
                "switch it can be taken back with --abort"
            )
        return len(self._nodes.live())

    async def _needed_by(self, layout: Layout) -> tuple[str, ...]:
        """Who needs the oldest generation, a few of them."""
        self._routes.set_layout(self._kafka_topic, layout)
        second = layout.generations[1].number
        edges = [
            f"a client of {beat.node_id}"
            for beat in self._nodes.live()
            if _oldest_needed(beat, self._kafka_topic) < second
        ]
        silent = [f"{node_id}, silent for less than {SILENT_S:.0f} s" for node_id in self._nodes.silent(SILENT_S)]
        return (*edges, *silent, *await self._needs.of_first())

    async def _status(self) -> Status:
        layout, held = self._layout(), self._held()
        return Status(
            self._kafka_topic,
            layout.step,
            layout.written.partitions,
            layout.counts,
            layout.kafka_partitions,
            held.revision if held is not None else -1,
            {beat.node_id: _done(beat, self._kafka_topic) for beat in self._nodes.live()},
            await self._needed_by(layout) if layout.step == SETTLED and len(layout.generations) > 1 else (),
        )

    def _step(self, step: str, began_s: float, what: str) -> None:
        self._told(StepDone(step, round((time.monotonic() - began_s) * 1000), what))


class _Nodes:
    """The edges by their heartbeats, on this process's clock."""

    def __init__(self, log: Log) -> None:
        self._view = NodeView()
        self._changed = asyncio.Event()
        self._newest_ms = 0
        self._history: list[Record] | None = []
        self._tail = TopicTail(log, NODES, 1, self._take)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """The view is whole, and goes on. An edge that was silent before has its age by Kafka's clock."""
        await self._tail.start()
        try:
            history, self._history = self._history or [], None
            now = time.monotonic()
            for record in history:
                self._view.apply(record.key, record.value, now - (self._newest_ms - record.timestamp) / 1000)
            yield
        finally:
            await self._tail.stop()

    def live(self) -> tuple[NodeHeartbeat, ...]:
        return self._view.live(time.monotonic())

    def silent(self, within_s: float) -> list[str]:
        """The edges that fell silent within this time and have not left."""
        now = time.monotonic()
        stale = (beat.node_id for beat in self._view.stale(now))
        return [node_id for node_id in stale if (self._view.age_s(node_id, now) or 0.0) < within_s]

    async def caught_up(self) -> None:
        await self._tail.caught_up()

    async def until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Whether it became so in time."""
        give_up_at = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > give_up_at:
                return False
            self._changed.clear()
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return True

    def _take(self, _partition: int, record: Record) -> None:
        self._newest_ms = max(self._newest_ms, record.timestamp)
        if self._history is not None:
            self._history.append(record)
            return
        self._view.apply(record.key, record.value, time.monotonic())
        self._changed.set()


def _done(beat: NodeHeartbeat, kafka_topic: str) -> int:
    return max((revision for name, revision, _ in beat.layouts if name == kafka_topic), default=-1)


def _oldest_needed(beat: NodeHeartbeat, kafka_topic: str) -> int:
    return max((generation for name, _, generation in beat.layouts if name == kafka_topic), default=-1)


def _counts(layout: Layout) -> str:
    return " and ".join(map(str, layout.counts))
