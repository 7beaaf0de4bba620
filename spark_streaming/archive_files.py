"""The archive's files: which there are, which count, and how a batch or a compaction gets in. Pure of Spark.

```
<archive>/date=2026-11-21/hour=21/route=mqtt.sensors/batch-000000000017.parquet      what batch 17 has for this folder
                                                     compact-000000000016.parquet    all batches up to 16, in one file
<archive>/_staging/...                                                               written, not yet in place
<archive>/_archive.json                                                              whose checkpoint fills it
```

A batch has one file per folder, whose name says which batch it is: written again after a fault, it replaces itself. A
compacted file stands for every batch up to its number, and for every compacted file before it. So putting it in place,
one rename, is what makes it count; the files that it stands for are deleted some time later, when nobody reads them
any more. Whatever interrupts this, no row is missing or there twice for those who follow the rule (`visible_files`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spark_streaming.errors import SparkJobError

STAGING = "_staging"
_OWNER = "_archive.json"
_FILE = re.compile(r"(batch|compact)-(\d{12})\.parquet")
_LEAF = re.compile(r"date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/route=[^/]+")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One folder: the messages of one route and hour."""

    path: Path
    hour: datetime
    compacted_to: int  # the number of the newest compacted file; -1: there is none
    batches: tuple[int, ...]  # those that no compacted file stands for
    stale: tuple[Path, ...]  # those that one stands for

    @property
    def compacted(self) -> Path | None:
        return None if self.compacted_to < 0 else self.path / compact_name(self.compacted_to)

    @property
    def files(self) -> tuple[Path, ...]:
        """What counts."""
        first = () if self.compacted is None else (self.compacted,)
        return (*first, *(self.path / batch_name(number) for number in self.batches))


def batch_name(number: int) -> str:
    """The name of a batch's file."""
    return f"batch-{number:012}.parquet"


def compact_name(number: int) -> str:
    """The name of the file that stands for all batches up to this one."""
    return f"compact-{number:012}.parquet"


def leaves(archive: Path) -> list[Leaf]:
    """Every folder of the archive, oldest first."""
    found = []
    for path in sorted(archive.glob("date=*/hour=*/route=*")):
        if match := _LEAF.fullmatch(path.relative_to(archive).as_posix()):
            hour = datetime.fromisoformat(f"{match[1]}T{match[2]}:00:00+00:00")
            found.append(_leaf(path, hour))
    return found


def visible_files(archive: Path) -> list[Path]:
    """The files that together are the archive: each message once."""
    return [file for leaf in leaves(archive) for file in leaf.files]


def place_batch(archive: Path, staged: Path, number: int) -> int:
    """Put a staged batch (`date=…/hour=…/route=…/part-….parquet`) in place; how many files it has."""
    files = sorted(staged.glob("date=*/hour=*/route=*/part-*.parquet"))
    folders = [file.parent for file in files]
    if len(set(folders)) != len(folders):
        raise SparkJobError(f"{staged}: a folder has several files; one batch must have one in each")
    for file in files:
        target = archive / file.parent.relative_to(staged) / batch_name(number)
        target.parent.mkdir(parents=True, exist_ok=True)
        _move(file, target)
    shutil.rmtree(staged, ignore_errors=True)
    return len(files)


def compactable(found: Iterable[Leaf], committed: int, now: datetime, open_hours: int) -> list[Leaf]:
    """The folders whose hour is over and that have more than one file of committed batches, with those batches only."""
    closed_before = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=open_hours - 1)
    chosen = []
    for leaf in found:
        batches = tuple(number for number in leaf.batches if number <= committed)
        if leaf.hour < closed_before and len(batches) + (leaf.compacted is not None) > 1:
            chosen.append(Leaf(leaf.path, leaf.hour, leaf.compacted_to, batches, ()))
    return chosen


def place_compacted(leaf: Leaf, staged: Path) -> Path:
    """Make the staged file stand for all files of `leaf`; from here on it counts and they do not."""
    target = leaf.path / compact_name(max(leaf.batches))
    _move(staged, target)
    return target


def delete_stale(archive: Path, keep_s: float, now_s: float) -> int:
    """Delete files that a compacted one has stood for for `keep_s`; how many."""
    count = 0
    for leaf in leaves(archive):
        if leaf.compacted is None or now_s - leaf.compacted.stat().st_mtime < keep_s:
            continue
        for file in leaf.stale:
            file.unlink(missing_ok=True)
            count += 1
    return count


def committed_batch(query_checkpoint: Path) -> int:
    """The last batch that Spark has committed: it is never written again; -1: none."""
    folder = query_checkpoint / "commits"
    numbers = [int(file.name) for file in folder.glob("*") if file.name.isdecimal()] if folder.is_dir() else []
    return max(numbers, default=-1)


def claim_archive(archive: Path, checkpoint: Path) -> None:
    """One checkpoint fills an archive for its life: another one would count batches from 0 and overwrite files.

    Raises SparkJobError.
    """
    own_file = checkpoint / "headwater-archive-id.json"
    if not own_file.exists():
        _write_json(own_file, {"id": uuid.uuid4().hex})
    own: str = json.loads(own_file.read_text(encoding="utf-8"))["id"]
    owner_file = archive / _OWNER
    if not owner_file.exists():
        if leaves(archive):
            raise SparkJobError(f"{archive} holds files but no {_OWNER}: name an empty folder with --archive")
        _write_json(owner_file, {"id": own})
    owner: str = json.loads(owner_file.read_text(encoding="utf-8"))["id"]
    if owner != own:
        raise SparkJobError(
            f"{archive} was filled from another checkpoint than {checkpoint}: name that one with --checkpoint, "
            "or a new folder with --archive"
        )


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def _leaf(path: Path, hour: datetime) -> Leaf:
    batches: list[int] = []
    compacted: list[int] = []
    for name in os.listdir(path):
        if match := _FILE.fullmatch(name):
            (batches if match[1] == "batch" else compacted).append(int(match[2]))
    newest = max(compacted, default=-1)
    stale = [path / batch_name(number) for number in sorted(batches) if number <= newest]
    stale += [path / compact_name(number) for number in sorted(compacted) if number < newest]
    return Leaf(path, hour, newest, tuple(sorted(number for number in batches if number > newest)), tuple(stale))


def _move(source: Path, target: Path) -> None:
    """One rename, after the content is on disk."""
    for path in (source, source.parent):
        _sync(path)
    source.replace(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_json(file: Path, content: dict[str, str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(file)
