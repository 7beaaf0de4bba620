"""CONNECT and CONNACK (§3.1, §3.2): what is refused, and how; what is accepted."""

from __future__ import annotations

import asyncio
import secrets
from string import ascii_letters, digits

import pytest
from conformance.v311.flows import frame, grant, raw_connect, string, subscribed
from support.conformance import Client, Clients, new_client_id, new_topic_name

from edge.wire import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)

NOT_UTF8 = b"c\xed\xa0\x80"  # a surrogate
ID, TEXT = b"c0ffee", b"x"
INVALID = {
    "reserved flag": raw_connect(0x03, ID),
    "will QoS 3": raw_connect(0x1E, ID, TEXT, TEXT),
    "will QoS 1, no will": raw_connect(0x0A, ID),
    "will QoS 2, no will": raw_connect(0x12, ID),
    "will retain, no will": raw_connect(0x22, ID),
    "will flag, no will fields": raw_connect(0x06, ID),
    "will flag, no will message": raw_connect(0x06, ID, TEXT),
    "will fields, no will flag": raw_connect(0x02, ID, TEXT, TEXT),
    "user name, no user name flag": raw_connect(0x02, ID, TEXT),
    "user name flag, no user name": raw_connect(0x82, ID),
    "password, no password flag": raw_connect(0x82, ID, TEXT, TEXT),
    "password flag, no password": raw_connect(0xC2, ID, TEXT),
    "password without user name": raw_connect(0x42, ID, TEXT),
    "no client identifier": raw_connect(0x02),
    "client identifier not UTF-8": raw_connect(0x02, NOT_UTF8),
    "client identifier with U+0000": raw_connect(0x02, b"c\0c"),
    "will topic not UTF-8": raw_connect(0x06, ID, NOT_UTF8, TEXT),
    "will topic with U+0000": raw_connect(0x06, ID, b"a\0b", TEXT),
    "will topic with a wildcard": raw_connect(0x06, ID, b"a/+", TEXT),
    "user name not UTF-8": raw_connect(0x82, ID, NOT_UTF8),
    "user name with U+0000": raw_connect(0x82, ID, b"u\0"),
    "flags of the fixed header": raw_connect(0x02, ID, first_byte=0x11),
    "ends after the protocol name": frame(0x10, string(b"MQTT")),
    "ends inside the client identifier": raw_connect(0x02, tail=b"\0\x10abc"),
    "a byte too many": raw_connect(0x02, ID, tail=b"\0"),
}


@pytest.mark.statement(
    "MQTT311-3.1.4-1",
    "MQTT311-3.2.2-6",
    "MQTT311-4.8.0-1",
    "MQTT311-3.1.2-3",
    "MQTT311-3.1.2-14",
    "MQTT311-3.1.2-11",
    "MQTT311-3.1.2-13",
    "MQTT311-3.1.2-15",
    "MQTT311-3.1.2-9",
    "MQTT311-3.1.2-18",
    "MQTT311-3.1.2-19",
    "MQTT311-3.1.2-20",
    "MQTT311-3.1.2-21",
    "MQTT311-3.1.2-22",
    "MQTT311-3.1.3-3",
    "MQTT311-3.1.3-4",
    "MQTT311-1.5.3-1",
    "MQTT311-1.5.3-2",
    "MQTT311-3.1.3-10",
    "MQTT311-3.3.2-2",
    "MQTT311-4.7.1-1",
    "MQTT311-3.1.3-11",
    "MQTT311-2.2.2-1",
    "MQTT311-2.2.2-2",
)
@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
async def test_an_invalid_connect_gets_no_connack(clients: Clients, data: bytes) -> None:
    client = await clients.dial()
    await client.send(data)
    assert await client.until_closed() == []


FIRST_PACKETS: tuple[Packet, ...] = (
    Publish(b"a", b"x"),
    Publish(b"a", b"x", 1, packet_id=1),
    Publish(b"a", b"x", 2, packet_id=1),
    Puback(1),
    Subscribe(1, (SubscriptionRequest("a"),)),
    Unsubscribe(1, ("a",)),
    Pingreq(),
    Disconnect(),
    Connack(),
)


