"""The whole run on a stand-in cluster: mosquitto in place of both edges. A good run is clean, planted faults show."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from rich.console import Console
from support.mosquitto import Mosquitto, running_mosquitto

from edge.client import MqttClient, Publish
from edge.demo.cluster import split_address
from edge.demo.dataset import Dataset, Movement, Observation
from edge.demo.display import PlainDisplay, RichDisplay
from edge.demo.run import Demo, DemoSettings
from edge.demo.schedule import Schedule, plan
from edge.demo.spark import SparkJob

AIRCRAFT = tuple(f"N{number}" for number in range(1, 20))


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


def schedule_of(seconds: float = 2.0) -> Schedule:
    movements = tuple(
        Movement(1_000 + step, AIRCRAFT[step % 19], "departure", "JFK", "B61", "JFK", "LAX", 1.0, 2.0, 3)
        for step in range(500)
    )
    observations = tuple(Observation(1_000 + step, "JFK", {"temp": 1.0}) for step in range(0, 500, 10))
    return plan(Dataset(observations, movements, AIRCRAFT), seconds, speed=500.0 / seconds)


def demo_of(peer: Mosquitto, folder: Path, schedule: Schedule) -> Demo:
    address = f"{peer.host}:{peer.port}"
    cluster = StandInCluster("none", (StandInEdge("edge-0", address), StandInEdge("edge-1", address)))
    return Demo(cluster, schedule, DemoSettings(folder, spark=False), PlainDisplay(Console(quiet=True)))


async def test_a_run_is_clean_and_tells_the_page_about_itself(peer: Mosquitto, tmp_path: Path) -> None:
    watcher = MqttClient(peer.host, peer.port, "watcher")
    inbox = watcher.inbox()
    async with watcher:
        await watcher.subscribe("demo/status/#")
        report = await demo_of(peer, tmp_path, schedule_of()).run(asyncio.Event())
        last = orjson.loads((await inbox.get()).payload)
        while not last["is_over"]:
            last = orjson.loads((await inbox.get()).payload)
    assert report.faults() == []
    assert (report.devices, report.published, report.delivered, report.windows) == (20, 550, 550, None)
    assert report.p99_ms is not None
    assert (last["published"], last["lost"], [edge["node"] for edge in last["edges"]]) == (550, 0, ["edge-0", "edge-1"])


async def test_a_stop_ends_the_run_early_and_cleanly(peer: Mosquitto, tmp_path: Path) -> None:
    stop = asyncio.Event()
    watcher = MqttClient(peer.host, peer.port, "stopper")
    watcher.on_message(lambda _: stop.set())
    async with watcher:
        await watcher.subscribe("sensors/aircraft/N2/#")
        report = await demo_of(peer, tmp_path, schedule_of(600.0)).run(stop)
    assert report.faults() == []
    assert 0 < report.published < 550


async def test_a_message_that_comes_twice_is_found(peer: Mosquitto, tmp_path: Path) -> None:
    echo = MqttClient(peer.host, peer.port, "echo")
    seen: list[Publish] = []

    def once(message: Publish) -> None:
        if not seen:
            seen.append(message)
            echo.publish(message.topic_name_utf8.decode(), message.payload, qos=1)

    echo.on_message(once)
    async with echo:
        await echo.subscribe("sensors/aircraft/N3/#")
        report = await demo_of(peer, tmp_path, schedule_of()).run(asyncio.Event())
    assert report.duplicated == 1
    assert report.faults() == ["1 messages arrived twice"]


async def test_an_edge_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    cluster = StandInCluster("none", (StandInEdge("edge-0", "127.0.0.1:1"),))
    demo = Demo(cluster, schedule_of(), DemoSettings(tmp_path, spark=False), PlainDisplay(Console(quiet=True)))
    stop = asyncio.Event()
    task = asyncio.create_task(demo.run(stop))
    done, _ = await asyncio.wait((task,), timeout=0.5)
    assert not done, "it keeps trying for a while: the edge may be restarting"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def job_that(script: str) -> SparkJob:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    return SparkJob(process)


async def test_the_spark_job_is_ready_when_it_says_so() -> None:
    job = await job_that('import time\nprint(\'{"event": "ready"}\', flush=True)\ntime.sleep(60)')
    assert await job.wait_ready(30)
    await job.stop()


async def test_a_spark_job_that_ends_is_not_ready_and_its_words_are_kept() -> None:
    job = await job_that("import sys\nprint('plain words')\nsys.exit('the reason')")
    assert not await job.wait_ready(30)
    await job.stop()
    assert "plain words" in job.log
    assert "the reason" in job.log


@pytest.mark.parametrize("kind", [PlainDisplay, RichDisplay])
def test_both_displays_take_the_same_calls(kind: type[PlainDisplay]) -> None:
    console = Console(record=True, width=100, force_terminal=False, file=open("/dev/null", "w"))  # noqa: SIM115
    display = kind(console)
    for done in (0, 5, 10):
        display.progress("Publishing", done, 10, f"{done} figures")
    display.say("a line")
    display.close()
    console.file.close()
    assert "a line" in console.export_text()


def test_addresses() -> None:
    assert split_address("127.0.0.1:1883") == ("127.0.0.1", 1883)
    assert split_address("[::1]:1883") == ("::1", 1883)
