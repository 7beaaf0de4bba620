"""Auto-subscription: given at CONNECT with the server's rights, kept with the session, from then on and not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.edges import edge_config, memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected

from bridge.control import ControlRefused
from bridge.memory_log import MemoryLog
from edge.access.principal import Principal
from edge.cli.auto_subscriptions import tables_from_file
from edge.handler.subscribing import filters_of
from edge.rules.auto_subscriptions import load_auto_subscriptions
from edge.wire import Properties, Puback, Publish, ReasonCode, Suback, Subscribe, SubscriptionRequest
from schemas.control import AUTO_KEY, AutoSubscriptionTables
from schemas.errors import ConfigurationError

STORED = {"properties": Properties(session_expiry_interval_s=600)}


def test_each_client_gets_its_own_filters() -> None:
    auto = load_auto_subscriptions([{"filter": "c/%c/#", "qos": 1}, {"filter": "u/%u"}, {"filter": "all"}])
    filters = [(each.topic_filter, each.qos) for each in auto.of(Principal("ann", "c-1", ""))]
    assert filters == [("c/c-1/#", 1), ("u/ann", 0), ("all", 0)]
    assert [each.topic_filter for each in auto.of(Principal("a/b", "+", ""))] == ["all"]
    assert auto.grants(Principal("ann", "c-1", ""), "c/c-1/#")
    assert not auto.grants(Principal("ann", "c-2", ""), "c/c-1/#")
    assert not load_auto_subscriptions([]).grants(Principal("ann", "c-1", ""), "all")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({}, "needs filter"),
        ({"filter": "a/#/b"}, "[[auto_subscriptions]] 1: filter 'a/#/b'"),
        ({"filter": "$share/g/a"}, "only ordinary filters"),
        ({"filter": "a", "qos": 3}, "qos must be 0, 1 or 2"),
        ({"filter": "a", "no_local": 1}, "no_local must be true or false"),
        ({"filter": "a", "quality": 1}, "has no key 'quality'"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        edge_config(auto_subscriptions=[table])
    assert why in str(refused.value)


async def publish(client: WireClient, topic_name: bytes, payload: bytes, *, retain: bool = False) -> None:
    await client.send(Publish(topic_name, payload, 1, retain, packet_id=1))
    assert (await client.receive(Puback)).reason_code is ReasonCode.SUCCESS


async def test_a_client_gets_messages_without_having_asked_and_what_is_retained_but_nothing_older() -> None:
    async with memory_edge(auto_subscriptions=[{"filter": "c/%c/#", "qos": 1}]) as edge:
        address = mqtt_address(edge)
        async with connected(address, "writer") as writer:
            await publish(writer, b"c/reader/kept", b"retained", retain=True)
            await publish(writer, b"c/reader/a", b"before")
            async with connected(address, "reader", 4) as reader:
                got = await reader.receive(Publish)
                assert (got.payload, got.retain, got.qos) == (b"retained", True, 1)
                await publish(writer, b"c/reader/a", b"after")
                assert (await reader.receive(Publish)).payload == b"after"
                await publish(writer, b"c/another/a", b"not mine")
                await publish(writer, b"c/reader/a", b"last")
                assert (await reader.receive(Publish)).payload == b"last"


async def test_a_stored_session_keeps_it_and_is_not_given_it_again() -> None:
    log = MemoryLog()
    tables = {"auto_subscriptions": [{"filter": "c/%c/#", "qos": 1}]}
    async with memory_edge(log, node_id="edge-1", **tables) as one, memory_edge(log, node_id="edge-2", **tables) as two:
        async with connected(mqtt_address(one), "reader", **STORED) as reader:
            await reader.send(Subscribe(1, (SubscriptionRequest("c/reader/#", 0),)))  # its own options from here on
            await reader.receive(Suback)
        async with connected(mqtt_address(one), "writer") as writer:
            await publish(writer, b"c/reader/a", b"0")
            async with connected(mqtt_address(two), "reader", clean_start=False, **STORED) as reader:
                await publish(writer, b"c/reader/a", b"1")
                got = await reader.receive(Publish)
                assert (got.payload, got.qos) == (b"1", 0)
        async with connected(mqtt_address(two), "late", clean_start=False, **STORED):
            pass
        async with connected(mqtt_address(one), "writer") as writer:
            await publish(writer, b"c/late/a", b"missed")
        async with connected(mqtt_address(one), "late", clean_start=False, **STORED) as late:
            assert (await late.receive(Publish)).payload == b"missed"


async def test_it_needs_no_right_of_the_client_and_outlives_a_change_of_the_rules() -> None:
    access = {
        "dev": False,
        "authentication": {"anonymous": True},
        "acl": [{"permit": "allow", "action": "publish", "filter": "#"}],
        "auto_subscriptions": [{"filter": "c/%c/#", "qos": 1}],
    }
    async with memory_edge(**access) as edge:
        address = mqtt_address(edge)
        async with connected(address, "reader") as reader, connected(address, "writer") as writer:
            await reader.send(Subscribe(1, (SubscriptionRequest("c/+/#", 1),)))
            assert (await reader.receive(Suback)).reason_codes == (ReasonCode.NOT_AUTHORIZED,)
            edge.services.clients["reader"].rights_changed()
            await publish(writer, b"c/reader/a", b"1")
            assert (await reader.receive(Publish)).payload == b"1"


async def test_a_list_in_kafka_holds_on_every_edge_instead_of_those_of_the_files() -> None:
    log = MemoryLog()
    files = {"auto_subscriptions": [{"filter": "file"}]}
    async with memory_edge(log, node_id="edge-1", **files) as one, memory_edge(log, node_id="edge-2", **files) as two:

        async def filters(client_id: str) -> tuple[str, ...]:
            async with connected(mqtt_address(two), client_id):
                return filters_of(two.services.clients[client_id])

        def count() -> int:
            return len(two.services.rules.auto_subscriptions.of(Principal("a", "a", "")))

        assert await filters("a") == ("file",)
        assert one.control is not None
        await one.control.put(AutoSubscriptionTables(({"filter": "c/%c", "qos": 1}, {"filter": "all"})))
        await until(lambda: count() == 2, "every edge has it")
        assert await filters("b") == ("c/b", "all")
        with pytest.raises(ControlRefused, match="needs filter"):
            await one.control.put(AutoSubscriptionTables(({"qos": 1},)))
        assert count() == 2
        await one.control.remove(AUTO_KEY)
        await until(lambda: count() == 1, "the file holds again")
        assert await filters("c") == ("file",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ("[[auto", "no valid TOML"),
        ("", "has no [[auto_subscriptions]]"),
        ("auto_subscriptions = [1]", "has no [[auto_subscriptions]]"),
        ("[[auto_subscriptions]]\nqos = 1\n", "[[auto_subscriptions]] 1: needs filter"),
    ],
)
def test_what_the_command_line_refuses(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "auto.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        tables_from_file(file)
    assert why in str(refused.value)


def test_the_command_line_takes_the_file_of_an_edge(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text('node_id = "a"\n[[auto_subscriptions]]\nfilter = "c/%c"\n')
    assert tables_from_file(file) == ({"filter": "c/%c"},)
