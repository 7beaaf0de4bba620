"""A drain: nobody new gets in, the clients move to the other node at a rate, and nothing that was in flight is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.edges import address_of, edge_config, mqtt_address, until
from support.wire_client import Transport, WireClient, connected, dial

from bridge.memory_log import MemoryLog
from edge.node import draining
from edge.node.listeners import address_text
from edge.node.node import EdgeNode
from edge.wire import (
    Disconnect,
    Packet,
    Properties,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from schemas.control import NodeCommand
from schemas.nodes import STATE_DRAINING

BOTH = pytest.mark.parametrize("version", [4, 5])
STAYS: dict[str, Any] = {"properties": Properties(session_expiry_interval_s=600), "clean_start": False}


@asynccontextmanager
async def two_edges(**table: Any) -> AsyncIterator[tuple[EdgeNode, EdgeNode]]:
    """Both know of each other. The test stops the second one, or leaves it to us."""
    log = MemoryLog()
    nodes = [EdgeNode(edge_config(node_id=name, **table), log) for name in ("a", "b")]
    for node in nodes:
        await node.start()
    try:
        await until(lambda: nodes[1]._other_addresses())
        yield nodes[0], nodes[1]
    finally:
        for node in reversed(nodes):
            await node.stop()


async def goodbye(client: WireClient) -> Disconnect | None:
    packets: list[Packet] = await client.until_closed()
    if client.protocol_version == 4:
        assert packets == []
        return None
    [packet] = packets
    assert isinstance(packet, Disconnect)
    return packet


@BOTH
@pytest.mark.parametrize("transport", ["tcp", "websocket"])
async def test_clients_are_sent_to_the_other_node_and_new_ones_not_let_in(version: int, transport: Transport) -> None:
    """In the way in which they have come."""
    async with (
        two_edges() as (a, b),
        connected(address_of(b, transport), "c", version, transport) as client,
    ):
        reference = address_text(address_of(a, transport))
        b.drain()
        packet = await goodbye(client)
        if packet is not None:
            assert packet.reason_code is ReasonCode.USE_ANOTHER_SERVER
            assert packet.properties.server_reference == reference
        assert not b.is_ready()
        assert b.heartbeat().state == STATE_DRAINING
        async with dial(address_of(b, transport), version, transport) as late:
            connack = await late.connect("late")
            if version == 5:
                assert connack.reason_code is ReasonCode.USE_ANOTHER_SERVER
                assert connack.properties.server_reference == reference
            else:
                assert connack.reason_code is ReasonCode.SERVER_UNAVAILABLE  # return code 3
        async with asyncio.timeout(5):
            await b.drained.wait()
        async with connected(mqtt_address(a), "c", version):
            pass


async def test_the_rate_holds() -> None:
    async with two_edges() as (_, b), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mqtt_address(b), f"c{n}")) for n in range(11)]
        began = time.monotonic()
        b.drain(clients_per_s=20)
        await asyncio.gather(*map(goodbye, clients))
        assert 0.4 < time.monotonic() - began < 3
        await asyncio.wait_for(b.drained.wait(), 5)
        assert b.services.clients == {}


async def test_asking_again_changes_the_rate() -> None:
    async with two_edges() as (_, b), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mqtt_address(b), f"c{n}")) for n in range(5)]
        b.drain(clients_per_s=0.1)
        await goodbye(clients[0])
        b.drain(clients_per_s=1_000)
        await asyncio.gather(*map(goodbye, clients[1:]))
        await asyncio.wait_for(b.drained.wait(), 5)


@BOTH
async def test_what_is_in_flight_is_finished_first(version: int) -> None:
    """The client acknowledges after the drain has begun: nothing is sent to it a second time on the other node; what
    came in meanwhile it gets there."""
    fields: dict[str, Any] = STAYS if version == 5 else {"clean_start": False}
    async with two_edges() as (a, b), connected(mqtt_address(b), "c", version, **fields) as client:
        await client.send(Subscribe(1, (SubscriptionRequest("t", 1),)))
        await client.receive(Suback)
        await publish(a, b"1")
        first = await client.receive(Publish)
        b.drain()
        await until(lambda: not _is_writable(b, "c"))
        await publish(a, b"2")
        await client.send(Publish(b"other", b"x", 1, packet_id=5))
        await client.receive(Puback)
        await client.send(Puback(first.packet_id))
        await goodbye(client)
        async with dial(mqtt_address(a), version) as again:
            connack = await again.connect("c", **fields)
            assert connack.session_present
            message = await again.receive(Publish)
            assert (message.payload, message.dup) == (b"2", False)


def _is_writable(node: EdgeNode, client_id: str) -> bool:
    outgoing = node.services.clients[client_id].engine.outgoing
    assert outgoing is not None
    return outgoing.writable


async def publish(node: EdgeNode, payload: bytes) -> None:
    async with connected(mqtt_address(node), "p") as publisher:
        await publisher.send(Publish(b"t", payload, 1, packet_id=1))
        await publisher.receive(Puback)


async def test_a_client_that_acknowledges_nothing_does_not_hold_up_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "SETTLE_S", 0.1)
    async with two_edges() as (a, b), connected(mqtt_address(b), "c", **STAYS) as client:
        await client.send(Subscribe(1, (SubscriptionRequest("t", 1),)))
        await client.receive(Suback)
        await publish(a, b"1")
        await client.receive(Publish)
        b.drain()
        await goodbye(client)
        async with dial(mqtt_address(a)) as again:
            assert (await again.connect("c", **STAYS)).session_present
            message = await again.receive(Publish)
            assert (message.payload, message.dup) == (b"1", True)


async def test_a_command_in_the_log_drains_the_node_it_names() -> None:
    async with two_edges() as (a, b), connected(mqtt_address(b), "c") as client:
        assert a.control is not None
        heartbeat = b.heartbeat()
        await a.control.put(NodeCommand("b", heartbeat.incarnation, clients_per_s=50))
        packet = await goodbye(client)
        assert packet is not None
        assert packet.reason_code is ReasonCode.USE_ANOTHER_SERVER
        await asyncio.wait_for(b.drained.wait(), 5)
        assert a.is_ready()
        assert b.control is not None
        b._take_command_back()
        await until(lambda: b.control is not None and b.control.view.command("b") is None)


async def test_a_node_on_its_own_has_nowhere_to_send_its_clients() -> None:
    node = EdgeNode(edge_config(), MemoryLog())
    await node.start()
    async with connected(mqtt_address(node), "c") as client:
        node.drain()
        await asyncio.wait_for(node.drained.wait(), 5)
        async with dial(mqtt_address(node)) as late:
            assert (await late.connect("late")).reason_code is ReasonCode.SERVER_UNAVAILABLE
        stopping = asyncio.create_task(node.stop())
        packet = await goodbye(client)
        assert packet is not None
        assert packet.reason_code is ReasonCode.SERVER_SHUTTING_DOWN
        await stopping


async def test_a_shut_down_moves_everybody_within_its_time() -> None:
    """As SIGTERM does it: the rate is raised so that all have their turn; who does not settle goes with the rest."""
    async with two_edges(drain_clients_per_s=0.1) as (_, b), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mqtt_address(b), f"c{n}")) for n in range(20)]
        began = time.monotonic()
        stopping = asyncio.create_task(b.shut_down(within_s=2.0))
        packets = await asyncio.gather(*map(goodbye, clients))
        await stopping
        assert time.monotonic() - began < 4
        assert {packet.reason_code for packet in packets if packet} == {ReasonCode.USE_ANOTHER_SERVER}


async def test_who_is_left_at_the_bound_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "SETTLE_S", 60.0)
    async with two_edges() as (a, b), connected(mqtt_address(b), "c") as client:
        await client.send(Subscribe(1, (SubscriptionRequest("t", 1),)))
        await client.receive(Suback)
        await publish(a, b"1")
        await client.receive(Publish)  # and no PUBACK
        began = time.monotonic()
        stopping = asyncio.create_task(b.shut_down(within_s=1.0))
        packet = await goodbye(client)
        assert packet is not None
        assert packet.reason_code is ReasonCode.USE_ANOTHER_SERVER
        await stopping
        assert time.monotonic() - began < 5


async def test_server_references_spread_the_clients() -> None:
    log = MemoryLog()
    nodes = [EdgeNode(edge_config(node_id=name), log) for name in ("a", "b", "c")]
    for node in nodes:
        await node.start()
    try:
        await until(lambda: len(nodes[2]._other_addresses()) == 2)
        client: Any = SimpleNamespace(is_websocket=False)
        first = [nodes[2]._server_reference(client) for _ in range(4)]
        addresses = {address_text(mqtt_address(node)) for node in nodes[:2]}
        assert all(set((each or "").split()) == addresses for each in first)
        assert {(each or "").split()[0] for each in first} == addresses
    finally:
        for node in reversed(nodes):
            await node.stop()
