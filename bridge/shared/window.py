"""One leased partition of a shared subscription: what was read, who has it, and how far everything is done. Pure.

Offsets only. *Handed* are those that a member got, in order; *open* are those of them that nobody has acknowledged.
The low-water mark is the lowest open offset: all below is done. What is open or lies above an open one is bounded, and
so is what another node must hand out again when this one dies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from bridge.delivery import Delivery
from bridge.log import Position
from bridge.shared.strategies import Candidate

RECORDS_MAX = 1_000  # handed out from the low-water mark on
BYTES_MAX = 4 * 1024 * 1024  # of payloads that are open: held here, because another member may need them


class LeasedPartition:
    """The group's place in one partition."""

    __slots__ = (
        "_buffer",
        "_bytes_max",
        "_handed",
        "_records_max",
        "_returned",
        "_unheld",
        "holders",
        "is_revoked",
        "is_waiting",
        "open_bytes",
        "position",
        "read_offset",
    )

    def __init__(
        self, position: Position, offset: int, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self.position = position
        self.read_offset = offset  # where to read on
        self.is_waiting = False  # for a member with room, or for acknowledgements
        self.is_revoked = False  # soon another node's: nothing more is handed out
        self.holders: dict[int, tuple[Candidate, Delivery]] = {}  # who has what that is open
        self.open_bytes = 0
        self._buffer: deque[Delivery] = deque()  # read, matched, not handed out yet
        self._returned: list[tuple[int, Delivery]] = []  # a heap: open, but the member that had them has left
        self._unheld: set[int] = set()  # the offsets in it
        self._handed: deque[int] = deque()  # from the low-water mark on
        self._records_max = records_max
        self._bytes_max = bytes_max

    @property
    def low_water(self) -> int:
        """All below is done."""
        if self._handed:
            return self._handed[0]
        return self._buffer[0].offset if self._buffer else self.read_offset

    @property
    def wants(self) -> int | None:
        """Where to read on; None when there is enough to hand out, or nobody to take it."""
        if self._buffer or self._returned or self.is_waiting or self.is_revoked:
            return None
        return self.read_offset

    def has_room(self) -> bool:
        """Whether one more may be open."""
        return bool(self._returned) or (len(self._handed) < self._records_max and self.open_bytes < self._bytes_max)

    def feed(self, deliveries: Iterable[Delivery], read_offset: int) -> None:
        """What was read and matches, and where to read on."""
        assert not self._buffer, "fed only when it wants something"
        self._buffer.extend(deliveries)
        self.read_offset = read_offset

    def next(self) -> Delivery | None:
        """What is to be handed out next: what comes back from members that left goes first."""
        if self._returned:
            return self._returned[0][1]
        return self._buffer[0] if self._buffer else None

    def hand(self, member: Candidate, delivery: Delivery) -> None:
        """`next` goes to the member."""
        if self._returned:
            self._unheld.remove(heappop(self._returned)[0])
        else:
            self._buffer.popleft()
            self._handed.append(delivery.offset)
            self.open_bytes += len(delivery.payload)
        self.holders[delivery.offset] = (member, delivery)

    def settle(self, offset: int) -> None:
        """It is done."""
        _, delivery = self.holders.pop(offset)
        self._close(delivery)

    def drop_next(self) -> None:
        """`next` goes to nobody: it has expired."""
        if self._returned:
            offset, delivery = heappop(self._returned)
            self._unheld.remove(offset)
            self._close(delivery)
        else:
            self._buffer.popleft()

    def take_back(self, offset: int) -> None:
        """Its member is gone: another one gets it."""
        _, delivery = self.holders.pop(offset)
        heappush(self._returned, (offset, delivery))
        self._unheld.add(offset)

    def drop_buffer(self) -> None:
        """Read it again later."""
        if self._buffer:
            self.read_offset = self._buffer[0].offset
            self._buffer.clear()

    def skip_to(self, offset: int) -> None:
        """The log begins (or ends) there: the rest is gone."""
        self._buffer.clear()
        self.read_offset = offset

    @property
    def buffered_bytes(self) -> int:
        return sum(len(delivery.payload) for delivery in self._buffer)

    def _close(self, delivery: Delivery) -> None:
        self.open_bytes -= len(delivery.payload)
        handed = self._handed
        while handed and handed[0] not in self.holders and handed[0] not in self._unheld:
            handed.popleft()
