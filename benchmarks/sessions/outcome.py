"""What a scenario found: figures to print, faults that must not be; and the checks that find them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SHOWN_MAX = 5


@dataclass(slots=True)
class Outcome:
    """`faults` is empty when the scenario shows what it must show."""

    figures: dict[str, float | int | str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def expect(self, condition: object, fault: str) -> None:
        """Remember a fault."""
        if not condition:
            self.faults.append(fault)

    def expect_equal(self, what: str, found: object, expected: object) -> None:
        """Remember a fault that says both."""
        self.expect(found == expected, f"{what}: {found!r}, not {expected!r}")

    def closed(self, who: str, error: Exception | None) -> None:
        """A connection ended: a figure, for what it explains."""
        if error is not None:
            self.figures[f"connection of {who}"] = str(error)

    def text(self) -> str:
        """One line per figure and fault."""
        lines = [f"  {name:42} {_shown(value)}" for name, value in self.figures.items()]
        return "\n".join(lines + [f"  FAULT: {fault}" for fault in self.faults])


Sent = Mapping[str, Sequence[int]]
"""By topic name, the numbers of the messages that were acknowledged, or whose flow was completed, in sending order."""

Received = Iterable[tuple[str, int]]
"""Topic name and number of each message that came, in the order of arrival; repetitions of the transport left out."""


def missing(sent: Sent, received: Received) -> list[str]:
    """Acknowledged messages that did not come (invariant I1)."""
    came = set(received)
    return [
        f"{name} {number} is missing"
        for name, numbers in sent.items()
        for number in numbers
        if (name, number) not in came
    ]


def repeated(received: Received) -> list[str]:
    """What came more than once (invariant I4)."""
    return [f"{name} {number} came {count} times" for (name, number), count in Counter(received).items() if count > 1]


def disordered(received: Received) -> list[str]:
    """First deliveries that came after a later message of the same topic name (invariant I3)."""
    faults: list[str] = []
    seen: set[tuple[str, int]] = set()
    highest: dict[str, int] = {}
    for name, number in received:
        if (name, number) in seen:
            continue
        seen.add((name, number))
        if number < highest.get(name, number):
            faults.append(f"{name} {number} came after {highest[name]}")
        highest[name] = max(number, highest.get(name, number))
    return faults


def unknown(offered: Mapping[str, int], received: Received) -> list[str]:
    """What came though nobody sent it (invariant I2): `offered` says how many messages each topic name was given."""
    return [f"{name} {number} was never sent" for name, number in received if not 0 <= number < offered.get(name, 0)]


def summed_up(faults: Sequence[str], what: str) -> list[str]:
    """One line for a kind of fault: how many, and the first few."""
    if not faults:
        return []
    return [f"{len(faults)} {what}: {', '.join(faults[:SHOWN_MAX])}"]


def _shown(value: float | int | str) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
