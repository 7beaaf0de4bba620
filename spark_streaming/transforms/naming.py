"""Topic Names of records, and the device in a Topic Name: the routes' rules as columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as fn

from schemas.records import HEADER_TOPIC
from schemas.routes import Route

TOPIC_NAME_BYTES_MAX = 65_535  # [MQTT5-4.7.3-3]
_NO_LEVEL = "[+#\\x00]"  # what no Topic Name holds [MQTT5-4.7.0-1] [MQTT5-4.7.3-2]


def header(headers: Column, name: str) -> Column:
    """The last value of a header, as bytes; null when there is none. Repeated headers are legal in Kafka."""
    found = fn.filter(headers, lambda one: (one["key"] == name) & one["value"].isNotNull())
    return fn.try_element_at(found, fn.lit(-1))["value"]


def topic_name(headers: Column, kafka_topic: Column, key: Column, routes: Sequence[Route]) -> Column:
    """The Topic Name in the header, else from the key by the route's reverse template, else null."""
    named = fn.try_validate_utf8(header(headers, HEADER_TOPIC).cast("string"))
    name = fn.coalesce(named, _from_key(kafka_topic, fn.try_validate_utf8(key.cast("string")), routes))
    is_name = fn.octet_length(name).between(1, TOPIC_NAME_BYTES_MAX) & ~name.rlike(_NO_LEVEL)
    return fn.when(is_name, name)


def matches(name: Column, topic_filter: str) -> Column:
    """Whether a Topic Name matches a Topic Filter, `$` names included only by name [MQTT5-4.7.2-1]."""
    found = name.rlike(filter_pattern(topic_filter))
    return found & ~name.startswith("$") if topic_filter[:1] in ("+", "#") else found


def filter_pattern(topic_filter: str) -> str:
    """A Topic Filter as an anchored regular expression; `a/#` matches `a` as well [MQTT5-4.7.1-2]."""
    if topic_filter == "#":
        return "(?s)^.*$"
    base, is_open = topic_filter.removesuffix("/#"), topic_filter.endswith("/#")
    levels = ("[^/]*" if level == "+" else re.escape(level) for level in base.split("/"))
    return "(?s)^" + "/".join(levels) + ("(/.*)?$" if is_open else "$")


def device(name: Column, routes: Sequence[Route], levels: tuple[int, int | None] | None) -> Column:
    """The levels that name the device, joined by `/`; the whole Topic Name when it has too few levels.

    `levels` are the first and last level counted from 1 (None: to the end); without it each route says: the levels
    after the first up to the last that its key uses, or all after the first.
    """
    if levels is not None:
        return _levels(name, *levels)
    found = _levels(name, 2, None)
    for route in reversed(routes):
        found = fn.when(name.rlike(filter_pattern(route.topic_filter)), _levels(name, *device_levels(route))).otherwise(
            found
        )
    return found


def device_levels(route: Route) -> tuple[int, int | None]:
    """First and last level of the device's name in a route, counted from 1."""
    used = [part + 1 for part in route.key_parts or () if isinstance(part, int) and part > 0]
    return 2, max(used, default=None)


def _levels(name: Column, first: int, last: int | None) -> Column:
    parts = fn.split(name, "/")
    length = fn.size(parts) if last is None else fn.lit(last - first + 1)
    kept = fn.array_join(fn.slice(parts, first, fn.greatest(length, fn.lit(0))), "/")
    return fn.when((fn.size(parts) < first) | (kept == ""), name).otherwise(kept)


def _from_key(kafka_topic: Column, key: Column, routes: Sequence[Route]) -> Column:
    name = fn.lit(None).cast("string")
    for route in reversed(routes):
        if reverse := _reverse_template(route):
            pattern, pieces = reverse
            made = fn.concat(
                *(
                    fn.lit(piece) if isinstance(piece, str) else fn.regexp_extract(key, pattern, piece)
                    for piece in pieces
                )
            )
            is_route = (kafka_topic == route.kafka_topic) & key.rlike(pattern)
            name = fn.when(is_route, made).otherwise(name)
    return name


def _reverse_template(route: Route) -> tuple[str, list[str | int]] | None:
    """A pattern for keys, and the texts and group numbers that make the Topic Name; None when it cannot be reversed."""
    key_parts = route.key_parts
    if key_parts is None:
        return "(?s)^(.*)$", [1]
    groups = {part: number for number, part in enumerate((p for p in key_parts if isinstance(p, int)), 1)}
    levels = route.topic_filter.removesuffix("/#").split("/")
    pieces: list[str | int] = []
    for index, level in enumerate(levels):
        if level in ("+", "#") and index not in groups:
            return None
        pieces += ["/"] if index else []
        pieces.append(groups.get(index, level))
    pattern = "".join(re.escape(part) if isinstance(part, str) else "([^/]*)" for part in key_parts)
    return f"(?s)^{pattern}$", pieces
