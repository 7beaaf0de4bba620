"""Which records a replay takes: those whose Topic Name a filter matches and whose payload passes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from bridge.delivery import read_topic_name
from bridge.log import Position, Record
from schemas.errors import HeadwaterError
from schemas.records import HEADER_CLIENT_ID, HEADER_TOPIC
from schemas.topics import check_topic_name, matches

Item: TypeAlias = tuple[int, Position, Record, bytes]
"""A record on its way: (time_ms, partition, record, Topic Name in UTF-8). The time never falls within a partition.
A plain tuple: one is made per record."""

PayloadTest: TypeAlias = Callable[[bytes], bool]

NAMES_MAX = 200_000  # Topic Names whose answer is remembered: about 40 MB; then all are forgotten


class Selection:
    """Topic Filters and tests of the payload, over many records of few Topic Names."""

    def __init__(
        self,
        topic_filters: Sequence[str],
        topic_name_from_key: Callable[[str, bytes | None], str | None],
        tests: Sequence[PayloadTest] = (),
    ) -> None:
        self._topic_filters = tuple(topic_filters)
        self._topic_name_from_key = topic_name_from_key
        self._tests = tuple(tests)
        self._known: dict[bytes, bool] = {}
        self.unreadable = 0  # records without a Topic Name that could be read, so no filter can match them

    def take(self, position: Position, records: Sequence[Record], time_ms: int) -> tuple[list[Item], int]:
        """Those of a partition's next records that are wanted, and the time of the last one, wanted or not;
        ``time_ms`` is that of the record before."""
        items: list[Item] = []
        known = self._known
        for record in records:
            if record.timestamp > time_ms:
                time_ms = record.timestamp
            headers = record.headers
            if len(headers) == 2 and headers[1][0] == HEADER_CLIENT_ID and headers[0][0] == HEADER_TOPIC:
                name = headers[0][1] or b""  # what nearly every record is: a device's plain message
            else:
                found = self._name(position, record)
                if found is None:
                    continue
                name = found
            wanted = known.get(name)
            if wanted is None:
                wanted = self._decide(name)
            if wanted:
                items.append((time_ms, position, record, name))
        if self._tests:
            items = [item for item in items if all(test(item[2].value or b"") for test in self._tests)]
        return items, time_ms

    def _name(self, position: Position, record: Record) -> bytes | None:
        try:
            return read_topic_name(position[0], record, self._topic_name_from_key)
        except HeadwaterError:
            self.unreadable += 1
            return None

    def _decide(self, name: bytes) -> bool:
        if len(self._known) >= NAMES_MAX:
            self._known.clear()
        try:
            topic_name = name.decode()
            check_topic_name(topic_name)
        except (UnicodeDecodeError, HeadwaterError):
            self.unreadable += 1
            return False
        wanted = any(matches(topic_filter, topic_name) for topic_filter in self._topic_filters)
        self._known[name] = wanted
        return wanted
