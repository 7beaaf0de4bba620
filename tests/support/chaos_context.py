"""What a fault's scenario is, and what it works on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from support.chaos_checks import Run
from support.chaos_site import Site
from support.chaos_workload import Workload


class NotHere(Exception):
    """This machine cannot do what the scenario needs; the text says what is missing."""


@dataclass(slots=True)
class Context:
    """What a scenario works on, and where it says what it found. `after`: judged when the history is whole."""

    site: Site
    load: Workload
    figures: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    after: list[Callable[[Run], None]] = field(default_factory=list)

    def must(self, what: str, value: float | None, most: float) -> None:
        """A figure that has a limit; None: it did not happen at all."""
        self.figures[what] = round(value, 2) if value is not None else -1.0
        if value is None or value > most:
            self.faults.append(f"{what}: {'never' if value is None else f'{value:.2f}'}, at most {most:g}")


def as_it_is(site: Site) -> None:
    """Nothing to prepare."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault, and what it needs before the site starts (raises NotHere). The load goes on before and after."""

    text: str
    run: Callable[[Context], Awaitable[None]]
    prepare: Callable[[Site], None] = as_it_is
