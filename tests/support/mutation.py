"""Mutations of valid packets for fuzzing: seeded, so that a failure can be repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_INTERESTING = (0x00, 0x01, 0x02, 0x03, 0x7F, 0x80, 0x81, 0xC0, 0xED, 0xEF, 0xFE, 0xFF)


def _flip_bit(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice(_INTERESTING)


def _random_byte(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def _insert(rng: random.Random, data: bytearray) -> None:
    position = rng.randrange(len(data) + 1)
    data[position:position] = rng.randbytes(rng.randint(1, 4))


def _delete(rng: random.Random, data: bytearray) -> None:
    position = rng.randrange(len(data))
    del data[position : position + rng.randint(1, 4)]


def _duplicate(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randint(1, 12)]
    position = rng.randrange(len(data) + 1)
    data[position:position] = piece


def _truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


_MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip_bit,
    _flip_bit,
    _set_byte,
    _random_byte,
    _insert,
    _delete,
    _duplicate,
    _truncate,
)


def with_right_length(packet: bytes | bytearray) -> bytes:
    """Write the Remaining Length anew, so that a mutated body reaches the decoder instead of waiting for more bytes."""
    position = 1
    while position < min(len(packet), 5) and packet[position] >= 0x80:
        position += 1
    body = bytes(packet[position + 1 :])
    size, length = len(body), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(packet[:1]) + bytes(length) + body


def mutate(rng: random.Random, packets: Sequence[bytes]) -> bytes:
    """Give one packet of ``packets`` with one to three mutations; nine of ten with a right Remaining Length."""
    data = bytearray(rng.choice(packets))
    for _ in range(rng.randint(1, 3)):
        if data:
            rng.choice(_MUTATIONS)(rng, data)
    if rng.random() < 0.1 or not data:
        return bytes(data)
    return with_right_length(data)
