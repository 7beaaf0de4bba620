"""Making and checking the Kafka topics of the catalogue.

`check` compares and says what to do, `apply` makes what is missing and corrects configuration, `show` tells what is
there. `apply` never changes a partition count: another count would send a Topic Name's messages to another partition.
`add_partitions` does, for `bridge.resize` alone. All raise AdminFailed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from schemas.catalogue import KafkaTopicSpec
from schemas.errors import HeadwaterError
from schemas.layouts import Layout
from schemas.routes import Q2_SUFFIX

PARTITION_COUNT = "the partition count"
REPLICATION_FACTOR = 3
REPLICATION_FACTOR_DEV = 1
VISIBLE_TIMEOUT_S = 15.0  # a created topic reaches every broker's metadata, with a leader, within about a second
_RETRY_S = 0.05
_REQUEST_TIMEOUT_MS = 20_000
_ALREADY_EXISTS = 36
_SET_ON_KAFKA_TOPIC = 1  # config_source of a value that was set on the Kafka topic itself (DescribeConfigs, KIP-226)


class AdminFailed(HeadwaterError):  # noqa: N818
    """Kafka could not be reached, or refused an administrative request; the text says which."""


@dataclass(frozen=True, slots=True)
class KafkaTopicState:
    """A Kafka topic as Kafka describes it; `overrides` are the settings made on the topic itself."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(hash=False)
    overrides: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as the catalogue wants it, and what to do about it."""

    kafka_topic: str
    what: str
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.kafka_topic}: {self.what} is {self.found}, should be {self.expected}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did and what it had to leave to the operator."""

    created: tuple[str, ...]
    altered: tuple[str, ...]
    remaining: tuple[Difference, ...]


def min_insync_replicas(replication_factor: int) -> int:
    """2 of 3: an acknowledged record survives the loss of a Kafka broker, and one may be away."""
    return 2 if replication_factor >= 3 else 1


async def apply(
    bootstrap: str,
    specs: Sequence[KafkaTopicSpec],
    replication_factor: int = REPLICATION_FACTOR,
    client_options: Mapping[str, Any] | None = None,
) -> Applied:
    """Make what is missing, correct configuration; return when every new Kafka topic can be written."""
    async with _admin(bootstrap, client_options) as admin:
        created = await _create_missing(admin, specs, replication_factor)
        if created:
            await _await_leaders(admin, created)
            partitions = [
                TopicPartition(spec.name, partition)
                for spec in specs
                if spec.name in created
                for partition in range(spec.partitions)
            ]
            await _await_served(bootstrap, partitions, client_options)
        states = await _describe(admin, specs)
        altered = await _correct_config(admin, specs, states, replication_factor)
        if altered:
            states = await _describe(admin, specs)
        return Applied(created, altered, differences(specs, states, replication_factor))


async def check(
    bootstrap: str,
    specs: Sequence[KafkaTopicSpec],
    replication_factor: int = REPLICATION_FACTOR,
    client_options: Mapping[str, Any] | None = None,
) -> tuple[Difference, ...]:
    """What is not as the catalogue wants it; empty when all is well. Changes nothing."""
    async with _admin(bootstrap, client_options) as admin:
        return differences(specs, await _describe(admin, specs), replication_factor)


