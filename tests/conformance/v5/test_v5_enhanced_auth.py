"""Enhanced authentication and AUTH (§3.15, §4.12).

SCRAM-SHA-256 is the method; with `--scram USER:PASSWORD` the broker knows this user. Where it does not know the method,
its refusal is what is tested.
"""

from __future__ import annotations

import pytest
from support.conformance import Client, Clients, connect_frame, frame, new_client_id, properties, string
from support.scram_client import ScramClient

from edge.wire import Auth, Connack, Connect, Disconnect, Packet, Pingreq, Pingresp, Properties, Publish, ReasonCode

METHOD = "SCRAM-SHA-256"
CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE
REFUSED = (
    ReasonCode.BAD_AUTHENTICATION_METHOD,
    ReasonCode.NOT_AUTHORIZED,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.PROTOCOL_ERROR,
    ReasonCode.MALFORMED_PACKET,
    ReasonCode.UNSPECIFIED_ERROR,
)


def _auth(reason_code: ReasonCode, data: bytes | None, method: str | None = METHOD, **more: object) -> Auth:
    wishes = Properties(authentication_method=method, authentication_data=data, **more)  # type: ignore[arg-type]
    return Auth(reason_code, wishes)


async def _begun(clients: Clients, scram: ScramClient, more: Properties | None = None) -> tuple[Client, bytes] | None:
    """A connection up to the server's challenge; None if the server does not know the method, and says so."""
    client = await clients.dial()
    wishes = more or Properties()
    wishes.authentication_method, wishes.authentication_data = METHOD, scram.first()
    await client.send(Connect(5, new_client_id(), keep_alive_s=60, properties=wishes))
    packet = await client.receive(object)
    if isinstance(packet, Connack):
        assert packet.reason_code in (ReasonCode.BAD_AUTHENTICATION_METHOD, ReasonCode.NOT_AUTHORIZED)
        assert await client.until_closed() == []
        return None
    assert isinstance(packet, Auth)
    assert packet.reason_code is CONTINUE
    assert packet.properties is not None
    assert packet.properties.authentication_method == METHOD
    return client, packet.properties.authentication_data or b""


async def _accepted(clients: Clients, more: Properties | None = None) -> Client | None:
    """A client that has authenticated by SCRAM; None where the method, or a user, is not known."""
    if clients.broker.scram is None:
        await _begun(clients, ScramClient("nobody", "x"))
        return None
    scram = ScramClient(*clients.broker.scram)
    begun = await _begun(clients, scram, more)
    assert begun is not None, "the broker has a SCRAM user"
    client, challenge = begun
    await client.send(_auth(CONTINUE, scram.final(challenge)))
    connack = await client.receive(Connack)
    assert connack.reason_code is ReasonCode.SUCCESS
    assert connack.properties.authentication_method == METHOD
    assert connack.properties.authentication_data == scram.expected
    return client


@pytest.mark.statement("MQTT5-4.12.0-1")
@pytest.mark.parametrize("method", ["no such method", "", "scram-sha-256"])
async def test_an_unknown_method_is_refused(clients: Clients, method: str) -> None:
    client = await clients.dial()
    await client.send(Connect(5, new_client_id(), properties=Properties(authentication_method=method)))
    await client.refused_for(*REFUSED)


@pytest.mark.statement("MQTT5-4.12.0-2", "MQTT5-4.12.0-3", "MQTT5-4.12.0-5", "MQTT5-3.15.2-1")
async def test_an_authentication_in_two_steps(clients: Clients) -> None:
    """AUTH 0x18 both ways, the method in each and in CONNACK."""
    client = await _accepted(clients)
    if client is not None:
        await client.ping()


@pytest.mark.statement("MQTT5-4.12.0-4", "MQTT5-3.14.0-1")
@pytest.mark.parametrize("user", ["nobody", None])
async def test_a_wrong_proof_is_refused_by_connack(clients: Clients, user: str | None) -> None:
    """Of a user who does not exist, and of one who does."""
    known = clients.broker.scram[0] if clients.broker.scram else "nobody"
    scram = ScramClient(user or known, "certainly not the password")
    begun = await _begun(clients, scram)
    if begun is not None:
        client, challenge = begun
        await client.send(_auth(CONTINUE, scram.final(challenge)))
        await client.refused_for(*REFUSED)


@pytest.mark.statement("MQTT5-3.1.2-30", "MQTT5-3.1.4-6")
@pytest.mark.parametrize("packet", [Pingreq(), Publish(b"a/b"), Connect(5, "c")], ids=["PINGREQ", "PUBLISH", "CONNECT"])
async def test_before_connack_only_auth_and_disconnect_may_come(clients: Clients, packet: Packet) -> None:
    begun = await _begun(clients, ScramClient("nobody", "x"))
    if begun is not None:
        await begun[0].send(packet)
        await begun[0].refused_for(*REFUSED)


@pytest.mark.statement("MQTT5-3.1.2-30")
async def test_a_client_may_disconnect_during_authentication(clients: Clients) -> None:
    begun = await _begun(clients, ScramClient("nobody", "x"))
    if begun is not None:
        await begun[0].send(Disconnect())
        assert await begun[0].until_closed() == []


