"""One run of chaos: a site, a load, a fault, and what is left of it for the judges."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.chaos_checks import Log, Run
from support.chaos_context import Context, Scenario
from support.chaos_history import Recorder, read, replay
from support.chaos_invariants import JUDGED_S, Digests, digests
from support.chaos_poison import without_poison
from support.chaos_site import Site
from support.chaos_workload import Workload
from support.simulation_checks import EdgeLeft

from bridge.memory_log import MemoryRecord
from schemas.records import HEADER_TOPIC
from schemas.routes import DEFAULT_ROUTES

EDGES = 3
SHOWN_MAX = 8
NO_WONDER = (" ERROR aiokafka", "no answer in time")  # that Kafka cannot be reached, or has not answered for 30 s
OF_MESSAGES = frozenset(name for each in DEFAULT_ROUTES for name in (each.kafka_topic, each.q2_kafka_topic))
DEADLINE_S = 900.0
LEAD_S = 4.0


@dataclass(slots=True)
class Left:
    """What a run leaves besides its history, for `load_run`."""

    log: Log
    edges: list[EdgeLeft]
    wanted: dict[str, frozenset[str]]
    read: Digests
    replayed: Digests


async def perform(scenario: Scenario, seed: int, folder: Path) -> tuple[Context, Run]:
    """One scenario, and what it leaves.

    Raises:
        NotHere: this machine cannot do it; and whatever went wrong with the site itself.
    """
    recorder = Recorder(folder / "history.jsonl")
    site = Site(folder, EDGES, recorder)
    try:
        scenario.prepare(site)
        async with asyncio.timeout(DEADLINE_S):
            await site.start()
            load = Workload(site, seed)
            context = Context(site, load)
            await load.start()
            await asyncio.sleep(LEAD_S)
            await scenario.run(context)
            await asyncio.sleep(max(0.0, site.calm_at - time.monotonic()) + JUDGED_S)
            context.faults += await load.stop()
            edges = await load.probe()
            recorder.write("end")
            await load.leave()
            await site.until_left()
            log = await site.read_log()
            once, again = _messages(log), _messages(await site.replay(folder / "replay.jsonl"))
            for position, records in site.before_deletion.items():
                whole = {each.offset: each for each in [*records, *log[position]]}
                log[position] = [whole[offset] for offset in sorted(whole)]
    finally:
        await site.stop()
        recorder.close()
    said = [line[:300] for edge in site.edges for line in edge.complaints()]
    context.faults += [line for line in said if not any(each in line for each in NO_WONDER)][:SHOWN_MAX]
    save(folder / "log.json", Left(without_poison(log), edges, load.wanted(), once, again))
    run = load_run(folder)
    for judge in context.after:
        judge(run)
    return context, run


def _messages(log: Log) -> Digests:
    """What `#` matches of the log of messages, without poison."""
    found = {}
    for place, records in without_poison(log).items():
        matching = [each for each in records if not (dict(each.headers).get(HEADER_TOPIC) or b"").startswith(b"$")]
        if matching and place[0] in OF_MESSAGES:
            found[place] = digests(matching)
    return found


def save(path: Path, left: Left) -> None:
    """For `--judge`."""
    log = [
        [*place, [[each.offset, each.timestamp, _text(each.key), _text(each.value)] for each in records]]
        for place, records in left.log.items()
        if records
    ]
    edges = [[each.node_id, [[_text(k), _text(v[0])] for k, v in each.retained.items()]] for each in left.edges]
    wanted = {name: sorted(filters) for name, filters in left.wanted.items()}
    read, replayed = ([[*place, found] for place, found in each.items()] for each in (left.read, left.replayed))
    path.write_text(json.dumps({"log": log, "edges": edges, "wanted": wanted, "read": read, "replayed": replayed}))


def load_run(folder: Path) -> Run:
    """A run from what it has left in its folder."""
    left: dict[str, Any] = json.loads((folder / "log.json").read_text())
    log = {
        (place, partition): [MemoryRecord(o, t, _bytes(k), _bytes(v), ()) for o, t, k, v in records]
        for place, partition, records in left["log"]
    }
    edges = tuple(
        EdgeLeft(node_id, retained={_bytes(k) or b"": (_bytes(v) or b"", ("", 0), 0) for k, v in retained})
        for node_id, retained in left["edges"]
    )
    wanted = tuple((name, frozenset(filters)) for name, filters in left["wanted"].items())
    read_once, read_again = (
        {(place, partition): [(o, digest) for o, digest in found] for place, partition, found in left[each]}
        for each in ("read", "replayed")
    )
    return Run(replay(read(folder / "history.jsonl")), log, edges, wanted, read_once, read_again)


def _text(data: bytes | None) -> str | None:
    return base64.b64encode(data).decode() if data is not None else None


def _bytes(text: str | None) -> bytes | None:
    return base64.b64decode(text) if text is not None else None
