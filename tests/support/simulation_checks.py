"""The invariants of ARCHITECTURE.md, each as a function over what a run has left: a list of violations, or none.

They look at what clients saw (`simulation_history`), at the log itself, and at what the edges hold in the end; never at
how the edges came to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from support.simulation_history import INFINITY, Connection, History, Message, Receipt, SubscriptionSpan
from support.simulation_loop import EPOCH_S

from bridge.log import Position
from bridge.memory_log import MemoryRecord
from schemas.errors import RecordError
from schemas.sessions import StoredSession, decode_progress, decode_state, parse_session_key

SESSIONS = "headwater.sessions"


@dataclass(slots=True)
class EdgeLeft:
    """What an edge holds in the end, when all clients are connected and idle."""

    node_id: str
    retained: dict[bytes, tuple[bytes, Position, int]] = field(default_factory=dict)  # payload, source position
    sessions: dict[str, StoredSession] = field(default_factory=dict)
    tables: dict[str, frozenset[str]] = field(default_factory=dict)  # Topic Filters of the clients connected here


@dataclass(slots=True)
class Evidence:
    """All that the checkers look at. `log`: every partition with all records that were ever committed in it."""

    history: History
    log: dict[Position, list[MemoryRecord]] = field(default_factory=dict)
    edges: list[EdgeLeft] = field(default_factory=list)
    wanted: dict[str, frozenset[str]] = field(default_factory=dict)  # durable clients and their Topic Filters
    faults: Counter[str] = field(default_factory=Counter)
    kinds: frozenset[str] = frozenset()

    def occurrences(self) -> dict[bytes, list[tuple[Position, MemoryRecord]]]:
        """Where each payload is in the log of messages."""
        found: dict[bytes, list[tuple[Position, MemoryRecord]]] = defaultdict(list)
        for position, records in self.log.items():
            if position[0].startswith("mqtt."):
                for record in records:
                    if record.value is not None:
                        found[record.value].append((position, record))
        return found


def committed(records: Iterable[MemoryRecord]) -> list[MemoryRecord]:
    """Without markers, aborted and open transactions; with what compaction has taken since."""
    return [
        record
        for record in records
        if not record.is_marker
        and not (record.transaction is not None and (record.transaction.is_aborted or record.transaction.is_open))
    ]


def at_s(record: MemoryRecord) -> float:
    return record.timestamp / 1000 - EPOCH_S


SHARE = "$share/"


def is_shared(topic_filter: str) -> bool:
    return topic_filter.startswith(SHARE)


def matches(topic_filter: str, topic_name: str) -> bool:
    """Section 4.7, in its simplest form."""
    if is_shared(topic_filter):
        topic_filter = topic_filter.split("/", 2)[2]
    filter_levels, levels = topic_filter.split("/"), topic_name.split("/")
    if topic_name.startswith("$") and filter_levels[0] in ("+", "#"):
        return False
    for index, level in enumerate(filter_levels):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(levels) == len(filter_levels)


def is_due(span: SubscriptionSpan, message: Message) -> bool:
    """Whether the subscription was there from before the message was sent until the end, with QoS 1 or 2."""
    return (
        span.until_at == INFINITY
        and span.from_at <= message.sent_at
        and span.granted_qos > 0
        and not is_shared(span.topic_filter)
        and matches(span.topic_filter, message.topic_name)
        and not (span.no_local and span.client == message.publisher)
    )


def i1_acknowledged_arrives(evidence: Evidence) -> list[str]:
    """An acknowledged QoS 1/2 publish reaches every matching subscription that was there before and stayed."""
    history = evidence.history
    received = {(receipt.client, receipt.session, receipt.payload) for receipt in history.receipts}
    return [
        f"{message.payload!r} (QoS {message.qos}, {message.topic_name}, acknowledged at {message.answered_at:.3f}) "
        f"never came to {span.client} by {span.topic_filter} (QoS {span.granted_qos}, since {span.from_at:.3f})"
        for message in history.messages.values()
        if message.qos
        and message.answered_at is not None
        and message.expiry_s is None
        and not message.is_will
        and not message.topic_name.startswith("secret/")  # [MQTT311-3.3.5-2]: acknowledged and not published
        and message.payload not in history.deleted
        for span in history.spans
        if is_due(span, message) and (span.client, span.session, message.payload) not in received
    ]


def i2_only_what_was_sent(evidence: Evidence) -> list[str]:
    """Nothing is delivered that was not sent as it came, to nobody who did not ask, and never what was refused."""
    wrong = []
    asked: dict[str, list[str]] = defaultdict(list)
    for client, topic_filter in evidence.history.asked:
        asked[client].append(topic_filter)
    for receipt in evidence.history.receipts:
        if receipt.topic_name.startswith("$SYS"):
            continue
        message = evidence.history.messages.get(receipt.payload)
        if message is None:
            wrong.append(f"{_who(receipt)} was never sent")
        elif message.topic_name != receipt.topic_name:
            wrong.append(f"{_who(receipt)} was sent as {message.topic_name}")
        elif receipt.qos > message.qos:
            wrong.append(f"{_who(receipt)} has QoS {receipt.qos}, it was sent with {message.qos}")
        elif message.is_refused and len(message.sends) == 1:
            wrong.append(f"{_who(receipt)} was refused")
        elif not any(matches(each, receipt.topic_name) for each in asked[receipt.client]):
            wrong.append(f"{_who(receipt)} was not asked for: {asked[receipt.client]}")
    return wrong


def _live(history: History) -> list[Receipt]:
    """First and repeated deliveries to the application, without those of retained messages to new subscriptions."""
    return [receipt for receipt in history.receipts if receipt.is_new and not receipt.retain]


def _first_receipts(evidence: Evidence) -> dict[tuple[str, int], list[tuple[Receipt, Message]]]:
    """Per client and session, each message once, in the order of coming; of those that were sent after the
    subscription began: of the others the repetition alone may have come."""
    history = evidence.history
    seen: set[tuple[str, int, bytes]] = set()
    firsts: dict[tuple[str, int], list[tuple[Receipt, Message]]] = defaultdict(list)
    spans: dict[tuple[str, int], list[SubscriptionSpan]] = defaultdict(list)
    for span in history.spans:
        spans[span.client, span.session].append(span)
    for receipt in _live(history):
        message = history.messages.get(receipt.payload)
        key = (receipt.client, receipt.session, receipt.payload)
        if message is None or message.is_will or key in seen:
            continue
        seen.add(key)
        if any(
            span.from_at <= message.sent_at
            and not is_shared(span.topic_filter)  # each member gets a part, and what another one has left, later
            and matches(span.topic_filter, message.topic_name)
            and span.until_at > receipt.at
            for span in spans[receipt.client, receipt.session]
        ):
            firsts[receipt.client, receipt.session].append((receipt, message))
    return firsts


def i3_order(evidence: Evidence) -> list[str]:
    """Per publisher, Topic Name and QoS first deliveries come in the order of sending; per Topic Name and QoS they
    come in the order of the log, so all subscribers agree."""
    wrong = []
    occurrences = evidence.occurrences()
    for receipts in _first_receipts(evidence).values():
        last: dict[tuple[object, ...], Message] = {}
        reached: dict[tuple[str, bool], int] = {}
        for receipt, message in receipts:
            # a QoS 0 message of an earlier connection may be late: its edge was cut off
            key = (message.publisher, message.topic_name, message.qos, 0 if message.qos else message.sends[0][1])
            before = last.get(key)
            # what the log has refused once may be sent again by a 3.1.1 client, which was not told, behind later ones
            # the first of its copies in the log may have been lost on the way with QoS 0, or have expired
            is_copy = (not receipt.qos or message.expiry_s is not None) and len(occurrences[message.payload]) > 1
            was_refused = evidence.faults["append refused"] and len(message.sends) > 1
            if before is not None and before.number > message.number and not (was_refused or is_copy):
                wrong.append(f"{_who(receipt)} came after {before.payload!r}")
            last[key] = message
            place = (message.topic_name, message.qos == 2)
            offsets = sorted(record.offset for _, record in occurrences[message.payload])
            index = bisect_right(offsets, reached.get(place, -1))
            if index == len(offsets):
                wrong.append(
                    f"{_who(receipt)} at offsets {offsets} came after offset {reached.get(place)} of its Topic Name"
                )
            else:
                reached[place] = offsets[index]
    return wrong


def i4_exactly_once(evidence: Evidence) -> list[str]:
    """A QoS 2 flow puts its message into the log once, and each session that asked with QoS 2 gets it once."""
    history = evidence.history
    wrong = [
        f"{payload!r} is in the log at {[(*position, record.offset) for position, record in places]}"
        for payload, places in evidence.occurrences().items()
        if len(places) > 1
        and payload in history.messages
        and history.messages[payload].qos == 2
        and not history.messages[payload].is_will
    ]
    counts = Counter(
        (each.client, each.session, each.payload)
        for each in _live(history)
        if each.qos == 2 and not each.topic_name.startswith("sh/")  # these are looked at by group
    )
    for (client, _, payload), count in counts.items():
        message = history.messages.get(payload)
        if count > 1 and not (message is not None and message.is_will):
            wrong.append(f"{payload!r} came to {client} {count} times")
    return wrong


def i5_duplicates(evidence: Evidence) -> list[str]:
    """On one connection each record of the log comes once; the log has a message as often as it was sent, at most."""
    history, occurrences = evidence.history, evidence.occurrences()
    counts = Counter(  # what a group hands out it may hand out again, unless it has QoS 2: see I4
        (each.client, each.connection, each.payload) for each in _live(history) if not each.topic_name.startswith("sh/")
    )
    wrong = [
        f"{payload!r} came to {client}/{connection} {count} times and is in the log {len(occurrences[payload])} times"
        for (client, connection, payload), count in counts.items()
        if count > max(1, len(occurrences[payload]))
    ]
    if not evidence.faults["producer renewed"]:
        wrong += [
            f"{payload!r} was sent {len(message.sends)} times and is in the log {len(occurrences[payload])} times"
            for payload, message in history.messages.items()
            if not message.is_will and len(occurrences[payload]) > len(message.sends)
        ]
    return wrong


def i7_one_owner(evidence: Evidence) -> list[str]:
    """Once an epoch has stored the session's state, no earlier epoch writes; an epoch is one node's."""
    wrong = []
    latest: dict[str, int] = {}
    nodes: dict[tuple[str, int], tuple[str, str]] = {}
    for position, records in evidence.log.items():
        if position[0] != SESSIONS:
            continue
        for record in records:
            try:
                client, epoch, kind = parse_session_key(record.key)
            except RecordError:
                continue  # a transaction's number
            if record.value is None:
                continue
            if epoch < latest.get(client, -1):
                wrong.append(
                    f"{client}: epoch {epoch} writes {kind!r} at offset {record.offset} after {latest[client]}"
                )
            if kind != b"s":
                continue
            latest[client] = max(epoch, latest.get(client, -1))
            state = decode_state(client, record.value)
            node = (state.node_id, state.incarnation)
            if state.connected and nodes.setdefault((client, epoch), node) != node:
                wrong.append(f"{client}: epoch {epoch} is of {nodes[client, epoch]} and of {node}")
    return wrong


def i8_sessions(evidence: Evidence) -> list[str]:
    """Session present is what the model says; what is stored and subscribed to is what the clients asked for."""
    wrong = [
        f"{each.client}/{each.number} at {each.accepted_at:.3f}: session present {each.session_present}"
        for each in evidence.history.connections
        if each.accepted_at is not None and each.expected is not None and each.expected != each.session_present
    ]
    for client, filters in evidence.wanted.items():
        for edge in evidence.edges:
            stored = edge.sessions.get(client)
            found = frozenset(each.topic_filter for each in stored.state.subscriptions) if stored is not None else None
            if found != filters:
                wrong.append(f"{client} subscribes to {sorted(filters)}; {edge.node_id} has stored {found}")
            table = edge.tables.get(client)
            own = frozenset(each for each in filters if not is_shared(each))
            if table is not None and table != own:
                wrong.append(f"{client} subscribes to {sorted(own)}; {edge.node_id} delivers {sorted(table)}")
    return wrong


def i9_retained(evidence: Evidence) -> list[str]:
    """All edges have the same retained messages, and of each Topic Name one that no later one has replaced."""
    if not evidence.edges:
        return []
    wrong = []
    occurrences = evidence.occurrences()
    first = evidence.edges[0]
    for edge in evidence.edges[1:]:
        for name in first.retained.keys() | edge.retained.keys():
            if first.retained.get(name) != edge.retained.get(name):
                held, other = first.retained.get(name), edge.retained.get(name)
                wrong.append(f"{name!r}: {first.node_id} has {held}, {edge.node_id} {other}")
    by_name: dict[str, list[Message]] = defaultdict(list)
    for message in evidence.history.messages.values():
        if message.retain and not message.is_refused:
            by_name[message.topic_name].append(message)
    for topic_name, messages in by_name.items():
        if any(message.expiry_s is not None for message in messages):
            continue
        held = first.retained.get(topic_name.encode())
        answered = [message for message in messages if message.answered_at is not None and not message.is_will]
        if held is None:
            if answered:
                wrong.append(f"{topic_name}: nothing is retained, {answered[-1].payload!r} was acknowledged")
            continue
        value = evidence.history.messages.get(held[0])
        if value is None or not value.retain or value.topic_name != topic_name:
            wrong.append(f"{topic_name}: {held[0]!r} is retained and was not published so")
        elif value.answered_at is not None:  # between QoS 2 and the others Kafka's time counts
            later = [
                message
                for message in answered
                if message.sent_at > value.answered_at and not _landed_again(evidence, occurrences, held, message)
            ]
            if later:
                wrong.append(f"{topic_name}: {value.payload!r} is retained, {later[-1].payload!r} was later")
    return wrong


def _landed_again(
    evidence: Evidence,
    occurrences: dict[bytes, list[tuple[Position, MemoryRecord]]],
    held: tuple[bytes, Position, int],
    later: Message,
) -> bool:
    """Whether what is retained is a second copy that has come into the log behind the later message.

    A known limit: its client has sent it again by another edge, and the first one had no way to Kafka until then.
    """
    copies = {(position, record.offset): at_s(record) for position, record in occurrences[held[0]]}
    landed_at = copies.get(held[1:], 0.0)
    answered_at = later.answered_at or 0.0
    before = max((at for _, each in occurrences[later.payload] if (at := at_s(each)) <= answered_at), default=INFINITY)
    return before < landed_at != min(copies.values(), default=0.0)


def i10_wills(evidence: Evidence) -> list[str]:
    """A will is published once or not at all, as the end of its connection says; never for a refused CONNECT."""
    occurrences = evidence.occurrences()
    wrong = []
    by_client: dict[tuple[str, str], list[Connection]] = defaultdict(list)
    for connection in evidence.history.connections:
        by_client[connection.client, connection.user].append(connection)
    for connections in by_client.values():
        for index, connection in enumerate(connections):
            will = connection.will
            if will is None:
                continue
            count = len(occurrences[will.payload])
            following = next((each for each in connections[index + 1 :] if each.accepted_at is not None), None)
            least, most = _wills_due(evidence, connection, following)
            if will.qos < 2 and most and _was_faulty(evidence, connection, following):
                most += 9  # a known limit: an edge died, or was fenced, between publishing it and storing that
            if not least <= count <= most:
                wrong.append(
                    f"{will.payload!r} of {connection.client}/{connection.number} (QoS {will.qos}, delay "
                    f"{connection.will_delay_s} s, accepted {connection.accepted_at}, end {connection.end!r} at "
                    f"{connection.ended_at}) was published {count} times, not {least} to {most}"
                )
    return wrong


def _wills_due(evidence: Evidence, connection: Connection, following: Connection | None) -> tuple[int, int]:
    """How often the will may be published, at least and at most."""
    if connection.refused_code is not None:
        return 0, 0
    if connection.accepted_at is None:
        return 0, 1  # CONNACK may have been lost
    if connection.ended_at is None:
        return 0, 0
    if connection.end == "disconnect":
        return 0, int(_was_faulty(evidence, connection, following))
    least = 0 if evidence.faults["append refused"] else 1
    delay_s = min(connection.will_delay_s, connection.expiry_s)
    if not delay_s:
        return least, 1
    if following is None or following.accepted_at is None:
        return (least, 1) if evidence.history.ended_at > connection.ended_at + delay_s + 30 else (0, 1)
    away_s = following.accepted_at - connection.ended_at
    if following.clean_start:
        return (0 if connection.end in ("vanished", "taken over") else least), 1
    if connection.end in ("vanished", "taken over") or _was_faulty(evidence, connection, following):
        return 0, 1
    if away_s < delay_s - 1.0:
        return 0, 0
    return (least, 1) if away_s > delay_s + 5.0 else (0, 1)


def _was_faulty(evidence: Evidence, connection: Connection, following: Connection | None) -> bool:
    """Whether some edge was in trouble from the connection's last seconds until the next one was there."""
    if connection.ended_at is None:
        return False
    until = following.accepted_at if following is not None and following.accepted_at is not None else INFINITY
    return any(
        fault.from_at <= until + 1.0 and fault.until_at >= connection.ended_at - 10.0
        for fault in evidence.history.faults
    )


