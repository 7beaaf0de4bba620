"""Routing in both directions: names to partitions, filters to all partitions that can hold such a name."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bridge.murmur2 import partition_for_key
from bridge.partitioning import RouteTable
from schemas.errors import ConfigurationError
from schemas.routes import DEFAULT_ROUTES, Route, check_routes
from schemas.topics import matches

DEFAULT = RouteTable(DEFAULT_ROUTES)

LEVELS = st.sampled_from(["a", "b", "", "$x", "é"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


def filters(literals: st.SearchStrategy[str] = LEVELS) -> st.SearchStrategy[str]:
    levels = st.lists(st.one_of(literals, st.just("+")), max_size=4)
    tails = st.sampled_from([["#"], []])
    return st.builds(lambda head, tail: "/".join(head + tail), levels, tails).filter(bool)


@st.composite
def route_tables(draw: st.DrawFn) -> RouteTable:
    routes: list[Route] = []
    for number in range(draw(st.integers(0, 4))):
        routes.append(draw(routes_named(f"mqtt.r{number}")))
    routes.append(Route("#", "mqtt.rest", partitions=draw(st.integers(1, 9))))
    try:
        return RouteTable(routes)
    except ConfigurationError:
        assume(False)
        raise


@st.composite
def routes_named(draw: st.DrawFn, kafka_topic: str) -> Route:
    spelled = draw(filters(st.one_of(LEVELS, st.sampled_from(["{p}", "{q}", "{r}"]))))
    names = [level for level in ("{p}", "{q}", "{r}") if level in spelled]
    separators = st.sampled_from(["/", "-", ":a:"])
    key = None
    if names and draw(st.booleans()):
        used = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        key = draw(st.sampled_from(["", "k/"])) + draw(separators).join(used)
    return Route(
        spelled,
        kafka_topic,
        key=key,
        partitions=draw(st.integers(1, 9)),
        producer_keys=draw(st.booleans()),
        read_partitions=tuple(draw(st.lists(st.integers(1, 12), max_size=2))),
    )


@given(route_tables(), filters(), st.lists(NAMES, min_size=1, max_size=20))
def test_a_matched_name_lands_in_the_partitions_of_its_filter(
    table: RouteTable, topic_filter: str, topic_names: list[str]
) -> None:
    found = table.partitions(topic_filter)
    for topic_name in topic_names:
        if matches(topic_filter, topic_name):
            destination = table.destination(topic_name)
            assert (destination.kafka_topic, destination.partition) in found


@given(route_tables(), NAMES, st.data())
def test_a_filter_made_from_a_name_finds_it(table: RouteTable, topic_name: str, data: st.DataObject) -> None:
    """The same property from the other end, so that every example has a match."""
    levels = topic_name.split("/")
    first_is_plain = levels[0].startswith("$")
    spelled = [
        level if (index == 0 and first_is_plain) or data.draw(st.booleans()) else "+"
        for index, level in enumerate(levels)
    ]
    if data.draw(st.booleans()):
        cut = data.draw(st.integers(1 if first_is_plain else 0, len(spelled)))
        spelled = [*spelled[:cut], "#"]
    topic_filter = "/".join(spelled)
    assume(topic_filter)
    assert matches(topic_filter, topic_name)
    destination = table.destination(topic_name)
    assert (destination.kafka_topic, destination.partition) in table.partitions(topic_filter)


@given(route_tables(), NAMES)
def test_an_old_record_of_a_resize_is_still_read(table: RouteTable, topic_name: str) -> None:
    """A record that was written under any count that readers honour is in the exact filter's partitions."""
    destination = table.destination(topic_name)
    route = next(route for route in table.routes if route.kafka_topic == destination.kafka_topic)
    found = table.partitions(topic_name)
    for count in (route.partitions, *route.read_partitions):
        assert (route.kafka_topic, partition_for_key(destination.key, count)) in found


@given(route_tables(), NAMES)
def test_first_match_wins(table: RouteTable, topic_name: str) -> None:
    wanted = next((r for r in table.routes if matches(r.topic_filter, topic_name)), table.routes[-1])
    assert table.destination(topic_name).kafka_topic == wanted.kafka_topic


@given(route_tables(), NAMES)
def test_the_reverse_template_never_lies(table: RouteTable, topic_name: str) -> None:
    """A name made from a key is routed to the record's Kafka topic under the same key."""
    destination = table.destination(topic_name)
    found = table.topic_name_from_key(destination.kafka_topic, destination.key)
    if found is not None:
        assert table.destination(found) == destination


def test_default_routes() -> None:
    destination = DEFAULT.destination("sensors/ewr/n14228/altitude")
    assert destination.kafka_topic == "mqtt.sensors"
    assert destination.key == b"ewr/n14228"
    assert destination.partition == partition_for_key(b"ewr/n14228", 12)
    assert DEFAULT.destination("sensors/ewr").kafka_topic == "mqtt.messages"
    assert DEFAULT.destination("sensors/ewr").key == b"sensors/ewr"
    assert DEFAULT.destination("analytics").kafka_topic == "mqtt.analytics"
    assert DEFAULT.destination("$odd/name").kafka_topic == "mqtt.messages"
    assert DEFAULT.kafka_topics == ("mqtt.analytics", "mqtt.sensors", "mqtt.messages")


