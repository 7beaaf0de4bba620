"""QoS 2 from the client: PUBREC when message and identifier are committed, PUBCOMP when the identifier is forgotten."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from support.playbook import (
    EXACTLY_ONCE,
    LIMITS,
    Appended,
    ExactlyOnceAppended,
    ExactlyOnceRefused,
    Lost,
    Playbook,
    ReceivedForgotten,
    Subscribed,
    connected,
    durable,
    resumed,
)

from edge.session.connect import Capabilities
from edge.session.effects import (
    AppendExactlyOnce,
    AppendRecord,
    CloseConnection,
    ForgetReceived,
    OpenSubscriptions,
    PauseReading,
    ResumeReading,
)
from edge.wire import (
    Disconnect,
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
    encode,
)

BOTH = pytest.mark.parametrize("version", [4, 5])


def publish(packet_id: int, topic_name: bytes = b"a", *, dup: bool = False, retain: bool = False) -> Publish:
    return Publish(topic_name, b"x", 2, retain, dup, packet_id)


def clean(version: int, limit: int = 100) -> Playbook:
    """A client whose session ends with the connection."""
    return connected(version, limits=replace(LIMITS, receive_maximum_in=limit), capabilities=EXACTLY_ONCE)


def received(book: Playbook) -> frozenset[int]:
    assert book.engine.flows is not None
    return book.engine.flows.received()


def pubrecs(book: Playbook) -> list[tuple[int, bool]]:
    packets = book.packets()
    assert all(isinstance(packet, Pubrec) for packet in packets), packets
    return [(packet.packet_id, packet.reason_code.is_error) for packet in packets if isinstance(packet, Pubrec)]


# One flow


@BOTH
def test_the_four_steps_of_a_session_that_is_not_stored(version: int) -> None:
    """[MQTT5-4.3.3-8] [MQTT5-4.3.3-11] [MQTT311-4.3.3-2]"""
    book = clean(version)
    for _ in range(2):  # [MQTT5-4.3.3-12]: after PUBCOMP the identifier is new
        book >> publish(7)
        effect = book.effect(AppendExactlyOnce)
        assert (effect.packet_id, effect.value, effect.retain) == (7, b"x", False)
        assert ("mqtt.qos", b"2") in effect.headers
        book.silent()
        book >> ExactlyOnceAppended(7) << Pubrec(7)
        assert received(book) == {7}
        book >> Pubrel(7) << Pubcomp(7)
        book.silent()
    assert received(book) == frozenset()


@BOTH
def test_the_identifier_is_forgotten_before_pubcomp(version: int) -> None:
    """Of a session that is stored: else the client could use it again, and another edge would take that for the old."""
    book = durable(version)
    book >> publish(7) << AppendExactlyOnce
    book >> ExactlyOnceAppended(7) << Pubrec(7)
    book >> Pubrel(7) << ForgetReceived(7)
    assert received(book) == frozenset()
    book.silent()
    book >> ReceivedForgotten(7) << Pubcomp(7)
    book.silent()


@BOTH
def test_a_retained_message(version: int) -> None:
    book = clean(version)
    book >> publish(1, retain=True)
    effect = book.effect(AppendExactlyOnce)
    assert effect.retain
    assert ("mqtt.retain", b"1") in effect.headers


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_where_it_is_not_available(qos: int) -> None:
    """[MQTT5-3.2.2-14], whatever the QoS."""
    book = connected(5, capabilities=Capabilities(qos_max=2))
    book >> Publish(b"a", b"x", qos, True, packet_id=1 if qos else 0)
    assert book.packet(Disconnect).reason_code is ReasonCode.RETAIN_NOT_SUPPORTED
    book.closed()


def test_properties_go_with_the_message() -> None:
    book = clean(5)
    book >> Publish(b"a", b"x", 2, packet_id=1, properties=Properties(content_type="t", topic_alias=3))
    assert ("content-type", b"t") in book.effect(AppendExactlyOnce).headers
    book >> Publish(b"", b"y", 2, packet_id=2, properties=Properties(topic_alias=3))
    assert book.effect(AppendExactlyOnce).target.destination.key == b"a"


@BOTH
def test_qos_2_above_the_maximum_qos(version: int) -> None:
    """[MQTT5-3.2.2-11]"""
    book = connected(version, capabilities=Capabilities(qos_max=1))
    book >> publish(1)
    if version == 5:
        assert book.packet(Disconnect).reason_code is ReasonCode.QOS_NOT_SUPPORTED
    book.closed()


# The same packet again


@BOTH
def test_a_dup_before_pubrec_is_not_appended_again(version: int) -> None:
    """[MQTT5-4.3.3-10] [MQTT311-4.3.3-2]: one message, one PUBREC."""
    book = durable(version)
    book >> publish(7) << AppendExactlyOnce
    book >> publish(7, dup=True)
    book.silent()
    book >> ExactlyOnceAppended(7) << Pubrec(7)
    book.silent()


@BOTH
def test_a_dup_after_pubrec_is_answered_at_once(version: int) -> None:
    """[MQTT5-4.3.3-10] [MQTT311-4.3.3-2], even behind others that wait, and with a Topic Name that is refused now."""
    book = durable(version)
    book >> publish(7) << AppendExactlyOnce
    book >> ExactlyOnceAppended(7) << Pubrec(7)
    book >> publish(8) << AppendExactlyOnce
    book >> publish(7, dup=True) << Pubrec(7)
    book >> publish(7, b"forbidden/x", dup=True) << Pubrec(7)
    book.silent()


@BOTH
def test_the_identifier_is_in_use_until_pubcomp(version: int) -> None:
    """[MQTT5-2.2.1-3] [MQTT311-4.3.3-1]: no PUBLISH after PUBREL."""
    book = durable(version)
    book >> publish(7) << AppendExactlyOnce
    book >> ExactlyOnceAppended(7) << Pubrec(7)
    book >> Pubrel(7) << ForgetReceived(7)
    book >> publish(7, dup=True)
    if version == 5:
        assert book.packet(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR
    book.closed()


# PUBREL


@BOTH
def test_pubrel_of_an_identifier_that_nobody_knows(version: int) -> None:
    """[MQTT5-4.3.3-11] [MQTT311-4.3.3-2]: PUBCOMP, or the client would ask for ever."""
    not_found = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else ReasonCode.SUCCESS
    book = durable(version)
    book >> Pubrel(9) << Pubcomp(9, not_found)
    book >> publish(7) << AppendExactlyOnce
    book >> Pubrel(9) << Pubcomp(9, not_found)
    book.silent()


@BOTH
def test_pubrel_twice(version: int) -> None:
    """One PUBCOMP while the removal is under way; after it the flow is through."""
    book = durable(version)
    book >> publish(7) << AppendExactlyOnce
    book >> ExactlyOnceAppended(7) << Pubrec(7)
    book >> Pubrel(7) << ForgetReceived(7)
    book >> Pubrel(7)
    book.silent()
    book >> ReceivedForgotten(7) << Pubcomp(7)
    book >> Pubrel(7)
    assert book.packet(Pubcomp).packet_id == 7
    book.silent()


@BOTH
@pytest.mark.parametrize("stored", [True, False])
def test_pubrel_before_pubrec_has_its_turn(version: int, stored: bool) -> None:
    """Of a client that does not wait; PUBCOMP comes behind PUBREC, whatever commits first."""
    book = durable(version) if stored else clean(version)
    for packet_id in (1, 2, 3):
        book >> publish(packet_id) << AppendExactlyOnce
    book >> Pubrel(2)
    book.silent()
    book >> ExactlyOnceAppended(3) >> ExactlyOnceAppended(2) >> Pubrel(3) >> Pubrel(2)
    book.silent()
    book >> ExactlyOnceAppended(1) << Pubrec(1) << Pubrec(2) << Pubrec(3)
    for packet_id in (2, 3):
        if stored:
            book << ForgetReceived(packet_id)
            book >> ReceivedForgotten(packet_id)
        book << Pubcomp(packet_id)
    book.silent()
    book >> publish(2) << AppendExactlyOnce  # new: what was early is forgotten
    book >> ExactlyOnceAppended(2) << Pubrec(2)
    book.silent()


def test_pubrel_before_a_negative_pubrec_is_nothing() -> None:
    """The flow ends with it, and what is early does not end the next one of the identifier."""
    book = durable(5)
    for packet_id in (1, 2):
        book >> publish(packet_id) << AppendExactlyOnce
        book >> Pubrel(packet_id)
    book >> ExactlyOnceAppended(2) >> ExactlyOnceRefused(1)
    assert pubrecs(book) == [(1, True), (2, False)]
    book << ForgetReceived(2)
    book >> publish(1) << AppendExactlyOnce
    book >> ExactlyOnceAppended(1) << Pubrec(1)
    book.silent()


@BOTH
def test_pubrel_before_pubrec_and_the_end(version: int) -> None:
    """PUBREL comes again on the next connection."""
    book = durable(version)
    book >> publish(7) << AppendExactlyOnce
    book >> Pubrel(7) >> Lost() >> ExactlyOnceAppended(7)
    assert received(book) == {7}
    assert book.effects() == []


def test_pubrel_with_a_reason_code_ends_the_flow_as_well() -> None:
    book = durable(5)
    book >> publish(7) << AppendExactlyOnce
    book >> ExactlyOnceAppended(7) << Pubrec(7)
    book >> Pubrel(7, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND) << ForgetReceived(7)


@BOTH
def test_pubrel_is_not_held_behind_a_subscribe(version: int) -> None:
    """[MQTT5-4.9.0-3]: only what would be done is held."""
    book = durable(version)
    book >> publish(7) << AppendExactlyOnce
    book >> ExactlyOnceAppended(7) << Pubrec(7)
    book >> Subscribe(2, (SubscriptionRequest("b", 0),)) << OpenSubscriptions
    book >> publish(8)
    book.silent()
    book >> Pubrel(7) << ForgetReceived(7)
    book >> Subscribed(2, (ReasonCode.GRANTED_QOS_0,)) << Suback(2, (ReasonCode.GRANTED_QOS_0,))
    assert book.effect(AppendExactlyOnce).packet_id == 8


# Order and refusals


@BOTH
@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_pubrec_in_the_order_of_the_packets(version: int, order: tuple[int, ...]) -> None:
    """[MQTT5-4.6.0-3] [MQTT311-4.6.0-3], whatever commits first."""
    book = durable(version)
    for packet_id in (1, 2, 3):
        book >> publish(packet_id)
    book.effects()
    out: list[int] = []
    for done, packet_id in enumerate(order, 1):
        book >> ExactlyOnceAppended(packet_id)
        out += [each for each, _ in pubrecs(book)]
        assert out == list(range(1, next((n for n in (1, 2, 3) if n not in order[:done]), 4)))


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_refusals_keep_the_order_too(order: tuple[int, ...]) -> None:
    book = durable(5)
    for packet_id in (1, 2, 3):
        book >> publish(packet_id)
    book.effects()
    for packet_id in order:
        book >> (ExactlyOnceRefused(packet_id) if packet_id == 2 else ExactlyOnceAppended(packet_id))
    assert pubrecs(book) == [(1, False), (2, True), (3, False)]
    assert received(book) == {1, 3}


def test_after_a_negative_pubrec_the_identifier_is_new() -> None:
    """[MQTT5-4.3.3-9]"""
    book = durable(5)
    book >> publish(7) << AppendExactlyOnce
    book >> ExactlyOnceRefused(7)
    answer = book.packet(Pubrec)
    assert (answer.packet_id, answer.reason_code) == (7, ReasonCode.QUOTA_EXCEEDED)
    assert answer.properties is not None
    assert answer.properties.reason_string == "too large"
    book >> publish(7) << AppendExactlyOnce
    book >> ExactlyOnceAppended(7) << Pubrec(7)
    book.silent()


def test_a_dup_while_the_negative_pubrec_waits_for_its_turn() -> None:
    """It is the same message still: one answer, and those behind it are not held up."""
    book = durable(5)
    for packet_id in (1, 2):
        book >> publish(packet_id) << AppendExactlyOnce
    book >> ExactlyOnceRefused(2)
    book >> publish(2, dup=True)
    book.silent()
    book >> publish(3) << AppendExactlyOnce
    book >> ExactlyOnceAppended(1) >> ExactlyOnceAppended(3)
    assert pubrecs(book) == [(1, False), (2, True), (3, False)]


def test_a_refused_topic_name_in_version_5() -> None:
    book = durable(5)
    book >> publish(1) << AppendExactlyOnce
    book >> publish(2, b"forbidden/x")
    book.silent()
    book >> ExactlyOnceAppended(1)
    assert pubrecs(book) == [(1, False), (2, True)]
    assert book.engine.statistics()["refused"] == 1


def test_a_payload_that_is_not_what_it_says() -> None:
    book = durable(5)
    book >> Publish(b"a", b"\xff", 2, packet_id=1, properties=Properties(payload_format_indicator=1))
    assert book.packet(Pubrec).reason_code is ReasonCode.PAYLOAD_FORMAT_INVALID


def test_a_refused_topic_name_in_version_3() -> None:
    """[MQTT311-3.3.5-2]: answered as if it had been taken, to the end of the flow."""
    book = durable(4)
    book >> publish(1, b"forbidden/x") << Pubrec(1)
    book >> publish(1, b"forbidden/x", dup=True) << Pubrec(1)
    book >> Pubrel(1) << ForgetReceived(1)
    book >> ReceivedForgotten(1) << Pubcomp(1)
    book.silent()


def test_kafkas_refusal_in_version_3_is_the_end() -> None:
    book = durable(4)
    book >> publish(1) << AppendExactlyOnce
    book >> ExactlyOnceRefused(1)
    book.closed()
    assert received(book) == frozenset()


@BOTH
def test_a_refusal_after_the_end_is_not_remembered_as_received(version: int) -> None:
    """Else the client's next try would be answered and lost."""
    book = durable(version)
    book >> publish(1) >> publish(2)
    book.effects()
    assert book.engine.flows.unsettled() == {1, 2}
    book >> Lost() >> ExactlyOnceRefused(1)
    assert received(book) == frozenset()
    assert book.engine.flows.unsettled() == {2}
    book >> ExactlyOnceAppended(2)
    assert received(book) == {2}
    assert book.effects() == []


