"""UTF-8 strings, string pairs and Variable Byte Integers (§1.5)."""

from __future__ import annotations

import pytest
from support.conformance import (
    Clients,
    connect_frame,
    frame,
    new_client_id,
    new_topic_name,
    properties,
    publish_frame,
    string,
)

from edge.wire import Properties, ReasonCode

MALFORMED = (ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR, ReasonCode.TOPIC_NAME_INVALID)
ILL_FORMED = {
    "lone-continuation": b"a\x80",
    "cut-off": b"a\xe2\x82",
    "overlong": b"a\xc0\xaf",
    "overlong-nul": b"a\xc0\x80",
    "surrogate-D800": b"a\xed\xa0\x80",
    "surrogate-DFFF": b"a\xed\xbf\xbf",
    "surrogate-pair": b"a\xed\xa0\xbd\xed\xb8\x80",
    "above-10FFFF": b"a\xf4\x90\x80\x80",
    "five-bytes": b"a\xf8\x88\x80\x80\x80",
    "FF": b"a\xff",
}


@pytest.mark.statement("MQTT5-1.5.4-1", "MQTT5-3.3.2-1")
@pytest.mark.parametrize("raw", ILL_FORMED.values(), ids=ILL_FORMED)
async def test_an_ill_formed_topic_name_closes(clients: Clients, raw: bytes) -> None:
    client = await clients.connect()
    await client.send(publish_frame(raw))
    await client.closed_for(*MALFORMED)


@pytest.mark.statement("MQTT5-1.5.4-1")
@pytest.mark.parametrize("raw", ILL_FORMED.values(), ids=ILL_FORMED)
async def test_an_ill_formed_client_id_is_refused(clients: Clients, raw: bytes) -> None:
    client = await clients.dial()
    await client.send(connect_frame(string(raw)))
    await client.refused_for(*MALFORMED, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)


@pytest.mark.statement("MQTT5-1.5.4-2")
@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(publish_frame(b"a\0"), id="topic-name"),
        pytest.param(publish_frame("a", more=properties(b"\x03", string(b"\0"))), id="content-type"),
        pytest.param(publish_frame("a", more=properties(b"\x08", string(b"a\0"))), id="response-topic"),
    ],
)
async def test_u0000_in_a_string_closes(clients: Clients, packet: bytes) -> None:
    client = await clients.connect()
    await client.send(packet)
    await client.closed_for(*MALFORMED)


@pytest.mark.statement("MQTT5-1.5.4-2")
async def test_u0000_in_a_client_id_is_refused(clients: Clients) -> None:
    client = await clients.dial()
    await client.send(connect_frame(string(b"a\0b")))
    await client.refused_for(*MALFORMED, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)


@pytest.mark.statement("MQTT5-1.5.7-1")
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param((b"\xff", b"v"), id="name-ill-formed"),
        pytest.param((b"n", b"\xff"), id="value-ill-formed"),
        pytest.param((b"n\0", b"v"), id="name-with-U+0000"),
        pytest.param((b"n", b"v\0"), id="value-with-U+0000"),
    ],
)
async def test_both_halves_of_a_string_pair_are_utf8(clients: Clients, pair: tuple[bytes, bytes]) -> None:
    client = await clients.connect()
    await client.send(publish_frame("a", more=properties(b"\x26", string(pair[0]), string(pair[1]))))
    await client.closed_for(*MALFORMED)


@pytest.mark.statement("MQTT5-1.5.4-3", "MQTT5-4.7.3-4")
async def test_a_byte_order_mark_is_a_character(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.connect()
    await client.subscribe(f"{topic_name}/\ufeffx", f"{topic_name}/x")
    await client.publish(f"{topic_name}/\ufeffx", b"1", content_type="\ufeff", user_properties=(("\ufeff", "a\ufeff"),))
    message = await client.message()
    assert message.topic_name_utf8 == f"{topic_name}/".encode() + b"\xef\xbb\xbfx"
    assert message.properties == Properties(content_type="\ufeff", user_properties=(("\ufeff", "a\ufeff"),))
    await client.ping()


@pytest.mark.statement("MQTT5-1.5.4-1", "MQTT5-3.3.2-1")
async def test_well_formed_strings_of_all_lengths_are_kept(clients: Clients) -> None:
    topic_name = f"{new_topic_name()}/a\u00e9\u20ac\U0001f600\U0010fffd"
    client = await clients.connect()
    await client.subscribe(topic_name)
    await client.publish(topic_name, b"1")
    assert (await client.message()).topic_name_utf8 == topic_name.encode()


@pytest.mark.statement("MQTT5-1.5.5-1")
@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"\xc0\x80\x00", id="remaining-length"),
        pytest.param(frame(0x30, string("a/b"), b"\x80\x00", b"x"), id="property-length"),
        pytest.param(frame(0x82, b"\0\1\3\x0b\x81\x00", string("a/b"), b"\0"), id="subscription-identifier"),
    ],
)
async def test_a_variable_byte_integer_that_could_be_shorter_closes(clients: Clients, packet: bytes) -> None:
    client = await clients.connect()
    await client.send(packet)
    await client.closed_for(*MALFORMED)


@pytest.mark.statement("MQTT5-4.13.1-1")
async def test_a_remaining_length_of_five_bytes_closes(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(b"\x30\xff\xff\xff\xff\x01")
    await client.closed_for(*MALFORMED, ReasonCode.PACKET_TOO_LARGE)


@pytest.mark.statement("MQTT5-2.2.2-1")
async def test_packets_without_properties_say_so(clients: Clients) -> None:
    """A property length of 0 is read from the client, and never left out by the server where it must stand."""
    client = await clients.dial()
    await client.send(connect_frame(string(new_client_id()), more=b"\0"), publish_frame("a/b", b"x", more=b"\0"))
    await client.send(frame(0x82, b"\0\1\0", string(new_topic_name()), b"\0"))
    await client.send(frame(0xA2, b"\0\2\0", string(new_topic_name())), b"\xe0\x00")
    await client.until_closed()
    bodies = dict(client.frames)
    assert bodies.keys() == {0x20, 0x90, 0xB0}
    assert len(bodies[0x90]) >= 4
    assert len(bodies[0xB0]) >= 4


@pytest.mark.statement("MQTT5-2.2.2-1")
async def test_a_connect_without_property_length_is_malformed(clients: Clients) -> None:
    client = await clients.dial()
    await client.send(connect_frame(more=b""))
    await client.refused_for(*MALFORMED)