async def missing(
    bootstrap: str, specs: Sequence[KafkaTopicSpec], client_options: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """The names of those Kafka topics of the catalogue that do not exist."""
    async with _admin(bootstrap, client_options) as admin:
        existing = set(await admin.list_topics())
        return tuple(spec.name for spec in specs if spec.name not in existing)


async def show(
    bootstrap: str, specs: Sequence[KafkaTopicSpec], client_options: Mapping[str, Any] | None = None
) -> tuple[KafkaTopicState, ...]:
    """Those Kafka topics of the catalogue that exist, in its order."""
    async with _admin(bootstrap, client_options) as admin:
        states = await _describe(admin, specs)
        return tuple(states[spec.name] for spec in specs if spec.name in states)


async def add_partitions(
    bootstrap: str, names: Sequence[str], at_least: int, client_options: Mapping[str, Any] | None = None
) -> int:
    """Give each of these Kafka topics this many partitions, if it has less, and return when they can be written; how
    many all of them have then. Kafka keeps what it has: nothing is ever taken away."""
    async with _admin(bootstrap, client_options) as admin:
        before = await _partition_counts(admin, names)
        wanted = max(at_least, *before.values())
        missing = {name: NewPartitions(total_count=wanted) for name, count in before.items() if count < wanted}
        if missing:
            await admin.create_partitions(missing)
            await _await_partitions(admin, names, wanted)
            added = [TopicPartition(name, partition) for name in missing for partition in range(before[name], wanted)]
            await _await_served(bootstrap, added, client_options)
        return wanted


async def _partition_counts(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, int]:
    counts = {each["topic"]: len(each["partitions"]) for each in await _metadata(admin, names)}
    if missing := [name for name in names if name not in counts]:
        raise AdminFailed(f"{', '.join(missing)}: no such Kafka topic; run `headwater topics apply`")
    return counts


async def _await_partitions(admin: AIOKafkaAdminClient, names: Sequence[str], partitions: int) -> None:
    async with asyncio.timeout(VISIBLE_TIMEOUT_S):
        while True:
            if min((await _partition_counts(admin, names)).values()) >= partitions:
                break
            await asyncio.sleep(_RETRY_S)
    await _await_leaders(admin, names)


def wanted_config(spec: KafkaTopicSpec, replication_factor: int) -> dict[str, str]:
    """The spec's configuration and the durability that goes with the replication factor."""
    return dict(spec.config) | {"min.insync.replicas": str(min_insync_replicas(replication_factor))}


def differences(
    specs: Iterable[KafkaTopicSpec], states: Mapping[str, KafkaTopicState], replication_factor: int
) -> tuple[Difference, ...]:
    """Compare; pure, so that every kind of difference is tested without Kafka."""
    found: list[Difference] = []
    for spec in specs:
        state = states.get(spec.name)
        if state is None:
            remedy = "run `headwater topics apply`"
            found.append(Difference(spec.name, "the Kafka topic", f"there ({spec.why})", "missing", remedy))
        else:
            found += _differences_of(spec, state, replication_factor)
    return tuple(found)


def without_resized(found: Iterable[Difference], layouts: Mapping[str, Layout]) -> tuple[Difference, ...]:
    """The differences that are none because a Kafka topic was resized: the layout counts, not the route; pure."""
    kept: list[Difference] = []
    for difference in found:
        layout = layouts.get(difference.kafka_topic.removesuffix(Q2_SUFFIX))
        if difference.what != PARTITION_COUNT or layout is None:
            kept.append(difference)
        elif difference.found != str(layout.kafka_partitions):
            remedy = "the Kafka topic was made anew or changed by hand: it must have this many partitions"
            kept.append(replace(difference, expected=str(layout.kafka_partitions), remedy=remedy))
    return tuple(kept)


def _differences_of(spec: KafkaTopicSpec, state: KafkaTopicState, replication_factor: int) -> list[Difference]:
    found: list[Difference] = []
    if state.partitions != spec.partitions:
        remedy = (
            f"set partitions = {state.partitions} in its route; `headwater topics resize` changes the count"
            if spec.name.startswith("mqtt.")
            else "delete the Kafka topic while no edge runs and run `headwater topics apply`"
        )
        found.append(Difference(spec.name, PARTITION_COUNT, str(spec.partitions), str(state.partitions), remedy))
    if state.replication_factor < replication_factor:
        remedy = "reassign it with kafka-reassign-partitions.sh (or use --dev where loss is acceptable)"
        found.append(
            Difference(
                spec.name, "the replication factor", str(replication_factor), str(state.replication_factor), remedy
            )
        )
    for name, value in wanted_config(spec, replication_factor).items():
        if (is_now := state.config.get(name, "not set")) != value:
            found.append(Difference(spec.name, name, value, is_now, "run `headwater topics apply`"))
    return found


@asynccontextmanager
async def _admin(bootstrap: str, client_options: Mapping[str, Any] | None) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client; every failure of Kafka's leaves as AdminFailed."""
    try:
        admin = AIOKafkaAdminClient(
            bootstrap_servers=bootstrap,
            client_id="headwater-admin",
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            **(client_options or {}),
        )
    except (KafkaError, ValueError) as error:
        raise AdminFailed(f"cannot use {bootstrap!r} as Kafka's address: {error}") from error
    try:
        try:
            await admin.start()
        except (KafkaError, OSError, ValueError) as error:
            raise AdminFailed(f"cannot reach Kafka at {bootstrap}: {error}. Is it running there?") from error
        try:
            yield admin
        except (KafkaError, TimeoutError) as error:
            raise AdminFailed(f"Kafka at {bootstrap} refused: {error!r}") from error
    finally:
        await admin.close()


async def _create_missing(
    admin: AIOKafkaAdminClient, specs: Sequence[KafkaTopicSpec], replication_factor: int
) -> tuple[str, ...]:
    existing = set(await admin.list_topics())
    missing = [spec for spec in specs if spec.name not in existing]
    if not missing:
        return ()
    wanted = [
        NewTopic(spec.name, spec.partitions, replication_factor, topic_configs=wanted_config(spec, replication_factor))
        for spec in missing
    ]
    answer = await admin.create_topics(wanted)
    created: list[str] = []
    for name, code, message in answer.topic_errors:
        if code == 0:
            created.append(name)
        elif code != _ALREADY_EXISTS:  # another edge made it just now
            raise AdminFailed(f"cannot create {name}: {message or for_code(code).__name__}{_hint(message)}")
    return tuple(created)


def _hint(message: str | None) -> str:
    """The usual first mistake: a single Kafka broker asked for three replicas."""
    is_replication = message is not None and "replication" in message.lower()
    return " (a Kafka with fewer than three brokers needs --dev)" if is_replication else ""


async def _await_leaders(admin: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    async with asyncio.timeout(VISIBLE_TIMEOUT_S):
        while True:
            described = await _metadata(admin, names)
            if len(described) == len(set(names)) and all(
                kafka_topic["error_code"] == 0 and all(one["leader"] >= 0 for one in kafka_topic["partitions"])
                for kafka_topic in described
            ):
                return
            await asyncio.sleep(_RETRY_S)


async def _await_served(
    bootstrap: str, partitions: Sequence[TopicPartition], client_options: Mapping[str, Any] | None
) -> None:
    """Metadata names a leader before that broker knows it is one; a leader that tells its end offset does."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, client_id="headwater-admin", **(client_options or {}))
    try:
        async with asyncio.timeout(VISIBLE_TIMEOUT_S):
            await consumer.start()
            await consumer.end_offsets(partitions)
    finally:
        await consumer.stop()


async def _metadata(admin: AIOKafkaAdminClient, names: Sequence[str]) -> list[dict[str, Any]]:
    """Those that exist. All are asked for: naming a missing one would create it where auto-creation is on."""
    wanted = set(names)
    return [kafka_topic for kafka_topic in await admin.describe_topics() if kafka_topic["topic"] in wanted]


async def _describe(admin: AIOKafkaAdminClient, specs: Sequence[KafkaTopicSpec]) -> dict[str, KafkaTopicState]:
    shapes: dict[str, tuple[int, int]] = {}
    for kafka_topic in await _metadata(admin, [spec.name for spec in specs]):
        if kafka_topic["error_code"] != 0:
            raise for_code(kafka_topic["error_code"])(kafka_topic["topic"])
        replicas = min((len(one["replicas"]) for one in kafka_topic["partitions"]), default=0)
        shapes[kafka_topic["topic"]] = (len(kafka_topic["partitions"]), replicas)
    configs = await _configs(admin, list(shapes))
    return {name: KafkaTopicState(name, *shape, *configs[name]) for name, shape in shapes.items()}


async def _configs(
    admin: AIOKafkaAdminClient, names: Sequence[str]
) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Per Kafka topic: the settings in force, and those made on the topic itself."""
    if not names:
        return {}
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    configs: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    for answer in answers:
        for code, message, _kind, name, entries in answer.resources:
            if code != 0:
                raise AdminFailed(f"cannot read the configuration of {name}: {message or for_code(code).__name__}")
            in_force = {entry[0]: entry[1] for entry in entries}
            configs[name] = in_force, {entry[0]: entry[1] for entry in entries if entry[3] == _SET_ON_KAFKA_TOPIC}
    return configs


async def _correct_config(
    admin: AIOKafkaAdminClient,
    specs: Sequence[KafkaTopicSpec],
    states: Mapping[str, KafkaTopicState],
    replication_factor: int,
) -> tuple[str, ...]:
    """AlterConfigs replaces all settings of a topic: the operator's own ones are sent along, so that they stay."""
    changes: list[ConfigResource] = []
    for spec in specs:
        wanted, state = wanted_config(spec, replication_factor), states.get(spec.name)
        if state is not None and any(state.config.get(name) != value for name, value in wanted.items()):
            changes.append(ConfigResource(ConfigResourceType.TOPIC, spec.name, dict(state.overrides) | wanted))
    if not changes:
        return ()
    for answer in await admin.alter_configs(changes):
        for code, message, _kind, name in answer.resources:
            if code != 0:
                raise AdminFailed(f"cannot configure {name}: {message or for_code(code).__name__}")
    return tuple(change.name for change in changes)
