"""How long a session outlives its connection: CONNECT, CONNACK and DISCONNECT; and Response Information."""

from __future__ import annotations

from typing import Any

import pytest
from support.playbook import (
    EXACTLY_ONCE,
    Accept,
    Lost,
    Playbook,
    ServerDisconnect,
    Subscribed,
    connected,
)

from edge.session.connect import Capabilities
from edge.session.effects import Authenticate, CloseConnection, OpenSubscriptions, PublishWill
from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Properties,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)

SHORT = Capabilities(qos_max=2, retain_available=True, session_expiry_s_max=100)
NEVER = 0xFFFF_FFFF


def client(expiry_s: int | None, capabilities: Capabilities = EXACTLY_ONCE, will: Will | None = None) -> Playbook:
    properties = Properties(session_expiry_interval_s=expiry_s)
    connect = Connect(5, "c", keep_alive_s=60, properties=properties, will=will)
    return connected(5, connect, capabilities=capabilities)


def connack(connect: Connect, capabilities: Capabilities = EXACTLY_ONCE, session_present: bool = False) -> Connack:
    book = Playbook(connect.protocol_version, capabilities=capabilities)
    book >> connect << Authenticate
    book >> Accept(session_present)
    return book.packet(Connack)


def goodbye(expiry_s: int, reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION) -> Disconnect:
    return Disconnect(reason_code, Properties(session_expiry_interval_s=expiry_s))


# CONNECT and CONNACK


@pytest.mark.parametrize(
    ("requested", "capabilities", "told", "held"),
    [
        (None, EXACTLY_ONCE, None, 0),
        (0, EXACTLY_ONCE, None, 0),
        (10, EXACTLY_ONCE, None, 10),
        (100, SHORT, None, 100),
        (101, SHORT, 100, 100),
        (NEVER, SHORT, 100, 100),
        (NEVER, Capabilities(session_expiry_s_max=NEVER), None, NEVER),
        (10, Capabilities(), 0, 0),
    ],
)
def test_connack_tells_what_differs(
    requested: int | None, capabilities: Capabilities, told: int | None, held: int
) -> None:
    """MQTT 5.0 section 3.2.2.3.2."""
    connect = Connect(5, "c", keep_alive_s=60, properties=Properties(session_expiry_interval_s=requested))
    assert connack(connect, capabilities).properties.session_expiry_interval_s == told
    book = connected(5, connect, capabilities=capabilities)
    assert book.engine.session_expiry_s == held
    assert book.engine.is_durable is (held > 0)


@pytest.mark.parametrize(("clean", "held"), [(True, 0), (False, 100)])
def test_version_3_says_only_whether(clean: bool, held: int) -> None:
    """[MQTT311-3.1.2-4] [MQTT311-3.1.2-6]"""
    book = connected(4, Connect(4, "c", clean_start=clean, keep_alive_s=60), capabilities=SHORT)
    assert book.engine.session_expiry_s == held
    assert book.engine.is_durable is not clean


def test_clean_start_says_nothing_of_the_end() -> None:
    for clean_start in (True, False):
        connect = Connect(5, "c", clean_start, 60, properties=Properties(session_expiry_interval_s=10))
        assert connected(5, connect, capabilities=EXACTLY_ONCE).engine.session_expiry_s == 10


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("present", [True, False])
def test_session_present(version: int, present: bool) -> None:
    """[MQTT5-3.2.2-2] [MQTT5-3.2.2-3] [MQTT311-3.2.2-1] [MQTT311-3.2.2-2]"""
    connect = Connect(version, "c", clean_start=False, keep_alive_s=60)
    assert connack(connect, session_present=present).session_present is present


# DISCONNECT


@pytest.mark.parametrize(("said", "held"), [(0, 0), (5, 5), (600, 100), (NEVER, 100)])
def test_disconnect_may_change_it(said: int, held: int) -> None:
    book = client(50, SHORT)
    book >> goodbye(said)
    book.closed()
    assert book.engine.session_expiry_s == held


def test_disconnect_without_it_changes_nothing() -> None:
    for packet in (Disconnect(), Disconnect(ReasonCode.NORMAL_DISCONNECTION, Properties(reason_string="r"))):
        book = client(50)
        book >> packet
        book.closed()
        assert book.engine.session_expiry_s == 50


@pytest.mark.parametrize("requested", [None, 0])
def test_what_was_0_must_stay_0(requested: int | None) -> None:
    """MQTT 5.0 section 3.14.2.2.2: a protocol error, so the will is published."""
    book = client(requested, will=Will("w", b"gone"))
    book >> goodbye(5)
    assert book.packet(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR
    book << PublishWill
    book.closed()
    assert book.engine.session_expiry_s == 0


def test_0_after_0_is_no_error() -> None:
    book = client(None, will=Will("w", b"gone"))
    book >> goodbye(0)
    book.closed()


def test_what_we_refused_is_not_the_clients_0() -> None:
    """It asked for more than 0, so it may say so again."""
    book = client(50, Capabilities())
    book >> goodbye(50)
    book.closed()
    assert book.engine.session_expiry_s == 0


def test_we_never_say_it_in_disconnect() -> None:
    """[MQTT5-3.14.2-2]"""
    book = client(50)
    book >> ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN)
    properties = book.packet(Disconnect).properties
    assert properties is not None
    assert properties.session_expiry_interval_s is None
    assert book.engine.session_expiry_s == 50


@pytest.mark.parametrize("end", [Lost(), ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN), None])
def test_a_disconnect_that_waits_behind_a_subscribe_counts(end: Any) -> None:
    """The client has gone and will not say it again, however the connection ends before its turn comes."""
    book = client(50)
    book >> Subscribe(1, (SubscriptionRequest("a"),)) << OpenSubscriptions
    book >> goodbye(0)
    book.silent()
    if end is None:
        book >> Subscribed(1, (ReasonCode.GRANTED_QOS_0,)) << Suback(1, (ReasonCode.GRANTED_QOS_0,))
        book << CloseConnection
    else:
        book >> end
    assert book.engine.session_expiry_s == 0


def test_a_wrong_one_that_waits_changes_nothing() -> None:
    book = client(None)
    book >> Subscribe(1, (SubscriptionRequest("a"),)) << OpenSubscriptions
    book >> goodbye(9) >> Lost()
    assert book.engine.session_expiry_s == 0


# Response Information [MQTT5-3.1.2-28]


@pytest.mark.parametrize(
    ("asked", "client_id", "told"),
    [
        (True, "c", "responses/c"),
        (False, "c", None),
        (None, "c", None),
        (True, "", "responses/assigned"),
        (True, "c/d", None),
        (True, "c+", None),
        (True, "#", None),
    ],
)
def test_response_information_only_when_asked(asked: bool | None, client_id: str, told: str | None) -> None:
    """One level of its own; a client id that makes no single level gets none."""
    connect = Connect(5, client_id, keep_alive_s=60, properties=Properties(request_response_information=asked))
    assert connack(connect).properties.response_information == told


def test_response_information_can_be_switched_off() -> None:
    connect = Connect(5, "c", keep_alive_s=60, properties=Properties(request_response_information=True))
    assert connack(connect, Capabilities(response_prefix="")).properties.response_information is None
