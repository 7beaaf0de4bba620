"""JSON Schemas of routes: what they accept, and what clients of each version hear when they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.edges import memory_edge, mqtt_address, until, values_of
from support.wire_client import connected, dial

from bridge.memory_log import MemoryLog
from edge.rules.payload_schemas import compile_schema, load_payload_schemas
from edge.wire import Puback, Publish, Pubrec, ReasonCode, Will
from schemas.errors import ConfigurationError
from schemas.events import Event
from schemas.routes import load_routes

SCHEMA = {
    "type": "object",
    "properties": {"c": {"$ref": "#/$defs/celsius"}},
    "required": ["c"],
    "$defs": {"celsius": {"type": "number", "minimum": -60}},
}
GOOD, BAD = b'{"c": 21.5}', b'{"c": "warm"}'


@pytest.fixture
def routes(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "temp.json"
    file.write_text(json.dumps(SCHEMA))
    return [
        {"filter": "temp/+", "kafka_topic": "mqtt.temp", "partitions": 1, "payload_schema": str(file)},
        {"filter": "#", "kafka_topic": "mqtt.messages", "partitions": 1},
    ]


def test_what_is_accepted() -> None:
    fault = compile_schema(SCHEMA)
    assert fault(GOOD) is None
    assert fault(BAD) == "type at $.c"
    assert fault(b'{"c": -61}') == "minimum at $.c"
    assert fault(b"{}") == "required at $"
    assert fault(b"") == fault(b"\xff") == fault(b"{bad") == "it is no JSON"
    nested = compile_schema({"$ref": "#/$defs/list", "$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}})
    assert nested(b"[" * 900 + b"]" * 900) in (None, "it cannot be held against the schema")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"type": "objekt"}', "no JSON Schema"),
        ('{"$ref": "http://example.org/x"}', "leads elsewhere"),
        ('{"properties": {"a": {"$ref": "#/$defs/b"}}}', "leads nowhere"),
        ("{bad", "no valid JSON"),
    ],
)
def test_what_is_no_schema_is_said_at_the_start(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "s.json").write_text(text)
    routes = load_routes([{"filter": "#", "kafka_topic": "m", "payload_schema": "s.json"}])
    with pytest.raises(ConfigurationError, match=says):
        load_payload_schemas(routes, tmp_path)
    with pytest.raises(ConfigurationError, match="payload_schema"):
        load_payload_schemas(routes, tmp_path / "absent")


def test_only_the_route_that_a_name_goes_to_counts(routes: list[dict[str, Any]]) -> None:
    found = load_payload_schemas(load_routes(routes))
    assert found.check_of("temp/a") is not None
    assert found.check_of("temp/a/b") is None
    assert found.check_of("$temp/a") is None
    assert load_payload_schemas(load_routes(routes[1:])).rows == ()


async def test_what_clients_hear(routes: list[dict[str, Any]]) -> None:
    log = MemoryLog()
    async with memory_edge(log, routes=routes) as node:
        async with connected(mqtt_address(node), "five") as client:
            for packet_id, payload in enumerate((GOOD, BAD, BAD, GOOD), 1):
                await client.send(Publish(b"temp/a", payload, qos=1, packet_id=packet_id))
            codes = [(await client.receive(Puback)).reason_code for _ in range(4)]
            assert codes == [0, ReasonCode.PAYLOAD_FORMAT_INVALID, ReasonCode.PAYLOAD_FORMAT_INVALID, 0]
            await client.send(Publish(b"temp/a", BAD, qos=2, packet_id=9))
            assert (await client.receive(Pubrec)).reason_code is ReasonCode.PAYLOAD_FORMAT_INVALID
            await client.send(Publish(b"$delayed/0/temp/a", BAD, qos=1, packet_id=11))
            assert (await client.receive(Puback)).reason_code is ReasonCode.PAYLOAD_FORMAT_INVALID
            await client.send(Publish(b"temp/a", BAD, qos=1, packet_id=12, retain=True))
            assert (await client.receive(Puback)).reason_code is ReasonCode.PAYLOAD_FORMAT_INVALID
            await client.send(Publish(b"temp/a", BAD), Publish(b"other", BAD, qos=1, packet_id=10))
            assert (await client.receive(Puback)).reason_code is ReasonCode.SUCCESS
        async with connected(mqtt_address(node), "three", 4) as client:
            await client.send(Publish(b"temp/a", BAD, qos=1, packet_id=1), Publish(b"temp/a", GOOD, qos=1, packet_id=2))
            assert [(await client.receive(Puback)).packet_id for _ in range(2)] == [1, 2]  # [MQTT311-3.3.5-2]
        async with dial(mqtt_address(node)) as client:
            connack = await client.connect("will", will=Will("temp/a", BAD))
            assert connack.reason_code is ReasonCode.PAYLOAD_FORMAT_INVALID
        async with connected(mqtt_address(node), "will", will=Will("temp/a", GOOD)):
            pass
        await until(lambda: values_of(log, "mqtt.temp") == [GOOD] * 4)
        assert values_of(log, topic_name="other") == [BAD]
        assert node.services.counters.payloads_refused == 8
        events = [Event.from_json(value) for value in values_of(log, "headwater.events", "")]
        dropped = [(event.client_id, event.detail["reason"]) for event in events if event.kind == "dropped"]
        assert dropped.count(("five", "payload schema: type at $.c")) == 6