@BOTH
def test_the_end_while_the_identifier_is_being_forgotten(version: int) -> None:
    """Whether PUBCOMP gets through or not: the next PUBREL finds nothing and is answered."""
    book = durable(version)
    book >> publish(1) << AppendExactlyOnce
    book >> ExactlyOnceAppended(1) << Pubrec(1)
    book >> Pubrel(1) << ForgetReceived(1)
    book >> Lost() >> ReceivedForgotten(1)
    assert received(book) == frozenset()


# The next connection


@BOTH
def test_what_was_received_before_is_known(version: int) -> None:
    """[MQTT5-4.4.0-1] [MQTT311-4.4.0-1]"""
    book = resumed(received=frozenset((7, 8)), protocol_version=version)
    book >> publish(7, dup=True) << Pubrec(7)
    book >> Pubrel(7) << ForgetReceived(7)
    book >> ReceivedForgotten(7) << Pubcomp(7)
    book >> Pubrel(8) << ForgetReceived(8)
    assert received(book) == frozenset()
    book >> publish(9) << AppendExactlyOnce
    book.silent()


# Receive Maximum [MQTT5-3.3.4-7]


def test_qos_1_and_2_share_the_receive_maximum() -> None:
    book = clean(5, 3)
    book >> publish(1) >> Publish(b"a", b"x", 1, packet_id=2) >> publish(3)
    book.effects()
    book >> publish(4)
    assert book.packet(Disconnect).reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    book.closed()


