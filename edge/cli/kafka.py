"""`headwater kafka`: the embedded Kafka in the foreground."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from bridge.embedded_kafka import EmbeddedKafka, KafkaDidNotStart
from bridge.embedded_kafka.jars import KAFKA_VERSION
from bridge.embedded_kafka.jars import Progress as ProgressCallback
from edge.cli.console import JsonOption, output, print_json

DEFAULT_DATA = Path(".headwater") / "kafka"
DEFAULT_PORT = 9092
_LOOK_S = 0.2


def run(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Where Kafka keeps its data.")] = DEFAULT_DATA,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Where it listens; 0 takes a free one.")] = DEFAULT_PORT,
    as_json: JsonOption = False,
) -> None:
    """Run a single-node Apache Kafka until Ctrl-C. Its data stays."""
    kafka = EmbeddedKafka(data, port or None)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with download_progress() as progress:
            kafka.start(progress=progress)
        _announce(kafka, as_json)
        while kafka.is_running:
            time.sleep(_LOOK_S)
        raise KafkaDidNotStart(f"Kafka ended by itself\n{kafka.log_tail()}")
    except KeyboardInterrupt:
        if not as_json:
            output().print("stopping Kafka")
    finally:
        kafka.stop()


@contextmanager
def download_progress() -> Iterator[ProgressCallback]:
    """A progress bar on standard error that appears when jars have to be downloaded."""
    columns = (TextColumn("downloading Kafka"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("jars", total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def _announce(kafka: EmbeddedKafka, as_json: bool) -> None:
    if as_json:
        print_json({"part": "kafka", "bootstrap": kafka.bootstrap, "pid": kafka.pid, "data": str(kafka.data)})
        return
    output().print(f"Kafka {KAFKA_VERSION} is ready on {kafka.bootstrap} (data in {kafka.data}). Ctrl-C stops it.")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM, from a service manager, is Ctrl-C."""
    raise KeyboardInterrupt
