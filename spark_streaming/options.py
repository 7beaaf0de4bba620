"""Options that every job has, and how their texts become settings. Errors name the option and what to write."""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.errors import ConfigurationError, TopicError
from schemas.routes import DEFAULT_ROUTES, Route, load_routes
from schemas.topics import check_topic_filter
from spark_streaming.durations import Duration, parse_duration
from spark_streaming.sources.kafka import KafkaSettings

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CHECKPOINT_START = "checkpoint:"
REALTIME_MIN_S = 5.0  # Spark refuses shorter real-time batches
_TRIGGER_HELP = "write realtime:5m, micro:5s or available-now"
_INTERVALS = {"realtime": "5m", "micro": "5s"}  # of a kind alone


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a query runs: `kind` is realtime, micro or available-now."""

    kind: str
    interval: Duration | None

    @property
    def is_realtime(self) -> bool:
        return self.kind == "realtime"


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """What every job needs to know."""

    kafka: KafkaSettings
    routes: tuple[Route, ...]
    checkpoint: Path
    trigger: Trigger
    starting_offsets: str
    accept_data_loss: bool
    shuffle_partitions: int
    state_store: str
    as_json: bool
    progress: bool
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None  # None: no metrics; 0: a free port, which is said
    batch_records_max: int | None = None  # None: a micro-batch takes all that there is
    qos2: bool = False  # whether the QoS 2 twins are read, too
    events: bool = True  # spark.* in headwater.events, where that Kafka topic exists


def job_parser(job: str, module_docstring: str | None, *, trigger: str = "realtime:5m") -> argparse.ArgumentParser:
    """A job's parser with the common options; no abbreviations, or a new option could break a script."""
    parser = argparse.ArgumentParser(
        prog=f"headwater spark run {job}", description=(module_docstring or "").split("\n")[0], allow_abbrev=False
    )
    add_common_arguments(parser, trigger=trigger)
    return parser


