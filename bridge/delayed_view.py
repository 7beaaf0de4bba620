"""The messages of `headwater.delayed` that wait, as one node sees them, in the order in which they are due. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from schemas.records import Header

OVERHEAD_BYTES = 500  # of a message that waits, beside its payload


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """One message; its place in the log decides between those that are due together."""

    key: bytes
    due_ms: int
    offset: int
    value: bytes
    headers: tuple[Header, ...]

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return OVERHEAD_BYTES + len(self.value)


class DelayedView:
    """Partition -> what waits there."""

    def __init__(self, partitions: int) -> None:
        self._waiting: list[dict[bytes, Waiting]] = [{} for _ in range(partitions)]
        self._due: list[list[tuple[int, int, bytes]]] = [[] for _ in range(partitions)]
        self.messages = 0
        self.size_bytes = 0

    def add(self, partition: int, waiting: Waiting) -> None:
        """A record came; a second one of the same key, by a producer that has sent again, says nothing new."""
        there = self._waiting[partition]
        if waiting.key in there:
            return
        there[waiting.key] = waiting
        heappush(self._due[partition], (waiting.due_ms, waiting.offset, waiting.key))
        self.messages += 1
        self.size_bytes += waiting.size_bytes

    def remove(self, partition: int, key: bytes) -> None:
        """It was published."""
        waiting = self._waiting[partition].pop(key, None)
        if waiting is not None:
            self.messages -= 1
            self.size_bytes -= waiting.size_bytes

    def clear(self, partition: int) -> None:
        """The partition begins anew."""
        for key in list(self._waiting[partition]):
            self.remove(partition, key)
        self._due[partition].clear()

    def due(self, partition: int, now_ms: int, messages_max: int) -> list[Waiting]:
        """What is due at `now_ms`, first things first."""
        queue, there = self._due[partition], self._waiting[partition]
        found: list[Waiting] = []
        taken: list[tuple[int, int, bytes]] = []
        while queue and queue[0][0] <= now_ms and len(found) < messages_max:
            entry = heappop(queue)
            waiting = there.get(entry[2])
            if waiting is not None and waiting.offset == entry[1]:
                found.append(waiting)
                taken.append(entry)
        for entry in taken:  # they stay until they are published
            heappush(queue, entry)
        return found

    def next_due_ms(self, partition: int) -> int | None:
        """When the next one is due; None: nothing waits. What was published is forgotten on the way."""
        queue, there = self._due[partition], self._waiting[partition]
        while queue and queue[0][2] not in there:
            heappop(queue)
        return queue[0][0] if queue else None
