"""Packets that no client may send (§2.2, §2.3, §4.8): the connection ends, and nothing answers them."""

from __future__ import annotations

import pytest
from conformance.v311.flows import frame, is_cut, string, subscribed
from support.conformance import Clients, new_topic_name

from edge.wire import Pingresp, Puback, Publish, Suback, Will

SUBSCRIBE = b"\0\1" + string(b"a") + b"\0"
UNSUBSCRIBE = b"\0\1" + string(b"a")
FLAGS_0000 = {"PUBACK": 0x40, "PUBREC": 0x50, "PUBCOMP": 0x70, "PINGREQ": 0xC0}


@pytest.mark.statement("MQTT311-2.2.2-1", "MQTT311-2.2.2-2", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
@pytest.mark.parametrize(
    ("packet_type", "body"),
    [(4, b"\0\1"), (5, b"\0\1"), (7, b"\0\1"), (12, b"")],
    ids=["PUBACK", "PUBREC", "PUBCOMP", "PINGREQ"],
)
async def test_reserved_flags_that_are_0000(clients: Clients, packet_type: int, body: bytes, flags: int) -> None:
    await is_cut(clients, frame(packet_type << 4 | flags, body))


@pytest.mark.statement("MQTT311-3.14.1-1", "MQTT311-2.2.2-2")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
async def test_disconnect_with_flags_is_a_violation_and_no_disconnect(clients: Clients, flags: int) -> None:
    """So the will is published."""
    topic_name = new_topic_name()
    witness = await subscribed(clients, topic_name, qos=1)
    client = await clients.connect(will=Will(topic_name, b"gone", 1))
    await client.send(frame(0xE0 | flags, b""))
    assert await client.until_closed() == []
    assert (await witness.take_message()).payload == b"gone"


@pytest.mark.statement("MQTT311-3.6.1-1", "MQTT311-2.2.2-2", "MQTT311-2.2.2-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
async def test_pubrel_with_other_flags_than_0010(clients: Clients, flags: int) -> None:
    await is_cut(clients, frame(0x60 | flags, b"\0\1"))


@pytest.mark.statement("MQTT311-3.8.1-1", "MQTT311-2.2.2-2", "MQTT311-2.2.2-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
async def test_subscribe_with_other_flags_than_0010(clients: Clients, flags: int) -> None:
    await is_cut(clients, frame(0x80 | flags, SUBSCRIBE))


@pytest.mark.statement("MQTT311-3.10.1-1", "MQTT311-2.2.2-2", "MQTT311-2.2.2-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
async def test_unsubscribe_with_other_flags_than_0010(clients: Clients, flags: int) -> None:
    await is_cut(clients, frame(0xA0 | flags, UNSUBSCRIBE))


WITHOUT_ID = {
    "SUBSCRIBE": frame(0x82, b"\0\0" + string(b"a") + b"\0"),
    "UNSUBSCRIBE": frame(0xA2, b"\0\0" + string(b"a")),
    "PUBLISH with QoS 1": frame(0x32, string(b"a") + b"\0\0x"),
    "PUBLISH with QoS 2": frame(0x34, string(b"a") + b"\0\0x"),
}


@pytest.mark.statement("MQTT311-2.3.1-1", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("data", WITHOUT_ID.values(), ids=WITHOUT_ID)
async def test_packet_identifier_0(clients: Clients, data: bytes) -> None:
    await is_cut(clients, data)


@pytest.mark.statement("MQTT311-3-8.3-4", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("options", [0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFC, 0xFF])
async def test_a_requested_qos_byte_that_is_none(clients: Clients, options: int) -> None:
    await is_cut(clients, frame(0x82, b"\0\1" + string(b"a") + bytes((options,))))
    await is_cut(clients, frame(0x82, SUBSCRIBE + string(b"b") + bytes((options,))))


@pytest.mark.statement("MQTT311-3.8.3-3", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("body", [b"\0\1", b"\0\1" + string(b"a")], ids=["no filter", "no QoS"])
async def test_a_subscribe_without_a_pair(clients: Clients, body: bytes) -> None:
    await is_cut(clients, frame(0x82, body))


@pytest.mark.statement("MQTT311-3.10.3-2", "MQTT311-4.8.0-1")
async def test_an_unsubscribe_without_a_filter(clients: Clients) -> None:
    await is_cut(clients, frame(0xA2, b"\0\1"))


OTHERS = {
    "packet type 0": b"\x00\x00",
    "packet type 15": b"\xf0\x00",
    "CONNACK": b"\x20\x02\x00\x00",
    "SUBACK": b"\x90\x03\x00\x01\x00",
    "UNSUBACK": b"\xb0\x02\x00\x01",
    "PINGRESP": b"\xd0\x00",
    "a fifth byte of Remaining Length": b"\x30\xff\xff\xff\xff\x7f",
    "PUBLISH shorter than its topic name": frame(0x30, b"\0\x05abc"),
    "PUBLISH that ends in its packet identifier": frame(0x32, string(b"a") + b"\0"),
    "PUBACK without an identifier": frame(0x40, b""),
    "PUBACK that ends in its identifier": frame(0x40, b"\0"),
    "PUBREL without an identifier": frame(0x62, b""),
    "SUBSCRIBE shorter than its filter": frame(0x82, b"\0\1\0\x09abc"),
    "UNSUBSCRIBE shorter than its filter": frame(0xA2, b"\0\1\0\x09abc"),
    "SUBSCRIBE without an identifier": frame(0x82, b""),
    "PINGREQ with a body": b"\xc0\x01\x00",
    "DISCONNECT with a body": b"\xe0\x01\x00",
    "PUBACK with a byte too many": frame(0x40, b"\0\1\0"),
}


@pytest.mark.statement("MQTT311-4.8.0-1")
@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
async def test_other_violations(clients: Clients, data: bytes) -> None:
    await is_cut(clients, data)


@pytest.mark.statement("MQTT311-4.8.0-1")
async def test_a_violation_ends_only_its_own_connection(clients: Clients) -> None:
    topic_name = new_topic_name()
    other, publisher = await subscribed(clients, topic_name), await clients.connect()
    await is_cut(clients, b"\xf0\x00")
    await publisher.publish(topic_name, b"x", 1)
    assert (await other.take_message()).payload == b"x"


@pytest.mark.statement("MQTT311-4.8.0-1", "MQTT311-3.3.4-1")
async def test_what_came_before_a_violation_is_processed_what_comes_after_not(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness, client = await subscribed(clients, topic_name, qos=1), await clients.connect()
    await client.send(Publish(topic_name.encode(), b"before", 1, packet_id=1))
    assert await client.receive(Puback) == Puback(1)
    await client.send(b"\xf0\x00", Publish(topic_name.encode(), b"after", 1, packet_id=2))
    assert not [each for each in await client.until_closed() if isinstance(each, Puback | Suback | Pingresp)]
    assert (await witness.take_message()).payload == b"before"
    await (await clients.connect()).publish(topic_name, b"marker", 1)
    assert (await witness.take_message()).payload == b"marker"
