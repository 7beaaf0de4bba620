"""The layouts of resized Kafka topics for commands that read without an edge: replay, tail, get."""

from __future__ import annotations

import logging
from typing import Final

from bridge.log import Log, LogUnavailable, Record
from bridge.partitioning import RouteTable
from bridge.topic_tail import TopicTail
from schemas.catalogue import CONTROL
from schemas.control import decode_control
from schemas.errors import RecordError
from schemas.layouts import LAYOUT_KIND, Layout

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0  # a Kafka without `headwater.control` was never resized by us


async def read_layouts(source: Log, routes: RouteTable) -> None:
    """Put the layouts that hold now into the table."""
    found: dict[str, Layout] = {}

    def take(_: int, record: Record) -> None:
        if record.key is None or not record.key.startswith(LAYOUT_KIND.encode() + b"/"):
            return
        try:
            entry = decode_control(record.key, record.value)
        except RecordError as error:
            log.warning("%s@%d is skipped: %s", CONTROL, record.offset, error)
            return
        if isinstance(entry, Layout):
            found[entry.kafka_topic] = entry.as_of(record.timestamp)

    tail = TopicTail(source, CONTROL, 1, take)
    try:
        await tail.start(TIMEOUT_S)
    except LogUnavailable as error:
        log.warning("%s: Kafka topics are taken to be as their routes say", error)
    finally:
        await tail.stop()
    for kafka_topic, layout in found.items():
        if kafka_topic in routes.kafka_topics:
            routes.set_layout(kafka_topic, layout)
