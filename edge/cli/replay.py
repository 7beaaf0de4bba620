"""`headwater replay`: history by Topic Filter, to the screen, a file, another prefix, a client or another cluster."""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import typer

from bridge.audit import FROM_COMMAND_LINE, audit
from bridge.log import Headers, Log, Position
from bridge.partitioning import Destination, RouteTable
from bridge.replay.bounds import partitions_of, resolve
from bridge.replay.digest import Digests
from bridge.replay.jsonl import JsonlSink, digest_file
from bridge.replay.kafka_sink import KafkaSink
from bridge.replay.pacing import Pacer, parse_speed
from bridge.replay.parquet import ParquetSink
from bridge.replay.reader import ReplayReader
from bridge.replay.run import Progress, ReplayRun
from bridge.replay.selection import Selection
from bridge.replay.sink import Sink
from bridge.replay.state import ReplayState, load_state, new_state
from bridge.resize_layouts import read_layouts
from edge.cli.console import Cluster, ConfigOption, KafkaOption, RoutesOption, cluster
from edge.cli.control import who_am_i
from edge.cli.replay_clients import Cast, play
from edge.cli.replay_output import OutputForm, ScreenSink, default_form, progress_bar
from edge.cli.replay_request import (
    AsClientsOption,
    ClientsMaxOption,
    CountOption,
    DryRunOption,
    FiltersArgument,
    FromFileOption,
    FromOption,
    GrepOption,
    GrepTextOption,
    HashOption,
    IntoLiveOption,
    OutputOption,
    OverwriteOption,
    Request,
    ResumeOption,
    SpeedOption,
    StateOption,
    ToClientOption,
    ToConfigOption,
    ToFileOption,
    ToKafkaOption,
    ToOption,
    ToPrefixOption,
    UserOption,
    VerifyOption,
    check_request,
    checked_filters,
    connected,
    now_ms,
    payload_tests,
    speed_of,
    target_of,
)
from schemas.errors import ConfigurationError
from schemas.replay_range import parse_from_to

INTERRUPTED = 130


def run(
    filters: FiltersArgument = None,
    text_from: FromOption = "-1h",
    text_to: ToOption = "now",
    speed: SpeedOption = None,
    output: OutputOption = None,
    to_file: ToFileOption = None,
    overwrite: OverwriteOption = False,
    to_prefix: ToPrefixOption = None,
    to_client: ToClientOption = None,
    to_kafka: ToKafkaOption = None,
    to_config: ToConfigOption = None,
    into_live: IntoLiveOption = False,
    as_clients: AsClientsOption = None,
    from_file: FromFileOption = None,
    clients_max: ClientsMaxOption = 1_000,
    user: UserOption = None,
    grep: GrepOption = None,
    grep_text: GrepTextOption = None,
    count: CountOption = None,
    dry_run: DryRunOption = False,
    state: StateOption = None,
    resume: ResumeOption = False,
    hashing: HashOption = False,
    verify: VerifyOption = None,
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    routes: RoutesOption = None,
) -> None:
    """Read a range of the log again, merged by time, and write it somewhere."""
    if verify is not None:
        _verify(verify)
        return
    if as_clients is not None:
        wanted = parse_from_to(text_from, text_to, now_ms())
        cast = Cast(as_clients, parse_speed(speed or "1x"), clients_max, user, from_file, output is OutputForm.JSON)
        play(cast, filters, wanted, payload_tests(grep, grep_text), lambda: cluster(kafka, config, routes))
        return
    if from_file is not None:
        raise ConfigurationError("--from-file goes with --as-clients")
    target = target_of(to_prefix, to_client, to_kafka, into_live)
    request = Request(
        topic_filters=checked_filters(filters),
        text_from=text_from,
        text_to=text_to,
        range=parse_from_to(text_from, text_to, now_ms()),
        speed=speed_of(speed, target, to_kafka, into_live),
        tests=tuple(grep or ()),
        texts=tuple(grep_text or ()),
        output=output,
        to_file=to_file,
        target=target,
        to_kafka=to_kafka,
        to_config=to_config,
        is_live=into_live,
        dry_run=dry_run,
        count=count,
        state=state,
        resume=resume,
        hashing=hashing,
        overwrite=overwrite,
    )
    check_request(request)
    end, elapsed_s = asyncio.run(_interruptible(request, cluster(kafka, config, routes)))
    _summarise(request, end, elapsed_s)


