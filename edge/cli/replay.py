"""`headwater replay`: history by Topic Filter, to the screen, a file, another prefix, a client or another cluster."""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.audit import FROM_COMMAND_LINE, audit
from bridge.kafka_log import KafkaLog
from bridge.log import Headers, Log, Position
from bridge.partitioning import Destination, RouteTable
from bridge.replay.bounds import partitions_of, resolve
from bridge.replay.digest import Digests
from bridge.replay.grep import parse_grep, parse_text
from bridge.replay.jsonl import JsonlSink, digest_file
from bridge.replay.kafka_sink import KafkaSink, Target, prefix_target
from bridge.replay.pacing import MAX, Pacer, Speed, parse_speed
from bridge.replay.parquet import ParquetSink
from bridge.replay.reader import ReplayReader
from bridge.replay.run import Progress, ReplayRun
from bridge.replay.selection import PayloadTest, Selection
from bridge.replay.sink import Sink
from bridge.replay.state import ReplayState, load_state, new_state
from edge.cli.console import Cluster, ConfigOption, KafkaOption, RoutesOption, cluster
from edge.cli.control import who_am_i
from edge.cli.replay_output import OutputForm, ScreenSink, default_form, progress_bar
from schemas.errors import ConfigurationError, TopicError
from schemas.replay_range import ReplayRange, parse_from_to
from schemas.topics import check_topic_filter, parse_shared

INTERRUPTED = 130

FiltersArgument = Annotated[
    list[str] | None, typer.Argument(metavar="FILTER...", help="MQTT Topic Filters, as in 'sensors/+/temp'.")
]
GrepOption = Annotated[
    list[str] | None,
    typer.Option("--grep", metavar="EXPRESSION", help="Only where a field of the JSON payload is so: 'temp>30'."),
]
GrepTextOption = Annotated[
    list[str] | None, typer.Option("--grep-text", metavar="TEXT", help="Only where the payload holds this text.")
]
OutputOption = Annotated[OutputForm | None, typer.Option("--output", help="How records are shown on the screen.")]
CountOption = Annotated[int | None, typer.Option("--count", min=1, help="Stop after so many records.")]


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for, checked."""

    topic_filters: tuple[str, ...]
    text_from: str
    text_to: str
    range: ReplayRange
    speed: Speed
    tests: tuple[str, ...]
    texts: tuple[str, ...]
    output: OutputForm | None = None
    to_file: Path | None = None
    target: Target | None = None
    to_kafka: str | None = None
    to_config: Path | None = None
    is_live: bool = False
    dry_run: bool = False
    count: int | None = None
    state: Path | None = None
    resume: bool = False
    hashing: bool = False
    overwrite: bool = False

    def asked(self) -> dict[str, Any]:
        """What a run that is resumed must have in common with the interrupted one."""
        return {
            "filters": list(self.topic_filters),
            "--from": self.text_from,
            "--to": self.text_to,
            "--grep": [*self.tests, *self.texts],
            "target": self.target_text(),
        }

    def target_text(self) -> str:
        """Where to, in words."""
        if self.to_file is not None:
            return f"the file {self.to_file.absolute()}"
        if self.target is None:
            return "nothing (a dry run)" if self.dry_run else "the screen"
        cluster_text = f" in {self.to_kafka}" if self.to_kafka is not None else ""
        if self.target.prefix is not None:
            return f"the prefix {self.target.prefix}{cluster_text}"
        return f"the same Kafka topics{cluster_text}" if self.to_kafka is not None else "the original Topic Names"


def run(
    filters: FiltersArgument = None,
    text_from: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="-1h, 2026-11-21T08:00Z, epoch, beginning, or a token.")
    ] = "-1h",
    text_to: Annotated[str, typer.Option("--to", metavar="WHEN", help="Likewise; now is the end of the log.")] = "now",
    speed: Annotated[
        str | None,
        typer.Option(help="1x, 10x, 500/s or max; else max, and 1x to a prefix or a client."),
    ] = None,
    output: OutputOption = None,
    to_file: Annotated[Path | None, typer.Option(help="A file: JSON lines, or Parquet by its ending.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    to_prefix: Annotated[str | None, typer.Option(help="Publish below this topic prefix.")] = None,
    to_client: Annotated[
        str | None, typer.Option(metavar="CLIENT_ID", help="Publish below replay/CLIENT_ID, for that client.")
    ] = None,
    to_kafka: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Copy into another cluster; with --to-prefix, publish there."),
    ] = None,
    to_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An edge's configuration over there: TLS, SASL, routes (with --to-kafka)."),
    ] = None,
    into_live: Annotated[
        bool, typer.Option("--into-live", help="Publish under the original names; needs --speed N/s, is recorded.")
    ] = False,
    as_clients: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Play it there as real MQTT clients, and say what arrived."),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="Take the records from a file of an earlier replay (with --as-clients).")
    ] = None,
    clients_max: Annotated[int, typer.Option(min=1, help="Connections at a time (with --as-clients).")] = 1_000,
    user: Annotated[str | None, typer.Option(metavar="NAME:PASSWORD", help="Who the clients are there.")] = None,
    grep: GrepOption = None,
    grep_text: GrepTextOption = None,
    count: CountOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count records and bytes.")] = False,
    state: Annotated[Path | None, typer.Option(metavar="FILE", help="Remember here how far it is.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where --state says.")] = False,
    hashing: Annotated[bool, typer.Option("--hash", help="A SHA-256 per partition at the end.")] = False,
    verify: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only check a file of an earlier --hash against its end.")
    ] = None,
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    routes: RoutesOption = None,
) -> None:
    """Read a range of the log again, merged by time, and write it somewhere."""
    if verify is not None:
        _verify(verify)
        return
    if as_clients is not None:
        from edge.cli.replay_clients import play  # it imports this module in turn

        topic_filters = checked_filters(filters or (["#"] if from_file is not None else None))
        play(
            as_clients,
            topic_filters,
            parse_from_to(text_from, text_to, now_ms()),
            parse_speed(speed or "1x"),
            lambda table: selection(topic_filters, table, grep or (), grep_text or ()),
            from_file,
            clients_max,
            user,
            lambda: cluster(kafka, config, routes),
            output is OutputForm.JSON,
        )
        return
    if from_file is not None:
        raise ConfigurationError("--from-file goes with --as-clients")
    to_where = _target(to_prefix, to_client, to_kafka, into_live)
    request = Request(
        topic_filters=checked_filters(filters),
        text_from=text_from,
        text_to=text_to,
        range=parse_from_to(text_from, text_to, now_ms()),
        speed=_speed(speed, to_where, to_kafka, into_live),
        tests=tuple(grep or ()),
        texts=tuple(grep_text or ()),
        output=output,
        to_file=to_file,
        target=to_where,
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
    _check(request)
    end, elapsed_s = asyncio.run(_interruptible(request, cluster(kafka, config, routes)))
    _summarise(request, end, elapsed_s)


def checked_filters(filters: Sequence[str] | None) -> tuple[str, ...]:
    """Raises ConfigurationError unless these are Topic Filters."""
    if not filters:
        raise ConfigurationError("give a Topic Filter, as in: headwater replay 'sensors/#'")
    for topic_filter in filters:
        try:
            check_topic_filter(topic_filter)
            shared = parse_shared(topic_filter)
        except TopicError as error:
            raise ConfigurationError(f"{topic_filter!r}: {error}") from None
        if shared is not None or topic_filter.startswith("$replay/"):
            raise ConfigurationError(f"{topic_filter!r}: give the inner filter alone, without its prefix")
    return tuple(filters)


def now_ms() -> int:
    """The time on this machine."""
    return time.time_ns() // 1_000_000


def selection(
    request_filters: Sequence[str], table: RouteTable, tests: Sequence[str], texts: Sequence[str]
) -> Selection:
    """The records that these ask for. Raises ConfigurationError."""
    return Selection(request_filters, table.topic_name_from_key, payload_tests(tests, texts))


def payload_tests(tests: Sequence[str], texts: Sequence[str]) -> list[PayloadTest]:
    """What --grep and --grep-text mean. Raises ConfigurationError."""
    return [*map(parse_grep, tests), *map(parse_text, texts)]


@asynccontextmanager
async def connected(target: Cluster) -> AsyncIterator[KafkaLog]:
    """The cluster's log. Raises LogUnavailable."""
    log = KafkaLog(target.bootstrap, client_id="headwater-replay", options=target.client_options)
    await log.start()
    try:
        yield log
    finally:
        await log.stop()


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
        to_log: Log = source
        if request.to_kafka is not None:
            there = cluster(request.to_kafka, request.to_config)
            to_log = await stack.enter_async_context(connected(there))
            to_table = RouteTable(there.routes) if request.to_config is not None else table
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
    chosen = selection(request.topic_filters, table, request.tests, request.texts)
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


