"""What a checkpoint folder says: how far its queries have read, and so what was lost and where a new one can go on.

Spark keeps a folder per query below the job's: `offsets/<batch>` is written when a batch is planned (where it ends, by
source), `commits/<batch>` when it is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import ConfigurationError
from spark_streaming.fingerprint import FILE_NAME

Offsets = dict[str, dict[str, int]]  # by Kafka topic and partition number, as Spark writes them
_NAMES_SHOWN_MAX = 12


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one query stands: its last batch that is done, the next records to read, and its watermark."""

    query: str
    batch: int
    positions: Offsets
    watermark_ms: int


def standings(checkpoint: Path) -> list[Standing]:
    """Of every query of a job's checkpoint that has finished a batch and reads Kafka."""
    found = (_standing(commits.parent) for commits in sorted(checkpoint.glob("*/commits")))
    return [standing for standing in found if standing is not None]


def next_records(checkpoint: Path) -> Offsets:
    """The first record of each partition that not every query has read."""
    found: Offsets = {}
    for standing in standings(checkpoint):
        for kafka_topic, partitions in standing.positions.items():
            known = found.setdefault(kafka_topic, {})
            for partition, offset in partitions.items():
                known[partition] = min(offset, known.get(partition, offset))
    return found


def lost_records(positions: Offsets, beginnings: Offsets, ends: Offsets) -> list[str]:
    """What Kafka has deleted of the records to read, in words, a line per partition."""
    lost = []
    for kafka_topic, partitions in sorted(positions.items()):
        for partition, offset in sorted(partitions.items(), key=lambda item: int(item[0])):
            first = beginnings.get(kafka_topic, {}).get(partition)
            end = ends.get(kafka_topic, {}).get(partition)
            if first is None or end is None:
                continue  # no input of this job any more
            if end < offset:
                lost.append(f"{kafka_topic}-{partition}: made anew, it ends at {end} and {offset} was the next")
            elif offset < first:
                lost.append(f"{kafka_topic}-{partition}: {first - offset} records, {offset} to {first - 1}")
    return lost


def positions_of(checkpoint: Path) -> Offsets:
    """For `--from checkpoint:DIR`. Raises ConfigurationError when there is none in the folder."""
    if not (found := next_records(checkpoint)):
        raise ConfigurationError(f"--from: {checkpoint} is no checkpoint of a job that has finished a batch")
    return found


def describe(checkpoint: Path) -> dict[str, Any]:
    """For `headwater spark checkpoint`: the job's shape, where its queries stand, and how to go on from there."""
    if not (checkpoint / FILE_NAME).is_file():
        raise ConfigurationError(f"{checkpoint} is no job's checkpoint: it has no {FILE_NAME}")
    try:
        shape: Mapping[str, Any] = json.loads((checkpoint / FILE_NAME).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{checkpoint / FILE_NAME} cannot be read: {error}") from None
    job = shape.get("job", "<job>")
    return {
        "shape": shape,
        "queries": [
            {"query": one.query, "batch": one.batch, "next": one.positions, "watermark_ms": one.watermark_ms or None}
            for one in standings(checkpoint)
        ],
        "go_on": f"headwater spark run {job} --checkpoint NEW-FOLDER --from checkpoint:{checkpoint}",
    }


def words_for_loss(lost: list[str]) -> str:
    """The list, not longer than somebody reads."""
    shown = "; ".join(lost[:_NAMES_SHOWN_MAX])
    return shown if len(lost) <= _NAMES_SHOWN_MAX else f"{shown}; and {len(lost) - _NAMES_SHOWN_MAX} more partitions"


def _standing(folder: Path) -> Standing | None:
    batches = sorted(int(file.name) for file in (folder / "commits").iterdir() if file.name.isdecimal())
    if not batches:
        return None
    lines = (folder / "offsets" / str(batches[-1])).read_text(encoding="utf-8").splitlines()
    values = [value for line in lines if isinstance(value := _json(line), dict)]
    watermark_ms = next((int(value["batchWatermarkMs"]) for value in values if "batchWatermarkMs" in value), 0)
    positions: Offsets = {}
    for value in values:
        if value and all(isinstance(partitions, dict) for partitions in value.values()) and "conf" not in value:
            positions |= value
    return Standing(folder.name, batches[-1], positions, watermark_ms) if positions else None


def _json(line: str) -> Any:
    try:
        return json.loads(line[line.index("{") :])  # a later log format puts the source's name in front
    except ValueError:
        return None
