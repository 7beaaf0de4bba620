"""Reads single records of the log by their offsets: for what a resumed session has in flight and no filter of it
matches any more [MQTT5-3.10.4-3] [MQTT311-3.10.4-3]. Rare, so each place is one fetch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress

from bridge.delivery import Delivery, read_delivery, read_topic_name
from bridge.log import Log, LogConsumer, LogTruncated, Position, Record
from bridge.partitioning import RouteTable
from schemas.errors import HeadwaterError
from schemas.routes import Q2_SUFFIX

FETCH_TIMEOUT_S = 2.0


class PointReader:
    """Reads records wherever they are; what is gone, aborted or unreadable does not come. Waits for Kafka as long as it
    takes."""

    def __init__(self, source: Log, routes: RouteTable) -> None:
        self._log = source
        self._routes = routes

    async def read(self, wanted: Mapping[Position, Set[int]]) -> list[Delivery]:
        """The records at these offsets, in their order within a partition."""
        deliveries: list[Delivery] = []
        for position, offsets in wanted.items():
            consumer = self._log.consumer(None, read_committed=position[0].endswith(Q2_SUFFIX))
            try:
                for record in await _read(consumer, position, sorted(offsets)):
                    with suppress(HeadwaterError):
                        name = read_topic_name(position[0], record, self._routes.topic_name_from_key)
                        deliveries.append(read_delivery(*position, record, name))
            finally:
                await consumer.stop()
        return deliveries


async def _read(consumer: LogConsumer, position: Position, offsets: list[int]) -> list[Record]:
    """Asks until the reader is past each of them: what has not come in time is not gone."""
    found: list[Record] = []
    wanted = set(offsets)
    passed = -1
    for offset in offsets:
        if offset < passed:
            continue  # was in what came with an earlier one
        consumer.assign({position: offset})
        try:
            while (consumer.position_of(position) or 0) <= offset:
                for _, records in await consumer.fetch(FETCH_TIMEOUT_S):
                    found += [record for record in records if record.offset in wanted]
        except LogTruncated:
            continue
        passed = consumer.position_of(position) or passed
    return found
