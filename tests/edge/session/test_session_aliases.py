"""Topic Aliases on the way out: the Topic Name once with its alias, from then on the alias alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.playbook import (
    LIMITS,
    Deliver,
    DeliverLate,
    OutgoingStored,
    Playbook,
    connected,
    delivery,
    durable,
    durable_connect,
    grant,
    resumed,
    subscribed,
)

from bridge.delivery import Delivery
from edge.access.limits import Limits
from edge.session.effects import StoreOutgoing
from edge.session.resuming import InFlight, Resuming
from edge.wire import Connect, Properties, Publish, encode


def client(limits: Limits = LIMITS, **properties: Any) -> Playbook:
    return subscribed(5, Connect(5, "c", keep_alive_s=60, properties=Properties(**properties)), limits=limits)


def named(topic_name: str, qos: int = 0, payload: bytes = b"x") -> Deliver:
    return Deliver(delivery(topic_name, payload, qos)._replace(frames={}), grant(2))


def names(book: Playbook) -> list[tuple[bytes, int | None]]:
    """Topic Name and Topic Alias of what came."""
    packets = [packet for packet in book.packets() if isinstance(packet, Publish)]
    return [(each.topic_name_utf8, each.properties.topic_alias if each.properties else None) for each in packets]


@pytest.mark.parametrize("qos", [0, 1])
def test_first_with_the_name_then_without(qos: int) -> None:
    """[MQTT5-3.3.2-8] [MQTT5-3.3.2-12]"""
    book = client(topic_alias_maximum=2)
    for topic_name in ("a/one", "a/one", "a/two", "a/one", "a/two"):
        book >> named(topic_name, qos)
    assert names(book) == [(b"a/one", 1), (b"", 1), (b"a/two", 2), (b"", 1), (b"", 2)]


def test_never_above_the_clients_maximum() -> None:
    """[MQTT5-3.1.2-26]: what comes later goes by name."""
    book = client(topic_alias_maximum=1)
    for topic_name in ("a/one", "a/two", "a/two", "a/one"):
        book >> named(topic_name)
    assert names(book) == [(b"a/one", 1), (b"a/two", None), (b"a/two", None), (b"", 1)]


@pytest.mark.parametrize("properties", [{}, {"topic_alias_maximum": 0}])
def test_none_for_a_client_that_wants_none(properties: dict[str, int]) -> None:
    """[MQTT5-3.1.2-27]"""
    book = client(**properties)
    book >> named("a/one") >> named("a/one")
    assert names(book) == [(b"a/one", None), (b"a/one", None)]


def test_no_more_than_we_keep() -> None:
    """A client may offer 65,535; each costs us its Topic Name."""
    book = client(replace(LIMITS, topic_alias_maximum=2), topic_alias_maximum=65_535)
    for topic_name in ("a/one", "a/two", "a/three"):
        book >> named(topic_name)
    assert names(book) == [(b"a/one", 1), (b"a/two", 2), (b"a/three", None)]


def test_the_next_connection_begins_anew() -> None:
    """[MQTT5-3.3.2-7]: nothing of a mapping outlives its connection."""
    for _ in range(2):
        book = client(topic_alias_maximum=2)
        book >> named("a/one")
        assert names(book) == [(b"a/one", 1)]


def test_a_packet_that_is_skipped_sets_no_alias() -> None:
    """[MQTT5-3.1.2-25]: the client never heard of it."""
    book = client(topic_alias_maximum=2, maximum_packet_size_bytes=60)
    book >> named("a/one", payload=bytes(60))
    book.silent()
    book >> named("a/one") >> named("a/one")
    assert names(book) == [(b"a/one", 1), (b"", 1)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("stored", [False, True])
def test_an_alias_keeps_no_packet_from_the_client(qos: int, stored: bool) -> None:
    """What fits only without one goes without one: with a new alias it is longer, and with a short name, too."""
    limit = len(encode(Publish(b"a", b"y" * 60, qos, packet_id=1 if qos else 0), 5))
    properties = {"topic_alias_maximum": 2, "maximum_packet_size_bytes": limit}
    book = durable(5, durable_connect(**properties)) if stored else client(**properties)
    for payload in (b"y" * 60, b"", b"y" * 60, b"y" * 61):
        book >> Deliver(delivery("a", payload, qos), grant(qos))
    for effect in book.effects():
        assert isinstance(effect, StoreOutgoing)
        book >> OutgoingStored(effect.packet_id)
    assert names(book) == [(b"a", None), (b"a", 1), (b"a", None)]
    assert book.engine.statistics()["too_large"] == 1


def test_at_every_size_there_is() -> None:
    """Where a length field grows by one, too: what fits arrives, and nothing stays in flight that was not sent."""
    for size in (*range(95, 140), *range(16_350, 16_400)):
        limit = len(encode(Publish(b"a", bytes(size), 2, packet_id=1), 5))
        book = durable(5, durable_connect(topic_alias_maximum=2, maximum_packet_size_bytes=limit))
        book >> Deliver(delivery("a", bytes(size), 2), grant(2)) << StoreOutgoing
        book >> OutgoingStored(1)
        assert len(book.packet(Publish).payload) == size
        book.silent()


def test_the_alias_is_set_in_the_order_of_sending() -> None:
    """Of two messages that are stored at a time the first one to go has the Topic Name."""
    book = durable(5, durable_connect(topic_alias_maximum=2))
    for payload in (b"1", b"2"):
        book >> Deliver(delivery("a/one", payload, 2), grant(2)) << StoreOutgoing
    book >> OutgoingStored(2) >> OutgoingStored(1)
    packets = [packet for packet in book.packets() if isinstance(packet, Publish)]
    assert [(each.payload, each.topic_name_utf8) for each in packets] == [(b"2", b"a/one"), (b"1", b"")]


def test_with_dup() -> None:
    """What is sent again uses the aliases of this connection."""
    entries = [InFlight(packet_id, 1, ("mqtt.messages", 0), packet_id) for packet_id in (1, 2)]
    book = resumed(Resuming.of({("mqtt.messages", 0): 9}, entries), topic_alias_maximum=1)
    for offset in (1, 2):
        book >> DeliverLate(delivery("a/one", b"x", 1, offset=offset), grant(2))
    packets = [packet for packet in book.packets() if isinstance(packet, Publish)]
    assert [(each.topic_name_utf8, each.dup, each.packet_id) for each in packets] == [
        (b"a/one", True, 1),
        (b"", True, 2),
    ]


def test_others_do_not_see_it() -> None:
    """Frames are shared among subscribers; one with an alias is not."""
    shared: Delivery = delivery("a/one", b"x", 0)._replace(frames={})
    with_alias, without = client(topic_alias_maximum=1), client()
    for book in (with_alias, without, with_alias, without):
        book >> Deliver(shared, grant(0))
    assert names(without) == [(b"a/one", None), (b"a/one", None)]
    assert names(with_alias) == [(b"a/one", 1), (b"", 1)]


def test_beside_other_properties() -> None:
    book = client(topic_alias_maximum=1)
    book >> Deliver(delivery(qos=0, expiry_s=5), grant(0, ids=(3,)))
    properties = book.packet(Publish).properties
    assert properties is not None
    assert (properties.topic_alias, properties.subscription_identifiers) == (1, (3,))
    assert properties.message_expiry_interval_s == 5


def test_version_3_has_none() -> None:
    book = connected(4)
    assert book.engine.negotiated is not None
    assert book.engine.negotiated.topic_alias_maximum == 0
