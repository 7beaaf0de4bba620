"""From samples to the report: medians, ratios, verdicts, faults; and the command lines of the load generator."""

from pathlib import Path

import orjson
import pytest

from benchmarks.brokers import ACL, LIMITS
from benchmarks.load import Timing, client_arguments, mqload_arguments
from benchmarks.measure import idle_figures, traffic_figures
from benchmarks.processes import BenchmarkError
from benchmarks.publish import BEGIN, END, publish
from benchmarks.report import (
    NOT_MEASURED,
    Document,
    Measured,
    Sample,
    document_from_json,
    faults,
    markdown,
    medians,
    ratio,
    totals,
    verdict,
)
from benchmarks.scenarios import AMQTT, BROKERS, HEADWATER, MOSQUITTO, SCENARIOS, TARGETS, Target
from edge.access.acl import Acl, load_rules
from edge.access.limits import load_limits
from edge.access.principal import Principal

MQLOAD_FIGURES = {
    "delivered_per_s": 1_000.0,
    "broker_cpu_us_per_delivered": 6.5,
    "lat_us": {"p50": 800.0, "p99": 3_500.0},
    "missing": 0,
    "dups_or_reordered": 0,
    "refused": 0,
    "lost_connections": 0,
    "broker_util": 0.4,
    "loadgen_util": 0.2,
    "total_delivered": 4_000,
}


class FakeBroker:
    name = HEADWATER
    user_name = "bench"
    password = "secret"
    address = "127.0.0.1:1883"
    pid = 42
    kafka_pid = None
    version = "0"

    async def start(self) -> None: ...

    async def restart(self) -> None: ...

    async def stop(self) -> None: ...


def sample(broker: str, number: int, scenario: str = "pairs-saturated", **figures: float) -> Sample:
    return Sample(scenario, broker, number, figures)


def document(samples: list[Sample]) -> Document:
    return Document(
        name="t1",
        date="2026-11-21",
        seconds=3.0,
        rounds=3,
        generator="mqload",
        machine={"cores": "2"},
        versions={HEADWATER: "0.1.0"},
        load_average=(0.1, 0.9),
        remarks=("a remark",),
        samples=tuple(samples),
    )


THREE_ROUNDS = [
    sample(HEADWATER, 1, cpu_us=6.0, messages_per_s=50_000),
    sample(MOSQUITTO, 1, cpu_us=15.0, messages_per_s=60_000),
    sample(HEADWATER, 2, cpu_us=30.0, messages_per_s=10_000),
    sample(MOSQUITTO, 2, cpu_us=20.0, messages_per_s=30_000),
    sample(HEADWATER, 3, cpu_us=5.0, messages_per_s=55_000),
    sample(MOSQUITTO, 3, cpu_us=10.0, messages_per_s=61_000),
]


def test_a_median_leaves_an_outlier_out() -> None:
    assert medians(THREE_ROUNDS, "pairs-saturated", HEADWATER) == {"cpu_us": 6.0, "messages_per_s": 50_000}
    assert medians(THREE_ROUNDS, "fan-in", HEADWATER) == {}


def test_a_failed_run_is_left_out_of_the_median() -> None:
    failed = Sample("pairs-saturated", HEADWATER, 4, error="BenchmarkError: no")
    assert medians([*THREE_ROUNDS, failed], "pairs-saturated", HEADWATER)["cpu_us"] == 6.0


def test_a_ratio_is_of_medians_and_its_range_of_rounds() -> None:
    found = ratio(THREE_ROUNDS, "pairs-saturated", "cpu_us", HEADWATER, MOSQUITTO)
    assert found == Measured(6.0 / 15.0, 0.4, 1.5)
    assert ratio(THREE_ROUNDS, "pairs-saturated", "cpu_us", HEADWATER) == Measured(6.0, 5.0, 30.0)


def test_no_ratio_without_the_other_or_with_a_figure_of_nothing() -> None:
    assert ratio(THREE_ROUNDS, "pairs-saturated", "cpu_us", HEADWATER, AMQTT) is None
    zero = [sample(HEADWATER, 1, cpu_us=6.0), sample(AMQTT, 1, cpu_us=0.0)]
    assert ratio(zero, "pairs-saturated", "cpu_us", HEADWATER, AMQTT) is None


@pytest.mark.parametrize(
    ("value", "at_least", "expected"),
    [
        (0.3, False, "aim reached"),
        (0.4, False, "aim reached"),
        (0.7, False, "reached"),
        (0.71, False, "NOT reached"),
        (0.8, True, "aim reached"),
        (0.5, True, "reached"),
        (0.3, True, "NOT reached"),
    ],
)
def test_verdicts(value: float, at_least: bool, expected: str) -> None:
    must, aim = (0.4, 0.7) if at_least else (0.7, 0.4)
    target = Target("t", "pairs-saturated", "cpu_us", must, aim, at_least=at_least)
    assert verdict(target, Measured(value, value, value)) == expected
    assert verdict(target, None) == NOT_MEASURED


