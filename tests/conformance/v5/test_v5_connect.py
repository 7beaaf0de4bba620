"""CONNECT and CONNACK (§3.1, §3.2)."""

from __future__ import annotations

import asyncio

import pytest
from support.conformance import (
    RUN,
    WAIT_S,
    Clients,
    connect_frame,
    new_client_id,
    new_topic_name,
    properties,
    publish_frame,
    string,
)
from support.limited import durable, lacks_qos_2, lacks_retain

from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Properties,
    Publish,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    Will,
)

MALFORMED = (0x80, 0x81, 0x82)


@pytest.mark.statement("MQTT5-3.1.4-5", "MQTT5-3.2.0-1", "MQTT5-3.2.2-1")
async def test_an_accepted_connect_is_answered_by_connack_first(clients: Clients) -> None:
    client = await clients.dial()
    await client.send(Connect(5, new_client_id()), Pingreq())
    connack = await client.receive(Connack)
    assert connack.reason_code is ReasonCode.SUCCESS
    assert client.frames[0][1][0] in (0, 1), "bits 7 to 1 of the flags are 0"


@pytest.mark.statement("MQTT5-3.1.0-1", "MQTT5-3.14.0-1")
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(Publish(b"a/b"), id="PUBLISH"),
        pytest.param(Subscribe(1, (SubscriptionRequest("a/b"),)), id="SUBSCRIBE"),
        pytest.param(Pingreq(), id="PINGREQ"),
        pytest.param(Disconnect(), id="DISCONNECT"),
        pytest.param(b"\xf0\x00", id="AUTH"),
        pytest.param(b"\x20\x03\x00\x00\x00", id="CONNACK"),
        pytest.param(b"\x00\x00", id="reserved"),
    ],
)
async def test_another_first_packet_than_connect_closes(clients: Clients, first: Publish) -> None:
    """A refusing CONNACK is allowed, a DISCONNECT is not: no CONNACK of success has come before it."""
    client = await clients.dial()
    await client.send(first)
    await client.refused_for()


