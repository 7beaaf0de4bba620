"""A SHA-256 per partition over what was replayed: equal hashes mean the same bytes in the same order. Pure.

Of each record, in the order of the partition: offset and time (64 bits each), the length of the key and of the value
(32 bits, -1 for null) and their bytes, then the number of headers and of each header name and value in the same way;
everything big-endian. So the log, a JSONL file and a Parquet file of the same records give the same hash.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bridge.log import Headers, Position, Record
from bridge.replay.selection import Item

_FIXED = struct.Struct(">qqii")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
_HEADS_MAX = 50_000  # encoded headers that are remembered: most records of a device have the same


class PartitionDigest:
    """Of one partition: how many records, which offsets, how many payload bytes, and their hash."""

    __slots__ = ("bytes", "first", "last", "records", "sha256")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.first = -1
        self.last = -1
        self.sha256 = hashlib.sha256()


class Digests:
    """The partitions' counts, and with ``hashing`` their hashes."""

    def __init__(self, *, hashing: bool) -> None:
        self._hashing = hashing
        self._heads: dict[tuple[tuple[str, bytes | None], ...], bytes] = {}
        self.partitions: dict[Position, PartitionDigest] = {}

    def add(self, items: Sequence[Item]) -> None:
        """Take the next records, each partition's in its order."""
        by_position: dict[Position, list[Record]] = {}
        for _, position, record, _ in items:
            records = by_position.get(position)
            if records is None:
                records = by_position[position] = []
            records.append(record)
        for position, records in by_position.items():
            self.add_records(position, records)

    def add_records(self, position: Position, records: Sequence[Record]) -> None:
        """Take the next records of one partition."""
        digest = self.partitions.get(position)
        if digest is None:
            digest = self.partitions[position] = PartitionDigest()
            digest.first = records[0].offset
        digest.records += len(records)
        digest.bytes += sum(len(record.value or b"") for record in records)
        digest.last = records[-1].offset
        if self._hashing:
            digest.sha256.update(b"".join(self._pieces(records)))

    def restore(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Count on from what ``told`` said earlier; hashes do not go on."""
        for name, values in told.items():
            kafka_topic, _, partition = name.rpartition("/")
            digest = self.partitions[kafka_topic, int(partition)] = PartitionDigest()
            digest.records, digest.bytes = values["records"], values["bytes"]
            digest.first, digest.last = values["first"], values["last"]

    def told(self) -> dict[str, dict[str, Any]]:
        """What the end marker says of each partition, by ``<kafka topic>/<partition>``."""
        told: dict[str, dict[str, Any]] = {}
        for (kafka_topic, partition), digest in sorted(self.partitions.items()):
            values: dict[str, Any] = {"records": digest.records, "bytes": digest.bytes}
            values |= {"first": digest.first, "last": digest.last}
            if self._hashing:
                values["sha256"] = digest.sha256.hexdigest()
            told[f"{kafka_topic}/{partition}"] = values
        return told

    def _pieces(self, records: Iterable[Record]) -> list[bytes]:
        pieces: list[bytes] = []
        pack = _FIXED.pack
        for record in records:
            key, value, headers = record.key, record.value, record.headers
            pieces.append(
                pack(
                    record.offset,
                    record.timestamp,
                    -1 if key is None else len(key),
                    -1 if value is None else len(value),
                )
            )
            if key is not None:
                pieces.append(key)
            if value is not None:
                pieces.append(value)
            pieces.append(self._head(headers))
        return pieces

    def _head(self, headers: Headers) -> bytes:
        shape = tuple(headers)
        head = self._heads.get(shape)
        if head is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            head = self._heads[shape] = _encode_headers(headers)
        return head


def _encode_headers(headers: Headers) -> bytes:
    pieces = [_LENGTH.pack(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        pieces += (_LENGTH.pack(len(encoded)), encoded)
        pieces += (_NULL,) if value is None else (_LENGTH.pack(len(value)), value)
    return b"".join(pieces)
