"""`headwater edge`: one edge node in the foreground, or W workers that share its ports."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import orjson
import typer

from bridge import topics_admin
from bridge.kafka_log import KafkaLog
from edge.cli.children import Child
from edge.cli.console import JsonOption, output, print_json
from edge.cli.kafka_options import client_options
from edge.node.config import EdgeConfig, load_config, make_config
from edge.node.listeners import address_text
from edge.node.node import EdgeNode
from schemas.catalogue import catalogue
from schemas.errors import ConfigurationError

DEV_BANNER = "--dev: anonymous clients, no TLS, replication factor 1; this machine only, never a fleet"
CYCLES_EVERY_S = 60.0
CYCLES_OLD_EVERY = 10  # times: what is old is looked at seldom, for all of it is
WORKERS_MAX = 64
NAMED_MAX = 3  # missing Kafka topics that the complaint names


def run(
    config: Annotated[
        Path,
        typer.Option("--config", metavar="FILE", help="The edge's TOML file; '-': a line of JSON on standard input."),
    ],
    workers: Annotated[int, typer.Option(min=1, max=WORKERS_MAX, help="Processes that share the edge's ports.")] = 1,
    as_json: JsonOption = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run one edge node until Ctrl-C or SIGTERM, or until it is drained: it moves its clients to the other edges,
    finishes what is in flight and ends."""
    set_up_logging(log_level)
    from_parent = str(config) == "-"
    edge_config = _config_from_stdin() if from_parent else load_config(config)
    if workers > 1:
        run_loop(_run_workers(edge_config, workers, as_json, from_parent))
    else:
        run_loop(_run_node(edge_config, as_json, config))


def set_up_logging(level: str) -> None:
    """Log to standard error, one line per event; raises ConfigurationError for an unknown level."""
    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigurationError(f"--log-level {level}: write debug, info, warning or error")
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("aiokafka").setLevel(max(logging.getLogger().level, logging.WARNING))


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` on uvloop where it is installed, on asyncio else."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and Ctrl-C; a second signal ends the process at once."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if event.is_set():
            os._exit(130)
        event.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return event


async def _run_node(config: EdgeConfig, as_json: bool, path: Path) -> None:
    from_parent = str(path) == "-"
    stop = stop_event()
    if from_parent:
        _end_with(sys.stdin.fileno(), stop.set)
    if config.dev:
        logging.getLogger("headwater").warning(DEV_BANNER)
    await check_kafka_topics(config, "FILE" if from_parent else str(path))
    node = EdgeNode(config, KafkaLog(config.kafka.bootstrap_servers, options=client_options(config.kafka)))
    tune_garbage_collection()
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        return
    starting.result()
    _announce(node, as_json)
    drained = asyncio.ensure_future(node.drained.wait())
    looking = asyncio.ensure_future(look_for_cycles())
    await asyncio.wait((stopping, drained), return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        await node.shut_down()
    else:
        await node.stop()
        stopping.cancel()
    drained.cancel()
    looking.cancel()


async def check_kafka_topics(config: EdgeConfig, path: str) -> None:
    """Raises ConfigurationError, which says what to run, where Kafka topics are missing. Where Kafka does not answer,
    the edge itself says so."""
    bootstrap = config.kafka.bootstrap_servers
    try:
        missing = await topics_admin.missing(
            bootstrap, catalogue(config.effective_routes()), client_options(config.kafka)
        )
    except topics_admin.AdminFailed as error:
        logging.getLogger("headwater").info("cannot see which Kafka topics there are: %s", error)
        return
    if missing:
        raise ConfigurationError(
            f"Kafka at {bootstrap} lacks {len(missing)} Kafka topics ({', '.join(missing[:NAMED_MAX])}"
            f"{', ...' if len(missing) > NAMED_MAX else ''}): run `headwater topics apply --config {path}` once"
        )


async def _run_workers(config: EdgeConfig, workers: int, as_json: bool, from_parent: bool) -> None:
    """Each worker is a node of its own, joined to the others by Kafka alone; the kernel spreads the connections."""
    stop = stop_event()
    if from_parent:
        _end_with(sys.stdin.fileno(), stop.set)
    if any(listener.port == 0 for listener in config.listeners) or (config.http and config.http.port == 0):
        raise ConfigurationError("--workers: the workers share their ports, so none can be 0")
    children = [
        Child.edge(config.model_copy(update={"node_id": f"{config.node_id}-{number}", "reuse_port": True}))
        for number in range(workers)
    ]
    try:
        for child in children:
            await child.start()
        for child in children:
            ready = await child.ready()
            if as_json:
                print_json(ready)
        if not as_json:
            output().print(f"{workers} workers of edge {config.node_id} are ready")
        await until_stopped_or_ended(stop, children)
    finally:
        await asyncio.gather(*(child.stop() for child in children))


class Waited(Protocol):
    """A `Child`."""

    async def wait(self) -> int:
        """The exit code."""
        ...


async def until_stopped_or_ended(stop: asyncio.Event, children: Sequence[Waited]) -> None:
    """A worker that was drained ends with 0, and the others go on without it."""
    stopping = asyncio.ensure_future(stop.wait())
    ends = {asyncio.ensure_future(child.wait()) for child in children}
    while ends:
        done, _ = await asyncio.wait({stopping, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if stopping in done or any(end.result() for end in done):
            break
        ends -= done
    for task in (stopping, *ends):
        task.cancel()


def tune_garbage_collection() -> None:
    """Modules are never garbage, and messages die by reference count: look for cycles rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def look_for_cycles(every_s: float = CYCLES_EVERY_S) -> None:
    """By the clock, too: a quiet edge would come to its thresholds never, and keep what its connections leave."""
    turn = 0
    while True:
        await asyncio.sleep(every_s)
        turn += 1
        gc.collect(1 if turn % CYCLES_OLD_EVERY else 2)


def _config_from_stdin() -> EdgeConfig:
    line = sys.stdin.buffer.readline()
    try:
        table = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise ConfigurationError("--config -: one line of JSON is expected on standard input") from None
    return make_config(table, "standard input")


def _end_with(descriptor: int, end: Callable[[], None]) -> None:
    """Call `end` when the other side of `descriptor` is closed: our parent is gone, however it went."""
    loop = asyncio.get_running_loop()

    def on_readable() -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(descriptor, 4_096):
                loop.remove_reader(descriptor)
                end()

    os.set_blocking(descriptor, False)
    loop.add_reader(descriptor, on_readable)


def _announce(node: EdgeNode, as_json: bool) -> None:
    mqtt = [address_text(address) for address in node.mqtt_addresses]
    http = address_text(node.http_address) if node.http_address else None
    if as_json:
        print_json(
            {
                "part": "edge",
                "node": node.config.node_id,
                "mqtt": mqtt[0] if mqtt else None,
                "http": http,
                "pid": os.getpid(),
            }
        )
    else:
        output().print(
            f"edge {node.config.node_id} is ready: MQTT on {', '.join(mqtt)}, HTTP on {http}. Ctrl-C stops it."
        )
