"""The next connection of a session: what was in flight is sent again under its old identifier, and nothing else is."""

from __future__ import annotations

import pytest
from support.playbook import (
    POSITION,
    Deliver,
    DeliverLate,
    Lost,
    OutgoingStored,
    PartitionResumed,
    Playbook,
    ReleaseStored,
    delivery,
    durable,
    grant,
    left_in_flight,
    resumed,
)

from bridge.delivery import Delivery
from bridge.log import Position
from bridge.retained_view import RetainedDelivery
from edge.session.effects import StoreDone, StoreOutgoing, StoreReleased
from edge.session.outgoing import Outgoing
from edge.session.resuming import InFlight, Resuming
from edge.wire import Puback, Pubcomp, Publish, Pubrec, Pubrel

BOTH = pytest.mark.parametrize("version", [4, 5])
OTHER: Position = ("mqtt.messages", 1)


def in_flight(packet_id: int, offset: int, qos: int = 2, *, released: bool = False, partition: int = 0) -> InFlight:
    return InFlight(packet_id, qos, ("mqtt.messages", partition), offset, released)


def left(*entries: InFlight, start: int = 100, other: int | None = None) -> Resuming:
    """`start`: the next offset of the first partition that was to be sent; `other`: of the second one."""
    return Resuming.of({POSITION: start} | ({OTHER: other} if other is not None else {}), entries)


def message(offset: int, qos: int = 2, partition: int = 0) -> Delivery:
    return delivery("a/b", b"%d" % offset, qos, partition=partition, offset=offset)


def late(offset: int, qos: int = 2, partition: int = 0) -> DeliverLate:
    return DeliverLate(message(offset, qos, partition), grant(2))


def sent(book: Playbook) -> list[tuple[int, int, bool]]:
    """Packet identifier, offset and DUP of what came."""
    packets = book.packets()
    assert all(isinstance(packet, Publish) for packet in packets), packets
    return [(each.packet_id, int(each.payload), each.dup) for each in packets if isinstance(each, Publish)]


def outgoing_of(book: Playbook) -> Outgoing:
    assert book.engine.outgoing is not None
    return book.engine.outgoing


# What is sent again


@BOTH
def test_pubrel_comes_first(version: int) -> None:
    """[MQTT5-4.4.0-1] [MQTT311-4.4.0-1] [MQTT5-4.3.3-6]: PUBREL at once, never the PUBLISH before it."""
    book = resumed(left(in_flight(3, 40), in_flight(9, 20, released=True)), protocol_version=version)
    book << Pubrel(9)
    book >> late(20)
    book.silent()
    assert book.taken
    book >> late(40)
    assert sent(book) == [(3, 40, True)]
    book >> Pubcomp(9) << StoreDone(9)
    book.silent()


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_the_same_identifier_with_dup(version: int, qos: int) -> None:
    """[MQTT5-3.3.1-1] [MQTT311-3.3.1-1]; what was acknowledged is not sent again [MQTT5-4.4.0-2]."""
    book = resumed(left(in_flight(7, 42, qos), in_flight(5, 44, qos), start=46), protocol_version=version)
    for offset in range(42, 46):
        book >> late(offset, qos)
        assert book.taken
    assert sent(book) == [(7, 42, True), (5, 44, True)]
    book.silent()
    book >> (Puback(7) if qos == 1 else Pubrec(7))
    assert book.effects() == ([] if qos == 1 else [StoreReleased(7)])
    book >> late(46, qos)  # from here on all is new
    if qos == 2:
        assert book.effect(StoreOutgoing).packet_id == 1
    else:
        assert sent(book) == [(1, 46, False)]


@BOTH
def test_the_qos_it_was_sent_with(version: int) -> None:
    """Its flow goes on, whatever the subscription grants now."""
    book = resumed(left(in_flight(7, 42, 1)), protocol_version=version)
    book >> DeliverLate(message(42), grant(2, ids=(4,) if version == 5 else ()))
    packet = book.packet(Publish)
    assert (packet.qos, packet.packet_id) == (1, 7)
    if version == 5:
        assert packet.properties is not None
        assert packet.properties.subscription_identifiers == (4,)
    book >> Puback(7)
    assert outgoing_of(book).inflight == {}


def test_retain_as_published_holds_when_it_is_sent_again() -> None:
    for kept in (True, False):
        book = resumed(left(in_flight(7, 42)))
        book >> DeliverLate(message(42)._replace(retain=True), grant(2, retain_as_published=kept))
        assert book.packet(Publish).retain is kept


def test_a_message_that_has_expired_is_sent_again() -> None:
    """[MQTT5-4.3.3-7]: not once PUBLISH was sent."""
    book = resumed(left(in_flight(7, 42)))
    book >> DeliverLate(message(42)._replace(expiry_s=1, timestamp_ms=0), grant(2))
    packet = book.packet(Publish)
    assert (packet.packet_id, packet.dup) == (7, True)


