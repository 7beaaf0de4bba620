"""What the demo publishes and when (pure): the data's own times, divided by a speed factor.

One simulated day of the data holds about 1,900 events, so that a speed of 17,280 (a day in five seconds) gives about
380 messages per second, with the lull of each night in it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil

import orjson

from edge.demo.dataset import DAY_S, Dataset, Movement, Observation

WEATHER_SITE = "weather"
AIRCRAFT_SITE = "aircraft"
TOPIC_FILTER = "sensors/#"
SPEED = 17_280.0

Body = dict[str, str | int | float | list[float]]


@dataclass(slots=True)
class Planned:
    """One message, ``at_s`` seconds after the start of the demo, without what is known only when it is sent."""

    at_s: float
    observed_s: int
    device: str
    topic_name: str
    body: Body


@dataclass(slots=True, frozen=True)
class Schedule:
    """Devices (stations first) and what happens to them, in order of time; after its end it starts over."""

    devices: tuple[str, ...]
    events: tuple[Observation | Movement, ...]
    seconds: float
    speed: float

    @property
    def start_s(self) -> int:
        """When the data begins, in seconds of UTC."""
        return self.events[0].at_s

    def planned(self) -> Iterator[Planned]:
        """The messages of the run; made one by one, because a long run has millions."""
        start_s = self.start_s
        span_s = (self.events[-1].at_s - start_s) // DAY_S * DAY_S + DAY_S
        for lap in range(ceil(self.seconds * self.speed / span_s)):
            for event in self.events:
                at_s = (event.at_s - start_s + lap * span_s) / self.speed
                if at_s > self.seconds:
                    return
                yield _planned(event, at_s)

    def simulated_s(self, elapsed_s: float) -> float:
        """The time of the data, in seconds of UTC, when the demo has run for ``elapsed_s``."""
        return self.start_s + elapsed_s * self.speed


def days_needed(seconds: float, speed: float) -> int:
    """How many days of the data a run replays; more than a year is not there: the run then repeats the year."""
    return max(1, min(365, ceil(seconds * speed / DAY_S)))


def plan(dataset: Dataset, seconds: float, speed: float = SPEED, devices_max: int | None = None) -> Schedule:
    """The schedule of a run: all stations, and as many of the busiest aircraft as ``devices_max`` leaves room for.

    Aircraft without a flight in the stretch are devices, too: connected and silent. After the end of the data it
    starts over.

    Raises:
        ValueError: a speed or duration of zero or less, or not one aircraft beside the stations.
    """
    if seconds <= 0 or speed <= 0:
        raise ValueError("the demo needs a speed and a duration above 0")
    stations = dataset.stations
    aircraft = _busiest(dataset, None if devices_max is None else devices_max - len(stations))
    if not aircraft:
        raise ValueError(f"the demo needs at least {len(stations) + 1} devices")
    chosen = frozenset(aircraft)
    events: list[Observation | Movement] = [*dataset.observations]
    events += [movement for movement in dataset.movements if movement.tail_number in chosen]
    events.sort(key=lambda event: event.at_s)
    return Schedule((*stations, *aircraft), tuple(events), seconds, speed)


def _busiest(dataset: Dataset, count: int | None) -> tuple[str, ...]:
    """Aircraft, those with most movements first; ties by name, so that a run can be repeated."""
    movements = Counter(movement.tail_number for movement in dataset.movements)
    ordered = sorted(dataset.tail_numbers, key=lambda tail_number: (-movements[tail_number], tail_number))
    return tuple(ordered if count is None else ordered[: max(0, count)])


def _planned(event: Observation | Movement, at_s: float) -> Planned:
    if isinstance(event, Observation):
        topic_name = f"sensors/{WEATHER_SITE}/{event.station}"
        return Planned(at_s, event.at_s, event.station, topic_name, {"device": event.station, **event.readings})
    body: Body = {
        "device": event.tail_number,
        "event": event.kind,
        "airport": event.airport,
        "flight": event.flight,
        "origin": event.origin,
        "destination": event.destination,
        "position": [event.latitude, event.longitude],
        "delay_min": event.delay_min,
    }
    topic_name = f"sensors/{AIRCRAFT_SITE}/{event.tail_number}/movement"
    return Planned(at_s, event.at_s, event.tail_number, topic_name, body)


def payload_of(planned: Planned, seq: int, now_ms: float) -> bytes:
    """The JSON of a message: its ``id`` (number per device, from 1), ``ts`` (wall clock, ms), the time in the data.

    ``ts`` is the event time for Spark: a device clock of 2013 is too far from the time of arrival. What is a number
    here is a metric there, so the number of the message and the position are not.
    """
    observed_at = datetime.fromtimestamp(planned.observed_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return orjson.dumps(
        {**planned.body, "id": f"{planned.device}-{seq}", "ts": round(now_ms, 3), "observed_at": observed_at}
    )


def sequence_of(payload: bytes) -> tuple[str, int, float]:
    """Device, number and ``ts`` of a payload that :func:`payload_of` made.

    Raises:
        ValueError: it is not one.
    """
    try:
        body = orjson.loads(payload)
        device, _, number = body["id"].rpartition("-")
        return device, int(number), float(body["ts"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a message of the demo: {payload[:80]!r}") from error
