"""Routes with layouts: the delivery property over any resizes, where readers begin, who needs old partitions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bridge.murmur2 import partition_for_key
from bridge.partitioning import RouteTable
from bridge.resize_needs import needs_first, session_needs_first
from bridge.topics_admin import PARTITION_COUNT, Difference, without_resized
from schemas.layouts import Layout
from schemas.routes import DEFAULT_ROUTES, Q2_SUFFIX
from schemas.sessions import OutgoingEntry, SessionProgress, SessionState, StoredSession, StoredSubscription
from schemas.topics import matches

KAFKA_TOPICS = ("mqtt.sensors", "mqtt.messages", "mqtt.analytics")
LEVELS = st.sampled_from(["sensors", "analytics", "a", "b", "$x", "", "c1"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=4), st.booleans()).map(
    lambda parts: "/".join(parts[0] + ["#"] * parts[1])
)
COUNTS = st.lists(st.integers(1, 40), max_size=4)


def layout_of(kafka_topic: str, first: int, counts: list[int], step: int = 10) -> Layout:
    layout = Layout.of_route(kafka_topic, first)
    in_kafka = max(first, *counts, 0)
    for number, count in enumerate(counts, 1):
        ends = tuple(step * number for _ in range(in_kafka))
        begins = tuple(step * number - 1 for _ in range(in_kafka))
        layout = layout.reading(count, (begins, begins), in_kafka).frozen().switched((ends, ends), 0)
    return layout


def table_of(counts: list[int], *, dropped: int = 0) -> RouteTable:
    table = RouteTable(DEFAULT_ROUTES)
    for route in DEFAULT_ROUTES:
        layout = layout_of(route.kafka_topic, route.partitions, counts)
        for _ in range(min(dropped, len(counts))):
            layout = layout.without_first()
        table.set_layout(route.kafka_topic, layout)
    return table


@given(NAMES, FILTERS, COUNTS, st.integers(0, 4))
def test_every_partition_of_a_name_is_read_for_every_filter_that_matches_it(
    name: str, topic_filter: str, counts: list[int], dropped: int
) -> None:
    if not matches(topic_filter, name):
        return
    table = table_of(counts, dropped=dropped)
    destination = table.destination(name)
    layout = table.layout(destination.kafka_topic)
    assert destination.partition == partition_for_key(destination.key, layout.written.partitions)
    for generation in layout.generations:
        place = (destination.kafka_topic, partition_for_key(destination.key, generation.partitions))
        assert place in table.partitions(topic_filter)
        twin = (place[0] + Q2_SUFFIX, place[1])
        assert twin in table.twin_partitions(topic_filter)
        for position in (place, twin):
            assert table.begins(topic_filter)[position] <= (generation.begins[0] or (0,) * 41)[place[1]]
    for count in (*layout.former, *layout.counts):
        partition = partition_for_key(destination.key, count)
        kept = table.kept_partitions(topic_filter)
        assert {(destination.kafka_topic, partition), (destination.kafka_topic + Q2_SUFFIX, partition)} <= kept


@given(NAMES, COUNTS)
def test_a_record_that_waited_goes_where_its_name_goes_now(name: str, counts: list[int]) -> None:
    before, table = RouteTable(DEFAULT_ROUTES).destination(name), table_of(counts)
    for old, new in ((before, table.destination(name)), (before.twin(), table.destination(name).twin())):
        assert table.place(old.position, old.key) == new.position
    assert table.place(("headwater.sessions", 3), b"k") == ("headwater.sessions", 3)


@given(COUNTS)
def test_a_filter_that_fixes_the_key_costs_one_partition_per_count(counts: list[int]) -> None:
    assert len(table_of(counts).partitions("sensors/a/b/#")) <= len({12, *counts})


def test_a_layout_that_is_gone_leaves_the_routes_alone() -> None:
    table, version = table_of([24, 6]), RouteTable(DEFAULT_ROUTES).version
    assert table.version != version
    for kafka_topic in KAFKA_TOPICS:
        table.set_layout(kafka_topic, None)
    assert (table.version, table.moved, table.barriers) == (version, {}, {})
    assert table.partitions("#") == RouteTable(DEFAULT_ROUTES).partitions("#")


def test_producers_that_choose_partitions_are_read_everywhere() -> None:
    table = table_of([24, 6], dropped=2)
    assert {partition for name, partition in table.partitions("analytics/#")} == set(range(24))
    assert {partition for name, partition in table.partitions("sensors/#")} == set(range(6))


# Who needs old partitions

SENSOR = "sensors/a/b/t"  # 12 -> 24: other partitions of the same key


def session(at: dict[tuple[str, int], int], topic_filter: str = "sensors/#", **progress: object) -> StoredSession:
    state = SessionState("c", "p", 5, 3600, (StoredSubscription(topic_filter, 1),))
    return StoredSession(1, state, SessionProgress(at, **progress))  # type: ignore[arg-type]


def everywhere(offset: int, partitions: int = 12) -> dict[tuple[str, int], int]:
    return {(name, each): offset for name in ("mqtt.sensors", "mqtt.sensors.q2") for each in range(partitions)}


def test_a_session_needs_the_old_partitions_until_it_is_past_the_switch_everywhere() -> None:
    table = table_of([24])
    layout = table.layout("mqtt.sensors")

    def needs(stored: StoredSession, starts: dict[tuple[str, int], int] | None = None) -> bool:
        return session_needs_first(stored, table, layout, starts or {})

    assert needs(session(everywhere(9)))
    assert not needs(session(everywhere(10)))
    assert needs(session(everywhere(10) | {("mqtt.sensors.q2", 11): 9}))
    assert not needs(session(everywhere(9)), everywhere(10))  # deleted by retention
    assert not needs(session(everywhere(9), "other/#"))
    assert not needs(session(everywhere(9), "$share/g/sensors/#"))
    assert needs(session(everywhere(9), "$exclusive/sensors/#"))
    in_flight = {7: OutgoingEntry("mqtt.sensors", 3, 9, 1)}
    assert needs(session(everywhere(10), outgoing=in_flight))
    ending = session(everywhere(9))
    assert not needs(StoredSession(1, replace(ending.state, expiry_s=0), ending.progress))


def test_a_session_that_never_heard_of_a_generation_needs_it_all() -> None:
    table = table_of([24, 6])
    for _ in range(1):
        table.set_layout("mqtt.sensors", table.layout("mqtt.sensors").without_first())
    layout = table.layout("mqtt.sensors")
    key = table.destination(SENSOR).key
    old, middle = partition_for_key(key, 12), partition_for_key(key, 24)
    at = {(name, old): 10 for name in ("mqtt.sensors", "mqtt.sensors.q2")}
    assert needs_first(SENSOR, at, table, layout, {}) is (middle not in {old})


def test_the_layout_counts_when_kafka_topics_are_checked() -> None:
    layouts = {"mqtt.sensors": layout_of("mqtt.sensors", 12, [24, 6])}
    found = [
        Difference("mqtt.sensors", PARTITION_COUNT, "12", "24", "..."),
        Difference("mqtt.sensors.q2", PARTITION_COUNT, "12", "12", "..."),
        Difference("mqtt.sensors", "retention.ms", "1", "2", "..."),
        Difference("mqtt.messages", PARTITION_COUNT, "12", "24", "..."),
    ]
    kept = without_resized(found, layouts)
    assert [(each.kafka_topic, each.what, each.expected) for each in kept] == [
        ("mqtt.sensors.q2", PARTITION_COUNT, "24"),
        ("mqtt.sensors", "retention.ms", "1"),
        ("mqtt.messages", PARTITION_COUNT, "12"),
    ]