def i4_exactly_once_in_a_group(evidence: Evidence) -> list[str]:
    """A message with QoS 2 is one session's of all those that share a subscription, and comes to it once."""
    history = evidence.history
    shares = {each for _, each in history.asked if is_shared(each)}
    counts: dict[bytes, list[Receipt]] = defaultdict(list)
    for receipt in _live(history):
        if receipt.qos == 2:
            counts[receipt.payload].append(receipt)
    wrong = []
    for payload, receipts in counts.items():
        message = history.messages.get(payload)
        if message is None or not message.topic_name.startswith("sh/"):
            continue
        groups = sum(matches(share, message.topic_name) for share in shares)
        if len(receipts) > groups:
            wrong.append(f"{groups} groups got {payload!r} {len(receipts)} times: {', '.join(map(_who, receipts))}")
    return wrong


def i11_groups(evidence: Evidence) -> list[str]:
    """Members together get all that was acknowledged while the group had a member that stayed; and, when nothing
    failed and nobody left, each message once.

    What was given to a session with QoS 2 goes with it when it ends [MQTT5-4.8.2-5].
    """
    history = evidence.history
    wrong = []
    received: Counter[bytes] = Counter(each.payload for each in _live(history))
    spans: dict[str, list[SubscriptionSpan]] = defaultdict(list)
    for span in history.spans:
        if is_shared(span.topic_filter):
            spans[span.topic_filter].append(span)
    for share, members in spans.items():
        for message in history.messages.values():
            if not message.topic_name.startswith("sh/") or not matches(share, message.topic_name):
                continue
            stayed = any(_due_to_group(span, message) for span in members)
            went = any(message.sent_at < span.until_at < INFINITY for span in members)
            if (
                stayed
                and message.qos
                and message.answered_at is not None
                and message.expiry_s is None
                and not (went and message.qos == 2)
                and message.payload not in history.deleted
                and not received[message.payload]
            ):
                wrong.append(
                    f"{message.payload!r} (QoS {message.qos}, {message.topic_name}) came to no member of {share}"
                )
    if not evidence.kinds and len(spans) == 1:
        ends = [each.ended_at for each in history.connections if each.ended_at is not None]
        for payload, count in received.items():
            message = history.messages.get(payload)
            if message is None or not message.topic_name.startswith("sh/") or count == 1:
                continue
            if not any(at >= message.sent_at for at in ends):
                wrong.append(f"{payload!r} came {count} times, and nothing had happened")
    return wrong


