"""Where a Topic Name goes in Kafka, and where a Topic Filter has to be read. Pure: computed from the routes alone.

The property everything rests on: for every Topic Name that a filter matches, the name's destination is among the
filter's partitions. A filter that fixes every level of a route's key reads one partition of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bridge.murmur2 import murmur2, partition_for_key
from schemas.errors import TopicError
from schemas.layouts import Layout, Offsets, offset_of
from schemas.routes import Q2_SUFFIX, Route, check_routes, message_kafka_topics
from schemas.topics import check_topic_name, covers, has_wildcard, overlaps


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a message is appended; QoS 2 messages go to the twin of ``kafka_topic``, same partition."""

    kafka_topic: str
    partition: int
    key: bytes
    position: tuple[str, int] = field(init=False, repr=False, compare=False)  # both of the first: looked up per message

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", (self.kafka_topic, self.partition))

    def twin(self) -> Destination:
        """Where the message goes with QoS 2."""
        return Destination(self.kafka_topic + Q2_SUFFIX, self.partition, self.key)


class RouteTable:
    """The routes, compiled. What changes while it is used is the layout of Kafka topics (`set_layout`).

    ``moved`` has the count by which names are written for each Kafka topic, twins too, that has a layout; ``barriers``
    where its generations begin (`Layout.barriers`), without those that have only one.
    """

    __slots__ = ("_layouts", "_rows", "barriers", "kafka_topics", "moved", "routes", "version")

    def __init__(self, routes: Iterable[Route]) -> None:
        """Raises ConfigurationError when the routes make no proper table."""
        self.routes: tuple[Route, ...] = tuple(routes)
        check_routes(self.routes)
        self.kafka_topics: tuple[str, ...] = message_kafka_topics(self.routes)
        self._layouts: dict[str, Layout] = {}
        self.moved: dict[str, int] = {}
        self.barriers: dict[str, tuple[Offsets, ...]] = {}
        self.version: str = self._hash()  # told in heartbeats
        last = len(self.routes) - 1
        self._rows = [_Row(route, catch_all=index == last) for index, route in enumerate(self.routes)]

    def destination(self, topic_name: str) -> Destination:
        """Where a (valid) Topic Name is published. Costs microseconds: callers cache it."""
        levels = topic_name.split("/")
        row = self._row_of(levels)
        key = row.key_of(topic_name, levels)
        return Destination(row.route.kafka_topic, partition_for_key(key, row.written), key)

    def partitions(self, topic_filter: str) -> frozenset[tuple[str, int]]:
        """Every (Kafka topic, partition) in which a name that the (valid, not shared) filter matches may be."""
        found: set[tuple[str, int]] = set()
        for row in self._rows:
            if row.overlaps(topic_filter):
                found.update((row.route.kafka_topic, partition) for partition in row.partitions(topic_filter))
                if row.covers(topic_filter):
                    break  # first match wins: no name of the filter gets past this route
        return frozenset(found)

    def twin_partitions(self, topic_filter: str) -> frozenset[tuple[str, int]]:
        """The same for QoS 2 messages, in the twins of the Kafka topics."""
        return frozenset(
            (kafka_topic + Q2_SUFFIX, partition) for kafka_topic, partition in self.partitions(topic_filter)
        )

    # Layouts

    def layout(self, kafka_topic: str) -> Layout:
        """The layout in force of one of ``kafka_topics``."""
        return self._layouts.get(kafka_topic) or Layout.of_route(kafka_topic, self._partitions_of(kafka_topic))

    def set_layout(self, kafka_topic: str, layout: Layout | None) -> None:
        """From now on names of this Kafka topic are written and read by the layout; None: by their routes alone.

        Who keeps destinations or partitions has to ask for them again.
        """
        if layout is None:
            self._layouts.pop(kafka_topic, None)
        else:
            self._layouts[kafka_topic] = layout
        for name, is_twin in ((kafka_topic, False), (kafka_topic + Q2_SUFFIX, True)):
            for changed in (self.moved, self.barriers):
                changed.pop(name, None)
            if layout is not None:
                self.moved[name] = layout.written.partitions
                if barriers := layout.barriers(is_twin=is_twin):
                    self.barriers[name] = barriers
        for row in self._rows:
            if row.route.kafka_topic == kafka_topic:
                row.set_layout(layout)
        self.version = self._hash()

    def place(self, position: tuple[str, int], key: bytes | None) -> tuple[str, int]:
        """Where a record that was meant for the position goes by the layout in force."""
        count = self.moved.get(position[0])
        return position if count is None or key is None else (position[0], partition_for_key(key, count))

    def begins(self, topic_filter: str) -> dict[tuple[str, int], int]:
        """Where a subscriber begins that has had the filter for long, in partitions that it does not know yet, QoS 2
        twins included: where the first generation begins that brought them. Kafka topics without a layout are left
        out: 0."""
        found: dict[tuple[str, int], int] = {}
        for row in self._rows:
            layout = self._layouts.get(row.route.kafka_topic)
            if row.overlaps(topic_filter):
                if layout is not None:
                    _add_begins(found, row, layout, topic_filter)
                if row.covers(topic_filter):
                    break
        return found

    def partitions_by(self, kafka_topic: str, topic_filter: str, count: int) -> set[int]:
        """The partitions of one Kafka topic in which names that the filter matches would be by this count."""
        found: set[int] = set()
        for row in self._rows:
            if row.overlaps(topic_filter):
                if row.route.kafka_topic == kafka_topic:
                    found.update(row.partitions_by(topic_filter, (count,)))
                if row.covers(topic_filter):
                    break
        return found

    def kept_partitions(self, topic_filter: str) -> frozenset[tuple[str, int]]:
        """Where the filter's messages are, those of QoS 2, too, for who reads history: also the partitions that only
        hold what was written by counts that nobody else reads any more."""
        found = set(self.partitions(topic_filter))
        for kafka_topic, layout in self._layouts.items():
            for count in layout.former:
                found.update((kafka_topic, each) for each in self.partitions_by(kafka_topic, topic_filter, count))
        return frozenset(found | {(kafka_topic + Q2_SUFFIX, partition) for kafka_topic, partition in found})

    def _partitions_of(self, kafka_topic: str) -> int:
        return next(route.partitions_total for route in self.routes if route.kafka_topic == kafka_topic)

    def _hash(self) -> str:
        parts = repr(self.routes) + (repr(sorted(self._layouts.items())) if self._layouts else "")
        return hashlib.sha256(parts.encode()).hexdigest()[:12]

    def topic_name_from_key(self, kafka_topic: str, key: bytes | None) -> str | None:
        """The Topic Name of a record that does not say it, from its key by the route's reverse template.

        None when there is no key, when the template cannot be reversed, or when the name would not be routed to this
        Kafka topic: subscribers of that name would not read it here. ``kafka_topic`` may be a QoS 2 twin.
        """
        if key is None:
            return None
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return None
        base = kafka_topic.removesuffix(Q2_SUFFIX)
        for row in self._rows:
            if row.route.kafka_topic == base:
                topic_name = row.reverse(text)
                if topic_name is not None and self._row_of(topic_name.split("/")) is row:
                    return topic_name
        return None

    def _row_of(self, levels: list[str]) -> _Row:
        for row in self._rows:
            if row.matches(levels):
                return row
        raise AssertionError("the last route takes every Topic Name")


