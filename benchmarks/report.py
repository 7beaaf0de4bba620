"""From samples to medians, ratios, verdicts and Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.scenarios import AMQTT, BROKERS, HEADWATER, MOSQUITTO, SCENARIOS, TARGETS, Scenario, Target

LABELS = {HEADWATER: "**Headwater** (edge, through Kafka)", MOSQUITTO: "mosquitto (memory)", AMQTT: "amqtt (memory)"}
NOT_MEASURED = "not measured"
_FAULTS = ("lost", "repeated", "refused", "connections_lost")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: figures by name, or the error that it ended with."""

    scenario: str
    broker: str
    round: int
    figures: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure or ratio: the median, and the lowest and highest of a single round."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Document:
    """One run of the command, as it is stored."""

    name: str
    date: str
    seconds: float
    rounds: int
    generator: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    load_average: Sequence[float]
    remarks: Sequence[str]
    samples: Sequence[Sample]


def document_from_json(table: Mapping[str, object]) -> Document:
    """The inverse of `orjson.dumps(document)`. Raises TypeError for another program's JSON."""
    values = dict(table)
    samples = values.pop("samples")
    if not isinstance(samples, list):
        raise TypeError("samples is a list")
    return Document(**values, samples=tuple(Sample(**each) for each in samples))  # type: ignore[arg-type]


def medians(samples: Iterable[Sample], scenario: str, broker: str) -> dict[str, float]:
    """The median of each figure over the rounds that went well; empty when none did."""
    columns: dict[str, list[float]] = {}
    for sample in samples:
        if (sample.scenario, sample.broker) == (scenario, broker):
            for name, value in sample.figures.items():
                columns.setdefault(name, []).append(value)
    return {name: median(values) for name, values in columns.items()}


def totals(samples: Iterable[Sample], scenario: str, broker: str) -> dict[str, float]:
    """What must be 0 is summed over the rounds: a median would hide it."""
    rows = [each.figures for each in samples if (each.scenario, each.broker) == (scenario, broker)]
    return {name: sum(row.get(name, 0) for row in rows) for name in _FAULTS}


def ratio(
    samples: Sequence[Sample], scenario: str, metric: str, broker: str, against: str | None = None
) -> Measured | None:
    """Median against median, with the lowest and highest ratio of one round; None where either is missing.

    `against` None: the figure itself.
    """
    ours = _by_round(samples, scenario, metric, broker)
    if against is None:
        return Measured(median(ours.values()), min(ours.values()), max(ours.values())) if ours else None
    theirs = {number: value for number, value in _by_round(samples, scenario, metric, against).items() if value > 0}
    both = [ours[number] / theirs[number] for number in ours.keys() & theirs.keys()]
    if not both:
        return None
    return Measured(median(ours.values()) / median(theirs.values()), min(both), max(both))


def verdict(target: Target, measured: Measured | None) -> str:
    """Which column of the table was reached."""
    if measured is None:
        return NOT_MEASURED
    for limit, answer in ((target.aim, "aim reached"), (target.must, "reached")):
        if measured.value >= limit if target.at_least else measured.value <= limit:
            return answer
    return "NOT reached"


def faults(samples: Iterable[Sample], broker: str = HEADWATER) -> list[str]:
    """Every run of the broker that failed, lost, repeated or refused a message, or lost a connection."""
    found = []
    for sample in samples:
        if sample.broker != broker:
            continue
        where = f"{sample.scenario}, round {sample.round}"
        if sample.error:
            found.append(f"{where}: {sample.error}")
        found += [f"{where}: {name} {sample.figures[name]:.0f}" for name in _FAULTS if sample.figures.get(name)]
    return found


def markdown(document: Document) -> str:
    """The whole report."""
    parts = [
        _heading(document),
        "### What to reach\n\n" + _targets_table(document.samples),
        "### Messages\n\n" + _traffic_table(document.samples),
        "### Ratios, Headwater to the others\n\n" + _ratios_table(document.samples),
        "### Idle connections\n\n" + _idle_table(document.samples),
    ]
    failed = [
        f"{each.broker}, {each.scenario}, round {each.round}: {each.error}" for each in document.samples if each.error
    ]
    if remarks := [*document.remarks, *failed]:
        parts.append("### Remarks\n\n" + "\n".join(f"- {line}" for line in remarks))
    return "\n\n".join(parts) + "\n"


