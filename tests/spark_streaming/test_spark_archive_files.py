"""The archive's files, without Spark: what counts at any moment of batches and compactions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_streaming.archive_files import (
    Leaf,
    batch_name,
    claim_archive,
    committed_batch,
    compactable,
    delete_stale,
    leaves,
    place_batch,
    place_compacted,
    visible_files,
)
from spark_streaming.errors import SparkJobError

HOUR = "date=2026-11-21/hour=09/route=mqtt.sensors"
NOW = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)


def stage(tmp_path: Path, number: int, text: str, folders: Iterable[str] = (HOUR,)) -> Path:
    staged = tmp_path / "_staging" / f"batch-{number}"
    for folder in folders:
        (staged / folder).mkdir(parents=True)
        (staged / folder / "part-00000-x.c000.zstd.parquet").write_text(text)
    return staged


def content(archive: Path) -> list[str]:
    return [file.read_text() for file in visible_files(archive)]


def compact(archive: Path, committed: int) -> Leaf:
    (leaf,) = compactable(leaves(archive), committed, NOW, 1)
    staged = archive / "_staging" / "compact"
    staged.parent.mkdir(exist_ok=True)
    staged.write_text("+".join(file.read_text() for file in leaf.files))
    place_compacted(leaf, staged)
    return leaf


def test_a_repeated_batch_replaces_itself(tmp_path: Path) -> None:
    for _ in range(2):
        assert place_batch(tmp_path, stage(tmp_path, 0, "a"), 0) == 1
    place_batch(tmp_path, stage(tmp_path, 1, "b"), 1)
    assert content(tmp_path) == ["a", "b"]
    assert not list((tmp_path / "_staging").iterdir())


def test_a_folder_with_two_files_of_a_batch_is_refused(tmp_path: Path) -> None:
    staged = stage(tmp_path, 0, "a")
    (staged / HOUR / "part-00001-x.c000.zstd.parquet").write_text("b")
    with pytest.raises(SparkJobError, match="several files"):
        place_batch(tmp_path, staged, 0)
    assert content(tmp_path) == []


def test_a_compacted_file_stands_for_its_batches_before_and_after_they_are_deleted(tmp_path: Path) -> None:
    for number in range(4):
        place_batch(tmp_path, stage(tmp_path, number, str(number)), number)
    compact(tmp_path, committed=2)
    assert content(tmp_path) == ["0+1+2", "3"]  # batch 3 may be written again: it stays apart
    assert delete_stale(tmp_path, 60.0, NOW.timestamp() * 2) == 3
    assert content(tmp_path) == ["0+1+2", "3"]
    place_batch(tmp_path, stage(tmp_path, 3, "3"), 3)
    place_batch(tmp_path, stage(tmp_path, 4, "4"), 4)  # late for its hour
    compact(tmp_path, committed=4)
    assert content(tmp_path) == ["0+1+2+3+4"]
    assert compactable(leaves(tmp_path), 4, NOW, 1) == []
    delete_stale(tmp_path, 0.0, NOW.timestamp() * 2)
    assert [file.name for file in (tmp_path / HOUR).iterdir()] == ["compact-000000000004.parquet"]


def test_what_readers_may_still_have_open_is_kept(tmp_path: Path) -> None:
    for number in range(2):
        place_batch(tmp_path, stage(tmp_path, number, str(number)), number)
    compact(tmp_path, committed=1)
    (leaf,) = leaves(tmp_path)
    assert leaf.compacted is not None
    os.utime(leaf.compacted, (1000.0, 1000.0))
    assert delete_stale(tmp_path, 60.0, 1059.0) == 0
    assert delete_stale(tmp_path, 60.0, 1060.0) == 2


def test_hours_that_are_open_are_left_alone(tmp_path: Path) -> None:
    folders = [HOUR, HOUR.replace("hour=09", "hour=10")]
    for number in range(2):
        place_batch(tmp_path, stage(tmp_path, number, str(number), folders), number)
    chosen = [leaf.hour.hour for leaf in compactable(leaves(tmp_path), 1, NOW, 1)]
    assert chosen == [9]
    assert [leaf.hour.hour for leaf in compactable(leaves(tmp_path), 1, NOW, 0)] == [9, 10]
    assert compactable(leaves(tmp_path), 1, NOW, 2) == []
    assert compactable(leaves(tmp_path), 0, NOW, 0) == []  # one committed batch each


def test_other_files_do_not_count(tmp_path: Path) -> None:
    place_batch(tmp_path, stage(tmp_path, 7, "a"), 7)
    for name in (".batch-000000000008.parquet.crc", "notes.txt", "batch-9.parquet"):
        (tmp_path / HOUR / name).write_text("x")
    assert [file.name for file in visible_files(tmp_path)] == [batch_name(7)]


def test_committed_batches_are_spark_s(tmp_path: Path) -> None:
    assert committed_batch(tmp_path) == -1
    commits = tmp_path / "commits"
    commits.mkdir()
    for name in ("8", "9", "10", ".10.crc", ".11.tmp"):
        (commits / name).write_text("v1\n{}")
    assert committed_batch(tmp_path) == 10


def test_an_archive_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    claim_archive(archive, tmp_path / "one")
    claim_archive(archive, tmp_path / "one")
    with pytest.raises(SparkJobError, match="another checkpoint"):
        claim_archive(archive, tmp_path / "two")
    place_batch(tmp_path / "found", stage(tmp_path, 0, "a"), 0)
    with pytest.raises(SparkJobError, match="empty folder"):
        claim_archive(tmp_path / "found", tmp_path / "one")
