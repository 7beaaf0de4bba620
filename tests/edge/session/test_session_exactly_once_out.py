"""QoS 2 to the client: four steps, each stored first when the session outlives the connection; one window for all."""

from __future__ import annotations

import pytest
from support.playbook import (
    EXACTLY_ONCE,
    Deliver,
    Lost,
    OutgoingStored,
    Playbook,
    ReleaseStored,
    ServerDisconnect,
    Subscribed,
    TimePasses,
    WritingPaused,
    WritingResumed,
    connected,
    delivery,
    durable,
    durable_connect,
    grant,
)

from bridge.delivery import Delivery
from bridge.retained_view import RetainedDelivery
from edge.session.effects import CloseConnection, FallBehind, OpenSubscriptions, StoreDone, StoreOutgoing, StoreReleased
from edge.session.outgoing import PACKET_ID_MAX
from edge.wire import (
    Connect,
    Disconnect,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    encode,
)

BOTH = pytest.mark.parametrize("version", [4, 5])


def clean(version: int = 5, **properties: int) -> Playbook:
    """A client whose session ends with the connection, with one subscription of QoS 2."""
    connect = Connect(version, "c", keep_alive_s=60, properties=Properties(**properties))  # type: ignore[arg-type]
    book = connected(version, connect, capabilities=EXACTLY_ONCE)
    book >> Subscribe(1, (SubscriptionRequest("a/#", 2),)) << OpenSubscriptions
    book >> Subscribed(1, (ReasonCode.GRANTED_QOS_2,))
    book.packets()
    return book


def message(payload: bytes = b"x", qos: int = 2, offset: int = 0, expiry_s: int | None = None) -> Delivery:
    return delivery("a/b", payload, qos, offset=offset, expiry_s=expiry_s)


def give(book: Playbook, *payloads: bytes, qos: int = 2) -> None:
    for payload in payloads:
        book >> Deliver(message(payload, qos), grant(2))


def sent(book: Playbook) -> list[tuple[int, bytes, bool]]:
    packets = book.packets()
    assert all(isinstance(packet, Publish) for packet in packets), packets
    return [(each.packet_id, each.payload, each.dup) for each in packets if isinstance(each, Publish)]


# One flow


@BOTH
def test_the_four_steps_of_a_session_that_is_not_stored(version: int) -> None:
    """[MQTT5-4.3.3-2] [MQTT5-4.3.3-4] [MQTT311-4.3.3-1]"""
    book = clean(version)
    give(book, b"1")
    packet = book.packet(Publish)
    assert (packet.qos, packet.packet_id, packet.dup) == (2, 1, False)
    book >> Pubrec(1) << Pubrel(1)
    book >> Pubcomp(1)
    book.silent()
    assert book.engine.outgoing is not None
    assert book.engine.outgoing.flows == {}


@BOTH
def test_each_step_is_stored_before_the_client_hears_of_it(version: int) -> None:
    book = durable(version)
    book >> Deliver(message(offset=41), grant(2))
    effect = book.effect(StoreOutgoing)
    assert (effect.packet_id, effect.delivery.offset) == (1, 41)
    book.silent()
    assert book.engine.outgoing is not None
    assert book.engine.outgoing.sent_to == {("mqtt.messages", 0): 42}
    book >> OutgoingStored(1)
    assert sent(book) == [(1, b"x", False)]
    book >> Pubrec(1) << StoreReleased(1)
    book.silent()
    book >> ReleaseStored(1) << Pubrel(1)
    book >> Pubcomp(1) << StoreDone(1)
    book.silent()
    assert book.engine.outgoing.flows == {}


@BOTH
def test_the_lower_qos_needs_no_storing(version: int) -> None:
    book = durable(version)
    book >> Deliver(message(qos=1), grant(2)) >> Deliver(message(), grant(1))
    assert [packet.qos for packet in book.packets() if isinstance(packet, Publish)] == [1, 1]
    book.silent()


def test_a_retained_message_has_no_place_in_the_log() -> None:
    book = durable(5)
    book >> Deliver(RetainedDelivery(*message(offset=9)), grant(2)) << StoreOutgoing
    assert book.engine.outgoing is not None
    assert book.engine.outgoing.sent_to == {}