@pytest.mark.statement("MQTT311-3.1.0-1", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("packet", FIRST_PACKETS, ids=lambda packet: type(packet).__name__)
async def test_the_first_packet_is_connect(clients: Clients, packet: Packet) -> None:
    client = await clients.dial()
    await client.send(packet)
    assert await client.until_closed() == []


@pytest.mark.statement("MQTT311-3.1.0-2", "MQTT311-4.8.0-1")
async def test_a_second_connect_ends_the_connection(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(raw_connect(0x02, client.client_id.encode()), Pingreq())
    assert await client.until_closed() == []


@pytest.mark.statement("MQTT311-3.1.2-1")
@pytest.mark.parametrize("name", [b"MQTX", b"mqtt", b"", b"MQTT\0", b"AMQP", b"HTTP/1.1"])
async def test_another_protocol_name_is_not_served_as_mqtt(clients: Clients, name: bytes) -> None:
    client = await clients.dial()
    await client.send(raw_connect(0x02, new_client_id().encode(), name=name), Pingreq())
    packets = await client.until_closed()
    assert Connack() not in packets
    assert Pingresp() not in packets


@pytest.mark.statement("MQTT311-3.1.2-2", "MQTT311-3.2.2-4", "MQTT311-3.2.2-5")
@pytest.mark.parametrize("level", [0, 1, 2, 3, 6, 99])
async def test_an_unsupported_level_is_answered_with_1(clients: Clients, level: int) -> None:
    client = await clients.dial()
    await client.send(raw_connect(0x02, new_client_id().encode(), level=level))
    assert await client.until_closed() == [Connack(False, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)]


@pytest.mark.statement("MQTT311-3.1.3-8", "MQTT311-3.1.3-9", "MQTT311-3.1.3-7", "MQTT311-3.2.2-4", "MQTT311-3.2.2-5")
async def test_an_empty_client_identifier_needs_clean_session(clients: Clients) -> None:
    client = await clients.dial()
    await client.send(raw_connect(0x00, b""))
    assert await client.until_closed() == [Connack(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)]


REFUSED = {"identifier": raw_connect(0x00, b""), "level": raw_connect(0x02, b"c1", level=6)}


@pytest.mark.statement("MQTT311-3.1.4-5", "MQTT311-3.2.2-5")
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
async def test_nothing_behind_a_refused_connect_is_processed(clients: Clients, refused: bytes) -> None:
    topic_name = new_topic_name()
    behind = (
        Publish(topic_name.encode(), b"no", 1, packet_id=1),
        Subscribe(2, (SubscriptionRequest(topic_name),)),
        Publish(topic_name.encode(), b"no", 2, packet_id=3),
        Pingreq(),
    )
    witness, publisher = await subscribed(clients, topic_name, qos=2), await clients.connect()
    client = await clients.dial()
    await client.send(refused, *behind)
    assert [type(each) for each in await client.until_closed()] == [Connack]
    for qos in (1, 2):
        await publisher.publish(topic_name, b"marker", qos)
        assert (await witness.take_message()).payload == b"marker"


@pytest.mark.statement("MQTT311-3.1.4-4", "MQTT311-3.2.0-1", "MQTT311-3.2.2-1")
async def test_a_valid_connect_is_answered_with_0(clients: Clients) -> None:
    client = await clients.dial()
    await client.send(raw_connect(0x02, new_client_id().encode()))
    assert await client.link.read() == b"\x20\x02\x00\x00"


@pytest.mark.statement("MQTT311-3.2.0-1", "MQTT311-3.1.4-4")
async def test_connack_is_the_first_packet_whatever_the_client_sends(clients: Clients) -> None:
    topic_name = new_topic_name()
    client = await clients.dial()
    await client.send(
        raw_connect(0x02, new_client_id().encode()),
        Pingreq(),
        Subscribe(1, (SubscriptionRequest(topic_name, 1),)),
        Publish(topic_name.encode(), b"x", 1, packet_id=2),
    )
    await client.receive(Connack)
    assert (await client.take(Suback)).packet_id == 1
    assert (await client.take(Puback)).packet_id == 2
    assert (await client.take_message()).payload == b"x"


LETTERS = ascii_letters + digits


@pytest.mark.statement("MQTT311-3.1.3-5", "MQTT311-3.1.3-3", "MQTT311-3.1.3-4")
@pytest.mark.parametrize("characters", [LETTERS[:20], LETTERS[20:40], LETTERS[40:], ""])
async def test_an_identifier_of_1_to_23_letters_and_digits_is_accepted(clients: Clients, characters: str) -> None:
    longest = characters + "".join(secrets.choice(LETTERS) for _ in range(23 - len(characters)))
    for client_id in (longest, secrets.choice(LETTERS)):
        await (await clients.connect(client_id)).ping()


@pytest.mark.statement("MQTT311-3.1.3-6")
async def test_an_empty_identifier_becomes_a_unique_one(clients: Clients) -> None:
    topic_name = new_topic_name()
    both = [await subscribed_without_name(clients, topic_name) for _ in range(2)]
    await both[0].publish(topic_name, b"both")
    for client in both:
        assert (await client.take_message()).payload == b"both"


async def subscribed_without_name(clients: Clients, topic_name: str) -> Client:
    client = await clients.connect("")
    await grant(client, topic_name)
    return client


@pytest.mark.statement("MQTT311-3.1.4-2", "MQTT311-3.1.3-2")
@pytest.mark.parametrize("clean", [True, False])
async def test_the_newer_connection_of_an_identifier_stays(clients: Clients, durable_id: str, clean: bool) -> None:
    old = await clients.connect(durable_id, clean_start=clean)
    new = await clients.connect(durable_id, clean_start=clean)
    assert await old.until_closed() == []
    await new.ping()


@pytest.mark.statement("MQTT311-3.1.3-2")
async def test_identifiers_differ_in_case(clients: Clients) -> None:
    client_id = new_client_id()
    lower, upper = await clients.connect(client_id), await clients.connect(client_id.upper())
    await lower.ping()
    await upper.ping()


@pytest.mark.statement("MQTT311-3.1.3-1", "MQTT311-3.1.2-19", "MQTT311-3.1.2-21", "MQTT311-3.1.3-11")
@pytest.mark.parametrize("password", [None, b"", b"\xff\x00binary"])
async def test_user_name_and_password_are_read_where_the_flags_say(clients: Clients, password: bytes | None) -> None:
    client = await clients.dial()
    connack = await client.connect(new_client_id(), user_name="ü", password=password)
    # whoever this server lets in, it has read the packet
    assert connack.reason_code in (
        ReasonCode.SUCCESS,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
    )


@pytest.mark.statement("MQTT311-3.1.2-24", "MQTT311-3.1.2-23")
async def test_a_client_silent_for_one_and_a_half_keep_alives_is_disconnected(clients: Clients) -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    silent, busy = await clients.connect(keep_alive_s=2), await clients.connect(keep_alive_s=1)
    without = await clients.connect(keep_alive_s=0)
    ending = asyncio.create_task(silent.until_closed(15))
    while not (await asyncio.wait({ending}, timeout=0.4))[0]:
        await busy.ping()
    assert ending.result() == []
    assert loop.time() - start_s > 2.9  # 3 s, and what the server's timer is late
    await busy.ping()
    await without.ping()


@pytest.mark.statement("MQTT311-3.1.2-24")
async def test_any_packet_counts_for_the_keep_alive(clients: Clients) -> None:
    silent, topic_name = await clients.connect(keep_alive_s=2), new_topic_name()
    busy = [await clients.connect(keep_alive_s=1) for _ in range(3)]
    ending = asyncio.create_task(silent.until_closed(15))
    while not (await asyncio.wait({ending}, timeout=0.4))[0]:
        for qos, client in enumerate(busy):
            await client.publish(topic_name, b"x", qos)
    for client in busy:
        await client.ping()
