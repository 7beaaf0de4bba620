"""Record batches with damage: the good records come out, the bad ones are named, nothing stops."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record._crc32c import crc as crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bridge.kafka_batch import FetchedRecords
from bridge.log import UnreadableRecord

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
GZIP = 1
BAD, GOOD = b"\xff\xfe\xff\xfe", b"evil"  # the same length: no UTF-8, and what the builder takes


def batch(base_offset: int, rows: list[Row], compression: int = 0, **producer: int) -> bytes:
    builder = DefaultRecordBatchBuilder(
        2,
        compression,
        is_transactional=int("producer_id" in producer),
        producer_id=producer.get("producer_id", -1),
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for index, (key, value, headers) in enumerate(rows):
        builder.append(index, 1_800_000_000_000 + index, key, value, headers)
    return struct.pack(">q", base_offset) + bytes(builder.build())[8:]


def with_checksum(data: bytes) -> bytes:
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


def plain(first: int, count: int) -> list[Row]:
    return [(b"k", b"%d" % (first + index), []) for index in range(count)]


def test_portions_follow_one_another_over_batches_and_leave_the_next_offset() -> None:
    fetched = FetchedRecords(batch(10, plain(10, 5)) + batch(20, plain(20, 5)), 12)
    assert [record.offset for record in fetched.take(2)] == [12, 13]
    assert (fetched.next_offset, fetched.exhausted) == (14, False)
    assert [record.value for record in fetched.take(4)] == [b"14", b"20", b"21", b"22"]
    assert [record.offset for record in fetched.take(9)] == [23, 24]
    assert (fetched.next_offset, fetched.exhausted) == (25, True)
    assert fetched.take(9) == []


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    whole, cut = batch(0, plain(0, 3)), batch(3, plain(3, 3))
    for length in (0, 5, 11, 12, 60, len(cut) - 1):
        fetched = FetchedRecords(whole + cut[:length], 0)
        assert [record.offset for record in fetched.take(99)] == [0, 1, 2]
        assert (fetched.next_offset, fetched.exhausted) == (3, True)


def test_a_wrong_checksum_costs_its_batch_only() -> None:
    damaged = bytearray(batch(3, plain(3, 4)))
    damaged[-1] ^= 1
    fetched = FetchedRecords(batch(0, plain(0, 3)) + bytes(damaged) + batch(7, plain(7, 1)), 0)
    records = fetched.take(99)
    assert [record.offset for record in records] == [0, 1, 2, 3, 7]
    assert isinstance(records[3], UnreadableRecord)
    assert "checksum" in records[3].reason
    assert records[3].value == bytes(damaged)
    assert fetched.next_offset == 8


@pytest.mark.parametrize("compression", [0, GZIP])
@pytest.mark.parametrize("room", [1, 2, 99])
def test_a_header_name_that_is_no_text_costs_its_record_only(compression: int, room: int) -> None:
    rows = [*plain(0, 2), (b"k", b"bad", [(GOOD.decode(), b"1")]), *plain(3, 2)]
    data = batch(100, rows)
    data = with_checksum(data.replace(GOOD, BAD))
    if compression:
        import gzip

        body = gzip.compress(data[61:])
        head = data[:8] + struct.pack(">i", 49 + len(body)) + data[12:21] + struct.pack(">h", GZIP) + data[23:61]
        data = with_checksum(head + body)
    fetched = FetchedRecords(data, 100)
    records = []
    while not fetched.exhausted:
        records += fetched.take(room)
    assert [record.offset for record in records] == [100, 101, 102, 103, 104]
    assert [isinstance(record, UnreadableRecord) for record in records] == [False, False, True, False, False]
    assert [record.value for record in records if not isinstance(record, UnreadableRecord)] == [b"0", b"1", b"3", b"4"]
    assert [record.timestamp for record in records] == [1_800_000_000_000 + index for index in range(5)]
    assert fetched.next_offset == 105


def test_a_broken_record_length_ends_its_batch_but_not_the_reading() -> None:
    data = bytearray(batch(0, plain(0, 3)))
    data[61] = 0x7F  # the first record claims to be longer than the batch
    fetched = FetchedRecords(with_checksum(bytes(data)) + batch(3, plain(3, 1)), 0)
    records = fetched.take(99)
    assert isinstance(records[0], UnreadableRecord)
    assert [record.offset for record in records] == [0, 3]


def test_aborted_transactions_are_left_out_when_reading_committed() -> None:
    data = batch(0, plain(0, 2), producer_id=7) + batch(2, plain(2, 2)) + batch(4, plain(4, 2), producer_id=8)
    assert [record.offset for record in FetchedRecords(data, 0, [(7, 0)]).take(99)] == [2, 3, 4, 5]
    assert [record.offset for record in FetchedRecords(data, 0, [(8, 4), (7, 0)]).take(99)] == [2, 3]
    assert [record.offset for record in FetchedRecords(data, 0).take(99)] == [0, 1, 2, 3, 4, 5]
    after = FetchedRecords(data, 0, [(8, 4), (7, 0)])
    after.take(99)
    assert (after.next_offset, after.exhausted) == (6, True)


def marker(offset: int, producer_id: int, *, abort: bool) -> bytes:
    data = bytearray(batch(offset, [(struct.pack(">hh", 0, 0 if abort else 1), bytes(6), [])], producer_id=producer_id))
    data[22] |= 0x20  # a control batch
    return with_checksum(bytes(data))


@pytest.mark.parametrize("room", [1, 99])
def test_markers_come_to_nothing_and_the_next_offset_follows_the_last_one(room: int) -> None:
    """Also when the data ends with them, or holds nothing else; an abort marker ends what was aborted."""
    data = b"".join(
        (
            batch(0, plain(0, 1), producer_id=7),
            marker(1, 7, abort=True),
            batch(2, plain(2, 1), producer_id=7),
            marker(3, 7, abort=False),
            batch(4, plain(4, 1), producer_id=7),
            marker(5, 7, abort=True),
        )
    )
    fetched = FetchedRecords(data, 0, [(7, 0), (7, 4)])
    taken = []
    while not fetched.exhausted:
        taken += [record.offset for record in fetched.take(room)]
    assert (taken, fetched.next_offset) == ([2], 6)
    only = FetchedRecords(marker(5, 7, abort=True), 5)
    assert (only.take(room), only.next_offset, only.exhausted) == ([], 6, True)


def test_a_marker_ends_an_aborted_transaction_whose_records_are_before_the_fetch() -> None:
    """Kafka names an aborted transaction whose marker is not before the fetch; the next one of its producer counts."""
    data = marker(8, 7, abort=True) + batch(9, plain(9, 2), producer_id=7) + marker(11, 7, abort=False)
    fetched = FetchedRecords(data, 8, [(7, 6)])
    assert [record.offset for record in fetched.take(99)] == [9, 10]
    assert fetched.next_offset == 12


def test_a_batch_that_compaction_has_emptied_is_passed_over() -> None:
    """Kafka keeps the header of a producer's last batch, with the offsets that it had."""
    emptied = bytearray(batch(3, [], producer_id=7))
    emptied[23:27] = struct.pack(">i", 4)
    fetched = FetchedRecords(batch(0, plain(0, 1)) + with_checksum(bytes(emptied)), 0, [])
    assert [record.offset for record in fetched.take(9)] == [0]
    assert (fetched.next_offset, fetched.exhausted) == (8, True)
