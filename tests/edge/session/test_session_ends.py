"""How a connection ends: wills, keep alive, DISCONNECT from either side."""

from __future__ import annotations

from typing import Any

import pytest
from support.playbook import (
    Deliver,
    Lost,
    Playbook,
    ServerDisconnect,
    TimePasses,
    WritingPaused,
    WritingResumed,
    connected,
    delivery,
    grant,
    subscribed,
)

from edge.session.effects import CloseConnection, OpenSubscriptions, PauseReading, PublishWill, ResumeReading
from edge.session.engine import SessionEngine
from edge.wire import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Will,
    encode,
)

BOTH = pytest.mark.parametrize("version", [4, 5])
WILL = Will("will/c", b"gone", 1)


def with_will(version: int, **connect: Any) -> Playbook:
    return connected(version, Connect(version, "c", will=Will("will/c", b"gone", 1), keep_alive_s=60, **connect))


@BOTH
def test_a_lost_connection_publishes_the_will_once(version: int) -> None:
    """[MQTT5-3.1.2-8] [MQTT311-3.1.2-8]"""
    book = with_will(version)
    book >> Lost() << PublishWill(WILL)
    book.silent()
    book >> Lost() >> ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN) >> TimePasses(1_000)
    book.silent()


@BOTH
def test_disconnect_discards_the_will(version: int) -> None:
    """[MQTT5-3.1.2-10] [MQTT311-3.1.2-10]"""
    book = with_will(version)
    book >> Disconnect()
    book.closed()
    book >> Lost()
    book.silent()


def test_disconnect_with_will_message() -> None:
    book = with_will(5)
    book >> Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE) << PublishWill(WILL)
    book.closed()
    book >> Lost()
    book.silent()


@pytest.mark.parametrize("reason_code", [ReasonCode.UNSPECIFIED_ERROR, ReasonCode.PACKET_TOO_LARGE])
def test_disconnect_with_an_error_publishes_the_will(reason_code: ReasonCode) -> None:
    """[MQTT5-3.14.4-3] lets only 0x00 discard it."""
    book = with_will(5)
    book >> Disconnect(reason_code) << PublishWill(WILL)
    book.closed()


@BOTH
def test_silence_ends_the_connection_after_one_and_a_half_keep_alives(version: int) -> None:
    """[MQTT5-3.1.2-22] [MQTT311-3.1.2-24]"""
    book = with_will(version)
    book >> TimePasses(89.9)
    book.silent()
    book >> Pingreq() << Pingresp()
    book >> TimePasses(89.9)
    book.silent()
    book >> TimePasses(0.2)
    if version == 5:
        assert book.packet(Disconnect).reason_code is ReasonCode.KEEP_ALIVE_TIMEOUT
    book << PublishWill(WILL)
    book.closed()


@BOTH
def test_what_we_send_is_no_sign_of_life(version: int) -> None:
    book = subscribed(version, Connect(version, "c", keep_alive_s=10))
    book >> TimePasses(14)
    book >> Deliver(delivery(qos=0), grant(0))
    book.packets()
    book >> TimePasses(1.1)
    assert book.engine.is_closed()


@BOTH
def test_keep_alive_runs_from_connack(version: int) -> None:
    book = Playbook(version)
    book >> Connect(version, "c", keep_alive_s=2)
    book.effects()
    book >> TimePasses(5)
    book.engine.accept(False, book.now)
    assert book.engine.get_timer() == book.now + 3


def test_keep_alive_waits_while_we_do_not_read() -> None:
    book = with_will(5)
    book.engine.backbone_full(True)
    book >> TimePasses(500)
    assert not book.engine.is_closed()
    book.engine.backbone_full(False)
    book >> TimePasses(91)
    assert book.engine.is_closed()


def test_a_client_that_asks_and_does_not_listen_is_not_read() -> None:
    """Answers must not pile up; and it is its own silence, so its keep alive goes on."""
    book = with_will(5)
    book >> WritingPaused()
    book.silent()
    book >> Pingreq() << Pingresp() << PauseReading()
    book >> WritingResumed() << ResumeReading()
    book.silent()
    book >> WritingPaused() >> Pingreq() << Pingresp() << PauseReading()
    book >> TimePasses(91)
    assert book.packet(Disconnect).reason_code is ReasonCode.KEEP_ALIVE_TIMEOUT
    book << PublishWill(WILL)
    book.closed()


@BOTH
@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",  # reserved packet type
        b"\x20\x02\x00\x00",  # a server's packet
        b"\xd0\x00",
        b"\x90\x03\x00\x01\x00",
        b"\x36\x05\x00\x01a\x00\x01",  # QoS 3
        b"\x82\x02\x00\x01",  # a SUBSCRIBE without filter
        b"\x80\x06\x00\x01\x00\x01a\x00",  # flags
        b"\x32\x05\x00\x01a\x00\x00",  # packet identifier 0
        b"\xff\xff\xff\xff\xff",
        b"\xe0\x05abcde",
    ],
)
def test_every_violation_publishes_the_will(version: int, data: bytes) -> None:
    """[MQTT5-4.13.1-1] [MQTT311-4.8.0-1]"""
    book = with_will(version)
    book >> data
    if version == 5:
        assert book.packet(Disconnect).reason_code.is_error
    book << PublishWill(WILL)
    book.closed()
    book >> Pingreq() >> Lost()
    book.silent()


@BOTH
@pytest.mark.parametrize("packet", [Connack(), Suback(1, (ReasonCode.SUCCESS,)), Pingresp()])
def test_packets_that_only_a_server_sends(version: int, packet: Any) -> None:
    book = connected(version)
    book >> encode(packet, version)
    if version == 5:
        assert book.packet(Disconnect).reason_code in (ReasonCode.PROTOCOL_ERROR, ReasonCode.MALFORMED_PACKET)
    book.closed()