def _add_begins(found: dict[tuple[str, int], int], row: _Row, layout: Layout, topic_filter: str) -> None:
    kafka_topic = row.route.kafka_topic
    of_row: dict[tuple[str, int], int] = {}
    for generation in reversed(layout.generations):  # the oldest one counts
        for partition in row.partitions_by(topic_filter, (generation.partitions,)):
            for name, offsets in zip((kafka_topic, kafka_topic + Q2_SUFFIX), generation.begins, strict=True):
                of_row[name, partition] = offset_of(offsets, partition)
    for position, begin in of_row.items():
        found[position] = min(found.get(position, begin), begin)


class _Row:
    """One route with what is derived from it."""

    __slots__ = (
        "_catch_all",
        "_key_parts",
        "_length",
        "_literals",
        "_moduli",
        "_open_end",
        "_partitions_total",
        "_reverse",
        "route",
        "topic_filter",
        "written",
    )

    def __init__(self, route: Route, *, catch_all: bool) -> None:
        self.route = route
        self.topic_filter = route.topic_filter
        self._catch_all = catch_all
        self._key_parts = route.key_parts
        self.set_layout(None)
        self._reverse = _ReverseTemplate.of(route)
        levels = self.topic_filter.split("/")
        self._open_end = levels[-1] == "#"
        self._length = len(levels) - self._open_end
        self._literals = [(index, level) for index, level in enumerate(levels) if level not in ("+", "#")]

    def set_layout(self, layout: Layout | None) -> None:
        """By which count names are written, and by which they may have been."""
        route = self.route
        self.written: int = route.partitions if layout is None else layout.written.partitions
        self._moduli: tuple[int, ...] = (route.partitions, *route.read_partitions) if layout is None else layout.counts
        self._partitions_total = route.partitions_total if layout is None else layout.kafka_partitions

    def matches(self, levels: list[str]) -> bool:
        """What ``schemas.topics.matches`` says of the name with these levels, but fast."""
        if self._catch_all:
            return True
        if len(levels) < self._length if self._open_end else len(levels) != self._length:
            return False
        for index, level in self._literals:
            if levels[index] != level:
                return False
        first_is_literal = bool(self._literals) and self._literals[0][0] == 0
        return first_is_literal or not levels[0].startswith("$")  # [MQTT5-4.7.2-1] [MQTT311-4.7.2-1]

    def overlaps(self, topic_filter: str) -> bool:
        return self._catch_all or overlaps(self.topic_filter, topic_filter)

    def covers(self, topic_filter: str) -> bool:
        return self._catch_all or covers(self.topic_filter, topic_filter)

    def key_of(self, topic_name: str, levels: list[str]) -> bytes:
        if self._key_parts is None:
            return topic_name.encode()
        return "".join(levels[part] if isinstance(part, int) else part for part in self._key_parts).encode()

    def partitions(self, topic_filter: str) -> Iterable[int]:
        """The partitions of this route for an overlapping filter, under every count that readers must honour."""
        return self.partitions_by(topic_filter, self._moduli)

    def partitions_by(self, topic_filter: str, counts: Sequence[int]) -> Iterable[int]:
        """The same under these counts."""
        if not self.route.producer_keys:
            key = self._fixed_key(topic_filter)
            if key is not None:
                return {(murmur2(key) & 0x7FFFFFFF) % count for count in counts}
            return range(max(counts))
        return range(self._partitions_total)

    def _fixed_key(self, topic_filter: str) -> bytes | None:
        """The one key that all names have which both this route and the filter match, if there is just one."""
        if self._key_parts is None:
            return None if has_wildcard(topic_filter) else topic_filter.encode()
        levels = topic_filter.split("/")
        for part in self._key_parts:
            if isinstance(part, int) and (part >= len(levels) or levels[part] in ("+", "#")):
                return None
        return self.key_of(topic_filter, levels)

    def reverse(self, key: str) -> str | None:
        topic_name = key if self._key_parts is None else self._reverse.topic_name(key) if self._reverse else None
        if topic_name is None:
            return None
        try:
            check_topic_name(topic_name)
        except TopicError:
            return None
        return topic_name


