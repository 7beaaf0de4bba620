"""One replay subscription: what the log holds from a place on, merged by time, then what comes live. Pure.

* Per partition the records come in the log's order. While a partition has history, records of all partitions go out
  by the time of their append; what was appended after the subscription goes out as it comes.
* Nothing is handed out that the member has no room for; of what it has not taken nothing more is read than a few
  hundred records per partition.
* `places` says where to go on: per partition the first offset that was never handed out, and what was handed out below
  it and not acknowledged. A session stores it; a client that has no session uses the token of its last message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Protocol

from bridge.delivery import Delivery
from bridge.log import Position
from schemas.message import Message
from schemas.replay_range import PositionTokens
from schemas.sessions import ReplayPlace

BUFFERED_LOW = 256  # a partition with less than this in its buffer is read on: a fetch brings up to 1 MiB of it
BUFFERED_BYTES_LOW = 1024 * 1024  # of one replay: with more only what has nothing in its buffer is read on
BURST_S = 0.1  # of the rate: what may go at once after a pause

STRING_BYTES_MAX = 65_535  # [MQTT5-1.5.4]

TIMESTAMP = "headwater.timestamp_ms"
POSITION = "headwater.position"
GAP = "headwater.gap"


class ReplayMember(Protocol):
    """The client's connection."""

    def has_room(self) -> bool:
        """Whether one more message would be sent at once."""
        ...

    def takes(self, delivery: Delivery, feed: ReplayFeed, /) -> bool:
        """Whether the subscription's options let it through."""
        ...

    def deliver_replayed(self, delivery: Delivery, feed: ReplayFeed, /) -> bool:
        """Take one message; whether `ReplayFeed.acknowledged` follows: else it is done."""
        ...

    def replay_ended(self, feed: ReplayFeed, /) -> None:
        """All up to ``to`` was handed out."""
        ...


@dataclass(slots=True)
class _Partition:
    next_offset: int
    read_offset: int
    history_end: int
    due: set[int]  # below next_offset, to be handed out again
    open: dict[int, None] = field(default_factory=dict)  # handed out, in order
    buffer: deque[Delivery] = field(default_factory=deque)
    is_cut: bool = False  # memory was short: it is read on when its buffer is empty

    @property
    def is_missing(self) -> bool:
        """Its next record of history is not here yet."""
        return not self.buffer and self.read_offset < self.history_end

    @property
    def at(self) -> int:
        """Where to go on when nothing below is due."""
        return max(self.next_offset, self.buffer[0].offset if self.buffer else self.read_offset)


