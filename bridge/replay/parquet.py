"""Writes Parquet: one file, or, with a state to resume from, a folder of parts. Needs pyarrow (`headwater[replay]`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from bridge.replay.lines import qos_of
from bridge.replay.selection import Item
from schemas.errors import ConfigurationError
from schemas.records import HEADER_CLIENT_ID, HEADER_QOS, HEADER_RETAIN

ROW_GROUP_RECORDS = 50_000
PART_RECORDS = 500_000  # a part is a checkpoint: that much is read again at most after an interruption
END_KEY = b"headwater.end"  # in the file's metadata: the end marker, JSON


class ParquetSink:
    """``resumable``: ``path`` becomes a folder of ``part-00000.parquet`` and so on, each complete in itself."""

    def __init__(self, path: Path, *, resumable: bool = False, overwrite: bool = False) -> None:
        self._arrow, self._parquet = _pyarrow()
        self._path = path
        self._resumable = resumable
        self._overwrite = overwrite
        self._items: list[Item] = []
        self._writer: Any = None
        self._part = 0
        self._in_part = 0

    async def open(self, saved: dict[str, Any] | None) -> None:
        try:
            if not self._resumable:
                if self._path.exists() and not self._overwrite:
                    raise ConfigurationError(f"{self._path} is there already; choose another name, or --overwrite")
                return
            if saved is not None:
                self._part = int(saved["parts"])
            elif self._path.exists() and any(self._path.iterdir()) and not self._overwrite:
                raise ConfigurationError(f"{self._path} is there already; choose another name, or --overwrite")
            self._path.mkdir(parents=True, exist_ok=True)
            for left_over in self._path.glob("part-*.parquet*"):
                if left_over.name >= self._part_name():
                    left_over.unlink()
        except OSError as error:
            raise ConfigurationError(f"{self._path}: {error.strerror}") from None

    async def write(self, items: Sequence[Item]) -> None:
        self._items += items
        if len(self._items) >= ROW_GROUP_RECORDS:
            self._write_group()

    async def checkpoint(self) -> dict[str, Any] | None:
        if not self._resumable or self._in_part + len(self._items) < PART_RECORDS:
            return None
        self._close_part(None)
        return {"parts": self._part}

    async def finish(self, end: dict[str, Any]) -> None:
        self._close_part(end)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _part_name(self) -> str:
        return f"part-{self._part:05d}.parquet"

    def _target(self) -> Path:
        return self._path / self._part_name() if self._resumable else self._path

    def _write_group(self) -> None:
        schema = self._schema()
        if self._writer is None:
            unfinished = self._target().with_suffix(".parquet.unfinished")
            try:
                self._writer = self._parquet.ParquetWriter(str(unfinished), schema, compression="zstd")
            except OSError as error:
                raise ConfigurationError(f"{unfinished}: {error}") from None
        self._writer.write_table(self._arrow.Table.from_pydict(_columns(self._items), schema=schema))
        self._in_part += len(self._items)
        self._items = []

    def _close_part(self, end: dict[str, Any] | None) -> None:
        if self._items or self._writer is None:
            self._write_group()
        if end is not None:
            self._writer.add_key_value_metadata({END_KEY: orjson.dumps(end)})
        self._writer.close()
        self._writer = None
        target = self._target()
        os.replace(target.with_suffix(".parquet.unfinished"), target)
        self._part += 1
        self._in_part = 0

    def _schema(self) -> Any:
        arrow = self._arrow
        header = arrow.struct([("name", arrow.string()), ("value", arrow.binary())])
        return arrow.schema(
            [
                ("timestamp", arrow.timestamp("ms", "UTC")),
                ("topic_name", arrow.string()),
                ("payload", arrow.binary()),
                ("qos", arrow.int8()),
                ("retain", arrow.bool_()),
                ("client_id", arrow.string()),
                ("kafka_topic", arrow.string()),
                ("partition", arrow.int32()),
                ("offset", arrow.int64()),
                ("key", arrow.binary()),
                ("headers", arrow.list_(header)),
            ]
        )


def _columns(items: Sequence[Item]) -> dict[str, list[Any]]:
    rows = [
        (
            record.timestamp,
            name.decode(),
            record.value,
            qos_of(found.get(HEADER_QOS)),
            found.get(HEADER_RETAIN) == b"1",
            (found.get(HEADER_CLIENT_ID) or b"").decode(errors="replace"),
            *position,
            record.offset,
            record.key,
            [{"name": header, "value": value} for header, value in record.headers],
        )
        for (_, position, record, name), found in ((item, dict(item[2].headers)) for item in items)
    ]
    names = ("timestamp", "topic_name", "payload", "qos", "retain", "client_id", "kafka_topic", "partition")
    columns = zip(*rows, strict=True) if rows else [()] * 11
    return dict(zip((*names, "offset", "key", "headers"), map(list, columns), strict=True))


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigurationError("Parquet needs pyarrow: pip install 'headwater[replay]'") from None
