"""What the demo says at the end (pure): the figures, and whether it has shown what it claims."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a run. ``windows`` is None when no Spark job was asked for."""

    devices: int
    edges: int
    seconds: float
    published: int
    acknowledged: int
    delivered: int
    lost: int
    duplicated: int
    out_of_order: int
    refused: int
    reconnects: int
    p50_ms: float | None
    p99_ms: float | None
    windows: int | None
    results: int

    def faults(self) -> list[str]:
        """What went wrong; empty when all is well."""
        found = []
        if not self.published or not self.delivered:
            found.append("nothing was published and delivered")
        if self.lost:
            found.append(f"{self.lost} acknowledged messages did not arrive on the other edge")
        if self.duplicated:
            found.append(f"{self.duplicated} messages arrived twice")
        if self.out_of_order:
            found.append(f"{self.out_of_order} messages arrived after a later one of their device")
        if self.refused:
            found.append(f"{self.refused} messages were refused or given up")
        if self.acknowledged + self.refused < self.published:
            found.append(f"{self.published - self.acknowledged - self.refused} messages were never acknowledged")
        if self.windows == 0:
            found.append("no window came from Spark")
        return found

    def rows(self) -> list[tuple[str, str]]:
        """The table: what, and how much."""
        return [
            ("devices (MQTT clients)", f"{self.devices:,} on {self.edges} edges"),
            ("published, QoS 1", f"{self.published:,} in {self.seconds:.0f} s"),
            ("acknowledged (in Kafka)", f"{self.acknowledged:,}"),
            ("delivered on the other edge", f"{self.delivered:,}"),
            ("lost", f"{self.lost:,}"),
            ("duplicated", f"{self.duplicated:,}"),
            ("out of order", f"{self.out_of_order:,}"),
            ("latency p50 / p99", f"{_ms(self.p50_ms)} / {_ms(self.p99_ms)}"),
            ("Spark windows received", "not started" if self.windows is None else self._windows()),
        ]

    def _windows(self) -> str:
        return f"{self.windows:,} (in {self.results:,} results)"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