def _due_to_group(span: SubscriptionSpan, message: Message) -> bool:
    return span.until_at == INFINITY and span.from_at <= message.sent_at and span.granted_qos > 0


def i14_rights(evidence: Evidence) -> list[str]:
    """What nobody may publish or subscribe to is never delivered, nor in the log."""
    wrong = [f"{_who(receipt)}" for receipt in evidence.history.receipts if receipt.topic_name.startswith("secret/")]
    for payload, places in evidence.occurrences().items():
        message = evidence.history.messages.get(payload)
        if message is not None and message.topic_name.startswith("secret/"):
            wrong.append(f"{payload!r} is in the log at {places[0][0]}")
    return wrong


def i15_expiry(evidence: Evidence) -> list[str]:
    """Nothing is delivered after its Message Expiry Interval. Not looked at where what is delivered is not what was
    sent just then (edges and clients that stand still)."""
    if evidence.kinds & {"pause", "slow readers"}:
        return []
    occurrences, wrong = evidence.occurrences(), []
    for receipt in evidence.history.receipts:
        message = evidence.history.messages.get(receipt.payload)
        if message is None or message.expiry_s is None:
            continue
        if receipt.qos == 2 and evidence.kinds & {"log trouble", "slow log", "cut", "lost answers"}:
            continue  # its delivery had begun: it waited for its identifier to be stored
        latest = max((at_s(record) for _, record in occurrences[receipt.payload]), default=0.0)
        if receipt.at > latest + message.expiry_s + 1.0:
            wrong.append(f"{_who(receipt)} expired after {message.expiry_s} s and was appended at {latest:.3f}")
    return wrong


