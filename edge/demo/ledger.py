"""What arrived of what was sent (pure): loss, duplicates, order per device, latency.

The publishers number their messages per device from 1; the observer on the *other* edge reports what it receives.
Memory is bounded by devices: per device the next number expected and the few numbers missing below it.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

BUCKETS_MS = tuple(round(0.25 * 1.08**step, 3) for step in range(180))  # 0.25 ms .. 4 min, steps of 8 %


@dataclass(slots=True)
class Latencies:
    """A histogram with buckets of 8 %: percentiles in constant memory."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_MS) + 1))
    count: int = 0

    def add(self, latency_ms: float) -> None:
        self.counts[bisect_left(BUCKETS_MS, latency_ms)] += 1
        self.count += 1

    def percentile(self, share: float) -> float | None:
        """The upper bound of the bucket that holds the ``share`` (0..1) of all; None without a value."""
        if self.count == 0:
            return None
        left = share * self.count
        for index, count in enumerate(self.counts):
            left -= count
            if left <= 0 and count:
                return BUCKETS_MS[min(index, len(BUCKETS_MS) - 1)]
        return BUCKETS_MS[-1]


@dataclass(slots=True)
class _Device:
    published: int = 0
    expected: int = 1
    missing: set[int] = field(default_factory=set)
    unacknowledged: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Ledger:
    """The account of a run. ``lost`` are messages acknowledged but not (yet) delivered."""

    devices: dict[str, _Device] = field(default_factory=dict)
    published: int = 0
    acknowledged: int = 0
    delivered: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    unknown: int = 0
    latencies: Latencies = field(default_factory=Latencies)

    def next_sequence(self, device: str) -> int:
        """The number of a message about to be published; counts it."""
        entry = self.devices.setdefault(device, _Device())
        entry.published += 1
        entry.unacknowledged.add(entry.published)
        self.published += 1
        return entry.published

    def record_acknowledged(self, device: str, seq: int) -> None:
        self.devices[device].unacknowledged.remove(seq)
        self.acknowledged += 1
        assert self.acknowledged <= self.published, "more acknowledgements than messages"

    def record_delivered(self, device: str, seq: int, latency_ms: float) -> None:
        """A message has arrived: in turn, late (it had been missing) or once more."""
        entry = self.devices.get(device)
        if entry is None or not 1 <= seq <= entry.published:
            self.unknown += 1
        elif seq >= entry.expected:
            entry.missing.update(range(entry.expected, seq))
            entry.expected = seq + 1
            self._count_first(latency_ms)
        elif seq in entry.missing:
            entry.missing.discard(seq)
            self.out_of_order += 1
            self._count_first(latency_ms)
        else:
            self.duplicated += 1

    def _count_first(self, latency_ms: float) -> None:
        self.delivered += 1
        self.latencies.add(latency_ms)

    @property
    def lost(self) -> int:
        """Acknowledged numbers that did not arrive; a message never acknowledged may or may not have been stored."""
        lost = 0
        for entry in self.devices.values():
            lost += len(entry.missing - entry.unacknowledged)
            lost += sum(1 for seq in range(entry.expected, entry.published + 1) if seq not in entry.unacknowledged)
        return lost

    @property
    def gaps(self) -> int:
        """Numbers that have not arrived although a later one of their device has."""
        return sum(len(entry.missing) for entry in self.devices.values())

    @property
    def is_settled(self) -> bool:
        """Whether everything published was acknowledged and has arrived."""
        return self.delivered >= self.published == self.acknowledged
