"""The retained messages as one node sees them: what `headwater.retained` says, folded record by record. Pure.

Every node reads the same records in the same order, so all views are equal once they have read as far. The highest
position counts, not the last record: an older record that lands last leaves its Topic Name in ``misplaced`` until the
right one has been written again behind it (read-repair), for compaction keeps only the last one.

What has been cleared is remembered for a while, so that an older message that lands behind does not come back.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Literal

from bridge.delivery import Delivery, read_delivery
from bridge.retained_names import NamePattern, SortedNames
from schemas.retained import RetainedMessage

MESSAGES_MAX = 1_000_000  # Topic Names with a retained message: about 600 MB with small payloads
BYTES_MAX = 512 * 1024 * 1024  # of their names, payloads and headers
CLEARED_MAX = 100_000  # cleared Topic Names that are remembered; the oldest goes first
CLEARED_KEPT_MS = 86_400_000  # as long as Kafka keeps the tombstone itself (delete.retention.ms)
EXPIRED_PER_CALL_MAX = 1_000  # one call of `expire` holds the loop for about a millisecond

Outcome = Literal["stored", "cleared", "same", "older", "refused"]


class RetainedView:
    """Topic Name (UTF-8) -> retained message."""

    def __init__(self, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages: dict[bytes, RetainedMessage] = {}
        self._cleared: dict[bytes, RetainedMessage] = {}  # in the order of clearing
        self._names = SortedNames()
        self._expiries: list[tuple[int, bytes]] = []  # a heap; an entry may be out of date
        self._bytes = 0
        self._counts: dict[Outcome, int] = {"stored": 0, "cleared": 0, "same": 0, "older": 0, "refused": 0}
        self.changes = 0  # grows with each message that is stored; `RetainedMessage.change` is its value then
        self.misplaced: set[bytes] = set()  # Topic Names whose last record in the log is not the one that counts

    def __len__(self) -> int:
        return len(self._messages)

    def apply(self, message: RetainedMessage) -> Outcome:
        """Take one record of `headwater.retained`, in the order of the log."""
        outcome = self._apply(message)
        self._counts[outcome] += 1
        return outcome

    def has_room_for(self, topic_name_utf8: bytes, size_bytes: int) -> bool:
        """Whether a message of this size may be retained: what replaces another one always may."""
        if topic_name_utf8 in self._messages:
            return True
        return len(self._messages) < self._messages_max and self._bytes + size_bytes <= self._bytes_max

    def get(self, topic_name_utf8: bytes, now_ms: int) -> RetainedMessage | None:
        """The retained message of the Topic Name, unless it has expired [MQTT5-3.3.2-5]."""
        message = self._messages.get(topic_name_utf8)
        if message is None or (message.expiry_ms is not None and message.expiry_ms <= now_ms):
            return None
        return message

    def latest(self, topic_name_utf8: bytes) -> RetainedMessage | None:
        """What counts for the Topic Name, expired or not; a tombstone when it was cleared not long ago."""
        return self._messages.get(topic_name_utf8) or self._cleared.get(topic_name_utf8)

    def search(
        self, pattern: NamePattern, start: bytes, names_max: int, visits_max: int
    ) -> tuple[list[bytes], bytes | None]:
        """The next matching Topic Names at or after ``start``, and where to go on; None: that was all."""
        return self._names.search(pattern, start, names_max, visits_max)

    def expire(self, now_ms: int) -> int:
        """Clear what has expired by then, a bounded number of messages; how many. Each becomes misplaced: its
        tombstone is not in the log yet."""
        cleared = 0
        while self._expiries and self._expiries[0][0] <= now_ms and cleared < EXPIRED_PER_CALL_MAX:
            expiry_ms, name = heappop(self._expiries)
            message = self._messages.get(name)
            if message is not None and message.expiry_ms == expiry_ms:
                self._put(message.cleared())
                self.misplaced.add(name)
                cleared += 1
        return cleared

    def forget_cleared(self, now_ms: int) -> None:
        """Forget Topic Names that were cleared long ago, or too many of them."""
        while self._cleared:
            name, message = next(iter(self._cleared.items()))
            is_needed = name in self.misplaced or message.timestamp + CLEARED_KEPT_MS > now_ms
            if is_needed and len(self._cleared) <= CLEARED_MAX:
                return
            del self._cleared[name]
            self.misplaced.discard(name)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and `$SYS`."""
        return {
            "messages": len(self._messages),
            "bytes": self._bytes,
            "cleared_remembered": len(self._cleared),
            "misplaced": len(self.misplaced),
            **{f"records_{outcome}": count for outcome, count in self._counts.items()},
        }

    def snapshot(self) -> dict[bytes, tuple[bytes, tuple[str, int, int]]]:
        """Payload and source position by Topic Name, to compare two views."""
        return {
            name: (message.value or b"", (message.kafka_topic, message.partition, message.offset))
            for name, message in self._messages.items()
        }

    def _apply(self, message: RetainedMessage) -> Outcome:
        name = message.topic_name_utf8
        held = self.latest(name)
        if held is not None:
            if held.is_same_as(message):
                self.misplaced.discard(name)
                return "same"
            if not message.is_newer_than(held):
                self.misplaced.add(name)
                return "older"
        if message.value is not None and not self.has_room_for(name, _size(message)):
            return "refused"
        self.misplaced.discard(name)
        self._put(message)
        return "stored" if message.value is not None else "cleared"

    def _put(self, message: RetainedMessage) -> None:
        name = message.topic_name_utf8
        held = self._messages.pop(name, None)
        if held is not None:
            self._bytes -= _size(held)
        self._cleared.pop(name, None)
        if message.value is None:
            self._cleared[name] = message
            if held is not None:
                self._names.remove(name)
            return
        self.changes += 1
        message.change = self.changes
        self._messages[name] = message
        self._bytes += _size(message)
        if held is None:
            self._names.add(name)
        if message.expiry_ms is not None:
            heappush(self._expiries, (message.expiry_ms, name))
            if len(self._expiries) > 2 * len(self._messages) + 1_000:  # replaced messages leave entries behind
                self._rebuild_expiries()

    def _rebuild_expiries(self) -> None:
        entries = ((message.expiry_ms, name) for name, message in self._messages.items())
        self._expiries = sorted((at, name) for at, name in entries if at is not None)  # sorted is a heap


class RetainedDelivery(Delivery):
    """A delivery that comes out of the view and not out of the log: its position may be long gone."""

    __slots__ = ()


def retained_delivery(message: RetainedMessage) -> RetainedDelivery:
    """The message on its way to a new subscription: RETAIN is 1 [MQTT311-3.3.1-8], the time is that of its append."""
    delivery = read_delivery(message.kafka_topic, message.partition, message, message.topic_name_utf8)
    return RetainedDelivery(*delivery._replace(retain=True))


def _size(message: RetainedMessage) -> int:
    headers = sum(len(field) for _, field in message.headers)
    return len(message.topic_name_utf8) + len(message.value or b"") + headers
