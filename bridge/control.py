"""`headwater.control` on every edge: what operators have decided, read whole at the start and followed from then on.

How a decision gets into force: 1. `Control.put` appends its record, on any edge or from the command line; 2. every
edge's tail comes to it, well within 2 s; 3. ``take`` puts it into force there; 4. only then has `put` returned on the
edge that was asked. The order of the log is the order of the decisions, so all edges end with the same.

A record that cannot be read, or that ``take`` refuses, changes nothing: what was in force stays in force, and the
record goes to `mqtt.dead_letter` with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from bridge.log import Log, LogError, Record
from bridge.membership import AppendFuture
from bridge.partitioning import Destination
from bridge.topic_tail import LOAD_TIMEOUT_S, TopicTail
from schemas.catalogue import CONTROL
from schemas.control import (
    ACL_KEY,
    CONTROL_KINDS,
    AclRules,
    Ban,
    ControlEntry,
    NodeCommand,
    control_key,
    decode_control,
)
from schemas.errors import HeadwaterError, RecordError
from schemas.layouts import Layout
from schemas.records import HEADER_DEAD_LETTER_REASON, HEADER_DEAD_LETTER_SOURCE
from schemas.routes import DEAD_LETTER

logger = logging.getLogger(__name__)

ENTRIES_MAX: Final = 200_000  # twice the bans that an edge holds: those that have ended are in the log, too
REASON_BYTES_MAX: Final = 512
REFUSALS_KEPT: Final = 100  # of records that were not taken, for whoever has just written one

Take: TypeAlias = Callable[[str, ControlEntry | None], None]
"""Called with each key and its entry, None when it was taken back. Raises RecordError for what cannot be done."""


class ControlRefused(HeadwaterError):  # noqa: N818
    """The record is in the log, and no edge takes it; the text says why."""


@dataclass(frozen=True, slots=True)
class Held:
    """An entry, the offset of its record (its revision: later decisions have higher ones) and when it was appended."""

    entry: ControlEntry
    revision: int
    at_ms: int


class ControlView:
    """Key -> entry, folded record by record. Pure."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def apply(self, key: str, entry: ControlEntry | None, revision: int, at_ms: int) -> None:
        """Take one record, in the order of the log; None is a tombstone."""
        if entry is None:
            self._held.pop(key, None)
        else:
            self._held[key] = Held(entry, revision, at_ms)

    def has_room_for(self, key: str) -> bool:
        """Whether the entry may be held: what replaces another one always may."""
        return key in self._held or len(self._held) < ENTRIES_MAX

    def get(self, key: str) -> Held | None:
        """What holds under the key."""
        return self._held.get(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def bans(self) -> tuple[Ban, ...]:
        """Every ban, those that have ended included."""
        return tuple(held.entry for held in self._held.values() if isinstance(held.entry, Ban))

    def acl(self) -> tuple[AclRules, Held] | None:
        """The rule set that replaces the one of the edges' files, if there is one."""
        held = self._held.get(ACL_KEY)
        return (held.entry, held) if held is not None and isinstance(held.entry, AclRules) else None

    def layouts(self) -> dict[str, Held]:
        """The layouts of Kafka topics that were resized, by Kafka topic."""
        return {held.entry.kafka_topic: held for held in self._held.values() if isinstance(held.entry, Layout)}

    def command(self, node_id: str) -> NodeCommand | None:
        """The last command to the node."""
        held = self._held.get(f"node/{node_id}")
        return held.entry if held is not None and isinstance(held.entry, NodeCommand) else None


class Control:
    """Follows the Kafka topic, and writes to it. Belongs to one event loop.

    Args:
        append_future: `Publisher.append_future`.
        take: puts what is read into force.
        tick: called about every second.
        taken: called with each key and what is held under it, when it is in force.
        keeps_dead_letters: whether what cannot be read is appended to `mqtt.dead_letter`, as edges do.
    """

    def __init__(
        self,
        source: Log,
        append_future: AppendFuture,
        take: Take = lambda key, entry: None,
        tick: Callable[[], None] = lambda: None,
        *,
        keeps_dead_letters: bool = True,
        taken: Callable[[str, Held | None], None] = lambda key, held: None,
    ) -> None:
        self.view = ControlView()
        self._taken = taken
        self._append_future = append_future
        self._takes = take
        self._on_tick = tick
        self._keeps_dead_letters = keeps_dead_letters
        self._tail = TopicTail(source, CONTROL, 1, self._take, tick=self._tick, on_truncated=self._truncated)
        self._refusals: dict[int, str] = {}
        self._counts = dict.fromkeys(("records", "unreadable", "foreign", "dead_letter_failures"), 0)

    async def start(self, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Read the whole Kafka topic, then follow it.

        Raises:
            LogUnavailable: it could not be read to its end in time.
        """
        await self._tail.start(timeout_s)

    async def stop(self) -> None:
        """Follow no longer."""
        await self._tail.stop()

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and `$SYS`."""
        return {**self._counts, "entries": len(self.view), "log_errors": self._tail.errors}

    async def caught_up(self) -> None:
        """Until everything is in force here that was in the log before this call. Raises LogUnavailable."""
        await self._tail.caught_up()

    async def put(self, entry: ControlEntry) -> int:
        """Decide something; in force on this edge when it returns. The record's offset.

        Raises:
            LogError: it was refused, or nobody knows.
            ControlRefused: the edges do not take it.
        """
        return await self._write(entry.key, entry.to_json())

    async def remove(self, key: str) -> int:
        """Take a decision back. The tombstone's offset. Raises LogError."""
        return await self._write(key, None)

    async def _write(self, key: str, value: bytes | None) -> int:
        offset = await self._append_future(Destination(CONTROL, 0, key.encode()), value, ())
        await self._tail.caught_up()
        if (reason := self._refusals.pop(offset, None)) is not None:
            raise ControlRefused(reason)
        return offset

    # Following

    def _take(self, partition: int, record: Record) -> None:
        self._counts["records"] += 1
        try:
            kind, of = control_key(record.key)
            if kind not in CONTROL_KINDS:
                self._counts["foreign"] += 1
                return
            entry = decode_control(record.key, record.value)
            key = f"{kind}/{of}"
            if entry is not None and not self.view.has_room_for(key):
                raise RecordError(f"{key}: more than {ENTRIES_MAX} entries in {CONTROL}")
            self._takes(key, entry)
        except RecordError as error:
            self._refuse(record, str(error))
            return
        self.view.apply(key, entry, record.offset, record.timestamp)
        self._taken(key, self.view.get(key))

    def _refuse(self, record: Record, reason: str) -> None:
        self._counts["unreadable"] += 1
        logger.warning("%s[0]@%d is skipped: %s", CONTROL, record.offset, reason)
        self._refusals[record.offset] = reason
        if len(self._refusals) > REFUSALS_KEPT:
            del self._refusals[next(iter(self._refusals))]
        if not self._keeps_dead_letters:
            return
        headers = [
            *record.headers,
            (HEADER_DEAD_LETTER_REASON, reason.encode(errors="backslashreplace")[:REASON_BYTES_MAX]),
            (HEADER_DEAD_LETTER_SOURCE, f"{CONTROL}/0/{record.offset}".encode()),
        ]
        future = self._append_future(Destination(DEAD_LETTER, 0, record.key or b""), record.value, headers)
        future.add_done_callback(self._dead_letter_appended)

    def _dead_letter_appended(self, future: asyncio.Future[int]) -> None:
        if not future.cancelled() and isinstance(error := future.exception(), LogError):
            self._counts["dead_letter_failures"] += 1
            logger.warning("%s: %s", DEAD_LETTER, error)

    def _truncated(self, partition: int) -> None:
        """The Kafka topic was made anew: what it said is taken back, what it says now follows."""
        for key in tuple(self.view):
            self._takes(key, None)
            self.view.apply(key, None, -1, 0)
            self._taken(key, None)

    def _tick(self) -> float:
        self._on_tick()
        return 1.0
