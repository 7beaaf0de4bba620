"""The engine where retained messages are available."""

from __future__ import annotations

import pytest
from support.playbook import Accept, Appended, Lost, Playbook, RefusedRecord, connected

from edge.session.connect import Capabilities
from edge.session.effects import AppendRecord, AppendRetained, Authenticate, CloseConnection, PublishWill
from edge.wire import Connack, Connect, Puback, Publish, ReasonCode, Will

AVAILABLE = Capabilities(retain_available=True)
BOTH = pytest.mark.parametrize("version", [4, 5])


@BOTH
@pytest.mark.parametrize("qos", [0, 1])
def test_retain_1_is_an_effect_of_its_own(version: int, qos: int) -> None:
    """[MQTT5-3.3.1-5] [MQTT311-3.3.1-5]; with QoS 1 it has its place among the answers."""
    book = connected(version, capabilities=AVAILABLE)
    book >> Publish(b"a", b"x", qos, True, packet_id=qos)
    effect = book.effect(AppendRetained)
    assert (effect.value, list(effect.headers)[-1]) == (b"x", ("mqtt.retain", b"1"))
    book.silent()
    if qos:
        book >> Appended(1) << Puback(1)
    book.silent()


@BOTH
def test_retain_0_is_not(version: int) -> None:
    """[MQTT5-3.3.1-8] [MQTT311-3.3.1-12]"""
    book = connected(version, capabilities=AVAILABLE)
    book >> Publish(b"a", b"x", 1, packet_id=1)
    assert type(book.effect(AppendRecord)) is AppendRecord


@BOTH
def test_answers_keep_their_order_behind_a_retained_one(version: int) -> None:
    """[MQTT311-4.6.0-2]: the retained one takes two appends."""
    book = connected(version, capabilities=AVAILABLE)
    book >> Publish(b"a", b"x", 1, True, packet_id=1) << AppendRetained
    book >> Publish(b"a", b"y", 1, packet_id=2) << AppendRecord
    book >> Appended(2)
    book.silent()
    book >> Appended(1) << Puback(1) << Puback(2)
    book.silent()


def test_a_retained_message_that_is_refused() -> None:
    book = connected(5, capabilities=AVAILABLE)
    book >> Publish(b"a", b"x", 1, True, packet_id=1) << AppendRetained
    book >> RefusedRecord(1)
    assert book.packet(Puback).reason_code is ReasonCode.QUOTA_EXCEEDED


@BOTH
def test_a_retained_will_is_taken(version: int) -> None:
    """[MQTT5-3.1.2-15] [MQTT311-3.1.2-17]"""
    book = Playbook(version, capabilities=AVAILABLE)
    book >> Connect(version, "c", keep_alive_s=60, will=Will("w", b"gone", 0, True)) << Authenticate
    book >> Accept()
    assert book.packet(Connack).reason_code is ReasonCode.SUCCESS
    book >> Lost()
    assert book.effect(PublishWill).will.retain
    assert not any(isinstance(effect, CloseConnection) for effect in book.effects())