@BOTH
def test_a_flow_that_is_sent_again_goes_its_way(version: int) -> None:
    book = resumed(left(in_flight(7, 42)), protocol_version=version)
    book >> late(42)
    assert sent(book) == [(7, 42, True)]
    book >> Pubrec(7) << StoreReleased(7)
    book >> ReleaseStored(7) << Pubrel(7)
    book >> PartitionResumed() >> Pubcomp(7) << StoreDone(7)
    book.silent()
    assert outgoing_of(book).resuming is None


# Identifiers and window


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_identifiers_that_wait_are_not_given_away(version: int, qos: int) -> None:
    """[MQTT5-2.2.1-4] [MQTT311-2.3.1-4]: neither those of PUBREL nor those not sent again yet."""
    entries = [in_flight(1, 41), in_flight(2, 20, released=True), in_flight(3, 43, 1), in_flight(5, 44)]
    book = resumed(left(*entries), protocol_version=version)
    book.packets()
    for offset in (7, 8, 9):
        book >> Deliver(message(offset, qos, partition=1), grant(2))
    used = [packet_id for packet_id, *_ in sent(book)] or [effect.packet_id for effect in book.effects()]
    assert used == [4, 6, 7]


def test_the_short_way_gives_none_of_them_away_either() -> None:
    book = resumed(left(in_flight(1, 41), in_flight(2, 20, released=True)))
    book.packets()
    assert outgoing_of(book).take_live(message(7, 1, 1), grant(1))
    assert list(outgoing_of(book).inflight) == [3]


def test_the_new_window_holds() -> None:
    """[MQTT5-3.3.4-9]: the Receive Maximum of this connection, not of the one before."""
    book = resumed(left(*(in_flight(packet_id, 40 + packet_id) for packet_id in range(1, 5))), receive_maximum=2)
    for offset in (41, 42):
        book >> late(offset)
        assert book.taken
    book >> late(43)
    assert not book.taken
    assert [packet_id for packet_id, *_ in sent(book)] == [1, 2]
    book >> Pubrec(1) << StoreReleased(1)
    book >> late(43)
    assert not book.taken
    book >> ReleaseStored(1) << Pubrel(1)
    book >> Pubcomp(1) << StoreDone(1)
    book >> late(43)
    assert book.taken
    assert sent(book) == [(3, 43, True)]


def test_more_pubrels_than_the_window() -> None:
    book = resumed(left(*(in_flight(each, each, released=True) for each in (1, 2, 3))), receive_maximum=1)
    assert [packet.packet_id for packet in book.packets() if isinstance(packet, Pubrel)] == [1, 2, 3]
    book >> Deliver(message(200), grant(2))
    for packet_id in (1, 2):
        book >> Pubcomp(packet_id) << StoreDone(packet_id)
        book.silent()
    book >> Pubcomp(3) << StoreDone(3)
    assert book.effect(StoreOutgoing).packet_id == 1


def test_what_is_sent_again_is_not_starved() -> None:
    """While something is left, what else was missed does not fill the buffer in front of it."""
    book = resumed(left(in_flight(1, 42), other=0), receive_maximum=1)
    book >> Deliver(message(0, 1, partition=1), grant(2)) >> Deliver(message(1, 1, partition=1), grant(2))
    assert sent(book) == [(2, 0, False)]
    for offset in (42, 43):
        book >> late(offset, partition=0 if offset == 42 else 1)
        assert not book.taken
    book >> Puback(2)
    assert sent(book) == [(3, 1, False)]
    book >> late(42)
    assert not book.taken
    book >> Puback(3) >> late(42)
    assert book.taken
    assert sent(book) == [(1, 42, True)]
    book >> late(2, 1, partition=1)
    assert book.taken  # nothing is left: half the buffer is there again


# The end of it


@BOTH
def test_what_did_not_come_is_given_up(version: int) -> None:
    """It is gone from the log. The client may have had the PUBLISH: it is told PUBREL, then the identifier is free."""
    book = resumed(left(in_flight(1, 41), in_flight(2, 42)), protocol_version=version)
    book >> late(42)
    assert sent(book) == [(2, 42, True)]
    book >> PartitionResumed() << StoreReleased(1)
    book.silent()
    assert outgoing_of(book).resuming is None
    book >> ReleaseStored(1) << Pubrel(1)
    book >> Pubcomp(1) << StoreDone(1)
    book >> Deliver(message(200), grant(2))
    assert book.effect(StoreOutgoing).packet_id == 1


@BOTH
def test_one_partition_is_through_and_the_other_is_not(version: int) -> None:
    """What was acknowledged in the other one is passed over to its end, though nothing is left to be sent again."""
    entries = [in_flight(1, 41), in_flight(2, 42, partition=1)]
    book = resumed(left(*entries, other=50), protocol_version=version)
    book >> late(41) >> late(42, partition=1)
    assert sent(book) == [(1, 41, True), (2, 42, True)]
    book >> PartitionResumed()
    for offset in range(43, 50):
        book >> late(offset, partition=1)
        assert book.taken
    book.silent()
    book >> late(50, partition=1)
    assert book.effect(StoreOutgoing).packet_id == 3
    book >> PartitionResumed(OTHER)
    book.silent()
    assert outgoing_of(book).resuming is None


