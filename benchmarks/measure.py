"""The rounds: every scenario against every broker in turn, A B C A B C ..., so that a slow minute hits all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.brokers import Broker, is_alive, make_broker
from benchmarks.load import Generator, Timing, run_load
from benchmarks.processes import BenchmarkError, cpu_s, settle
from benchmarks.report import Sample
from benchmarks.scenarios import Scenario

_WARM_CONNECTIONS = 20  # before idle ones are counted: the password is then in the cache, the worker threads exist


@asynccontextmanager
async def running_brokers(names: Sequence[str], folder: Path) -> AsyncIterator[dict[str, Broker]]:
    """All of them at once: one that nobody talks to costs next to nothing. Stopped at the end, however it comes."""
    async with AsyncExitStack() as stack:
        brokers: dict[str, Broker] = {}
        for name in names:
            broker = make_broker(name, folder)
            stack.push_async_callback(broker.stop)
            await broker.start()
            brokers[name] = broker
        yield brokers


async def measure(
    brokers: dict[str, Broker],
    scenarios: Sequence[Scenario],
    generator: Generator,
    timing: Timing,
    rounds: int,
    on_sample: Callable[[Sample], None],
) -> list[Sample]:
    """Every sample, also those that failed: they carry the error."""
    samples: list[Sample] = []
    for round_number in range(1, rounds + 1):
        for scenario in scenarios:
            for name, broker in brokers.items():
                if name in scenario.brokers:
                    sample = await _sample(broker, scenario, generator, timing, round_number)
                    samples.append(sample)
                    on_sample(sample)
    return samples


async def _sample(
    broker: Broker, scenario: Scenario, generator: Generator, timing: Timing, round_number: int
) -> Sample:
    run_id = f"{scenario.name}-{round_number}"
    try:
        if scenario.connections or not is_alive(broker):
            await broker.restart()
        if scenario.connections:
            warm_up = scenario.with_connections(_WARM_CONNECTIONS)
            await run_load(generator, broker, warm_up, timing, f"{run_id}-warm")
        kafka_pid = broker.kafka_pid
        await settle([broker.pid] if kafka_pid is None else [broker.pid, kafka_pid])
        kafka_cpu_s = cpu_s(kafka_pid) if kafka_pid is not None else 0.0
        figures = await run_load(generator, broker, scenario, timing, run_id)
        if kafka_pid is not None:
            figures["kafka_cpu_s"] = cpu_s(kafka_pid) - kafka_cpu_s
    except (BenchmarkError, OSError) as error:
        return Sample(scenario.name, broker.name, round_number, error=f"{type(error).__name__}: {error}")
    read = idle_figures if scenario.connections else traffic_figures
    return Sample(scenario.name, broker.name, round_number, read(figures))


def traffic_figures(figures: dict[str, Any]) -> dict[str, float]:
    """From the generator's names and units to ours. Kafka's CPU is that of the whole run by all its messages."""
    latency = figures.get("lat_us") or {}
    chosen: dict[str, float | None] = {
        "messages_per_s": figures["delivered_per_s"],
        "cpu_us": figures.get("broker_cpu_us_per_delivered"),
        "p50_ms": latency["p50"] / 1_000 if latency else None,
        "p99_ms": latency["p99"] / 1_000 if latency else None,
        "lost": max(0, figures["missing"]),
        "repeated": figures["dups_or_reordered"],
        "refused": figures["refused"],
        "connections_lost": figures["lost_connections"],
        "broker_cores": figures["broker_util"],
        "generator_cores": figures["loadgen_util"],
    }
    if "kafka_cpu_s" in figures and figures["total_delivered"]:
        chosen["kafka_cpu_us"] = figures["kafka_cpu_s"] / figures["total_delivered"] * 1e6
    return {name: float(value) for name, value in chosen.items() if value is not None}


def idle_figures(figures: dict[str, Any]) -> dict[str, float]:
    """Connections: what one core could do in a second follows from the CPU time of a connect."""
    cpu_us = float(figures["broker_cpu_us_per_connect"])
    return {
        "connections": float(figures["conns"]),
        "memory_kb": float(figures["rss_kb_per_conn"]),
        "connect_cpu_us": cpu_us,
        "connects_per_s": float(figures["connects_per_s"]),
        "connects_per_core_s": 1e6 / cpu_us if cpu_us else 0.0,
    }