@pytest.mark.statement("MQTT5-3.1.0-2", "MQTT5-3.2.0-2")
async def test_a_second_connect_closes_and_gets_no_second_connack(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(Connect(5, client.client_id))
    await client.closed_for(ReasonCode.PROTOCOL_ERROR)


@pytest.mark.statement("MQTT5-3.1.2-1")
@pytest.mark.parametrize("name", [b"MQTS", b"mqtt", b"MQT", b"", b"MQTTMQTT"])
async def test_another_protocol_name_is_refused(clients: Clients, name: bytes) -> None:
    client = await clients.dial()
    client.decodes = False  # in the form of which version, nobody can know
    await client.send(connect_frame(string(new_client_id()), name=name))
    await client.until_closed()
    assert [first_byte for first_byte, _ in client.frames] in ([], [0x20])
    assert all(body[:2] in (b"\x00\x84", b"\x00\x01") for _, body in client.frames)


@pytest.mark.statement("MQTT5-3.1.2-2")
@pytest.mark.parametrize("level", [0, 2, 6, 255])
async def test_an_unknown_protocol_version_is_refused(clients: Clients, level: int) -> None:
    client = await clients.dial()
    client.decodes = False
    await client.send(connect_frame(string(new_client_id()), level=level))
    await client.until_closed()
    assert [first_byte for first_byte, _ in client.frames] in ([], [0x20])
    assert all(body[:2] in (b"\x00\x84", b"\x00\x01") for _, body in client.frames)


WILL_FIELDS = (b"\0", string("will/topic"), string("will payload"))


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(
            connect_frame(string("x"), flags=0x03),
            id="reserved-flag",
            marks=pytest.mark.statement("MQTT5-3.1.2-3", "MQTT5-3.1.4-1"),
        ),
        pytest.param(
            connect_frame(string("x"), flags=0x06), id="will-missing", marks=pytest.mark.statement("MQTT5-3.1.2-9")
        ),
        pytest.param(
            connect_frame(string("x"), *WILL_FIELDS[:2], flags=0x06),
            id="will-payload-missing",
            marks=pytest.mark.statement("MQTT5-3.1.2-9"),
        ),
        pytest.param(
            connect_frame(string("x"), flags=0x0A), id="will-qos-alone", marks=pytest.mark.statement("MQTT5-3.1.2-11")
        ),
        pytest.param(
            connect_frame(string("x"), *WILL_FIELDS, flags=0x1E),
            id="will-qos-3",
            marks=pytest.mark.statement("MQTT5-3.1.2-12"),
        ),
        pytest.param(
            connect_frame(string("x"), flags=0x22),
            id="will-retain-alone",
            marks=pytest.mark.statement("MQTT5-3.1.2-13"),
        ),
        pytest.param(
            connect_frame(string("x"), string("user")),
            id="user-name-without-flag",
            marks=pytest.mark.statement("MQTT5-3.1.2-16"),
        ),
        pytest.param(
            connect_frame(string("x"), flags=0x82),
            id="user-name-missing",
            marks=pytest.mark.statement("MQTT5-3.1.2-17"),
        ),
        pytest.param(
            connect_frame(string("x"), string("user"), string("password"), flags=0x82),
            id="password-without-flag",
            marks=pytest.mark.statement("MQTT5-3.1.2-18"),
        ),
        pytest.param(
            connect_frame(string("x"), string("user"), flags=0xC2),
            id="password-missing",
            marks=pytest.mark.statement("MQTT5-3.1.2-19"),
        ),
        pytest.param(connect_frame(), id="client-id-missing", marks=pytest.mark.statement("MQTT5-3.1.3-3")),
        pytest.param(
            connect_frame(string(b"bad\xff")), id="client-id-no-utf8", marks=pytest.mark.statement("MQTT5-3.1.3-4")
        ),
        pytest.param(
            connect_frame(string("x"), b"\0", string(b"bad\xff"), string("p"), flags=0x06),
            id="will-topic-no-utf8",
            marks=pytest.mark.statement("MQTT5-3.1.3-11"),
        ),
        pytest.param(
            connect_frame(string("x"), string(b"bad\xff"), flags=0x82),
            id="user-name-no-utf8",
            marks=pytest.mark.statement("MQTT5-3.1.3-12"),
        ),
        pytest.param(
            connect_frame(string("x"), first_byte=0x11),
            id="fixed-header-flags",
            marks=pytest.mark.statement("MQTT5-2.1.3-1"),
        ),
        pytest.param(
            connect_frame(string("x"), more=properties(b"\x21\x00\x00")),
            id="receive-maximum-0",
            marks=pytest.mark.statement("MQTT5-3.1.4-1"),
        ),
        pytest.param(
            connect_frame(string("x"), more=properties(b"\x27\x00\x00\x00\x00")),
            id="maximum-packet-size-0",
            marks=pytest.mark.statement("MQTT5-3.1.4-1"),
        ),
        pytest.param(
            connect_frame(string("x"), more=properties(b"\x17\x02")),
            id="request-problem-information-2",
            marks=pytest.mark.statement("MQTT5-3.1.4-1"),
        ),
        pytest.param(
            connect_frame(string("x"), more=properties(b"\x11\x00\x00\x00\x01", b"\x11\x00\x00\x00\x01")),
            id="a-property-twice",
            marks=pytest.mark.statement("MQTT5-3.1.4-1"),
        ),
        pytest.param(
            connect_frame(string("x"), more=properties(b"\x1f", string("why"))),
            id="a-property-of-other-packets",
            marks=pytest.mark.statement("MQTT5-3.1.4-1"),
        ),
        pytest.param(
            connect_frame(string("x"), more=properties(b"\x16", string("data"))),
            id="authentication-data-without-method",
            marks=pytest.mark.statement("MQTT5-3.1.4-1"),
        ),
    ],
)
async def test_a_malformed_connect_is_refused(clients: Clients, packet: bytes) -> None:
    client = await clients.dial()
    await client.send(packet)
    await client.refused_for(*MALFORMED)


@pytest.mark.statement("MQTT5-3.1.3-1", "MQTT5-3.1.2-9")
async def test_the_payload_is_read_in_the_standards_order(clients: Clients) -> None:
    """Client identifier, will properties, topic and payload, user name, password: shown by the will that comes."""
    topic_name = new_topic_name()
    witness = await clients.connect()
    await witness.subscribe(topic_name)
    client = await clients.dial()
    will = (properties(b"\x03", string("type")), string(topic_name), string("the payload"))
    await client.send(connect_frame(string(new_client_id()), *will, string("user"), string("password"), flags=0xC6))
    connack = await client.receive(Connack)
    if connack.reason_code in (ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED):
        return  # this server knows its users: the payload was read to the end
    assert connack.reason_code is ReasonCode.SUCCESS
    await client.close()
    message = await witness.message()
    assert message.topic_name_utf8.decode() == topic_name
    assert message.payload == b"the payload"
    assert message.properties is not None
    assert message.properties.content_type == "type"