def add_common_arguments(parser: argparse.ArgumentParser, *, trigger: str = "realtime:5m") -> None:
    """The options that `common_options` reads; `trigger` is the job's default."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="options from a TOML file: window = '10s'; those given here win"
    )
    parser.add_argument(
        "--kafka",
        default=os.environ.get("KAFKA_BOOTSTRAP_SERVERS", DEFAULT_BOOTSTRAP),
        metavar="HOST:PORT",
        help=f"Kafka's bootstrap servers (default KAFKA_BOOTSTRAP_SERVERS, else {DEFAULT_BOOTSTRAP})",
    )
    parser.add_argument(
        "--kafka-properties", type=Path, metavar="FILE", help="Kafka client properties (TLS, SASL), name=value a line"
    )
    parser.add_argument(
        "--routes", type=Path, metavar="FILE", help="routes as TOML or JSON; default: the default routes"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="where the job keeps its place; default: below the user's data folder",
    )
    parser.add_argument("--trigger", default=trigger, help=f"{_TRIGGER_HELP} (default {trigger})")
    parser.add_argument(
        "--from",
        dest="starting",
        metavar="WHERE",
        help="where a new checkpoint starts: latest, earliest, -1h, 2026-06-01T12:00:00Z, or checkpoint:DIR "
        "(default latest; earliest for available-now)",
    )
    parser.add_argument("--accept-data-loss", action="store_true", help="go on where Kafka has deleted unread records")
    parser.add_argument("--shuffle-partitions", type=int, default=2, metavar="N", help="fixed for a checkpoint's life")
    parser.add_argument("--state", choices=("rocksdb", "memory"), default="rocksdb", help="state store, fixed as well")
    parser.add_argument("--json", action="store_true", help="one JSON line per event on stdout")
    parser.add_argument("--progress", action="store_true", help="one JSON line per batch on stdout")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="serve Prometheus metrics; 0: a free port")
    parser.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help="where to (default 127.0.0.1)")
    parser.add_argument(
        "--no-events", dest="events", action="store_false", help="write no spark.* events to headwater.events"
    )


def parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The parser's answer, with what `--config` names put before the rest. Raises ConfigurationError."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    path = finder.parse_known_args(arguments)[0].config
    return parser.parse_args([*(() if path is None else _config_arguments(path)), *_start_joined(arguments)])


def _start_joined(arguments: Sequence[str]) -> list[str]:
    """`--from -1h` as `--from=-1h`: argparse takes a value with a dash for an option."""
    found: list[str] = []
    for argument in arguments:
        if found and found[-1] == "--from":
            found[-1] = f"--from={argument}"
        else:
            found.append(argument)
    return found


def _config_arguments(path: Path) -> list[str]:
    """`name = value` as `--name=value`; a list repeats the option, true is the option alone, false leaves it out."""
    try:
        content = tomllib.loads(_read(path, "--config"))
    except ValueError as error:
        raise ConfigurationError(f"--config: {path} is no valid TOML: {error}") from None
    found: list[str] = []
    for name, value in content.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool):
                found += [option] if one else []
            elif isinstance(one, (str, int, float)):
                found.append(f"{option}={one}")
            else:
                raise ConfigurationError(f"--config: {name} in {path} is no text, number, true, false or list of them")
    return found


def common_options(job: str, arguments: argparse.Namespace, data_folder: Path) -> CommonOptions:
    """Checked settings. Raises ConfigurationError."""
    trigger = parse_trigger(arguments.trigger)
    if not 1 <= arguments.shuffle_partitions <= 1000:
        raise ConfigurationError(f"--shuffle-partitions: {arguments.shuffle_partitions} is not between 1 and 1000")
    if trigger.is_realtime and arguments.state != "rocksdb":
        raise ConfigurationError("--state memory: real-time mode needs rocksdb; add --trigger micro:5s or drop it")
    if arguments.metrics_port is not None and not 0 <= arguments.metrics_port <= 65_535:
        raise ConfigurationError(f"--metrics-port: {arguments.metrics_port} is no port; give 0 to 65535")
    batch_records_max: int | None = getattr(arguments, "batch_records", None)
    if batch_records_max is not None and (batch_records_max < 1 or trigger.is_realtime):
        raise ConfigurationError("--batch-records: give 1 or more, and --trigger micro:5s or available-now")
    check_addresses(arguments.kafka)
    backfill = trigger.interval is None
    return CommonOptions(
        kafka=KafkaSettings(arguments.kafka, read_properties(arguments.kafka_properties)),
        routes=read_routes(arguments.routes),
        checkpoint=(arguments.checkpoint or data_folder / "spark" / job).absolute(),
        trigger=trigger,
        starting_offsets=parse_start(arguments.starting or ("earliest" if backfill else "latest")),
        accept_data_loss=arguments.accept_data_loss,
        shuffle_partitions=arguments.shuffle_partitions,
        state_store=arguments.state,
        as_json=arguments.json,
        progress=arguments.progress,
        metrics_host=arguments.metrics_host,
        metrics_port=arguments.metrics_port,
        events=arguments.events,
        batch_records_max=batch_records_max,
        qos2=getattr(arguments, "qos2", False),
    )


def parse_start(text: str) -> str:
    """The text itself when it is a place to start from. Raises ConfigurationError."""
    if text in ("latest", "earliest") or text.startswith(CHECKPOINT_START) or start_time_ms(text, 0) is not None:
        return text
    raise ConfigurationError(
        f"--from: {text!r} is none; write latest, earliest, -1h, 2026-06-01T12:00:00Z or {CHECKPOINT_START}FOLDER"
    )


def start_time_ms(text: str, now_ms: int) -> int | None:
    """`-1h` before now, or an ISO time (UTC when it does not say); None when it is neither."""
    try:
        if text.startswith("-"):
            return now_ms - round(parse_duration(text[1:], "--from").seconds * 1000)
        moment = datetime.fromisoformat(text)
    except (ValueError, ConfigurationError):
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def check_addresses(text: str) -> None:
    """Raise ConfigurationError unless these are bootstrap servers, `host:port` with commas between."""
    for address in text.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise ConfigurationError(
                f"--kafka: {address!r} is no address of Kafka; write host:port, or a,b for several"
            )


def parse_trigger(text: str) -> Trigger:
    """`realtime:5m`, `micro:5s` or `available-now`."""
    kind, _, interval = text.partition(":")
    if kind == "available-now" and not interval:
        return Trigger(kind, None)
    if kind not in _INTERVALS or text.endswith(":"):
        raise ConfigurationError(f"--trigger: {text!r} is none; {_TRIGGER_HELP}")
    duration = parse_duration(interval or _INTERVALS[kind], "--trigger")
    if kind == "realtime" and duration.seconds < REALTIME_MIN_S:
        raise ConfigurationError(
            f"--trigger: a real-time batch lasts at least {REALTIME_MIN_S:.0f} s; write realtime:5s or more"
        )
    return Trigger(kind, duration)


def read_routes(path: Path | None) -> tuple[Route, ...]:
    """A list of routes in JSON, or `[[routes]]` in TOML or JSON; the default routes without a file."""
    if path is None:
        return DEFAULT_ROUTES
    text = _read(path, "--routes")
    try:
        content: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--routes: {path} cannot be read: {error}") from None
    rows = content.get("routes") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(f"--routes: {path} holds no list of routes; write [[routes]] tables")
    return load_routes(rows)


def read_properties(path: Path | None) -> dict[str, str]:
    """`name=value` lines; empty lines and lines that start with # or ! are skipped."""
    if path is None:
        return {}
    found: dict[str, str] = {}
    for number, line in enumerate(_read(path, "--kafka-properties").splitlines(), 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        if not equals or not name.strip():
            raise ConfigurationError(f"--kafka-properties: line {number} of {path} is no name=value")
        found[name.strip()] = value.strip()
    return found


def parse_device_levels(text: str | None) -> tuple[int, int | None] | None:
    """`2-3`, `2-` or `3`: the levels of a Topic Name that name the device. Raises ConfigurationError."""
    if text is None:
        return None
    first, dash, last = text.partition("-")
    levels = (first, last) if dash and last else (first,)
    if not all(level.isdecimal() and 1 <= int(level) <= 32 for level in levels) or (last and int(last) < int(first)):
        raise ConfigurationError(f"--device-levels: {text!r} is none; write for example 2-3, 2- or 3")
    return int(first), (int(last) if last else None if dash else int(first))


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say how records become readings."""
    parser.add_argument(
        "--topic-filter",
        action="append",
        default=[],
        metavar="FILTER",
        help="only messages whose Topic Name matches; may be repeated",
    )
    parser.add_argument(
        "--device-levels",
        metavar="FIRST-[LAST]",
        help="levels of the Topic Name that name the device, counted from 1 (default: as the route says)",
    )
    parser.add_argument(
        "--event-time",
        choices=("payload", "ingest"),
        default="payload",
        help="ingest: the time fields of payloads are not looked at",
    )
    parser.add_argument(
        "--ahead-max",
        default="10s",
        metavar="DURATION",
        help="how far event time may be ahead of ingest time (default 10s)",
    )
    parser.add_argument(
        "--qos2", action="store_true", help="messages of QoS 2 as well: twice the partitions, read committed"
    )
    parser.add_argument(
        "--batch-records", type=int, metavar="N", help="a micro-batch takes no more than N records (default: all)"
    )


def topic_filters(found: argparse.Namespace) -> tuple[str, ...]:
    """`--topic-filter`, checked. Raises ConfigurationError."""
    for topic_filter in found.topic_filter:
        try:
            check_topic_filter(topic_filter)
        except TopicError as error:
            raise ConfigurationError(f"--topic-filter: {error}") from None
    return tuple(found.topic_filter)


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option}: {path} cannot be read: {error}") from None
