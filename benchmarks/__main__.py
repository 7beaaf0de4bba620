"""Measure, print, store, publish. Exit code 1 when Headwater lost or repeated a message, or a run of it failed."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson

import edge
from benchmarks.brokers import available
from benchmarks.load import Timing, find_generator
from benchmarks.machine import describe_machine, load_average
from benchmarks.measure import measure, running_brokers
from benchmarks.processes import BenchmarkError
from benchmarks.publish import publish
from benchmarks.report import Document, Sample, document_from_json, faults, markdown
from benchmarks.scenarios import BROKERS, SCENARIOS, Scenario
from schemas.errors import HeadwaterError

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DOCUMENT = HERE.parent / "docs" / "benchmarks.md"
_QUICK_ROUNDS, _QUICK_S, _QUICK_CONNECTIONS = 1, 1.0, 500


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    options = _parser().parse_args(arguments)
    _prepare_children()
    try:
        if options.report is not None:
            document = document_from_json(orjson.loads(options.report.read_bytes()))
        else:
            document = asyncio.run(_measure(options))
            _store(document)
    except (BenchmarkError, HeadwaterError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("benchmarks: interrupted, nothing stored", file=sys.stderr)
        return 130
    print(markdown(document))
    if options.publish:
        publish(document, DOCUMENT)
        print(f"published in {DOCUMENT.relative_to(HERE.parent)}", file=sys.stderr)
    found = faults(document.samples)
    for fault in found:
        print(f"benchmarks: headwater: {fault}", file=sys.stderr)
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=None, help="rounds, A B C A B C ... (5)")
    parser.add_argument("--seconds", type=float, default=None, help="measured seconds of each run (3)")
    parser.add_argument("--quick", action="store_true", help="one round of 1 s, 500 idle connections: does it work?")
    parser.add_argument("--scenarios", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--brokers", nargs="+", choices=BROKERS, default=list(BROKERS), metavar="NAME")
    parser.add_argument("--name", default=None, help="what the run is called; the date and time else")
    parser.add_argument("--report", type=Path, metavar="FILE", help="measure nothing, report this earlier result")
    parser.add_argument("--publish", action="store_true", help="put the report into docs/benchmarks.md")
    return parser


async def _measure(options: argparse.Namespace) -> Document:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # stops brokers, clears folders
    rounds = options.runs or (_QUICK_ROUNDS if options.quick else 5)
    timing = Timing(options.seconds or (_QUICK_S if options.quick else 3.0), warm_up_s=0.5 if options.quick else 1.0)
    names, remarks = available(tuple(options.brokers))
    scenarios = _scenarios(options.scenarios, options.quick)
    load_before, began = load_average(), datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        generator = await find_generator(Path(folder))
        remarks += [generator.why] * bool(generator.why)
        remarks += [f"{scenario.title}: {scenario.note}" for scenario in scenarios if scenario.note]
        for remark in remarks:
            print(f"benchmarks: {remark}", file=sys.stderr)
        async with running_brokers(names, Path(folder)) as brokers:
            versions = {name: broker.version for name, broker in brokers.items()}
            samples = await measure(brokers, scenarios, generator, timing, rounds, _tell)
    return Document(
        name=options.name or began.strftime("%Y%m%d-%H%M%S"),
        date=began.strftime("%Y-%m-%d"),
        seconds=timing.measured_s,
        rounds=rounds,
        generator=generator.name,
        machine=describe_machine(),
        versions=versions,
        load_average=(load_before, load_average()),
        remarks=tuple(remarks),
        samples=tuple(samples),
    )


def _scenarios(names: Sequence[str], quick: bool) -> list[Scenario]:
    chosen = [scenario for scenario in SCENARIOS if scenario.name in names]
    if quick:
        chosen = [each.with_connections(_QUICK_CONNECTIONS) if each.connections else each for each in chosen]
    return chosen


def _tell(sample: Sample) -> None:
    """A line per run on standard error."""
    shown = sample.error or "  ".join(
        f"{name} {sample.figures[name]:,.2f}"
        for name in (
            "messages_per_s", "cpu_us", "kafka_cpu_us", "p50_ms", "p99_ms", "lost", "repeated", "generator_cores",
            "memory_kb", "connect_cpu_us", "connects_per_s",
        )
        if name in sample.figures
    )  # fmt: skip
    print(f"{sample.round}  {sample.scenario:16} {sample.broker:10} {shown}", file=sys.stderr, flush=True)


def _store(document: Document) -> None:
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{document.name}.json"
    target.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    target.with_suffix(".md").write_text(markdown(document), encoding="utf-8")
    print(f"stored in {target.relative_to(HERE.parent)} and .md", file=sys.stderr)


def _prepare_children() -> None:
    """Children run the Headwater that we import, and may open as many connections as the system lets us."""
    home = Path(edge.__file__).resolve().parents[1]
    if home != Path(sysconfig.get_path("purelib")).resolve():
        os.environ["PYTHONPATH"] = str(home)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
