"""`$replay/<from>[/<to>]/<topic filter>` taken apart."""

from __future__ import annotations

import pytest

from schemas.errors import TopicError
from schemas.replay_filter import ReplayFilter, parse_replay
from schemas.replay_range import position_token
from schemas.topics import check_topic_filter

TOKEN = position_token({("mqtt.sensors", 3): 1_000_000, ("mqtt.sensors.q2", 3): 0}, 1)


@pytest.mark.parametrize(
    ("topic_filter", "parts"),
    [
        ("$replay/-1h/sensors/#", ReplayFilter("-1h", None, "sensors/#")),
        ("$replay/-1h/-5m/sensors/#", ReplayFilter("-1h", "-5m", "sensors/#")),
        ("$replay/-1h/now/a", ReplayFilter("-1h", "now", "a")),
        ("$replay/beginning/end/a", ReplayFilter("beginning", None, "end/a")),
        ("$replay/1795248000/17/temp", ReplayFilter("1795248000", None, "17/temp")),
        (
            "$replay/2026-11-21T08:00Z/2026-11-21T09:00Z/+/b",
            ReplayFilter("2026-11-21T08:00Z", "2026-11-21T09:00Z", "+/b"),
        ),
        ("$replay/-1h/now", ReplayFilter("-1h", None, "now")),
        (f"$replay/{TOKEN}/a", ReplayFilter(TOKEN, None, "a")),
        ("$replay/-1h//a", ReplayFilter("-1h", None, "/a")),
    ],
)
def test_parts(topic_filter: str, parts: ReplayFilter) -> None:
    assert parse_replay(topic_filter) == parts
    check_topic_filter(topic_filter)


@pytest.mark.parametrize("topic_filter", ["a/b", "replay/-1h/a", "$replays/-1h/a", "$replay"])
def test_others_are_ordinary(topic_filter: str) -> None:
    assert parse_replay(topic_filter) is None


@pytest.mark.parametrize(
    "topic_filter",
    ["$replay/", "$replay/-1h", "$replay/-1h/", "$replay/yesterday/a", "$replay/+/a", "$replay/#", "$replay//a",
     "$replay/-1h/$share/g/a", "$replay/-1h/$replay/-1h/a", "$share/g/$replay/-1h/a", "$replay/-1h/a#"],
)  # fmt: skip
def test_wrong_ones_are_refused(topic_filter: str) -> None:
    with pytest.raises(TopicError):
        check_topic_filter(topic_filter)
