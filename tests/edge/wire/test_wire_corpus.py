"""The corpus, decoded three ways: whole, byte by byte, and with the next packet's bytes behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from corpus.packet_corpus import CORPUS, CorpusPacket

from edge.wire import (
    Framer,
    Packet,
    ProtocolViolation,
    QuotaExceeded,
    check_topic_name_utf8,
    decode,
    decode_for_client,
    decode_for_server,
    encode,
    variable_bytes,
)
from edge.wire.reader import REPEATED_MAX

PACKET_BYTES_MAX = 1_000_000
NEXT = b"\xd0\x00\x40\x02\x00\x01"  # a PINGRESP and a PUBACK
ALL = pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)

Way = Callable[[Framer, bytes], list[tuple[int, bytes]]]


def whole(framer: Framer, data: bytes) -> list[tuple[int, bytes]]:
    return framer.feed(data)


def byte_by_byte(framer: Framer, data: bytes) -> list[tuple[int, bytes]]:
    frames = []
    for index in range(len(data)):
        if framer.error is None:
            frames += framer.feed(data[index : index + 1])
    return frames


def with_trailing_bytes(framer: Framer, data: bytes) -> list[tuple[int, bytes]]:
    frames = framer.feed(data + NEXT)
    if framer.error is not None:
        return frames
    assert frames[1:] == [(0xD0, b""), (0x40, b"\x00\x01")]
    return frames[:1]


def receive(case: CorpusPacket, way: Way) -> Packet:
    """Frame and decode a corpus packet as its receiver does."""
    framer = Framer(PACKET_BYTES_MAX, case.protocol_version)
    frames = way(framer, case.data)
    if framer.error is not None:
        assert frames == []
        raise framer.error
    [(first_byte, body)] = frames
    assert framer.buffered_bytes == 0
    decode_side = decode_for_server if case.sender == "client" else decode_for_client
    return decode_side(first_byte, body, case.protocol_version)


@pytest.mark.parametrize("way", [whole, byte_by_byte, with_trailing_bytes])
@ALL
def test_corpus_decodes(case: CorpusPacket, way: Way) -> None:
    if case.error is None:
        assert receive(case, way) == case.expected
        return
    with pytest.raises(ProtocolViolation) as caught:
        receive(case, way)
    assert (type(caught.value), caught.value.clause) == (case.error, case.clause)
    assert caught.value.reason_code.is_error


@pytest.mark.parametrize("case", [case for case in CORPUS if case.expected is not None], ids=lambda case: case.name)
def test_corpus_encodes(case: CorpusPacket) -> None:
    assert case.expected is not None
    encoded = encode(case.expected, case.protocol_version)
    assert (encoded == case.data) is case.is_canonical
    [(first_byte, body)] = Framer(PACKET_BYTES_MAX, case.protocol_version).feed(encoded)
    assert decode(first_byte, body, case.protocol_version) == case.expected


def test_corpus_is_large_and_names_every_error() -> None:
    assert len(CORPUS) >= 290
    assert len({case.name for case in CORPUS}) == len(CORPUS)
    raised = {case.error for case in CORPUS if case.error is not None}
    ours = {kind for kind in ProtocolViolation.__subclasses__() if kind.__module__.startswith("edge.wire")}
    assert raised | {QuotaExceeded} == ours  # its packets are long: below


USER_PROPERTY = b"\x26\x00\x01n\x00\x01v"
FILTER = b"\x00\x01a\x00"


@pytest.mark.parametrize("extra", [0, 1])
def test_one_packet_repeats_nothing_without_end(extra: int) -> None:
    count = REPEATED_MAX + extra
    properties = variable_bytes(count * len(USER_PROPERTY)) + USER_PROPERTY * count
    bodies = (
        (0x30, b"\x00\x01a" + properties, 5),
        (0x82, b"\x00\x01" + FILTER * count, 4),
        (0xA2, b"\x00\x01" + FILTER[:3] * count, 4),
    )
    for first_byte, body, version in bodies:
        if extra:
            with pytest.raises(QuotaExceeded):
                decode_for_server(first_byte, body, version)
        else:
            assert decode_for_server(first_byte, body, version)


@pytest.mark.parametrize(
    ("raw", "clause"),
    [
        (b"", "4.7.3-1"),
        (b"a/+", "3.3.2-2"),
        (b"#", "3.3.2-2"),
        (b"a\0b", "1.5.4-2"),
        (b"\xed\xa0\x80", "1.5.4-1"),
        (b"\xff", "1.5.4-1"),
    ],
)
def test_topic_name_of_a_publish_is_checked_by_the_caller(raw: bytes, clause: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        check_topic_name_utf8(raw)
    assert caught.value.clause == f"MQTT5-{clause}"
    with pytest.raises(ProtocolViolation) as caught:
        check_topic_name_utf8(raw, 4)
    assert caught.value.clause == f"MQTT311-{clause.replace('1.5.4', '1.5.3')}"


def test_topic_name_keeps_every_character() -> None:
    assert check_topic_name_utf8("\ufeff$SYS/é/ /".encode()) == "\ufeff$SYS/é/ /"