def test_it_counts_until_pubcomp() -> None:
    """PUBREC does not open the window [MQTT5-3.3.4-7], PUBCOMP does, and so does a negative PUBREC."""
    book = clean(5, 2)
    book >> publish(1) >> publish(2)
    book.effects()
    book >> ExactlyOnceAppended(1) << Pubrec(1)
    book >> Pubrel(1) << Pubcomp(1)
    book >> publish(3) << AppendExactlyOnce
    book >> ExactlyOnceRefused(2)
    book.packets()
    book >> publish(4) << AppendExactlyOnce
    book >> ExactlyOnceAppended(3) << Pubrec(3)
    book >> Publish(b"a", b"x", 1, packet_id=5)
    assert book.packet(Disconnect).reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.parametrize("first", [True, False])
def test_the_short_way_of_qos_1_counts_qos_2(first: bool) -> None:
    book = clean(5, 3)
    book >> Publish(b"a", b"x") << AppendRecord  # the name is known from here on
    plain = [encode(Publish(b"a", b"x", 1, packet_id=packet_id), 5) for packet_id in (1, 2, 3)]
    exactly_once = encode(publish(9), 5)
    book >> b"".join([exactly_once, *plain] if first else [*plain, exactly_once])
    assert book.packet(Disconnect).reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    assert len(book.effects()) == 4  # three messages and the end


