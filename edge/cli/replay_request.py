"""What `headwater replay` and its kin can be asked for: the options, and whether they go together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.kafka_log import KafkaLog
from bridge.replay.grep import parse_grep, parse_text
from bridge.replay.kafka_sink import Target, prefix_target
from bridge.replay.pacing import MAX, Speed, parse_speed
from bridge.replay.selection import PayloadTest
from edge.cli.console import Cluster
from edge.cli.replay_output import OutputForm
from schemas.errors import ConfigurationError, TopicError
from schemas.replay_range import ReplayRange
from schemas.topics import check_topic_filter, parse_shared

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
FromOption = Annotated[
    str, typer.Option("--from", metavar="WHEN", help="-1h, 2026-11-21T08:00Z, epoch, beginning, or a token.")
]
ToOption = Annotated[str, typer.Option("--to", metavar="WHEN", help="Likewise; now is the end of the log.")]
SpeedOption = Annotated[
    str | None,
    typer.Option(help="1x, 10x, 500/s or max; else max, and 1x to a prefix or a client."),
]
ToFileOption = Annotated[Path | None, typer.Option(help="A file: JSON lines, or Parquet by its ending.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")]
ToPrefixOption = Annotated[str | None, typer.Option(help="Publish below this topic prefix.")]
ToClientOption = Annotated[
    str | None, typer.Option(metavar="CLIENT_ID", help="Publish below replay/CLIENT_ID, for that client.")
]
ToKafkaOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Copy into another cluster; with --to-prefix, publish there."),
]
ToConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="An edge's configuration over there: TLS, SASL, routes (with --to-kafka)."),
]
IntoLiveOption = Annotated[
    bool, typer.Option("--into-live", help="Publish under the original names; needs --speed N/s, is recorded.")
]
AsClientsOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Play it there as real MQTT clients, and say what arrived."),
]
FromFileOption = Annotated[
    Path | None, typer.Option(help="Take the records from a file of an earlier replay (with --as-clients).")
]
ClientsMaxOption = Annotated[int, typer.Option(min=1, help="Connections at a time (with --as-clients).")]
UserOption = Annotated[str | None, typer.Option(metavar="NAME:PASSWORD", help="Who the clients are there.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only count records and bytes.")]
StateOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Remember here how far it is.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on where --state says.")]
HashOption = Annotated[bool, typer.Option("--hash", help="A SHA-256 per partition at the end.")]
VerifyOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Only check a file of an earlier --hash against its end.")
]


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
        if shared is not None or topic_filter.startswith(("$replay/", "$exclusive/", "$delayed/")):
            raise ConfigurationError(f"{topic_filter!r}: give the inner filter alone, without its prefix")
    return tuple(filters)


def payload_tests(tests: Sequence[str] | None, texts: Sequence[str] | None) -> list[PayloadTest]:
    """What --grep and --grep-text mean. Raises ConfigurationError."""
    return [*map(parse_grep, tests or ()), *map(parse_text, texts or ())]


def target_of(to_prefix: str | None, to_client: str | None, to_kafka: str | None, into_live: bool) -> Target | None:
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


def speed_of(speed: str | None, target: Target | None, to_kafka: str | None, into_live: bool) -> Speed:
    if into_live:
        found = parse_speed(speed) if speed is not None else MAX
        if found.per_s is None:
            raise ConfigurationError("--into-live reaches every subscriber: say how fast, as in --speed 100/s")
        return found
    if speed is None:
        return MAX if target is None or to_kafka is not None else parse_speed("1x")
    return parse_speed(speed)


def check_request(request: Request) -> None:
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


def now_ms() -> int:
    """The time on this machine."""
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def connected(target: Cluster) -> AsyncIterator[KafkaLog]:
    """The cluster's log. Raises LogUnavailable."""
    log = KafkaLog(target.bootstrap, client_id="headwater-replay", options=target.client_options)
    await log.start()
    try:
        yield log
    finally:
        await log.stop()
