"""The requests of Kafka's second transaction protocol (KIP-890, Kafka 4.0): one round trip less in every transaction.

A produce request brings its partitions into the transaction itself, and each end of a transaction begins a new epoch:
what comes late of an earlier transaction is refused. Only for a cluster whose feature `transaction.version` is 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from bridge.kafka_protocol import ProducedPartition

FEATURE, LEVEL = b"transaction.version", 2
_ACKS_ALL = -1
_FINALIZED_FEATURES = 2  # the tag
_TAGS: dict[int, bytes] = {}


class FeaturesResponse_v3(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "api_versions",
            CompactArray(("api_key", Int16), ("min_version", Int16), ("max_version", Int16), ("tags", TaggedFields)),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )

    def level(self, feature: bytes) -> int:
        """The level that the whole cluster has agreed on; 0: it has not."""
        data = self.tags.get(_FINALIZED_FEATURES)
        return _LEVELS.decode(BytesIO(data)).get(feature, 0) if data else 0


class _Levels:
    _ARRAY = CompactArray(
        ("name", CompactString("utf-8")), ("max_level", Int16), ("min_level", Int16), ("tags", TaggedFields)
    )

    def decode(self, data: BytesIO) -> dict[bytes, int]:
        return {name.encode(): level for name, level, _, _ in self._ARRAY.decode(data) or ()}


_LEVELS = _Levels()


class FeaturesRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 18
    API_VERSION = 3
    RESPONSE_TYPE = FeaturesResponse_v3
    SCHEMA = Schema(
        ("software_name", CompactString("utf-8")), ("software_version", CompactString("utf-8")), ("tags", TaggedFields)
    )

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> Any:
        """Of this one answer the header is never flexible (KIP-511)."""
        return ResponseHeader_v0.decode(read_buffer)


class FeaturesRequest(Request[FeaturesRequest_v3]):  # type: ignore[misc]
    """ApiVersions, for the features that the cluster has agreed on (KIP-584)."""

    API_KEY = 18

    def build(self, request_struct_class: type[FeaturesRequest_v3]) -> FeaturesRequest_v3:
        return request_struct_class("headwater", "1", _TAGS)


class EndTxnResponse_v5(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 26
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class EndTxnRequest_v5(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 26
    API_VERSION = 5
    RESPONSE_TYPE = EndTxnResponse_v5
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("committed", Boolean),
        ("tags", TaggedFields),
    )


class EndAndGoOnRequest(Request[EndTxnRequest_v5]):  # type: ignore[misc]
    """EndTxn that answers with the producer id and epoch of the next transaction."""

    API_KEY = 26

    def __init__(self, transactional_id: str, producer_id: int, epoch: int, committed: bool) -> None:
        self._fields: tuple[Any, ...] = (transactional_id, producer_id, epoch, committed, _TAGS)

    def build(self, request_struct_class: type[EndTxnRequest_v5]) -> EndTxnRequest_v5:
        return request_struct_class(*self._fields)


class ProduceResponse_v12(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 0
    API_VERSION = 12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("base_offset", Int64),
                        ("append_time_ms", Int64),
                        ("log_start_offset", Int64),
                        (
                            "record_errors",
                            CompactArray(("index", Int32), ("message", CompactString("utf-8")), ("tags", TaggedFields)),
                        ),
                        ("error_message", CompactString("utf-8")),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )

    @property
    def partitions(self) -> list[ProducedPartition]:
        """As `LeanProduceAnswer` has them."""
        return [
            (kafka_topic, each[0], each[1], each[2])
            for kafka_topic, partitions, _ in self.topics
            for each in partitions
        ]


class ProduceRequest_v12(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 0
    API_VERSION = 12
    RESPONSE_TYPE = ProduceResponse_v12
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("acks", Int16),
        ("timeout_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(("partition", Int32), ("records", CompactBytes), ("tags", TaggedFields)),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class AddingProduceRequest(Request[ProduceRequest_v12]):  # type: ignore[misc]
    """One batch for each of several partitions, which are in the transaction by that."""

    API_KEY = 0

    def __init__(
        self, batches: Iterable[tuple[tuple[str, int], bytes]], timeout_ms: int, transactional_id: str
    ) -> None:
        by_topic: dict[str, list[tuple[int, bytes, dict[int, bytes]]]] = {}
        for (kafka_topic, partition), data in batches:
            by_topic.setdefault(kafka_topic, []).append((partition, data, _TAGS))
        topics = [(kafka_topic, partitions, _TAGS) for kafka_topic, partitions in by_topic.items()]
        self._fields: tuple[Any, ...] = (transactional_id, _ACKS_ALL, timeout_ms, topics, _TAGS)

    def build(self, request_struct_class: type[ProduceRequest_v12]) -> ProduceRequest_v12:
        return request_struct_class(*self._fields)
