"""`headwater replay` between logs in memory: every target, interruption and resumption, what does not go together."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from support.replay import TABLE, ListSink, filled_log, put
from typer.testing import CliRunner

from bridge.log import LogUnavailable, RecordRefused
from bridge.memory_log import MemoryLog
from bridge.replay.jsonl import digest_file, read_file
from bridge.replay.kafka_sink import KafkaSink, Target, prefix_target
from bridge.replay.pacing import MAX, parse_speed
from bridge.replay.run import ReplayRun
from bridge.replay.selection import Item
from edge.cli import replay as command
from edge.cli.app import app
from edge.cli.replay import replay
from edge.cli.replay_request import Request
from schemas.catalogue import EVENTS
from schemas.errors import ConfigurationError
from schemas.events import Event
from schemas.replay_range import parse_from_to


def request(**more: Any) -> Request:
    asked = {"topic_filters": ("sensors/#",), "text_from": "beginning", "text_to": "now", "speed": MAX}
    asked |= {"tests": (), "texts": (), "range": parse_from_to("beginning", "now", 0)}
    return Request(**(asked | more))


async def run(asked: Request, log: MemoryLog, to_log: MemoryLog | None = None) -> dict[str, Any]:
    return await replay(asked, log, to_log or log, TABLE, lambda _: None)


def records(path: Path) -> list[Item]:
    return [each for each in read_file(path) if not isinstance(each, dict)]


def values(log: MemoryLog, prefix: str) -> list[bytes]:
    """What lies below a prefix, in the order of the original numbers."""
    found = []
    for kafka_topic in ("mqtt.messages", "mqtt.messages.q2"):
        for partition in range(12):
            for record in log.records(kafka_topic, partition):
                if dict(record.headers)["mqtt.topic"].startswith(prefix.encode()):
                    found.append(record.value)
    return sorted(found, key=lambda value: orjson.loads(value).get("n", 1 << 60))


async def test_into_a_file(tmp_path: Path) -> None:
    log = filled_log(1_000)
    end = await run(request(to_file=tmp_path / "out.jsonl", hashing=True), log)
    assert [orjson.loads(item[2].value or b"")["n"] for item in records(tmp_path / "out.jsonl")] == list(range(1_000))
    assert end["records"] == 1_000
    digests, told = digest_file(tmp_path / "out.jsonl")
    assert told == end
    assert digests.told() == end["partitions"]
    with pytest.raises(ConfigurationError, match="--overwrite"):
        await run(request(to_file=tmp_path / "out.jsonl"), log)
    assert CliRunner().invoke(app, ["replay", "--verify", str(tmp_path / "out.jsonl")]).exit_code == 0


async def test_a_changed_file_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    await run(request(to_file=path, hashing=True), filled_log(50))
    path.write_bytes(path.read_bytes().replace(b'\\"n\\":7}', b'\\"n\\":8}'))
    result = CliRunner().invoke(app, ["replay", "--verify", str(path)])
    assert result.exit_code == 1
    assert "are not those that were written" in result.output
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert "no end marker" in str(CliRunner().invoke(app, ["replay", "--verify", str(path)]).exception)


async def test_into_parquet(tmp_path: Path) -> None:
    log = filled_log(300)
    put(log, "sensors/s/x/bin", b"\xff\x00", retain=True, content_type="raw")
    log.put("mqtt.sensors", 0, None, None, [("mqtt.topic", b"sensors/s"), ("mqtt.qos", b"x"), ("none", None)])
    end = await run(request(to_file=tmp_path / "out.parquet"), log)
    table = pq.read_table(tmp_path / "out.parquet")
    rows = table.to_pylist()
    foreign = rows.pop()
    assert (foreign["qos"], foreign["payload"], foreign["key"], foreign["client_id"]) == (1, None, None, "")
    assert [json.loads(row["payload"])["n"] for row in rows[:-1]] == list(range(300))
    assert (rows[-1]["payload"], rows[-1]["retain"], rows[-1]["client_id"]) == (b"\xff\x00", True, "c")
    assert {"name": "content-type", "value": b"raw"} in rows[-1]["headers"]
    metadata = pq.read_metadata(tmp_path / "out.parquet").metadata
    assert orjson.loads(metadata[b"headwater.end"]) == end
    assert os.listdir(tmp_path) == ["out.parquet"]


async def test_only_what_passes(tmp_path: Path) -> None:
    log = filled_log(100)
    end = await run(request(to_file=tmp_path / "a", tests=("n>89",), texts=("5",)), log)
    assert end["records"] == 1
    end = await run(request(dry_run=True, count=7), log)
    assert end["records"] == 7
    assert sum(each["records"] for each in end["partitions"].values()) == 7


async def test_to_a_prefix() -> None:
    log = filled_log(200)
    end = await run(request(target=prefix_target("again/")), log)
    found = values(log, "again/sensors/s/")
    assert [orjson.loads(value)["n"] for value in found] == list(range(200))
    (marker,) = values(log, "again/$end")
    assert orjson.loads(marker) == {"end": end}
    to = TABLE.destination("again/sensors/s/2/temp").twin()
    record = log.records(to.kafka_topic, to.partition)[0]
    headers = dict(record.headers)
    assert (record.key, headers["mqtt.qos"]) == (to.key, b"2")
    source = TABLE.destination("sensors/s/2/temp").twin().position
    assert headers["mqtt.user.headwater.source"].startswith(f"{source[0]}/{source[1]}/".encode())
    assert headers["mqtt.user.headwater.timestamp_ms"].isdigit()


async def test_a_replay_of_a_replay_names_its_own_source_once() -> None:
    log = filled_log(3, devices=1)
    await run(request(target=prefix_target("a")), log)
    await run(request(topic_filters=("a/sensors/#",), target=prefix_target("b")), log)
    for kafka_topic in ("mqtt.messages", "mqtt.messages.q2"):
        for partition in range(12):
            for record in log.records(kafka_topic, partition):
                names = [name for name, _ in record.headers]
                assert len(names) == len(set(names))
    assert len(values(log, "b/a/sensors/")) == 3


async def test_to_another_cluster_partition_by_partition() -> None:
    log, other = filled_log(100), MemoryLog()
    await run(request(target=Target(same_partitions=True), to_kafka="there:9092"), log, other)
    for kafka_topic in ("mqtt.sensors", "mqtt.sensors.q2"):
        for partition in range(12):
            there = [(record.key, record.value) for record in other.records(kafka_topic, partition)]
            assert there == [(record.key, record.value) for record in log.records(kafka_topic, partition)]


async def test_into_live_leaves_an_audit_record() -> None:
    log, live = filled_log(30), MemoryLog()
    await run(request(target=Target(), is_live=True, speed=parse_speed("100000/s")), log, live)
    audits = [Event.from_json(record.value or b"") for part in range(4) for record in live.records(EVENTS, part)]
    assert [(event.kind, event.detail["action"]) for event in audits] == [("admin", "replay_into_live")]
    assert audits[0].detail["filters"] == ["sensors/#"]
    there = [record for partition in range(12) for record in live.records("mqtt.sensors", partition)]
    assert len(there) == 20


async def test_a_rate_takes_its_time() -> None:
    begun_s = asyncio.get_running_loop().time()
    await run(request(dry_run=True, speed=parse_speed("100/s"), count=30), filled_log(100))
    assert asyncio.get_running_loop().time() - begun_s >= 0.25


async def interrupted(asked: Request, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Cancel the run after so many portions; checkpoints at every one."""
    monkeypatch.setattr("bridge.replay.run.CHECKPOINT_S", 0.0)
    original = ReplayRun._write
    left = [writes]

    async def write(self: ReplayRun, items: Any) -> None:
        await original(self, items[:40])
        left[0] -= 1
        if not left[0]:
            raise asyncio.CancelledError
        if items[40:]:
            await write(self, items[40:])

    with monkeypatch.context() as patch:
        patch.setattr(ReplayRun, "_write", write)
        with pytest.raises(asyncio.CancelledError):
            await run(asked, log)


