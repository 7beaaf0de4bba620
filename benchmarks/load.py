"""The load generator: mqload where Go and its source are there, our own client else. One JSON object per run."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.brokers import Broker
from benchmarks.processes import BenchmarkError
from benchmarks.scenarios import Load, Scenario

HERE = Path(__file__).resolve().parent
MQLOAD_VARIABLE = "HEADWATER_MQLOAD"  # the folder of mqload's source, or the built program
_SOURCE_BESIDE_US = HERE.parent.parent / "shared" / "tools" / "mqload"
_BUILD_TIMEOUT_S = 180.0
DRAIN_S = 10.0  # a message that comes later than this is counted as lost
_SETUP_S = 60.0  # connecting 5,000 clients to a slow broker
_PARALLEL_CONNECTS = 32
_IDLE_HOLD_S = 1.0


@dataclass(frozen=True, slots=True)
class Generator:
    """How load is made. `program` None: by our own client."""

    name: str
    program: Path | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one run."""

    measured_s: float
    warm_up_s: float


async def find_generator(folder: Path) -> Generator:
    """Build mqload into `folder`, or say why it is our own client instead."""
    named = Path(os.environ.get(MQLOAD_VARIABLE) or _SOURCE_BESIDE_US)
    if shutil.which(named):
        return Generator("mqload", named)
    go = shutil.which("go")
    if not (named / "main.go").is_file() or go is None:
        lacking = "Go" if go is None else f"mqload's source ({MQLOAD_VARIABLE} can name it)"
        return Generator(
            "edge.client", why=f"{lacking} is not here: our own client makes less load, the CPU figures hold"
        )
    source, program = folder / "mqload-source", folder / "mqload"
    shutil.copytree(named, source, copy_function=shutil.copyfile)  # its folder may be read-only
    source.chmod(0o755)
    await _run(
        [go, "build", "-o", str(program), "."], _BUILD_TIMEOUT_S, source, {"GOFLAGS": "-mod=mod", "GOWORK": "off"}
    )
    return Generator("mqload", program)


async def run_load(
    generator: Generator, broker: Broker, scenario: Scenario, timing: Timing, run_id: str
) -> dict[str, Any]:
    """One run against one broker: what the generator counted. Raises BenchmarkError.

    `run_id` starts every client identifier, so that no run meets the sessions of another.
    """
    if generator.program is not None:
        command = [str(generator.program), *mqload_arguments(broker, scenario, timing, run_id)]
        environment: dict[str, str] = {}
    else:
        command = [sys.executable, str(HERE / "load_client.py"), client_arguments(broker, scenario, timing, run_id)]
        environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    timeout_s = timing.warm_up_s + timing.measured_s + DRAIN_S + _SETUP_S
    answer = await _run(command, timeout_s, None, environment)
    try:
        figures: dict[str, Any] = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise BenchmarkError(f"the load generator said {answer[:200]!r}") from None
    if "error" in figures:
        raise BenchmarkError(str(figures["error"]))
    return figures


def mqload_arguments(broker: Broker, scenario: Scenario, timing: Timing, run_id: str) -> list[str]:
    """mqload's command line."""
    arguments = ["-addr", broker.address, "-pid", str(broker.pid), "-id", run_id]
    if broker.user_name:
        arguments += ["-user", broker.user_name, "-pass", broker.password]
    if scenario.connections:
        hold = f"{_IDLE_HOLD_S}s"
        return [
            *arguments, "-mode", "idle", "-conns", str(scenario.connections), "-conc", str(_PARALLEL_CONNECTS),
            "-hold", hold,
        ]  # fmt: skip
    return [*arguments, *_traffic_arguments(scenario.load, timing)]


def _traffic_arguments(load: Load, timing: Timing) -> list[str]:
    values: Mapping[str, object] = {
        "qos": load.qos,
        "pubs": load.publishers,
        "subs": load.subscribers,
        "topic": load.topic_name,
        "filter": load.topic_filter,
        "fan": load.fan,
        "inflight": load.in_flight,
        "window": load.window,
        "batch": load.batch,
        "rate": load.rate_per_s,
        "size": load.payload_bytes,
        "dur": f"{timing.measured_s}s",
        "warm": f"{timing.warm_up_s}s",
        "drain": f"{DRAIN_S}s",
    }
    return [text for name, value in values.items() for text in (f"-{name}", str(value))]


def client_arguments(broker: Broker, scenario: Scenario, timing: Timing, run_id: str) -> str:
    """The JSON that load_client.py takes."""
    host, _, port = broker.address.rpartition(":")
    return orjson.dumps(
        {
            "host": host,
            "port": int(port),
            "pid": broker.pid,
            "run_id": run_id,
            "user_name": broker.user_name or None,
            "password": broker.password or None,
            "connections": scenario.connections,
            "parallel": _PARALLEL_CONNECTS,
            "hold_s": _IDLE_HOLD_S,
            "drain_s": DRAIN_S,
            "measured_s": timing.measured_s,
            "warm_up_s": timing.warm_up_s,
            "load": dataclasses.asdict(scenario.load),
        }
    ).decode()


async def _run(command: list[str], timeout_s: float, folder: Path | None, environment: Mapping[str, str]) -> bytes:
    """The command's standard output; its exit code is not looked at when it says something. Raises BenchmarkError."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=os.environ | dict(environment),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, complaint = await process.communicate()
    except TimeoutError:
        raise BenchmarkError(f"{Path(command[0]).name} was not through after {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode and not output:
        raise BenchmarkError(f"{Path(command[0]).name} failed: {complaint.decode(errors='replace')[-500:]}")
    return output
