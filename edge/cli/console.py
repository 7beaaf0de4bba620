"""What the commands share: output, the options that say which Kafka and which routes, and their meaning."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from edge.cli.kafka_options import client_options
from edge.node.config import EdgeConfig, load_config
from schemas.errors import ConfigurationError
from schemas.routes import DEFAULT_ROUTES, Route, load_routes

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_PIPE_WIDTH = 160  # without a terminal nobody says how wide; narrow tables would break names

KafkaOption = Annotated[
    str | None,
    typer.Option("--kafka", metavar="HOST:PORT", help=f"Kafka's address; else --config's, else {DEFAULT_BOOTSTRAP}."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="An edge's configuration: its Kafka and its routes.")
]
RoutesOption = Annotated[Path | None, typer.Option("--routes", metavar="FILE", help="A TOML file with [[routes]].")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Which Kafka a command talks to, and how."""

    bootstrap: str
    client_options: Mapping[str, Any]
    routes: tuple[Route, ...]


def output() -> Console:
    """Standard output, as wide as the terminal."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, soft_wrap=False)


def print_json(value: Any) -> None:
    """One line of JSON, at once: the reader may be waiting for it."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()


def cluster(kafka: str | None, config: Path | None, routes: Path | None = None) -> Cluster:
    """What the options mean; KAFKA_BOOTSTRAP_SERVERS stands in for --kafka. Raises ConfigurationError."""
    edge_config: EdgeConfig | None = load_config(config) if config is not None else None
    bootstrap = kafka or os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if bootstrap is None:
        bootstrap = edge_config.kafka.bootstrap_servers if edge_config is not None else DEFAULT_BOOTSTRAP
    _check_bootstrap(bootstrap)
    options = client_options(edge_config.kafka) if edge_config is not None else {}
    if routes is not None:
        return Cluster(bootstrap, options, routes_from_file(routes))
    return Cluster(bootstrap, options, edge_config.effective_routes() if edge_config is not None else DEFAULT_ROUTES)


def _check_bootstrap(bootstrap: str) -> None:
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65_535:
            raise ConfigurationError(
                f"{address!r} is no address of Kafka: write host:port, several with commas between"
            )


def routes_from_file(path: Path) -> tuple[Route, ...]:
    """The [[routes]] of a TOML file; an edge's whole configuration will do. Raises ConfigurationError."""
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("routes")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: no valid TOML: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(f"{path}: has no [[routes]]; add one with filter = '#' and kafka_topic = '...'")
    try:
        return load_routes(rows)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
