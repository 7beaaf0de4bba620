"""Requests on aiokafka's protocol classes: four that aiokafka 0.14 does not have, and two that it codes too slowly.

A fetch names every partition and so does its answer. aiokafka's field-by-field coding of a node's 28 partitions costs
more than Kafka's round trip; here a partition is one ``struct`` call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)


class OffsetDeleteResponse_v0(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 47
    API_VERSION = 0
    SCHEMA = Schema(
        ("error_code", Int16),
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("error_code", Int16))),
            ),
        ),
    )


class OffsetDeleteRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 47
    API_VERSION = 0
    RESPONSE_TYPE = OffsetDeleteResponse_v0
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))),
    )


class OffsetDeleteRequest(Request[OffsetDeleteRequest_v0]):  # type: ignore[misc]
    """Delete committed offsets of a group (KIP-496)."""

    API_KEY = 47

    def __init__(self, group_id: str, partitions: list[tuple[str, list[int]]]) -> None:
        self._group_id = group_id
        self._partitions = partitions

    def build(self, request_struct_class: type[OffsetDeleteRequest_v0]) -> OffsetDeleteRequest_v0:
        return request_struct_class(self._group_id, self._partitions)


class InitProducerIdResponse_v3(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 22
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class InitProducerIdRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 22
    API_VERSION = 3
    RESPONSE_TYPE = InitProducerIdResponse_v3
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("transaction_timeout_ms", Int32),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class NextEpochRequest(Request[InitProducerIdRequest_v3]):  # type: ignore[misc]
    """InitProducerId of the present holder (KIP-360): a new epoch, or an error when another one holds the id."""

    API_KEY = 22

    def __init__(self, transactional_id: str, timeout_ms: int, producer_id: int, epoch: int) -> None:
        self._fields: tuple[Any, ...] = (transactional_id, timeout_ms, producer_id, epoch, {})

    def build(self, request_struct_class: type[InitProducerIdRequest_v3]) -> InitProducerIdRequest_v3:
        return request_struct_class(*self._fields)


class TxnOffsetCommitResponse_v3(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 28
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(("partition", Int32), ("error_code", Int16), ("tags", TaggedFields))),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class TxnOffsetCommitRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 28
    API_VERSION = 3
    RESPONSE_TYPE = TxnOffsetCommitResponse_v3
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("group_id", CompactString("utf-8")),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("generation_id", Int32),
        ("member_id", CompactString("utf-8")),
        ("group_instance_id", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


MarksByTopic = Mapping[str, Iterable[tuple[int, int, str]]]
"""Kafka topic -> (partition, offset, metadata)."""


class MemberOffsetsRequest(Request[TxnOffsetCommitRequest_v3]):  # type: ignore[misc]
    """Offsets in a transaction, by a member of the group in a generation (KIP-447)."""

    API_KEY = 28

    def __init__(
        self,
        transactional_id: str,
        group_id: str,
        producer_id: int,
        epoch: int,
        generation: int,
        member_id: str,
        marks: MarksByTopic,
    ) -> None:
        topics: list[Any] = [
            (kafka_topic, [(partition, offset, -1, metadata, {}) for partition, offset, metadata in partitions], {})
            for kafka_topic, partitions in marks.items()
        ]
        self._fields: tuple[Any, ...] = (
            transactional_id,
            group_id,
            producer_id,
            epoch,
            generation,
            member_id,
            None,
            topics,
            {},
        )

    def build(self, request_struct_class: type[TxnOffsetCommitRequest_v3]) -> TxnOffsetCommitRequest_v3:
        return request_struct_class(*self._fields)


class OffsetFetchResponse_v7(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class OffsetFetchRequest_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = OffsetFetchResponse_v7
    SCHEMA = Schema(
        ("group_id", CompactString("utf-8")),
        ("topics", CompactArray(("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)))),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class StableOffsetsRequest(Request[OffsetFetchRequest_v7]):  # type: ignore[misc]
    """All offsets of a group; a partition with an open transaction has error 88 instead (KIP-447)."""

    API_KEY = 9

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id

    def build(self, request_struct_class: type[OffsetFetchRequest_v7]) -> OffsetFetchRequest_v7:
        return request_struct_class(self._group_id, None, True, {})


_FETCH_HEAD = struct.Struct(">iiiibii")  # replica, wait ms, bytes min, bytes max, isolation, session, session epoch
_FETCH_PARTITION = struct.Struct(">iiqqi")  # partition, leader epoch, offset, log start, bytes max
_ANSWER_HEAD = struct.Struct(">ihii")  # throttle ms, error, session, number of Kafka topics
_ANSWER_PARTITION = struct.Struct(">ihqqqi")  # partition, error, end, last stable, log start, number of aborted
_ABORTED = struct.Struct(">qq")
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_NO_SESSION, _FINAL_EPOCH, _UNKNOWN = 0, -1, -1

FetchedPartition = tuple[str, int, int, int, list[tuple[int, int]], bytes]
"""(kafka_topic, partition, error code, end of what may be read, aborted transactions, record batches)."""


class LeanFetchAnswer(Response):  # type: ignore[misc]
    """Version 11 of the answer to a fetch."""

    API_KEY = 1
    API_VERSION = 11
    SCHEMA = Schema()

    def __init__(self, error_code: int, partitions: list[FetchedPartition]) -> None:
        super().__init__()
        self.error_code = error_code
        self.partitions = partitions

    @classmethod
    def decode(cls, data: BytesIO) -> LeanFetchAnswer:
        """Raises ValueError or struct.error when the bytes do not follow the layout."""
        view = data.getbuffer()
        _, error_code, _, kafka_topics = _ANSWER_HEAD.unpack_from(view, data.tell())
        at = data.tell() + _ANSWER_HEAD.size
        partitions: list[FetchedPartition] = []
        for _ in range(kafka_topics):
            (length,) = _INT16.unpack_from(view, at)
            at += 2
            kafka_topic = str(view[at : at + length], "utf-8")
            (count,) = _INT32.unpack_from(view, at + length)
            at += length + 4
            for _ in range(count):
                partition, code, end, stable_end, _, transactions = _ANSWER_PARTITION.unpack_from(view, at)
                if transactions >= 0:  # read committed: nothing behind it may be read yet
                    end = stable_end
                at += _ANSWER_PARTITION.size
                aborted: list[tuple[int, int]] = []
                for _ in range(transactions):  # -1: none, as for read uncommitted
                    aborted.append(_ABORTED.unpack_from(view, at))
                    at += _ABORTED.size
                at += 4  # the preferred replica
                (size,) = _INT32.unpack_from(view, at)
                at += 4
                if at + max(size, 0) > len(view):
                    raise ValueError("the answer to a fetch ends early")
                partitions.append((kafka_topic, partition, code, end, aborted, bytes(view[at : at + max(size, 0)])))
                at += max(size, 0)
        return cls(error_code, partitions)


class LeanFetchRequest_v11(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 1
    API_VERSION = 11
    RESPONSE_TYPE = LeanFetchAnswer
    SCHEMA = Schema()

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self._encoded = encoded

    def encode(self) -> bytes:
        return self._encoded


class LeanFetchRequest(Request[LeanFetchRequest_v11]):  # type: ignore[misc]
    """A fetch of these partitions from these offsets, without a fetch session."""

    API_KEY = 1

    def __init__(
        self,
        wanted: Iterable[tuple[tuple[str, int], int]],
        *,
        wait_ms: int,
        bytes_max: int,
        partition_bytes_max: int,
        isolation: int,
    ) -> None:
        by_topic: dict[str, list[bytes]] = {}
        pack = _FETCH_PARTITION.pack
        for (kafka_topic, partition), offset in wanted:
            packed = pack(partition, _UNKNOWN, offset, _UNKNOWN, partition_bytes_max)
            by_topic.setdefault(kafka_topic, []).append(packed)
        head = _FETCH_HEAD.pack(-1, wait_ms, 1, bytes_max, isolation, _NO_SESSION, _FINAL_EPOCH)
        self._encoded = b"".join((head, _encoded_topics(by_topic), _INT32.pack(0), _INT16.pack(0)))

    def build(self, request_struct_class: type[LeanFetchRequest_v11]) -> Any:
        return request_struct_class(self._encoded)


def _encoded_topics(by_topic: Mapping[str, list[bytes]]) -> bytes:
    parts = [_INT32.pack(len(by_topic))]
    for kafka_topic, partitions in by_topic.items():
        name = kafka_topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(partitions)), *partitions)
    return b"".join(parts)


_PRODUCE_HEAD = struct.Struct(">hi")  # acks, timeout ms
_PRODUCE_PARTITION = struct.Struct(">ii")  # partition, size of its batch
_PRODUCED_PARTITION = struct.Struct(">ihqqq")  # partition, error, base offset, append time, log start
_ACKS_ALL = -1

ProducedPartition = tuple[str, int, int, int]
"""(kafka_topic, partition, error code, base offset)."""


class LeanProduceAnswer(Response):  # type: ignore[misc]
    """Version 7 of the answer to a produce request."""

    API_KEY = 0
    API_VERSION = 7
    SCHEMA = Schema()

    def __init__(self, partitions: list[ProducedPartition]) -> None:
        super().__init__()
        self.partitions = partitions

    @classmethod
    def decode(cls, data: BytesIO) -> LeanProduceAnswer:
        """Raises ValueError or struct.error when the bytes do not follow the layout."""
        view = data.getbuffer()
        at = data.tell()
        (kafka_topics,) = _INT32.unpack_from(view, at)
        at += 4
        partitions: list[ProducedPartition] = []
        for _ in range(kafka_topics):
            (length,) = _INT16.unpack_from(view, at)
            kafka_topic = str(view[at + 2 : at + 2 + length], "utf-8")
            (count,) = _INT32.unpack_from(view, at + 2 + length)
            at += length + 6
            for _ in range(count):
                partition, code, base_offset, _, _ = _PRODUCED_PARTITION.unpack_from(view, at)
                partitions.append((kafka_topic, partition, code, base_offset))
                at += _PRODUCED_PARTITION.size
        return cls(partitions)


class LeanProduceRequest_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 0
    API_VERSION = 7
    RESPONSE_TYPE = LeanProduceAnswer
    SCHEMA = Schema()

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self._encoded = encoded

    def encode(self) -> bytes:
        return self._encoded


class LeanProduceRequest(Request[LeanProduceRequest_v7]):  # type: ignore[misc]
    """One batch for each of several partitions, acknowledged by all in-sync replicas."""

    API_KEY = 0

    def __init__(
        self, batches: Iterable[tuple[tuple[str, int], bytes]], timeout_ms: int, transactional_id: str | None = None
    ) -> None:
        by_topic: dict[str, list[bytes]] = {}
        for (kafka_topic, partition), data in batches:
            by_topic.setdefault(kafka_topic, []).append(_PRODUCE_PARTITION.pack(partition, len(data)) + data)
        head = String("utf-8").encode(transactional_id) + _PRODUCE_HEAD.pack(_ACKS_ALL, timeout_ms)
        self._encoded = head + _encoded_topics(by_topic)

    def build(self, request_struct_class: type[LeanProduceRequest_v7]) -> Any:
        return request_struct_class(self._encoded)