def test_a_dup_is_not_counted_twice() -> None:
    book = clean(5, 2)
    book >> publish(1) >> publish(2)
    book.effects()
    book >> publish(1, dup=True)
    book.silent()
    book >> ExactlyOnceAppended(1) << Pubrec(1)
    book >> publish(1, dup=True) << Pubrec(1)
    book.silent()


def test_what_an_earlier_connection_left_is_not_counted() -> None:
    """The quota begins anew with each connection (section 4.9); its PUBCOMP gives back what was never taken."""
    book = resumed(received=frozenset((1, 2)), limits=replace(LIMITS, receive_maximum_in=2))
    book >> publish(3) >> publish(4)
    assert [type(effect) for effect in book.effects()] == [AppendExactlyOnce, AppendExactlyOnce]
    book >> publish(1, dup=True) << Pubrec(1)
    book >> Pubrel(1) << ForgetReceived(1)
    book >> ReceivedForgotten(1) << Pubcomp(1)
    book >> publish(5) << AppendExactlyOnce  # by section 4.9 the client's quota is 1 again
    book.silent()


# 3.1.1 knows no Receive Maximum


def test_a_flood_of_qos_2_pauses_and_pubrel_is_still_read() -> None:
    book = clean(4)
    for packet_id in range(1, 1_001):
        book >> publish(packet_id)
    assert PauseReading not in [type(effect) for effect in book.effects()]
    book >> publish(1_001) << PauseReading()
    assert book.effect(AppendExactlyOnce).packet_id == 1_001
    for packet_id in range(1, 502):
        book >> ExactlyOnceAppended(packet_id)
    book << ResumeReading()
    assert len(pubrecs(book)) == 501
    for packet_id in range(502, 1_002):
        book >> ExactlyOnceAppended(packet_id)
    book.packets()
    # 1,001 flows wait for their PUBREL now, which must not stop us from reading it
    book >> publish(1_002) << AppendExactlyOnce
    book >> Pubrel(1) << Pubcomp(1)
    book.silent()