async def _interruptible(request: Request, source_cluster: Cluster) -> tuple[dict[str, Any], float]:
    """Ctrl-C and SIGTERM end it in order, with exit code 130."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await _replay(request, source_cluster)
    except asyncio.CancelledError:
        hint = "the same command with --resume goes on" if request.state is not None else "--state would remember"
        sys.stderr.write(f"headwater: interrupted; {hint}\n")
        raise typer.Exit(INTERRUPTED) from None


async def _replay(request: Request, source_cluster: Cluster) -> tuple[dict[str, Any], float]:
    """The end marker, and how long it took."""
    begun_s = time.monotonic()
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(connected(source_cluster))
        table = to_table = RouteTable(source_cluster.routes)
        await read_layouts(source, table)
        to_log: Log = source
        if request.to_kafka is not None:
            there = cluster(request.to_kafka, request.to_config)
            to_log = await stack.enter_async_context(connected(there))
            to_table = RouteTable(there.routes if request.to_config is not None else source_cluster.routes)
            await read_layouts(to_log, to_table)
        with progress_bar(request.to_file is not None or request.target is not None or request.dry_run) as bar:
            end = await replay(request, source, to_log, table, bar.show, to_table)
    return end, time.monotonic() - begun_s


async def replay(
    request: Request,
    source: Log,
    to_log: Log,
    table: RouteTable,
    on_progress: Callable[[Progress], None],
    to_table: RouteTable | None = None,
) -> dict[str, Any]:
    """Everything but the connections. Raises HeadwaterError, and CancelledError when interrupted."""
    tests = payload_tests(request.tests, request.texts)
    chosen = Selection(request.topic_filters, table.topic_name_from_key, tests)
    partitions = partitions_of(table, request.topic_filters)
    state, lost = await _state(request, source, partitions)
    if state.is_done:
        raise ConfigurationError(f"--state {request.state}: this replay is complete; nothing is left to do")
    bounds = state.bounds() if request.resume else state.whole()
    run_id = secrets.token_hex(8)
    if request.is_live:
        await _audit(request, to_log, run_id)
    sink = _sink(request, to_log, to_table or table, run_id, state.whole().keys())
    reader = ReplayReader(source, bounds, chosen)
    digests = await _digests(request, state)

    def remarks() -> dict[str, Any]:
        told = {"lost": lost + reader.lost(), "unreadable": chosen.unreadable, "refused": getattr(sink, "refused", 0)}
        return {name: number for name, number in told.items() if number}

    runner = ReplayRun(
        reader, Pacer(request.speed), sink, digests, state, request.state, request.count, on_progress, remarks
    )
    threshold = gc.get_threshold()
    gc.set_threshold(200_000, 50, 1_000)  # records make no cycles, and looking for some takes a third of the time
    try:
        await sink.open(state.sink if request.resume else None)
        return await runner.run()
    finally:
        gc.set_threshold(*threshold)
        await reader.stop()
        await sink.close()


async def _state(request: Request, source: Log, partitions: frozenset[Position]) -> tuple[ReplayState, int]:
    """Where to begin and where to end, and how many records of it retention has taken already."""
    if request.resume and request.state is not None:
        return load_state(request.state, request.asked()), 0
    if request.state is not None and request.state.exists() and not request.overwrite:
        raise ConfigurationError(f"--state {request.state} is there: --resume goes on with it, --overwrite starts anew")
    bounds, lost = await resolve(source, partitions, request.range)
    return new_state(request.asked(), bounds), sum(lost.values())


async def _digests(request: Request, state: ReplayState) -> Digests:
    if not request.resume:
        return Digests(hashing=request.hashing)
    if request.hashing:
        assert request.to_file is not None, "checked"
        return digest_file(request.to_file, int(state.sink["bytes"]))[0]
    digests = Digests(hashing=False)
    digests.restore(state.partitions)
    return digests


def _sink(request: Request, to_log: Log, table: RouteTable, run_id: str, partitions: Iterable[Position]) -> Sink:
    if request.dry_run:
        return _Nowhere()
    if request.to_file is not None:
        if request.to_file.suffix == ".parquet":
            return ParquetSink(request.to_file, resumable=request.state is not None, overwrite=request.overwrite)
        return JsonlSink(request.to_file, overwrite=request.overwrite)
    if request.target is not None:
        return KafkaSink(to_log, table, request.target, run_id, partitions)
    return ScreenSink(request.output or default_form())


class _Nowhere:
    """Takes everything and keeps nothing."""

    async def open(self, saved: dict[str, Any] | None) -> None: ...

    async def write(self, items: Any) -> None: ...

    async def checkpoint(self) -> None:
        return None

    async def finish(self, end: dict[str, Any]) -> None: ...

    async def close(self) -> None: ...


async def _audit(request: Request, to_log: Log, run_id: str) -> None:
    """Written down before the first record is. Raises LogError."""

    def append_future(destination: Destination, value: bytes | None, headers: Headers) -> asyncio.Future[int]:
        return to_log.submit(destination.kafka_topic, destination.partition, [(destination.key, value, headers)])

    more: dict[str, Any] = {
        "filters": list(request.topic_filters),
        "from": request.text_from,
        "to": request.text_to,
        "speed": str(request.speed),
        "run": run_id,
    }
    await audit(append_future, FROM_COMMAND_LINE, who_am_i(), "replay_into_live", **more)


def _verify(path: Path) -> None:
    """Compare the hashes of a file's records with its end marker; exit code 1 when they differ."""
    digests, end = digest_file(path)
    if end is None:
        raise ConfigurationError(f"{path} has no end marker: the replay was interrupted")
    told, found = end["partitions"], digests.told()
    if told and not all("sha256" in each for each in told.values()):
        raise ConfigurationError(f"{path} was written without --hash")
    bad = sorted(name for name in told.keys() | found.keys() if told.get(name) != found.get(name))
    for name in bad:
        typer.echo(f"{name}: the records are not those that were written", err=True)
    if bad:
        raise typer.Exit(1)
    typer.echo(f"{sum(each['records'] for each in found.values()):,} records in {len(found)} partitions are as written")


