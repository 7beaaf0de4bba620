"""`headwater up`: Kafka and N edges on this machine, all of them ready, all of them gone at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge import topics_admin
from bridge.embedded_kafka import EmbeddedKafka
from edge.cli.children import Child, ChildFailed
from edge.cli.console import JsonOption, output, print_json
from edge.cli.edge import DEV_BANNER, WORKERS_MAX, run_loop, stop_event
from edge.cli.kafka import download_progress
from edge.node.config import EdgeConfig, load_config, make_config
from schemas.catalogue import catalogue
from schemas.errors import ConfigurationError

EDGES_MAX = 32
DEFAULT_DATA = Path(".headwater")


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `headwater up` was asked for. Edge i listens on `mqtt_port` + i and `http_port` + i; 0 takes free ports."""

    edges: int = 1
    mqtt_port: int = 1883
    http_port: int = 8080
    data: Path = DEFAULT_DATA
    workers: int = 1
    dev: bool = False
    kafka: str | None = None
    kafka_port: int | None = None
    config: Path | None = None


@dataclass(frozen=True, slots=True)
class RunningEdge:
    """One edge that serves: addresses as host:port."""

    node_id: str
    mqtt: str
    http: str
    pid: int
    child: Child = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """Kafka and the edges; `kafka` is None when it is somebody else's."""

    bootstrap: str
    edges: tuple[RunningEdge, ...]
    kafka: EmbeddedKafka | None


def run(
    edges: Annotated[int, typer.Option(min=1, max=EDGES_MAX, help="How many edges.")] = 1,
    mqtt_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Edge i: MQTT on this port + i; 0: free ones.")
    ] = 1883,
    http_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Edge i: HTTP and WebSocket on this port + i; 0: free ones.")
    ] = 8080,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Kafka's data and the logs; kept.")] = DEFAULT_DATA,
    workers: Annotated[int, typer.Option(min=1, max=WORKERS_MAX, help="Processes per edge.")] = 1,
    dev: Annotated[bool, typer.Option("--dev", help="Anonymous, plaintext, this machine only.")] = False,
    kafka: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Use this Kafka, start none.")] = None,
    kafka_port: Annotated[int | None, typer.Option(min=1, max=65_535, help="Where the embedded Kafka listens.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML for all edges: routes, limits, users.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and N edges on this machine, say where to connect, and stop all of it on Ctrl-C."""
    options = UpOptions(edges, mqtt_port, http_port, data, workers, dev, kafka, kafka_port, config)
    run_loop(_up(options, as_json))


@asynccontextmanager
async def cluster(
    options: UpOptions, announce: Callable[[dict[str, Any]], None] | None = None
) -> AsyncIterator[RunningCluster]:
    """Kafka (unless `options.kafka` names one), its topics and the edges, all ready; stopped at the end.

    1. the configuration of every edge is made, so that a mistake costs nothing
    2. `EmbeddedKafka.start`, 3. `topics_admin.apply`, 4. `Child.start` and `Child.ready` of each edge

    `announce` hears of each ready part. Raises ConfigurationError, EmbeddedKafkaError, ChildFailed.
    """
    tell = announce or (lambda part: None)
    edge_configs = [_edge_config(options, number, "127.0.0.1:9092") for number in range(options.edges)]
    kafka: EmbeddedKafka | None = None
    children: list[Child] = []
    try:
        if options.kafka is None:
            kafka = EmbeddedKafka(options.data / "kafka", options.kafka_port)
            with download_progress() as progress:
                await asyncio.to_thread(kafka.start, progress=progress)
            tell({"part": "kafka", "bootstrap": kafka.bootstrap, "pid": kafka.pid, "data": str(kafka.data)})
        bootstrap = options.kafka or (kafka.bootstrap if kafka is not None else "")
        await topics_admin.apply(
            bootstrap, catalogue(edge_configs[0].effective_routes()), 1 if kafka is not None or options.dev else 3
        )
        for number in range(options.edges):
            edge_config = _edge_config(options, number, bootstrap)
            log_path = options.data / "logs" / f"{edge_config.node_id}.log"
            children.append(Child.edge(edge_config, options.workers, log_path))
            await children[-1].start()
        running = []
        for child in children:
            ready = await child.ready()
            running.append(RunningEdge(child.name, ready["mqtt"], ready["http"], child.pid, child))
            tell(ready)
        yield RunningCluster(bootstrap, tuple(running), kafka)
    finally:
        await asyncio.gather(*(child.stop() for child in children))
        if kafka is not None:
            await asyncio.to_thread(kafka.stop)


def _edge_config(options: UpOptions, number: int, bootstrap: str) -> EdgeConfig:
    """Edge `number`: the configuration file's tables, with the addresses of this command line."""
    base = load_config(options.config, {"dev": options.dev}) if options.config is not None else None
    table: dict[str, Any] = base.model_dump(mode="json") if base is not None else {"dev": options.dev}
    listener = table["listeners"][0] if base is not None else {"host": "127.0.0.1"}
    http = table["http"] if base is not None and table["http"] else {"host": "127.0.0.1"}
    table |= {
        "node_id": f"edge-{number}",
        "listeners": [listener | {"port": _port(options.mqtt_port, number)}],
        "http": http | {"port": _port(options.http_port, number)},
        "kafka": (table["kafka"] if base is not None else {}) | {"bootstrap_servers": bootstrap},
    }
    return make_config(table, str(options.config) if options.config is not None else "headwater up")


def _port(first: int, number: int) -> int:
    if first and first + number > 65_535:
        raise ConfigurationError(f"port {first} + {number} is above 65535: choose a lower first port")
    return first + number if first else 0


async def _up(options: UpOptions, as_json: bool) -> None:
    if options.dev and not as_json:
        output().print(f"[yellow]{DEV_BANNER}[/yellow]")
    serving = asyncio.ensure_future(_serve(options, as_json))
    stopping = asyncio.ensure_future(stop_event().wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
        return
    serving.cancel()  # wherever it is: `cluster` stops what it has started
    await asyncio.gather(serving, return_exceptions=True)


async def _serve(options: UpOptions, as_json: bool) -> None:
    async with cluster(options, print_json if as_json else _print_part) as running:
        if as_json:
            print_json({"part": "ready", "bootstrap": running.bootstrap, "edges": len(running.edges)})
        else:
            first = running.edges[0]
            output().print(f"Ready. The live page is on http://{first.http}/ . Ctrl-C stops everything.")
        await _until_none_is_left(running, as_json)


async def _until_none_is_left(running: RunningCluster, as_json: bool) -> None:
    """An edge that ends by itself is told of and not started again; without any edge there is nothing to wait for."""
    ends = {asyncio.ensure_future(edge.child.wait()): edge for edge in running.edges}
    try:
        while ends:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                edge = ends.pop(ended)
                if as_json:
                    print_json({"part": "edge", "node": edge.node_id, "ended": ended.result()})
                else:
                    output().print(f"[red]edge {edge.node_id} ended with code {ended.result()}[/red]")
    finally:
        for task in ends:
            task.cancel()
    raise ChildFailed("no edge is left; the logs say why")


def _print_part(part: dict[str, Any]) -> None:
    if part["part"] == "kafka":
        output().print(f"Kafka   {part['bootstrap']}  (data in {part['data']})")
    else:
        output().print(f"{part['node']}  MQTT {part['mqtt']}  HTTP and WebSocket {part['http']}")
