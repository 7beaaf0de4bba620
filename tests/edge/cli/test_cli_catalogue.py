"""`headwater topics catalogue`: what it reads and prints."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bridge.memory_log import MemoryLog
from edge.cli import catalogue
from schemas.catalogue import CATALOGUE
from schemas.families import FamilyEntry

ENTRY = FamilyEntry(
    "sensors/+/+/#",
    "mqtt.sensors",
    messages=200,
    payload_bytes=5000,
    malformed=1,
    kinds={"json": 199, "text": 1},
    first_ms=60_000,
    last_ms=119_000,
    schema_version=2,
    fields={"": ["object", 1], "readings[]": ["number", 1], "unit[si]": ["text", 1]},
    minutes=[[1, 200, 1]],
    drift=[{"minute": 1, "version": 2, "added": {"unit[si]": "text"}, "changed": {"readings[]": ["text", "mixed"]}}],
    fault="it begins like JSON, but it is not",
)


async def test_the_newest_entry_of_each_family_counts() -> None:
    log = MemoryLog()
    records = [
        (b"a/#", FamilyEntry("a/#", "m", messages=1).to_json()),
        (b"b/#", FamilyEntry("b/#", "m").to_json()),
        (b"a/#", FamilyEntry("a/#", "m", messages=2).to_json()),
        (b"b/#", None),
        (b"c/#", b"{bad"),
    ]
    await log.submit(CATALOGUE, 0, [(key, value, ()) for key, value in records])
    assert [(entry.family, entry.messages) for entry in await catalogue.read_entries(log)] == [("a/#", 2)]


def printed(monkeypatch: pytest.MonkeyPatch, family: str | None, entries: list[FamilyEntry]) -> str:
    async def read(_: object) -> list[FamilyEntry]:
        return entries

    stream = io.StringIO()
    monkeypatch.setattr(catalogue, "_read", read)
    monkeypatch.setattr(catalogue, "output", lambda: Console(file=stream, width=200, highlight=False))
    catalogue.run(family=family)
    return stream.getvalue()


def test_a_table_of_all_and_the_details_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    table = printed(monkeypatch, None, [ENTRY])
    for text in ("sensors/+/+/#", "200", "0.50%", "readings[]: number, unit[si]: text"):
        assert text in table
    details = printed(monkeypatch, "sensors/+/+/#", [ENTRY])
    for text in ("199 json, 1 text", "begins like JSON", "readings[]: text became mixed", "unit[si]: text is new"):
        assert text in details
    assert "headwater spark run quality" in printed(monkeypatch, "other/#", [ENTRY])
