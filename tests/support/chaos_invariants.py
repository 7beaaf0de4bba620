"""The invariants that only a real run shows: duplicates around faults alone (I5), recovery (I12), bounds (I13), expiry
(I15), and that the log reads the same twice (I17). Pure functions over a run; a list of violations, or none.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from support import simulation_checks as checks
from support.chaos_history import Sample
from support.simulation_checks import Evidence
from support.simulation_history import INFINITY, Message, Receipt

from bridge.log import Position, Record

if TYPE_CHECKING:
    from support.chaos_checks import Run

AROUND_FAULT_S = 15.0  # an edge is held for dead after 6 s; then its leases move and its messages come again
RECOVERED_S = AROUND_FAULT_S  # after a fault
KAFKA_RECOVERED_S = 25.0  # after one of Kafka: groups form anew, and what has waited goes out
JUDGED_S = 5.0  # for so long the load must then go on
JUDGED_MIN = 20  # publishes in that time: fewer say nothing
LATE_S = 2.0  # 95 % of acknowledgements and deliveries are faster, or at most `SLOWER` times what they were before
SLOWER = 3.0
EXPIRY_SLACK_S = 3.0  # of a busy machine, between the edge's decision and our reading
STORED_WITHIN_S = 15.0  # what was acknowledged to an edge, before its connection broke
FILES_MAX = 1_500  # of an edge: a thousand strangers, and the clients of a run
MEMORY_MAX_KB = 256 * 1024  # above what it began with
MEMORY_BACK_KB = 64 * 1024
BACK_RATIO, BACK_SLACK = 1.1, 20  # a group of durable sessions and what it reads stay with some edge

Digests = Mapping[Position, list[tuple[int, str]]]


def recovered_after_s(edge: str) -> float:
    """How long after a fault of this edge (or of "kafka") all must be as before."""
    return KAFKA_RECOVERED_S if edge == "kafka" else RECOVERED_S


def near_fault(run: Run, at: float) -> bool:
    """Whether a fault was going on, or has ended just now."""
    return any(
        fault.from_at - AROUND_FAULT_S <= at <= fault.until_at + AROUND_FAULT_S for fault in run.recorded.history.faults
    )


def i5_duplicates(run: Run) -> list[str]:
    """On one connection each record of the log comes once. Away from faults the log has a message as often as it was
    sent at most, and a QoS 1 message comes to a session again only if a broken connection may have lost its PUBACK."""
    history = run.recorded.history
    evidence = Evidence(history, run.log, faults=Counter({"producer renewed": 1}))
    wrong = checks.i5_duplicates(evidence)
    copies = {payload: len(places) for payload, places in evidence.occurrences().items()}
    for payload, message in history.messages.items():
        if message.is_will or copies.get(payload, 0) <= len(message.sends):
            continue
        if not any(near_fault(run, at) for at, _ in message.sends):
            wrong.append(f"{payload!r} was sent {len(message.sends)} times and is in the log {copies[payload]} times")
    return wrong + _acknowledged_twice(run, copies)


def _acknowledged_twice(run: Run, copies: Mapping[bytes, int]) -> list[str]:
    history, members = run.recorded.history, run.members
    ends = {(each.client, each.number): each for each in history.connections}
    came: dict[tuple[str, int, bytes], list[Receipt]] = defaultdict(list)
    for receipt in history.receipts:
        if receipt.qos == 1 and not receipt.retain and receipt.client not in members:
            came[receipt.client, receipt.session, receipt.payload].append(receipt)
    wrong = []
    for (client, _, payload), receipts in came.items():
        for before, after in itertools.pairwise(receipts):
            if len(receipts) <= copies.get(payload, 0) or before.acknowledged_at is None:
                continue
            if before.connection == after.connection:
                continue  # two records of the log, or found above
            connection = ends[client, before.connection]
            is_broken = connection.end != "disconnect" and (
                connection.ended_at is None or connection.ended_at - before.acknowledged_at < STORED_WITHIN_S
            )
            if not is_broken and not near_fault(run, before.at) and not near_fault(run, after.at):
                wrong.append(f"{payload!r} came to {client} at {before.at:.3f} and again at {after.at:.3f}")
    return wrong


def i12_recovery(run: Run) -> list[str]:
    """When all faults are over, acknowledgements and deliveries are as fast as before."""
    history = run.recorded.history
    faults = [fault for fault in history.faults if fault.until_at < INFINITY]
    if not faults:
        return []
    began = min(each.from_at for each in faults)
    calm = max(each.until_at + recovered_after_s(each.edge) for each in faults)
    sent = [each for each in history.messages.values() if each.qos and not each.is_will and not _is_denied(each)]
    before = [each for each in sent if each.sent_at < began]
    after = [each for each in sent if calm <= each.sent_at < INFINITY]
    if len(after) < JUDGED_MIN:
        return [f"{len(after)} messages were published when all was over: too few to tell"]
    return [
        *_slower("acknowledged", _answer_s(before), _answer_s(after)),
        *_slower("delivered", _delivery_s(run, before), _delivery_s(run, after)),
    ]


def _is_denied(message: Message) -> bool:
    return message.topic_name.startswith("secret/")


def _answer_s(messages: Iterable[Message]) -> list[float]:
    return [(each.answered_at if each.answered_at is not None else INFINITY) - each.sent_at for each in messages]


def _delivery_s(run: Run, messages: Iterable[Message]) -> list[float]:
    """To the connections that were there when the message was sent."""
    history = run.recorded.history
    wanted = {each.payload: each.sent_at for each in messages}
    since = {(each.client, each.number): each.accepted_at for each in history.connections}
    return [
        each.at - wanted[each.payload]
        for each in history.receipts
        if each.payload in wanted
        and each.is_new
        and not each.retain
        and (since[each.client, each.connection] or INFINITY) < wanted[each.payload]
    ]


def _slower(what: str, before: list[float], after: list[float]) -> list[str]:
    usual = p95(before)
    most = max(LATE_S, SLOWER * usual)
    return [f"{what} p95 {p95(after):.2f} s when all was over, {usual:.2f} s before"] if p95(after) > most else []


def p95(values: list[float]) -> float:
    """The 95th percentile; 0 of none."""
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else 0.0


def i13_bounded(run: Run) -> list[str]:
    """Memory, descriptors and tasks of each edge have a bound, and come back when all clients are gone."""
    samples = run.recorded.samples
    if not samples:
        return []
    base, wrong = baseline(samples), []
    for sample in samples:
        if sample.files > FILES_MAX or sample.memory_kb > base.memory_kb + MEMORY_MAX_KB:
            wrong.append(f"{sample.edge} at {sample.at:.1f}: {sample.files} descriptors, {sample.memory_kb} KiB")
    for edge in {sample.edge for sample in samples}:
        last = [sample for sample in samples if sample.edge == edge][-1]
        if last.phase == "left":
            wrong += [f"{edge} in the end: {text}" for text in above(last, base)]
        else:
            wrong.append(f"{edge}: not looked at in the end")
    return wrong


def baseline(samples: Iterable[Sample]) -> Sample:
    """What an edge without clients has."""
    first = [sample for sample in samples if sample.phase == "start"]
    assert first, "no sample before the load"
    return Sample(
        0.0,
        "",
        "start",
        max(each.memory_kb for each in first),
        max(each.files for each in first),
        max(each.tasks or 0 for each in first),
    )


def above(sample: Sample, base: Sample) -> list[str]:
    """What has not come back to the baseline."""
    wrong = []
    if sample.memory_kb > base.memory_kb + MEMORY_BACK_KB:
        wrong.append(f"{sample.memory_kb} KiB, {base.memory_kb} in the beginning")
    for what, value, began in (("descriptors", sample.files, base.files), ("tasks", sample.tasks, base.tasks or 0)):
        if value is None:
            wrong.append(f"{what} are not known")
        elif value > BACK_RATIO * began + BACK_SLACK:
            wrong.append(f"{value} {what}, {began} in the beginning")
    return wrong


def i15_expiry(run: Run) -> list[str]:
    """Delivery does not begin after the Message Expiry Interval: it counts from the record's time in the log. What was
    begun may come again later [MQTT5-3.3.2-5], and when that of a QoS 2 message has begun cannot be seen: its Packet
    Identifier is stored first. Where an edge's clock is wrong, this is not looked at."""
    history = run.recorded.history
    if any(fault.kind == "clock" for fault in history.faults):
        return []
    occurrences = Evidence(history, run.log).occurrences()
    members, wrong = run.members, []
    begun: set[tuple[str, bytes]] = set()
    for receipt in history.receipts:
        message = history.messages.get(receipt.payload)
        if message is None or message.expiry_s is None:
            continue
        key = ("the group" if receipt.client in members else receipt.client, receipt.payload)
        is_first = key not in begun and not receipt.dup and receipt.qos < 2
        begun.add(key)
        appended = max((checks.at_s(record) for _, record in occurrences[receipt.payload]), default=0.0)
        if is_first and receipt.at > appended + message.expiry_s + EXPIRY_SLACK_S:
            wrong.append(
                f"{receipt.payload!r} came to {receipt.client} {receipt.at - appended:.1f} s after it was appended, "
                f"it expired after {message.expiry_s} s"
            )
    return wrong


def digests(records: Iterable[Record]) -> list[tuple[int, str]]:
    """Offset and contents of each: key, value and headers, byte for byte."""
    return [(each.offset, _digest(each)) for each in records]


def _digest(record: Record) -> str:
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts += [name.encode(), value]
    whole = hashlib.blake2b(digest_size=12)
    for part in parts:
        whole.update(b"-" if part is None else b"%d:" % len(part) + part)
    return whole.hexdigest()


def i17_replay(run: Run) -> list[str]:
    """`headwater replay` finds the same records as another reader: byte for byte, in the same order."""
    wrong = []
    for place in sorted(run.read.keys() | run.replayed.keys()):
        read, again = list(run.read.get(place, ())), list(run.replayed.get(place, ()))
        if read != again:
            first = next((one for one, other in zip(read, again, strict=False) if one != other), None)
            wrong.append(f"{place}: {len(read)} records, {len(again)} replayed; first difference: {first}")
    return wrong
