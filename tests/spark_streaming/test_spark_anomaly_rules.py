"""One device's alerts: plain Python, no Spark; and the processor around it in pyspark's own tester."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from schemas.errors import ConfigurationError
from spark_streaming.anomaly.device import METRICS_MAX, SILENCE_MARGIN_MS, Device
from spark_streaming.anomaly.processor import AnomalyProcessor
from spark_streaming.anomaly.rules import Alert, Arrival, Range, Rules
from spark_streaming.jobs.anomaly import read_options, stateful_shape

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

BASE_MS = 1_780_000_000_000


def arrivals(*values: float, metric: str = "t", every_ms: int = 1000, first: int = 0) -> list[Arrival]:
    return [
        Arrival(
            f"k/0/{first + n}", BASE_MS + (first + n) * every_ms, BASE_MS + (first + n) * every_ms, ((metric, value),)
        )
        for n, value in enumerate(values)
    ]


def watch(rules: Rules, messages: list[Arrival]) -> list[Alert]:
    """As one run over the messages, and with the state written down and read again after every single one."""
    device, again = Device("d", rules), Device("d", rules)
    alerts: list[Alert] = []
    for message in messages:
        alerts += device.arrived(message)
        again.arrived(message)
        again = Device.from_json("d", rules, again.to_json())
    assert again.to_json() == device.to_json()
    return alerts


def short(alerts: list[Alert]) -> list[tuple[str, str, int]]:
    return [(alert.kind, alert.state, (alert.at_ms - BASE_MS) // 1000) for alert in alerts]


def test_out_of_range_is_raised_once_and_cleared_once() -> None:
    rules = Rules(ranges={"t": Range(0, 10)}, zscore=None, clear_after=2)
    alerts = watch(rules, arrivals(5, 11, 12, 5, 11, 5, 10, -1))
    assert short(alerts) == [("range", "raised", 1), ("range", "cleared", 6), ("range", "raised", 7)]
    assert alerts[0].id == alerts[1].id != alerts[2].id
    assert alerts[1].since_ms == BASE_MS + 1000
    assert "11 is outside 0..10" in alerts[0].reason


def test_a_metric_without_limits_of_its_own_takes_those_for_every_one() -> None:
    rules = Rules(ranges={"*": Range(None, 1), "t": Range(None, 100)}, zscore=None)
    assert short(watch(rules, arrivals(50))) == []
    assert short(watch(rules, arrivals(50, metric="x"))) == [("range", "raised", 0)]


def test_rate_of_change() -> None:
    rules = Rules(rates={"t": 2.0}, zscore=None, clear_after=1)
    assert short(watch(rules, arrivals(0, 1, 4, 4, 4))) == [("rate", "raised", 2), ("rate", "cleared", 3)]
    late = [*arrivals(0, 1), Arrival("k/0/9", BASE_MS + 5000, BASE_MS + 500, (("t", 99.0),))]
    assert short(watch(rules, late)) == []  # an event time before the last one gives no rate


def test_zscore_against_the_running_mean() -> None:
    randomness = random.Random(3)
    normal = [20 + randomness.gauss(0, 1) for _ in range(200)]
    alerts = watch(Rules(zscore=6.0), arrivals(*normal, 60, *normal[:20]))
    assert short(alerts) == [("zscore", "raised", 200), ("zscore", "cleared", 203)]
    shifted = watch(Rules(zscore=6.0), arrivals(*normal, *(value + 40 for value in normal * 3)))
    assert [alert.state for alert in shifted] == ["raised", "cleared"]  # it learns the new level in the end
    assert watch(Rules(), arrivals(*[21.0] * 100, 21.5)) == []  # a constant sensor's first small step


def test_stuck_value() -> None:
    rules = Rules(stuck_ms=3000, zscore=None)
    assert short(watch(rules, arrivals(1, 2, 2, 2, 2, 2, 3))) == [("stuck", "raised", 4), ("stuck", "cleared", 6)]


def test_silence_is_raised_by_the_clock_or_by_the_next_message() -> None:
    rules = Rules(silence_ms=5000, zscore=None)
    first, second = arrivals(1)[0], arrivals(1, first=20)[0]
    by_message = watch(rules, [first, second])
    device = Device("d", rules)
    device.arrived(first)
    wanted_ms = device.timer_wanted_ms()
    assert wanted_ms == BASE_MS + 5000 + SILENCE_MARGIN_MS
    assert device.time_passed(wanted_ms - 1) == []
    by_clock = device.time_passed(wanted_ms) + device.arrived(second)
    assert by_clock == by_message
    assert short(by_clock) == [("silence", "raised", 5), ("silence", "cleared", 20)]
    assert device.time_passed(wanted_ms) == []  # heard of since


def test_a_forgotten_device_clears_its_alerts() -> None:
    rules = Rules(ranges={"t": Range(0, 1)}, silence_ms=5000, forget_ms=60_000, zscore=None)
    device = Device("d", rules)
    raised = device.arrived(arrivals(2)[0]) + device.time_passed(BASE_MS + 10_000)
    assert device.timer_wanted_ms() == BASE_MS + 60_000
    assert not device.is_forgotten(BASE_MS + 59_999)
    cleared = device.time_passed(BASE_MS + 60_000)
    assert [(alert.kind, alert.id) for alert in cleared] == [(alert.kind, alert.id) for alert in raised]
    assert {alert.state for alert in cleared} == {"cleared"}


def test_the_state_of_a_device_is_bounded() -> None:
    device = Device("d", Rules())
    device.arrived(Arrival("k/0/0", BASE_MS, BASE_MS, tuple((f"m{n}", 1.0) for n in range(1000))))
    assert len(json.loads(device.to_json())["metrics"]) == METRICS_MAX


def row(message: Arrival) -> Row:
    _, partition, offset = message.position.split("/")
    return Row(
        kafka_topic="k",
        partition=int(partition),
        offset=int(offset),
        ingest_ms=message.ingest_ms,
        event_ms=message.event_ms,
        metrics=[Row(metric=name, value=value) for name, value in message.metrics],
    )


def kinds(rows: Any) -> list[tuple[str, str]]:
    return [(found.kind, found.state) for found in rows]


def test_the_processor_orders_remembers_and_rings() -> None:
    rules = Rules(ranges={"t": Range(0, 10)}, silence_ms=5000, forget_ms=60_000, zscore=None, clear_after=1)
    tester = TwsTester(AnomalyProcessor(rules, timers=True), timeMode="ProcessingTime")
    tester.setProcessingTime(BASE_MS)
    messages = arrivals(5, 11, 12)
    assert kinds(tester.test("d", [row(message) for message in reversed(messages)])) == [("range", "raised")]
    expected = watch(rules, messages)
    assert tester.setProcessingTime(BASE_MS + 8000) == []  # the timer of the first message: 2 s too early by now
    rang = tester.setProcessingTime(BASE_MS + 9000)
    assert kinds(rang) == [("silence", "raised")]
    heard = tester.test("d", [row(arrivals(3, first=10)[0])])
    assert kinds(heard) == [("silence", "cleared"), ("range", "cleared")]
    assert heard[1].id == expected[0].id
    assert json.loads(heard[1].body)["reason"] == "back to normal"
    assert kinds(tester.setProcessingTime(BASE_MS + 17_000)) == [("silence", "raised")]  # not the one for forgetting
    assert kinds(tester.setProcessingTime(BASE_MS + 70_000)) == [("silence", "cleared")]
    assert tester.peekValueState("device", "d") is None


def test_without_timers_the_next_message_shows_the_silence() -> None:
    tester = TwsTester(AnomalyProcessor(Rules(silence_ms=5000), timers=False))
    found = tester.test("d", [row(arrivals(1)[0]), row(arrivals(1, first=30)[0])])
    assert kinds(found) == [("silence", "raised"), ("silence", "cleared")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--range", "temp"], "temp=-20..60"),
        (["--range", "temp=9..1"], "temp=-20..60"),
        (["--range", "temp=nan..1"], "temp=-20..60"),
        (["--range", "temp=.."], "temp=-20..60"),
        (["--rate", "temp=fast"], "temp=2.5"),
        (["--zscore", "-1"], "between 0 and 1000"),
        (["--clear-after", "0"], "--clear-after"),
        (["--silence", "8d"], "shorter than --forget"),
        (["--trigger", "realtime"], "--range METRIC=LOW..HIGH"),
        (["--trigger", "realtime", "--range", "t=..1", "--silence", "1m"], "drop --silence"),
    ],
)
def test_wrong_options_say_what_to_write(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read_options(arguments)


def test_options() -> None:
    found = read_options(
        ["--range", "t=-1.5..", "--range", "*=..9", "--rate", "t=2", "--silence", "1m", "--zscore", "0"]
    )
    assert found.rules.ranges == {"t": Range(-1.5, None), "*": Range(None, 9.0)}
    assert (found.rules.rates, found.rules.silence_ms, found.rules.zscore) == ({"t": 2.0}, 60_000, None)
    assert stateful_shape(found) == stateful_shape(read_options(["--range", "t=..1"]))  # limits may change
