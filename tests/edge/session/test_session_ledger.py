"""The delivery ledger: what is noted, by every way that a message can take, and that it changes nothing."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from bridge.delivery import Delivery
from bridge.subscriptions import Grant
from edge.session.connect import PACKET_BYTES_UNLIMITED
from edge.session.ledger import ACKNOWLEDGED, DELIVERED, Ledger, LedgerOutgoing
from edge.session.outgoing import Outgoing
from schemas.sampling import OF, is_sampled, threshold

ARGUMENTS = (5, 10, PACKET_BYTES_UNLIMITED, 100, 1 << 20)


def delivery(offset: int, qos: int = 1) -> Delivery:
    return Delivery(b"a", b"%d" % offset, qos, False, "", None, 5, (), None, "mqtt.a", 0, offset)


def grant(qos: int) -> Grant:
    return Grant(object(), qos, False, False, (), None)  # type: ignore[arg-type]


def outgoing(noted: list[Any], below: int = OF) -> LedgerOutgoing:
    def note(kind: str, each: Delivery, qos: int, dup: bool) -> None:
        noted.append((kind, each.offset, qos))

    return LedgerOutgoing(Ledger(below, note), [], *ARGUMENTS)


def puback(*packet_ids: int) -> bytes:
    return b"".join(struct.pack(">HH", 0x4002, packet_id) for packet_id in packet_ids)


def test_samples_are_nested_and_about_as_large_as_they_say() -> None:
    picked = [{o for o in range(20_000) if is_sampled("mqtt.a", 3, o, threshold(share))} for share in (10, 100, 1000)]
    assert picked[0] < picked[1] < picked[2]
    assert 100 < len(picked[0]) < 300
    assert len(picked[2]) == 20_000
    assert not any(is_sampled("mqtt.a", 3, offset, threshold(0)) for offset in range(1000))


@pytest.mark.parametrize("way", ["live", "run", "long"])
def test_every_way_is_noted(way: str) -> None:
    noted: list[Any] = []
    found = outgoing(noted)
    deliveries = [delivery(offset) for offset in range(3)]
    if way == "run":
        assert found.take_live_run(deliveries, grant(1)) == 3
    else:
        for each in deliveries:
            if way == "long":
                found.deliver(each, grant(1), 0)
            else:
                assert found.take_live(each, grant(1))
    assert noted == [(DELIVERED, offset, 1) for offset in range(3)]
    noted.clear()
    assert found.take_acknowledgements(puback(2, 1), 0.0, 0.0) == 8
    assert found.acknowledged(3, 0.0, 0.0)
    assert sorted(noted) == [(ACKNOWLEDGED, offset, 1) for offset in range(3)]


def test_the_lower_qos_counts_and_qos_0_is_not_acknowledged() -> None:
    noted: list[Any] = []
    found = outgoing(noted)
    assert found.take_live(delivery(7), grant(0))
    assert noted == [(DELIVERED, 7, 0)]
    found.deliver(delivery(8, 2), grant(2), 0)
    assert found.received(1)
    assert found.completed(1, 0)
    assert noted[1:] == [(DELIVERED, 8, 2), (ACKNOWLEDGED, 8, 2)]


def test_what_waits_is_noted_when_it_is_sent() -> None:
    noted: list[Any] = []
    found = outgoing(noted)
    for offset in range(12):  # the window has ten
        found.deliver(delivery(offset), grant(1), 0)
    assert len(noted) == 10
    assert found.take_acknowledgements(puback(1), 0.0, 0.0) == 4
    assert noted[10:] == [(DELIVERED, 10, 1), (ACKNOWLEDGED, 0, 1)]


def test_it_sends_what_goes_without_it() -> None:
    plain, noted = Outgoing([], *ARGUMENTS), []
    with_ledger = outgoing(noted, below=OF // 2)
    for found in (plain, with_ledger):
        assert found.take_live_run([delivery(offset) for offset in range(5)], grant(1)) == 5
        found.take_acknowledgements(puback(1, 2, 3), 0.0, 0.0)
        found.deliver(delivery(9, 2), grant(2), 0)
    assert plain._out == with_ledger._out
    assert noted
