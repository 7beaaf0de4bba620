"""`headwater get`: retained messages, as they are or as they were."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bridge.partitioning import RouteTable
from bridge.replay.retained_at import RetainedAt, read_retained
from bridge.replay.run import time_text
from bridge.resize_layouts import read_layouts
from edge.cli.console import ConfigOption, KafkaOption, RoutesOption, cluster
from edge.cli.replay_output import ScreenSink, default_form, printable
from edge.cli.replay_request import FiltersArgument, OutputOption, checked_filters, connected, now_ms
from schemas.errors import ConfigurationError
from schemas.replay_range import PointKind, parse_point

_NAMES_SHOWN = 20


def run(
    filters: FiltersArgument = None,
    at: Annotated[
        str | None, typer.Option(metavar="WHEN", help="As of then: -1h, 2026-11-21T08:00Z, or epoch.")
    ] = None,
    output: OutputOption = None,
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    routes: RoutesOption = None,
) -> None:
    """Show the retained messages; exit code 1 when there are none."""
    topic_filters = checked_filters(filters)
    at_ms = _at_ms(at) if at is not None else None
    target = cluster(kafka, config, routes)

    async def read() -> RetainedAt:
        async with connected(target) as log:
            table = RouteTable(target.routes)
            await read_layouts(log, table)
            return await read_retained(log, table, topic_filters, at_ms)

    found = asyncio.run(read())
    items = found.items(now_ms())
    sink = ScreenSink(output or default_form())

    async def show() -> None:
        await sink.open(None)
        await sink.write(items)

    asyncio.run(show())
    _say_what_is_unknown(found)
    if not items:
        typer.echo("no retained message", err=True)
        raise typer.Exit(1)


def _at_ms(text: str) -> int:
    point = parse_point(text, now_ms(), "--at")
    if point.kind is PointKind.END:
        return now_ms()
    if point.kind is not PointKind.TIME:
        raise ConfigurationError(f"--at {text}: give a time, as in -1h or 2026-11-21T08:00Z")
    return point.time_ms


def _say_what_is_unknown(found: RetainedAt) -> None:
    uncertain = found.uncertain()
    if found.is_before_log:
        begins = time_text(found.log_begins_ms)
        typer.echo(f"note: the log begins at {begins}: what was cleared between then and now may be missing", err=True)
    if uncertain:
        names = ", ".join(map(printable, uncertain[:_NAMES_SHOWN])) + (", ..." if len(uncertain) > _NAMES_SHOWN else "")
        text = "have changed since, and the log no longer has what they held then, if anything"
        typer.echo(f"note: {len(uncertain)} Topic Names {text}: {names}", err=True)
