"""`headwater demo` as a command: its table, its exit codes, and what it says when the machine allows less."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from support.mosquitto import Mosquitto, running_mosquitto
from typer.testing import CliRunner

from edge.cli import demo
from edge.cli.up import UpOptions
from edge.demo.dataset import Dataset, Movement, Observation
from schemas.errors import ConfigurationError

AIRCRAFT = tuple(f"N{number}" for number in range(1, 8))
DATASET = Dataset(
    observations=(Observation(1_000, "JFK", {"temp": 1.0}),),
    movements=tuple(
        Movement(1_000 + step, AIRCRAFT[step % 7], "departure", "JFK", "B61", "JFK", "LAX", 1.0, 2.0, 3)
        for step in range(50)
    ),
    tail_numbers=AIRCRAFT,
)


@dataclass(frozen=True)
class StandInEdge:
    node_id: str
    mqtt: str
    http: str = "127.0.0.1:1"


@dataclass(frozen=True)
class StandInCluster:
    bootstrap: str
    edges: tuple[StandInEdge, ...]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with running_mosquitto(tmp_path_factory.mktemp("mosquitto")) as found:
        yield found


@pytest.fixture
def command(peer: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    @asynccontextmanager
    async def stand_in(options: UpOptions, *_: Any) -> AsyncIterator[StandInCluster]:
        address = f"{peer.host}:{peer.port}"
        yield StandInCluster("none", tuple(StandInEdge(f"edge-{number}", address) for number in range(options.edges)))

    monkeypatch.setattr(demo, "cluster", stand_in)
    monkeypatch.setattr(demo, "load", lambda **_: DATASET)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(demo.run)
    return app


ARGUMENTS = ["--headless", "--seconds", "1", "--speed", "50", "--no-spark"]


def test_a_good_run_ends_with_the_table_and_0(command: typer.Typer) -> None:
    result = CliRunner().invoke(command, ARGUMENTS)
    assert result.exit_code == 0, result.output
    for line in ("8 on 2 edges", "lost", "duplicated", "latency p50 / p99", "live page on http://127.0.0.1:1/"):
        assert line in result.output


def test_fewer_open_files_mean_fewer_devices_and_it_says_so(
    command: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "raise_file_limit", lambda _: 512 + 2 * 5)
    result = CliRunner().invoke(command, ARGUMENTS)
    assert "Only 5 of 8 devices" in result.output
    assert "5 on 2 edges" in result.output


def test_no_room_for_any_device_is_an_error_with_its_reason(
    command: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "raise_file_limit", lambda _: 100)
    result = CliRunner().invoke(command, ARGUMENTS)
    assert isinstance(result.exception, ConfigurationError)


def test_a_fault_ends_with_1(command: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.demo.report.Report.faults", lambda _: ["a planted fault"])
    result = CliRunner().invoke(command, ARGUMENTS)
    assert result.exit_code == 1
