"""Rows of the archive, and the files that a batch and a compaction make of them: no Kafka."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from support.frames import assert_rows

from schemas.routes import DEFAULT_ROUTES
from spark_streaming.archive_files import leaves, place_batch, visible_files
from spark_streaming.jobs import archive as job
from spark_streaming.progress import Reporter
from spark_streaming.sources.archive import read_archive
from spark_streaming.transforms.archive import archive_rows

SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int, offset long, timestamp timestamp"
)
AT = datetime(2026, 6, 1, 12, 5, 0, tzinfo=UTC)


def records(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA)


def message(name: str, value: bytes | None, kafka_topic: str, offset: int, *more: tuple[str, bytes]) -> tuple[Any, ...]:
    return (b"k", value, [("mqtt.topic", name.encode()), *more], kafka_topic, 1, offset, AT)


def test_a_row_has_everything_of_a_message(spark: SparkSession) -> None:
    full = message(
        "sensors/oslo/t1/temp",
        b'{"c": 21.5}',
        "mqtt.sensors.q2",
        7,
        ("mqtt.qos", b"2"),
        ("mqtt.retain", b"1"),
        ("mqtt.client_id", b"t1"),
        ("mqtt.expiry_s", b"60"),
        ("content-type", b"application/json"),
        ("mqtt.response_topic", b"answers"),
        ("mqtt.correlation_data", b"\x01\xff"),
        ("mqtt.payload_format", b"1"),
        ("mqtt.user.unit", b"C"),
        ("mqtt.user.unit", b"F"),
        ("other", b"x"),
    )
    found = archive_rows(records(spark, full), DEFAULT_ROUTES).withColumn("json", fn.to_json("json"))
    headers = [(name, bytes(value)) for name, value in full[2]]
    row = (
        "sensors/oslo/t1/temp",
        ["sensors", "oslo", "t1", "temp"],
        "oslo/t1",
        *("t1", 2, True, 60, "application/json", "answers", b"\x01\xff", 1),
        [("unit", "C"), ("unit", "F")],
        b'{"c": 21.5}',
        '{"c":21.5}',
        b"k",
        headers,
        *("mqtt.sensors.q2", 1, 7, AT, "2026-06-01", "12", "mqtt.sensors"),
    )
    assert_rows(found, [row])


def test_plain_and_unreadable_records_are_archived_too(spark: SparkSession) -> None:
    rows = archive_rows(
        records(
            spark,
            (b"nolevels", b"ON", None, "mqtt.sensors", 0, 0, AT),  # a Kafka producer's: the key gives no Topic Name
            (b"a/b", b"\xff\xfe", [], "mqtt.messages", 0, 1, AT),  # the key is the Topic Name
            message("a", None, "mqtt.messages", 2),
            message("a", b"{bad", "mqtt.messages", 3, ("mqtt.qos", b"nine")),
            message("a", b"[1]", "mqtt.messages", 4, ("mqtt.client_id", b"\xff")),
        ),
        DEFAULT_ROUTES,
    )
    found = [
        tuple(row) for row in rows.select("topic_name", "qos", "client_id", "payload", fn.to_json("json")).collect()
    ]
    assert found == [
        (None, 1, None, b"ON", None),
        ("a/b", 1, None, b"\xff\xfe", None),
        ("a", 1, None, None, None),
        ("a", 1, None, b"{bad", None),
        ("a", 1, None, b"[1]", "[1]"),
    ]


def test_batches_and_a_compaction_read_as_one_table(spark: SparkSession, tmp_path: Path) -> None:
    options = job.read_options(["--archive", str(tmp_path / "archive"), "--checkpoint", str(tmp_path / "checkpoint")])
    options = replace(options, open_hours=1)
    expected = set()
    for number in (0, 1, 1):  # the second batch twice
        rows = [
            message(f"{route}/s/d/{number}", b'{"n": %d}' % number, f"mqtt.{route}{twin}", number, ("mqtt.qos", b"0"))
            for route in ("sensors", "messages")
            for twin in ("", ".q2")
        ]
        expected |= {(row[3], row[5]) for row in rows}
        staged = options.archive / "_staging" / str(number)
        job.write_folders(archive_rows(records(spark, *rows), DEFAULT_ROUTES), staged)
        assert place_batch(options.archive, staged, number) == 2
    commits = options.common.checkpoint / "results" / "commits"
    commits.mkdir(parents=True)
    (commits / "1").touch()

    def table() -> list[tuple[Any, ...]]:
        found = read_archive(spark, options.archive)
        number = fn.expr("variant_get(json, '$.n', 'int')")
        return sorted(
            tuple(row) for row in found.select("kafka_topic", "kafka_offset", number, "route", "hour").collect()
        )

    before = table()
    assert {row[:2] for row in before} == expected
    assert len(before) == len(expected)
    assert all(row[1] == row[2] and row[0].startswith(row[3]) for row in before)
    assert len(visible_files(options.archive)) == 4
    for compacted in (2, 0):
        assert job.compact(spark, options, Reporter("archive", as_json=True)) == compacted
        assert len(visible_files(options.archive)) == 2
        assert table() == before
    assert sum(len(leaf.stale) for leaf in leaves(options.archive)) == 4  # readers may have them open