@BOTH
def test_a_message_that_expires_while_it_is_stored_is_sent(version: int) -> None:
    """Its delivery has begun: expiry does not end it any more [MQTT5-4.3.3-7]."""
    book = durable(version)
    book >> Deliver(message(expiry_s=5), grant(2)) << StoreOutgoing
    book >> TimePasses(6) >> OutgoingStored(1)
    assert sent(book) == [(1, b"x", False)]


# Packets that do not fit


@BOTH
def test_pubrec_twice(version: int) -> None:
    """[MQTT5-4.3.3-4]: the second one is answered when the first one is."""
    book = durable(version)
    give(book, b"1")
    book >> OutgoingStored(1)
    book.packets()
    book >> Pubrec(1)
    assert book.effects()[1:] == [StoreReleased(1)]
    book >> Pubrec(1)
    book.silent()
    book >> ReleaseStored(1) << Pubrel(1)
    book >> Pubrec(1) << Pubrel(1)
    book >> ReleaseStored(1)
    book.silent()


@BOTH
def test_pubrec_of_an_identifier_that_nobody_knows(version: int) -> None:
    """Section 4.3.3: PUBREL all the same, or the client would keep it for ever. Without a subscription, too."""
    not_found = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else ReasonCode.SUCCESS
    book = connected(version, capabilities=EXACTLY_ONCE)
    book >> Pubrec(9) << Pubrel(9, not_found)
    book = durable(version)
    give(book, b"1")
    book.effects()
    for packet_id in (1, 9):  # of 1 the client cannot know yet
        book >> Pubrec(packet_id) << Pubrel(packet_id, not_found)
    book >> OutgoingStored(1)
    assert sent(book) == [(1, b"1", False)]


@BOTH
def test_pubcomp_of_an_identifier_that_nobody_knows(version: int) -> None:
    book = connected(version, capabilities=EXACTLY_ONCE)
    book >> Pubcomp(9)
    book.silent()
    book = durable(version)
    give(book, b"1")
    book.effects()
    book >> Pubcomp(1) >> Pubcomp(9)
    book.silent()
    book >> OutgoingStored(1)
    assert sent(book) == [(1, b"1", False)]