@BOTH
def test_packets_of_a_qos_2_flow_that_nobody_knows(version: int) -> None:
    """Answered, so that the client comes to the end of what it remembers [MQTT5-4.3.3-11]."""
    book = connected(version)
    known = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else ReasonCode.SUCCESS
    book >> Pubrel(1)
    assert book.packet(Pubcomp) == Pubcomp(1, known)
    book >> Pubrec(2)
    assert book.packet(Pubrel) == Pubrel(2, known)
    book >> Pubcomp(3)
    book.silent()


def test_auth_without_a_method_in_connect() -> None:
    """[MQTT5-4.12.0-6]"""
    book = connected(5)
    book >> Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method="x"))
    assert book.packet(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR
    book.closed()


@BOTH
def test_a_puback_for_nothing_is_ignored(version: int) -> None:
    book = connected(version)
    book >> Puback(77)
    book.silent()


@BOTH
def test_the_edge_says_goodbye(version: int) -> None:
    book = with_will(version)
    book >> ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN, "bye")
    if version == 5:
        packet = book.packet(Disconnect)
        assert packet.reason_code is ReasonCode.SERVER_SHUTTING_DOWN
        assert packet.properties is not None
        assert packet.properties.reason_string == "bye"
    book << PublishWill(WILL)
    book.closed()
    assert book.engine.reason == "bye"


def test_a_server_reference_goes_with_it() -> None:
    book = connected(5)
    book.engine.disconnect(ReasonCode.USE_ANOTHER_SERVER, "move", "other:1883")
    [data] = book.engine.out
    assert b"\x1c\x00\x0aother:1883" in data


def test_goodbye_without_a_reason_string() -> None:
    """[MQTT5-3.14.2-3] and a client that wants no problem information"""
    for properties in (
        Properties(request_problem_information=False),
        Properties(maximum_packet_size_bytes=32),
    ):
        book = Playbook(5)
        book >> Connect(5, "c", keep_alive_s=60, properties=properties)
        book.effects()
        book.engine.accept(False, book.now)
        book.engine.out.clear()
        book >> ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN, "a long sentence about nothing")
        packet = book.packet(Disconnect)
        assert packet.reason_code is ReasonCode.SERVER_SHUTTING_DOWN
        assert packet.properties is None or packet.properties.reason_string is None
        book.closed()


def test_session_expiry_cannot_come_with_disconnect() -> None:
    """MQTT 5.0 section 3.14.2.2.2: not from 0 to more."""
    book = with_will(5)
    book >> Disconnect(ReasonCode.SUCCESS, Properties(session_expiry_interval_s=10))
    assert book.packet(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR
    book << PublishWill(WILL)
    book.closed()


@pytest.mark.parametrize(("requested_s", "at_the_end_s"), [(0, 0), (100, 0), (100, 200), (100, None)])
def test_session_expiry_may_change_with_disconnect(requested_s: int, at_the_end_s: int | None) -> None:
    book = with_will(5, properties=Properties(session_expiry_interval_s=requested_s))
    book >> Disconnect(ReasonCode.SUCCESS, Properties(session_expiry_interval_s=at_the_end_s))
    book.closed()


@BOTH
def test_disconnect_behind_a_subscribe_counts_although_suback_never_comes(version: int) -> None:
    """[MQTT5-3.14.4-3] [MQTT311-3.14.4-3]: who says SUBSCRIBE, DISCONNECT and hangs up has no will."""
    for end in (Lost(), ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN)):
        book = with_will(version)
        book >> Subscribe(1, (SubscriptionRequest("a"),)) << OpenSubscriptions
        book >> Disconnect()
        book.silent()
        book >> end
        assert not [effect for effect in book.effects() if isinstance(effect, PublishWill)]


def test_disconnect_with_will_behind_a_subscribe() -> None:
    book = with_will(5)
    book >> Subscribe(1, (SubscriptionRequest("a"),)) << OpenSubscriptions
    book >> Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE)
    book >> Lost() << PublishWill(WILL)
    book.silent()


@BOTH
def test_a_violation_behind_a_disconnect_that_waits_is_not_read(version: int) -> None:
    book = with_will(version)
    book >> Subscribe(1, (SubscriptionRequest("a"),)) << OpenSubscriptions
    book >> encode(Disconnect(), version) + b"\x00\x00"
    book >> b"\x00\x00"
    book.silent()
    book.engine.subscribed(1, (ReasonCode.GRANTED_QOS_0,), book.now)
    book >> b""
    assert isinstance(book.packets()[0], Suback)
    book.closed()


@BOTH
def test_nothing_happens_after_the_close(version: int) -> None:
    book = connected(version)
    book >> Disconnect()
    book.closed()
    for event in (Publish(b"a", b"x"), Pingreq(), Connect(version, "c"), b"\x00\x00", b"garbage"):
        book >> event
    engine: SessionEngine = book.engine
    engine.subscribed(1, (ReasonCode.SUCCESS,), book.now)
    engine.unsubscribed(1, (ReasonCode.SUCCESS,), book.now)
    engine.accept(False, book.now)
    engine.refuse(ReasonCode.NOT_AUTHORIZED, "no")
    engine.writing_paused()
    engine.writing_resumed(book.now)
    book >> b""
    book.silent()


def test_unsuback_without_a_subscription_is_not_a_reason_to_close() -> None:
    book = connected(5)
    book.engine.unsubscribed(3, (ReasonCode.NO_SUBSCRIPTION_EXISTED,), book.now)
    book >> b""
    book << Unsuback(3, (ReasonCode.NO_SUBSCRIPTION_EXISTED,))
    assert not [effect for effect in book.effects() if isinstance(effect, CloseConnection)]
