"""The closed loop over two real edges: who flaps is banned, and both edges enforce it; killed, restarted, compared."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.edges import Up, up
from support.spark_runs import Run, all_records
from support.wire_client import connected, dial

from edge.client import MqttClient, ReasonCode
from schemas.events import Event
from spark_streaming.presence.client import Client, Happening, Rules
from spark_streaming.transforms.presence import KINDS

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

WAIT_S = 40.0
CONNECTS_MAX = 6
BAN_S = 120


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Whatever is started is ended."""
    started: list[Run] = []
    yield started
    for run in started:
        run.close()


async def flap(edges: Up, client_id: str) -> None:
    """Connect again and again, here and there, and stay until thrown out."""
    for number in range(CONNECTS_MAX - 1):
        async with connected(edges.edges[number % 2].mqtt, client_id):
            pass
    async with connected(edges.edges[1].mqtt, client_id) as client:
        (goodbye,) = await client.until_closed(WAIT_S)
    assert goodbye.reason_code is ReasonCode.ADMINISTRATIVE_ACTION  # type: ignore[union-attr]


async def expected_changes(bootstrap: str, client_ids: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """The same logic over all events of these clients, in one go."""
    rules = Rules(connects_max=CONNECTS_MAX, ban_ms=BAN_S * 1000)
    clients = {client_id: Client(client_id) for client_id in client_ids}
    found = {}
    for record in sorted(await all_records(bootstrap, {"headwater.events": 4}), key=lambda one: one.offset):
        event = Event.from_json(record.value)
        if event.client_id not in clients or event.kind not in KINDS:
            continue
        position = f"{record.partition}/{record.offset}"
        named = {name: event.detail.get(name) for name in ("action", "peer", "reason")}
        node_id = event.detail.get("of_node", event.node_id)
        happening = Happening(event.kind, node_id, record.timestamp, position, **named)
        for change in clients[event.client_id].happened(happening, rules):
            found[change.state, change.id] = json.loads(change.to_json())
    return found


async def sent_changes(bootstrap: str, client_ids: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """What the job has written; a change that it wrote twice has the same content."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for record in await all_records(bootstrap, {"mqtt.analytics": 4}):
        name = dict(record.headers)["mqtt.topic"].decode()
        if name.startswith("analytics/presence/") and name.rpartition("/")[2] in client_ids:
            body = json.loads(record.value)
            assert name.removeprefix("analytics/presence/").split("/")[:-1] == [body["state"]] * name.count("/", 19)
            assert found.setdefault((body["state"], body["id"]), body) == body
    return found


async def closed_ms(bootstrap: str, client_id: str) -> int:
    """When Kafka heard last that the client's connection has ended."""
    events = await all_records(bootstrap, {"headwater.events": 4})
    ours = [(each.timestamp, Event.from_json(each.value)) for each in events if each.key == client_id.encode()]
    return max(at_ms for at_ms, event in ours if event.kind == "disconnected")


@pytest.mark.timeout(400)
async def test_a_flapping_client_is_banned_on_every_edge(
    kafka_bootstrap: str, tmp_path: Path, runs: list[Run], record_property: Callable[[str, object], None]
) -> None:
    name = uuid.uuid4().hex[:8]
    flapper, spared, late = f"flapper-{name}", f"backend-{name}", f"late-{name}"
    options = ["--connects-max", str(CONNECTS_MAX), "--ban-for", f"{BAN_S}s", "--enforce", "--never-ban", "backend-*"]
    options += ["--checkpoint", str(tmp_path / "checkpoint")]

    def start(*more: str) -> Run:
        runs.append(Run(tmp_path / "spark.log", "presence", kafka_bootstrap, *options, *more))
        return runs[-1]

    with up(tmp_path, kafka_bootstrap) as edges:
        job = start("--from", "latest", "--trigger", "micro:200ms")
        await asyncio.to_thread(job.await_event, "ready")
        async with MqttClient(*edges.edges[0].mqtt) as watcher:
            inbox = watcher.inbox()
            await watcher.subscribe(f"analytics/presence/flapping/{flapper}", 1)
            for number in range(CONNECTS_MAX):
                async with connected(edges.edges[number % 2].mqtt, spared):
                    pass
            await flap(edges, flapper)
            said = json.loads((await asyncio.wait_for(inbox.get(), WAIT_S)).payload)
            assert (said["client_id"], said["state"], said["count"]) == (flapper, "flapping", CONNECTS_MAX)
        for edge in edges.edges:
            async with dial(edge.mqtt) as client:
                assert (await client.connect(flapper)).reason_code is ReasonCode.BANNED
            async with connected(edge.mqtt, spared):
                pass
        banned = await asyncio.to_thread(job.await_event, "banned", 1.0)
        assert banned["client_id"] == flapper

        await asyncio.to_thread(job.kill)
        for number in range(CONNECTS_MAX):  # nobody watches
            async with connected(edges.edges[number % 2].mqtt, late):
                pass
        job = start("--trigger", "available-now")
        assert (await asyncio.to_thread(job.await_event, "banned"))["client_id"] == late
        assert await asyncio.to_thread(job.to_its_end) == 0

    clients = [flapper, spared, late]
    sent = await sent_changes(kafka_bootstrap, clients)
    expected = await expected_changes(kafka_bootstrap, clients)
    assert {key: value for key, value in expected.items() if key in sent} == sent
    missing = [value for key, value in expected.items() if key not in sent]
    assert [value["state"] for value in missing if value["client_id"] != late] == []  # none of before the restart
    controls = await all_records(kafka_bootstrap, {"headwater.control": 1})
    bans = [record for record in controls if name in record.key.decode()]
    assert [record.key.decode() for record in bans] == [f"ban/client_id/{flapper}", f"ban/client_id/{late}"]  # once
    record_property("ban_to_close_ms", await closed_ms(kafka_bootstrap, flapper) - bans[0].timestamp)
