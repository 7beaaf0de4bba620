"""Each checker finds the fault that is planted for it, and nothing in a run without one.

Two kinds of faults: what a good run has recorded is changed (a delivery goes, another comes twice), or a part of the
edge is broken on purpose and the run is taken with that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.simulation_checks import CHECKS, Evidence, check, is_due, is_shared, matches
from support.simulation_history import Message
from support.simulation_loop import EPOCH_S, virtual_loop
from support.simulation_run import run_seed
from support.simulation_world import World

from bridge.catch_up import CatchUp
from bridge.memory_log import MemoryRecord
from bridge.session_writer import SessionWriter
from bridge.shared.group import ShareGroup
from edge.handler.durable import DurableSession
from edge.handler.protocol import EdgeProtocolHandler
from edge.session.exactly_once import IncomingFlows
from edge.session.outgoing import Outgoing

SEEDS = range(1, 60)


def good_run(seed: int) -> Evidence:
    """A run without trouble."""
    with virtual_loop() as loop:
        world = World(seed, loop, (), steps=150)
        try:
            world.run()
        finally:
            loop.dispose(world.processes)
    return world.last_evidence


def test_nothing_is_found_in_good_runs() -> None:
    for seed in SEEDS[:10]:
        assert check(good_run(seed)) == [], f"seed {seed}"


def _acknowledged(evidence: Evidence, qos: int) -> Message:
    """A message that a subscription was due and that came once."""
    history = evidence.history
    for span in history.spans:
        for receipt in history.receipts:
            message = history.messages.get(receipt.payload)
            if (
                message is not None
                and (receipt.client, receipt.session) == (span.client, span.session)
                and message.qos == receipt.qos == qos
                and is_due(span, message)
                and message.answered_at
                and message.expiry_s is None
                and span.topic_filter != "#"
                and not message.topic_name.startswith("sh/")
                and not receipt.retain
                and not message.is_will
            ):
                return message
    raise LookupError("this run has no such message")


def lost(evidence: Evidence) -> None:
    payload = _acknowledged(evidence, 1).payload
    evidence.history.receipts[:] = [each for each in evidence.history.receipts if each.payload != payload]


def other_bytes(evidence: Evidence) -> None:
    evidence.history.receipts[0].payload = b"never sent"


def not_asked_for(evidence: Evidence) -> None:
    evidence.history.asked.clear()


def refused_and_delivered(evidence: Evidence) -> None:
    message = _acknowledged(evidence, 1)
    message.is_refused, message.sends = True, message.sends[:1]


def other_order(evidence: Evidence) -> None:
    """Two messages of a publisher, Topic Name and QoS change their places for one subscriber."""
    history = evidence.history
    for first in history.receipts:
        for second in history.receipts:
            one, two = history.messages.get(first.payload), history.messages.get(second.payload)
            if (
                one is not None
                and two is not None
                and (first.client, first.session) == (second.client, second.session)
                and first.at <= second.at
                and one.number < two.number
                and (one.publisher, one.topic_name, one.qos) == (two.publisher, two.topic_name, two.qos)
                and one.qos
                and not (first.retain or second.retain or one.is_will or first.dup or second.dup)
                and sum(each.payload in (one.payload, two.payload) for each in history.receipts) >= 2
                and any(
                    span.from_at <= one.sent_at and (span.client, span.session) == (first.client, first.session)
                    for span in history.spans
                )
            ):
                first.payload, second.payload = second.payload, first.payload
                if CHECKS["I3"](evidence):
                    return
                first.payload, second.payload = second.payload, first.payload
    raise LookupError("this run has no two such messages")


def twice_to_the_application(evidence: Evidence) -> None:
    payload = _acknowledged(evidence, 2).payload
    receipt = next(each for each in evidence.history.receipts if each.payload == payload and each.qos == 2)
    evidence.history.receipts.append(replace(receipt, connection=receipt.connection + 1))


def twice_in_the_log(evidence: Evidence) -> None:
    payload = _acknowledged(evidence, 2).payload
    position, record = evidence.occurrences()[payload][0]
    evidence.log[position].append(replace(record, offset=record.offset + 1_000))


def twice_without_a_reason(evidence: Evidence) -> None:
    payload = _acknowledged(evidence, 1).payload
    receipt = next(each for each in evidence.history.receipts if each.payload == payload)
    evidence.history.receipts.append(replace(receipt))


def stale_owner_writes(evidence: Evidence) -> None:
    """The first epoch of a session writes once more at the end."""
    _, records = next((at, held) for at, held in evidence.log.items() if at[0] == "headwater.sessions" and held)
    states = [record for record in records if record.key is not None and record.key.endswith(b"\0s") and record.value]
    last = states[-1]
    client, epoch, _ = (last.key or b"").split(b"\0")
    records.append(replace(last, offset=last.offset + 1_000, key=b"%b\0%d\0s" % (client, int(epoch) + 1)))
    records.append(replace(last, offset=last.offset + 1_001))


def another_session_present(evidence: Evidence) -> None:
    connection = next(each for each in evidence.history.connections if each.expected is not None and each.accepted_at)
    connection.session_present = not connection.expected


def a_subscription_is_missing(evidence: Evidence) -> None:
    client = next(client for client, filters in evidence.wanted.items() if filters)
    evidence.wanted[client] = frozenset()


def retained_differs(evidence: Evidence) -> None:
    edge = evidence.edges[-1]
    edge.retained[b"r/1"] = (b"another", ("mqtt.messages", 0), 0)


def an_older_one_is_retained(evidence: Evidence) -> None:
    """Everywhere: a message that was acknowledged before the one that is retained was sent."""
    history, occurrences = evidence.history, evidence.occurrences()
    for name, (payload, _, _) in evidence.edges[0].retained.items():
        of_name = [each for each in history.messages.values() if each.topic_name == name.decode() and each.retain]
        if any(each.expiry_s is not None or each.is_will for each in of_name):
            continue
        for older in of_name:
            if older.answered_at and older.answered_at < history.messages[payload].sent_at:
                position, record = occurrences[older.payload][0]
                for edge in evidence.edges:
                    edge.retained[name] = (older.payload, position, record.offset)
                if history.messages[payload].answered_at:
                    return
    raise LookupError("this run has no two such messages")


def no_will(evidence: Evidence) -> None:
    occurrences = evidence.occurrences()
    will = next(
        message for message in evidence.history.messages.values() if message.is_will and occurrences[message.payload]
    )
    for records in evidence.log.values():
        records[:] = [record for record in records if record.value != will.payload]


def a_will_of_one_who_said_goodbye(evidence: Evidence) -> None:
    connection = next(
        each for each in evidence.history.connections if each.will is not None and each.end == "disconnect"
    )
    assert connection.will is not None
    evidence.history.faults.clear()
    records = next(held for at, held in evidence.log.items() if at[0] == "mqtt.messages")
    records.append(MemoryRecord(9_999, int(EPOCH_S * 1000), b"k", connection.will.payload, ()))


def a_secret_is_told(evidence: Evidence) -> None:
    evidence.history.receipts[0].topic_name = "secret/x"


def expired_and_delivered(evidence: Evidence) -> None:
    message = _acknowledged(evidence, 1)
    message.expiry_s = 1
    receipt = next(each for each in evidence.history.receipts if each.payload == message.payload)
    receipt.at = message.sent_at + 60


def position_runs_ahead(evidence: Evidence) -> None:
    """What was acknowledged was not, while the session's position is past it."""
    message = _acknowledged(evidence, 1)
    for receipt in evidence.history.receipts:
        if receipt.payload == message.payload:
            receipt.acknowledged_at = None


