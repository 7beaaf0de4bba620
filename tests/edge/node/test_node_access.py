"""Who gets in and what they may do, over real sockets: limits, passwords, bans, rights, take-over."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from support.edges import memory_edge, mqtt_address, until, values_of
from support.wire_client import connected, dial

from bridge.memory_log import MemoryLog
from edge.access.acl import Acl, load_rules
from edge.access.passwords import add_user
from edge.node.node import EdgeNode
from edge.wire import (
    Connack,
    Connect,
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
    Will,
)

ALL = [{"permit": "allow", "action": "all", "filter": "#"}]


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "passwords"
    for user in ("ann", "bob"):
        add_user(path, user, f"{user}-secret")
    return path


def hardened(path: Path, acl: list[dict[str, str]] | None = None, **limits: float) -> dict[str, Any]:
    return {
        "dev": False,
        "authentication": {"password_file": str(path)},
        "acl": acl if acl is not None else ALL,
        "limits": {"unauthenticated_per_address_per_s": 0} | limits,
    }


@pytest.mark.parametrize(
    ("user", "password", "is_right"),
    [
        ("ann", b"ann-secret", True),
        ("ann", b"bob-secret", False),
        ("ann", None, False),
        ("nobody", b"x", False),
        ("", b"", False),
        (None, None, False),
    ],
)
async def test_password_file(password_file: Path, user: str | None, password: bytes | None, is_right: bool) -> None:
    async with memory_edge(**hardened(password_file)) as node:
        for version, refusal in ((5, ReasonCode.BAD_USER_NAME_OR_PASSWORD), (4, ReasonCode.BAD_USER_NAME_OR_PASSWORD)):
            async with dial(mqtt_address(node), version) as client:
                if password is not None or user is None or version == 5:
                    connack = await client.connect("c", user_name=user, password=password, will=Will("w"))
                    assert connack.reason_code is (ReasonCode.SUCCESS if is_right else refusal)
                    if not is_right:
                        assert await client.until_closed() == []
                        assert node.services.clients == {}
        if not is_right:
            assert node.services.counters.wills_published == 0


async def test_take_over_on_the_same_node() -> None:
    """[MQTT5-3.1.4-3] [MQTT311-3.1.4-2]: the older one hears 0x8E, its will is sent, its subscriptions are gone."""
    log = MemoryLog()
    async with memory_edge(log) as node:
        async with connected(mqtt_address(node), "me", will=Will("wills/me", b"old", 1)) as old:
            await old.send(Subscribe(1, (SubscriptionRequest("a"),)))
            await old.receive(Suback)
            async with connected(mqtt_address(node), "me", 4, will=Will("wills/me", b"new")) as new:
                [packet] = await old.until_closed()
                assert isinstance(packet, Disconnect)
                assert packet.reason_code is ReasonCode.SESSION_TAKEN_OVER
                await until(lambda: values_of(log, topic_name="wills/me") == [b"old"])
                await until(lambda: node.services.table.statistics()["subscriptions"] == 0)
                assert node.services.clients["me"].engine.protocol_version == 4
                assert node.services.counters.taken_over_total == 1
                await new.send(Pingreq())
                await new.receive(Pingresp)
                await new.send(Disconnect())
                await new.until_closed()
        await until(lambda: not node.services.clients)
    assert values_of(log, topic_name="wills/me") == [b"old"]


async def test_take_over_again_and_again() -> None:
    async with memory_edge() as node:
        clients = [dial(mqtt_address(node)) for _ in range(20)]
        opened = [await each.__aenter__() for each in clients]
        await asyncio.gather(*(each.send(Connect(5, "same", keep_alive_s=60)) for each in opened))
        codes = [(await each.receive(Connack)).reason_code for each in opened]
        assert ReasonCode.SUCCESS in codes
        assert set(codes) <= {ReasonCode.SUCCESS, ReasonCode.SERVER_BUSY}  # superseded before it was accepted
        await until(lambda: len(node.services.connections) == 1)
        assert len(node.services.clients) == 1
        [winner] = node.services.connections
        assert node.services.clients["same"] is winner
        for context in clients:
            await context.__aexit__(None, None, None)
        await until(lambda: not node.services.connections)
        assert node.services.clients == {}


async def test_a_client_id_belongs_to_its_user(password_file: Path) -> None:
    async with memory_edge(**hardened(password_file)) as node:
        ann: dict[str, Any] = {"user_name": "ann", "password": b"ann-secret"}
        bob: dict[str, Any] = {"user_name": "bob", "password": b"bob-secret"}
        async with connected(mqtt_address(node), "dev", **ann) as first:
            for version, code in ((5, ReasonCode.NOT_AUTHORIZED), (4, ReasonCode.NOT_AUTHORIZED)):
                async with dial(mqtt_address(node), version) as second:
                    assert (await second.connect("dev", **bob)).reason_code is code
                    assert await second.until_closed() == []
            await first.send(Pingreq())
            await first.receive(Pingresp)
        await until(lambda: not node.services.clients)
        async with connected(mqtt_address(node), "dev", **bob):
            assert node.services.clients["dev"].principal is not None
            assert node.services.clients["dev"].principal.name == "bob"


@pytest.mark.parametrize("key", ["ban/client_id/bad", "ban/address/127.0.0.1", "ban/user/eve"])
async def test_bans(key: str) -> None:
    async with memory_edge() as node:
        from schemas.control import Ban

        kind, _, value = key.removeprefix("ban/").partition("/")
        ban = Ban(kind, value, None, "", "")
        node.services.access.bans.put(ban)
        for version, code in ((5, ReasonCode.BANNED), (4, ReasonCode.NOT_AUTHORIZED)):
            async with dial(mqtt_address(node), version) as client:
                fields = {"user_name": "eve", "password": b"x"} if kind == "user" else {}
                assert (await client.connect("bad", **fields)).reason_code is code
                assert await client.until_closed() == []
        node.services.access.bans.lift(ban.key)
        async with connected(mqtt_address(node), "bad"):
            pass


async def test_a_flapping_client_id_is_banned() -> None:
    async with memory_edge(limits={"flapping_per_min": 3}) as node:
        codes = []
        for _ in range(5):
            async with dial(mqtt_address(node)) as client:
                codes.append((await client.connect("flap")).reason_code)
        assert codes == [ReasonCode.SUCCESS] * 3 + [ReasonCode.BANNED] * 2
        async with connected(mqtt_address(node), "other"):
            pass


async def test_guessing_passwords_blocks_the_address(password_file: Path) -> None:
    async with memory_edge(**hardened(password_file, failures_per_min=3)) as node:
        for _ in range(3):
            async with dial(mqtt_address(node)) as client:
                wrong = await client.connect("c", user_name="ann", password=b"guess")
                assert wrong.reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD
        async with dial(mqtt_address(node)) as client:
            await client.send(Connect(5, "c", user_name="ann", password=b"ann-secret"))
            assert await client.until_closed() == []


@pytest.mark.parametrize("size", [65_533, 1_000_000, 268_435_455])
async def test_a_stranger_may_not_send_more_than_64_kib(size: int) -> None:
    async with memory_edge() as node, dial(mqtt_address(node)) as client:
        length = b""
        while size:
            length += bytes((size & 0x7F | (0x80 if size > 0x7F else 0),))
            size >>= 7
        await client.send(b"\x10" + length)
        assert await client.until_closed() == []
        await until(lambda: not node.services.connections)


@pytest.mark.parametrize("data", [b"", b"\x10", b"\x10\x20\x00\x04MQ"])
async def test_who_says_nothing_is_closed(data: bytes) -> None:
    async with memory_edge(limits={"connect_timeout_s": 1.0}) as node, dial(mqtt_address(node)) as client:
        began = time.monotonic()
        await client.send(data)
        assert await client.until_closed() == []
        assert 0.8 < time.monotonic() - began < 5


async def test_strangers_per_address() -> None:
    async with memory_edge(limits={"unauthenticated_per_address_max": 2}) as node:
        address = mqtt_address(node)
        async with dial(address) as one, dial(address):
            await until(lambda: len(node.services.connections) == 2)
            async with dial(address) as third:
                assert await third.until_closed() == []
            assert node.services.access.gate.statistics()["refused_address_full"] == 1
            await one.connect("one")  # no stranger any more: its place is free
            async with connected(address, "fourth"):
                pass


async def test_new_connections_per_second_and_address(password_file: Path) -> None:
    table = hardened(password_file, unauthenticated_per_address_per_s=3)
    async with memory_edge(**table) as node:
        contexts = [dial(mqtt_address(node)) for _ in range(5)]
        clients = [await each.__aenter__() for each in contexts]
        for client in clients[3:]:
            assert await client.until_closed() == []
        assert node.services.access.gate.statistics()["refused_address_rate"] == 2
        for context in contexts:
            await context.__aexit__(None, None, None)


async def test_too_many_connects_wait_their_turn_or_are_refused() -> None:
    async with memory_edge(limits={"connects_per_s": 2, "connect_wait_s_max": 1.0}) as node:
        contexts = [dial(mqtt_address(node)) for _ in range(8)]
        clients = [await each.__aenter__() for each in contexts]
        for number, client in enumerate(clients):
            await client.send(Connect(5, f"c{number}", keep_alive_s=60))
        codes = [(await client.receive(Connack)).reason_code for client in clients]
        assert codes.count(ReasonCode.SUCCESS) in (3, 4, 5)
        assert codes.count(ReasonCode.CONNECTION_RATE_EXCEEDED) == 8 - codes.count(ReasonCode.SUCCESS)
        for context in contexts:
            await context.__aexit__(None, None, None)


RULES = [
    {"permit": "deny", "action": "all", "filter": "a/secret/#"},
    {"permit": "allow", "action": "all", "filter": "a/#"},
    {"permit": "allow", "action": "publish", "filter": "own/%c/%u"},
]


@pytest.mark.parametrize(
    ("topic_filter", "is_allowed"),
    [
        ("a/b", True),
        ("a/b/#", True),
        ("a/#", False),  # would match a/secret/…: a subset test, not a match
        ("a/+", False),
        ("a/secret", False),
        ("#", False),
        ("+/b", False),
        ("$SYS/#", False),
        ("own/c/ann", False),
        ("$replay/-1h/a/b", True),
        ("$replay/-1h/now/a/b/#", True),
        ("$replay/-1h/a/#", False),
    ],
)
async def test_acl_of_subscriptions(password_file: Path, topic_filter: str, is_allowed: bool) -> None:
    async with (
        memory_edge(**hardened(password_file, RULES)) as node,
        connected(mqtt_address(node), user_name="ann", password=b"ann-secret") as client,
    ):
        await client.send(Subscribe(1, (SubscriptionRequest(topic_filter),)))
        [code] = (await client.receive(Suback)).reason_codes
        assert code is (ReasonCode.SUCCESS if is_allowed else ReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize("version", [4, 5])
async def test_acl_of_publishes_and_wills(password_file: Path, version: int) -> None:
    log = MemoryLog()
    ann: dict[str, Any] = {"user_name": "ann", "password": b"ann-secret"}
    async with memory_edge(log, **hardened(password_file, RULES)) as node:
        async with connected(mqtt_address(node), "c", version, **ann) as client:
            names = [b"a/b", b"a/secret/x", b"b", b"own/c/ann", b"own/d/ann", b"$SYS/x", b"$CONTROL/x"]
            for packet_id, name in enumerate(names, start=1):
                await client.send(Publish(name, name, 1, packet_id=packet_id))
            answers = [await client.receive(Puback) for _ in names]
            assert [answer.packet_id for answer in answers] == list(range(1, len(names) + 1))
            refused = [answer.packet_id for answer in answers if answer.reason_code is ReasonCode.NOT_AUTHORIZED]
            assert refused == ([2, 3, 5, 6, 7] if version == 5 else [])
        async with dial(mqtt_address(node), version) as client:
            connack = await client.connect("w", will=Will("a/secret/x", b"no"), **ann)
            assert connack.reason_code is ReasonCode.NOT_AUTHORIZED
            await client.until_closed()
    assert sorted(values_of(log)) == [b"a/b", b"own/c/ann"]


async def test_rights_that_change_end_subscriptions_and_targets(password_file: Path) -> None:

    async with (
        memory_edge(**hardened(password_file)) as node,
        connected(mqtt_address(node), user_name="ann", password=b"ann-secret") as client,
    ):
        await client.send(Subscribe(1, (SubscriptionRequest("a/#"), SubscriptionRequest("b"))))
        await client.receive(Suback)
        await client.send(Publish(b"x", b"", 1, packet_id=1))
        assert (await client.receive(Puback)).reason_code is ReasonCode.SUCCESS
        node.services.access.authorizer = Acl(load_rules(RULES[:2]))
        for handler in node.services.clients.values():
            handler.rights_changed()
        assert set(node.services.table.filters_of(node.services.clients["c"])) == set()
        await client.send(Publish(b"x", b"", 1, packet_id=2))
        assert (await client.receive(Puback)).reason_code is ReasonCode.NOT_AUTHORIZED


async def test_nothing_that_waits_is_delivered_without_the_right() -> None:
    """Invariant I14: the window is full when the right goes; what another filter may still bring comes."""
    rules = [{"permit": "allow", "action": "all", "filter": name} for name in ("a/#", "b/#")]
    async with (
        memory_edge(acl=rules) as node,
        connected(mqtt_address(node), "reader", properties=Properties(receive_maximum=1)) as reader,
        connected(mqtt_address(node), "writer") as writer,
    ):
        await reader.send(Subscribe(1, (SubscriptionRequest("a/#", 1), SubscriptionRequest("b/#", 1))))
        await reader.receive(Suback)
        for packet_id, name in enumerate((b"a/1", b"a/2", b"b/1", b"a/3"), start=1):
            await writer.send(Publish(name, name, 1, packet_id=packet_id))
            await writer.receive(Puback)
        outgoing = node.services.clients["reader"].engine.outgoing
        await until(lambda: outgoing is not None and outgoing.queue_length == 3)
        first = await reader.receive(Publish)
        node.services.access.authorizer.replace(load_rules(rules[1:]))  # type: ignore[attr-defined]
        node.services.clients["reader"].rights_changed()
        await reader.send(Puback(first.packet_id))
        second = await reader.receive(Publish)
        assert (first.payload, second.payload) == (b"a/1", b"b/1")
        await reader.send(Puback(second.packet_id), Pingreq())
        assert isinstance(await reader.receive(object), Pingresp)


async def test_a_silent_client_is_closed_and_its_will_sent() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node:
        async with connected(mqtt_address(node), "c", keep_alive_s=1, will=Will("w", b"gone", 1)) as client:
            began = time.monotonic()
            [packet] = await client.until_closed()
            assert 1.3 < time.monotonic() - began < 4
            assert isinstance(packet, Disconnect)
            assert packet.reason_code is ReasonCode.KEEP_ALIVE_TIMEOUT
        await until(lambda: values_of(log, topic_name="w") == [b"gone"])


async def test_a_client_that_hangs_up_has_its_will_sent_one_that_says_goodbye_has_not() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node:
        async with connected(mqtt_address(node), "a", will=Will("w", b"a", 1)):
            pass
        async with connected(mqtt_address(node), "b", 4, will=Will("w", b"b", 1)) as client:
            await client.send(Disconnect())
            await client.until_closed()
        async with connected(mqtt_address(node), "d", will=Will("w", b"d", 1)) as client:
            await client.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE))
            await client.until_closed()
        async with connected(mqtt_address(node), "e", will=Will("w", b"e", 1)) as client:
            await client.send(b"\x00\x00")
            await client.until_closed()
        await until(lambda: len(values_of(log, topic_name="w")) == 3)
        assert values_of(log, topic_name="w") == [b"a", b"d", b"e"]
        assert node.services.counters.wills_published == 3


async def test_an_idle_node_stays_clean(error_log: object) -> None:
    async with memory_edge() as node:
        assert isinstance(node, EdgeNode)
        assert node.services.connections == set()
