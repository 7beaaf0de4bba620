"""The schedule: times divided by the speed, the busiest aircraft first, and payloads that can be checked."""

import orjson
import pytest

from edge.demo.dataset import DAY_S, Dataset, Movement, Observation
from edge.demo.schedule import Schedule, days_needed, payload_of, plan, sequence_of

START_S = 1_357_016_400


def movement(tail_number: str, at_s: int) -> Movement:
    return Movement(START_S + at_s, tail_number, "departure", "JFK", "B61", "JFK", "LAX", 40.6, -73.8, 3)


DATASET = Dataset(
    observations=tuple(Observation(START_S + hour * 3_600, "JFK", {"temp": float(hour)}) for hour in range(24)),
    movements=(movement("N1", 60), movement("N2", 120), movement("N2", 7_200)),
    tail_numbers=("N1", "N2", "N3"),
)


def times(schedule: Schedule) -> list[float]:
    return [planned.at_s for planned in schedule.planned()]


def test_stations_first_then_the_busiest_aircraft_and_those_that_rest() -> None:
    assert plan(DATASET, 1).devices == ("JFK", "N2", "N1", "N3")
    schedule = plan(DATASET, 1, DAY_S, devices_max=2)
    assert schedule.devices == ("JFK", "N2")
    assert {planned.device for planned in schedule.planned()} == {"JFK", "N2"}


def test_times_are_the_data_s_divided_by_the_speed() -> None:
    schedule = plan(DATASET, 10, 3_600)
    assert times(schedule)[:3] == [0.0, 60 / 3_600, 120 / 3_600]
    assert times(schedule) == sorted(times(schedule))
    assert max(times(schedule)) <= 10
    assert schedule.simulated_s(2.0) == START_S + 7_200


def test_a_run_longer_than_the_data_starts_over() -> None:
    names = [planned.topic_name for planned in plan(DATASET, 2.5, DAY_S).planned()]
    assert names.count("sensors/aircraft/N1/movement") == 3
    at = times(plan(DATASET, 2.5, DAY_S))
    assert at == sorted(at)


def test_topic_names_and_payloads() -> None:
    first, second = list(plan(DATASET, 10, 3_600).planned())[:2]
    assert first.topic_name == "sensors/weather/JFK"
    assert orjson.loads(payload_of(first, 1, 5.0)) == {
        "device": "JFK",
        "temp": 0.0,
        "id": "JFK-1",
        "ts": 5.0,
        "observed_at": "2013-01-01T05:00:00Z",
    }
    assert second.topic_name == "sensors/aircraft/N1/movement"
    body = orjson.loads(payload_of(second, 7, 12.3456))
    assert (body["event"], body["position"], body["observed_at"]) == (
        "departure",
        [40.6, -73.8],
        "2013-01-01T05:01:00Z",
    )
    numbers = {name for name, value in body.items() if isinstance(value, int | float)}
    assert numbers == {"delay_min", "ts"}, "what is a number is a metric in Spark"
    assert sequence_of(payload_of(second, 7, 12.3456)) == ("N1", 7, 12.346)


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"id": 3, "ts": 1}', b'{"id": "N1-x", "ts": 1}', b'"N1-1"'])
def test_other_payloads_are_not_the_demo_s(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of the demo"):
        sequence_of(payload)


def test_days_and_wrong_sizes() -> None:
    assert [days_needed(60, 17_280), days_needed(1, 1), days_needed(3_600, 17_280)] == [12, 1, 365]
    with pytest.raises(ValueError, match="above 0"):
        plan(DATASET, 0)
    with pytest.raises(ValueError, match="at least 2 devices"):
        plan(DATASET, 1, devices_max=1)
