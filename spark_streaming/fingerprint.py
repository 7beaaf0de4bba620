"""What a checkpoint's state depends on, kept beside the checkpoint.

Spark pins shuffle partitions and state provider in a checkpoint without a word and fails on other changes with an
error about schemas, or worse, goes on with a state that means something else. So the job's stateful shape is written
down at the first start and compared at every later one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from spark_streaming.errors import CheckpointMismatch

FILE_NAME = "headwater-job.json"
_START_NAME = "headwater-start.json"


def check_fingerprint(checkpoint: Path, shape: Mapping[str, str | int]) -> None:
    """Write the shape at the first start. Raises CheckpointMismatch at a later start with another one."""
    file = checkpoint / FILE_NAME
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        _store(file, shape)
        return
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(f"{file} cannot be read ({error}): start with a new --checkpoint folder") from None
    changed = [
        f"{name} was {stored.get(name)!r} and is {shape.get(name)!r}"
        for name in sorted({*stored, *shape})
        if stored.get(name) != shape.get(name)
    ]
    if changed:
        raise CheckpointMismatch(
            f"the checkpoint {checkpoint} belongs to a job of another shape: {'; '.join(changed)}. Go back to the old "
            f"settings, or start with a new --checkpoint folder and --from checkpoint:{checkpoint}, which goes on "
            "after the last record that was read (its state starts empty); --from -1h or earliest counts kept records "
            "again, and results of windows that were counted before keep their ids"
        )


def has_start(checkpoint: Path) -> bool:
    """Whether `kept_start` has written down where the queries started."""
    return (checkpoint / _START_NAME).exists()


def kept_start(checkpoint: Path, starting_offsets: str) -> str:
    """Where this checkpoint's queries started, the same for all of them; written down at the first start."""
    file = checkpoint / _START_NAME
    try:
        stored: str = json.loads(file.read_text(encoding="utf-8"))["starting_offsets"]
    except FileNotFoundError:
        _store(file, {"starting_offsets": starting_offsets})
        return starting_offsets
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointMismatch(f"{file} cannot be read ({error}): start with a new --checkpoint folder") from None
    return stored


def _store(file: Path, shape: Mapping[str, str | int]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    with part.open("w", encoding="utf-8") as stream:
        json.dump(dict(shape), stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)