async def test_a_file_goes_on_without_loss_or_repetition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled_log(1_000)
    path, state = tmp_path / "out.jsonl", tmp_path / "state"
    await interrupted(request(to_file=path, state=state, hashing=True), log, monkeypatch, writes=9)
    put(log, "sensors/s/1/temp", b'{"n":-1}')  # behind the end that the first run fixed
    with path.open("ab") as file:
        file.write(b'{"timestamp_ms":17952')  # what a crash leaves
    end = await run(request(to_file=path, state=state, hashing=True, resume=True), log)
    assert [orjson.loads(item[2].value or b"")["n"] for item in records(path)] == list(range(1_000))
    assert end["records"] == 1_000
    whole = await run(request(to_file=tmp_path / "whole", hashing=True, count=1_000), filled_log(1_000))
    assert end["partitions"] == whole["partitions"]
    with pytest.raises(ConfigurationError, match="complete"):
        await run(request(to_file=path, state=state, resume=True), log)


async def test_parquet_goes_on_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.replay.parquet.PART_RECORDS", 100)
    log = filled_log(1_000)
    folder, state = tmp_path / "out.parquet", tmp_path / "state"
    await interrupted(request(to_file=folder, state=state), log, monkeypatch, writes=9)
    await run(request(to_file=folder, state=state, resume=True), log)
    rows = pq.read_table(folder).to_pylist()
    assert sorted(json.loads(row["payload"])["n"] for row in rows) == list(range(1_000))
    assert not list(folder.glob("*.unfinished"))


