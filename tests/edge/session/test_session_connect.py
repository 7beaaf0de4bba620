"""CONNECT: what is negotiated, every refusal, what comes before and behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.playbook import (
    LIMITS,
    START_S,
    Accept,
    Lost,
    Playbook,
    Refuse,
    ServerDisconnect,
    Subscribed,
    TimePasses,
    connected,
    target_of,
)

from edge.session.connect import Capabilities
from edge.session.effects import (
    AppendRecord,
    Authenticate,
    CloseConnection,
    OpenSubscriptions,
    PauseReading,
    PublishWill,
    ResumeReading,
)
from edge.session.engine import SessionEngine
from edge.session.transitions import ConnectionState
from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
    encode,
)

BOTH = pytest.mark.parametrize("version", [4, 5])


def test_connack_of_version_5_says_what_is_less_than_the_defaults() -> None:
    book = Playbook(5)
    book >> Connect(5, "c", keep_alive_s=30)
    assert book.effect(Authenticate).client_id == "c"
    book.silent()
    book >> Accept()
    book << Connack(
        properties=Properties(
            receive_maximum=100,
            maximum_packet_size_bytes=1_000_000,
            topic_alias_maximum=16,
            maximum_qos=1,
            retain_available=False,
            shared_subscription_available=False,
        )
    )
    book.silent()


def test_connack_says_nothing_that_is_the_default() -> None:
    offered = Capabilities(
        qos_max=2, retain_available=True, shared_subscription_available=True, session_expiry_s_max=100
    )
    book = Playbook(5, capabilities=offered)
    book >> Connect(5, "c", keep_alive_s=30, properties=Properties(session_expiry_interval_s=100)) << Authenticate
    book >> Accept()
    properties = book.packet(Connack).properties
    assert properties.maximum_qos is None
    assert properties.retain_available is None
    assert properties.shared_subscription_available is None
    assert properties.session_expiry_interval_s is None


@pytest.mark.parametrize("version", [3, 4])
def test_connack_of_version_3_is_two_zero_bytes(version: int) -> None:
    book = Playbook(version)
    book.engine.receive_data(encode(Connect(version, "c", keep_alive_s=30), version), book.now)
    book.engine.accept(False, book.now)
    assert b"".join(book.engine.out) == b"\x20\x02\x00\x00"


def test_an_empty_client_id_gets_one_and_hears_of_it() -> None:
    """[MQTT5-3.1.3-6] [MQTT5-3.1.3-7]"""
    book = Playbook(5)
    book >> Connect(5, "", keep_alive_s=1)
    assert book.effect(Authenticate).client_id == "assigned"
    book >> Accept()
    assert book.packet(Connack).properties.assigned_client_identifier == "assigned"
    assert book.engine.client_id == "assigned"


def test_an_empty_client_id_with_clean_session_is_served_in_3_1_1() -> None:
    """[MQTT311-3.1.3-6]"""
    book = Playbook(4)
    book >> Connect(4, "")
    assert book.effect(Authenticate).client_id == "assigned"


def test_keep_alive_0_gets_the_edges_own_only_where_it_can_be_told() -> None:
    """[MQTT5-3.1.2-21]"""
    book = connected(4, Connect(4, "c", keep_alive_s=0))
    assert book.engine.get_timer() is None
    book = Playbook(5)
    book >> Connect(5, "c", keep_alive_s=0) << Authenticate
    book >> Accept()
    assert book.packet(Connack).properties.server_keep_alive_s == 600
    assert book.engine.get_timer() == book.now + 900


def test_session_expiry_is_capped_and_told() -> None:
    book = Playbook(5)
    book >> Connect(5, "c", properties=Properties(session_expiry_interval_s=3_600)) << Authenticate
    book >> Accept()
    assert book.packet(Connack).properties.session_expiry_interval_s == 0


REFUSALS = [
    (5, Connect(5, "é" * 65), ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
    (
        5,
        Connect(5, "c", properties=Properties(authentication_method="SCRAM")),
        ReasonCode.BAD_AUTHENTICATION_METHOD,
    ),
    (5, Connect(5, "c", will=Will("w", b"", 2)), ReasonCode.QOS_NOT_SUPPORTED),
    (5, Connect(5, "c", will=Will("w", b"", 0, True)), ReasonCode.RETAIN_NOT_SUPPORTED),
    (4, Connect(4, "x" * 129), ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
    (4, Connect(4, "", clean_start=False), ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
]


@pytest.mark.parametrize(("version", "connect", "reason_code"), REFUSALS)
def test_refusals_that_need_no_credentials(version: int, connect: Connect, reason_code: ReasonCode) -> None:
    book = Playbook(version)
    book >> connect
    connack = book.packet(Connack)
    assert connack.reason_code is reason_code
    assert not connack.session_present  # [MQTT5-3.2.2-6] [MQTT311-3.2.2-4]
    assert bool(connack.properties.reason_string) is (version == 5)
    book.closed()


@pytest.mark.parametrize("will", [Will("w", b"", 2), Will("w", b"", 0, True)])
def test_version_3_1_1_has_no_return_code_for_a_will_that_cannot_be_kept(will: Will) -> None:
    """[MQTT311-3.2.2-6]: closed without a CONNACK."""
    book = Playbook(4)
    book >> Connect(4, "c", will=will)
    book.closed()


RETURN_CODES = [
    (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 1),
    (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 2),
    (ReasonCode.SERVER_UNAVAILABLE, 3),
    (ReasonCode.SERVER_BUSY, 3),
    (ReasonCode.QUOTA_EXCEEDED, 3),
    (ReasonCode.CONNECTION_RATE_EXCEEDED, 3),
    (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 4),
    (ReasonCode.NOT_AUTHORIZED, 5),
    (ReasonCode.BANNED, 5),
    (ReasonCode.UNSPECIFIED_ERROR, None),
]


@pytest.mark.parametrize(("reason_code", "return_code"), RETURN_CODES)
@pytest.mark.parametrize("version", [3, 4, 5])
def test_every_refusal_after_authentication(version: int, reason_code: ReasonCode, return_code: int | None) -> None:
    book = Playbook(version)
    engine = book.engine
    connect = Connect(version, "c", will=Will("w"), keep_alive_s=10)
    engine.receive_data(encode(connect, version), book.now)
    engine.refuse(reason_code, "because")
    sent = b"".join(engine.out)
    if version == 5:
        reason = b"because"
        properties = b"\x1f" + len(reason).to_bytes(2, "big") + reason
        assert sent == bytes((0x20, 3 + len(properties), 0, reason_code, len(properties))) + properties
    else:
        assert sent == (b"" if return_code is None else bytes((0x20, 2, 0, return_code)))
    assert [type(effect) for effect in engine.effects] == [Authenticate, CloseConnection]  # no will [I10]
    engine.connection_lost()
    assert len(engine.effects) == 2


def test_a_client_that_wants_no_problem_information_gets_none() -> None:
    """[MQTT5-3.1.2-29] lets CONNACK have a reason string; we keep to the client's wish there, too."""
    book = Playbook(5)
    book >> Connect(5, "c", properties=Properties(request_problem_information=False)) << Authenticate
    book >> Refuse(ReasonCode.NOT_AUTHORIZED)
    assert book.packet(Connack).properties.reason_string is None
    book.closed()


