"""Two edges on one log: every edge notes the same sampled messages in headwater.events; without the switch, none."""

from __future__ import annotations

from typing import Any

import pytest
from support.edges import memory_edge, mqtt_address, until, values_of

from bridge.memory_log import MemoryLog
from edge.client import MqttClient
from schemas.errors import ConfigurationError
from schemas.events import LEDGER_KINDS, Event


def ledger(log: MemoryLog) -> list[tuple[str, str, str, Any]]:
    events = [Event.from_json(value) for value in values_of(log, "headwater.events", "")]
    return sorted(
        (each.kind, each.client_id, each.detail["kafka_topic"], each.detail["qos"])
        for each in events
        if each.kind in LEDGER_KINDS
    )


async def test_deliveries_of_all_qualities_are_noted_on_both_edges() -> None:
    log = MemoryLog()
    sampled = {"delivery_sample": 1000.0}
    async with (
        memory_edge(log, node_id="a", events=sampled) as a,
        memory_edge(log, node_id="b", events=sampled) as b,
        MqttClient(*mqtt_address(a), client_id="here") as here,
        MqttClient(*mqtt_address(b), client_id="there") as there,
    ):
        await here.subscribe("t/#", 1)
        await there.subscribe("t/#", 2)
        for qos in (0, 1, 2):
            here.publish(f"t/{qos}", b"x", qos)
        plain, twin = "mqtt.messages", "mqtt.messages.q2"
        sent = {"here": [(plain, 0), (plain, 1), (twin, 1)], "there": [(plain, 0), (plain, 1), (twin, 2)]}
        expected = [("delivered", client_id, *each) for client_id, steps in sent.items() for each in steps]
        expected += [("acknowledged", *each[1:]) for each in expected if each[3]]
        await until(lambda: ledger(log) == sorted(expected), "every step of every message")


async def test_off_is_the_default() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node, MqttClient(*mqtt_address(node)) as client:
        inbox = client.inbox()
        await client.subscribe("t", 1)
        client.publish("t", b"x", 1)
        await inbox.get()
        assert node.services.ledger_below == 0
        assert all(handler.engine.ledger is None for handler in node.services.connections)
    assert ledger(log) == []
    with pytest.raises(ConfigurationError, match="delivery_sample"):
        async with memory_edge(events={"delivery_sample": 1001}):
            pass
