"""Kafka's murmur2: the hash by which its Java client turns a record's key into a partition.

Written from the published algorithm (MurmurHash2, 32 bit, by Austin Appleby, public domain) with the seed and the
sign handling of Kafka's default partitioner, so that any Kafka client with that partitioner finds the same partition.
"""

from __future__ import annotations

import struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash as an unsigned 32-bit number; Java shows the same bits as a signed one."""
    length = len(data)
    result = _SEED ^ length
    whole = length & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        result = result * _MULTIPLIER & _MASK ^ word
    if length > whole:
        result = (result ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    result = (result ^ result >> 13) * _MULTIPLIER & _MASK
    return result ^ result >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition that Kafka's Java producer picks for the key; an empty key is a key like any other."""
    assert partitions > 0, partitions
    return (murmur2(key) & 0x7FFFFFFF) % partitions