def _of_a_group(evidence: Evidence, qos: int) -> Message:
    """A message that a group was due, and got."""
    history = evidence.history
    for message in history.messages.values():
        if (
            message.topic_name.startswith("sh/")
            and message.qos == qos
            and message.answered_at
            and message.expiry_s is None
            and any(each.payload == message.payload and each.qos == qos for each in history.receipts)
            and any(
                is_shared(span.topic_filter)
                and matches(span.topic_filter, message.topic_name)
                and span.until_at == float("inf")
                and span.from_at < message.sent_at
                for span in history.spans
            )
        ):
            return message
    raise LookupError("this run has no such message")


def lost_in_a_group(evidence: Evidence) -> None:
    payload = _of_a_group(evidence, 1).payload
    evidence.history.receipts[:] = [each for each in evidence.history.receipts if each.payload != payload]


def to_two_members(evidence: Evidence) -> None:
    """As many more as there are groups that could have it."""
    payload = _of_a_group(evidence, 2).payload
    receipt = next(each for each in evidence.history.receipts if each.payload == payload and each.qos == 2)
    evidence.history.receipts += [replace(receipt, client=f"other{number}") for number in range(2)]


PLANTED: list[tuple[str, Callable[[Evidence], None]]] = [
    ("I1", lost),
    ("I2", other_bytes),
    ("I2", not_asked_for),
    ("I2", refused_and_delivered),
    ("I3", other_order),
    ("I4", twice_to_the_application),
    ("I4", twice_in_the_log),
    ("I5", twice_without_a_reason),
    ("I7", stale_owner_writes),
    ("I8", another_session_present),
    ("I8", a_subscription_is_missing),
    ("I9", retained_differs),
    ("I9", an_older_one_is_retained),
    ("I10", no_will),
    ("I10", a_will_of_one_who_said_goodbye),
    ("I4 of groups", to_two_members),
    ("I11", lost_in_a_group),
    ("I14", a_secret_is_told),
    ("I15", expired_and_delivered),
    ("I16", position_runs_ahead),
]