def test_the_reason_is_left_out_where_it_would_make_connack_too_large() -> None:
    """[MQTT5-3.2.2-19]"""
    book = Playbook(5)
    book >> Connect(5, "c", properties=Properties(maximum_packet_size_bytes=20)) << Authenticate
    book >> Refuse(ReasonCode.NOT_AUTHORIZED, "x" * 100)
    assert book.packet(Connack) == Connack(reason_code=ReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize(
    "data",
    [
        encode(Pingreq(), 4),
        encode(Publish(b"a", b"x"), 4),
        encode(Publish(b"a", b"x", 1, packet_id=1), 4),
        encode(Subscribe(1, (SubscriptionRequest("a"),)), 4),
        encode(Disconnect(), 4),
        b"\x00\x00",
        b"\xf0\x00",
        b"\x40\x02\x00\x01",
        b"GET / HTTP/1.1\r\nHost: edge.example.org\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),  # a TLS ClientHello
    ],
)
def test_nothing_before_connect(data: bytes) -> None:
    """[MQTT5-3.1.0-1] [MQTT311-3.1.0-1]: closed, and no word to what is no MQTT client."""
    book = Playbook(5)
    book >> data
    book.closed()
    book >> encode(Connect(5, "c"), 5)
    book.silent()


def test_a_second_connect_is_a_protocol_error() -> None:
    """[MQTT5-3.1.0-2]; the will is due."""
    book = connected(5, Connect(5, "c", will=Will("w", b"gone"), keep_alive_s=60))
    book >> Connect(5, "c")
    assert book.packet(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR
    assert book.effect(PublishWill).will.payload == b"gone"
    book.closed()


def test_a_second_connect_closes_3_1_1_without_a_word() -> None:
    """[MQTT311-3.1.0-2]"""
    book = connected(4)
    book >> Connect(4, "c")
    book.closed()


@BOTH
def test_a_second_connect_behind_the_first_changes_nothing(version: int) -> None:
    book = Playbook(version)
    book >> encode(Connect(version, "c", will=Will("w")), version) + encode(Connect(version, "c"), version)
    book << Authenticate
    assert not any(packet.reason_code is ReasonCode.SUCCESS for packet in book.packets() if isinstance(packet, Connack))
    book.closed()
    book >> Accept()
    book.silent()


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x10\x0c\x00\x04MQTT\x06\x02\x00\x00\x00\x00", b"\x20\x02\x00\x01"),  # a level nobody knows
        (b"\x10\x0d\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x00", b"\x20\x03\x00\x81\x00"),  # the reserved flag
        (b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00", b""),
        (b"\x10\x0c\x00\x04MQTS\x04\x02\x00\x00\x00\x00", b""),
        (b"\x10\x0d\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x00", b"\x20\x03\x00\x81\x00"),  # a will flag, no will
        (b"\x10\x0d\x00\x04MQTT\x05\x1a\x00\x00\x00\x00\x00", b"\x20\x03\x00\x81\x00"),  # QoS 3 without a will
        (b"\x11\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00", b""),  # flags of the fixed header
    ],
)
def test_a_connect_that_breaks_the_rules(data: bytes, answer: bytes) -> None:
    """[MQTT5-3.1.4-1] answered, [MQTT311-3.1.4-1] only closed, [MQTT311-3.1.2-2] 0x01."""
    book = Playbook(4)
    book.engine.receive_data(data, book.now)
    out = b"".join(book.engine.out)
    assert out == answer if data[0] == 0x10 else out in (answer, b"\x20\x03\x00\x81\x00")
    assert book.engine.is_closed()


def test_a_stranger_may_send_64_kib() -> None:
    book = Playbook(5)
    book >> b"\x10\xff\xff\x03"  # 65,535 bytes and the header: one too many
    assert book.engine.is_closed()
    book = Playbook(5)
    largest = Connect(5, "c", will=Will("w", bytes(65_536 - 4 - 11 - 3 - 1 - 3 - 2)))
    assert len(encode(largest, 5)) == 65_536
    book >> largest << Authenticate


def test_an_accepted_client_may_send_a_megabyte() -> None:
    book = connected()
    packet = Publish(b"a", bytes(1_000_000 - 4 - 3 - 1))
    assert len(encode(packet, 5)) == 1_000_000
    book >> packet << AppendRecord
    book >> Publish(b"a", bytes(1_000_000))
    assert book.packet(Disconnect).reason_code is ReasonCode.PACKET_TOO_LARGE


@BOTH
def test_what_is_behind_connect_waits_and_keeps_its_order(version: int) -> None:
    book = Playbook(version)
    behind: list[Packet] = [
        Publish(b"a", b"1"),
        Pingreq(),
        Publish(b"a", b"2", 1, packet_id=9),
        Subscribe(3, (SubscriptionRequest("s"),)),
        Publish(b"a", b"3"),
        Pingreq(),
        Publish(b"a", b"4"),
    ]
    book >> b"".join(encode(packet, version) for packet in [Connect(version, "c", keep_alive_s=60), *behind])
    book << Authenticate
    book.silent()  # invariant I14: nothing before CONNACK
    book >> Accept()
    assert book.packet(Connack).reason_code is ReasonCode.SUCCESS
    assert book.effect(AppendRecord).value == b"1"
    assert book.effect(AppendRecord).value == b"2"
    book << OpenSubscriptions << Pingresp() << Pingresp()  # a PINGREQ does not wait for a SUBACK
    book.silent()
    book >> Publish(b"a", b"5")
    book.silent()
    book >> Subscribed(3, (ReasonCode.GRANTED_QOS_0,)) << Suback(3, (ReasonCode.GRANTED_QOS_0,))
    assert [book.effect(AppendRecord).value for _ in range(3)] == [b"3", b"4", b"5"]
    book.silent()


@BOTH
def test_two_subscribes_one_after_the_other(version: int) -> None:
    book = connected(version)
    one, two = (Subscribe(number, (SubscriptionRequest("s"),)) for number in (1, 2))
    book >> encode(one, version) + encode(two, version) + encode(Publish(b"a", b"x"), version)
    assert book.effect(OpenSubscriptions).packet.packet_id == 1
    book.silent()
    book >> Subscribed(1) << Suback(1, (ReasonCode.GRANTED_QOS_1,))
    assert book.effect(OpenSubscriptions).packet.packet_id == 2
    book.silent()
    book >> Subscribed(2) << Suback(2, (ReasonCode.GRANTED_QOS_1,)) << AppendRecord
    book.silent()


def test_refused_clients_packets_are_forgotten() -> None:
    """[MQTT5-3.1.4-6] [MQTT311-3.1.4-5]: nothing that was sent behind a refused CONNECT is processed."""
    book = Playbook(5)
    book >> encode(Connect(5, "c", will=Will("w")), 5) + encode(Publish(b"a", b"x"), 5) << Authenticate
    book >> Refuse(ReasonCode.NOT_AUTHORIZED)
    assert book.packet(Connack).reason_code is ReasonCode.NOT_AUTHORIZED
    book.closed()
    book >> Publish(b"a", b"x")
    book >> Accept() >> Lost()
    book.silent()


@BOTH
def test_reading_pauses_when_much_is_held(version: int) -> None:
    book = Playbook(version)
    book >> Connect(version, "c") << Authenticate
    for _ in range(63):
        book >> Publish(b"a", b"x")
    book.silent()
    book >> Publish(b"a", b"x") << PauseReading()
    book >> Publish(b"a", b"x")  # what was read already
    book.silent()
    book >> Accept()
    book.packet(Connack)
    book << ResumeReading()
    assert [type(effect) for effect in book.effects()] == [AppendRecord] * 65


@BOTH
def test_reading_stays_paused_behind_a_second_subscribe(version: int) -> None:
    book = connected(version)
    book >> Subscribe(1, (SubscriptionRequest("s"),)) << OpenSubscriptions
    book >> Subscribe(2, (SubscriptionRequest("s"),))
    for _ in range(80):
        book >> Publish(b"a", b"x")
    book << PauseReading()
    book.silent()
    book >> Subscribed(1) << Suback(1, (ReasonCode.GRANTED_QOS_1,))
    effects = [type(effect) for effect in book.effects()]
    assert effects in ([ResumeReading, OpenSubscriptions, PauseReading], [OpenSubscriptions])
    book >> Subscribed(2) << Suback(2, (ReasonCode.GRANTED_QOS_1,)) << ResumeReading()
    assert [type(effect) for effect in book.effects()] == [AppendRecord] * 80


@BOTH
@pytest.mark.parametrize("behind", [Connect(4, "d"), Disconnect(), Publish(b"a", b"x"), Pingreq()])
def test_nothing_is_done_behind_a_disconnect_that_was_held(
    version: int, behind: Connect | Publish | Disconnect
) -> None:
    """[MQTT5-3.14.4-1] [MQTT311-3.14.4-1]: DISCONNECT is the last packet, also among those that waited."""
    if isinstance(behind, Connect):
        behind = replace(behind, protocol_version=version)
    book = Playbook(version)
    held = b"".join(encode(packet, version) for packet in (Publish(b"a", b"1"), Disconnect(), behind))
    book >> Connect(version, "c", will=Will("w")) << Authenticate
    book >> held
    if not isinstance(behind, Connect):
        book.silent()
    book >> Accept()
    if isinstance(behind, Connect):  # the second CONNECT is wrong whenever it is read
        return
    book.packet(Connack)
    assert book.effect(AppendRecord).value == b"1"
    book.closed()


@BOTH
@pytest.mark.parametrize("behind", [Connect(4, "d"), Disconnect(), Publish(b"a", b"x")])
def test_nothing_is_done_behind_a_disconnect_that_waited_for_suback(version: int, behind: Connect | Publish) -> None:
    if isinstance(behind, Connect):
        behind = replace(behind, protocol_version=version)
    book = connected(version)
    held = [Publish(b"a", b"1"), Disconnect()]
    book >> Subscribe(1, (SubscriptionRequest("s"),)) << OpenSubscriptions
    for packet in held:
        book >> packet
    if not isinstance(behind, Connect):
        book >> behind
    book.silent()
    book >> Subscribed(1) << Suback(1, (ReasonCode.GRANTED_QOS_1,))
    assert book.effect(AppendRecord).value == b"1"
    book.closed()


def test_who_does_not_connect_in_time_is_closed() -> None:
    book = Playbook(5)
    book >> b"\x10"
    book >> TimePasses(9.9)
    book.silent()
    book >> TimePasses(0.2)
    book.closed()


@BOTH
def test_who_cannot_be_authenticated_in_time_is_closed(version: int) -> None:
    book = Playbook(version)
    book >> TimePasses(5)
    book >> Connect(version, "c", will=Will("w")) << Authenticate
    book >> TimePasses(5.1)
    book.closed()
    book >> Accept()
    book.silent()


@BOTH
def test_the_edge_may_end_a_connection_before_connack(version: int) -> None:
    """No DISCONNECT before CONNACK [MQTT5-3.14.0-1], no will (invariant I10)."""
    for connect in (None, Connect(version, "c", will=Will("w"))):
        book = Playbook(version)
        if connect is not None:
            book >> connect << Authenticate
        book >> ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        book.closed()
        book >> ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN) >> Lost()
        book.silent()


@BOTH
def test_a_connection_lost_before_connack_has_no_will(version: int) -> None:
    book = Playbook(version)
    book >> Connect(version, "c", will=Will("w")) << Authenticate
    book >> Lost()
    book.silent()
    assert book.engine.state is ConnectionState.CLOSED
    book >> Accept() >> Refuse(ReasonCode.NOT_AUTHORIZED)
    book.silent()


def test_limits_bind_the_client_id() -> None:
    book = Playbook(5, replace(LIMITS, client_id_bytes_max=4))
    book >> Connect(5, "abcde")
    assert book.packet(Connack).reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_a_client_that_takes_no_connack_is_not_left_waiting() -> None:
    properties = Properties(maximum_packet_size_bytes=5)
    engine = SessionEngine(LIMITS, Capabilities(), target_of, lambda: "assigned", START_S, 0.0)
    engine.receive_data(encode(Connect(5, "c", properties=properties), 5), START_S)
    engine.accept(False, START_S)
    assert engine.is_closed()
    assert engine.out == []
    assert [type(effect) for effect in engine.effects] == [Authenticate, CloseConnection]
