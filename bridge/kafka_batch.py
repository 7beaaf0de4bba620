"""Record batches as a fetch returns them (message format 2), read so that no bad byte stops the reader.

aiokafka's compiled reader does the work; it gives up a whole batch at the first record that it cannot decode. Then
``_salvage`` walks the batch by its length fields: the good records come out, each bad one as an UnreadableRecord.

Batch header: base offset 8, length 4, leader epoch 4, magic 1, CRC 4, attributes 2, last offset delta 4, first
timestamp 8, maximum timestamp 8, producer id 8, producer epoch 2, base sequence 4, record count 4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch

from bridge.log import Record, UnreadableRecord

_FRAME = struct.Struct(">qi")  # base offset, length of what follows
_HEADER_BYTES = 61
_MAGIC_AT = 16
_ATTRIBUTES_AT = 21
_LAST_DELTA_AT = 23
_MAX_TIMESTAMP_AT = 35
_LAST_DELTA_MAX = 1_000_000  # far above what a batch of 2 MiB can hold: a larger one is a damaged header
_COMPRESSION, _APPEND_TIME = 0x07, 0x08
_DECODERS: dict[int, Callable[[bytes], bytes]] = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}


class FetchedRecords:
    """What one fetch returned for one partition, handed out in portions; ``next_offset`` follows what was handed out.

    ``aborted`` are the aborted transactions (producer id, first offset) that the answer named, for read committed.
    """

    __slots__ = (
        "_aborted",
        "_aborted_producers",
        "_at",
        "_batch_end",
        "_batch_raw",
        "_data",
        "_records",
        "next_offset",
    )

    def __init__(self, data: bytes, next_offset: int, aborted: Sequence[tuple[int, int]] | None = None) -> None:
        self._data = data
        self._at = 0
        self.next_offset = next_offset
        self._aborted = sorted(aborted, key=lambda entry: entry[1]) if aborted else None
        self._aborted_producers: set[int] = set()
        self._records: Iterator[Record] | None = None  # of the batch that is being handed out
        self._batch_raw = b""
        self._batch_end = 0

    @property
    def exhausted(self) -> bool:
        return self._records is None and not self._has_batch()

    def take(self, room: int) -> list[Record]:
        """At most ``room`` records, in order; fewer only when nothing is left."""
        taken: list[Record] = []
        while len(taken) < room:
            if self._records is None and not self._open_batch():
                break
            self._take_from_batch(taken, room - len(taken))
        return taken

    def _take_from_batch(self, taken: list[Record], room: int) -> None:
        assert self._records is not None, "a batch is open"
        try:
            portion = list(islice(self._records, room))
        except Exception:  # whatever the compiled reader raises: the bytes are bad
            self._records = iter(_salvage(self._batch_raw))
            portion = []
        else:
            if len(portion) < room:
                self._records = None
        if portion and portion[0].offset < self.next_offset:
            portion = [record for record in portion if record.offset >= self.next_offset]
        if portion:
            self.next_offset = portion[-1].offset + 1
            taken += portion
        if self._records is None:
            self.next_offset = max(self.next_offset, self._batch_end)

    def _has_batch(self) -> bool:
        if self._at + _HEADER_BYTES > len(self._data):
            return False
        return self._at + _FRAME.size + int(_FRAME.unpack_from(self._data, self._at)[1]) <= len(self._data)

    def _open_batch(self) -> bool:
        """Open the next batch that holds records for us; False at the end of the data."""
        while self._has_batch():
            base_offset, length = _FRAME.unpack_from(self._data, self._at)
            end = self._at + _FRAME.size + length
            raw = self._data[self._at : end] if length >= 0 else b""
            if len(raw) < _HEADER_BYTES:
                self._at = len(self._data)  # the framing itself is damaged: the rest is fetched again
                return False
            self._at = end
            delta = int.from_bytes(raw[_LAST_DELTA_AT : _LAST_DELTA_AT + 4], "big")
            self._batch_end = base_offset + 1 + (delta if delta <= _LAST_DELTA_MAX else 0)
            self._batch_raw = raw
            batch = DefaultRecordBatch(raw) if raw[_MAGIC_AT] == 2 else None
            if batch is None or not batch.validate_crc():
                what = "its checksum is wrong" if batch is not None else f"message format {raw[_MAGIC_AT]}"
                timestamp = int.from_bytes(raw[_MAX_TIMESTAMP_AT : _MAX_TIMESTAMP_AT + 8], "big", signed=True)
                bad = UnreadableRecord(max(base_offset, self.next_offset), timestamp, raw, f"record batch: {what}")
                self._records = iter((bad,))
                return True
            is_aborted = self._aborted is not None and self._is_aborted(batch, base_offset)  # markers count, too
            if batch.is_control_batch or is_aborted:
                self._end_transaction(batch)
                self.next_offset = max(self.next_offset, self._batch_end)
                continue
            self._records = chain(batch)  # its own iterator may be asked for only once
            return True
        return False

    def _is_aborted(self, batch: DefaultRecordBatch, base_offset: int) -> bool:
        """Asked for every batch, in order: a fetch may begin behind an aborted transaction's records and before its
        marker, which then is what ends it, not the next committed transaction of the same producer."""
        aborted = self._aborted
        while aborted and aborted[0][1] <= base_offset:
            self._aborted_producers.add(aborted.pop(0)[0])
        return bool(batch.is_transactional and batch.producer_id in self._aborted_producers)

    def _end_transaction(self, batch: DefaultRecordBatch) -> None:
        """An abort marker ends what its producer has aborted."""
        if self._aborted is None or not batch.is_control_batch:
            return
        for record in batch:
            if ControlRecord.parse(record.key) == ABORT_MARKER:
                self._aborted_producers.discard(batch.producer_id)


def _salvage(raw: bytes) -> list[Record]:
    """The records of a batch whose checksum is right but which cannot be decoded in one go."""
    base_offset = int.from_bytes(raw[:8], "big")
    attributes = int.from_bytes(raw[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2], "big")
    first_timestamp, max_timestamp = struct.unpack_from(">qq", raw, _LAST_DELTA_AT + 4)
    count = int.from_bytes(raw[_HEADER_BYTES - 4 : _HEADER_BYTES], "big")
    records: list[Record] = []
    try:
        decoder = _DECODERS.get(attributes & _COMPRESSION)
        body = raw[_HEADER_BYTES:] if decoder is None else bytes(decoder(raw[_HEADER_BYTES:]))
        at = 0
        for _ in range(count):
            length, at = _varint(body, at)
            if length < 0 or at + length > len(body):
                raise ValueError("a record's length is beyond its batch")
            record = _read_record(body[at : at + length], base_offset, first_timestamp)
            if attributes & _APPEND_TIME:
                record = _with_timestamp(record, max_timestamp)
            records.append(record)
            at += length
    except Exception as error:
        offset = records[-1].offset + 1 if records else base_offset
        records.append(UnreadableRecord(offset, max_timestamp, raw, f"record batch: {error}"))
    return records


def _read_record(body: bytes, base_offset: int, first_timestamp: int) -> Record:
    timestamp_delta, at = _varint(body, 1)
    offset_delta, at = _varint(body, at)
    offset, timestamp = base_offset + offset_delta, first_timestamp + timestamp_delta
    try:
        key, at = _field(body, at)
        value, at = _field(body, at)
        count, at = _varint(body, at)
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            name, at = _field(body, at)
            field, at = _field(body, at)
            headers.append(((name or b"").decode(), field))
    except (ValueError, IndexError) as error:
        return UnreadableRecord(offset, timestamp, body, f"record: {error}")
    record: Record = DefaultRecord(offset, timestamp, 0, key, value, headers)
    return record


def _with_timestamp(record: Record, timestamp: int) -> Record:
    if isinstance(record, UnreadableRecord):
        record.timestamp = timestamp
        return record
    stamped: Record = DefaultRecord(record.offset, timestamp, 1, record.key, record.value, record.headers)
    return stamped


def _field(body: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(body, at)
    if length < 0:
        return None, at
    if at + length > len(body):
        raise ValueError("a field is longer than its record")
    return body[at : at + length], at + length


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and where it ends."""
    value = shift = 0
    while shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise ValueError("a variable-length number has no end")