def i16_low_water(evidence: Evidence) -> list[str]:
    """A committed position never passes a record that is due and was neither acknowledged nor is held as in flight."""
    wrong = []
    history = evidence.history
    acknowledged: dict[tuple[str, bytes], float] = {}
    for receipt in history.receipts:
        if receipt.acknowledged_at is not None:
            key = (receipt.client, receipt.payload)
            acknowledged[key] = min(receipt.acknowledged_at, acknowledged.get(key, INFINITY))
    spans: dict[str, list[SubscriptionSpan]] = defaultdict(list)
    for span in history.spans:
        spans[span.client].append(span)
    for position, records in evidence.log.items():
        if position[0] != SESSIONS:
            continue
        kept: set[tuple[str, int]] = set()
        for stored in records:
            try:
                client, epoch, kind = parse_session_key(stored.key)
            except RecordError:
                continue
            if kind == b"s" and stored.value is not None and decode_state(client, stored.value).expiry_s:
                kept.add((client, epoch))  # the others end with their connections
            if kind != b"p" or stored.value is None or (client, epoch) not in kept:
                continue
            progress, now = decode_progress(stored.value), at_s(stored)
            held = {(entry.kafka_topic, entry.partition, entry.offset) for entry in progress.outgoing.values()}
            for place, offset in progress.positions.items():
                for record in evidence.log.get(place, ()):
                    if record.offset >= offset:
                        break
                    message = history.messages.get(record.value or b"")
                    if message is None or not message.qos or message.expiry_s is not None:
                        continue
                    if message.payload in history.deleted:
                        continue
                    if (*place, record.offset) in held or acknowledged.get((client, message.payload), INFINITY) <= now:
                        continue
                    for span in spans[client]:
                        if (
                            span.from_at <= min(message.sent_at, at_s(record))
                            and span.until_at > now
                            and _matches_span(span, message)
                        ):
                            wrong.append(
                                f"{client}: epoch {epoch} has stored {place} {offset} at {now:.3f}, past "
                                f"{message.payload!r} at {record.offset}, which is not acknowledged"
                            )
                            break
    return wrong


