"""murmur2 against Kafka's own Java client.

``data/murmur2_vectors.json`` was made with kafka-clients 3.9.2 from Maven Central: for each key a Java program wrote
``org.apache.kafka.common.utils.Utils.murmur2(key)`` and, for each partition count, ``Utils.toPositive(hash) % count``
after checking that ``BuiltInPartitioner.partitionForKey(key, count)``, the producer's own code, gives the same. The
keys: random bytes of every length from 0 to 40 and of some larger ones, runs of 0xff, 0x80 and 0x00, UTF-8 texts of
one to four bytes a character, and keys as our routes make them.
"""

from __future__ import annotations

import json
from pathlib import Path

from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from bridge.murmur2 import murmur2, partition_for_key

VECTORS = json.loads((Path(__file__).parent / "data" / "murmur2_vectors.json").read_text())


def test_there_are_enough_vectors() -> None:
    assert len(VECTORS["vectors"]) >= 200


def test_hash_equals_the_java_client() -> None:
    for vector in VECTORS["vectors"]:
        key = bytes.fromhex(vector["key_hex"])
        assert murmur2(key) == vector["murmur2"] & 0xFFFFFFFF, vector


def test_partition_equals_the_java_producer() -> None:
    for vector in VECTORS["vectors"]:
        key = bytes.fromhex(vector["key_hex"])
        found = [partition_for_key(key, count) for count in VECTORS["partition_counts"]]
        assert found == vector["partitions"], vector


@given(st.binary(max_size=200))
def test_hash_equals_aiokafka(key: bytes) -> None:
    assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF
