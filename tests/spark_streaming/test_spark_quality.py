"""The topic catalogue without Kafka: types, the fold, and what a batch says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.frames import assert_rows

from schemas.errors import ConfigurationError, RecordError
from schemas.families import FamilyEntry
from schemas.routes import DEFAULT_ROUTES
from spark_streaming.jobs import quality as job
from spark_streaming.quality.folding import FIELDS_MAX, Catalogue, Profile
from spark_streaming.quality.types import field_types, merged
from spark_streaming.transforms.quality import profiles

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

AT = datetime(2026, 6, 1, 12, 0, 10, tzinfo=UTC)
MINUTE = round(AT.timestamp()) // 60


def test_schemas_become_field_types() -> None:
    schema = "OBJECT<a: BIGINT, `b c`: OBJECT<`x``y`: DECIMAL(3,1), l: ARRAY<OBJECT<n: VOID>>>, d: DOUBLE, v: VARIANT>"
    assert field_types(schema) == {
        "": "object",
        "a": "number",
        "b c": "object",
        "b c.x`y": "number",
        "b c.l": "array",
        "b c.l[]": "object",
        "b c.l[].n": "null",
        "d": "number",
        "v": "mixed",
    }
    assert field_types("ARRAY<STRING>") == {"": "array", "[]": "text"}
    assert field_types("BOOLEAN") == {"": "boolean"}
    assert field_types("OBJECT<>") == {"": "object"}
    odd = (
        "OBJECT<``: VOID, `OBJECT<`: BIGINT, `a,b`: BIGINT, `a<b`: ARRAY<ARRAY<VARIANT>>, `n\nl`: DOUBLE, o: OBJECT<>>"
    )
    assert list(field_types(odd)) == ["", '""', "OBJECT<", "a,b", "a<b", "a<b[]", "a<b[][]", "n\nl", "o"]
    assert (merged("number", "null"), merged("null", "text"), merged("text", "number")) == ("number", "text", "mixed")


def profile(minute: int, schema: str | None, messages: int = 10, malformed: int = 0, family: str = "f") -> Profile:
    first_ms = minute * 60_000
    kinds = {"json": messages - malformed, "text": malformed}
    fault = "bad" if malformed else None
    return Profile(
        family, "mqtt.f", minute, messages, 100, malformed, kinds, first_ms, first_ms + 59_999, schema, fault
    )


def test_the_fold_counts_and_sees_drift() -> None:
    catalogue = Catalogue(families_max=10, forget_ms=86_400_000)
    catalogue.fold([profile(1, "OBJECT<a: BIGINT>"), profile(2, "OBJECT<a: BIGINT>", malformed=5)])
    catalogue.fold([profile(3, "OBJECT<a: STRING, b: BOOLEAN>"), profile(12, None)])
    (entry,) = catalogue.changed
    assert (entry.messages, entry.malformed, entry.error_share, entry.kinds) == (40, 5, 0.125, {"json": 35, "text": 5})
    assert entry.fields == {"": ["object", 3], "a": ["mixed", 3], "b": ["boolean", 3]}
    assert entry.drift == [
        {"minute": 3, "version": 2, "added": {"b": "boolean"}, "changed": {"a": ["number", "mixed"]}}
    ]
    assert (entry.minutes, entry.recent_error_share, entry.fault) == ([[12, 10, 0]], 0.0, "bad")
    assert entry.rate_per_s == pytest.approx(10 / 60, rel=0.01)
    again = FamilyEntry.from_json(entry.to_json())
    assert again == entry
    with pytest.raises(RecordError, match="missing"):
        FamilyEntry.from_json(b'{"version": 1}')


def test_the_catalogue_is_bounded() -> None:
    catalogue = Catalogue(families_max=1, forget_ms=3_600_000)
    names = ", ".join(f"k{number}: BIGINT" for number in range(FIELDS_MAX + 5))
    catalogue.fold([profile(1, f"OBJECT<{names}>"), profile(1, None, family="g")])
    (entry,) = catalogue.changed
    assert (len(entry.fields), entry.fields_left_out, catalogue.left_out) == (FIELDS_MAX, 6, 10)
    catalogue = Catalogue(families_max=5, forget_ms=3_600_000)
    catalogue.fold([profile(1, None), profile(100, None, family="g")])
    assert (catalogue.forgotten, list(catalogue.entries)) == (["f"], ["g"])


def test_a_repeated_batch_counts_once(tmp_path: Path) -> None:
    for number in (0, 1, 1, 2, 2, 3, 4):
        catalogue = Catalogue(families_max=10, forget_ms=3_600_000)
        catalogue.load(tmp_path, number)
        catalogue.fold([profile(number, "BIGINT")])
        catalogue.store(tmp_path, number)
    assert catalogue.entries["f"].messages == 50
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{number:012}.jsonl" for number in (2, 3, 4)]


def record(name: str | None, value: bytes | None, *headers: tuple[str, bytes], after_s: int = 0) -> tuple[Any, ...]:
    named = [("mqtt.topic", name.encode())] if name is not None else [("mqtt.topic", b"\xff")]
    return (b"", value, [*named, *headers], "mqtt.sensors.q2", 0, 0, AT + timedelta(seconds=after_s))


SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int, offset long, timestamp timestamp"
)


def test_what_a_batch_says_about_families(spark: SparkSession) -> None:
    rows = [
        record("sensors/oslo/t1/temp", b'{"c": 21.5}'),
        record("sensors/oslo/t2/temp", b'{"c": 3, "ok": true}', after_s=5),
        record("sensors/oslo/t2/temp", b'{"c": 4', after_s=60),
        record("sensors/oslo/t2/temp", b"ON", after_s=61),
        record("sensors/oslo/t2/temp", b"", after_s=61),
        record("sensors/oslo/t2/fw/image", b"\xff\x00"),
        record("plant/a/b", b"ON", ("content-type", b"application/json")),
        record("plant/a", b"\xff", ("mqtt.payload_format", b"1")),
        record(None, b"1"),
    ]
    frame = spark.createDataFrame(rows, SCHEMA)
    found = profiles(frame, DEFAULT_ROUTES, ["sensors/+/+/fw/#"]).select(
        *(
            "family",
            "minute",
            "kafka_topic",
            "messages",
            "payload_bytes",
            "malformed",
            "json",
            "text",
            "binary",
            "empty",
        ),
        *("schema", "fault"),
    )
    assert_rows(
        found,
        [
            (
                "sensors/+/+/#",
                MINUTE,
                "mqtt.sensors",
                2,
                31,
                0,
                2,
                0,
                0,
                0,
                "OBJECT<c: DECIMAL(21,1), ok: BOOLEAN>",
                None,
            ),
            (
                "sensors/+/+/#",
                MINUTE + 1,
                "mqtt.sensors",
                3,
                9,
                1,
                0,
                2,
                0,
                1,
                None,
                "it begins like JSON, but it is not",
            ),
            ("sensors/+/+/fw/#", MINUTE, "mqtt.sensors", 1, 2, 0, 0, 0, 1, 0, None, None),
            (
                *("plant/#", MINUTE, "mqtt.sensors", 2, 3, 2, 0, 1, 1, 0, None),
                "its Payload Format Indicator says UTF-8, but it is not",
            ),
            ("$unnamed", MINUTE, "mqtt.sensors", 1, 1, 1, 1, 0, 0, 0, "BIGINT", "no readable Topic Name"),
        ],
    )
    for row in profiles(frame, DEFAULT_ROUTES).collect():
        assert job.profile(row).messages == row.messages


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trigger", "realtime:5m"], "micro-batches"),
        (["--family", "a/#/b"], "--family"),
        (["--families-max", "0"], "--families-max"),
        (["--forget", "never"], "--forget"),
    ],
)
def test_wrong_options_say_what_to_write(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        job.read_options(arguments)
