"""`headwater tail`: what is published, as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Annotated

import typer

from bridge.log import Log
from bridge.partitioning import RouteTable
from bridge.replay.bounds import partitions_of, resolve
from bridge.replay.reader import ReplayReader
from bridge.replay.selection import Selection
from bridge.replay.sink import Sink
from bridge.resize_layouts import read_layouts
from edge.cli.console import ConfigOption, KafkaOption, RoutesOption, cluster
from edge.cli.replay_output import ScreenSink, default_form
from edge.cli.replay_request import (
    CountOption,
    FiltersArgument,
    GrepOption,
    GrepTextOption,
    OutputOption,
    checked_filters,
    connected,
    now_ms,
    payload_tests,
)
from schemas.replay_range import ReplayRange, parse_from_to


def run(
    filters: FiltersArgument = None,
    text_from: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="Begin in the past: -10m, a time, or a token.")
    ] = "now",
    output: OutputOption = None,
    count: CountOption = None,
    grep: GrepOption = None,
    grep_text: GrepTextOption = None,
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    routes: RoutesOption = None,
) -> None:
    """Show messages as they are published, until Ctrl-C or --count."""
    topic_filters = checked_filters(filters)
    begin = parse_from_to(text_from, None, now_ms())
    target = cluster(kafka, config, routes)
    table = RouteTable(target.routes)
    chosen = Selection(topic_filters, table.topic_name_from_key, payload_tests(grep, grep_text))
    sink = ScreenSink(output or default_form())

    async def follow() -> None:
        async with connected(target) as log:
            await read_layouts(log, table)
            await tail(log, table, topic_filters, begin, chosen, sink, count)

    with suppress(KeyboardInterrupt):  # how everybody ends it
        asyncio.run(follow())


async def tail(
    source: Log,
    table: RouteTable,
    topic_filters: Sequence[str],
    begin: ReplayRange,
    chosen: Selection,
    sink: Sink,
    count: int | None,
) -> None:
    """First what is there already from ``begin`` on, merged by time, then what comes, without a gap in between."""
    bounds, _ = await resolve(source, partitions_of(table, topic_filters), begin)
    await sink.open(None)
    left = count
    for last in (False, True):
        here = {at: (end, None) if last else (first, end) for at, (first, end) in bounds.items()}
        reader = ReplayReader(source, here, chosen)
        try:
            async with aclosing(reader.batches()) as batches:
                async for batch in batches:
                    await sink.write(batch[:left])
                    if left is not None and (left := left - len(batch)) <= 0:
                        return
        finally:
            await reader.stop()
