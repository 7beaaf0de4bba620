"""Measure the Spark jobs on a Kafka and two edges of their own: throughput per core, and end-to-end latency."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe_machine, load_average
from benchmarks.processes import BenchmarkError
from benchmarks.spark import latency, throughput
from edge.cli.up import UpOptions, cluster
from schemas.errors import HeadwaterError

PARTS = (*latency.SCENES, "throughput")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all, or some of: {', '.join(PARTS)}")
    parser.add_argument("--records", type=int, default=300_000, help="of the throughput part (default 300000)")
    parser.add_argument(
        "--job", action="append", choices=tuple(throughput.JOBS), help="only these jobs of the throughput part"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each latency measurement (default 20)")
    options = parser.parse_args(arguments)
    if strangers := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(strangers))}")
    try:
        asyncio.run(
            _run(options.parts or PARTS, options.records, options.seconds, options.job or tuple(throughput.JOBS))
        )
    except (BenchmarkError, HeadwaterError) as error:
        print(f"benchmarks.spark: {error}", file=sys.stderr)
        return 1
    return 0


async def _run(parts: Sequence[str], records: int, seconds: float, jobs: Sequence[str]) -> None:
    _say(", ".join(f"{name} {value}" for name, value in describe_machine().items()))
    _say(f"load of the last minute {load_average():.1f}")
    with tempfile.TemporaryDirectory(prefix="headwater-bench-spark-") as place:
        folder = Path(place)
        up = UpOptions(edges=2, mqtt_port=0, http_port=0, data=folder, dev=True)
        async with cluster(up) as running:
            for name, scene in latency.SCENES.items():
                if name in parts:
                    found = await latency.measure(scene, running, folder / name, seconds)
                    _say(
                        f"{name} ({scene.job}, real-time): p50 {found.p50_ms:.0f} ms, p99 {found.p99_ms:.0f} ms, worst "
                        f"{found.worst_ms:.0f} ms; {found.results} results of {found.published} messages in "
                        f"{found.seconds:.0f} s"
                    )
            _say(f"load of the last minute {load_average():.1f}")
            if "throughput" in parts:
                await throughput.fill(running.bootstrap, records)
                for percentiles in sorted({"percentiles" in job for job in jobs}):
                    rate = await throughput.python_rate(running.bootstrap, percentiles)
                    _say_rate(f"plain Python{' with percentiles' if percentiles else ''}", rate)
                for job in jobs:
                    rate = await throughput.spark_rate(job, running.bootstrap, folder / job.replace(" ", "-"), records)
                    _say_rate(job, rate)


def _say_rate(name: str, rate: throughput.Rate) -> None:
    _say(
        f"{name}: {rate.per_core:,.0f} records/s per core ({rate.records:,} records, {rate.cpu_s:.1f} CPU s, "
        f"{rate.wall_s:.1f} s)"
    )


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
