"""Enhanced authentication on the wire: SCRAM-SHA-256, re-authentication, and every wrong AUTH."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.edges import address_of, memory_edge, mqtt_address, until
from support.scram_client import ScramClient
from support.wire_client import Transport, WireClient, dial

from edge.access.enhanced import Continue, Done, EnhancedExchange, Failed, Step
from edge.access.scram_file import add_scram_user
from edge.node.node import EdgeNode
from edge.wire import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    Will,
    encode,
)

METHOD = "SCRAM-SHA-256"
CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE


@pytest.fixture
def hardened(tmp_path: Path) -> dict[str, Any]:
    for user in ("ann", "bob"):
        add_scram_user(tmp_path / "scram", user, f"{user}-secret", 4_096)
    return {
        "dev": False,
        "authentication": {"scram": {"file": str(tmp_path / "scram")}},
        "acl": [{"permit": "allow", "action": "all", "filter": "#"}],
        "limits": {"unauthenticated_per_address_per_s": 0},
    }


def auth(reason_code: ReasonCode, data: bytes | None, method: str | None = METHOD) -> Auth:
    return Auth(reason_code, Properties(authentication_method=method, authentication_data=data))


def connect(data: bytes | None, method: str = METHOD, **fields: Any) -> Connect:
    return Connect(
        5,
        "c",
        keep_alive_s=60,
        properties=Properties(authentication_method=method, authentication_data=data),
        **fields,
    )


async def challenge(client: WireClient) -> bytes:
    """The data of the AUTH 0x18 that must come next. [MQTT5-4.12.0-2] [MQTT5-4.12.0-5]"""
    packet = await client.receive(Auth)
    assert packet.reason_code is CONTINUE
    assert packet.properties is not None
    assert packet.properties.authentication_method == METHOD
    return packet.properties.authentication_data or b""


async def log_in(client: WireClient, user: str = "ann", password: str = "ann-secret", **fields: Any) -> Connack:
    scram = ScramClient(user, password)
    await client.send(connect(scram.first(), **fields))
    await client.send(auth(CONTINUE, scram.final(await challenge(client))))
    connack = await client.receive(Connack)
    if not connack.reason_code.is_error:
        assert connack.properties.authentication_method == METHOD
        assert connack.properties.authentication_data == scram.expected
    return connack


async def in_place(client: WireClient) -> None:
    await client.send(Pingreq())
    await client.receive(Pingresp)


@pytest.mark.parametrize("transport", ["tcp", "websocket"])
async def test_scram(hardened: dict[str, Any], transport: Transport) -> None:
    async with memory_edge(**hardened) as node, dial(address_of(node, transport), 5, transport) as client:
        assert (await log_in(client)).reason_code is ReasonCode.SUCCESS
        principal = node.services.clients["c"].principal
        assert principal is not None
        assert principal.name == "ann"
        await in_place(client)
        assert node.services.access.gate.statistics()["unauthenticated"] == 0


async def test_the_first_data_may_come_with_auth(hardened: dict[str, Any]) -> None:
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        scram = ScramClient("ann", "ann-secret")
        await client.send(connect(None))
        assert await challenge(client) == b""
        await client.send(auth(CONTINUE, scram.first()))
        await client.send(auth(CONTINUE, scram.final(await challenge(client))))
        assert (await client.receive(Connack)).reason_code is ReasonCode.SUCCESS


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", "ann-secret")])
async def test_who_cannot_show_it_is_refused(hardened: dict[str, Any], user: str, password: str) -> None:
    """[MQTT5-4.12.0-4]; the will is not sent, and the failure counts against the address."""
    hardened["limits"]["failures_per_min"] = 3
    async with memory_edge(**hardened) as node:
        for _ in range(3):
            async with dial(mqtt_address(node)) as client:
                connack = await log_in(client, user, password, will=Will("w", b"x"))
                assert connack.reason_code is ReasonCode.NOT_AUTHORIZED
                assert await client.until_closed() == []
        async with dial(mqtt_address(node)) as client:
            await client.send(connect(ScramClient(user, password).first()))
            assert await client.until_closed() == []
        assert node.services.clients == {}
        assert node.services.counters.wills_published == 0


@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "PLAIN", "", "scram-sha-256"])
async def test_another_method_is_refused(hardened: dict[str, Any], method: str) -> None:
    """[MQTT5-4.12.0-1]"""
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        await client.send(connect(b"", method))
        assert (await client.receive(Connack)).reason_code is ReasonCode.BAD_AUTHENTICATION_METHOD
        assert await client.until_closed() == []


async def test_scram_alone_lets_no_password_in(hardened: dict[str, Any]) -> None:
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        refused = await client.connect("c", user_name="ann", password=b"ann-secret")
        assert refused.reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD


@pytest.mark.parametrize(
    "packet",
    [
        Publish(b"a"),
        Subscribe(1, (SubscriptionRequest("a"),)),
        Pingreq(),
        auth(AGAIN, b""),
        auth(CONTINUE, b"", "SCRAM-SHA-1"),
    ],
    ids=["publish", "subscribe", "pingreq", "re-authenticate", "method"],
)
async def test_before_connack_only_auth_and_disconnect(hardened: dict[str, Any], packet: Packet) -> None:
    """[MQTT5-3.1.2-30] [MQTT5-4.12.0-5]"""
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        await client.send(connect(ScramClient("ann", "x").first()))
        await challenge(client)
        await client.send(packet)
        assert (await client.receive(Connack)).reason_code is ReasonCode.PROTOCOL_ERROR
        assert await client.until_closed() == []


async def test_two_answers_at_once(hardened: dict[str, Any]) -> None:
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        scram = ScramClient("ann", "ann-secret")
        await client.send(connect(scram.first()))
        final = auth(CONTINUE, scram.final(await challenge(client)))
        await client.send(final, final)
        assert (await client.receive(Connack)).reason_code is ReasonCode.PROTOCOL_ERROR
        assert await client.until_closed() == []
        await until(lambda: not node.services.connections)
        assert node.services.clients == {}


async def test_disconnect_before_connack(hardened: dict[str, Any]) -> None:
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        await client.send(connect(ScramClient("ann", "x").first(), will=Will("w", b"x")))
        await challenge(client)
        await client.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE))
        assert await client.until_closed() == []
        assert node.services.counters.wills_published == 0


async def test_an_exchange_has_the_time_of_a_connect(hardened: dict[str, Any]) -> None:
    hardened["limits"]["connect_timeout_s"] = 1.0
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        await client.send(connect(ScramClient("ann", "x").first()))
        await challenge(client)
        assert await client.until_closed() == []
        await until(lambda: not node.services.connections)


@pytest.mark.parametrize("version", [4, 5])
async def test_auth_without_a_method_in_connect(version: int) -> None:
    """[MQTT5-4.12.0-6] [MQTT5-4.12.0-7]; 3.1.1 has no AUTH at all."""
    async with memory_edge() as node, dial(mqtt_address(node), version) as client:
        connack = await client.connect("c")
        assert connack.properties.authentication_method is None
        assert connack.properties.authentication_data is None
        await client.send(encode(auth(CONTINUE, b"x"), 5))
        packets = await client.until_closed()
        reasons = [packet.reason_code for packet in packets if isinstance(packet, Disconnect)]
        assert reasons == ([ReasonCode.PROTOCOL_ERROR] if version == 5 else [])


# Re-authentication ---------------------------------------------------------------------------------------------------


async def again(client: WireClient, user: str = "ann", password: str = "ann-secret") -> ScramClient:
    scram = ScramClient(user, password, nonce="another-nonce")
    await client.send(auth(AGAIN, scram.first()))
    await client.send(auth(CONTINUE, scram.final(await challenge(client))))
    return scram


async def test_re_authentication(hardened: dict[str, Any]) -> None:
    """[MQTT5-4.12.1-1]; packets flow meanwhile."""
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        await log_in(client)
        for _ in range(2):
            scram = ScramClient("ann", "ann-secret", nonce="another-nonce")
            await client.send(auth(AGAIN, scram.first()))
            data = await challenge(client)
            await in_place(client)
            await client.send(auth(CONTINUE, scram.final(data)))
            done = await client.receive(Auth)
            assert done == auth(ReasonCode.SUCCESS, scram.expected)
            await in_place(client)
        assert node.services.clients["c"].exchange is None


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("bob", "bob-secret")])
async def test_a_re_authentication_that_fails_is_the_end(hardened: dict[str, Any], user: str, password: str) -> None:
    """[MQTT5-4.12.1-2]; as bob, too: a session does not change its user."""
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        await log_in(client, will=Will("w", b"x"))
        await again(client, user, password)
        [packet] = await client.until_closed()
        assert isinstance(packet, Disconnect)
        assert packet.reason_code is ReasonCode.NOT_AUTHORIZED
        await until(lambda: node.services.counters.wills_published == 1)


@pytest.mark.parametrize(
    "packets",
    [
        [auth(CONTINUE, b"x")],
        [auth(AGAIN, b"x", "PLAIN")],
        [auth(AGAIN, ScramClient("ann", "x").first()), auth(AGAIN, ScramClient("ann", "x").first())],
    ],
    ids=["nothing to continue", "method", "twice"],
)
async def test_auth_out_of_turn(hardened: dict[str, Any], packets: list[Packet]) -> None:
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        await log_in(client)
        await client.send(*packets)
        packet = (await client.until_closed())[-1]
        assert isinstance(packet, Disconnect)
        assert packet.reason_code is ReasonCode.PROTOCOL_ERROR


# Other mechanisms ----------------------------------------------------------------------------------------------------


class Mechanism:
    """Answers what the test says."""

    methods = frozenset({METHOD})

    def __init__(self, *answers: Step | Exception) -> None:
        self.answers = list(answers)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def statistics(self) -> dict[str, int]:
        return {}

    def begin(self, method: str, client_id: str) -> EnhancedExchange:
        return self

    async def step(self, data: bytes | None) -> Step:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def use(node: EdgeNode, *answers: Step | Exception) -> None:
    node.services.access.enhanced = Mechanism(*answers)


async def test_a_mechanism_that_fails_lets_nobody_in(hardened: dict[str, Any]) -> None:
    async with memory_edge(**hardened) as node:
        for answers in ([OSError("secret")], [Continue(b"?"), TimeoutError()]):
            use(node, *answers)
            async with dial(mqtt_address(node)) as client:
                await client.send(connect(b"x"))
                if len(answers) > 1:
                    await challenge(client)
                    await client.send(auth(CONTINUE, b"y"))
                assert (await client.receive(Connack)).reason_code is ReasonCode.SERVER_BUSY
                assert await client.until_closed() == []
        use(node, Done("ann"), OSError("secret"))
        async with dial(mqtt_address(node)) as client:
            await client.send(connect(b"x"))
            assert (await client.receive(Connack)).reason_code is ReasonCode.SUCCESS
            await client.send(auth(AGAIN, b"y"))
            [packet] = await client.until_closed()
            assert isinstance(packet, Disconnect)
            assert packet.reason_code is ReasonCode.SERVER_BUSY


async def test_auth_larger_than_the_client_takes(hardened: dict[str, Any]) -> None:
    """[MQTT5-3.1.2-24]"""
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        use(node, Continue(bytes(200)))
        packet = connect(b"x")
        packet.properties.maximum_packet_size_bytes = 100
        await client.send(packet)
        assert (await client.receive(Connack)).reason_code is ReasonCode.PACKET_TOO_LARGE
        assert await client.until_closed() == []


async def test_a_proof_that_ends_is_renewed(hardened: dict[str, Any]) -> None:
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        now_s = node.services.wall_ms() / 1000
        use(node, Done("ann", None, expires_at=now_s + 3_600), Done("ann", None, expires_at=now_s - 1))
        await client.send(connect(b"x"))
        await client.receive(Connack)
        await client.send(auth(AGAIN, b"y"))
        assert (await client.receive(Auth)).reason_code is ReasonCode.SUCCESS
        [packet] = await client.until_closed()
        assert isinstance(packet, Disconnect)
        assert packet.reason_code is ReasonCode.NOT_AUTHORIZED


async def test_a_failure_is_told_to_nobody_but_the_log(hardened: dict[str, Any]) -> None:
    async with memory_edge(**hardened) as node, dial(mqtt_address(node)) as client:
        use(node, Failed("no such user"))
        await client.send(connect(b"x"))
        connack = await client.receive(Connack)
        assert connack.properties.reason_string == "authentication failed"