def _matches_span(span: SubscriptionSpan, message: Message) -> bool:
    return (
        span.granted_qos > 0
        and not is_shared(span.topic_filter)
        and matches(span.topic_filter, message.topic_name)
        and not (span.no_local and span.client == message.publisher)
    )


def _who(receipt: Receipt) -> str:
    return f"{receipt.payload!r} ({receipt.topic_name}) to {receipt.client}/{receipt.connection} at {receipt.at:.3f}"


CHECKS: dict[str, Callable[[Evidence], list[str]]] = {
    "I1": i1_acknowledged_arrives,
    "I2": i2_only_what_was_sent,
    "I3": i3_order,
    "I4": i4_exactly_once,
    "I4 of groups": i4_exactly_once_in_a_group,
    "I5": i5_duplicates,
    "I7": i7_one_owner,
    "I8": i8_sessions,
    "I9": i9_retained,
    "I10": i10_wills,
    "I11": i11_groups,
    "I14": i14_rights,
    "I15": i15_expiry,
    "I16": i16_low_water,
}


def check(evidence: Evidence) -> list[tuple[str, str]]:
    """All violations, with the names of the invariants."""
    found = list(evidence.history.found)
    for name, checker in CHECKS.items():
        found += [(name, text) for text in checker(evidence)]
    return found
