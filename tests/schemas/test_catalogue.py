"""The Kafka topic catalogue has every row of the design, legally named and completely configured."""

from __future__ import annotations

import re

from schemas.catalogue import MESSAGE_BYTES_MAX, catalogue, markdown_table
from schemas.routes import DEFAULT_ROUTES, Route

SPECS = {spec.name: spec for spec in catalogue(DEFAULT_ROUTES)}


def test_every_row_of_the_design() -> None:
    cleanup = {name: spec.cleanup_policy for name, spec in SPECS.items()}
    assert cleanup == {
        "mqtt.messages": "delete",
        "mqtt.messages.q2": "delete",
        "mqtt.sensors": "delete",
        "mqtt.sensors.q2": "delete",
        "mqtt.analytics": "delete",
        "mqtt.analytics.q2": "delete",
        "mqtt.dead_letter": "delete",
        "headwater.claims": "compact",
        "headwater.sessions": "compact",
        "headwater.retained": "compact",
        "headwater.delayed": "compact",
        "headwater.nodes": "compact",
        "headwater.events": "delete",
        "headwater.control": "compact",
        "headwater.catalogue": "compact",
    }


def test_settings() -> None:
    for name, spec in SPECS.items():
        assert spec.config["cleanup.policy"] == spec.cleanup_policy
        assert spec.config["message.timestamp.type"] == "LogAppendTime"
        assert spec.config["max.message.bytes"] == str(MESSAGE_BYTES_MAX) == "2097152"
        assert ("retention.ms" in spec.config) is (spec.cleanup_policy == "delete"), name
        assert all(type(value) is str for value in spec.config.values())
        assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name)
        assert spec.partitions >= 1
        assert spec.key
        assert spec.value
        assert spec.why
        assert isinstance(hash(spec), int)


def test_names_do_not_collide_in_kafka() -> None:
    assert len({name.replace(".", "_") for name in SPECS}) == len(SPECS)


def test_a_twin_has_its_topics_partitions() -> None:
    for route in DEFAULT_ROUTES:
        assert SPECS[route.kafka_topic].partitions == SPECS[route.q2_kafka_topic].partitions == route.partitions


def test_a_resize_makes_room_for_both_counts() -> None:
    specs = {s.name: s for s in catalogue([Route("#", "mqtt.a", partitions=6, read_partitions=(24,))])}
    assert specs["mqtt.a"].partitions == specs["mqtt.a.q2"].partitions == 24


def test_analytics_is_there_without_a_route() -> None:
    names = [spec.name for spec in catalogue([Route("#", "mqtt.analytics")])]
    assert names.count("mqtt.analytics") == 1
    assert "mqtt.analytics" in {spec.name for spec in catalogue([Route("#", "mqtt.rest")])}


def test_the_markdown_table() -> None:
    lines = markdown_table().splitlines()
    assert len(lines) == 2 + len(SPECS)
    assert all(line.startswith(("| ", "|-")) for line in lines)
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert any(line.startswith("| `headwater.claims` | 12 | client id |") for line in lines)