def _heading(document: Document) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in document.machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in document.versions.items())
    load = " to ".join(f"{value:.1f}" for value in document.load_average)
    return (
        f"## Run `{document.name}`\n\n{document.date}; medians of {document.rounds} rounds of {document.seconds:g} s "
        f"per scenario and broker, interleaved; load by {document.generator}; load average {load}.\n\n"
        f"Machine: {machine}.\n\nBrokers: {versions}."
    )


def _targets_table(samples: Sequence[Sample]) -> str:
    rows = []
    for target in TARGETS:
        measured = ratio(samples, target.scenario, target.metric, HEADWATER, target.against)
        sign = ">=" if target.at_least else "<="
        limits = (f"{sign} {limit:g} {target.unit}" for limit in (target.must, target.aim))
        rows.append((target.title, *limits, _with_range(measured, target.unit), verdict(target, measured)))
    return _table(("", "must", "aim", "measured (lowest to highest round)", ""), rows)


def _traffic_table(samples: Sequence[Sample]) -> str:
    rows = []
    for scenario, broker in _pairs(samples, idle=False):
        figures, sums = medians(samples, scenario.name, broker), totals(samples, scenario.name, broker)
        rows.append(
            (
                scenario.title,
                LABELS[broker],
                _number(figures.get("messages_per_s")),
                _number(figures.get("cpu_us")),
                _number(figures.get("kafka_cpu_us")),
                _number(figures.get("p50_ms")),
                _number(figures.get("p99_ms")),
                f"{sums['lost']:,.0f}" if figures else "-",
                f"{sums['repeated']:,.0f}" if figures else "-",
            )
        )
    titles = ("", "", "messages/s", "CPU µs/message", "Kafka CPU µs/message", "p50 ms", "p99 ms", "lost", "repeated")
    return _table(titles, rows)


def _ratios_table(samples: Sequence[Sample]) -> str:
    rows = []
    for scenario in _measured_scenarios(samples):
        if not scenario.connections:
            cells = (
                _number(found.value if (found := ratio(samples, scenario.name, metric, HEADWATER, other)) else None)
                for metric in ("cpu_us", "messages_per_s")
                for other in (MOSQUITTO, AMQTT)
            )
            rows.append((scenario.title, *cells))
    return _table(("", "CPU : mosquitto", "CPU : amqtt", "messages/s : mosquitto", "messages/s : amqtt"), rows)


def _idle_table(samples: Sequence[Sample]) -> str:
    rows = []
    for scenario, broker in _pairs(samples, idle=True):
        figures = medians(samples, scenario.name, broker)
        names = ("connections", "memory_kb", "connect_cpu_us", "connects_per_s", "connects_per_core_s")
        rows.append((LABELS[broker], *(_number(figures.get(name)) for name in names)))
    titles = ("", "connections", "KB per connection", "CPU µs per connect", "connects/s", "connects/s per core")
    return _table(titles, rows)


def _measured_scenarios(samples: Sequence[Sample]) -> list[Scenario]:
    names = {sample.scenario for sample in samples}
    return [scenario for scenario in SCENARIOS if scenario.name in names]


def _pairs(samples: Sequence[Sample], *, idle: bool) -> list[tuple[Scenario, str]]:
    seen = {(sample.scenario, sample.broker) for sample in samples}
    return [
        (scenario, broker)
        for scenario in _measured_scenarios(samples)
        for broker in BROKERS
        if (scenario.name, broker) in seen and bool(scenario.connections) is idle
    ]


def _by_round(samples: Iterable[Sample], scenario: str, metric: str, broker: str) -> dict[int, float]:
    return {
        each.round: each.figures[metric]
        for each in samples
        if (each.scenario, each.broker) == (scenario, broker) and metric in each.figures
    }


def _with_range(measured: Measured | None, unit: str) -> str:
    if measured is None:
        return "-"
    return f"{_number(measured.value)} {unit} ({_number(measured.low)} to {_number(measured.high)})"


def _number(value: float | None) -> str:
    """Three digits that count, thousands apart."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3f}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
