"""`headwater bans`, `acl`, `tokens` and `nodes drain`: what they take, what they say, what is then in Kafka."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bridge.kafka_log import KafkaLog
from bridge.topics_admin import apply
from edge.access.api_tokens import ApiToken, ApiTokens
from edge.cli.acl import rules_from_file
from edge.cli.app import app
from edge.cli.bans import seconds
from edge.cli.edge import until_stopped_or_ended
from schemas.catalogue import EVENTS, catalogue
from schemas.errors import ConfigurationError

ACL = '[[acl]]\npermit = "allow"\naction = "all"\nfilter = "[x]/#"\nuser = "ann"\n'


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"KAFKA_BOOTSTRAP_SERVERS": None}).invoke(app, arguments)


def said(*arguments: str) -> str:
    done = invoke(*arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def kafka_address(kafka_bootstrap: str) -> str:
    asyncio.run(apply(kafka_bootstrap, catalogue(), replication_factor=1))
    return kafka_bootstrap


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("30m", 1_800), ("12h", 43_200), ("7d", 604_800)])
def test_durations(text: str, expected: int) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0m", "5", "m", "1.5h", "-1m", "1w", "9999999999d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--for"):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "No such file"),
        ("[[acl", "no valid TOML"),
        ("", "has no [[acl]]"),
        ("acl = 5", "has no [[acl]]"),
        (ACL.replace("allow", "maybe"), "ACL rule 1: permit must be"),
    ],
)
def test_a_bad_acl_file_is_named(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "acl.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        rules_from_file(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_tokens(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    token = said("tokens", "add", path, "ops", "--role", "operator").strip()
    assert ApiTokens(path).find(token) == ApiToken("ops", "operator")
    assert "ops" in said("tokens", "list", path)
    assert json.loads(said("tokens", "list", path, "--json")) == [{"name": "ops", "role": "operator"}]
    assert isinstance(invoke("tokens", "add", path, "x", "--role", "root").exception, ConfigurationError)
    said("tokens", "remove", path, "ops")
    assert isinstance(invoke("tokens", "remove", path, "ops").exception, ConfigurationError)


@pytest.mark.parametrize(
    "arguments", [("bans", "remove", "colour", "red"), ("bans", "add", "user", "x", "--for", "ever")]
)
def test_a_mistake_needs_no_kafka(arguments: tuple[str, ...]) -> None:
    assert isinstance(invoke(*arguments).exception, ConfigurationError)


def test_bans_come_and_go(kafka_address: str) -> None:
    kafka = ("--kafka", kafka_address)
    name = f"\x1b[31m[red]{uuid.uuid4().hex}"  # as a client might call itself
    assert "until it is removed" in said("bans", "add", "client_id", name, "--reason", "noisy", *kafka)
    assert "is banned until 20" in said("bans", "add", "address", "192.0.2.7/24", "--for", "1h", *kafka)
    found = {each["value"]: each for each in json.loads(said("bans", "list", "--json", *kafka))}
    assert found[name]["reason"] == "noisy"
    assert "@" in found[name]["created_by"]
    assert found["192.0.2.0/24"]["expires_at"] is not None
    table = said("bans", "list", *kafka)
    assert "\x1b" not in table
    assert name[1:] in table.replace("\n", "")
    said("bans", "remove", "client_id", name, *kafka)
    said("bans", "remove", "address", "192.0.2.9/24", *kafka)
    assert isinstance(invoke("bans", "remove", "client_id", name, *kafka).exception, ConfigurationError)
    assert name not in {each["value"] for each in json.loads(said("bans", "list", "--json", *kafka))}
    actions = [event["detail"]["action"] for event in asyncio.run(audited(kafka_address)) if event["client_id"] == name]
    assert actions == ["ban", "unban"]


async def audited(bootstrap: str) -> list[dict[str, object]]:
    """Every record of what administrators have done."""
    log = KafkaLog(bootstrap)
    await log.start()
    events: list[dict[str, object]] = []
    try:
        partitions = {(EVENTS, number) for number in range(4)}
        ends = {position: end for position, end in (await log.end_offsets(partitions)).items() if end}
        consumer = log.consumer(None)
        consumer.assign(await log.start_offsets(frozenset(ends)))
        async with asyncio.timeout(20):
            while any((consumer.position_of(position) or 0) < end for position, end in ends.items()):
                for _, records in await consumer.fetch(1.0):
                    events += [json.loads(record.value or b"{}") for record in records]
        await consumer.stop()
    finally:
        await log.stop()
    return [event for event in events if event["kind"] == "admin"]


def test_the_acl_is_applied_shown_and_reset(kafka_address: str, tmp_path: Path) -> None:
    kafka = ("--kafka", kafka_address)
    path = tmp_path / "acl.toml"
    path.write_text(ACL)
    try:
        assert "1 rules are in force, revision" in said("acl", "apply", str(path), *kafka)
        shown = json.loads(said("acl", "show", "--json", *kafka))
        assert shown["rules"] == [{"permit": "allow", "action": "all", "filter": "[x]/#", "user": "ann"}]
        again = said("acl", "apply", str(path), *kafka)
        assert int(again.split()[-1]) > shown["revision"]
        assert "[x]/#" in said("acl", "show", *kafka)
    finally:
        said("acl", "reset", *kafka)
    assert json.loads(said("acl", "show", "--json", *kafka)) is None
    assert "no rules are in Kafka" in said("acl", "show", *kafka)


def test_a_drain_of_nobody(kafka_address: str) -> None:
    done = invoke("nodes", "drain", f"none-{uuid.uuid4().hex}", "--kafka", kafka_address)
    assert isinstance(done.exception, ConfigurationError)
    assert "there is no edge" in str(done.exception)


class Worker:
    """A child process that ends when the test says so."""

    def __init__(self) -> None:
        self.end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await self.end


@pytest.mark.parametrize(("codes", "goes_on"), [([0], True), ([1], False), ([0, 0, 0], False), ([0, 5], False)])
async def test_a_worker_that_was_drained_leaves_the_others_running(codes: list[int], goes_on: bool) -> None:
    workers = [Worker() for _ in range(3)]
    stop = asyncio.Event()
    running = asyncio.create_task(until_stopped_or_ended(stop, workers))
    for worker, code in zip(workers, codes, strict=False):
        worker.end.set_result(code)
        await asyncio.wait({running}, timeout=0.05)
    assert running.done() != goes_on
    stop.set()
    await asyncio.wait_for(running, 5)
