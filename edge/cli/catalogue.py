"""`headwater topics catalogue`: what the Spark job `quality` has seen of each family of Topic Names."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from bridge.kafka_log import KafkaLog
from bridge.log import Log, Record
from bridge.topic_tail import TopicTail
from edge.cli.console import Cluster, ConfigOption, JsonOption, KafkaOption, cluster, output, print_json
from schemas.catalogue import CATALOGUE
from schemas.errors import RecordError
from schemas.families import FamilyEntry

TIMEOUT_S = 30.0
FIELDS_SHOWN = 6  # in the table; --family shows all


def run(
    family: Annotated[
        str | None, typer.Option("--family", metavar="FILTER", help="One family, with all fields and their changes.")
    ] = None,
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the families of Topic Names: rate, malformed payloads, fields. `headwater spark run quality` fills it."""
    entries = asyncio.run(_read(cluster(kafka, config)))
    if family is not None:
        entries = [entry for entry in entries if entry.family == family]
    if as_json:
        print_json([orjson.loads(entry.to_json()) for entry in entries])
    elif not entries:
        output().print("nothing is in the catalogue: `headwater spark run quality` fills it")
    elif family is not None:
        _print_details(entries[0])
    else:
        output().print(_table(entries))


async def read_entries(log: Log, timeout_s: float = TIMEOUT_S) -> list[FamilyEntry]:
    """Every family of the catalogue, by name. What cannot be read is left out. Raises LogUnavailable."""
    found: dict[bytes, FamilyEntry] = {}

    def take(_partition: int, record: Record) -> None:
        found.pop(record.key or b"", None)
        if record.value is not None:
            try:
                found[record.key or b""] = FamilyEntry.from_json(record.value)
            except RecordError:
                pass

    tail = TopicTail(log, CATALOGUE, 1, take)
    await tail.start(timeout_s)
    await tail.stop()
    return sorted(found.values(), key=lambda entry: entry.family)


async def _read(target: Cluster) -> list[FamilyEntry]:
    log = KafkaLog(target.bootstrap, client_id="headwater-catalogue", options=target.client_options)
    await log.start()
    try:
        return await read_entries(log)
    finally:
        await log.stop()


def _table(entries: list[FamilyEntry]) -> Table:
    table = Table("family", "messages", "per s", "malformed", "of late", "last seen", "schema", "fields")
    now_ms = time.time() * 1000
    for entry in entries:
        fields = [f"{path or '(root)'}: {kind}" for path, (kind, _) in sorted(entry.fields.items()) if path]
        more = f", {len(fields) - FIELDS_SHOWN} more" if len(fields) > FIELDS_SHOWN else ""
        table.add_row(
            escape(entry.family),
            str(entry.messages),
            f"{entry.rate_per_s:.1f}",
            f"{entry.error_share:.2%}",
            f"{entry.recent_error_share:.2%}",
            f"{max(0.0, now_ms - entry.last_ms) / 1000:.0f} s ago",
            str(entry.schema_version or "-"),
            escape(", ".join(fields[:FIELDS_SHOWN]) + more),
        )
    return table


def _print_details(entry: FamilyEntry) -> None:
    console = output()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(entry.kinds.items()))
    console.print(f"{entry.family}: {entry.messages} messages ({kinds}), {entry.payload_bytes} bytes", markup=False)
    if entry.fault:
        console.print(f"{entry.malformed} malformed ({entry.error_share:.2%}), the last: {entry.fault}", markup=False)
    fields = Table("field", "type", "last seen")
    for path, (kind, minute) in sorted(entry.fields.items()):
        fields.add_row(escape(path or "(root)"), kind, _minute(minute))
    console.print(fields)
    for step in entry.drift:
        added = [f"{path}: {kind} is new" for path, kind in sorted(step["added"].items())]
        changed = [f"{path}: {before} became {after}" for path, (before, after) in sorted(step["changed"].items())]
        text = f"schema {step['version']} at {_minute(step['minute'])}: {'; '.join(added + changed)}"
        console.print(text, markup=False)


def _minute(minute: int) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(minute * 60))