@pytest.mark.parametrize("topic_filter", ["sensors/a/b/#", "sensors/a/b", "sensors/a/b/+", "sensors/a/b/+/c/#"])
def test_a_filter_that_fixes_the_key_levels_reads_one_partition(topic_filter: str) -> None:
    assert DEFAULT.partitions(topic_filter) == {("mqtt.sensors", partition_for_key(b"a/b", 12))}


@pytest.mark.parametrize(
    ("topic_filter", "kafka_topics"),
    [
        ("sensors/+/b/#", {"mqtt.sensors": 12}),
        ("sensors/a/#", {"mqtt.sensors": 12, "mqtt.messages": 12}),
        ("#", {"mqtt.analytics": 4, "mqtt.sensors": 12, "mqtt.messages": 12}),
        ("+/a/b", {"mqtt.analytics": 4, "mqtt.sensors": 1, "mqtt.messages": 12}),
        ("analytics/a/b", {"mqtt.analytics": 4}),
        ("lights/+", {"mqtt.messages": 12}),
        ("lights/kitchen", {"mqtt.messages": 1}),
        ("$odd/#", {"mqtt.messages": 12}),
    ],
)
def test_partitions_per_kafka_topic(topic_filter: str, kafka_topics: dict[str, int]) -> None:
    found = sorted(kafka_topic for kafka_topic, _ in DEFAULT.partitions(topic_filter))
    assert {name: len(list(group)) for name, group in itertools.groupby(found)} == kafka_topics


def test_a_resize_reads_the_union_of_old_and_new() -> None:
    growing = Route("s/{d}/#", "mqtt.s", key="{d}", partitions=12, read_partitions=(24,))
    table = RouteTable([growing, Route("#", "mqtt.rest")])
    old, new = partition_for_key(b"dev", 12), partition_for_key(b"dev", 24)
    assert table.destination("s/dev/x").partition == old
    assert table.partitions("s/dev/#") == {("mqtt.s", old), ("mqtt.s", new)}
    assert table.partitions("s/+/#") == {("mqtt.s", partition) for partition in range(24)}


@pytest.mark.parametrize(
    ("route", "key", "topic_name"),
    [
        (Route("sensors/{site}/{device}/#", "mqtt.x", key="{site}/{device}"), b"a/b", "sensors/a/b"),
        (Route("sensors/{site}/{device}", "mqtt.x", key="{device}@{site}"), b"b@a", "sensors/a/b"),
        (Route("sensors/{site}/{device}", "mqtt.x", key="{site}-{device}"), b"a-b-c", None),  # two readings
        (Route("sensors/{site}/{device}", "mqtt.x", key="{site}"), b"a", None),  # the key lacks {device}
        (Route("sensors/{site}/+", "mqtt.x", key="{site}"), b"a", None),  # an unnamed level
        (Route("sensors/{site}/#", "mqtt.x", key="{site}:{site}"), b"a:a", "sensors/a"),
        (Route("sensors/{site}/#", "mqtt.x", key="{site}:{site}"), b"a:b", None),
        (Route("sensors/{site}/#", "mqtt.x", key="k/{site}"), b"a", None),  # not of the template
        (Route("sensors/{site}/#", "mqtt.x", key="{site}"), b"a/b", None),
        (Route("sensors/{site}/#", "mqtt.x", key="{site}"), b"a+", None),  # no legal Topic Name
        (Route("sensors/{site}/#", "mqtt.x", key="{site}"), b"\xff", None),
        (Route("sensors/{site}/#", "mqtt.x", key="{site}"), None, None),
        (Route("sensors/#", "mqtt.x"), b"sensors/a/b", "sensors/a/b"),
        (Route("sensors/#", "mqtt.x"), b"lights/a", None),  # its subscribers read another Kafka topic
    ],
)
def test_topic_name_from_key(route: Route, key: bytes | None, topic_name: str | None) -> None:
    table = RouteTable([route, Route("#", "mqtt.rest")])
    assert table.topic_name_from_key("mqtt.x", key) == topic_name
    assert table.topic_name_from_key("mqtt.x.q2", key) == topic_name


def test_the_default_route_takes_the_key_as_the_name() -> None:
    assert DEFAULT.topic_name_from_key("mqtt.messages", b"lights/kitchen") == "lights/kitchen"
    assert DEFAULT.topic_name_from_key("mqtt.messages", b"sensors/a/b") is None  # would be routed to mqtt.sensors
    assert DEFAULT.topic_name_from_key("mqtt.unknown", b"lights/kitchen") is None
    assert DEFAULT.topic_name_from_key("mqtt.messages", b"") is None


def test_several_routes_may_feed_one_kafka_topic() -> None:
    routes = [Route("a/{x}", "mqtt.ab", key="a:{x}"), Route("b/{x}", "mqtt.ab", key="b:{x}"), Route("#", "mqtt.rest")]
    check_routes(routes)
    table = RouteTable(routes)
    assert table.kafka_topics == ("mqtt.ab", "mqtt.rest")
    assert table.topic_name_from_key("mqtt.ab", b"b:1") == "b/1"


def test_the_version_changes_with_the_routes() -> None:
    assert RouteTable(DEFAULT_ROUTES).version == DEFAULT.version
    assert RouteTable(DEFAULT_ROUTES[1:]).version != DEFAULT.version


def test_a_bad_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="add a route with the filter '#' at the end"):
        RouteTable([Route("a/#", "mqtt.a")])