@pytest.mark.parametrize("writes", [1, 5, 12])
async def test_a_prefix_goes_on_without_loss_or_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    log = filled_log(600)
    state = tmp_path / "state"
    asked = request(target=prefix_target("again"), state=state)
    await interrupted(asked, log, monkeypatch, writes)
    saved = state.read_bytes()
    await run(request(target=prefix_target("again"), state=state, resume=True), log)
    assert [orjson.loads(value)["n"] for value in values(log, "again/sensors/")] == list(range(600))
    state.write_bytes(saved)  # as if killed: everything behind the checkpoint is there already
    await run(request(target=prefix_target("again"), state=state, resume=True), log)
    assert [orjson.loads(value)["n"] for value in values(log, "again/sensors/")] == list(range(600))


@pytest.mark.parametrize("submits", [1, 7, 30])
async def test_an_interruption_in_the_middle_of_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submits: int
) -> None:
    """Some records of a portion are written and nothing says so: they are found, and not written again."""
    monkeypatch.setattr("bridge.replay.kafka_sink.BATCH_RECORDS_MAX", 5)
    log, state = filled_log(600), tmp_path / "state"
    original, left = KafkaSink._submit, [submits]

    async def submit(self: KafkaSink, to: Any, pending: Any) -> None:
        await original(self, to, pending)
        left[0] -= 1
        if not left[0]:
            await self._settle(0)
            raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "_submit", submit)
        with pytest.raises(asyncio.CancelledError):
            await run(request(target=prefix_target("again"), state=state), log)
    assert 0 < len(values(log, "again/")) < 600
    await run(request(target=prefix_target("again"), state=state, resume=True), log)
    assert [orjson.loads(value)["n"] for value in values(log, "again/sensors/")] == list(range(600))


async def test_kafka_away_ends_it_and_resuming_finds_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.replay.kafka_sink.OPEN_BATCHES_MAX", 0)
    log = filled_log(2_000)
    state = tmp_path / "state"
    asked = request(target=prefix_target("again"), state=state)
    source, to_log = log, MemoryLog()
    original = to_log.submit

    def submit(kafka_topic: str, partition: int, pending: Any) -> asyncio.Future[int]:
        if to_log.appended > 700:
            to_log.fail_next(LogUnavailable("away"))
        return original(kafka_topic, partition, pending)

    to_log.submit = submit  # type: ignore[method-assign]
    with pytest.raises(LogUnavailable):
        await run(asked, source, to_log)
    to_log.submit = original  # type: ignore[method-assign]
    assert 700 < to_log.appended < 2_000
    to_log._failures.clear()
    await run(request(target=prefix_target("again"), state=state, resume=True), source, to_log)
    assert [orjson.loads(value)["n"] for value in values(to_log, "again/sensors/")] == list(range(2_000))


