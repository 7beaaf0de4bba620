"""Deliveries to the client: the window, packet identifiers, the bounded buffer, flags and properties of the PUBLISH."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.playbook import (
    LIMITS,
    START_S,
    Appended,
    Deliver,
    DeliverLate,
    Lost,
    PassOver,
    Playbook,
    Subscribed,
    TimePasses,
    Unsubscribed,
    WritingPaused,
    WritingResumed,
    connected,
    delivery,
    grant,
    subscribed,
)

from bridge.delivery import Delivery
from edge.session.effects import (
    AppendRecord,
    CloseSubscriptions,
    FallBehind,
    OpenSubscriptions,
    PauseReading,
    ResumeReading,
)
from edge.session.outgoing import PACKET_ID_MAX, Outgoing
from edge.wire import (
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from schemas.message import Message

BOTH = pytest.mark.parametrize("version", [4, 5])


def publishes(book: Playbook) -> list[Publish]:
    packets = book.packets()
    assert all(isinstance(packet, Publish) for packet in packets), packets
    return [packet for packet in packets if isinstance(packet, Publish)]


def payloads(book: Playbook) -> list[bytes]:
    return [packet.payload for packet in publishes(book)]


@BOTH
@pytest.mark.parametrize("message_qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1])
def test_the_lower_qos(version: int, message_qos: int, granted: int) -> None:
    """[MQTT5-3.8.4-8] [MQTT311-3.8.4-6]"""
    book = subscribed(version)
    book >> Deliver(delivery("a/b", b"x", message_qos), grant(granted))
    packet = book.packet(Publish)
    qos = min(message_qos, granted)
    assert (packet.qos, packet.packet_id, packet.dup) == (qos, 1 if qos else 0, False)
    assert (packet.topic_name_utf8, packet.payload) == (b"a/b", b"x")


@BOTH
def test_the_window_of_32(version: int) -> None:
    book = subscribed(version)
    for number in range(40):
        book >> Deliver(delivery(payload=b"%d" % number), grant())
    sent = publishes(book)
    assert [packet.packet_id for packet in sent] == list(range(1, 33))
    book >> Puback(5)
    assert payloads(book) == [b"32"]
    book >> Puback(5)  # not in flight: ignored
    book.silent()
    for packet_id in (33, 1, 2):
        book >> Puback(packet_id)
    assert payloads(book) == [b"33", b"34", b"35"]


def test_the_clients_receive_maximum() -> None:
    """[MQTT5-3.3.4-9]: QoS 0 is not counted but keeps its place."""
    book = subscribed(5, Connect(5, "c", keep_alive_s=60, properties=Properties(receive_maximum=2)))
    for number, qos in enumerate((1, 1, 1, 0, 1)):
        book >> Deliver(delivery(payload=b"%d" % number, qos=qos), grant())
    assert payloads(book) == [b"0", b"1"]
    book >> Puback(1)
    assert payloads(book) == [b"2", b"3"]
    book >> Puback(2)
    assert payloads(book) == [b"4"]
    book >> Puback(3) >> Puback(4)
    assert book.engine.outgoing is not None
    assert book.engine.outgoing.inflight == {}


def test_qos_0_passes_a_full_window() -> None:
    book = subscribed(5, Connect(5, "c", keep_alive_s=60, properties=Properties(receive_maximum=1)))
    book >> Deliver(delivery(payload=b"1"), grant())
    book >> Deliver(delivery(payload=b"0", qos=0), grant())
    assert payloads(book) == [b"1", b"0"]


def test_a_larger_receive_maximum_is_held_to_our_window() -> None:
    book = subscribed(5, Connect(5, "c", keep_alive_s=60, properties=Properties(receive_maximum=65_535)))
    for number in range(40):
        book >> Deliver(delivery(payload=b"%d" % number), grant())
    assert len(publishes(book)) == 32


def test_an_error_in_puback_frees_the_identifier() -> None:
    """[MQTT5-3.3.4-9]: a negative answer ends the flow as well; there is no second try on this connection."""
    book = subscribed(5, Connect(5, "c", keep_alive_s=60, properties=Properties(receive_maximum=1)))
    book >> Deliver(delivery(payload=b"1"), grant()) >> Deliver(delivery(payload=b"2"), grant())
    assert payloads(book) == [b"1"]
    book >> Puback(1, ReasonCode.QUOTA_EXCEEDED)
    assert payloads(book) == [b"2"]


def test_packet_identifiers_wrap_and_pass_over_those_in_flight() -> None:
    """[MQTT5-2.2.1-4] [MQTT311-2.3.1-4]"""
    book = subscribed(5)
    book >> Deliver(delivery(payload=b"first"), grant())
    assert book.packet(Publish).packet_id == 1  # stays in flight
    seen = []
    for _ in range(PACKET_ID_MAX + 5):
        book >> Deliver(delivery(), grant())
        packet_id = book.packet(Publish).packet_id
        seen.append(packet_id)
        book >> Puback(packet_id)
    assert seen[: PACKET_ID_MAX - 1] == list(range(2, PACKET_ID_MAX + 1))
    assert seen[PACKET_ID_MAX - 1 :] == list(range(2, 8))
    book.silent()


def test_packet_identifiers_with_a_full_window_around_the_wrap() -> None:
    out: list[bytes] = []
    outgoing = Outgoing(out, 4, 32, 1 << 28, 1_000, 1 << 20)
    in_flight: list[int] = []
    for _ in range(3 * PACKET_ID_MAX):
        outgoing.deliver(delivery(), grant(), 0)
        [new] = outgoing.inflight.keys() - set(in_flight)
        assert 1 <= new <= PACKET_ID_MAX
        in_flight.append(new)
        if len(in_flight) == 32:  # the oldest but one: one identifier stays in flight for ever
            assert outgoing.acknowledged(in_flight.pop(1), 0.0, 0.0)
        out.clear()


@BOTH
def test_what_the_socket_does_not_take_waits(version: int) -> None:
    book = subscribed(version)
    book >> WritingPaused()
    for number in range(5):
        book >> Deliver(delivery(payload=b"%d" % number, qos=number % 2), grant())
    book.silent()
    book >> Puback(9)
    book.silent()
    book >> WritingResumed()
    assert payloads(book) == [b"%d" % number for number in range(5)]


SMALL = replace(LIMITS, buffer_messages_max=3, buffer_bytes_max=1_000)


@BOTH
def test_qos_0_beyond_the_buffer_is_dropped_and_counted(version: int) -> None:
    book = subscribed(version, limits=SMALL)
    book >> WritingPaused()
    for number in range(5):
        book >> Deliver(delivery(payload=b"%d" % number, qos=0), grant())
    assert book.engine.statistics()["dropped"] == 2
    assert book.engine.statistics()["queue_length"] == 3
    book >> WritingResumed()
    assert payloads(book) == [b"0", b"1", b"2"]  # the newest are dropped
    book >> Deliver(delivery(payload=b"5", qos=0), grant())
    assert payloads(book) == [b"5"]


@BOTH
def test_the_buffer_is_bounded_in_bytes(version: int) -> None:
    book = subscribed(version, limits=SMALL)
    book >> WritingPaused()
    for size in (600, 400, 1):
        book >> Deliver(delivery(payload=bytes(size), qos=0), grant())
    assert book.engine.statistics()["dropped"] == 1
    assert book.engine.statistics()["queue_bytes"] == 1_000
    book >> WritingResumed()
    assert [len(payload) for payload in payloads(book)] == [600, 400]
    assert book.engine.statistics()["queue_bytes"] == 0


def test_one_message_larger_than_the_buffer_still_passes() -> None:
    book = subscribed(5, limits=SMALL)
    book >> WritingPaused() >> Deliver(delivery(payload=bytes(5_000)), grant()) >> WritingResumed()
    assert [len(payload) for payload in payloads(book)] == [5_000]


HERE = ("mqtt.messages", 0)


def numbered(number: int, qos: int = 1, **fields: Any) -> Delivery:
    return delivery(payload=b"%d" % number, qos=qos, offset=number, **fields)


@BOTH
def test_qos_1_beyond_the_buffer_is_needed_from_the_log(version: int) -> None:
    """Never dropped in silence, and no reason to end the connection: the log has it."""
    book = subscribed(version, Connect(version, "c", will=Will("w"), keep_alive_s=60), limits=SMALL)
    book >> WritingPaused()
    for number in range(4):
        book >> Deliver(numbered(number), grant())
    book << FallBehind(HERE, 3)
    book.silent()
    assert book.engine.statistics()["dropped"] == 0
    book >> DeliverLate(numbered(3), grant())
    assert not book.taken
    book >> WritingResumed()
    assert payloads(book) == [b"0", b"1", b"2"]
    book >> DeliverLate(numbered(3), grant()) >> Deliver(numbered(4), grant())
    assert book.taken
    assert payloads(book) == [b"3", b"4"]
    book.silent()


def test_qos_1_beyond_the_window_and_the_buffer_in_version_3() -> None:
    book = subscribed(4, limits=SMALL)
    for number in range(32 + 4):
        book >> Deliver(numbered(number), grant())
    assert len(publishes(book)) == 32
    book << FallBehind(HERE, 35)
    book.silent()
    for packet_id in (1, 2, 3):
        book >> Puback(packet_id)
    assert payloads(book) == [b"32", b"33", b"34"]
    book >> DeliverLate(numbered(35), grant()) >> Puback(4)
    assert payloads(book) == [b"35"]


def test_a_client_that_is_behind_lives_on() -> None:
    """PINGs are answered, its own messages are taken, and it is closed only when it is silent."""
    book = subscribed(5, limits=SMALL)
    for number in range(32 + 4):
        book >> Deliver(numbered(number), grant())
    book.packets()
    book << FallBehind(HERE, 35)
    for _ in range(5):
        book >> TimePasses(50) >> Pingreq() << Pingresp()
    book >> Publish(b"a", b"x", 1, packet_id=1) << AppendRecord
    book >> Appended(1) << Puback(1)
    book.silent()
    book >> TimePasses(100)
    assert book.packet(Disconnect).reason_code is ReasonCode.KEEP_ALIVE_TIMEOUT
    book.closed()
    book >> DeliverLate(numbered(35), grant())
    book.silent()


@pytest.mark.parametrize("qos", [0, 1])
def test_a_packet_larger_than_the_client_takes_is_not_sent(qos: int) -> None:
    """[MQTT5-3.1.2-24] [MQTT5-3.1.2-25]: as if it had been delivered."""
    connect = Connect(5, "c", keep_alive_s=60, properties=Properties(maximum_packet_size_bytes=30))
    book = subscribed(5, connect)
    fixed = 2 + 2 + 3 + 1 + (2 if qos else 0)  # header, topic name "a/b", no properties, identifier
    for size in (30 - fixed, 31 - fixed, 30 - fixed):
        book >> Deliver(delivery(payload=bytes(size), qos=qos), grant())
    sent = publishes(book)
    assert [len(packet.payload) for packet in sent] == [30 - fixed] * 2
    assert [packet.packet_id for packet in sent] == ([1, 2] if qos else [0, 0])
    assert book.engine.statistics()["too_large"] == 1


def test_no_local() -> None:
    """[MQTT5-3.8.3-3]"""
    book = subscribed(5)
    book >> Deliver(delivery(client_id="c"), grant(no_local=True))
    book.silent()
    book >> Deliver(delivery(client_id="c"), grant())
    book >> Deliver(delivery(client_id="d"), grant(no_local=True))
    assert len(publishes(book)) == 2


@BOTH
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("as_published", [False, True])
def test_retain_as_published(version: int, retain: bool, as_published: bool) -> None:
    """[MQTT5-3.3.1-12] [MQTT5-3.3.1-13] [MQTT311-3.3.1-9]"""
    book = subscribed(version)
    message = delivery(retain=retain)
    book >> Deliver(message, grant(retain_as_published=not as_published))
    book >> Deliver(message, grant(retain_as_published=as_published))
    assert [packet.retain for packet in publishes(book)] == [retain and not as_published, retain and as_published]


def test_subscription_identifiers() -> None:
    """[MQTT5-3.3.4-3] [MQTT5-3.3.4-4]; what is shared between subscribers does not mix them up."""
    book, other = subscribed(5), subscribed(5)
    message = delivery()
    book >> Deliver(message, grant(ids=(1, 268_435_455)))
    other >> Deliver(message, grant())
    properties = book.packet(Publish).properties
    assert properties is not None
    assert properties.subscription_identifiers == (1, 268_435_455)
    assert other.packet(Publish).properties is None
    old = subscribed(4)
    old >> Deliver(message, grant(ids=(1,)))
    assert old.packet(Publish).payload == b"x"


def test_properties_are_forwarded_unchanged() -> None:
    """[MQTT5-3.3.2-4] [MQTT5-3.3.2-15] [MQTT5-3.3.2-16] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18] [MQTT5-3.3.2-20]"""
    message = Message(
        "a/b",
        b"x",
        payload_format=1,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x00",
        user_properties=(("b", "2"), ("a", "1"), ("b", "3")),
    )
    one = delivery(properties=message)
    for book in (subscribed(5), subscribed(5)):
        book >> Deliver(one, grant(ids=(7,)))
        properties = book.packet(Publish).properties
        assert properties == Properties(
            payload_format_indicator=1,
            content_type="text/plain",
            response_topic="answers",
            correlation_data=b"\x00",
            user_properties=message.user_properties,
            subscription_identifiers=(7,),
        )
    old = subscribed(4)
    old >> Deliver(one, grant())
    assert old.packet(Publish) == Publish(b"a/b", b"x", 1, packet_id=1)


def test_message_expiry_counts_down() -> None:
    """[MQTT5-3.3.2-6]"""
    book = subscribed(5)
    late = delivery(expiry_s=60, timestamp_ms=int((START_S - 10.5) * 1_000))
    for _ in range(2):
        book >> Deliver(late, grant(0))
        properties = book.packet(Publish).properties
        assert properties is not None
        assert properties.message_expiry_interval_s == 50 - (0 if book.now == START_S else 20)
        book >> TimePasses(20)
    old = subscribed(4)
    old >> Deliver(late, grant(0))
    assert old.packet(Publish).payload == b"x"


def test_what_expired_while_it_waited_is_not_sent() -> None:
    """[MQTT5-3.3.2-5]"""
    book = subscribed(5, Connect(5, "c", keep_alive_s=600, properties=Properties(receive_maximum=1)))
    now_ms = int(START_S * 1_000)
    book >> Deliver(delivery(payload=b"1"), grant())
    book >> Deliver(delivery(payload=b"2", expiry_s=5, timestamp_ms=now_ms), grant())
    book >> Deliver(delivery(payload=b"3", expiry_s=50, timestamp_ms=now_ms), grant())
    assert payloads(book) == [b"1"]
    book >> TimePasses(6) >> Puback(1)
    [packet] = publishes(book)
    assert packet.payload == b"3"
    assert packet.properties is not None
    assert packet.properties.message_expiry_interval_s == 44


def test_expiry_is_read_on_the_wall_clock() -> None:
    """The engine's clock is monotonic: the offset turns it into what Kafka's timestamps mean."""
    offset_ms = 1_700_000_000_000.0
    book = subscribed(5, wall_offset_ms=offset_ms)
    stamped = int(START_S * 1_000 + offset_ms) - 3_000
    book >> Deliver(delivery(expiry_s=10, timestamp_ms=stamped), grant())
    properties = book.packet(Publish).properties
    assert properties is not None
    assert properties.message_expiry_interval_s == 7


@BOTH
def test_nothing_is_delivered_to_who_never_subscribed_or_is_gone(version: int) -> None:
    book = connected(version)
    book >> Deliver(delivery(), grant())
    book.silent()
    book = subscribed(version)
    book >> Lost() >> Deliver(delivery(), grant())
    book.silent()


@BOTH
def test_a_delivery_may_come_before_suback(version: int) -> None:
    """[MQTT5-3.8.4-2]: permitted, so that nothing between the subscription and its SUBACK is lost."""
    book = connected(version)
    book >> Subscribe(1, (SubscriptionRequest("a/#", 1),)) << OpenSubscriptions
    book >> Deliver(delivery(), grant())
    assert payloads(book) == [b"x"]
    book >> Subscribed(1) << Suback(1, (ReasonCode.GRANTED_QOS_1,))


def test_suback_has_a_code_for_each_filter() -> None:
    codes = (ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED, ReasonCode.GRANTED_QOS_0)
    requests = tuple(SubscriptionRequest(name) for name in "abc")
    book = connected(5)
    book >> Subscribe(9, requests) << OpenSubscriptions
    book >> Subscribed(9, codes) << Suback(9, codes)


def test_suback_of_version_3_has_one_failure_code() -> None:
    """[MQTT311-3.9.3-2]"""
    book = connected(4)
    book >> Subscribe(9, (SubscriptionRequest("a"), SubscriptionRequest("b"))) << OpenSubscriptions
    book.engine.subscribed(9, (ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED), book.now)
    assert b"".join(book.engine.out) == b"\x90\x04\x00\x09\x01\x80"


@BOTH
def test_unsubscribe(version: int) -> None:
    book = subscribed(version)
    book >> Unsubscribe(4, ("a/#", "b"))
    assert book.effect(CloseSubscriptions).packet.topic_filters == ("a/#", "b")
    book.silent()
    book >> Publish(b"a", b"x")
    book.silent()  # waits for UNSUBACK, too
    codes = (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)
    book >> Unsubscribed(4, codes) << Unsuback(4, codes if version == 5 else ())
    assert len(book.effects()) == 1


@BOTH
def test_late_answers_to_a_client_that_is_gone(version: int) -> None:
    book = connected(version)
    book >> Subscribe(1, (SubscriptionRequest("a"),)) << OpenSubscriptions
    book >> Lost()
    book >> Subscribed(1) >> Unsubscribed(1)
    book.silent()


def test_figures() -> None:
    book = subscribed(5)
    book >> Deliver(delivery(), grant()) >> Deliver(delivery(qos=0), grant())
    figures = book.engine.statistics()
    assert (figures["inflight"], figures["sent"], figures["queue_length"]) == (1, 2, 0)


def test_a_socket_that_was_full_before_the_first_subscription() -> None:
    book = connected(5)
    book >> WritingPaused()
    book >> Subscribe(1, (SubscriptionRequest("a/#", 1),)) << OpenSubscriptions
    book << PauseReading()
    book >> Subscribed(1)
    book.packets()
    book >> Deliver(delivery(), grant())
    book.silent()
    book >> WritingResumed() << ResumeReading()
    assert payloads(book) == [b"x"]


def test_every_message_that_does_not_fit_says_where_it_is() -> None:
    """The handler keeps the first of them; an overflow of the past does not spoil what fits later."""
    book = subscribed(5, limits=SMALL)
    book >> WritingPaused()
    for number in range(10):
        book >> Deliver(numbered(number), grant())
    assert book.effects() == [FallBehind(HERE, number) for number in range(3, 10)]
    book >> WritingResumed() >> WritingPaused()
    assert payloads(book) == [b"0", b"1", b"2"]
    book >> Deliver(numbered(10), grant())
    book.silent()


def test_messages_that_were_missed_take_half_the_buffer() -> None:
    limits = replace(LIMITS, buffer_messages_max=8, buffer_bytes_max=1_000)
    book = subscribed(5, limits=limits)
    book >> WritingPaused()
    taken = []
    for number in range(6):
        book >> DeliverLate(numbered(number), grant())
        taken.append(book.taken)
    assert taken == [True] * 4 + [False] * 2
    for number in (4, 5, 6, 7):
        book >> Deliver(numbered(number), grant())
    book.silent()
    book >> WritingResumed()
    assert payloads(book) == [b"%d" % number for number in range(8)]
    book >> WritingPaused() >> DeliverLate(delivery(payload=bytes(5_000)), grant())
    assert book.taken, "an empty buffer takes any message"
    book >> DeliverLate(delivery(), grant())
    assert not book.taken
    book >> WritingResumed() >> WritingPaused()
    book >> DeliverLate(delivery(payload=bytes(400)), grant()) >> DeliverLate(delivery(payload=bytes(101)), grant())
    assert not book.taken
    book >> DeliverLate(delivery(payload=bytes(100)), grant())
    assert book.taken


def test_when_reading_again_is_worth_its_while() -> None:
    limits = replace(LIMITS, buffer_messages_max=8, buffer_bytes_max=1_000)
    book = subscribed(5, Connect(5, "c", properties=Properties(receive_maximum=1)), limits=limits)
    book >> Deliver(numbered(0), grant())
    outgoing = book.engine.outgoing
    assert outgoing is not None
    assert outgoing.is_low
    for number in (1, 2, 3):
        book >> Deliver(numbered(number), grant())
    assert not outgoing.is_low
    book >> Puback(1) >> Puback(2)
    assert outgoing.is_low
    book >> Deliver(delivery(payload=bytes(250)), grant())
    assert not outgoing.is_low


def test_what_is_passed_over_is_counted_when_the_log_does_not_bring_it() -> None:
    book = subscribed(5)
    for qos, granted, counted in ((1, 1, 0), (0, 1, 1), (1, 0, 1), (2, 1, 0), (0, 0, 1)):
        before = book.engine.statistics()["dropped"]
        book >> PassOver(numbered(1, qos), grant(granted))
        assert book.engine.statistics()["dropped"] - before == counted
        book >> PassOver(numbered(1, qos, client_id="c"), grant(granted, no_local=True))  # not meant for it anyway
        assert book.engine.statistics()["dropped"] - before == counted
    book.silent()


def test_late_messages_of_ones_own_are_done_with() -> None:
    """[MQTT5-3.8.3-3]"""
    book = subscribed(5)
    book >> DeliverLate(numbered(1, client_id="c"), grant(no_local=True))
    assert book.taken
    book.silent()
