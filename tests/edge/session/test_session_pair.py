"""Paired engines: our client engine against the session engine over a wire that takes time and loses connections."""

from __future__ import annotations

from typing import Any

import pytest
from support.playbook import EXACTLY_ONCE, LIMITS, START_S, delivery, grant, left_in_flight, target_of

from bridge.log import Position
from edge.client.engine import ClientEngine
from edge.client.events import Acknowledged
from edge.client.settings import ClientSettings
from edge.session.effects import (
    AppendExactlyOnce,
    AppendRecord,
    AppendRun,
    Authenticate,
    ForgetReceived,
    StoreOutgoing,
    StoreReleased,
)
from edge.session.engine import SessionEngine
from edge.session.late import deliver_late
from edge.session.resuming import Resuming
from edge.wire import Publish, ReasonCode

POSITION: Position = ("mqtt.messages", 0)
COUNT = 20  # more than both windows together
TURNS_MAX = 1_000
BOTH = pytest.mark.parametrize("version", [4, 5])
CUTS = pytest.mark.parametrize("cut_after", [0, 1, 2, 3])


class Pair:
    """One client, the edge's side of its session, and a wire that carries one write at a time.

    `cut_after`: the connection is lost whenever so many writes have been carried; 0: never.
    """

    def __init__(self, version: int, cut_after: int) -> None:
        settings = ClientSettings(
            "c", version, clean_start=False, session_expiry_s=600, receive_maximum=5, topic_alias_maximum=2
        )
        self.client = ClientEngine(settings)
        self.cut_after = cut_after
        self.log: list[bytes] = []
        self.sent = 0  # the next record of the log that is due
        self.accepted: list[bytes] = []
        self.received: list[bytes] = []
        self.acknowledged: list[ReasonCode] = []
        self.connections = 0
        self.engine = self._connected(Resuming.of({}, ()), frozenset())

    def run(self, is_done: Any) -> None:
        """Turns until it is so."""
        carried = 0
        for _ in range(TURNS_MAX):
            if is_done() and not self.client.unacknowledged:
                return
            self._deliver()
            carried += self._carry()
            if self.cut_after and carried >= self.cut_after:
                carried = 0
                self.cut_after += 1  # or what needs more writes than that would never be through
                self._cut()
        raise AssertionError(f"{len(self.accepted)} came in, {len(self.received)} went out")

    def _connected(self, resuming: Resuming, received: frozenset[int]) -> SessionEngine:
        self.client.connection_made(START_S)
        engine = SessionEngine(LIMITS, EXACTLY_ONCE, target_of, lambda: "assigned", START_S, 0.0)
        engine.receive_data(self.client.data_to_send(START_S), START_S)
        assert isinstance(engine.effects.pop(), Authenticate)
        engine.accept(self.connections > 0, START_S, resuming, received)
        self.connections += 1
        return engine

    def _cut(self) -> None:
        """What is on its way is lost; what is being stored is not."""
        self.engine.connection_lost()
        self.client.connection_lost()
        self._complete()
        resuming = left_in_flight(self.engine, {POSITION: self.sent})
        received = self.engine.flows.received() if self.engine.flows is not None else frozenset()
        self.engine = self._connected(resuming, received)
        for offset in range(resuming.needs()[POSITION], self.sent):
            assert deliver_late(self.engine, self._record(offset), grant(2), START_S)
        self.engine.partition_resumed(POSITION)

    def _deliver(self) -> None:
        outgoing = self.engine.outgoing
        while self.sent < len(self.log) and outgoing is not None and outgoing.has_room:
            self.engine.deliver(self._record(self.sent), grant(2), START_S)
            self.sent += 1

    def _record(self, offset: int) -> Any:
        return delivery("a/b", self.log[offset], 2, offset=offset)

    def _carry(self) -> int:
        data = self.client.data_to_send(START_S)
        if data:
            self.engine.receive_data(data, START_S)
        self._complete()
        assert not self.engine.is_closed(), self.engine.reason
        answer = b"".join(self.engine.out)
        self.engine.out.clear()
        for event in self.client.receive_data(answer):
            if isinstance(event, Publish):
                self.received.append(event.payload)
            elif isinstance(event, Acknowledged):
                self.acknowledged.append(event.reason_code)
        return bool(data) + bool(answer)

    def _complete(self) -> None:
        engine = self.engine
        while engine.effects:
            effects, engine.effects = engine.effects, []
            for effect in effects:
                match effect:
                    case AppendExactlyOnce():
                        self.accepted.append(effect.value)
                        engine.exactly_once_appended(effect)
                    case AppendRecord():
                        engine.record_appended(effect.packet_id)
                    case AppendRun():
                        engine.records_appended(effect.packet_ids)
                    case ForgetReceived():
                        engine.received_forgotten(effect.packet_id)
                    case StoreOutgoing():
                        engine.outgoing_stored(effect.packet_id, START_S)
                    case StoreReleased():
                        engine.release_stored(effect.packet_id)


def messages(count: int = COUNT) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@BOTH
@CUTS
def test_from_the_client(version: int, cut_after: int) -> None:
    """Each message once, in order, however often the connection is lost."""
    pair = Pair(version, cut_after)
    for payload in messages():
        pair.client.publish(Publish(b"a", payload, 2))
    pair.run(lambda: len(pair.acknowledged) == COUNT)
    assert pair.accepted == messages()
    assert pair.acknowledged == [ReasonCode.SUCCESS] * COUNT
    assert (pair.connections > 1) is (cut_after > 0)


@BOTH
@CUTS
def test_to_the_client(version: int, cut_after: int) -> None:
    pair = Pair(version, cut_after)
    pair.log = messages()

    def is_through() -> bool:
        outgoing = pair.engine.outgoing
        return len(pair.received) == COUNT and outgoing is not None and not outgoing.flows

    pair.run(is_through)
    assert pair.received == messages()
    assert (pair.connections > 1) is (cut_after > 0)


@BOTH
@CUTS
def test_both_ways(version: int, cut_after: int) -> None:
    """The two directions have packet identifiers of their own [MQTT5-2.2.1-2]."""
    pair = Pair(version, cut_after)
    pair.log = messages()
    for payload in messages():
        pair.client.publish(Publish(b"a", payload, 2))
    pair.run(lambda: len(pair.received) == COUNT and len(pair.acknowledged) == COUNT)
    assert pair.accepted == pair.received == messages()


def test_a_refusal_reaches_the_user() -> None:
    pair = Pair(5, 0)
    pair.client.publish(Publish(b"forbidden/x", b"1", 2))
    pair.client.publish(Publish(b"a", b"2", 2))
    pair.run(lambda: len(pair.acknowledged) == 2)
    assert pair.acknowledged == [ReasonCode.NOT_AUTHORIZED, ReasonCode.SUCCESS]
    assert pair.accepted == [b"2"]
