"""Requests that aiokafka 0.14 does not have, on its own protocol classes."""

from __future__ import annotations

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String


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