class ReplayFeed:
    """Fed by a `bridge.shared.reader.SharedReader`, of which it looks like a group.

    Args:
        places: where to begin, of every partition that the topic filter can match.
        ends: where history ends: what lies before is merged by time.
        is_bounded: it ends there, instead of going on live.
        per_s: how many messages of history go out per second (0: as many as the member takes).
        with_positions: each message says when it was appended and where to go on after it, in user properties.
        on_hungry: more can be read.
        on_fed: there is something to hand out: `hand_out`.
    """

    def __init__(
        self,
        replay_filter: str,
        member: ReplayMember,
        places: Mapping[Position, ReplayPlace],
        ends: Mapping[Position, int],
        *,
        is_bounded: bool,
        per_s: float,
        with_positions: bool,
        on_hungry: Callable[[], None],
        on_fed: Callable[[ReplayFeed], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self.replay_filter = replay_filter
        self.handed = 0
        self.is_closed = False
        self.has_ended = False
        self.gap = 0  # records that were deleted before they could be read, and the client has not been told
        self._member = member
        self._is_bounded = is_bounded
        self._per_s = per_s
        self._allowance = per_s * BURST_S
        self._allowed_at: float | None = None
        self._with_positions = with_positions
        self._on_hungry = on_hungry
        self._on_fed = on_fed
        self._clock_ms = clock_ms
        self._partitions = {
            position: _Partition(
                place.next_offset, min((place.next_offset, *place.due)), ends[position], set(place.due)
            )
            for position, place in places.items()
        }
        self._tokens = PositionTokens(
            {position: min((place.next_offset, *place.due)) for position, place in places.items()}
        )
        self._buffered_bytes = 0
        self._missing = {position for position, each in self._partitions.items() if each.is_missing}
        self._heads: list[tuple[int, Position, int]] = []  # of history: append time, partition, offset
        self._live: deque[Position] = deque()  # partitions with something behind their history, in turns
        self._is_handing_out = False
        self._counts = dict.fromkeys(("expired", "truncated_records"), 0)

    # What `SharedReader` wants of a group -----------------------------------------------------------------------------

    @property
    def positions(self) -> Collection[Position]:
        return self._partitions.keys()

    def wants(self, position: Position) -> int | None:
        """Where to read on; None: nothing is needed of the partition now."""
        partition = self._partitions[position]
        if self.is_closed or (partition.buffer and self._has_enough(partition)):
            return None
        if self._is_bounded and partition.read_offset >= partition.history_end:
            return None
        return partition.read_offset

    def feed(self, position: Position, deliveries: Iterable[Delivery], read_offset: int) -> None:
        """What was read from `wants` on: the matching messages, and where to read on."""
        partition = self._partitions[position]
        for delivery in deliveries:
            offset = delivery.offset
            if offset < partition.next_offset and offset not in partition.due:
                continue  # it had been handed out, and acknowledged
            if self._is_bounded and offset >= partition.history_end:
                break
            partition.buffer.append(delivery)
            self._buffered_bytes += len(delivery.payload)
            if len(partition.buffer) == 1:
                self._queue(position, partition)
        self._has_read(position, partition, read_offset)

    def skip_to(self, position: Position, offset: int) -> None:
        """The log has nothing before ``offset`` any more: never a silent gap."""
        partition = self._partitions[position]
        until = min(offset, partition.history_end) if self._is_bounded else offset
        lost = max(0, until - max(partition.next_offset, partition.read_offset))
        lost += sum(partition.read_offset <= due < offset for due in partition.due)
        self._counts["truncated_records"] += lost
        self.gap += lost
        if offset < partition.read_offset:  # the log is shorter than it was: what comes there now is new
            partition.next_offset = min(partition.next_offset, offset)
            partition.due = {due for due in partition.due if due < offset}
            partition.history_end = min(partition.history_end, offset)
        self._has_read(position, partition, offset)

    def deliver(self, delivery: Delivery, grant: object, /) -> object:
        """A replay is fed by `feed`, partition by partition."""
        raise NotImplementedError

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes

    def drop_buffers(self) -> None:
        """Memory is short: the later half of what waits is read again. The next record of each partition stays, or a
        merge of very many partitions would never have all that it needs."""
        for partition in self._partitions.values():
            buffer = partition.buffer
            partition.is_cut = bool(buffer)
            for _ in range(len(buffer) // 2):
                delivery = buffer.pop()
                partition.read_offset = delivery.offset
                self._buffered_bytes -= len(delivery.payload)

    # What the member does ---------------------------------------------------------------------------------------------

    def acknowledged(self, member: object, position: Position, offset: int) -> None:
        """The client has it, or will complete its QoS 2 flow in its session."""
        partition = self._partitions.get(position)
        if partition is not None:
            partition.open.pop(offset, None)

    def places(self, kept: Collection[tuple[Position, int]] = ()) -> dict[Position, ReplayPlace]:
        """Where to go on; what is in ``kept`` (partition, offset) the session has in its own records."""
        return {
            position: ReplayPlace(
                partition.at,
                tuple(
                    sorted(offset for offset in partition.due | partition.open.keys() if (position, offset) not in kept)
                ),
                partition.history_end if self._is_bounded else None,
            )
            for position, partition in self._partitions.items()
        }

    def token(self) -> str:
        """Where to go on, for a client without a session that has all that was handed out."""
        return self._tokens.token()

    def position_properties(self) -> list[tuple[str, str]]:
        """The token, unless there are too many partitions for a string of MQTT; and a gap, to be told once."""
        token, gap, self.gap = self.token(), self.gap, 0
        found = [(POSITION, token)] if len(token) <= STRING_BYTES_MAX else []
        return [*found, (GAP, f"{gap} records were deleted from Kafka before they could be sent")] if gap else found

    def hand_out(self, now: float) -> float | None:
        """Give the member what it has room for; when to call again, if the rate says so. ``now`` in s, monotonic."""
        if self._is_handing_out or self.is_closed:
            return None
        self._is_handing_out = True
        try:
            return self._hand_out(now)
        finally:
            self._is_handing_out = False

    def close(self) -> None:
        """Nothing is handed out any more."""
        self.is_closed = True

    def statistics(self) -> dict[str, int]:
        return {
            **self._counts,
            "handed": self.handed,
            "open": sum(len(each.open) for each in self._partitions.values()),
            "partitions_in_history": sum(each.at < each.history_end for each in self._partitions.values()),
        }

    # How --------------------------------------------------------------------------------------------------------------

    def _hand_out(self, now: float) -> float | None:
        while not self.is_closed and self._member.has_room():
            position = self._next_history() if self._heads or self._missing else None
            if position is None:
                if self._missing:  # what it has may be older than what the others have
                    return None
                position = self._live[0] if self._live else None
                if position is None:
                    self._end()
                    return None
                self._live.popleft()
            elif (wait_s := self._wait_s(now)) > 0:
                return now + wait_s
            else:
                heappop(self._heads)
            self._hand(position)
        return None

    def _next_history(self) -> Position | None:
        return self._heads[0][1] if self._heads and not self._missing else None

    def _wait_s(self, now: float) -> float:
        if not self._per_s:
            return 0.0
        if self._allowed_at is not None:
            earned = (now - self._allowed_at) * self._per_s
            self._allowance = min(self._allowance + earned, max(1.0, self._per_s * BURST_S))
        self._allowed_at = now
        if self._allowance < 1:
            return (1 - self._allowance) / self._per_s
        self._allowance -= 1
        return 0.0

    def _hand(self, position: Position) -> None:
        partition = self._partitions[position]
        delivery = partition.buffer.popleft()
        offset, buffered_bytes = delivery.offset, self._buffered_bytes
        self._buffered_bytes -= len(delivery.payload)
        partition.due.discard(offset)
        partition.next_offset = max(partition.next_offset, offset + 1)
        if partition.buffer:
            self._queue(position, partition)
        else:
            partition.is_cut = False
            if partition.is_missing:
                self._missing.add(position)
        if self._with_positions:
            self._move_token(position, partition.next_offset)
        if delivery.remaining_expiry_s(self._clock_ms()) == 0:  # I15 [MQTT5-3.3.2-5]
            self._counts["expired"] += 1
        elif self._member.takes(delivery, self):
            self.handed += 1
            partition.open[offset] = None
            if self._with_positions:
                delivery = self._with_position(delivery)
            if not self._member.deliver_replayed(delivery, self):
                partition.open.pop(offset, None)
        is_low = self._buffered_bytes < BUFFERED_BYTES_LOW <= buffered_bytes
        if len(partition.buffer) == BUFFERED_LOW - 1 or not partition.buffer or is_low:
            self._on_hungry()

    def _has_enough(self, partition: _Partition) -> bool:
        is_much = len(partition.buffer) >= BUFFERED_LOW or self._buffered_bytes >= BUFFERED_BYTES_LOW
        return is_much or partition.is_cut

    def _move_token(self, position: Position, offset: int) -> None:
        """What is due again below it is still to come."""
        self._tokens.move(position, min((offset, *self._partitions[position].due)))

    def _has_read(self, position: Position, partition: _Partition, read_offset: int) -> None:
        if self._is_bounded:  # what a read brought beyond the end was not handed out: a token must not pass it
            read_offset = min(read_offset, max(partition.history_end, partition.read_offset))
        partition.read_offset = read_offset
        if partition.due and read_offset >= partition.next_offset:  # what has not come is gone, or matches no more
            partition.due.intersection_update([delivery.offset for delivery in partition.buffer])
        if not partition.is_missing:
            self._missing.discard(position)
        if not partition.buffer:
            self._move_token(position, partition.at)
        self._on_fed(self)

    def _queue(self, position: Position, partition: _Partition) -> None:
        head = partition.buffer[0]
        if head.offset < partition.history_end:
            heappush(self._heads, (head.timestamp_ms, position, head.offset))
        else:
            self._live.append(position)

    def _with_position(self, delivery: Delivery) -> Delivery:
        message = delivery.properties or Message("", b"")
        added = [(TIMESTAMP, str(delivery.timestamp_ms)), *self.position_properties()]
        properties = replace(message, user_properties=(*message.user_properties, *added))
        return delivery._replace(properties=properties, frames=None)

    def _end(self) -> None:
        if self._is_bounded and not self.has_ended and all(map(self._is_done, self._partitions.values())):
            self.has_ended = True
            self._member.replay_ended(self)

    @staticmethod
    def _is_done(partition: _Partition) -> bool:
        return not partition.buffer and partition.read_offset >= partition.history_end
