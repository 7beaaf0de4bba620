"""Writes and reads JSONL files of a replay."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from bridge.replay.digest import Digests
from bridge.replay.lines import LineEncoder, decode_line, end_line
from bridge.replay.selection import Item
from schemas.errors import ConfigurationError, HeadwaterError, RecordError

BUFFER_BYTES = 1 << 20
LINE_BYTES_MAX = 64 * 1024 * 1024  # far above what a record of 2 MiB can become


class JsonlSink:
    """A file, with a line per record. Interrupted, it is cut at the last checkpoint and gone on with."""

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        self._overwrite = overwrite
        self._encoder = LineEncoder()
        self._file: IO[bytes] | None = None

    async def open(self, saved: dict[str, Any] | None) -> None:
        try:
            if saved is None:
                self._file = self._path.open("wb" if self._overwrite else "xb", buffering=BUFFER_BYTES)
                return
            self._file = self._path.open("r+b", buffering=BUFFER_BYTES)
            if self._file.seek(0, os.SEEK_END) < int(saved["bytes"]):
                raise ConfigurationError(f"{self._path} is shorter than the state says; start anew without --resume")
            self._file.seek(int(saved["bytes"]))
            self._file.truncate()
        except FileExistsError:
            raise ConfigurationError(f"{self._path} is there already; choose another name, or --overwrite") from None
        except OSError as error:
            raise ConfigurationError(f"{self._path}: {error.strerror}") from None

    async def write(self, items: Sequence[Item]) -> None:
        assert self._file is not None, "open it first"
        self._write(self._encoder.encode(items))

    async def checkpoint(self) -> dict[str, Any]:
        assert self._file is not None, "open it first"
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise HeadwaterError(f"{self._path}: {error.strerror}") from None
        return {"bytes": self._file.tell()}

    async def finish(self, end: dict[str, Any]) -> None:
        self._write(end_line(end))
        await self.checkpoint()

    async def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what counts was safe before
                self._file.close()

    def _write(self, data: bytes) -> None:
        assert self._file is not None, "open it first"
        try:
            self._file.write(data)
        except OSError as error:
            raise HeadwaterError(f"{self._path}: {error.strerror}") from None


def read_file(path: Path) -> Iterator[Item | dict[str, Any]]:
    """The records of a JSONL file in their order, then its end marker if it is complete.

    Raises:
        ConfigurationError: the file cannot be read. RecordError: a line is none of a replay.
    """
    try:
        with path.open("rb", buffering=BUFFER_BYTES) as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), 1):
                try:
                    yield decode_line(line)
                except RecordError as error:
                    raise RecordError(f"{path}, line {number}: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None


def digest_file(path: Path, bytes_max: int | None = None) -> tuple[Digests, dict[str, Any] | None]:
    """The counts and hashes of what a file holds (of its first bytes), and its end marker. Raises as ``read_file``."""
    digests = Digests(hashing=True)
    end: dict[str, Any] | None = None
    portion: list[Item] = []
    for each in read_file(path) if bytes_max is None else _read_part(path, bytes_max):
        if isinstance(each, dict):
            end = each
            continue
        portion.append(each)
        if len(portion) >= 1_000:
            digests.add(portion)
            portion = []
    digests.add(portion)
    return digests, end


def _read_part(path: Path, bytes_max: int) -> Iterator[Item | dict[str, Any]]:
    with path.open("rb", buffering=BUFFER_BYTES) as file:
        while file.tell() < bytes_max:
            yield decode_line(file.readline(LINE_BYTES_MAX))
