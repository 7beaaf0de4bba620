"""Loss, latency and duplicates without Kafka: the fold, and the steps that Spark picks out."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.frames import assert_rows

from schemas.errors import ConfigurationError
from schemas.events import Event
from schemas.sampling import is_sampled, threshold
from spark_streaming.jobs.slo import read_options
from spark_streaming.slo.folding import Slo, Step, percentile
from spark_streaming.transforms.slo import slim, slo_records, steps

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

WINDOW_MS, WAIT_MS = 10_000, 5_000


def message(number: int, at_ms: int, *clients: tuple[str, int, int | None, int]) -> list[Step]:
    """A publish, and (client, QoS, delay of the acknowledgement, times delivered) of each client; delivered after
    10 ms."""
    position = f"m/0/{number}"
    found = [Step("published", "m", position, at_ms, at_ms=at_ms)]
    for client_id, qos, acknowledged_after_ms, times in clients:
        found += [Step("delivered", "m", position, at_ms, client_id, at_ms + 10, qos)] * times
        if acknowledged_after_ms is not None:
            at = at_ms + acknowledged_after_ms
            found.append(Step("acknowledged", "m", position, at_ms, client_id, at, qos))
    return found


MESSAGES = [
    *message(0, 0, ("a", 1, 20, 1), ("b", 0, None, 1)),
    *message(1, 5_000, ("a", 1, 90, 2)),
    *message(2, 9_999, ("a", 1, None, 1)),
    *message(3, 9_999),
    *message(4, 10_000, ("a", 2, 30, 1)),
]
CLOSED_MS = 10_000 + WAIT_MS


def test_a_window_is_closed_after_the_wait_and_counts_everything() -> None:
    slo = Slo(WINDOW_MS, WAIT_MS)
    assert slo.fold(MESSAGES, CLOSED_MS - 1) == []
    (found,) = slo.fold([], CLOSED_MS)
    assert found == {
        "id": "m/0",
        "route": "m",
        "window_start_ms": 0,
        "window_end_ms": 10_000,
        "published": 4,
        "without_delivery": 1,
        "deliveries": 4,
        "acknowledged": 2,
        "lost": 1,
        "loss": round(1 / 3, 6),
        "duplicates": 1,
        "delivered_p50_ms": 10,
        "delivered_p99_ms": 10,
        "acknowledged_p50_ms": 20,
        "acknowledged_p99_ms": 90,
        "late": 0,
        "left_out": 0,
    }
    assert list(slo.open) == ["m/0/4"]


def test_batches_in_any_cut_and_repeated_give_the_same(tmp_path: Path) -> None:
    whole = Slo(WINDOW_MS, WAIT_MS).fold(MESSAGES, CLOSED_MS)
    for seed in range(20):
        randomness = random.Random(seed)
        shuffled = randomness.sample(MESSAGES, len(MESSAGES))
        cuts = sorted(randomness.sample(range(len(shuffled)), 3))
        parts = [shuffled[start:end] for start, end in zip([0, *cuts], [*cuts, len(shuffled)], strict=True)]
        folder = tmp_path / str(seed)
        found: list[dict[str, Any]] = []
        for number, part in enumerate(parts):
            for _ in range(randomness.randint(1, 2)):  # killed before Spark has committed the batch
                slo = Slo(WINDOW_MS, WAIT_MS)
                slo.load(folder, number)
                found = slo.fold(part, CLOSED_MS if number == len(parts) - 1 else 0)
                slo.store(folder, number)
        assert found == whole
        assert len(list(folder.iterdir())) <= 3


def test_what_cannot_be_followed_is_counted() -> None:
    slo = Slo(WINDOW_MS, WAIT_MS, open_max=1)
    slo.fold(message(1, 0) + message(2, 1), 0)
    (found,) = slo.fold([], CLOSED_MS)
    assert (found["published"], found["left_out"]) == (1, 1)
    slo.fold(message(3, 20_000) + message(4, 500), CLOSED_MS)  # the second is of the closed window
    (found,) = slo.fold([], 35_000)
    assert (found["published"], found["late"]) == (1, 1)
    # without its publish, which was before the beginning of the job, a delivery counts nowhere
    slo.fold(message(5, 40_000, ("a", 1, 1, 1))[1:], 40_000)
    assert slo.fold([], 99_000) == []
    assert slo.open == {}


def test_percentiles() -> None:
    assert [percentile(list(range(1, 101)), percent) for percent in (50, 99, 100)] == [50, 99, 100]
    assert (percentile([7], 50), percentile([], 99)) == (7, None)


SCHEMA = "value binary, topic string, partition int, offset long, timestamp timestamp"


def test_spark_picks_the_sample_of_the_edges(spark: SparkSession) -> None:
    at = datetime(2026, 6, 1, tzinfo=UTC)
    at_ms = round(at.timestamp() * 1000)
    below = threshold(200)
    rows = [(b"x", "mqtt.a.q2", 3, offset, at) for offset in range(200)]
    detail = {"kafka_topic": "mqtt.a.q2", "partition": 3, "published_ms": at_ms, "qos": 2, "dup": False}
    picked = [offset for offset in range(200) if is_sampled("mqtt.a.q2", 3, offset, below)]
    left = next(offset for offset in range(200) if offset not in picked)
    for offset in (picked[0], left):
        event = Event("delivered", "c", "n", at_ms + 5, detail | {"offset": offset})
        rows.append((event.to_json(), "headwater.events", 0, offset, at))
    rows += [
        (Event("connected", "c", "n", 5).to_json(), "headwater.events", 0, 900, at),
        (Event("delivered", "c", "n", 5).to_json(), "headwater.events", 0, 901, at),
        (b"{bad", "headwater.events", 0, 902, at),
    ]
    expected = [("published", "mqtt.a", f"mqtt.a.q2/3/{offset}", at_ms, "", at_ms, 0) for offset in picked]
    expected.append(("delivered", "mqtt.a", f"mqtt.a.q2/3/{picked[0]}", at_ms, "c", at_ms + 5, 2))
    assert_rows(steps(slim(spark.createDataFrame(rows, SCHEMA)), below), expected)
    (record,) = slo_records(spark.createDataFrame([("mqtt.a", "{}")], "route string, body string")).collect()
    assert (record.headers[0]["value"], record.topic) == (b"analytics/slo/mqtt.a", "mqtt.analytics")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--sample", "0"], "--sample"), (["--window", "x"], "--window"), (["--trigger", "realtime:5m"], "micro-batches")],
)
def test_wrong_options_say_what_to_write(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read_options(arguments)
