"""The pure transforms, without Kafka: payloads, event time, names, windows, results."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from schemas.routes import Route
from spark_streaming.anomaly.rules import Range
from spark_streaming.durations import Duration
from spark_streaming.transforms.anomaly import alert_records, arrivals, out_of_range
from spark_streaming.transforms.device_stats import ReadingRules, faulty, parsed, readings
from spark_streaming.transforms.naming import filter_pattern
from spark_streaming.transforms.results import dead_letters, stats_records
from spark_streaming.transforms.windows import Windows, device_windows, with_heartbeat, without_heartbeat

SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int, offset long, timestamp timestamp"
)
INGEST = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
TOPIC = ("mqtt.topic", b"sensors/site/dev/state")


def record(
    value: bytes | str | None,
    headers: Sequence[tuple[str, bytes | None]] | None = (TOPIC,),
    *,
    key: bytes | None = b"site/dev",
    kafka_topic: str = "mqtt.sensors",
    offset: int = 0,
    ingest: datetime = INGEST,
) -> tuple[Any, ...]:
    raw = value.encode() if isinstance(value, str) else value
    return (key, raw, None if headers is None else list(headers), kafka_topic, 0, offset, ingest)


def frame(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA)


def read(spark: SparkSession, rules: ReadingRules, *rows: tuple[Any, ...]) -> list[tuple[str, str, float]]:
    found = readings(parsed(frame(spark, *rows), rules), rules).select("device", "metric", "value").collect()
    return sorted((row.device, row.metric, row.value) for row in found)


def reasons(spark: SparkSession, rules: ReadingRules, *rows: tuple[Any, ...]) -> list[tuple[int, str]]:
    return sorted((row.offset, row.reason) for row in faulty(parsed(frame(spark, *rows), rules)).collect())


def test_payloads_are_read_leniently(spark: SparkSession) -> None:
    payloads: list[tuple[str | bytes | None, dict[str, float]]] = [
        ('{"t": 21.5, "h": 40}', {"t": 21.5, "h": 40.0}),
        ("21.5", {"value": 21.5}),
        (" -3e2 ", {"value": -300.0}),
        ('{"gps": {"lat": 1, "deep": {"x": 1}}, "n": 1}', {"gps.lat": 1.0, "n": 1.0}),
        ('{"on": true, "name": "x", "none": null, "list": [1], "text": "7.5"}', {"text": 7.5}),
        ('{"big": 1e400, "nan": NaN, "inf": -Infinity, "ok": 1}', {"ok": 1.0}),
        ('{"ts": 1780315200, "time": 5, "timestamp": "x", "v": 2}', {"v": 2.0}),
        ('{"v": 12345678901234567890123}', {"v": 1.2345678901234568e22}),
        ("{}", {}),
        ('["valid", "but", "no", "object"]', {}),
        ('"text"', {}),
        ("", {}),
        (None, {}),
        (json.dumps({"m" * 129: 1, "m" * 128: 2}), {"m" * 128: 2.0}),
        (json.dumps({"a/b#+": 1}), {"a/b#+": 1.0}),
    ]
    rules = ReadingRules(device_levels=(2, 2))
    rows = [
        record(value, [("mqtt.topic", f"x/{number}".encode())], offset=number)
        for number, (value, _) in enumerate(payloads)
    ]
    expected = sorted(
        (str(number), metric, value) for number, (_, found) in enumerate(payloads) for metric, value in found.items()
    )
    assert read(spark, rules, *rows) == expected
    assert reasons(spark, rules, *rows) == []


def test_one_payload_makes_a_bounded_number_of_rows(spark: SparkSession) -> None:
    assert len(read(spark, ReadingRules(), record(json.dumps({f"m{n}": n for n in range(1000)})))) == 256


def test_unreadable_records_say_why(spark: SparkSession) -> None:
    rows = [
        record("{bad", offset=1),
        record(b"\xff\xfe", offset=2),
        record("ON", offset=3),
        record("1e400", offset=4),
        record("1", [("mqtt.topic", b"a/+/b")], key=None, offset=5),
        record("1", None, key=None, offset=6),
        record("not ours", [TOPIC, ("content-type", b"text/plain")], offset=7),
        record("{bad", [TOPIC, ("content-type", b"application/json")], offset=8),
    ]
    no_name = "no readable mqtt.topic header, and the key gives no Topic Name"
    no_json = "payload is not JSON"
    assert reasons(spark, ReadingRules(), *rows) == [
        (1, no_json),
        (2, no_json),
        (3, no_json),
        (4, "number is beyond a double's range"),
        (5, no_name),
        (6, no_name),
        (8, no_json),
    ]
    assert read(spark, ReadingRules(), *rows) == []


TIMES = [
    ('"ts": "2026-06-01T11:59:00Z"', INGEST - timedelta(seconds=60)),
    ('"time": "2026-06-01T13:59:00.5+02:00"', INGEST - timedelta(seconds=59.5)),
    ('"timestamp": "2026-06-01 11:59:00"', INGEST - timedelta(seconds=60)),
    ('"ts": 1780315140', INGEST - timedelta(seconds=60)),
    ('"ts": 1780315140.25', INGEST - timedelta(seconds=59.75)),
    ('"ts": 1780315140250', INGEST - timedelta(seconds=59.75)),
    ('"ts": 1780315140250000', INGEST - timedelta(seconds=59.75)),
    ('"ts": "1780315140"', INGEST - timedelta(seconds=60)),
    ('"ts": "nonsense", "time": 1780315140', INGEST - timedelta(seconds=60)),
    ('"ts": "12:30"', INGEST),
    ('"ts": 35.2', INGEST),
    ('"ts": true', INGEST),
    ('"ts": "2026-06-01T12:00:10Z"', INGEST + timedelta(seconds=10)),
    ('"ts": "2026-06-01T12:00:11Z"', INGEST),
    ('"ts": "2099-01-01T00:00:00Z"', INGEST),
    ('"ts": "2013-01-01T00:00:00Z"', datetime(2013, 1, 1, tzinfo=UTC)),
]


def test_event_time(spark: SparkSession) -> None:
    rules = ReadingRules()
    rows = [record('{"v": 1, ' + field + "}", offset=number) for number, (field, _) in enumerate(TIMES)]
    found = readings(parsed(frame(spark, *rows), rules), rules).selectExpr("offset", "unix_millis(event_time) AS at")
    expected = [(number, round(moment.timestamp() * 1000)) for number, (_, moment) in enumerate(TIMES)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, "offset long, at long"))


def test_bad_clocks_can_be_quarantined(spark: SparkSession) -> None:
    rules = ReadingRules(quarantine_ahead=True, behind_max=Duration(1, "h"))
    rows = [
        record('{"ts": "2026-06-01T12:00:11Z", "v": 1}', offset=1),
        record('{"ts": "2026-06-01T10:59:59Z", "v": 1}', offset=2),
        record('{"ts": "2026-06-01T11:30:00Z", "v": 1}', offset=3),
    ]
    assert reasons(spark, rules, *rows) == [
        (1, "event time is over 10s ahead of ingest time"),
        (2, "event time is over 1h behind ingest time"),
    ]
    assert len(read(spark, rules, *rows)) == 1
    assert reasons(spark, ReadingRules(use_ingest_time=True, quarantine_ahead=True), *rows) == []


def test_devices_and_names(spark: SparkSession) -> None:
    routes = (
        Route("sensors/{site}/{device}/#", "mqtt.sensors", key="{site}/{device}"),
        Route("planes/{tail}/+", "mqtt.planes", key="{tail}"),
        Route("#", "mqtt.messages"),
    )
    rows = [
        record("1", [("mqtt.topic", b"sensors/a/b/c/d")]),
        record("2", [("mqtt.topic", b"planes/N1/pos")], kafka_topic="mqtt.planes"),
        record("3", [("mqtt.topic", b"other/x/y")], kafka_topic="mqtt.messages"),
        record("4", [("mqtt.topic", b"alone")], kafka_topic="mqtt.messages"),
        record("5", None, key=b"s/d"),
        record("6", None, key=b"some/name", kafka_topic="mqtt.messages"),
        record("7", [("mqtt.topic", b"old"), ("mqtt.topic", "nu/é".encode())], kafka_topic="mqtt.messages"),
        record("8", [("mqtt.topic", b"$SYS/load")], kafka_topic="mqtt.messages"),
    ]
    found = read(spark, ReadingRules(routes=routes), *rows)
    assert [(device, value) for device, _, value in found] == [
        ("N1", 2.0),
        ("a/b", 1.0),
        ("alone", 4.0),
        ("name", 6.0),
        ("s/d", 5.0),
        ("x/y", 3.0),
        ("é", 7.0),
    ]
    chosen = read(spark, ReadingRules(routes=routes, topic_filters=("sensors/#", "+/x/+")), *rows)
    assert [value for _, _, value in chosen] == [1.0, 5.0, 3.0]
    first = read(spark, ReadingRules(routes=routes, device_levels=(1, 2)), rows[0])
    assert first[0][0] == "sensors/a"


def test_filter_patterns() -> None:
    import re

    def hit(topic_filter: str, name: str) -> bool:
        return re.search(filter_pattern(topic_filter), name) is not None

    assert all(hit(f, n) for f, n in [("a/#", "a"), ("a/#", "a/b/c"), ("+/b", "/b"), ("#", "x"), ("a.b/+", "a.b/")])
    assert not any(hit(f, n) for f, n in [("a/#", "ab"), ("+", "a/b"), ("a.b", "aXb"), ("a/+", "a")])


READING = (
    "device string, metric string, value double, event_time timestamp, kafka_topic string, partition int, offset long"
)


def test_windows_and_the_last_value(spark: SparkSession) -> None:
    def reading(value: float, second: int, offset: int, metric: str = "t") -> tuple[Any, ...]:
        return ("d", metric, float(value), INGEST + timedelta(seconds=second), "k", 0, offset)

    rows = [
        reading(5, 3, 9),
        reading(1, 9, 1),
        reading(2, 9, 2),
        reading(7, 0, 3),
        reading(4, 10, 4),
        reading(1, 0, 5, "h"),
    ]
    windows = Windows(Duration(10, "s"), Duration(10, "s"), percentiles=(50, 99))
    found = device_windows(spark.createDataFrame(rows, READING), windows).collect()
    assert {row.window_end - row.window_start for row in found} == {timedelta(seconds=10)}

    def second(moment: datetime) -> float:
        return (moment.replace(tzinfo=UTC) - INGEST).total_seconds()

    groups = {(row.metric, second(row.window_start)): row for row in found}
    statistics = ("count", "min", "max", "mean", "p50", "p99", "last")
    assert {group: tuple(row[name] for name in statistics) for group, row in groups.items()} == {
        ("t", 0.0): (4, 1.0, 7.0, 3.75, 2.0, 7.0, 2.0),
        ("t", 10.0): (1, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0),
        ("h", 0.0): (1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    }
    assert {group: second(row.last_at) for group, row in groups.items()} == {("t", 0): 9, ("t", 10): 10, ("h", 0): 0}
    assert groups["t", 0.0].stddev == pytest.approx(2.754, abs=0.001)
    assert groups["h", 0.0].stddev is None


def test_sliding_windows_overlap(spark: SparkSession) -> None:
    rows = [("d", "t", float(n), INGEST + timedelta(seconds=n), "k", 0, n) for n in (0, 7, 12)]
    windows = Windows(Duration(10, "s"), Duration(0, "s"), slide=Duration(5, "s"))
    found = device_windows(spark.createDataFrame(rows, READING), windows)
    counted = found.selectExpr("unix_seconds(window_start) - 1780315200 AS start", "`count`", "last").collect()
    assert sorted(map(tuple, counted)) == [(-5, 1, 0.0), (0, 2, 7.0), (5, 2, 12.0), (10, 1, 12.0)]
    assert windows.label == "10s-5s"


def test_windows_end_when_nobody_sends(spark: SparkSession, tmp_path: Path) -> None:
    """One reading, then nothing: only the heartbeat moves the watermark, and it is in no result."""
    now = datetime.now(UTC)
    rows = [("d", "t", 1.0, now, "k", 0, 0)]
    spark.createDataFrame(rows, READING).write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema(READING).parquet(str(tmp_path / "in"))
    windows = Windows(Duration(1, "s"), Duration(0, "s"))
    stats = without_heartbeat(device_windows(with_heartbeat(source, Duration(1, "s")), windows))
    writer = stats.writeStream.format("memory").queryName("ended").outputMode("append")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="500 milliseconds")
    running = query.start()
    try:
        deadline = time.monotonic() + 40
        while not spark.table("ended").count():
            assert running.exception() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert [row.device for row in spark.table("ended").collect()] == ["d"]
    finally:
        running.stop()


def test_results_are_messages(spark: SparkSession) -> None:
    rows = [("a/b", "rel/hum+#", 1.5, INGEST, "k", 0, 0)]
    windows = Windows(Duration(1, "m"), Duration(0, "s"), percentiles=(95,))
    stats = device_windows(spark.createDataFrame(rows, READING), windows)
    first, again = (stats_records(stats, windows, final=False).collect()[0] for _ in range(2))
    assert (first.topic, bytes(first.key)) == ("mqtt.analytics", b"a/b")
    assert {one.key: bytes(one.value).decode() for one in first.headers} == {
        "mqtt.topic": "analytics/stats/1m/rel_hum__/a/b",
        "content-type": "application/json",
        "mqtt.user.id": json.loads(bytes(again.value))["id"],
        "mqtt.user.window_start": "2026-06-01T12:00:00.000Z",
        "mqtt.user.window_end": "2026-06-01T12:01:00.000Z",
        "mqtt.user.watermark": "0s",
        "mqtt.user.emit": "early",
    }
    body = json.loads(bytes(first.value))
    assert body.pop("id") == json.loads(bytes(again.value))["id"]
    assert body == {
        "device": "a/b",
        "metric": "rel/hum+#",
        "window_start": "2026-06-01T12:00:00.000Z",
        "window_end": "2026-06-01T12:01:00.000Z",
        "count": 1,
        "min": 1.5,
        "max": 1.5,
        "mean": 1.5,
        "p95": 1.5,
        "last": 1.5,
        "last_at": "2026-06-01T12:00:00.000Z",
        "final": False,
    }


def test_messages_of_a_device_for_its_state(spark: SparkSession) -> None:
    rows = [
        record('{"ts": 1780315140, "t": 21.5}', [("mqtt.topic", b"x/dev")], offset=1),
        record("ON", [("mqtt.topic", b"x/dev")], offset=2),  # no number, but a sign of life
        record("5", None, key=None, offset=3),  # nobody's
    ]
    rules = ReadingRules()
    found = sorted(arrivals(parsed(frame(spark, *rows), rules), rules).collect(), key=lambda row: row.offset)
    ingest_ms = round(INGEST.timestamp() * 1000)
    assert [(row.device, row.offset, row.ingest_ms, row.event_ms) for row in found] == [
        ("dev", 1, ingest_ms, 1_780_315_140_000),
        ("dev", 2, ingest_ms, ingest_ms),
    ]
    assert [[(one.metric, one.value) for one in row.metrics] for row in found] == [[("t", 21.5)], []]


def test_out_of_range_without_state(spark: SparkSession) -> None:
    values = [("t", 5.0), ("t", 11.0), ("h", -1.0), ("x", 99.0), ("x", 101.0)]
    rows = [("a/b", metric, value, INGEST, "k", 0, offset) for offset, (metric, value) in enumerate(values)]
    ranges = {"t": Range(0, 10), "h": Range(0, None), "*": Range(None, 100)}
    alerts = out_of_range(spark.createDataFrame(rows, READING), ranges)
    found = sorted(alert_records(alerts).collect(), key=lambda row: bytes(row.value))
    bodies = [json.loads(bytes(row.value)) for row in found]
    assert {(body["metric"], body["value"]) for body in bodies} == {("t", 11.0), ("h", -1.0), ("x", 101.0)}
    headers = {one.key: bytes(one.value).decode() for one in found[0].headers}
    assert headers == {
        "mqtt.topic": "analytics/alerts/range/a/b",
        "content-type": "application/json",
        "mqtt.user.id": bodies[0]["id"],
        "mqtt.user.state": "out",
    }
    assert len({body["id"] for body in bodies}) == 3


def test_dead_letters_keep_the_record(spark: SparkSession) -> None:
    rows = frame(
        spark, record("{bad", [TOPIC, ("x", b"1"), ("x", None)], offset=7), record("?", None, key=b"a/b", offset=8)
    )
    first, second = sorted(
        dead_letters(faulty(parsed(rows, ReadingRules()))).collect(), key=lambda row: bytes(row.value)
    )[::-1]
    assert (bytes(first.key), bytes(first.value), first.topic) == (b"site/dev", b"{bad", "mqtt.dead_letter")
    assert [(one.key, one.value and bytes(one.value)) for one in first.headers] == [
        TOPIC,
        ("x", b"1"),
        ("x", None),
        ("headwater.reason", b"payload is not JSON"),
        ("headwater.source", b"mqtt.sensors/0/7"),
    ]
    assert [one.key for one in second.headers] == ["headwater.reason", "headwater.source"]
