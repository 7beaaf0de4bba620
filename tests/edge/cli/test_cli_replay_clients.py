"""`headwater replay --as-clients`: a recorded window, played to an edge by real MQTT clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.edges import memory_edge, mqtt_address, records_of
from support.replay import TABLE, Clock, put
from typer.testing import CliRunner

from bridge.memory_log import MemoryLog
from bridge.replay.arrivals import Arrivals
from bridge.replay.kafka_sink import prefix_target
from bridge.replay.pacing import MAX, Pacer, parse_speed
from bridge.replay.selection import Selection
from edge.cli.app import app
from edge.cli.replay import replay
from edge.cli.replay_clients import ClientPlayer, file_batches, play_all
from edge.cli.replay_request import Request
from edge.client import MqttClient, Properties
from schemas.replay_range import parse_from_to


def recorded_log(count: int, clients: int) -> MemoryLog:
    log = MemoryLog(Clock())
    for number in range(count):
        name = f"sensors/s/{number % clients}/temp"
        properties = {"user_properties": (("n", str(number)),), "content_type": "x"} if number % 10 == 0 else {}
        put(log, name, b'{"n":%d}' % number, qos=number % 3, client_id=f"device-{number % clients}", **properties)
    return log


async def recorded(path: Path, count: int = 300, clients: int = 20) -> MemoryLog:
    """A window of messages of several clients, as `headwater replay --to-file` writes it."""
    log = recorded_log(count, clients)
    everything = parse_from_to("beginning", "now", 0)
    await replay(
        Request(("#",), "beginning", "now", everything, MAX, (), (), to_file=path), log, log, TABLE, lambda _: None
    )
    return log


@pytest.mark.parametrize("clients_max", [100, 3])
async def test_what_was_recorded_arrives(tmp_path: Path, clients_max: int) -> None:
    source = await recorded(tmp_path / "window.jsonl")
    there, arrivals = MemoryLog(), Arrivals()
    async with memory_edge(there) as node:
        player = ClientPlayer(*mqtt_address(node), clients_max, None, arrivals)
        batches = file_batches(tmp_path / "window.jsonl", Selection(["#"], TABLE.topic_name_from_key))
        await play_all(player, batches, ["sensors/#"], Pacer(parse_speed("1000x")))
        assert not arrivals.differences()
        assert arrivals.report() == {
            "sent": 300,
            "arrived": 300,
            **dict.fromkeys(("missing", "extra", "reordered", "payload"), 0),
        }
        assert (player.report.clients, player.report.refused, player.report.connect_errors) == (20, 0, 0)
    for kafka_topic in ("mqtt.sensors", "mqtt.sensors.q2"):
        for partition in range(12):
            here = [(each.value, sorted(each.headers)) for each in source.records(kafka_topic, partition)]
            played = [(each.value, sorted(each.headers)) for each in there.records(kafka_topic, partition)]
            assert sorted(played) == sorted(here)


async def test_what_does_not_arrive_is_told(tmp_path: Path) -> None:
    """Messages that the other cluster does not deliver, and one that nobody there was told of."""
    await recorded(tmp_path / "window.jsonl", count=40, clients=4)
    there, arrivals = MemoryLog(), Arrivals()
    async with memory_edge(there) as node:
        player = ClientPlayer(*mqtt_address(node), 10, None, arrivals)
        batches = file_batches(tmp_path / "window.jsonl", Selection(["#"], TABLE.topic_name_from_key))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("edge.cli.replay_clients.SETTLE_S", 0.3)
            await play_all(player, batches, ["sensors/s/1/temp"], Pacer(MAX))
    differences = arrivals.differences()
    assert set(differences) == {f"sensors/s/{number}/temp" for number in (0, 2, 3)}
    assert all(each.missing == 10 for each in differences.values())
    assert len(records_of(there, "mqtt.sensors")) + len(records_of(there, "mqtt.sensors.q2")) == 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "--as-clients", "nowhere"), "write HOST:PORT"),
        (("a", "--as-clients", "127.0.0.1:1", "--user", "x"), "NAME:PASSWORD"),
        (("--as-clients", "127.0.0.1:1"), "give a Topic Filter"),
        (("--as-clients", "127.0.0.1:1", "--from-file", "no such file"), "--as-clients 127.0.0.1:1"),
    ],
)
def test_mistakes_with_clients(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner(env={"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}).invoke(app, ["replay", *arguments])
    assert isinstance(result.exception, Exception)
    assert said in str(result.exception)


async def test_subscribers_of_the_prefix_get_the_originals_time_and_place() -> None:
    """Published at an edge, replayed below a prefix, received at the edge; QoS 2 and properties included."""
    log = MemoryLog()
    async with memory_edge(log) as node, MqttClient(*mqtt_address(node), "publisher") as publisher:
        for number in range(20):
            properties = Properties(content_type="text/plain", user_properties=(("n", str(number)),))
            await publisher.publish(f"plant/{number % 3}", b"%d" % number, number % 2 + 1, properties=properties)
        async with MqttClient(*mqtt_address(node), "reader") as reader:
            inbox = reader.inbox()
            await reader.subscribe("replay/reader/#", 2)
            everything = parse_from_to("beginning", "now", 0)
            asked = Request(
                ("plant/#",), "beginning", "now", everything, MAX, (), (), target=prefix_target("replay/reader")
            )
            end = await replay(asked, log, log, TABLE, lambda _: None)
            received = await inbox.get_many(21, 20)
    messages = [each for each in received if each.topic_name_utf8.startswith(b"replay/reader/plant/")]
    assert sorted(int(each.payload) for each in messages) == list(range(20))
    for each in messages:
        assert each.properties is not None
        told = dict(each.properties.user_properties)
        assert told["n"] == each.payload.decode()
        assert each.qos == int(each.payload) % 2 + 1
        kafka_topic, partition, offset = told["headwater.source"].split("/")
        original = log.partition((kafka_topic, int(partition))).records[int(offset)]
        assert (original.value, str(original.timestamp)) == (each.payload, told["headwater.timestamp_ms"])
    (marker,) = [each for each in received if each.topic_name_utf8 == b"replay/reader/$end"]
    assert json.loads(marker.payload) == {"end": end}