@pytest.mark.statement("MQTT5-3.1.3-5")
@pytest.mark.parametrize(
    "client_id", ["Z", "0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ9876543"]
)
async def test_client_ids_of_1_to_23_letters_and_digits_are_accepted(clients: Clients, client_id: str) -> None:
    client = await clients.connect(client_id)
    await client.ping()


@pytest.mark.statement("MQTT5-3.1.3-6", "MQTT5-3.1.3-7", "MQTT5-3.2.2-16")
async def test_a_client_without_an_id_is_given_one_of_its_own(clients: Clients) -> None:
    assigned = [(await clients.connect("")).connack.properties.assigned_client_identifier for _ in range(3)]
    assert all(assigned)
    assert len(set(assigned)) == 3


@pytest.mark.statement("MQTT5-3.1.3-7", "MQTT5-3.1.3-2")
async def test_an_assigned_client_id_is_that_of_the_session(clients: Clients) -> None:
    first = await durable(clients, "")
    assert first.client_id
    second = await durable(clients, first.client_id)
    assert second.connack.session_present == (second.session_expiry_s(60) > 0)
    assert second.connack.properties.assigned_client_identifier is None
    await first.closed_for(ReasonCode.SESSION_TAKEN_OVER, wait_s=WAIT_S)


@pytest.mark.statement("MQTT5-3.1.3-8")
async def test_a_client_id_that_is_not_accepted_is_refused_as_such(clients: Clients) -> None:
    """65,535 bytes: the server may take it, else it may say 0x85 (or that the packet was too long), and closes."""
    client = await clients.dial()
    await client.send(Connect(5, (RUN * 10_000)[:65_535]), Disconnect())
    for packet in await client.until_closed():
        assert isinstance(packet, Connack)
        assert packet.reason_code in (
            ReasonCode.SUCCESS,
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            ReasonCode.PACKET_TOO_LARGE,
        )


@pytest.mark.statement("MQTT5-3.1.4-2", "MQTT5-3.2.2-7", "MQTT5-3.2.2-8", "MQTT5-3.14.0-1")
async def test_a_connect_that_fails_further_checks_is_refused(clients: Clients) -> None:
    client = await clients.dial()
    wishes = Properties(authentication_method="no such method", authentication_data=b"?")
    await client.send(Connect(5, new_client_id(), properties=wishes))
    await client.refused_for(ReasonCode.BAD_AUTHENTICATION_METHOD, ReasonCode.NOT_AUTHORIZED)


@pytest.mark.statement("MQTT5-3.2.2-6", "MQTT5-3.2.2-7")
async def test_a_refusal_never_says_session_present(clients: Clients) -> None:
    client = await durable(clients)
    await client.disconnect()
    refused = await clients.dial()
    wishes = Properties(authentication_method="no such method", session_expiry_interval_s=60)
    await refused.send(Connect(5, client.client_id, clean_start=False, properties=wishes))
    connack = await refused.refused_for()
    assert connack is None or not connack.session_present


@pytest.mark.statement("MQTT5-3.1.4-6")
async def test_what_follows_a_refused_connect_is_not_processed(clients: Clients) -> None:
    topic_name = new_topic_name()
    witness = await clients.connect()
    await witness.subscribe(topic_name)
    refused = await clients.dial()
    wishes = Properties(authentication_method="no such method")
    await refused.send(Connect(5, new_client_id(), properties=wishes), Publish(topic_name.encode(), b"unheard"))
    await refused.refused_for()
    await witness.publish(topic_name, b"heard")
    assert (await witness.message()).payload == b"heard"


@pytest.mark.statement("MQTT5-3.1.4-3", "MQTT5-3.1.3-2")
async def test_the_same_client_id_again_takes_over(clients: Clients) -> None:
    """The server must say 0x8E to the first, and close it; another client id is left alone."""
    other = await clients.connect()
    first = await clients.connect()
    second = await clients.connect(first.client_id)
    said = await first.closed_for(ReasonCode.SESSION_TAKEN_OVER, wait_s=WAIT_S)
    assert said is not None
    await second.ping()
    await other.ping()


@pytest.mark.statement("MQTT5-3.2.2-9", "MQTT5-3.2.2-11")
async def test_qos_2_works_unless_connack_said_otherwise(clients: Clients) -> None:
    client = await clients.connect()
    if await lacks_qos_2(client):
        return
    assert not (await client.publish(new_topic_name(), b"x", qos=2)).is_error


