"""The catalogue's Kafka topics, made and checked on a real Kafka."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from bridge.embedded_kafka.server import free_port
from bridge.topics_admin import (
    AdminFailed,
    KafkaTopicState,
    apply,
    check,
    differences,
    min_insync_replicas,
    show,
    wanted_config,
)
from schemas.catalogue import KafkaTopicSpec, catalogue


@pytest.fixture
def specs() -> tuple[KafkaTopicSpec, ...]:
    """The whole catalogue under names of this test's own."""
    suffix = secrets.token_hex(4)
    return tuple(replace(spec, name=f"{spec.name}.{suffix}") for spec in catalogue())


def as_wanted(spec: KafkaTopicSpec, replication_factor: int = 3) -> KafkaTopicState:
    config = wanted_config(spec, replication_factor)
    return KafkaTopicState(spec.name, spec.partitions, replication_factor, config, config)


def test_all_as_wanted_is_no_difference() -> None:
    states = {spec.name: as_wanted(spec) for spec in catalogue()}
    assert differences(catalogue(), states, 3) == ()


def test_each_kind_of_difference_names_its_remedy() -> None:
    first, second, third, fourth = catalogue()[:4]
    states = {
        second.name: replace(as_wanted(second), partitions=second.partitions + 1),
        third.name: replace(as_wanted(third), replication_factor=1),
        fourth.name: replace(as_wanted(fourth), config=wanted_config(fourth, 3) | {"cleanup.policy": "compact,delete"}),
    }
    missing, partitions, replication, config = differences((first, second, third, fourth), states, 3)
    assert "missing" in str(missing)
    assert "topics apply" in str(missing)
    assert (partitions.expected, partitions.found) == (str(second.partitions), str(second.partitions + 1))
    assert f"partitions = {second.partitions + 1}" in partitions.remedy
    assert (replication.expected, replication.found) == ("3", "1")
    assert (config.what, config.found) == ("cleanup.policy", "compact,delete")


def test_more_replicas_than_asked_are_no_difference() -> None:
    states = {spec.name: replace(as_wanted(spec), replication_factor=5) for spec in catalogue()}
    assert differences(catalogue(), states, 3) == ()


@pytest.mark.parametrize(("replication_factor", "expected"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_min_insync(replication_factor: int, expected: int) -> None:
    assert min_insync_replicas(replication_factor) == expected


async def test_apply_makes_what_check_misses(kafka_bootstrap: str, specs: tuple[KafkaTopicSpec, ...]) -> None:
    before = await check(kafka_bootstrap, specs, 1)
    assert [difference.found for difference in before] == ["missing"] * len(specs)
    applied = await apply(kafka_bootstrap, specs, 1)
    assert sorted(applied.created) == sorted(spec.name for spec in specs)
    assert (applied.altered, applied.remaining) == ((), ())
    assert await check(kafka_bootstrap, specs, 1) == ()
    states = await show(kafka_bootstrap, specs)
    assert [(state.name, state.partitions) for state in states] == [(spec.name, spec.partitions) for spec in specs]
    assert all(state.config["message.timestamp.type"] == "LogAppendTime" for state in states)
    again = await apply(kafka_bootstrap, specs, 1)
    assert (again.created, again.altered) == ((), ())


async def test_apply_corrects_configuration_and_keeps_the_operators_own(
    kafka_bootstrap: str, specs: tuple[KafkaTopicSpec, ...]
) -> None:
    spec = specs[0]
    operators = {"segment.bytes": "1048576"}
    drifted = replace(spec, config=dict(spec.config) | operators | {"max.message.bytes": "1000"})
    await apply(kafka_bootstrap, [drifted], 1)
    (difference,) = await check(kafka_bootstrap, [spec], 1)
    assert (difference.what, difference.found) == ("max.message.bytes", "1000")
    applied = await apply(kafka_bootstrap, [spec], 1)
    assert applied.altered == (spec.name,)
    assert applied.remaining == ()
    (state,) = await show(kafka_bootstrap, [spec])
    assert state.overrides["segment.bytes"] == "1048576"


async def test_apply_leaves_another_partition_count_and_says_so(
    kafka_bootstrap: str, specs: tuple[KafkaTopicSpec, ...]
) -> None:
    spec = specs[0]
    await apply(kafka_bootstrap, [replace(spec, partitions=2)], 1)
    applied = await apply(kafka_bootstrap, [spec], 1)
    (difference,) = applied.remaining
    assert (difference.what, difference.found) == ("the partition count", "2")


async def test_too_many_replicas_for_one_broker_hints_at_dev(
    kafka_bootstrap: str, specs: tuple[KafkaTopicSpec, ...]
) -> None:
    with pytest.raises(AdminFailed, match="--dev"):
        await apply(kafka_bootstrap, specs[:1], 3)


async def test_no_kafka_says_where_it_was_looked_for() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    with pytest.raises(AdminFailed, match=bootstrap):
        await check(bootstrap, catalogue(), 1)
