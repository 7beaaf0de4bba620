"""Soak: two edges and a Kafka under a modest load of all kinds; do they have in the end what they began with?

    python tests/chaos/soak.py --minutes 60

The load: the clients of the chaos runs, and visitors that connect, subscribe, publish, unsubscribe and go, some of
them without a word and with a will. The baseline is taken after a warm-up of a minute, when all clients have gone; so
are the last figures. Ends with 1 when memory, descriptors or tasks of an edge are more than 10 % above what the larger
of the two had.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(_TESTS.parent), str(_TESTS), str(_TESTS / "chaos")]

from run import BUILD, SOAK, write_document  # noqa: E402
from support.chaos_history import Recorder  # noqa: E402
from support.chaos_run import NO_WONDER, SHOWN_MAX  # noqa: E402
from support.chaos_site import Site  # noqa: E402
from support.chaos_workload import Workload  # noqa: E402

from edge.client import ConnectFailed, ConnectRefused, MqttClient, MqttClientError  # noqa: E402
from edge.wire import Will  # noqa: E402

EDGES = 2
WARM_UP_S = 60
SETTLE_S = 30
SAMPLE_S = 30
ROW_S = 600
VISITORS = 4  # at a time
NAMES = 200
ALLOWED = 1.1
COLUMNS = ("memory, MiB", "descriptors", "tasks")

Figures = dict[str, tuple[float, int, int]]


async def soak(minutes: float, folder: Path) -> dict[str, Any]:
    """The table, and what is too much."""
    site = Site(folder, EDGES, Recorder(Path("/dev/null")))
    rows: dict[str, Figures] = {}
    try:
        await site.start()
        await _load(site, WARM_UP_S, rows={})
        rows["baseline, no clients"] = before = await _figures(site)
        took = await _load(site, minutes * 60, rows)
        rows["end, no clients"] = after = await _figures(site)
        said = [line[:300] for edge in site.edges for line in edge.complaints()]
        faults = [line for line in said if not any(each in line for each in NO_WONDER)][:SHOWN_MAX]
    finally:
        await site.stop()
    usual = [max(values) for values in zip(*before.values(), strict=True)]  # what the cluster gives one to do, moves
    for node_id, values in after.items():
        faults += [
            f"{node_id}: {what} {value:g} in the end, at most {began:g} in the beginning"
            for what, value, began in zip(COLUMNS, values, usual, strict=True)
            if value > ALLOWED * began
        ]
    summary = f"{minutes:g} minutes, {took[0]:,} messages delivered to the clients, {took[1]:,} visitors. " + (
        "Not as it began: " + "; ".join(faults) if faults else "All is within 10 % of the baseline in the end."
    )
    columns = [f"{node_id}: {what}" for node_id in before for what in COLUMNS]
    shown = {name: [f"{value:g}" for values in each.values() for value in values] for name, each in rows.items()}
    at = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return {"at": at, "summary": f"{summary} Ended {at} UTC.", "columns": columns, "rows": shown, "faults": faults}


async def _load(site: Site, seconds: float, rows: dict[str, Figures]) -> tuple[int, int]:
    """All clients for so long; then they go, and the edges come to rest. How many deliveries and visitors."""
    load = Workload(site, 1)
    await load.start()
    visits = [0] * VISITORS
    visitors = [asyncio.create_task(_visit(site, number, visits)) for number in range(VISITORS)]
    began, next_row = time.monotonic(), 0.0
    with (site.folder / "samples.jsonl").open("a") as samples:
        while (passed := time.monotonic() - began) < seconds:
            figures = await _figures(site)
            samples.write(json.dumps([time.time(), figures]) + "\n")
            samples.flush()
            if passed >= next_row:
                rows[f"after {round(passed / 60)} min"] = figures
                next_row += ROW_S
            await asyncio.sleep(min(SAMPLE_S, seconds - passed))
        if rows:
            rows[f"after {round(seconds / 60)} min"] = await _figures(site)
    for task in visitors:
        task.cancel()
    await asyncio.gather(*visitors, return_exceptions=True)
    await load.stop()
    await load.leave()
    await asyncio.sleep(SETTLE_S)
    return load.receipts, sum(visits)


async def _visit(site: Site, number: int, visits: list[int]) -> None:
    """One visitor after the other, each other one with a session that goes with its connection."""
    while True:
        visits[number] += 1
        name = f"v{number}-{visits[number] % NAMES}"
        host, port = site.addresses(visits[number] % EDGES)[0]
        will = Will(f"visitor/{name}/will", b"gone", visits[number] % 3)
        client = MqttClient(host, port, name, protocol_version=4 + visits[number] % 2, will=will)
        with suppress(ConnectFailed, ConnectRefused, MqttClientError):
            await client.connect()
            await client.subscribe([(f"visitor/{name}/#", 2), ("kept/+/0", 1), ("$share/v/visitor/+/x", 1)])
            for count in range(3):
                client.publish(f"visitor/{name}/x", f"{count}", count, retain=count == 1)
            await asyncio.sleep(0.5)
            await client.unsubscribe([f"visitor/{name}/#", "$share/v/visitor/+/x"])
        if visits[number] % 4:
            with suppress(MqttClientError):
                await client.disconnect()
        else:
            client.abort()


async def _figures(site: Site) -> Figures:
    figures = {}
    for edge in site.edges:
        memory_kb, files, tasks = await edge.sample() or (0, 0, None)
        figures[edge.node_id] = round(memory_kb / 1024, 1), files, tasks if tasks is not None else -1
    return figures


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    folder = BUILD / "soak"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result = asyncio.run(soak(arguments.minutes, folder))
    shutil.rmtree(folder / "kafka", ignore_errors=True)
    SOAK.write_text(json.dumps(result, indent=1) + "\n")
    write_document()
    print(result["summary"])
    for name, values in result["rows"].items():
        print(f"  {name:24}", *(f"{value:>8}" for value in values))
    return int(bool(result["faults"]))


if __name__ == "__main__":
    sys.exit(main())
