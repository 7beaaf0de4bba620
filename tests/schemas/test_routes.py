"""Routes from configuration: what is accepted, and that each error says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import ConfigurationError
from schemas.routes import DEFAULT_ROUTES, Route, check_routes, load_routes, message_kafka_topics

REST = {"filter": "#", "kafka_topic": "mqtt.rest"}


def row(topic_filter: str, kafka_topic: str = "mqtt.x", **more: Any) -> dict[str, Any]:
    return {"filter": topic_filter, "kafka_topic": kafka_topic, **more}


def test_the_default_routes_are_good() -> None:
    check_routes(DEFAULT_ROUTES)


def test_load_routes() -> None:
    routes = load_routes([row("s/{site}/{dev}/#", key="{site}/{dev}", partitions=24, read_partitions=[12]), REST])
    assert routes == (
        Route("s/{site}/{dev}/#", "mqtt.x", key="{site}/{dev}", partitions=24, read_partitions=(12,)),
        Route("#", "mqtt.rest"),
    )
    assert message_kafka_topics(routes) == ("mqtt.x", "mqtt.rest")


def test_what_is_derived() -> None:
    route = Route("s/{site}/+/{dev}/#", "mqtt.x", key="k:{dev}/{site}", partitions=6, read_partitions=(12, 3))
    assert route.topic_filter == "s/+/+/+/#"
    assert route.level_names == {"site": 1, "dev": 3}
    assert route.key_parts == ("k:", 3, "/", 1)
    assert route.q2_kafka_topic == "mqtt.x.q2"
    assert route.partitions_total == 12
    assert Route("#", "mqtt.x").key_parts is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the table is empty; give at least one route with the filter '#'"),
        ([row("a/#")], "route 1 'a/#' is the last but not '#'; add a route with the filter '#' at the end"),
        (
            [REST | {"kafka_topic": "mqtt.y", "filter": "b"}, row("a/{x}", key="{y}"), REST],
            "route 2 'a/{x}': key uses {y}, which the filter does not name; name a level {y} or drop it from the key",
        ),
        ([row("a/{x}/{x}"), REST], "route 1 'a/{x}/{x}': two levels are named {x}; give each its own name"),
        ([row("a/b{x}"), REST], "level 'b{x}' is no named level; write a whole level like {site}"),
        ([row("a/{1}"), REST], "level '{1}' is no named level"),
        ([row("a/{}"), REST], "level '{}' is no named level"),
        ([row("a/#/b"), REST], "'#' must be the last level; correct the filter"),
        ([row(""), REST], "Topic Filter is empty; correct the filter"),
        ([row("$share/g/a"), REST], "a route cannot be a shared subscription"),
        ([row("a/{x}", key="{x"), REST], "stray brace"),
        ([row("a/{x}/{y}", key="{x}{y}"), REST], "joins two levels; put a '/' between them"),
        ([row("a/{x}", key="x"), REST], "use a level like {site} in it, or set partitions to 1"),
        ([row("a", partitions=0), REST], "0 partitions; give a whole number from 1 to 10000"),
        ([row("a", read_partitions=[True]), REST], "True partitions; give a whole number"),
        ([row("a", partitions="12"), REST], "'partitions' is '12'; give a whole number"),
        ([row("a", partitions=True), REST], "'partitions' is True; give a whole number"),
        ([row("a", producer_keys=1), REST], "'producer_keys' is 1; give true or false"),
        ([row("a", key=5), REST], "'key' is 5; give a text"),
        ([row("a", keys="x"), REST], "unknown setting 'keys'; known are filter, kafka_topic, key"),
        ([{"filter": "a"}, REST], "route 1 'a': 'kafka_topic' is missing; add it"),
        ([{"kafka_topic": "a"}, REST], "'filter' is missing; add it"),
        ([row("a", "mqtt/x"), REST], "'mqtt/x' is no legal Kafka topic name; use letters, digits"),
        ([row("a", ""), REST], "no legal Kafka topic name"),
        ([row("a", ".."), REST], "no legal Kafka topic name"),
        ([row("a", "mqtt.é"), REST], "no legal Kafka topic name"),
        ([row("a", "mqtt.x\n"), REST], "no legal Kafka topic name"),
        ([row("a", "m" * 247), REST], "longer than 246 characters; shorten it"),
        ([row("a", "headwater.x"), REST], "is reserved; choose another"),
        ([row("a", "headwater_claims"), REST], "is reserved"),
        ([row("a", "__consumer_offsets"), REST], "is reserved"),
        ([row("a", "mqtt.dead_letter"), REST], "is reserved"),
        ([row("a", "mqtt_analytics"), REST], "is reserved"),
        ([row("a", "mqtt.x.q2"), REST], "ends in '.q2', which marks the QoS 2 twins"),
        ([row("a", "mqtt.x_q2"), REST], "ends in '_q2', which marks the QoS 2 twins"),
        (
            [row("a/#"), row("a/{x}", "mqtt.y"), REST],
            "route 2 'a/{x}' is never reached, since route 1 'a/#' takes all of it; move it up or drop it",
        ),
        ([row("#"), REST], "route 2 '#' is never reached, since route 1 '#' takes all of it"),
        ([row("a"), row("b", partitions=3), REST], "3 partitions, but route 1 gives 'mqtt.x' 12; make them equal"),
        ([row("a", "mqtt.x_y"), row("b", "mqtt.x.y"), REST], "since '.' and '_' collide there; rename one"),
    ],
)
def test_errors_say_what_to_do(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_routes(rows)
    assert message in str(caught.value)


def test_a_constant_key_is_fine_with_one_partition() -> None:
    check_routes([Route("a/#", "mqtt.a", key="all", partitions=1), Route("#", "mqtt.rest")])


def test_the_longest_kafka_topic_leaves_room_for_its_twin() -> None:
    route = Route("#", "m" * 246)
    check_routes([route])
    assert len(route.q2_kafka_topic) == 249