def test_losses_are_summed_not_hidden_by_a_median() -> None:
    rounds = [sample(HEADWATER, 1, lost=0), sample(HEADWATER, 2, lost=0), sample(HEADWATER, 3, lost=2)]
    assert totals(rounds, "pairs-saturated", HEADWATER)["lost"] == 2
    assert faults(rounds) == ["pairs-saturated, round 3: lost 2"]


def test_only_our_own_faults_fail_the_command() -> None:
    others = [sample(MOSQUITTO, 1, lost=16_000), Sample("fan-in", AMQTT, 1, error="died")]
    assert faults(others) == []
    assert faults([Sample("fan-in", HEADWATER, 1, error="died")]) == ["fan-in, round 1: died"]


def test_every_target_names_a_scenario_that_measures_both_sides() -> None:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    for target in TARGETS:
        assert target.against is None or target.against in by_name[target.scenario].brokers
        assert (target.aim > target.must) is target.at_least


def test_the_report_holds_every_table() -> None:
    idle = sample(HEADWATER, 1, "idle", connections=5_000, memory_kb=4.0, connects_per_core_s=3_000)
    text = markdown(document([*THREE_ROUNDS, idle, Sample("fan-in", AMQTT, 1, error="died")]))
    assert "load average 0.1 to 0.9" in text
    assert "| <= 0.7 x | <= 0.4 x | 0.40 x (0.40 to 1.50) | aim reached |" in text
    assert "| >= 1500 /s | >= 4000 /s | 3,000 /s (3,000 to 3,000) | reached |" in text
    assert "| 50:50 QoS 1, saturated | mosquitto (memory) | 60,000 | 15.0 | - | - | - | 0 | 0 |" in text
    assert "| 50:50 QoS 1, saturated | 0.40 | - | 0.83 | - |" in text
    assert "- a remark\n- amqtt, fan-in, round 1: died\n" in text
    assert NOT_MEASURED in text


def test_a_stored_result_comes_back() -> None:
    original = document(THREE_ROUNDS)
    again = document_from_json(orjson.loads(orjson.dumps(original)))
    assert markdown(again) == markdown(original)


def test_publishing_replaces_what_stands_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    publish(document(THREE_ROUNDS), page)
    publish(document(THREE_ROUNDS), page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("## Run `t1`") == 1


def test_publishing_needs_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here")
    with pytest.raises(BenchmarkError, match="no place"):
        publish(document(THREE_ROUNDS), page)


def test_figures_of_messages() -> None:
    figures = traffic_figures(MQLOAD_FIGURES | {"kafka_cpu_s": 0.02, "missing": -3})
    assert figures["p50_ms"] == 0.8
    assert figures["p99_ms"] == 3.5
    assert figures["kafka_cpu_us"] == pytest.approx(5.0)
    assert figures["lost"] == 0
    assert "kafka_cpu_us" not in traffic_figures(MQLOAD_FIGURES)


def test_figures_of_nothing_delivered() -> None:
    nothing = {"delivered_per_s": 0.0, "lat_us": None, "total_delivered": 0, "missing": 9, "kafka_cpu_s": 0.1}
    lacking = {key: value for key, value in MQLOAD_FIGURES.items() if key != "broker_cpu_us_per_delivered"}
    figures = traffic_figures(lacking | nothing)
    assert figures["lost"] == 9
    assert not {"cpu_us", "p50_ms", "kafka_cpu_us"} & figures.keys()


def test_figures_of_connections() -> None:
    figures = idle_figures(
        {"conns": 5_000, "rss_kb_per_conn": 4.5, "broker_cpu_us_per_connect": 250.0, "connects_per_s": 2_000}
    )
    assert figures["connects_per_core_s"] == 4_000


def test_the_generators_are_told_the_same() -> None:
    scenario = next(each for each in SCENARIOS if each.name == "fan-in")
    words = mqload_arguments(FakeBroker(), scenario, Timing(3.0, 1.0), "r1")
    told = dict(zip(words[::2], words[1::2], strict=True))
    assert told["-user"] == "bench"
    assert told["-pubs"] == "50"
    assert told["-filter"] == "bench/in/+"
    assert told["-dur"] == "3.0s"
    spec = orjson.loads(client_arguments(FakeBroker(), scenario, Timing(3.0, 1.0), "r1"))
    assert spec["load"]["topic_filter"] == told["-filter"]
    assert spec["load"]["publishers"] == 50
    assert (spec["host"], spec["port"]) == ("127.0.0.1", 1883)
    idle = mqload_arguments(FakeBroker(), scenario.with_connections(7), Timing(3.0, 1.0), "r1")
    assert idle[idle.index("-conns") + 1] == "7"


def test_our_rules_let_every_scenario_through_and_are_checked() -> None:
    acl, limits = Acl(load_rules(ACL)), load_limits(LIMITS)
    client = Principal("bench", "c1", "127.0.0.1")
    for scenario in SCENARIOS:
        assert acl.may_publish(client, scenario.load.topic_name.replace("{i}", "7"))
        assert acl.may_subscribe(client, scenario.load.topic_filter.replace("{i}", "7")) or scenario.connections
    assert not acl.may_publish(client, "bench/secret/x")
    assert limits.messages_per_s == 0
    assert set(BROKERS) == {HEADWATER, MOSQUITTO, AMQTT}
