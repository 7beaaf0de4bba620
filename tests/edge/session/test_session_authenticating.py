"""The AUTH packets of a connection: whose turn it is, the method, re-authentication."""

from __future__ import annotations

import pytest

from edge.access.enhanced import Continue, Done, Failed
from edge.session.authenticating import (
    Authentication,
    Denied,
    StepAuthentication,
    check_before_connack,
    received_auth,
)
from edge.wire import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    ProtocolError,
    Publish,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    decode_for_client,
    encode,
)

CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE


def auth(reason_code: ReasonCode = CONTINUE, data: bytes | None = b"data", method: str | None = "M") -> Auth:
    return Auth(reason_code, Properties(authentication_method=method, authentication_data=data))


def connected(principal_name: str = "ann") -> Authentication:
    """An authentication that has ended well, with CONNACK."""
    made = Authentication("M")
    assert made.stepped(Done(principal_name, b"end")) is None
    made.connected(Properties())
    return made


def test_connect_auth_auth_connack() -> None:
    """[MQTT5-4.12.0-2] [MQTT5-4.12.0-3] [MQTT5-4.12.0-5]"""
    it = Authentication("M")
    assert it.stepped(Continue(b"question")) == auth(CONTINUE, b"question")
    assert it.received(auth(CONTINUE, b"answer")) == StepAuthentication(b"answer", begins=False)
    assert it.stepped(Continue(None)) == auth(CONTINUE, None)
    assert it.received(auth(CONTINUE, None)) == StepAuthentication(None, begins=False)
    assert it.stepped(Done("ann", b"end")) is None
    connack = Properties(receive_maximum=7)
    it.connected(connack)
    assert connack == Properties(receive_maximum=7, authentication_method="M", authentication_data=b"end")


def test_connack_at_once() -> None:
    it = Authentication("M")
    assert it.stepped(Done("ann")) is None
    connack = Properties()
    it.connected(connack)
    assert connack == Properties(authentication_method="M")


def test_re_authentication() -> None:
    """[MQTT5-4.12.1-1]; as often as the client likes."""
    it = connected()
    for _ in range(3):
        assert it.received(auth(AGAIN, b"first")) == StepAuthentication(b"first", begins=True)
        assert it.stepped(Continue(b"question")) == auth(CONTINUE, b"question")
        assert it.received(auth(CONTINUE, b"answer")) == StepAuthentication(b"answer", begins=False)
        assert it.stepped(Done("ann", b"end")) == auth(ReasonCode.SUCCESS, b"end")


@pytest.mark.parametrize("packet", [auth(CONTINUE, b"q"), auth(ReasonCode.SUCCESS, None), auth(CONTINUE, b"")])
def test_what_is_sent_can_be_read(packet: Auth) -> None:
    """[MQTT5-3.15.1-1] [MQTT5-3.15.2-1]"""
    data = encode(packet, 5)
    assert data[0] == 0xF0
    assert decode_for_client(data[0], data[2:], 5) == packet


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_failure_is_the_end(is_connected: bool) -> None:
    """[MQTT5-4.12.0-4] [MQTT5-4.12.1-2]; the mechanism's reason is not told."""
    it = connected() if is_connected else Authentication("M")
    if is_connected:
        it.received(auth(AGAIN))
    denied = it.stepped(Failed("the proof is wrong"))
    assert denied == Denied(ReasonCode.NOT_AUTHORIZED, "authentication failed")


def test_a_session_does_not_change_its_user() -> None:
    it = connected("ann")
    it.received(auth(AGAIN))
    denied = it.stepped(Done("bob"))
    assert isinstance(denied, Denied)
    assert denied.reason_code is ReasonCode.NOT_AUTHORIZED


def waiting() -> Authentication:
    """Before CONNACK, the client's turn."""
    made = Authentication("M")
    made.stepped(Continue(b""))
    return made


def re_authenticating() -> Authentication:
    """The mechanism works on a re-authentication."""
    made = connected()
    made.received(auth(AGAIN))
    return made


@pytest.mark.parametrize(
    ("it", "packet", "clause"),
    [
        (waiting(), auth(method="N"), "MQTT5-4.12.0-5"),
        (waiting(), auth(method=None), "MQTT5-4.12.0-5"),
        (waiting(), Auth(CONTINUE), "MQTT5-4.12.0-5"),
        (waiting(), auth(AGAIN), "MQTT5-4.12.1-1"),
        (Authentication("M"), auth(), "MQTT5-4.12.0-5"),  # the mechanism has not answered
        (Authentication("M"), auth(AGAIN), "MQTT5-4.12.1-1"),
        (connected(), auth(), "MQTT5-4.12.0-5"),  # nothing to continue
        (connected(), auth(AGAIN, method="N"), "MQTT5-4.12.1-1"),
        (re_authenticating(), auth(AGAIN), "MQTT5-4.12.1-1"),
        (re_authenticating(), auth(), "MQTT5-4.12.0-5"),
    ],
)
def test_auth_out_of_turn_or_with_another_method(it: Authentication, packet: Auth, clause: str) -> None:
    with pytest.raises(ProtocolError) as violation:
        it.received(packet)
    assert violation.value.clause == clause
    assert violation.value.reason_code is ReasonCode.PROTOCOL_ERROR


def test_auth_without_a_method_in_connect() -> None:
    """[MQTT5-4.12.0-7]"""
    for reason_code in (CONTINUE, AGAIN):
        with pytest.raises(ProtocolError) as violation:
            received_auth(None, auth(reason_code))
        assert violation.value.clause == "MQTT5-4.12.0-7"
    assert received_auth(connected(), auth(AGAIN)).begins


@pytest.mark.parametrize(
    "packet",
    [Publish(b"a"), Subscribe(1, (SubscriptionRequest("a"),)), Pingreq(), Connect(5, "c")],
    ids=lambda packet: type(packet).__name__,
)
def test_before_connack_only_auth_and_disconnect(packet: Packet) -> None:
    """[MQTT5-3.1.2-30]"""
    with pytest.raises(ProtocolError) as violation:
        check_before_connack(packet)
    assert violation.value.clause == "MQTT5-3.1.2-30"
    check_before_connack(auth())
    check_before_connack(Disconnect())


def test_data_is_not_shown() -> None:
    assert "secret" not in repr([StepAuthentication(b"secret", True), Continue(b"secret"), Done("ann", b"secret")])