async def test_a_resumed_command_is_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, state = filled_log(200), tmp_path / "state"
    await interrupted(request(to_file=tmp_path / "out", state=state), log, monkeypatch, writes=2)
    with pytest.raises(ConfigurationError, match="is of a replay with filters"):
        await run(request(to_file=tmp_path / "out", state=state, resume=True, topic_filters=("#",)), log)
    with pytest.raises(ConfigurationError, match="is of a replay with target"):
        await run(request(to_file=tmp_path / "other", state=state, resume=True), log)
    with pytest.raises(ConfigurationError, match="--resume goes on"):
        await run(request(to_file=tmp_path / "out", state=state), log)
    state.write_text("{}")
    with pytest.raises(ConfigurationError, match="no state of a replay"):
        await run(request(to_file=tmp_path / "out", state=state, resume=True), log)


async def test_names_that_grow_too_long_are_refused_and_counted() -> None:
    log = MemoryLog()
    put(log, "sensors/" + "x" * 65_500)
    put(log, "sensors/ok")
    end = await run(request(target=prefix_target("a" * 100)), log)
    assert end["refused"] == 1


async def test_a_sink_that_fails_says_so() -> None:
    sink = ListSink()
    sink.fail_after = 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_sink", lambda *_: sink)
        with pytest.raises(RuntimeError):
            await run(request(to_file=Path("unused")), filled_log(100))
    assert sink.end is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a Topic Filter"),
        (("a/#/b",), "must be the last level"),
        (("$share/g/a",), "inner filter alone"),
        (("$replay/-1h/a",), "inner filter alone"),
        (("$exclusive/a",), "inner filter alone"),
        (("a", "--from", "yesterday"), "from: 'yesterday'"),
        (("a", "--from", "-1h", "--to", "-2h"), "swap them"),
        (("a", "--speed", "fast"), "--speed fast"),
        (("a", "--into-live"), "say how fast"),
        (("a", "--into-live", "--speed", "10x"), "say how fast"),
        (("a", "--to-prefix", "x/+"), "wildcard"),
        (("a", "--to-prefix", "$SYS"), "starts with $"),
        (("a", "--to-client", "a/b"), "must not hold"),
        (("a", "--to-client", "c", "--to-prefix", "p"), "give one of"),
        (("a", "--to-file", "f", "--dry-run"), "one target at a time"),
        (("a", "--resume", "--to-file", "f"), "--resume needs --state"),
        (("a", "--state", "f"), "--state is for files"),
        (("a", "--to-config", "f"), "--to-config goes with --to-kafka"),
        (("a", "--to-prefix", "p", "--state", "s", "--resume", "--hash"), "--hash with --resume"),
        (("a", "--grep", ">3"), "--grep"),
        (("a", "--from-file", "f"), "--as-clients"),
        (("--verify", "no such file"), "No such file"),
    ],
)
def test_mistakes_are_said_before_anything_is_done(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner(env={"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}).invoke(app, ["replay", *arguments])
    assert isinstance(result.exception, Exception)
    assert said in str(result.exception)


async def test_what_kafka_refuses_is_counted_and_takes_no_others_along() -> None:
    log, to_log = MemoryLog(), MemoryLog()
    for number in range(50):
        put(log, "sensors/s/1/temp", b"x" * (2 * 1024 * 1024 + 1 if number == 25 else 10))
    end = await run(request(target=prefix_target("p")), log, to_log)
    assert (end["records"], end["refused"]) == (50, 1)
    to = TABLE.destination("p/sensors/s/1/temp")
    assert len(to_log.records(to.kafka_topic, to.partition)) == 49
    to_log.fail_next(RecordRefused("one of them", divisible=True))
    end = await run(request(target=prefix_target("q"), tests=(), count=20), log, to_log)
    assert "refused" not in end
    to_log.fail_next(RecordRefused("all of them"))
    end = await run(request(target=prefix_target("r"), count=20), log, to_log)
    assert end["refused"] == 20


async def test_a_target_that_is_not_there_is_said_with_what_to_do() -> None:
    to_log = MemoryLog()

    async def end_offsets(_: object) -> dict[Any, int]:
        raise LogUnavailable("no leader")

    to_log.end_offsets = end_offsets  # type: ignore[method-assign]
    with pytest.raises(LogUnavailable, match="topics check"):
        await run(request(target=prefix_target("p")), filled_log(3), to_log)