class _ReverseTemplate:
    """A route's key template, turned round: key -> Topic Name.

    It exists when the filter is made of literals and named levels only (a trailing ``/#`` is dropped) and the key
    holds every one of the names. A key that can be read in two ways gives no name.
    """

    __slots__ = ("_greedy", "_lazy", "_levels")

    def __init__(self, key_parts: Sequence[str | int], levels: Sequence[str | int]) -> None:
        self._levels = levels
        self._greedy = re.compile(_pattern(key_parts, "[^/]*"))
        self._lazy = re.compile(_pattern(key_parts, "[^/]*?"))

    @classmethod
    def of(cls, route: Route) -> _ReverseTemplate | None:
        key_parts = route.key_parts
        spelled = route.filter.removesuffix("/#").split("/")
        if key_parts is None or "+" in spelled or "#" in spelled:
            return None
        named = set(route.level_names.values())
        if not named.issubset(key_parts):
            return None
        return cls(key_parts, [index if index in named else level for index, level in enumerate(spelled)])

    def topic_name(self, key: str) -> str | None:
        found = self._greedy.fullmatch(key)
        if found is None:
            return None
        other = self._lazy.fullmatch(key)
        if other is None or other.groupdict() != found.groupdict():
            return None
        return "/".join(found[f"l{level}"] if isinstance(level, int) else level for level in self._levels)


def _pattern(key_parts: Sequence[str | int], level_pattern: str) -> str:
    pieces: list[str] = []
    seen: set[int] = set()
    for part in key_parts:
        if isinstance(part, str):
            pieces.append(re.escape(part))
        elif part in seen:
            pieces.append(f"(?P=l{part})")
        else:
            seen.add(part)
            pieces.append(f"(?P<l{part}>{level_pattern})")
    return "".join(pieces)