def _summarise(request: Request, end: dict[str, Any], elapsed_s: float) -> None:
    """On standard error, so that standard output has the records alone; a dry run's counts are its output."""
    per_s = end["records"] / elapsed_s if elapsed_s else 0.0
    if request.dry_run:
        for name, counts in end["partitions"].items():
            typer.echo(f"{name}: {counts['records']:,} records, {counts['bytes']:,} bytes")
        span = f", {end['from']} to {end['to']}" if end["from"] else ""
        typer.echo(f"in all: {end['records']:,} records, {end['bytes']:,} bytes of payload{span}")
    else:
        where = request.target_text()
        typer.echo(f"{end['records']:,} records ({end['bytes']:,} bytes) to {where}, {per_s:,.0f} records/s", err=True)
    for name, counts in end["partitions"].items():
        if "sha256" in counts:
            typer.echo(f"sha256 {counts['sha256']}  {name}", err=True)
    for name, what in _REMARKS.items():
        if end.get(name):
            typer.echo(f"note: {end[name]:,} {what}", err=True)


_REMARKS = {
    "lost": "records were deleted by Kafka's retention before they could be read",
    "unreadable": "records have no Topic Name that can be read, so no filter matches them",
    "refused": "records could not be written under the new name or were refused by Kafka",
}
