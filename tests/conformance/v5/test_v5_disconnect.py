"""PINGREQ, DISCONNECT, reserved flags, and errors in general (§2.1, §3.12, §3.14, §4.13)."""

from __future__ import annotations

import pytest
from support.conformance import Clients, frame, new_topic_name, publish_frame
from support.limited import durable

from edge.wire import Disconnect, Pingreq, Pingresp, Properties, Publish, ReasonCode, Will

MALFORMED = (ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.statement("MQTT5-3.12.4-1")
async def test_every_pingreq_is_answered(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(Pingreq(), Pingreq(), Pingreq())
    for _ in range(3):
        await client.receive(Pingresp)


@pytest.mark.statement("MQTT5-2.1.3-1", "MQTT5-4.13.1-1")
@pytest.mark.parametrize("flags", [1, 8])
@pytest.mark.parametrize(
    ("packet_type", "body"),
    [(4, b"\0\1"), (5, b"\0\1"), (7, b"\0\1"), (12, b"")],
    ids=["PUBACK", "PUBREC", "PUBCOMP", "PINGREQ"],
)
async def test_reserved_flags_that_are_set_close(clients: Clients, packet_type: int, body: bytes, flags: int) -> None:
    client = await clients.connect()
    await client.send(frame(packet_type << 4 | flags, body))
    await client.closed_for(*MALFORMED)


@pytest.mark.statement("MQTT5-3.14.1-1", "MQTT5-3.1.2-8")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
async def test_disconnect_with_reserved_flags_is_an_error_and_no_disconnect(clients: Clients, flags: int) -> None:
    """So the will is published."""
    topic_name = new_topic_name()
    witness = await clients.connect()
    await witness.subscribe(topic_name)
    client = await clients.connect(will=Will(topic_name, b"gone"))
    await client.send(frame(0xE0 | flags))
    await client.closed_for(*MALFORMED)
    assert (await witness.message()).payload == b"gone"


@pytest.mark.statement("MQTT5-3.14.2-1")
@pytest.mark.parametrize("code", [0x01, 0x18, 0x8E, 0xFF])
async def test_disconnect_with_a_code_that_no_client_may_send_is_an_error(clients: Clients, code: int) -> None:
    """Seen by the will, too: this was no normal disconnection."""
    topic_name = new_topic_name()
    witness = await clients.connect()
    await witness.subscribe(topic_name)
    client = await clients.connect(will=Will(topic_name, b"gone"))
    await client.send(frame(0xE0, bytes((code,)), b"\0"))
    await client.closed_for(*MALFORMED)
    assert (await witness.message()).payload == b"gone"


@pytest.mark.statement("MQTT5-3.14.4-1", "MQTT5-3.14.4-2")
async def test_what_a_client_sends_after_disconnect_is_not_processed(clients: Clients) -> None:
    """And the server answers nothing, but closes."""
    topic_name = new_topic_name()
    witness = await clients.connect()
    await witness.subscribe(topic_name)
    client = await clients.connect()
    await client.send(Disconnect(), Publish(topic_name.encode(), b"unheard", 1, packet_id=1), Pingreq())
    assert await client.until_closed() == []
    await witness.publish(topic_name, b"heard")
    assert (await witness.message()).payload == b"heard"


@pytest.mark.statement("MQTT5-3.14.4-1", "MQTT5-3.14.4-2", "MQTT5-3.14.2-2", "MQTT5-4.13.2-1", "MQTT5-4.13.1-1")
async def test_after_the_servers_disconnect_nothing_comes_but_the_end(clients: Clients) -> None:
    """Nor does it process what followed the fault; its DISCONNECT says no Session Expiry Interval."""
    topic_name = new_topic_name()
    witness = await clients.connect()
    await witness.subscribe(topic_name)
    client = await durable(clients)
    await client.subscribe(topic_name)
    await client.send(b"\x00\x00", Publish(topic_name.encode(), b"unheard"), Pingreq())
    said = await client.closed_for(*MALFORMED)
    assert said is None or said.properties is None or said.properties.session_expiry_interval_s is None
    await witness.publish(topic_name, b"heard")
    assert (await witness.message()).payload == b"heard"


@pytest.mark.statement("MQTT5-4.13.1-1")
@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"\x00\x00", id="reserved-type"),
        pytest.param(b"\x20\x03\0\0\0", id="CONNACK"),
        pytest.param(b"\x90\x04\0\1\0\0", id="SUBACK"),
        pytest.param(b"\xb0\x04\0\1\0\0", id="UNSUBACK"),
        pytest.param(b"\xd0\x00", id="PINGRESP"),
        pytest.param(b"\xc0\x01\x00", id="PINGREQ-with-a-body"),
        pytest.param(b"\x40\x01\x00", id="PUBACK-cut-off"),
        pytest.param(b"\x40\x02\0\0", id="PUBACK-of-0"),
        pytest.param(frame(0x30, b"\0\x10abc"), id="PUBLISH-cut-off"),
        pytest.param(frame(0x32, b"\0\1a\0"), id="PUBLISH-without-packet-id"),
        pytest.param(frame(0xE0, b"\0", b"\x05\x11\0\0"), id="DISCONNECT-cut-off"),
    ],
)
async def test_a_malformed_packet_closes(clients: Clients, packet: bytes) -> None:
    client = await clients.connect()
    await client.send(packet)
    await client.closed_for()


@pytest.mark.statement("MQTT5-4.13.2-1", "MQTT5-4.13.1-1")
async def test_a_closed_connection_harms_nobody_else(clients: Clients) -> None:
    other = await clients.connect()
    client = await clients.connect()
    await client.send(publish_frame("a/#"))
    await client.closed_for()
    await other.ping()
    await (await clients.connect(client.client_id)).ping()


@pytest.mark.statement("MQTT5-3.14.2-2", "MQTT5-4.13.1-1")
async def test_a_session_that_had_no_expiry_interval_is_given_none_by_disconnect(clients: Clients) -> None:
    """0 in CONNECT and more than 0 in DISCONNECT is a protocol error (§3.14.2.2.2)."""
    client = await clients.connect(properties=Properties(session_expiry_interval_s=0))
    await client.send(Disconnect(properties=Properties(session_expiry_interval_s=60)))
    await client.closed_for(ReasonCode.PROTOCOL_ERROR)
    assert not (await clients.connect(client.client_id, clean_start=False)).connack.session_present


@pytest.mark.statement("MQTT5-4.2-1")
async def test_packets_need_not_come_in_one_piece(clients: Clients) -> None:
    """The transport is a stream of bytes: byte by byte, and several packets at once."""
    topic_name = new_topic_name()
    client = await clients.connect()
    await client.subscribe(topic_name)
    packet = publish_frame(topic_name, b"payload")
    for index in range(len(packet)):
        await client.send(packet[index : index + 1])
    assert (await client.message()).payload == b"payload"
    await client.send(packet * 3 + packet[:5])
    for _ in range(3):
        assert (await client.message()).payload == b"payload"
    await client.send(packet[5:])
    assert (await client.message()).payload == b"payload"