def _target(to_prefix: str | None, to_client: str | None, to_kafka: str | None, into_live: bool) -> Target | None:
    named = [each for each in (to_prefix, to_client, "--into-live" if into_live else None) if each is not None]
    if len(named) > 1:
        raise ConfigurationError("give one of --to-prefix, --to-client and --into-live")
    if to_prefix is not None:
        return prefix_target(to_prefix)
    if to_client is not None:
        if not to_client or set(to_client) & set("/+#"):
            raise ConfigurationError(f"--to-client {to_client!r}: as a topic level it must not hold / + #")
        return prefix_target(f"replay/{to_client}")
    if to_kafka is not None:
        return Target(same_partitions=not into_live)
    return Target() if into_live else None


def _speed(speed: str | None, target: Target | None, to_kafka: str | None, into_live: bool) -> Speed:
    if into_live:
        found = parse_speed(speed) if speed is not None else MAX
        if found.per_s is None:
            raise ConfigurationError("--into-live reaches every subscriber: say how fast, as in --speed 100/s")
        return found
    if speed is None:
        return MAX if target is None or to_kafka is not None else parse_speed("1x")
    return parse_speed(speed)


def _check(request: Request) -> None:
    """Raises ConfigurationError when what is asked for does not go together."""
    payload_tests(request.tests, request.texts)
    goals = [request.to_file is not None, request.target is not None, request.output is not None, request.dry_run]
    if sum(goals) > 1:
        raise ConfigurationError("one target at a time: --output, --to-file, one of --to-..., or --dry-run")
    if request.to_config is not None and request.to_kafka is None:
        raise ConfigurationError("--to-config goes with --to-kafka, which says where that cluster is")
    if request.resume and request.state is None:
        raise ConfigurationError("--resume needs --state FILE, the file that the interrupted replay was given")
    if request.state is not None and not (goals[0] or goals[1]):
        raise ConfigurationError("--state is for files and prefixes: what was on the screen cannot be gone on with")
    is_jsonl = request.to_file is not None and request.to_file.suffix != ".parquet"
    if request.resume and request.hashing and not is_jsonl:
        raise ConfigurationError("--hash with --resume needs a file of JSON lines, from which it can be made again")


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