@pytest.mark.parametrize(("invariant", "plant"), PLANTED, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_is_found(invariant: str, plant: Callable[[Evidence], None]) -> None:
    """Planted in the first run that has what it takes."""
    for seed in SEEDS:
        evidence = good_run(seed)
        try:
            plant(evidence)
        except (LookupError, StopIteration):
            continue
        assert CHECKS[invariant](evidence), f"{invariant} has not seen it, seed {seed}"
        return
    raise AssertionError("no run has what it takes")


def test_every_checker_has_a_planted_fault() -> None:
    assert {invariant for invariant, _ in PLANTED} == set(CHECKS)


def _runs_find(invariant: str, faults: tuple[str, ...], seeds: range = SEEDS) -> bool:
    """Whether one of the runs breaks the invariant."""
    return any(name == invariant for seed in seeds for name, _ in run_seed(seed, faults, 100)[1].violations)


def _no_need(self: CatchUp, *args: Any) -> None:
    """Catch-up that forgets what was missed."""


def _one_more(self: Outgoing, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    self._window += 3


_init = Outgoing.__init__


def _only_what_is_done(self: ShareGroup, given: Any = ()) -> Any:
    """The marks without what is being handed over with them."""
    return _marks(self)


_marks = ShareGroup.marks


BROKEN: list[tuple[str, Any, str, Any, tuple[str, ...]]] = [
    # a slow client's messages are not read again
    ("I1", CatchUp, "fall_behind", _no_need, ("slow readers",)),
    # the client's Receive Maximum is not kept
    ("I6", Outgoing, "__init__", _one_more, ("slow readers",)),
    # a repeated PUBLISH of QoS 2 is taken for a new one
    ("I4", IncomingFlows, "is_known", lambda self, packet_id: False, ("reset", "kill")),
    # whoever was superseded goes on writing: nobody renounces, nobody asks
    ("I7", SessionWriter, "_without_lost", lambda self, batch: batch, ("pause", "cut")),
    # the steps of QoS 2 flows to the client are not stored
    ("I4", DurableSession, "_begin", lambda self, effect: self.stored(effect, [0]), ("kill", "reset")),
    # a hand-over of a shared subscription's message does not say so in the group's mark
    ("I4 of groups", ShareGroup, "marks", _only_what_is_done, ("kill",)),
    # what a member has not acknowledged is nobody's when it leaves
    ("I11", ShareGroup, "leave", lambda self, member, keeps=(): self.unsubscribe(member), ("reset", "vanish")),
    # subscriptions stay when their connection has gone
    ("I13", EdgeProtocolHandler, "_release", lambda self: None, ()),
]


@pytest.mark.parametrize(("invariant", "owner", "name", "broken", "faults"), BROKEN, ids=lambda value: str(value)[:12])
def test_a_broken_part_is_found(
    monkeypatch: pytest.MonkeyPatch, invariant: str, owner: Any, name: str, broken: Any, faults: tuple[str, ...]
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert _runs_find(invariant, faults), f"{invariant} has not seen that {owner.__name__}.{name} is broken"
