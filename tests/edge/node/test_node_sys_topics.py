"""`$SYS`: what nodes say of themselves under EMQX's names, seen on every edge; the rest of it are plain figures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.edges import edge_config, memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode
from edge.node.sys_topics import cluster_figures
from edge.wire import Puback, Publish, Suback, Subscribe, SubscriptionRequest
from schemas.errors import ConfigurationError

EVERYTHING: dict[str, Any] = {"sys": {}}


async def subscribe(client: WireClient, *names: str) -> None:
    await client.send(Subscribe(1, tuple(SubscriptionRequest(name) for name in names)))
    await client.receive(Suback)


async def take(client: WireClient, *wanted: str) -> dict[str, tuple[str, bool]]:
    """Until all of these have come: name -> (payload, RETAIN)."""
    got: dict[str, tuple[str, bool]] = {}
    while not set(wanted) <= got.keys():
        message = await client.receive(Publish)
        got[message.topic_name_utf8.decode()] = (message.payload.decode(), message.retain)
    return got


def nodes_of(edge: EdgeNode) -> set[str]:
    return {each.node_id for each in edge._live_heartbeats()}


async def test_a_subscriber_of_another_edge_sees_stats_and_metrics_and_the_retained_ones_at_once() -> None:
    log = MemoryLog()
    async with memory_edge(log, node_id="edge-1", **EVERYTHING) as one, memory_edge(log, node_id="edge-2") as two:
        await until(lambda: nodes_of(one) == nodes_of(two) == {"edge-1", "edge-2"}, "both nodes are known")
        one._sys_topics.publish()
        async with connected(mqtt_address(one), "writer") as writer, connected(mqtt_address(two), "reader") as reader:
            for qos, packet_id in ((0, 0), (1, 1)):
                await writer.send(Publish(b"t", b"12345", qos, packet_id=packet_id))
            await writer.receive(Puback)
            prefix = "$SYS/brokers/edge-1/"
            retained = ("$SYS/brokers", prefix + "version", prefix + "sysdescr")
            await subscribe(reader, "$SYS/brokers", "$SYS/brokers/edge-1/#", "$SYS/cluster/#")
            at_once = await take(reader, *retained)
            assert all(at_once[name][1] for name in retained)
            assert at_once["$SYS/brokers"] == ("edge-1,edge-2", True)
            one._sys_topics.publish()
            wanted = {
                prefix + "stats/connections/count": "1",
                prefix + "stats/connections/max": "1",
                prefix + "stats/sessions/count": "1",
                prefix + "stats/retained/count": None,
                prefix + "metrics/messages/received": "2",
                prefix + "metrics/messages/qos0/received": "1",
                prefix + "metrics/messages/qos1/received": "1",
                prefix + "metrics/messages/qos2/received": "0",
                prefix + "metrics/messages/dropped": "0",
                prefix + "metrics/bytes/received": None,
                prefix + "uptime": None,
                prefix + "datetime": None,
                "$SYS/cluster/nodes/count": "2",
            }
            got = await take(reader, *wanted)
            for name, figure in wanted.items():
                assert not got[name][1], name
                assert figure is None or got[name][0] == figure, (name, got[name])
            assert got[prefix + "datetime"][0].endswith("+00:00")


async def test_clients_that_come_and_go_are_told_of_unless_that_is_switched_off() -> None:
    async with memory_edge(**EVERYTHING) as edge, connected(mqtt_address(edge), "watcher") as watcher:
        prefix = "$SYS/brokers/edge-test/clients/"
        await subscribe(watcher, prefix + "#")
        async with connected(mqtt_address(edge), "a/b", 4), connected(mqtt_address(edge), "no+name"):
            pass
        got = await take(watcher, prefix + "a/b/connected", prefix + "a/b/disconnected")
        told = json.loads(got[prefix + "a/b/connected"][0])
        assert (told["clientid"], told["proto_ver"], told["keepalive"]) == ("a/b", 4, 60)
        assert json.loads(got[prefix + "a/b/disconnected"][0])["ipaddress"] == "127.0.0.1"
    log = MemoryLog()
    async with (
        memory_edge(log, sys={"interval_s": 60, "client_events": False}) as edge,
        connected(mqtt_address(edge), "a"),
    ):
        edge._sys_topics.publish()
        await edge.services.publisher.flush(10)
        records = [record for partition in range(12) for record in log.records("mqtt.messages", partition)]
        names = {dict(record.headers)["mqtt.topic"] for record in records}
        assert b"$SYS/brokers/edge-test/uptime" in names
        assert not any(b"/clients/" in (name or b"") for name in names)


def test_no_nodes_have_nothing_together_and_an_interval_below_a_second_is_refused() -> None:
    assert set(cluster_figures(()).values()) == {0}
    with pytest.raises(ConfigurationError) as refused:
        edge_config(sys={"interval_s": 0.1})
    assert "sys.interval_s" in str(refused.value)
