"""What operators decide through `headwater.control`: bans and the ACL on every edge, for clients that are here, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from support.edges import edge_config, memory_edge, mqtt_address, records_of, until
from support.wire_client import WireClient, connected, dial

from bridge.memory_log import MemoryLog
from edge.access.passwords import add_user
from edge.node import decisions
from edge.node.node import EdgeNode
from edge.wire import (
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from schemas.catalogue import CONTROL
from schemas.control import ACL_KEY, AclRules, Ban, ControlEntry, NodeCommand
from schemas.routes import DEAD_LETTER

ALL = {"permit": "allow", "action": "all", "filter": "#"}
ONLY_A = {"permit": "allow", "action": "all", "filter": "a/#"}
P = TypeVar("P")
BOTH = pytest.mark.parametrize("version", [4, 5])


@asynccontextmanager
async def two_edges(**table: Any) -> AsyncIterator[tuple[EdgeNode, EdgeNode]]:
    log = MemoryLog()
    async with memory_edge(log, node_id="a", **table) as first, memory_edge(log, node_id="b", **table) as second:
        yield first, second


async def put(node: EdgeNode, entry: ControlEntry) -> None:
    assert node.control is not None
    await node.control.put(entry)


async def subscribe(client: WireClient, *topic_filters: str) -> tuple[ReasonCode, ...]:
    await client.send(Subscribe(1, tuple(SubscriptionRequest(each, 1) for each in topic_filters)))
    return (await answer(client, Suback)).reason_codes


async def published(client: WireClient, topic_name: str) -> ReasonCode:
    await client.send(Publish(topic_name.encode(), b"x", 1, packet_id=9))
    return (await answer(client, Puback)).reason_code


async def answer(client: WireClient, kind: type[P]) -> P:
    """The next packet of this kind; messages may come before it."""
    while isinstance(packet := await client.receive(object), Publish):
        pass
    assert isinstance(packet, kind)
    return packet


@BOTH
@pytest.mark.parametrize(
    "ban",
    [Ban("client_id", "bad"), Ban("user", "anonymous"), Ban("address", "127.0.0.1"), Ban("address", "127.0.0.0/8")],
    ids=lambda ban: ban.key,
)
async def test_a_ban_on_one_edge_closes_the_client_on_the_other(version: int, ban: Ban) -> None:
    async with two_edges() as (a, b), connected(mqtt_address(b), "bad", version) as client:
        began = time.monotonic()
        await put(a, ban)
        packets = await client.until_closed()
        assert time.monotonic() - began < 2
        if version == 5:
            [packet] = packets
            assert isinstance(packet, Disconnect)
            assert packet.reason_code is ReasonCode.ADMINISTRATIVE_ACTION
        else:
            assert packets == []
        for node in (a, b):
            async with dial(mqtt_address(node), version) as again:
                refusal = ReasonCode.BANNED if version == 5 else ReasonCode.NOT_AUTHORIZED
                assert (await again.connect("bad")).reason_code is refusal


async def test_a_ban_ends_nobody_elses_connection_and_can_be_lifted() -> None:
    async with two_edges() as (a, b), connected(mqtt_address(b), "good") as good:
        await put(a, Ban("client_id", "bad"))
        async with dial(mqtt_address(a)) as bad:
            assert (await bad.connect("bad")).reason_code is ReasonCode.BANNED
        assert a.control is not None
        await a.control.remove("ban/client_id/bad")
        async with connected(mqtt_address(a), "bad"):
            pass
        await good.send(Pingreq())
        await good.receive(Pingresp)
        await until(lambda: b.services.access.bans.bans() == ())


async def test_a_ban_that_is_over_shuts_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "EXPIRE_EVERY", 1)
    async with memory_edge() as node, connected(mqtt_address(node), "c") as client:
        await put(node, Ban("client_id", "c", expires_at=time.time() - 1))
        await put(node, Ban("client_id", "other", expires_at=time.time() + 0.2))
        assert len(node.services.access.bans.bans()) == 1
        await until(lambda: not node.services.access.bans.bans(), "what has ended is forgotten")
        await client.send(Pingreq())
        await client.receive(Pingresp)
        async with connected(mqtt_address(node), "other"):
            pass


async def test_bans_are_known_before_the_first_client_comes() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node:
        await put(node, Ban("client_id", "bad"))
    async with memory_edge(log) as node, dial(mqtt_address(node)) as client:
        assert (await client.connect("bad")).reason_code is ReasonCode.BANNED


async def test_a_ban_during_connect_refuses_it() -> None:
    """Between the check of the bans and CONNACK lies the claim: who is banned meanwhile does not get in."""
    log = MemoryLog()
    async with memory_edge(log) as node, dial(mqtt_address(node)) as client:
        log.pause()
        asking = asyncio.create_task(client.connect("bad"))
        await until(lambda: any(each.principal is not None for each in node.services.connections))
        ban = Ban("client_id", "bad")
        log.put(CONTROL, 0, ban.key.encode(), ban.to_json())
        log.resume()
        assert (await asking).reason_code is ReasonCode.BANNED
        await until(lambda: not node.services.connections)
        assert node.services.clients == {}


async def test_a_ban_that_cannot_be_read_is_a_dead_letter() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node:
        log.put(CONTROL, 0, b"ban/address/nowhere", b'{"version":1}')
        await until(lambda: any(each.key == b"ban/address/nowhere" for each in records_of(log, DEAD_LETTER)))
        await put(node, Ban("client_id", "bad"))
        async with dial(mqtt_address(node)) as client:
            assert (await client.connect("bad")).reason_code is ReasonCode.BANNED


async def test_other_rules_hold_on_every_edge_and_for_who_is_here() -> None:
    """Subscriptions that are no longer allowed go, also from the stored session; publish targets are resolved anew."""
    stays = Properties(session_expiry_interval_s=600)
    async with (
        two_edges() as (a, b),
        connected(mqtt_address(b), "c", properties=stays, clean_start=False) as client,
    ):
        assert await subscribe(client, "a/#", "b/#", "+", "$share/g/b") == (1, 1, 1, 1)
        assert await published(client, "b/1") is ReasonCode.SUCCESS
        await put(a, AclRules((ONLY_A,), "root"))
        handler = b.services.clients["c"]
        await until(lambda: b.services.table.filters_of(handler) == ("a/#",))
        assert await published(client, "b/1") is ReasonCode.NOT_AUTHORIZED
        assert await published(client, "a/1") is ReasonCode.SUCCESS
        assert handler.sharing is not None
        assert handler.sharing.filters == {}
        await until(lambda: _stored_filters(b, "c") == ["a/#"])
        assert await subscribe(client, "b") == (ReasonCode.NOT_AUTHORIZED,)
        assert a.control is not None
        await a.control.remove(ACL_KEY)  # the file's rules again, which allow everything here
        await until(lambda: type(b.services.access.authorizer).__name__ == "DevAcl")
        assert await subscribe(client, "b") == (1,)


def _stored_filters(node: EdgeNode, client_id: str) -> list[str]:
    stored = node.services.sessions.view.get(client_id)
    return [each.topic_filter for each in stored.state.subscriptions] if stored is not None else []


async def test_rules_replace_those_of_the_file(tmp_path: Any) -> None:
    path = tmp_path / "users"
    add_user(path, "ann", "secret")
    config = edge_config(dev=False, authentication={"password_file": str(path)}, acl=[ONLY_A])
    node = EdgeNode(config, MemoryLog())
    await node.start()
    try:
        async with connected(mqtt_address(node), "c", user_name="ann", password=b"secret") as client:
            assert await subscribe(client, "b") == (ReasonCode.NOT_AUTHORIZED,)
            await put(node, AclRules((ALL,)))
            assert await subscribe(client, "b") == (1,)
            assert node.control is not None
            await node.control.remove(ACL_KEY)
            handler = node.services.clients["c"]
            await until(lambda: node.services.table.filters_of(handler) == ())
    finally:
        await node.stop()


async def test_rules_that_cannot_be_are_refused_and_the_old_ones_stay() -> None:
    from bridge.control import ControlRefused

    async with memory_edge() as node, connected(mqtt_address(node), "c") as client:
        await put(node, AclRules((ONLY_A,)))
        with pytest.raises(ControlRefused, match="ACL rule 1: permit must be"):
            await put(node, AclRules(({"permit": "maybe", "action": "all", "filter": "#"},)))
        assert await subscribe(client, "a", "b") == (1, ReasonCode.NOT_AUTHORIZED)


async def test_rules_that_change_during_connect_bind_the_resumed_session() -> None:
    """The old subscriptions were found to be allowed before the claim; the rules changed before CONNACK."""
    log = MemoryLog()
    stays: dict[str, Any] = {"properties": Properties(session_expiry_interval_s=600), "clean_start": False}
    async with memory_edge(log) as node:
        async with connected(mqtt_address(node), "c", **stays) as client:
            await subscribe(client, "a/#", "b/#")
        await until(lambda: not node.services.clients and not node.services.endings)
        async with dial(mqtt_address(node)) as client:
            asking = asyncio.create_task(client.connect("c", **stays))
            log.hold_commits()
            await until(lambda: any(each.principal is not None for each in node.services.connections))
            await put(node, AclRules((ONLY_A,)))
            log.release_commits()
            assert (await asking).reason_code is ReasonCode.SUCCESS
            await until(lambda: node.services.table.filters_of(node.services.clients["c"]) == ("a/#",))


async def test_many_clients_are_looked_at_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "PORTION", 3)
    async with memory_edge() as node:
        clients = [dial(mqtt_address(node)) for _ in range(10)]
        opened = [await each.__aenter__() for each in clients]
        for number, each in enumerate(opened):
            await each.connect(f"c{number}")
            await subscribe(each, "b/#", "a/1")
        assert node.control is not None
        rules = node.control.put(AclRules((ONLY_A,)))
        bans = (node.control.put(Ban("client_id", f"c{number}")) for number in range(5))
        await asyncio.gather(rules, *bans)
        await until(lambda: sorted(node.services.clients) == [f"c{number}" for number in range(5, 10)])
        await until(lambda: node.services.table.statistics()["subscriptions"] == 5)
        for context in clients:
            await context.__aexit__(None, None, None)


async def test_a_command_for_another_process_is_not_obeyed() -> None:
    async with memory_edge() as node:
        await put(node, NodeCommand("edge-test", "not-this-one"))
        await put(node, NodeCommand("edge-other", node._incarnation))
        await put(node, NodeCommand("edge-test", node._incarnation, command="dance"))
        assert node.is_ready()
