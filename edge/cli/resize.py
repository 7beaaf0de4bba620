"""`headwater topics resize`: another number of partitions for a Kafka topic and its QoS 2 twin, under load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from bridge import topics_admin
from bridge.resize import Resizer, Status, StepDone
from edge.cli.console import Cluster, ConfigOption, JsonOption, KafkaOption, RoutesOption, cluster, output, print_json
from edge.cli.control import operator
from schemas.errors import ConfigurationError
from schemas.layouts import SETTLED
from schemas.routes import Route


def run(
    route: Annotated[str, typer.Argument(metavar="ROUTE", help="A Kafka topic (mqtt.sensors), or a route's filter.")],
    partitions: Annotated[int | None, typer.Argument(metavar="PARTITIONS", help="How many there are to be.")] = None,
    show_status: Annotated[bool, typer.Option("--status", help="Say where it stands, and change nothing.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Take a resize back that has not come to its switch.")] = False,
    drop_wait_s: Annotated[
        float,
        typer.Option("--wait", min=0, metavar="SECONDS", help="How long to wait until nobody needs old partitions."),
    ] = 15.0,
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    routes: RoutesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the number of partitions while messages flow. Run it again after an interruption: it goes on."""
    if (partitions is not None) + show_status + abort != 1:
        raise ConfigurationError("say how many partitions, or --status, or --abort")
    target = cluster(kafka, config, routes)
    steps: list[StepDone] = []

    def told(step: StepDone) -> None:
        steps.append(step)
        if not as_json:
            output().print(f"{step.step:<7} {step.took_ms:>7} ms  {step.what}", markup=False, soft_wrap=True)

    status = asyncio.run(_run(target, route, partitions, abort, drop_wait_s, told))
    if as_json:
        print_json({"steps": [asdict(step) for step in steps], "status": asdict(status)})
        return
    output().print(_table(status))
    if status.needed_by:
        needing = ", ".join(status.needed_by)
        output().print(
            f"the oldest partitions are still read, for {needing}; that costs nothing, run this again to drop them",
            markup=False,
            soft_wrap=True,
        )


async def _run(
    target: Cluster,
    route: str,
    partitions: int | None,
    abort: bool,
    drop_wait_s: float,
    told: Callable[[StepDone], None],
) -> Status:
    kafka_topic = kafka_topic_of(target.routes, route)

    async def add_partitions(names: Sequence[str], at_least: int) -> int:
        return await topics_admin.add_partitions(target.bootstrap, names, at_least, target.client_options)

    async with operator(target) as who:
        resizer = Resizer(
            who.log,
            who.control,
            target.routes,
            kafka_topic,
            add_partitions,
            created_by=who.name,
            told=told,
            drop_timeout_s=drop_wait_s,
        )
        if partitions is not None:
            await who.write_down("resize", kafka_topic=kafka_topic, partitions=partitions)
            return await resizer.resize(partitions)
        if abort:
            await who.write_down("resize_abort", kafka_topic=kafka_topic)
            return await resizer.abort()
        return await resizer.status()


def kafka_topic_of(routes: Sequence[Route], given: str) -> str:
    """The Kafka topic that is meant: its name, with or without `mqtt.`, or the filter of its route.

    Raises ConfigurationError.
    """
    for each in routes:
        if given in (each.kafka_topic, each.filter, each.kafka_topic.removeprefix("mqtt.")):
            return each.kafka_topic
    known = ", ".join(dict.fromkeys(each.kafka_topic for each in routes))
    raise ConfigurationError(f"no route leads to {given!r}; name one of {known}")


def _table(status: Status) -> Table:
    made = Table("Kafka topic", "step", "written", "read", "in Kafka", "edges")
    edges = ", ".join(
        f"{node_id}{'' if done >= status.revision else ' (not yet)'}" for node_id, done in sorted(status.edges.items())
    )
    made.add_row(
        status.kafka_topic,
        status.step if status.step != SETTLED or len(status.read) == 1 else "drop",
        str(status.partitions),
        ", ".join(map(str, status.read)),
        str(status.kafka_partitions),
        escape(edges) or "none",
    )
    return made