def test_given_up_of_one_partition_only() -> None:
    book = resumed(left(in_flight(1, 41), in_flight(2, 42, partition=1), other=50))
    book >> PartitionResumed(OTHER) << StoreReleased(2)
    book >> late(41)
    assert sent(book) == [(1, 41, True)]


def test_all_is_given_up() -> None:
    retained = InFlight(3, 1, POSITION, 7, retained_name="a/b")
    book = resumed(left(in_flight(1, 41), in_flight(2, 42, partition=1), retained, other=50))
    book >> PartitionResumed(None)
    assert {effect.packet_id for effect in book.effects()} == {1, 2, 3}
    assert outgoing_of(book).resuming is None
    book >> PartitionResumed(None) >> PartitionResumed()
    book.silent()


def test_too_large_for_the_client_now() -> None:
    """[MQTT5-3.1.2-25]: as if it had been delivered; nothing stays in flight."""
    entries = in_flight(1, 42), in_flight(2, 43, 1), in_flight(3, 44)
    book = resumed(left(*entries), receive_maximum=1, maximum_packet_size_bytes=60)
    book >> DeliverLate(message(42)._replace(payload=bytes(60)), grant(2)) << StoreReleased(1)
    book >> ReleaseStored(1) << Pubrel(1)
    book >> Pubcomp(1) << StoreDone(1)
    book >> DeliverLate(message(43)._replace(payload=bytes(60)), grant(2)) << StoreDone(2)
    book.silent()
    book >> late(44)
    assert sent(book) == [(3, 44, True)]
    book >> Pubrec(3) << StoreReleased(3)
    book >> ReleaseStored(3) << Pubrel(3)
    book >> Pubcomp(3) << StoreDone(3)
    assert book.engine.statistics()["inflight"] == 0
    book >> PartitionResumed()
    book.silent()
    assert outgoing_of(book).resuming is None


@BOTH
def test_nothing_was_in_flight(version: int) -> None:
    book = resumed(left(start=7), protocol_version=version)
    assert outgoing_of(book).resuming is None
    book >> late(7)
    assert book.effect(StoreOutgoing).delivery.offset == 7


def test_without_a_subscription_nothing_is_taken_late() -> None:
    book = Playbook(5)
    book >> late(1)
    assert not book.taken


@BOTH
def test_the_connection_ends_before_all_was_sent_again(version: int) -> None:
    """Nothing is taken any more; all that is not through is there for the next one, the same identifiers in it."""
    book = resumed(left(in_flight(1, 41), in_flight(2, 42)), protocol_version=version)
    book >> late(41)
    book.packets()
    book >> Lost()
    for offset in (42, 100):
        book >> late(offset)
        assert not book.taken
    again = left_in_flight(book.engine, {POSITION: 100})
    assert again.packet_ids == {1, 2}
    assert again.needs() == {POSITION: 41}
    book = resumed(again, protocol_version=version)
    book >> late(41) >> late(42) >> late(43)
    assert sent(book) == [(1, 41, True), (2, 42, True)]


def test_from_one_connection_to_the_next() -> None:
    """Each state of a flow, as it is when the connection is lost."""
    book = durable(5)
    for offset in range(5):
        book >> Deliver(message(offset), grant(2))
    book >> Deliver(message(5, 1), grant(2))
    book.effects()
    for packet_id in (2, 3, 4, 5):
        book >> OutgoingStored(packet_id)
    book >> Pubrec(3) >> Pubrec(4) >> Pubrec(5) >> ReleaseStored(4) >> ReleaseStored(5) >> Pubcomp(5) >> Lost()
    book = resumed(left_in_flight(book.engine, {POSITION: 6}))
    assert {packet.packet_id for packet in book.packets() if isinstance(packet, Pubrel)} == {3, 4}
    for offset in range(6):
        book >> late(offset)
    assert sent(book) == [(1, 0, True), (2, 1, True), (6, 5, True)]


# The value itself


def test_needs() -> None:
    retained = InFlight(3, 1, POSITION, 7, retained_name="a/b")
    resuming = left(in_flight(1, 41), in_flight(2, 45), in_flight(4, 12, released=True), retained, other=9)
    assert resuming.needs() == {POSITION: 41, OTHER: 9}
    assert resuming.released == (4,)
    assert resuming.beside == (retained,)
    assert resuming.packet_ids == {1, 2, 3}
    assert [entry.packet_id for entry in resuming.left(POSITION)] == [1, 2]
    assert [entry.packet_id for entry in resuming.left()] == [1, 2, 3]
    assert resuming.left(OTHER) == []


def test_a_retained_message_is_sent_again_by_name() -> None:
    """The handler finds it; RETAIN is 1 as it was."""
    entry = InFlight(3, 2, POSITION, 7, retained_name="a/b")
    book = resumed(left(entry))
    outgoing_of(book).resend(RetainedDelivery(*message(7)._replace(retain=True)), entry, True, (), 0)
    book >> PartitionResumed(None)
    packet = book.packet(Publish)
    assert (packet.packet_id, packet.dup, packet.retain, packet.qos) == (3, True, True, 2)
    book.silent()
    assert outgoing_of(book).resuming is None
