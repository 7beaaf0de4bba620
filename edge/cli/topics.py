"""`headwater topics`: make, check and show the Kafka topics of the catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.table import Table

from bridge import topics_admin
from bridge.topics_admin import (
    PARTITION_COUNT,
    REPLICATION_FACTOR,
    REPLICATION_FACTOR_DEV,
    Applied,
    Difference,
    KafkaTopicState,
)
from edge.cli import catalogue as families
from edge.cli import resize
from edge.cli.console import Cluster, ConfigOption, JsonOption, KafkaOption, RoutesOption, cluster, output, print_json
from edge.cli.control import operator
from schemas.catalogue import CONTROL, KafkaTopicSpec, catalogue
from schemas.layouts import Layout

app = typer.Typer(help="Make, check and show the Kafka topics.", no_args_is_help=True)
app.command("catalogue")(families.run)
app.command("resize")(resize.run)

DevOption = Annotated[
    bool, typer.Option("--dev", help="One replica instead of three: for a single Kafka broker, where loss is fine.")
]


@app.command("apply")
def apply_command(
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    routes: RoutesOption = None,
    dev: DevOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the Kafka topics that are missing and correct their configuration."""
    target = cluster(kafka, config, routes)
    specs = catalogue(target.routes)
    applied = asyncio.run(_apply(target, specs, _replicas(dev)))
    if as_json:
        print_json(asdict(applied))
    else:
        console = output()
        for name in applied.created:
            console.print(f"created {name}")
        for name in applied.altered:
            console.print(f"corrected {name}")
        _print_differences(applied.remaining)
        if not (applied.created or applied.altered or applied.remaining):
            console.print(f"all {len(specs)} Kafka topics were as they should be")
    if applied.remaining:
        raise typer.Exit(1)


@app.command("check")
def check_command(
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    routes: RoutesOption = None,
    dev: DevOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is not as it should be; exit code 1 when anything is."""
    target = cluster(kafka, config, routes)
    specs = catalogue(target.routes)
    found = asyncio.run(_check(target, specs, _replicas(dev)))
    if as_json:
        print_json([asdict(difference) for difference in found])
    else:
        _print_differences(found)
        if not found:
            output().print(f"all {len(specs)} Kafka topics are as they should be")
    if found:
        raise typer.Exit(1)


@app.command("show")
def show_command(
    kafka: KafkaOption = None, config: ConfigOption = None, routes: RoutesOption = None, as_json: JsonOption = False
) -> None:
    """List the Kafka topics that exist, with their settings."""
    target = cluster(kafka, config, routes)
    states = asyncio.run(topics_admin.show(target.bootstrap, catalogue(target.routes), target.client_options))
    if as_json:
        print_json(
            [
                {
                    "name": state.name,
                    "partitions": state.partitions,
                    "replication_factor": state.replication_factor,
                    "config": dict(state.overrides),
                }
                for state in states
            ]
        )
        return
    output().print(_table(states))


async def _apply(target: Cluster, specs: Sequence[KafkaTopicSpec], replicas: int) -> Applied:
    applied = await topics_admin.apply(target.bootstrap, specs, replicas, target.client_options)
    return replace(applied, remaining=await _without_resized(target, applied.remaining))


async def _check(target: Cluster, specs: Sequence[KafkaTopicSpec], replicas: int) -> tuple[Difference, ...]:
    found = await topics_admin.check(target.bootstrap, specs, replicas, target.client_options)
    return await _without_resized(target, found)


async def _without_resized(target: Cluster, found: tuple[Difference, ...]) -> tuple[Difference, ...]:
    """Asked only when something looks wrong: `headwater.control` may not be there yet."""
    if not any(difference.what == PARTITION_COUNT for difference in found):
        return found
    if any(difference.kafka_topic == CONTROL for difference in found):
        return found
    async with operator(target) as who:
        layouts = {name: held.entry for name, held in who.control.view.layouts().items()}
    return topics_admin.without_resized(
        found, {name: layout for name, layout in layouts.items() if isinstance(layout, Layout)}
    )


def _table(states: tuple[KafkaTopicState, ...]) -> Table:
    table = Table("Kafka topic", "partitions", "replicas", "settings")
    for state in states:
        settings = ", ".join(f"{name}={value}" for name, value in sorted(state.overrides.items()))
        table.add_row(state.name, str(state.partitions), str(state.replication_factor), settings)
    return table


def _print_differences(found: tuple[Difference, ...]) -> None:
    console = output()
    for difference in found:
        console.print(str(difference), soft_wrap=True, markup=False)


def _replicas(dev: bool) -> int:
    return REPLICATION_FACTOR_DEV if dev else REPLICATION_FACTOR