@BOTH
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Puback(1), "PUBACK for a QoS 2 message"),
        (Pubrec(2), "PUBREC for a QoS 1 message"),
        (Pubrec(2, ReasonCode.QUOTA_EXCEEDED), "PUBREC for a QoS 1 message"),
        (Pubcomp(2), "PUBCOMP for a QoS 1 message"),
        (Pubcomp(1), "PUBCOMP before PUBREL"),
    ],
    ids=["PUBACK", "PUBREC", "PUBREC-error", "PUBCOMP", "PUBCOMP-early"],
)
def test_an_answer_of_the_wrong_kind_ends_the_connection(
    version: int, answer: Puback | Pubrec | Pubcomp, why: str
) -> None:
    """[MQTT5-4.13.1-1] [MQTT311-4.8.0-1]: it is for an identifier in flight, but not for what is in flight there."""
    if version == 4 and answer.reason_code:
        answer = Pubrec(2)  # 3.1.1 has no reason codes
    book = durable(version)
    give(book, b"1")
    give(book, b"2", qos=1)
    book >> OutgoingStored(1)
    assert {packet_id for packet_id, *_ in sent(book)} == {1, 2}
    book.effects()
    book >> answer
    if version == 5:
        assert book.packet(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR
    assert book.effect(CloseConnection).reason.startswith(why)


@BOTH
def test_puback_after_pubrec_is_of_the_wrong_kind_too(version: int) -> None:
    book = durable(version)
    give(book, b"1")
    book >> OutgoingStored(1) >> Pubrec(1) >> ReleaseStored(1)
    book.packets()
    book.effects()
    book >> Puback(1)
    if version == 5:
        assert book.packet(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR
    assert book.effect(CloseConnection).reason.startswith("PUBACK for a QoS 2 message")


@BOTH
def test_answers_to_what_is_not_in_flight_do_no_harm(version: int) -> None:
    """They may be of an earlier connection; the message of identifier 1 has not been sent on this one."""
    book = durable(version)
    give(book, b"1")
    assert book.effect(StoreOutgoing).packet_id == 1
    for packet_id in (1, 9):
        book >> Puback(packet_id) >> Pubcomp(packet_id)
        book.silent()
        book >> Pubrec(packet_id) << Pubrel(packet_id, ReasonCode(0x92 if version == 5 else 0))
    book >> OutgoingStored(1)
    assert sent(book) == [(1, b"1", False)]


@pytest.mark.parametrize("released", [False, True])
def test_a_client_that_refuses_is_through(released: bool) -> None:
    """[MQTT5-4.3.3-4] [MQTT5-4.4.0-2]: PUBREC with an error ends the flow, without PUBREL."""
    book = durable(5, durable_connect(receive_maximum=1))
    give(book, b"1", b"2")
    book >> OutgoingStored(1)
    book.packets()
    book.effects()
    if released:
        book >> Pubrec(1) << StoreReleased(1)
        book >> ReleaseStored(1) << Pubrel(1)
    book >> Pubrec(1, ReasonCode.QUOTA_EXCEEDED) << StoreDone(1)
    assert book.effect(StoreOutgoing).packet_id == 2
    book.silent()


def test_a_refusal_of_nothing() -> None:
    book = connected(5, capabilities=EXACTLY_ONCE)
    book >> Pubrec(1, ReasonCode.QUOTA_EXCEEDED)
    book.silent()


@BOTH
def test_pubcomp_before_pubrel(version: int) -> None:
    """PUBREL waits for the store, so PUBCOMP cannot answer it; what is stored late finds nothing to do."""
    book = durable(version)
    give(book, b"1")
    book >> OutgoingStored(1) >> Pubrec(1)
    book.packets()
    book.effects()
    book >> Pubcomp(1)
    assert book.effect(CloseConnection).reason.startswith("PUBCOMP before PUBREL")
    book.packets()
    book >> ReleaseStored(1) >> OutgoingStored(1)
    book.silent()


def test_what_may_not_be_sent_any_more_goes() -> None:
    """Invariant I14: what waits in the buffer, and a message whose identifier is being stored."""
    book = durable(5, durable_connect(receive_maximum=2))
    give(book, b"storing")
    give(book, b"sent", qos=1)
    give(book, b"waits", b"waits")
    book >> Deliver(delivery("a/other", b"stays", 1), grant(1))
    assert sent(book) == [(2, b"sent", False)]
    assert book.engine.outgoing is not None
    book.engine.outgoing.purge(lambda name: name == b"a/other")
    book.effects()
    book >> OutgoingStored(1) << StoreDone(1)
    assert sent(book) == [(3, b"stays", False)]
    assert book.engine.statistics()["dropped"] == 3
    assert book.engine.statistics()["queue_length"] == 0


# The window


def test_one_window_for_both_qos() -> None:
    """[MQTT5-3.3.4-9]"""
    book = clean(receive_maximum=3)
    give(book, b"1")
    give(book, b"2", qos=1)
    give(book, b"3", b"4")
    give(book, b"5", qos=1)
    assert [payload for _, payload, _ in sent(book)] == [b"1", b"2", b"3"]
    book >> Pubrec(1) << Pubrel(1)  # PUBREC does not open it
    book.silent()
    book >> Pubcomp(1)
    assert sent(book) == [(4, b"4", False)]
    book >> Puback(2)
    assert sent(book) == [(5, b"5", False)]
    book.silent()


def test_what_is_being_stored_counts() -> None:
    """Else more could be committed than may be sent."""
    book = durable(5, durable_connect(receive_maximum=2))
    give(book, b"1", b"2", b"3")
    assert [effect.packet_id for effect in book.effects()] == [1, 2]
    for packet_id in (1, 2):
        book >> OutgoingStored(packet_id)
    assert [payload for _, payload, _ in sent(book)] == [b"1", b"2"]
    book >> Pubrec(2) << StoreReleased(2)
    book >> ReleaseStored(2) << Pubrel(2)
    book >> Pubcomp(2) << StoreDone(2)
    assert book.effect(StoreOutgoing).packet_id == 3


@BOTH
def test_qos_2_before_qos_1_leaves_its_place_to_others_only_once(version: int) -> None:
    """The short way of QoS 1 looks at the same window."""
    book = clean(version)
    give(book, *(b"%d" % number for number in range(32)))
    assert len(sent(book)) == 32
    outgoing = book.engine.outgoing
    assert outgoing is not None
    assert not outgoing.take_live(message(b"live", 1), grant(1))
    book >> Pubrec(32) << Pubrel(32)
    book >> Pubcomp(32)
    assert outgoing.take_live(message(b"live", 1), grant(1))
    assert not outgoing.take_live(message(b"live", 1), grant(1))
    assert not outgoing.take_live(message(b"live", 2), grant(2))


@BOTH
@pytest.mark.parametrize("short_way", [True, False])
def test_no_identifier_is_used_twice_at_a_time(version: int, short_way: bool) -> None:
    """[MQTT5-2.2.1-4] [MQTT311-2.3.1-4]: of QoS 1 and QoS 2 together, however long one of them takes."""
    book = clean(version)
    give(book, b"slow")
    give(book, b"slower", qos=1)
    book.packets()
    outgoing = book.engine.outgoing
    assert outgoing is not None
    outgoing._last_id = PACKET_ID_MAX - 1
    if short_way:
        for number in range(2):
            assert outgoing.take_live(message(b"%d" % number, 1), grant(1))
    else:
        give(book, b"0", b"1")
    assert set(outgoing.inflight) | set(outgoing.flows) == {1, 2, 3, PACKET_ID_MAX}
    assert outgoing.flows[1].delivery is not None
    assert outgoing.flows[1].delivery.payload == b"slow"


@BOTH
def test_drain_after_pubcomp_keeps_the_order(version: int) -> None:
    book = clean(version)
    give(book, *(b"%d" % number for number in range(40)))
    assert [int(payload) for _, payload, _ in sent(book)] == list(range(32))
    order: list[int] = []
    for packet_id in (5, 1, 3):
        book >> Pubrec(packet_id) << Pubrel(packet_id)
        book >> Pubcomp(packet_id)
        order += [int(payload) for _, payload, _ in sent(book)]
    assert order == [32, 33, 34]


@BOTH
def test_a_socket_that_takes_no_more(version: int) -> None:
    book = durable(version)
    book >> WritingPaused()
    give(book, b"1")
    book.silent()
    book >> WritingResumed() << StoreOutgoing
    book >> WritingPaused() >> OutgoingStored(1)  # it was begun: bounded by the window
    assert sent(book) == [(1, b"1", False)]


def test_a_full_buffer_falls_behind() -> None:
    book = durable(5, durable_connect(receive_maximum=1))
    for offset in range(1_002):
        book >> Deliver(message(offset=offset), grant(2))
    effects = book.effects()
    assert effects[-1] == FallBehind(("mqtt.messages", 0), 1_001)
    assert [type(effect) for effect in effects] == [StoreOutgoing, FallBehind]


# Maximum Packet Size


def size_of(packet: Publish) -> int:
    return len(encode(packet, 5))


@pytest.mark.parametrize("stored", [True, False])
def test_what_is_too_large_takes_no_identifier_and_no_place(stored: bool) -> None:
    """[MQTT5-3.1.2-24] [MQTT5-3.1.2-25]"""
    limit = size_of(Publish(b"a/b", b"y" * 50, 2, packet_id=1))
    book = (
        durable(5, durable_connect(receive_maximum=1, maximum_packet_size_bytes=limit))
        if stored
        else clean(receive_maximum=1, maximum_packet_size_bytes=limit)
    )
    give(book, b"x" * 51)
    book.silent()
    give(book, b"y" * 50)
    if stored:
        assert book.effect(StoreOutgoing).packet_id == 1
        book >> OutgoingStored(1)
    assert sent(book) == [(1, b"y" * 50, False)]
    assert book.engine.statistics()["too_large"] == 1
    assert book.engine.statistics()["inflight"] == 1


# The end


@BOTH
def test_completions_after_the_end_send_nothing(version: int) -> None:
    book = durable(version)
    give(book, b"1", b"2")
    book >> OutgoingStored(1) >> Pubrec(1)
    book.packets()
    book.effects()
    book >> Lost() >> OutgoingStored(2) >> ReleaseStored(1)
    book >> Deliver(message(b"3"), grant(2))
    book.silent()
    assert book.engine.outgoing is not None
    assert set(book.engine.outgoing.flows) == {1, 2}  # what the session has to go on with


def test_nothing_follows_our_disconnect() -> None:
    book = durable(5)
    give(book, b"1")
    book.effects()
    book >> ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN)
    book.packet(Disconnect)
    book.closed()
    book >> OutgoingStored(1)
    book.silent()
