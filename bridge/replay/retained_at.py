"""The retained messages as they are now, or as they were at a time.

`headwater.retained` is compacted: it has the last value of each Topic Name and perhaps some older ones. What a Topic
Name held before its last change is found in the message log, where the retained messages are, too, with their flag, as
long as Kafka keeps them. What has changed since and is found in neither is `uncertain`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from bridge.log import Log, Position
from bridge.partitioning import RouteTable
from bridge.replay.bounds import partitions_of, resolve
from bridge.replay.lines import LineRecord
from bridge.replay.reader import ReplayReader
from bridge.replay.selection import Item, Selection
from schemas.catalogue import RETAINED, catalogue
from schemas.errors import RecordError
from schemas.records import HEADER_RETAIN, HEADER_TOPIC
from schemas.replay_range import BEGINNING, END, ReplayRange
from schemas.retained import RetainedMessage, decode_retained, own_headers

_PARTITIONS = next(spec.partitions for spec in catalogue() if spec.name == RETAINED)
_EVERYTHING = ReplayRange(BEGINNING, END)


@dataclass(slots=True)
class RetainedAt:
    """What was found. ``at_ms`` None: now."""

    at_ms: int | None
    messages: dict[bytes, RetainedMessage] = field(default_factory=dict)  # tombstones included
    changed: set[bytes] = field(default_factory=set)  # Topic Names that changed after the time
    log_begins_ms: int | None = None  # the oldest message that the log still holds; None: nothing was ever deleted

    def take(self, message: RetainedMessage) -> None:
        """One record, from either place."""
        name = message.topic_name_utf8
        if self.at_ms is not None and message.timestamp > self.at_ms:
            self.changed.add(name)
            return
        held = self.messages.get(name)
        if held is None or message.is_newer_than(held):
            self.messages[name] = message

    def items(self, now_ms: int) -> list[Item]:
        """The messages that were there and had not expired, by Topic Name."""
        then_ms = self.at_ms if self.at_ms is not None else now_ms
        return [
            _item(message)
            for _, message in sorted(self.messages.items())
            if message.value is not None and (message.expiry_ms is None or message.expiry_ms > then_ms)
        ]

    def uncertain(self) -> list[str]:
        """Topic Names that changed since and whose value then is no longer known (or that had none)."""
        if self.log_begins_ms is None:
            return []
        return sorted(name.decode() for name in self.changed - self.messages.keys())

    @property
    def is_before_log(self) -> bool:
        """The time lies before what the log still holds: Topic Names that were cleared since may be missing."""
        return self.at_ms is not None and self.log_begins_ms is not None and self.at_ms < self.log_begins_ms


async def read_retained(
    source: Log, table: RouteTable, topic_filters: Sequence[str], at_ms: int | None = None
) -> RetainedAt:
    """What the filters match. Raises LogUnavailable."""
    found = RetainedAt(at_ms)
    chosen = Selection(topic_filters, _name_of_tombstone)
    partitions = frozenset((RETAINED, partition) for partition in range(_PARTITIONS))
    bounds, _ = await resolve(source, partitions, _EVERYTHING)
    async for item in _items(source, bounds, chosen):
        _, _, record, _ = item
        try:
            message = decode_retained(record.key, record.value, record.headers, record.timestamp, record.offset)
        except RecordError:
            continue
        found.take(message)
    if at_ms is not None:
        await _read_log(source, table, topic_filters, found)
    return found


def _name_of_tombstone(_: str, key: bytes | None) -> str | None:
    """What Kafka's own tools write has no header."""
    return key.decode(errors="replace") if key is not None else None


async def _read_log(source: Log, table: RouteTable, topic_filters: Sequence[str], found: RetainedAt) -> None:
    chosen = Selection(topic_filters, table.topic_name_from_key)
    bounds, _ = await resolve(source, partitions_of(table, topic_filters), _EVERYTHING)
    has_lost = any(first > 0 for first, _ in bounds.values())
    async for time_ms, position, record, name in _items(source, bounds, chosen):
        if has_lost and found.log_begins_ms is None:
            found.log_begins_ms = time_ms
        headers = [(header, value) for header, value in record.headers if value is not None]
        if (HEADER_RETAIN, b"1") in headers:
            place = (*position, record.offset, record.timestamp)
            found.take(RetainedMessage(name, record.value, own_headers(headers), *place))
    if has_lost and found.log_begins_ms is None:
        found.log_begins_ms = found.at_ms  # nothing is left of it


async def _items(source: Log, bounds: Mapping[Position, tuple[int, int]], chosen: Selection) -> AsyncIterator[Item]:
    reader = ReplayReader(source, bounds, chosen)
    try:
        async for batch in reader.batches():
            for item in batch:
                yield item
            await asyncio.sleep(0)
    finally:
        await reader.stop()


def _item(message: RetainedMessage) -> Item:
    headers: list[tuple[str, bytes | None]] = [(HEADER_TOPIC, message.topic_name_utf8), *message.headers]
    headers.append((HEADER_RETAIN, b"1"))
    record = LineRecord(message.offset, message.timestamp, message.key, message.value, headers)
    return message.timestamp, (message.kafka_topic or RETAINED, message.partition), record, message.topic_name_utf8
