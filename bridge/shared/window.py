"""One leased partition of a shared subscription: what was read, who has it, and how far everything is done. Pure.

Offsets only. *Open* is what has to be handed out again when this node dies: what a member has and has not acknowledged,
what came back from a member that left, and what the node before has left open. A QoS 2 message is open until its
hand-over to a session is stored. The low-water mark is the lowest open offset: all below is done. What is above it and
done is named in what is stored with it (`bridge.shared.marks`), and so the number of open ones is bounded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from heapq import heappop, heappush

from bridge.delivery import Delivery
from bridge.log import Mark, Position
from bridge.shared.marks import OPEN_MAX, decode_mark, encode_mark
from bridge.shared.strategies import Candidate

RECORDS_MAX = OPEN_MAX  # open at a time: so many can be named beside the mark
BYTES_MAX = 4 * 1024 * 1024  # of payloads that are open: held here, because another member may need them


class LeasedPartition:
    """The group's place in one partition, from a stored mark on. Raises RecordError when the mark cannot be read."""

    __slots__ = (
        "_buffer",
        "_bytes_max",
        "_due",
        "_known_to",
        "_open",
        "_records_max",
        "_returned",
        "giving",
        "holders",
        "is_revoked",
        "is_waiting",
        "open_bytes",
        "position",
        "read_offset",
    )

    def __init__(
        self, position: Position, mark: Mark, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._known_to, left_open = decode_mark(mark)  # below it only what is open is handed out
        self.position = position
        self.read_offset = mark.offset  # where to read on
        self.is_waiting = False  # for a member with room, or for acknowledgements
        self.is_revoked = False  # soon another node's: nothing more is handed out
        self.holders: dict[int, tuple[Candidate, Delivery]] = {}  # who has what that is open
        self.giving: set[int] = set()  # whose hand-over to the holder's session is on its way to the log
        self.open_bytes = 0
        self._open: OrderedDict[int, None] = OrderedDict.fromkeys(left_open)  # in order
        self._due = set(left_open)  # those of them that nobody has got here
        self._buffer: deque[Delivery] = deque()  # read, matched, not handed out yet
        self._returned: list[tuple[int, Delivery]] = []  # a heap: open, but the member that had them has left
        self._records_max = records_max
        self._bytes_max = bytes_max

    @property
    def low_water(self) -> int:
        """All below is done."""
        return next(iter(self._open), self._frontier)

    def mark(self, done: Collection[int] = ()) -> Mark:
        """What may be stored, if these are done, too."""
        return encode_mark((offset for offset in self._open if offset not in done), self._frontier)

    @property
    def _frontier(self) -> int:
        return max(self._known_to, self._buffer[0].offset if self._buffer else self.read_offset)

    @property
    def wants(self) -> int | None:
        """Where to read on; None when there is enough to hand out, or nobody to take it."""
        if self._buffer or self._returned or self.is_waiting or self.is_revoked:
            return None
        return self.read_offset

    def has_room(self) -> bool:
        """Whether one more may be open."""
        if self._returned or (self._buffer and self._buffer[0].offset in self._due):
            return True
        return len(self._open) < self._records_max and self.open_bytes < self._bytes_max

    def feed(self, deliveries: Iterable[Delivery], read_offset: int) -> None:
        """What was read and matches, and where to read on."""
        assert not self._buffer, "fed only when it wants something"
        known_to, due = self._known_to, self._due
        self._buffer.extend(each for each in deliveries if each.offset >= known_to or each.offset in due)
        self.read_offset = read_offset
        if due:
            found = {each.offset for each in self._buffer}
            self._forget_due([offset for offset in due if offset < read_offset and offset not in found])

    def next(self) -> Delivery | None:
        """What is to be handed out next: what comes back from members that left goes first."""
        if self._returned:
            return self._returned[0][1]
        return self._buffer[0] if self._buffer else None

    def hand(self, member: Candidate, delivery: Delivery) -> None:
        """`next` goes to the member."""
        offset = delivery.offset
        if self._returned:
            heappop(self._returned)
        else:
            self._buffer.popleft()
            self._open[offset] = None  # keeps the place of one that was left open
            self.open_bytes += len(delivery.payload)
            if self._due:
                self._due.discard(offset)
                self._pass_known()
        self.holders[offset] = (member, delivery)

    def settle(self, offset: int) -> None:
        """It is done."""
        _, delivery = self.holders.pop(offset)
        self._close(delivery)

    def drop_next(self) -> None:
        """`next` goes to nobody: it has expired."""
        if self._returned:
            self._close(heappop(self._returned)[1])
        else:
            offset = self._buffer.popleft().offset
            if offset in self._due:
                self._forget_due([offset])

    def take_back(self, offset: int) -> None:
        """Its member is gone: another one gets it."""
        _, delivery = self.holders.pop(offset)
        self.giving.discard(offset)
        heappush(self._returned, (offset, delivery))

    def drop_buffer(self) -> None:
        """Read it again later."""
        if self._buffer:
            self.read_offset = self._buffer[0].offset
            self._buffer.clear()

    def skip_to(self, offset: int) -> None:
        """The log begins (or ends) there: the rest is gone."""
        was_cut = offset < self.read_offset
        self._buffer.clear()
        self.read_offset = offset
        if was_cut:  # what comes there now is new
            self._known_to = min(self._known_to, offset)
        self._forget_due([each for each in self._due if was_cut or each < offset])

    @property
    def buffered_bytes(self) -> int:
        return sum(len(delivery.payload) for delivery in self._buffer)

    def _close(self, delivery: Delivery) -> None:
        self.open_bytes -= len(delivery.payload)
        self.giving.discard(delivery.offset)
        del self._open[delivery.offset]

    def _forget_due(self, offsets: Iterable[int]) -> None:
        """These are not to be handed out any more."""
        for offset in offsets:
            self._due.remove(offset)
            del self._open[offset]
        self._pass_known()

    def _pass_known(self) -> None:
        """Nothing more was left open: what was known of is behind us."""
        if not self._due:
            self.read_offset = max(self.read_offset, self._known_to)
