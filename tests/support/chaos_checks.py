"""The verdict over a recorded run: the invariants of the simulation's checkers, and those that a real run adds.

`verdict` wants the history (`chaos_history`), every record that Kafka holds, and what each edge retains; it gives the
violations of each invariant. The planted faults that each must catch are in tests/chaos/test_chaos_checks.py.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from support import chaos_invariants as invariants
from support import simulation_checks as checks
from support.chaos_history import Recorded
from support.chaos_invariants import Digests, near_fault
from support.simulation_checks import EdgeLeft, Evidence
from support.simulation_history import INFINITY

from bridge.log import Position
from bridge.memory_log import MemoryRecord
from schemas.errors import RecordError
from schemas.sessions import SessionProgress, SessionState, StoredSession, decode_state, parse_session_key

INVARIANTS = tuple(f"I{number}" for number in range(1, 18))
SHARE_MIN = 0.05  # of all messages of a group, for each member
STARVES_FROM = 100  # messages: below that nobody is said to starve

Log = dict[Position, list[MemoryRecord]]


@dataclass(frozen=True, slots=True)
class Run:
    """All that is known of a run."""

    recorded: Recorded
    log: Log
    edges: tuple[EdgeLeft, ...] = ()
    wanted: tuple[tuple[str, frozenset[str]], ...] = ()  # durable clients and their Topic Filters
    read: Digests = field(default_factory=dict)  # the log of messages, and what a replay found in it
    replayed: Digests = field(default_factory=dict)

    @property
    def members(self) -> set[str]:
        """The clients with shared subscriptions: they have no others."""
        return {span.client for spans in self.recorded.shared.values() for span in spans}


def verdict(run: Run) -> dict[str, list[str]]:
    """Violations by invariant; an empty list is a pass."""
    history = run.recorded.history
    stored = EdgeLeft("the log", sessions=stored_sessions(run.log))
    evidence = Evidence(history, run.log, list(run.edges), faults=Counter())
    of_sessions = Evidence(history, run.log, [stored], wanted=dict(run.wanted))
    found: dict[str, list[str]] = {name: [] for name in INVARIANTS}
    for name, text in history.found:
        found[name].append(text)
    plain: dict[str, Callable[[Evidence], list[str]]] = {
        "I1": checks.i1_acknowledged_arrives,
        "I2": checks.i2_only_what_was_sent,
        "I3": lambda evidence: checks.i3_order(_without_late_copies(evidence)),
        "I4": lambda evidence: checks.i4_exactly_once(_without_members(run, evidence)),
        "I7": checks.i7_one_owner,
        "I9": checks.i9_retained,
        "I10": checks.i10_wills,
        "I14": checks.i14_rights,
        "I16": checks.i16_low_water,
    }
    for name, checker in plain.items():
        found[name] += checker(evidence)
    found["I4"] += repeated_in_groups(run)
    found["I8"] += checks.i8_sessions(of_sessions)
    found["I11"] += i11_shared(run)
    found["I5"] += invariants.i5_duplicates(run)
    found["I12"] += invariants.i12_recovery(run)
    found["I13"] += invariants.i13_bounded(run)
    found["I15"] += invariants.i15_expiry(run)
    found["I17"] += invariants.i17_replay(run)
    return found


def _without_members(run: Run, evidence: Evidence) -> Evidence:
    members = run.members
    history = copy.copy(evidence.history)
    history.receipts = [receipt for receipt in history.receipts if receipt.client not in members]
    return Evidence(history, evidence.log)


def _without_late_copies(evidence: Evidence) -> Evidence:
    """A message that was sent again may have expired in its place, and come from its second one."""
    sent_again = {
        payload
        for payload, each in evidence.history.messages.items()
        if each.expiry_s is not None and len(each.sends) > 1
    }
    history = copy.copy(evidence.history)
    history.receipts = [receipt for receipt in history.receipts if receipt.payload not in sent_again]
    return Evidence(history, evidence.log, faults=evidence.faults)


def repeated_in_groups(run: Run) -> list[str]:
    """QoS 2 messages that the members of a group got more than once as new ones, in all."""
    members = run.members
    times = Counter(
        receipt.payload
        for receipt in run.recorded.history.receipts
        if receipt.client in members and receipt.qos == 2 and receipt.is_new
    )
    return [f"{payload!r} came {count} times to the members" for payload, count in times.items() if count > 1]


def i11_shared(run: Run) -> list[str]:
    """Each acknowledged message that was sent while somebody was in the group to stay comes to a member; away from
    faults it is acknowledged by one alone, and once; nobody who stays starves."""
    history, wrong = run.recorded.history, []
    passing = set(run.recorded.marks.get("passing", ()))
    for group, spans in run.recorded.shared.items():
        members = {span.client for span in spans}
        stay = {span.client for span in spans if span.until_at == INFINITY} - passing
        since = max((span.from_at for span in spans if span.client in stay), default=INFINITY)
        took: dict[bytes, list[str]] = defaultdict(list)
        acknowledged: dict[bytes, list[str]] = defaultdict(list)
        for receipt in history.receipts:
            if receipt.client in members and receipt.is_new:
                took[receipt.payload].append(receipt.client)
                if receipt.acknowledged_at is not None:
                    acknowledged[receipt.payload].append(receipt.client)
        topic_filter = spans[0].topic_filter
        due = [
            message
            for message in history.messages.values()
            if message.qos
            and not message.is_will
            and message.expiry_s is None
            and message.answered_at is not None
            and message.sent_at >= since
            and checks.matches(topic_filter, message.topic_name)
        ]
        wrong += [f"{group}: {message.payload!r} came to no member" for message in due if message.payload not in took]
        for message in due:
            times = len(acknowledged[message.payload])
            if times > len(message.sends) and not near_fault(run, message.sent_at):
                wrong.append(f"{group}: {message.payload!r} came {times} times, to {acknowledged[message.payload]}")
        wrong += _starving(group, stay, [[each for each in clients if each in stay] for clients in took.values()])
    return wrong


def _starving(group: str, members: set[str], took: Iterable[list[str]]) -> list[str]:
    counts = Counter(client for clients in took for client in clients)
    total = sum(counts.values())
    if total < STARVES_FROM:
        return []
    return [
        f"{group}: {member} got {counts[member]} of {total}"
        for member in sorted(members)
        if counts[member] < SHARE_MIN * total
    ]


def stored_sessions(log: Log) -> dict[str, StoredSession]:
    """What `headwater.sessions` holds of each client: the state of its highest epoch."""
    states: dict[str, tuple[int, SessionState | None]] = {}
    for position, records in log.items():
        if position[0] != checks.SESSIONS:
            continue
        for record in records:
            try:
                client, epoch, kind = parse_session_key(record.key)
            except RecordError:
                continue
            if kind == b"s" and epoch >= states.get(client, (-1, None))[0]:
                state = decode_state(client, record.value) if record.value is not None else None
                states[client] = epoch, state
    return {
        client: StoredSession(epoch, state, SessionProgress())
        for client, (epoch, state) in states.items()
        if state is not None
    }


def recovery_s(run: Run) -> list[tuple[str, float]]:
    """For each fault that has ended: its kind, and how long after that the first publish was acknowledged."""
    answers = sorted(m.answered_at for m in run.recorded.history.messages.values() if m.answered_at is not None)
    return [
        (fault.kind, next((at for at in answers if at > fault.until_at), INFINITY) - fault.until_at)
        for fault in run.recorded.history.faults
        if fault.until_at < INFINITY
    ]


def resume_s(run: Run) -> list[float]:
    """How long clients were without a connection that they had not ended themselves."""
    took: list[float] = []
    lost: dict[str, float] = {}
    for connection in run.recorded.history.connections:
        if connection.accepted_at is not None and connection.client in lost:
            took.append(connection.accepted_at - lost.pop(connection.client))
        if connection.ended_at is not None and connection.accepted_at is not None and connection.end == "server":
            lost[connection.client] = connection.ended_at
    return took


def longest_silence_s(run: Run) -> float:
    """The longest time in which nothing was acknowledged to anybody."""
    answers = sorted(m.answered_at for m in run.recorded.history.messages.values() if m.answered_at is not None)
    return max((after - before for before, after in itertools.pairwise(answers)), default=0.0)


def group_stall_s(run: Run) -> float:
    """The longest time in which no member of a shared subscription got anything."""
    members = run.members
    ats = sorted(each.at for each in run.recorded.history.receipts if each.client in members)
    return max((after - before for before, after in itertools.pairwise(ats)), default=0.0)
