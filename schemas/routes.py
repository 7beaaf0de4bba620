"""Routes: the ordered table that says which Kafka topic and which key a Topic Name goes to. First match wins.

A route's ``filter`` is a Topic Filter in which ``{site}`` stands where ``+`` would, to give that level a name; the
``key`` template uses these names. The last route is ``#``: it takes whatever no other route took, and other than a
subscription to ``#`` it takes names that start with ``$`` as well, so that every Topic Name has a place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from schemas.errors import ConfigurationError, TopicError
from schemas.topics import check_topic_filter, covers

Q2_SUFFIX = ".q2"  # the twin of each route's Kafka topic that holds QoS 2 messages
DEAD_LETTER = "mqtt.dead_letter"
ANALYTICS = "mqtt.analytics"  # Spark results
STATE_PREFIX = "headwater."  # Kafka topics of ours that hold no messages
PARTITIONS_MAX = 10_000  # far above what one Kafka cluster serves well: a slip of the keyboard
KAFKA_TOPIC_LENGTH_MAX = 249 - len(Q2_SUFFIX)  # Kafka's own limit, with room for the twin

_KAFKA_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_NAMED_LEVEL = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table.

    ``key`` None means that the whole Topic Name is the key. ``producer_keys`` says that Kafka producers choose keys
    and partitions themselves, so a subscriber must read all partitions. ``read_partitions`` are partition counts
    under which records may be found as well: while a resize goes on, readers honour these and ``partitions``,
    writers only ``partitions``. ``payload_schema`` is a file with a JSON Schema that edges hold payloads against.
    """

    filter: str
    kafka_topic: str
    key: str | None = None
    partitions: int = 12
    producer_keys: bool = False
    read_partitions: tuple[int, ...] = ()
    payload_schema: str | None = field(default=None, repr=False)  # no part of where a message goes

    @property
    def topic_filter(self) -> str:
        """The filter in MQTT's own spelling: each named level is a ``+``."""
        return "/".join("+" if _NAMED_LEVEL.fullmatch(level) else level for level in self.filter.split("/"))

    @property
    def level_names(self) -> dict[str, int]:
        """Each named level and its index in the Topic Name."""
        found = (_NAMED_LEVEL.fullmatch(level) for level in self.filter.split("/"))
        return {match[1]: index for index, match in enumerate(found) if match}

    @property
    def key_parts(self) -> tuple[str | int, ...] | None:
        """The key template as literal texts and level indexes, in order; None when the key is the whole name."""
        if self.key is None:
            return None
        names = self.level_names
        pieces = _NAMED_LEVEL.split(self.key)  # text, name, text, name, ..., text
        parts = (names[piece] if index % 2 else piece for index, piece in enumerate(pieces))
        return tuple(part for part in parts if part != "")

    @property
    def q2_kafka_topic(self) -> str:
        """The Kafka topic of the route's QoS 2 messages."""
        return self.kafka_topic + Q2_SUFFIX

    @property
    def partitions_total(self) -> int:
        """How many partitions the Kafka topic must have."""
        return max(self.partitions, *self.read_partitions, 1)


DEFAULT_ROUTES = (
    Route("analytics/#", "mqtt.analytics", producer_keys=True, partitions=4),
    Route("sensors/{site}/{device}/#", "mqtt.sensors", key="{site}/{device}", partitions=12),
    Route("#", "mqtt.messages", partitions=12),
)


def load_routes(rows: Sequence[Mapping[str, Any]]) -> tuple[Route, ...]:
    """Routes from configuration; raises ConfigurationError, whose text says which route and what to do."""
    routes = tuple(_route_from_row(number, row) for number, row in enumerate(rows, 1))
    check_routes(routes)
    return routes


def check_routes(routes: Sequence[Route]) -> None:
    """Raise ConfigurationError unless the routes make a proper table."""
    if not routes:
        raise ConfigurationError("routes: the table is empty; give at least one route with the filter '#'")
    for number, route in enumerate(routes, 1):
        where = f"route {number} {route.filter!r}"
        _check_filter(where, route)
        _check_key(where, route)
        _check_partitions(where, route)
        _check_kafka_topic(where, route.kafka_topic)
    _check_order(routes)
    _check_shared_kafka_topics(routes)


def _route_from_row(number: int, row: Mapping[str, Any]) -> Route:
    where = f"route {number} {row.get('filter', '')!r}"
    known = {each.name for each in fields(Route)}
    for name in row:
        if name not in known:
            raise ConfigurationError(f"{where}: unknown setting {name!r}; known are {', '.join(sorted(known))}")
    for name in ("filter", "kafka_topic"):
        if name not in row:
            raise ConfigurationError(f"{where}: {name!r} is missing; add it")
    values = dict(row)
    if isinstance(values.get("read_partitions"), list):
        values["read_partitions"] = tuple(values["read_partitions"])
    for name, kinds, wanted in _ROW_TYPES:
        if name in values and type(values[name]) not in kinds:
            raise ConfigurationError(f"{where}: {name!r} is {values[name]!r}; give {wanted}")
    return Route(**values)


_ROW_TYPES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("filter", (str,), "a text such as 'sensors/{site}/{device}/#'"),
    ("kafka_topic", (str,), "a text such as 'mqtt.sensors'"),
    ("key", (str, type(None)), "a text such as '{site}/{device}', or leave it out"),
    ("partitions", (int,), "a whole number"),
    ("producer_keys", (bool,), "true or false"),
    ("read_partitions", (tuple,), "a list of whole numbers"),
    ("payload_schema", (str, type(None)), "the name of a file with a JSON Schema, or leave it out"),
)


