"""Reading the data: times are right across time zones and midnight, and what is missing is left out."""

import csv
from datetime import UTC, date, datetime

import pytest

from edge.demo.dataset import Airport, load, read_airports, read_movements, read_observations
from schemas.errors import ConfigurationError

AIRPORTS = {
    "JFK": Airport(40.64, -73.78, -5, True),
    "LAX": Airport(33.94, -118.4, -8, True),
    "HNL": Airport(21.32, -157.92, -10, False),
}
FLIGHT = {
    "dep_time": "2355",
    "dep_delay": "-5",
    "arr_time": "318",
    "arr_delay": "2",
    "carrier": "B6",
    "flight": "23",
    "tailnum": "N536JB",
    "origin": "JFK",
    "dest": "LAX",
    "hour": "0",
    "minute": "0",
    "time_hour": "2013-01-02T05:00:00Z",
}


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def test_departure_and_arrival_across_midnight_and_three_hours_of_time_zones() -> None:
    departure, arrival = read_movements([FLIGHT], AIRPORTS)
    assert (departure.kind, departure.airport, departure.at_s) == ("departure", "JFK", utc("2013-01-02T04:55:00"))
    assert (arrival.kind, arrival.airport, arrival.at_s) == ("arrival", "LAX", utc("2013-01-02T11:18:00"))
    assert (arrival.flight, arrival.delay_min, arrival.latitude) == ("B623", 2, 33.94)


def test_daylight_saving_where_the_destination_has_it_and_where_not() -> None:
    summer = FLIGHT | {"time_hour": "2013-07-02T04:00:00Z"}
    assert [movement.at_s for movement in read_movements([summer], AIRPORTS)][1] == utc("2013-07-02T10:18:00")
    hawaii = summer | {"dest": "HNL"}
    assert [movement.at_s for movement in read_movements([hawaii], AIRPORTS)][1] == utc("2013-07-02T13:18:00")


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"tailnum": "NA"}, []),
        ({"dep_time": "NA", "dep_delay": "NA"}, []),
        ({"arr_time": "NA"}, ["departure"]),
        ({"arr_delay": "NA"}, ["departure"]),
    ],
)
def test_what_is_not_known_is_left_out(change: dict[str, str], kinds: list[str]) -> None:
    assert [movement.kind for movement in read_movements([FLIGHT | change], AIRPORTS)] == kinds


def test_observations_leave_out_missing_values_and_impossible_wind() -> None:
    names = [
        "origin",
        "time_hour",
        "temp",
        "dewp",
        "humid",
        "wind_dir",
        "wind_speed",
        "wind_gust",
        "precip",
        "pressure",
    ]
    row = dict.fromkeys([*names, "visib"], "NA") | {
        "origin": "EWR",
        "time_hour": "2013-02-12T08:00:00Z",
        "temp": "39.02",
    }
    assert [each.readings for each in read_observations([row | {"wind_speed": "1048.36"}])] == [{"temp": 39.02}]
    (calm,) = read_observations([row | {"wind_speed": "10.5"}])
    assert calm.readings == {"temp": 39.02, "wind_speed": 10.5}
    assert (calm.station, calm.at_s) == ("EWR", utc("2013-02-12T08:00:00"))


def test_airports_are_completed() -> None:
    lines = "faa,name,lat,lon,alt,tz,dst,tzone\nPHX,Phoenix,33.4,-112.0,1135,-7,N,America/Phoenix\n".splitlines()
    airports = read_airports(lines)
    assert airports["PHX"] == Airport(33.4, -112.0, -7, False)
    assert airports["SJU"].utc_offset_h == -4
    assert next(csv.reader(lines))[0] == "faa"


def test_the_real_data_has_three_stations_and_four_thousand_aircraft() -> None:
    dataset = load(days=2)
    assert dataset.stations == ("EWR", "JFK", "LGA")
    assert len(dataset.tail_numbers) == 4_043
    assert len(dataset.observations) == 124
    assert 3_000 < len(dataset.movements) < 3_600
    assert [movement.at_s for movement in dataset.movements] == sorted(movement.at_s for movement in dataset.movements)
    assert {movement.kind for movement in dataset.movements} == {"departure", "arrival"}


def test_another_year_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="2013"):
        load(date(2020, 1, 1), 1)
