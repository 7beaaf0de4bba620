"""Layouts: by how many partitions the Topic Names of a Kafka topic are spread, and were before. Pure.

A Kafka topic whose partitions were never changed has none: its route says it all. Each resize adds a *generation*: a
count, and per partition where its first record is (`since`). Names are written by one generation at a time; readers
read the partitions of every generation that somebody may still need. The record of `headwater.control` is
``layout/<kafka topic>``; `bridge.resize` moves it from step to step, every edge follows it (`bridge.resize_follower`).

Everything is said twice, for the Kafka topic and for its QoS 2 twin: their partitions have the same numbers and other
ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeAlias

import orjson

from schemas.errors import RecordError
from schemas.nodes import json_object
from schemas.routes import PARTITIONS_MAX

LAYOUT_KIND: Final = "layout"
LAYOUT_VERSION: Final = 1
SETTLED: Final = "settled"  # the last generation is written
READING: Final = "reading"  # the last generation is to be written soon: every edge begins to read its partitions
FROZEN: Final = "frozen"  # nobody writes
STEPS: Final = (SETTLED, READING, FROZEN)
FREEZE_MS: Final = 5_000  # writers wait no longer than this: a switch that comes later is void

Offsets: TypeAlias = tuple[int, ...]
"""An offset per partition; 0 for a partition that has none."""


def offset_of(offsets: Offsets, partition: int) -> int:
    """The partition's offset; a partition that was not there then had nothing in it."""
    return offsets[partition] if partition < len(offsets) else 0


@dataclass(frozen=True, slots=True)
class Generation:
    """A partition count and from when on it counts; the pairs are (Kafka topic, its QoS 2 twin).

    ``begins`` is where readers have to begin: the ends when they were told to read these partitions. ``since`` is
    where the first record is that was written by this count, and where the last one by the count before is over.
    """

    number: int
    partitions: int
    begins: tuple[Offsets, Offsets] = ((), ())
    since: tuple[Offsets, Offsets] = ((), ())


@dataclass(frozen=True, slots=True)
class Layout:
    """The generations of a Kafka topic that are read, oldest first; the last one that is in force is written.

    ``frozen_at_ms`` is when Kafka appended the record that made writers wait, in the switch that came after it; else 0.
    ``former`` are the counts of generations that nobody reads any more but who reads history.
    """

    kafka_topic: str
    generations: tuple[Generation, ...]
    step: str = SETTLED
    kafka_partitions: int = 0
    frozen_at_ms: int = 0
    former: tuple[int, ...] = ()
    created_by: str = ""

    @classmethod
    def of_route(cls, kafka_topic: str, partitions: int) -> Layout:
        """What holds for a Kafka topic that was never resized."""
        return cls(kafka_topic, (Generation(0, partitions),), kafka_partitions=partitions)

    @property
    def key(self) -> str:
        """The key of its record."""
        return f"{LAYOUT_KIND}/{self.kafka_topic}"

    @property
    def written(self) -> Generation:
        """By which names are written."""
        return self.generations[-1] if self.step == SETTLED else self.generations[-2]

    @property
    def in_force(self) -> tuple[Generation, ...]:
        """The generations of which there can be records."""
        return self.generations if self.step == SETTLED else self.generations[:-1]

    @property
    def counts(self) -> tuple[int, ...]:
        """The partition counts that readers honour."""
        return tuple(dict.fromkeys(generation.partitions for generation in self.generations))

    def barriers(self, *, is_twin: bool) -> tuple[Offsets, ...]:
        """Where each generation but the first begins: what is before such offsets comes before what is behind them."""
        return tuple(generation.since[is_twin] for generation in self.in_force[1:])

    def reading(self, partitions: int, begins: tuple[Offsets, Offsets], kafka_partitions: int) -> Layout:
        """The first step of a resize: another count is to be read, too."""
        number = max(generation.number for generation in self.generations) + 1
        return replace(
            self,
            generations=(*self.generations, Generation(number, partitions, begins)),
            step=READING,
            frozen_at_ms=0,
            kafka_partitions=max(kafka_partitions, self.kafka_partitions),
        )

    def frozen(self) -> Layout:
        """The second step: writers wait."""
        return replace(self, step=FROZEN)

    def thawed(self) -> Layout:
        """Back to the first step: writers go on as before."""
        return replace(self, step=READING)

    def switched(self, since: tuple[Offsets, Offsets], frozen_at_ms: int) -> Layout:
        """The third step: writers go on by the new count."""
        new = replace(self.generations[-1], since=since)
        return replace(self, generations=(*self.generations[:-1], new), step=SETTLED, frozen_at_ms=frozen_at_ms)

    def aborted(self) -> Layout:
        """As before the resize, whose switch has not happened."""
        return replace(self, generations=self.generations[:-1], step=SETTLED, frozen_at_ms=0)

    def without_first(self) -> Layout:
        """The last step: nobody needs the oldest generation any more."""
        former = tuple(dict.fromkeys((*self.former, self.generations[0].partitions)))
        return replace(self, generations=self.generations[1:], frozen_at_ms=0, former=former)

    def as_of(self, at_ms: int) -> Layout:
        """What the record says that Kafka appended at this time: a switch that came when writers may have gone on is
        none. Only the resize's own record can be late: `without_first` comes with ``frozen_at_ms`` 0."""
        is_late = self.step == SETTLED and self.frozen_at_ms and at_ms - self.frozen_at_ms > FREEZE_MS
        return self.aborted() if is_late and len(self.generations) > 1 else self

    def to_json(self) -> bytes:
        """The value of its record."""
        fields = asdict(self)
        del fields["kafka_topic"]
        return orjson.dumps({"version": LAYOUT_VERSION, **fields})


def decode_layout(kafka_topic: str, value: bytes) -> Layout:
    """A layout out of its record's value; unknown fields are ignored. Raises RecordError."""
    what = f"{LAYOUT_KIND}/{kafka_topic}"
    fields = json_object(value, what)
    if fields.get("version") != LAYOUT_VERSION:
        raise RecordError(f"{what}: its version is not {LAYOUT_VERSION}")
    try:
        layout = Layout(
            kafka_topic,
            tuple(_generation(each) for each in fields["generations"]),
            fields["step"],
            int(fields["kafka_partitions"]),
            int(fields.get("frozen_at_ms", 0)),
            tuple(map(int, fields.get("former", ()))),
            str(fields.get("created_by", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{what}: {error!r}") from None
    _check(what, layout)
    return layout


def _generation(fields: dict[str, Any]) -> Generation:
    return Generation(int(fields["number"]), int(fields["partitions"]), _pair(fields["begins"]), _pair(fields["since"]))


def _pair(pair: Iterable[Iterable[int]]) -> tuple[Offsets, Offsets]:
    plain, twin = (tuple(map(int, offsets)) for offsets in pair)
    return plain, twin


def _check(what: str, layout: Layout) -> None:
    if layout.step not in STEPS or len(layout.generations) < (1 if layout.step == SETTLED else 2):
        raise RecordError(f"{what}: step {layout.step!r} with {len(layout.generations)} generations")
    for generation in layout.generations:
        if not 1 <= generation.partitions <= PARTITIONS_MAX or generation.partitions > layout.kafka_partitions:
            raise RecordError(f"{what}: {generation.partitions} partitions of {layout.kafka_partitions}")
    numbers = [generation.number for generation in layout.generations]
    if numbers != sorted(set(numbers)):
        raise RecordError(f"{what}: the generations are not in order")