@pytest.mark.statement("MQTT5-4.12.0-3", "MQTT5-4.12.0-5", "MQTT5-3.15.2-1")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_auth(CONTINUE, b"x", "another method"), id="another-method"),
        pytest.param(_auth(AGAIN, b"x"), id="0x19"),
        pytest.param(frame(0xF0, b"\x00"), id="0x00"),
        pytest.param(frame(0xF0, b"\x18", b"\0"), id="no-method"),
        pytest.param(frame(0xF0, b"\x87", properties(b"\x15", string(METHOD))), id="0x87"),
    ],
)
async def test_a_wrong_auth_during_authentication_is_refused(clients: Clients, answer: Packet | bytes) -> None:
    begun = await _begun(clients, ScramClient("nobody", "x"))
    if begun is not None:
        await begun[0].send(answer)
        await begun[0].refused_for(*REFUSED)


@pytest.mark.statement("MQTT5-4.12.0-6")
async def test_without_a_method_the_server_sends_no_auth_and_no_method(clients: Clients) -> None:
    client = await clients.connect()
    assert client.connack.properties.authentication_method is None
    assert client.connack.properties.authentication_data is None
    await client.ping()


@pytest.mark.statement("MQTT5-4.12.0-7")
@pytest.mark.parametrize("code", [CONTINUE, AGAIN])
async def test_without_a_method_the_client_may_send_no_auth(clients: Clients, code: ReasonCode) -> None:
    client = await clients.connect()
    await client.send(_auth(code, b"x"))
    await client.closed_for(ReasonCode.PROTOCOL_ERROR, *REFUSED)


@pytest.mark.statement("MQTT5-4.12.1-1", "MQTT5-4.12.0-5", "MQTT5-3.15.2-1")
async def test_a_client_may_authenticate_again(clients: Clients) -> None:
    """Messages go on meanwhile; AUTH 0x00 with the method ends it."""
    client = await _accepted(clients)
    if client is None:
        return
    assert clients.broker.scram is not None
    scram = ScramClient(*clients.broker.scram)
    await client.send(_auth(AGAIN, scram.first()))
    challenge = await client.receive(Auth)
    assert challenge.reason_code is CONTINUE
    assert challenge.properties is not None
    await client.send(Pingreq())
    await client.receive(Pingresp)
    await client.send(_auth(CONTINUE, scram.final(challenge.properties.authentication_data or b"")))
    done = await client.receive(Auth)
    assert done.reason_code is ReasonCode.SUCCESS
    assert done.properties is not None
    assert done.properties.authentication_method == METHOD
    assert done.properties.authentication_data == scram.expected
    await client.ping()


@pytest.mark.statement("MQTT5-4.12.1-2", "MQTT5-4.13.2-1")
async def test_a_failed_re_authentication_ends_the_connection(clients: Clients) -> None:
    client = await _accepted(clients)
    if client is None:
        return
    assert clients.broker.scram is not None
    scram = ScramClient(clients.broker.scram[0], "certainly not the password")
    await client.send(_auth(AGAIN, scram.first()))
    challenge = await client.receive(Auth)
    assert challenge.properties is not None
    await client.send(_auth(CONTINUE, scram.final(challenge.properties.authentication_data or b"")))
    await client.closed_for(*REFUSED)


@pytest.mark.statement("MQTT5-4.12.1-1", "MQTT5-4.12.0-5")
@pytest.mark.parametrize("code", [AGAIN, CONTINUE])
async def test_a_re_authentication_has_the_first_method_and_begins_with_0x19(
    clients: Clients, code: ReasonCode
) -> None:
    client = await _accepted(clients)
    if client is not None:
        await client.send(_auth(code, b"x", "another method" if code is AGAIN else METHOD))
        await client.closed_for(*REFUSED)


@pytest.mark.statement("MQTT5-3.15.1-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
async def test_auth_with_reserved_flags_is_malformed(clients: Clients, flags: int) -> None:
    client = await clients.connect()
    await client.send(frame(0xF0 | flags, b"\x18", properties(b"\x15", string(METHOD))))
    await client.closed_for(ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.statement("MQTT5-3.15.2-2", "MQTT5-3.15.2-3", "MQTT5-3.1.2-24")
async def test_auth_keeps_within_the_clients_maximum_packet_size(clients: Clients) -> None:
    """Enough for what an exchange must say, too little for a sentence with it."""
    client = await _accepted(clients, Properties(maximum_packet_size_bytes=140))
    if client is not None:
        assert all(len(body) <= 138 for _, body in client.frames)


@pytest.mark.statement("MQTT5-4.12.0-1", "MQTT5-3.1.4-1")
async def test_authentication_data_without_a_method_is_a_protocol_error(clients: Clients) -> None:
    client = await clients.dial()
    await client.send(connect_frame(string(new_client_id()), more=properties(b"\x16", string("data"))))
    await client.refused_for(*REFUSED)