@pytest.mark.parametrize("qos_1_first", [True, False])
def test_a_mixed_flood_goes_on_again(qos_1_first: bool) -> None:
    """Whichever is answered first, reading goes on before all is answered."""
    book = clean(4)
    for packet_id in range(1, 601):
        book >> publish(packet_id) >> Publish(b"a", b"x", 1, packet_id=10_000 + packet_id)
    effects = book.effects()
    assert [type(effect) for effect in effects].count(PauseReading) == 1
    answers = [Appended(10_000 + packet_id) for packet_id in range(1, 601)]
    answers_2 = [ExactlyOnceAppended(packet_id) for packet_id in range(1, 601)]
    for answer in [*answers, *answers_2] if qos_1_first else [*answers_2, *answers]:
        book >> answer
    assert book.effects() == [ResumeReading()]
    assert not book.engine.paused


def test_the_short_way_works_beside_many_flows() -> None:
    """What waits for its PUBREL is not counted in 3.1.1: QoS 1 goes on."""
    book = clean(4)
    for packet_id in range(1, 1_101):
        book >> publish(packet_id) >> ExactlyOnceAppended(packet_id)
    book.packets()
    book.effects()
    for packet_id in (2_000, 2_001):
        book >> Publish(b"a", b"x", 1, packet_id=packet_id) << AppendRecord
        book >> Appended(packet_id) << Puback(packet_id)
    book.silent()


@BOTH
def test_answers_after_the_end_cause_nothing(version: int) -> None:
    book = durable(version)
    book >> publish(1) >> publish(2)
    book.effects()
    book >> Disconnect() << CloseConnection
    book >> ExactlyOnceAppended(2) >> ExactlyOnceAppended(1)
    assert book.effects() == []
