"""The catalogue as a fold over batches: entries of before and the profiles of one batch give the entries of after.

The state is a file per batch, so that a batch that Spark repeats after a fault starts from the same entries again and
nothing is counted twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from schemas.families import FamilyEntry
from spark_streaming.quality.types import field_types, merged

FIELDS_MAX = 200  # per family: keys that are ids would make a schema without end
MINUTES_KEPT = 5
DRIFT_KEPT = 20
_STATES_KEPT = 3
_STATE = re.compile(r"(\d{12})\.jsonl")


@dataclass(frozen=True, slots=True)
class Profile:
    """What one batch has of a family in one minute; `schema` is Spark's, None without JSON."""

    family: str
    kafka_topic: str
    minute: int
    messages: int
    payload_bytes: int
    malformed: int
    kinds: dict[str, int]
    first_ms: int
    last_ms: int
    schema: str | None
    fault: str | None


class Catalogue:
    """Families and their entries; `changed` and `forgotten` are those of the last fold."""

    def __init__(self, families_max: int, forget_ms: int) -> None:
        self._families_max = families_max
        self._forget_ms = forget_ms
        self.entries: dict[str, FamilyEntry] = {}
        self.changed: list[FamilyEntry] = []
        self.forgotten: list[str] = []
        self.left_out = 0  # messages of families beyond the bound, in the last fold

    def fold(self, profiles: Iterable[Profile]) -> None:
        """Take one batch."""
        touched: dict[str, FamilyEntry] = {}
        self.left_out = 0
        for profile in sorted(profiles, key=lambda one: (one.minute, one.family)):
            entry = self.entries.get(profile.family)
            if entry is None:
                if len(self.entries) >= self._families_max:
                    self.left_out += profile.messages
                    continue
                entry = self.entries[profile.family] = FamilyEntry(profile.family, profile.kafka_topic)
                entry.first_ms = profile.first_ms
            add(entry, profile)
            touched[profile.family] = entry
        newest_ms = max((entry.last_ms for entry in self.entries.values()), default=0)
        self.forgotten = [
            family for family, entry in self.entries.items() if entry.last_ms < newest_ms - self._forget_ms
        ]
        for family in self.forgotten:
            del self.entries[family]
        self.changed = [entry for family, entry in touched.items() if family in self.entries]

    def load(self, folder: Path, before_batch: int) -> None:
        """The entries as they were before this batch; none before the first one."""
        numbers = [number for number in _stored(folder) if number < before_batch]
        self.entries = {}
        if numbers:
            for line in _file(folder, max(numbers)).read_bytes().splitlines():
                entry = FamilyEntry.from_json(line)
                self.entries[entry.family] = entry

    def store(self, folder: Path, batch: int) -> Path:
        """The entries as they are after this batch; old files go."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = [self.entries[family].to_json() + b"\n" for family in sorted(self.entries)]
        part = folder / "part"
        part.write_bytes(b"".join(lines))
        part.replace(_file(folder, batch))
        for number in sorted(_stored(folder))[:-_STATES_KEPT]:
            _file(folder, number).unlink(missing_ok=True)
        return _file(folder, batch)


def add(entry: FamilyEntry, profile: Profile) -> None:
    """One minute of one batch into the family's entry."""
    entry.messages += profile.messages
    entry.payload_bytes += profile.payload_bytes
    entry.malformed += profile.malformed
    for kind, count in profile.kinds.items():
        entry.kinds[kind] = entry.kinds.get(kind, 0) + count
    entry.first_ms = min(entry.first_ms, profile.first_ms)
    entry.last_ms = max(entry.last_ms, profile.last_ms)
    entry.fault = profile.fault or entry.fault
    counts = {minute: (messages, malformed) for minute, messages, malformed in entry.minutes}
    messages, malformed = counts.get(profile.minute, (0, 0))
    counts[profile.minute] = (messages + profile.messages, malformed + profile.malformed)
    newest = max(counts)
    entry.minutes = [[at, *counts[at]] for at in sorted(counts) if at > newest - MINUTES_KEPT]
    if profile.schema is not None:
        _add_fields(entry, field_types(profile.schema), profile.minute)


def _add_fields(entry: FamilyEntry, found: dict[str, str], minute: int) -> None:
    is_first = not entry.fields
    added: dict[str, str] = {}
    changed: dict[str, list[str]] = {}
    left_out = 0
    for path, kind in found.items():
        known = entry.fields.get(path)
        if known is None:
            if len(entry.fields) >= FIELDS_MAX:
                left_out += 1
                continue
            added[path] = kind
            entry.fields[path] = [kind, minute]
            continue
        before, seen = known
        after = merged(before, kind)
        if after != before:
            changed[path] = [before, after]
        entry.fields[path] = [after, max(seen, minute)]
    entry.fields_left_out = max(entry.fields_left_out, left_out)
    if is_first:
        entry.schema_version = 1
    elif added or changed:
        entry.schema_version += 1
        step = {"minute": minute, "version": entry.schema_version, "added": added, "changed": changed}
        entry.drift = [*entry.drift, step][-DRIFT_KEPT:]


def _stored(folder: Path) -> list[int]:
    return [int(match[1]) for file in folder.glob("*.jsonl") if (match := _STATE.fullmatch(file.name))]


def _file(folder: Path, batch: int) -> Path:
    return folder / f"{batch:012}.jsonl"