@pytest.mark.statement("MQTT5-3.2.2-10")
async def test_a_subscribe_may_ask_for_any_qos(clients: Clients) -> None:
    client = await clients.connect()
    requests = [SubscriptionRequest(new_topic_name(), qos) for qos in (0, 1, 2)]
    suback = await client.subscribe(*requests)
    assert [code <= request.qos for code, request in zip(suback.reason_codes, requests, strict=True)] == [True] * 3


@pytest.mark.statement("MQTT5-3.2.2-12")
async def test_a_will_beyond_the_maximum_qos_is_refused(clients: Clients) -> None:
    maximum_qos = (await clients.connect()).maximum_qos
    client = await clients.dial()
    await client.send(Connect(5, new_client_id(), will=Will(new_topic_name(), qos=2)))
    if maximum_qos < 2:
        await client.refused_for(ReasonCode.QOS_NOT_SUPPORTED)
    else:
        assert (await client.receive(Connack)).reason_code is ReasonCode.SUCCESS
        await client.disconnect()


@pytest.mark.statement("MQTT5-3.2.2-13", "MQTT5-3.2.2-14")
async def test_retain_is_refused_where_connack_says_it_is_not_available(clients: Clients) -> None:
    client = await clients.connect()
    willing = await clients.dial()
    await willing.send(Connect(5, new_client_id(), will=Will(new_topic_name(), retain=True)))
    if await lacks_retain(client):
        await willing.refused_for(ReasonCode.RETAIN_NOT_SUPPORTED)
        return
    assert (await willing.receive(Connack)).reason_code is ReasonCode.SUCCESS
    await willing.disconnect()


@pytest.mark.statement("MQTT5-3.2.2-15")
async def test_a_packet_above_the_servers_maximum_is_an_error(clients: Clients) -> None:
    """Without a maximum, 300,000 bytes must do."""
    client = await clients.connect()
    maximum = client.connack.properties.maximum_packet_size_bytes
    topic_name = new_topic_name()
    if maximum is None or maximum > 4_000_000:
        await client.subscribe(topic_name)
        await client.publish(topic_name, bytes(300_000))
        assert len((await client.message()).payload) == 300_000
    else:
        await client.send(publish_frame(topic_name, bytes(maximum)))
        await client.closed_for(ReasonCode.PACKET_TOO_LARGE)


@pytest.mark.statement("MQTT5-3.1.2-22", "MQTT5-3.2.2-22", "MQTT5-3.2.2-21", "MQTT5-3.1.2-21")
async def test_silence_beyond_the_keep_alive_closes(clients: Clients) -> None:
    """The client's own value counts, unless CONNACK has another one, which then does."""
    loop = asyncio.get_running_loop()
    client = await clients.connect(keep_alive_s=1)
    began = loop.time()
    keep_alive_s = client.connack.properties.server_keep_alive_s or 1
    await client.closed_for(ReasonCode.KEEP_ALIVE_TIMEOUT, wait_s=1.5 * keep_alive_s + 10)
    assert loop.time() - began > 1.4 * keep_alive_s


@pytest.mark.statement("MQTT5-3.1.2-20", "MQTT5-3.1.2-22")
async def test_pings_keep_a_connection(clients: Clients) -> None:
    client = await clients.connect(keep_alive_s=1)
    for _ in range(3):
        await client.silent_for(0.9)
        await client.ping()


@pytest.mark.statement("MQTT5-3.1.2-28")
@pytest.mark.parametrize("wishes", [Properties(), Properties(request_response_information=False)])
async def test_no_response_information_comes_unasked(clients: Clients, wishes: Properties) -> None:
    client = await clients.connect(properties=wishes)
    assert client.connack.properties.response_information is None


@pytest.mark.statement("MQTT5-3.1.2-29")
async def test_without_problem_information_answers_carry_no_reasons(clients: Clients) -> None:
    """Whatever goes wrong: reason strings and user properties are in PUBLISH, CONNACK and DISCONNECT only."""
    client = await clients.connect(properties=Properties(request_problem_information=False))
    topic_name = new_topic_name()
    answers = [
        await client.subscribe(topic_name, f"{topic_name}/#", f"$share/group/{topic_name}", "$SYS/#"),
        await client.unsubscribe(topic_name, f"{topic_name}/never"),
    ]
    await client.publish(topic_name, b"nobody listens", qos=1)
    await client.publish(topic_name, b"\xff", qos=1, payload_format_indicator=1)
    for answer in answers:
        assert answer.properties in (None, Properties())
    for first_byte, body in client.frames:
        if first_byte == 0x40:
            assert len(body) <= 3 or body[3:] == b"\0", body
