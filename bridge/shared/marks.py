"""What a group stores beside its low-water mark: which messages above it are still to be handed out. Pure.

The mark of a partition (Kafka's committed offset) is the lowest offset that is open: not acknowledged, and not given to
a session for good. Its metadata names the other open ones as runs, so the next node that serves the partition passes
over everything else up to the frontier, the first offset that nobody has got yet. No metadata: there is nothing above
the mark, and so it is after Kafka's group tools have reset it.

Layout: base64 of varints: frontier - mark, then by turns the length of an open run and of the gap behind it. Five bytes
per run do for gaps up to 2^28, so that 500 open messages always fit into the 4,096 bytes that Kafka takes.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator

from bridge.log import Mark
from schemas.errors import RecordError

OPEN_MAX = 500
_OPEN_READ_MAX = 100_000  # of a metadata string: more is nothing of ours


def encode_mark(open_offsets: Iterable[int], frontier: int) -> Mark:
    """The mark of a partition in which these offsets are open, of those below the frontier."""
    offsets = sorted(open_offsets)
    if not offsets:
        return Mark(frontier)
    low = end = offsets[0]
    numbers = [0]  # no gap in front of the first run
    for offset in offsets:
        if offset == end and len(numbers) > 1:
            numbers[-1] += 1
        else:
            numbers += (offset - end, 1)
        end = offset + 1
    numbers[:2] = [max(frontier, end) - low]
    return Mark(low, b64encode(b"".join(map(_varint, numbers))).decode())


def decode_mark(mark: Mark) -> tuple[int, list[int]]:
    """The frontier and the open offsets below it. Raises RecordError when the metadata is not of ours."""
    if not mark.beyond:
        return mark.offset, []
    try:
        numbers = list(_numbers(b64decode(mark.beyond, validate=True)))
    except (binascii.Error, ValueError) as error:
        raise RecordError(f"a mark that cannot be read: {error}") from None
    frontier, at = mark.offset + numbers[0], mark.offset
    opened: list[int] = []
    for index, length in enumerate(numbers[1:]):
        if not index % 2:
            if at + length > frontier or len(opened) + length > _OPEN_READ_MAX:
                raise RecordError("a mark that cannot be read: too much is open")
            opened += range(at, at + length)
        at += length
    return frontier, opened


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _numbers(raw: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0
    if shift or not raw:
        raise ValueError("it ends early")
