"""What an earlier connection of a session left in flight, until it has been sent again. Pure.

The log is read again from the lowest position in flight (`bridge.catch_up`). Of what is before `starts`, the positions
that had been reached, only that is sent which was in flight, under its old identifier; the rest was acknowledged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bridge.log import Position


@dataclass(frozen=True, slots=True)
class InFlight:
    """A message that was sent and not acknowledged: by its position, or, when it was a retained one, by its name."""

    packet_id: int
    qos: int
    position: Position
    offset: int
    is_released: bool = False
    retained_name: str | None = None
    is_shared: bool = False

    @property
    def is_beside(self) -> bool:
        """Whether reading the session's partitions again does not bring it: it was retained, or came by a shared
        subscription."""
        return self.retained_name is not None or self.is_shared


@dataclass(slots=True)
class Resuming:
    """`packet_ids` are those not sent again yet; they are not given to other messages."""

    starts: dict[Position, int]
    released: tuple[int, ...] = ()
    packet_ids: set[int] = field(default_factory=set)
    beside: tuple[InFlight, ...] = ()
    _by_position: dict[Position, dict[int, InFlight]] = field(default_factory=dict)

    @classmethod
    def of(cls, starts: Mapping[Position, int], in_flight: Iterable[InFlight]) -> "Resuming":
        """`starts`: the next offset that was to be sent, per partition."""
        entries = sorted(in_flight, key=lambda entry: entry.offset)
        resuming = cls(
            dict(starts),
            tuple(entry.packet_id for entry in entries if entry.is_released),
            {entry.packet_id for entry in entries if not entry.is_released},
            tuple(entry for entry in entries if entry.is_beside and not entry.is_released),
        )
        for entry in entries:
            if not entry.is_released and not entry.is_beside:
                resuming._by_position.setdefault(entry.position, {})[entry.offset] = entry
        return resuming

    def needs(self) -> dict[Position, int]:
        """From where on each partition has to be read: the low-water marks."""
        return {position: min([start, *self._by_position.get(position, ())]) for position, start in self.starts.items()}

    def is_before(self, position: Position, offset: int) -> bool:
        """Whether the session had come past the record."""
        return offset < self.starts.get(position, 0)

    def entry(self, position: Position, offset: int) -> InFlight | None:
        """What was in flight there, if it has not been sent again."""
        entry = self._by_position.get(position, {}).get(offset)
        return entry if entry is not None and entry.packet_id in self.packet_ids else None

    def partition_resumed(self, position: Position | None) -> None:
        """All of the partition (None: of every one) has been read again: what comes of it now is new."""
        if position is None:
            self._by_position.clear()
        else:
            self._by_position.pop(position, None)

    @property
    def is_over(self) -> bool:
        """Nothing is left, and no partition is being read in which there was something: what was acknowledged there
        must still be passed over."""
        return not self.packet_ids and not self._by_position

    def left(self, position: Position | None = None) -> list[InFlight]:
        """What has not been sent again: of one partition, or of all with what came beside."""
        partitions = self._by_position.values() if position is None else [self._by_position.get(position, {})]
        entries = [entry for partition in partitions for entry in partition.values()]
        entries += (each for each in self.beside if position is None or (each.is_shared and each.position == position))
        return [entry for entry in entries if entry.packet_id in self.packet_ids]