def _check_filter(where: str, route: Route) -> None:
    names: set[str] = set()
    for level in route.filter.split("/"):
        match = _NAMED_LEVEL.fullmatch(level)
        if match is None and ("{" in level or "}" in level):
            raise ConfigurationError(
                f"{where}: level {level!r} is no named level; write a whole level like {{site}} "
                "(letters, digits and _, not starting with a digit)"
            )
        if match and match[1] in names:
            raise ConfigurationError(f"{where}: two levels are named {level}; give each its own name")
        if match:
            names.add(match[1])
    if route.filter.startswith("$share/"):
        raise ConfigurationError(f"{where}: a route cannot be a shared subscription; drop '$share/<group>/'")
    try:
        check_topic_filter(route.topic_filter)
    except TopicError as error:
        raise ConfigurationError(f"{where}: {error}; correct the filter") from None


def _check_key(where: str, route: Route) -> None:
    if route.key is None:
        return
    names = _NAMED_LEVEL.findall(route.key)
    for name in names:
        if name not in route.level_names:
            raise ConfigurationError(
                f"{where}: key uses {{{name}}}, which the filter does not name; "
                f"name a level {{{name}}} or drop it from the key"
            )
    text = _NAMED_LEVEL.sub("", route.key)
    if "{" in text or "}" in text:
        raise ConfigurationError(f"{where}: key {route.key!r} has a stray brace; write level names like {{site}}")
    if "}{" in route.key:
        raise ConfigurationError(f"{where}: key {route.key!r} joins two levels; put a '/' between them")
    if not names and route.partitions > 1:
        raise ConfigurationError(
            f"{where}: key {route.key!r} uses no named level, so one of {route.partitions} partitions would hold "
            "everything; use a level like {site} in it, or set partitions to 1"
        )


def _check_partitions(where: str, route: Route) -> None:
    for count in (route.partitions, *route.read_partitions):
        if type(count) is not int or not 1 <= count <= PARTITIONS_MAX:
            raise ConfigurationError(f"{where}: {count!r} partitions; give a whole number from 1 to {PARTITIONS_MAX}")


def _check_kafka_topic(where: str, kafka_topic: str) -> None:
    if not _KAFKA_TOPIC.fullmatch(kafka_topic) or kafka_topic in (".", ".."):
        raise ConfigurationError(
            f"{where}: {kafka_topic!r} is no legal Kafka topic name; use letters, digits, '.', '_' and '-'"
        )
    if len(kafka_topic) > KAFKA_TOPIC_LENGTH_MAX:
        raise ConfigurationError(
            f"{where}: the Kafka topic name is longer than {KAFKA_TOPIC_LENGTH_MAX} characters; shorten it"
        )
    folded = _collision_key(kafka_topic)
    reserved = folded.startswith((_collision_key(STATE_PREFIX), "__")) or folded == _collision_key(DEAD_LETTER)
    if reserved or (folded == _collision_key(ANALYTICS) and kafka_topic != ANALYTICS):
        raise ConfigurationError(
            f"{where}: Kafka topic {kafka_topic!r} is reserved; choose another, for example 'mqtt.<what it holds>'"
        )
    if folded.endswith(_collision_key(Q2_SUFFIX)):
        raise ConfigurationError(
            f"{where}: Kafka topic {kafka_topic!r} ends in {kafka_topic[-len(Q2_SUFFIX) :]!r}, "
            "which marks the QoS 2 twins; choose another ending"
        )


def _check_order(routes: Sequence[Route]) -> None:
    if routes[-1].filter != "#":
        raise ConfigurationError(
            f"route {len(routes)} {routes[-1].filter!r} is the last but not '#'; "
            "add a route with the filter '#' at the end, for all other Topic Names"
        )
    for number, route in enumerate(routes, 1):
        for earlier_number, earlier in enumerate(routes[: number - 1], 1):
            if covers(earlier.topic_filter, route.topic_filter):
                raise ConfigurationError(
                    f"route {number} {route.filter!r} is never reached, since route {earlier_number} "
                    f"{earlier.filter!r} takes all of it; move it up or drop it"
                )


def _check_shared_kafka_topics(routes: Sequence[Route]) -> None:
    """Several routes may feed one Kafka topic if they agree on its partitions and on nothing that Kafka forbids."""
    seen: dict[str, tuple[int, Route]] = {}
    for number, route in enumerate(routes, 1):
        earlier_number, earlier = seen.setdefault(_collision_key(route.kafka_topic), (number, route))
        if earlier.kafka_topic != route.kafka_topic:
            raise ConfigurationError(
                f"route {number} {route.filter!r}: Kafka cannot hold {route.kafka_topic!r} beside "
                f"{earlier.kafka_topic!r} of route {earlier_number}, since '.' and '_' collide there; rename one"
            )
        if (earlier.partitions, earlier.read_partitions) != (route.partitions, route.read_partitions):
            raise ConfigurationError(
                f"route {number} {route.filter!r}: {route.partitions} partitions, but route {earlier_number} gives "
                f"{route.kafka_topic!r} {earlier.partitions}; make them equal or use two Kafka topics"
            )


def _collision_key(kafka_topic: str) -> str:
    """Kafka refuses two topics that differ only in '.' and '_'."""
    return kafka_topic.replace(".", "_")


def message_kafka_topics(routes: Iterable[Route]) -> tuple[str, ...]:
    """The distinct Kafka topics of the routes, in order, without their QoS 2 twins."""
    return tuple(dict.fromkeys(route.kafka_topic for route in routes))
