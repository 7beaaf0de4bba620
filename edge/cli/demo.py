"""`headwater demo`: Kafka, two edges, Spark and thousands of devices that replay real data, in one command."""

from __future__ import annotations

import asyncio
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edge.cli.console import output
from edge.cli.edge import run_loop, stop_event
from edge.cli.up import EDGES_MAX, UpOptions, cluster
from edge.demo.dataset import load
from edge.demo.display import Display, display_for
from edge.demo.limits import devices_that_fit, raise_file_limit
from edge.demo.report import Report
from edge.demo.run import Demo, DemoSettings
from edge.demo.schedule import SPEED, Schedule, days_needed, plan
from schemas.errors import ConfigurationError


def run(
    seconds: Annotated[float, typer.Option(min=1, help="How long the devices publish.")] = 300.0,
    headless: Annotated[bool, typer.Option("--headless", help="Open no browser, and end when it is over.")] = False,
    speed: Annotated[float, typer.Option(min=1, help="Simulated seconds per second.")] = SPEED,
    devices: Annotated[int | None, typer.Option(min=4, help="At most so many devices (default: all 4,046).")] = None,
    edges: Annotated[int, typer.Option(min=1, max=EDGES_MAX, help="How many edges.")] = 2,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="With the Spark job device_stats.")] = True,
    kafka: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Use this Kafka, start none.")] = None,
    mqtt_port: Annotated[int, typer.Option(min=0, max=65_535, help="Edge i: this port + i; 0: free ones.")] = 0,
    http_port: Annotated[int, typer.Option(min=0, max=65_535, help="Edge i: this port + i; 0: free ones.")] = 0,
) -> None:
    """Replay the weather and flights of 2013 through two edges, Kafka and Spark, and check that nothing is lost.

    Ends with code 1 when a message was lost or came twice, or when no window came from Spark.
    """
    display = display_for(output())
    with tempfile.TemporaryDirectory(prefix="headwater-demo-") as folder:
        options = UpOptions(
            edges=edges, mqtt_port=mqtt_port, http_port=http_port, data=Path(folder), dev=True, kafka=kafka
        )
        reports: list[Report] = []
        try:
            run_loop(
                _run(options, DemoSettings(Path(folder), spark), (seconds, speed, devices), headless, display, reports)
            )
        finally:
            display.close()
    faults = reports[0].faults() if reports else ["stopped before it began"]
    if faults:
        Console(stderr=True).print("headwater demo: " + "; ".join(faults), highlight=False)
        raise typer.Exit(1)


async def _run(
    options: UpOptions,
    settings: DemoSettings,
    size: tuple[float, float, int | None],
    headless: bool,
    display: Display,
    reports: list[Report],
) -> None:
    stop = stop_event()
    schedule = await asyncio.to_thread(_schedule, *size, display)
    display.say(f"Starting {'' if options.kafka else 'Kafka and '}{options.edges} edges")
    async with cluster(options) as running:
        for edge in running.edges:
            display.say(f"  {edge.node_id}: MQTT on {edge.mqtt}, live page on http://{edge.http}/")
        if stop.is_set():
            return
        if not headless:
            await asyncio.to_thread(webbrowser.open, f"http://{running.edges[0].http}/")
        report = await Demo(running, schedule, settings, display).run(stop)
        reports.append(report)
        display.finish(report)
        if not headless and not stop.is_set():
            display.say("The page stays up until Ctrl-C.")
            await stop.wait()


def _schedule(seconds: float, speed: float, devices: int | None, display: Display) -> Schedule:
    """Read the data and choose the devices: all, those asked for, or those that the open files allow."""
    dataset = load(days=days_needed(seconds, speed))
    wanted = min(devices or 1 << 30, len(dataset.tail_numbers) + len(dataset.stations))
    files_max = raise_file_limit(wanted)
    possible = devices_that_fit(files_max, wanted)
    if possible < wanted:
        display.say(f"Only {possible:,} of {wanted:,} devices: {files_max:,} open files are allowed (ulimit -n)")
    try:
        return plan(dataset, seconds, speed, possible)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
