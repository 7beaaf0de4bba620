"""The layout of the records in `headwater.sessions`: what outlives a connection.

Keys are `client id \\0 epoch \\0 kind`; no MQTT string holds U+0000 [MQTT5-1.5.4-2]. The epoch is the owner's claim.

=============  ===================================================================================================
kind           value, JSON
=============  ===================================================================================================
``s``          `SessionState`: subscriptions, will, whether it is connected and where
``p``          `SessionProgress`, whole: positions and what is in flight. What an ``i`` or ``o`` said before is void,
               except of packet ids that it calls unsettled
``i<id>``      packet id of a QoS 2 PUBLISH from the client: ``{"v":1}`` received, ``{"v":1,"done":true}`` released
``o<id>``      packet id of a PUBLISH to the client: `OutgoingEntry`, state "sent", "released" or "done"; ``sent_to``:
               positions that earlier messages under this packet id had come to
=============  ===================================================================================================

A session is what the records of its highest epoch with an ``s`` say, in the order of the log. A tombstone of ``i`` or
``o`` says nothing about the packet id: it is written behind a ``p``, which says it all, to keep the Kafka topic small.
(A "done" as a tombstone would be lost after a day, and the packet id in an older ``p`` would come back.)

The key `\\0txn\\0<transactional id>` holds the number of an edge's last transaction: how it finds out whether a commit
without an answer has happened.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from schemas.errors import RecordError
from schemas.nodes import json_object
from schemas.records import EXPIRY_S_MAX, Header

SESSION_VERSION = 1
KIND_STATE: Final = b"s"
KIND_PROGRESS: Final = b"p"
KIND_INCOMING: Final = b"i"
KIND_OUTGOING: Final = b"o"
PACKET_ID_MAX = 65_535  # a Two Byte Integer [MQTT5-2.2.1-2]
MARKER_PREFIX = b"\0txn\0"

OutgoingState = Literal["sent", "released", "done"]
_OUTGOING_STATES = frozenset(("sent", "released", "done"))


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    subscription_id: int | None = None
    selector: str = ""


@dataclass(frozen=True, slots=True)
class StoredWill:
    """``headers`` are those of the message record, ready to append."""

    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    delay_s: int
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionState:
    """What changes seldom. Times are milliseconds since the epoch."""

    client_id: str
    principal: str
    protocol_version: int
    expiry_s: int
    subscriptions: tuple[StoredSubscription, ...] = ()
    will: StoredWill | None = None
    connected: bool = True
    node_id: str = ""
    incarnation: str = ""
    disconnected_ms: int | None = None
    will_due_ms: int | None = None

    @property
    def expires_ms(self) -> int | None:
        """When the session ends; None while it is connected, or never [MQTT5-3.1.2.11.2]."""
        return _expires_ms(self.connected, self.disconnected_ms, self.expiry_s)


@dataclass(frozen=True, slots=True)
class OutgoingEntry:
    """Where a message in flight is found again; one that was retained is found by its ``topic_name``.

    ``shared``: it came by a shared subscription, which other sessions have, too.
    """

    kafka_topic: str
    partition: int
    offset: int
    qos: int
    state: OutgoingState = "sent"
    topic_name: str | None = None
    shared: bool = False

    @property
    def moves_position(self) -> bool:
        """Whether the session has come past the message: what was retained or shared is beside its own way."""
        return self.topic_name is None and not self.shared


@dataclass(frozen=True, slots=True)
class ReplayPlace:
    """Where a replay subscription is in one partition: ``next_offset`` was never sent; ``due`` was, below it, and is
    not acknowledged; ``until``: where the partition ends for a replay with a ``to``."""

    next_offset: int
    due: tuple[int, ...] = ()
    until: int | None = None


@dataclass(slots=True)
class SessionProgress:
    """``positions``: (kafka topic, partition) -> first offset that was not sent yet; in flight by packet id.

    ``unsettled``: packet ids from the client whose commit was under way when this was written. Nobody knew whether it
    would happen; what the journal in front of this record says of them still holds. ``unsettled_outgoing``: likewise
    those under which a shared subscription's message was being handed over to this session.

    ``replays``: where the replay subscriptions are, by filter.
    """

    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    outgoing: dict[int, OutgoingEntry] = field(default_factory=dict)
    incoming: set[int] = field(default_factory=set)
    unsettled: set[int] = field(default_factory=set)
    unsettled_outgoing: set[int] = field(default_factory=set)
    replays: dict[str, dict[tuple[str, int], ReplayPlace]] = field(default_factory=dict)


@dataclass(slots=True)
class StoredSession:
    epoch: int
    state: SessionState
    progress: SessionProgress


SessionRecord = tuple[bytes, bytes | None, tuple[Header, ...]]
"""Key, value and headers of a record; ``bridge.session_store.session_position`` gives its partition."""


# Keys


def session_key(client_id: str, epoch: int, kind: bytes) -> bytes:
    return b"%b\0%d\0%b" % (client_id.encode(), epoch, kind)


def parse_session_key(key: bytes | None) -> tuple[str, int, bytes]:
    """(client id, epoch, kind with packet id); raises RecordError."""
    parts = (key or b"").split(b"\0")
    if len(parts) != 3 or not parts[0] or not parts[1].isdigit() or len(parts[1]) > 19:
        raise RecordError("session: the key is not client id, epoch and kind")
    kind = parts[2]
    if kind not in (KIND_STATE, KIND_PROGRESS):
        _packet_id(kind)
    try:
        return parts[0].decode(), int(parts[1]), kind
    except UnicodeDecodeError:
        raise RecordError("session: the client id is not UTF-8") from None


def marker_key(transactional_id: str) -> bytes:
    """The key of the record that says which transaction was the last one."""
    return MARKER_PREFIX + transactional_id.encode()


# Records


def state_record(epoch: int, state: SessionState) -> SessionRecord:
    values: dict[str, Any] = {
        "v": SESSION_VERSION,
        "principal": state.principal,
        "protocol_version": state.protocol_version,
        "expiry_s": state.expiry_s,
        "connected": state.connected,
        "node_id": state.node_id,
        "incarnation": state.incarnation,
        "disconnected_ms": state.disconnected_ms,
        "will_due_ms": state.will_due_ms,
        "subscriptions": [_subscription_values(each) for each in state.subscriptions],
        "will": _will_values(state.will) if state.will is not None else None,
    }
    return session_key(state.client_id, epoch, KIND_STATE), orjson.dumps(values), ()


def progress_record(client_id: str, epoch: int, progress: SessionProgress) -> SessionRecord:
    positions: dict[str, list[tuple[int, int]]] = {}
    for (kafka_topic, partition), offset in progress.positions.items():
        positions.setdefault(kafka_topic, []).append((partition, offset))
    values = {
        "v": SESSION_VERSION,
        "positions": positions,
        "outgoing": [[packet_id, *_entry_values(entry)] for packet_id, entry in progress.outgoing.items()],
        "incoming": sorted(progress.incoming),
    }
    if progress.unsettled:
        values["unsettled"] = sorted(progress.unsettled)
    if progress.unsettled_outgoing:
        values["unsettled_outgoing"] = sorted(progress.unsettled_outgoing)
    if progress.replays:
        values["replays"] = {
            replay_filter: [(*position, place.next_offset, *place.due) for position, place in places.items()]
            for replay_filter, places in progress.replays.items()
        }
        values["replay_ends"] = {
            replay_filter: [(*position, place.until) for position, place in places.items() if place.until is not None]
            for replay_filter, places in progress.replays.items()
        }
    return session_key(client_id, epoch, KIND_PROGRESS), orjson.dumps(values), ()


def incoming_record(client_id: str, epoch: int, packet_id: int, *, is_done: bool = False) -> SessionRecord:
    """A QoS 2 PUBLISH with this packet id was stored; with ``is_done``: its PUBREL came, the packet id is free."""
    value = b'{"v":1,"done":true}' if is_done else b'{"v":1}'
    return session_key(client_id, epoch, b"%b%d" % (KIND_INCOMING, packet_id)), value, ()


def outgoing_record(
    client_id: str,
    epoch: int,
    packet_id: int,
    entry: OutgoingEntry,
    sent_to: Mapping[tuple[str, int], int] | None = None,
) -> SessionRecord:
    """What became of the PUBLISH with this packet id. "done" keeps the position: a reader learns it was sent.

    ``sent_to`` are the positions that earlier records of this packet id told, since the last ``p``: this one replaces
    them (`bridge.session_journal`).
    """
    values: dict[str, Any] = {"v": SESSION_VERSION, "entry": _entry_values(entry)}
    if sent_to:
        values["sent_to"] = [(kafka_topic, partition, offset) for (kafka_topic, partition), offset in sent_to.items()]
    value = orjson.dumps(values)
    return session_key(client_id, epoch, b"%b%d" % (KIND_OUTGOING, packet_id)), value, ()


def deletion_records(keys: Iterable[bytes]) -> list[SessionRecord]:
    """Tombstones."""
    return [(key, None, ()) for key in keys]


# Reading


def decode_state(client_id: str, data: bytes) -> SessionState:
    """Raises RecordError."""
    values = json_object(data, "session state")
    try:
        state = SessionState(
            client_id,
            _text(values["principal"]),
            _number(values["protocol_version"]),
            _number(values["expiry_s"]),
            tuple(_subscription(each) for each in values.get("subscriptions", ())),
            _will(values["will"]) if values.get("will") is not None else None,
            _flag(values.get("connected", False)),
            _text(values.get("node_id", "")),
            _text(values.get("incarnation", "")),
            _number_or_none(values.get("disconnected_ms")),
            _number_or_none(values.get("will_due_ms")),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RecordError(f"session state: {error!r}") from None
    return state


@dataclass(slots=True)
class StateOutline:
    """What a view has to know of a state record without decoding it all."""

    connected: bool
    node_id: str
    incarnation: str
    expires_ms: int | None
    will_due_ms: int | None


def outline_state(data: bytes) -> StateOutline:
    """Raises RecordError."""
    values = json_object(data, "session state")
    try:
        connected = _flag(values.get("connected", False))
        disconnected_ms = _number_or_none(values.get("disconnected_ms"))
        expires_ms = _expires_ms(connected, disconnected_ms, _number(values["expiry_s"]))
        will_due_ms = _number_or_none(values.get("will_due_ms"))
        if connected or values.get("will") is None:
            will_due_ms = None
        node_id, incarnation = _text(values.get("node_id", "")), _text(values.get("incarnation", ""))
    except (KeyError, TypeError) as error:
        raise RecordError(f"session state: {error!r}") from None
    return StateOutline(connected, node_id, incarnation, expires_ms, will_due_ms)


def decode_progress(data: bytes) -> SessionProgress:
    """Raises RecordError."""
    values = json_object(data, "session progress")
    try:
        positions = {
            (_text(kafka_topic), _number(partition)): _number(offset)
            for kafka_topic, offsets in values.get("positions", {}).items()
            for partition, offset in offsets
        }
        outgoing = {_checked_packet_id(packet_id): _entry(entry) for packet_id, *entry in values.get("outgoing", ())}
        incoming = {_checked_packet_id(packet_id) for packet_id in values.get("incoming", ())}
        unsettled = {_checked_packet_id(packet_id) for packet_id in values.get("unsettled", ())}
        unsettled_outgoing = {_checked_packet_id(packet_id) for packet_id in values.get("unsettled_outgoing", ())}
        ends = {
            (_text(replay_filter), _text(kafka_topic), _number(partition)): _number(until)
            for replay_filter, places in values.get("replay_ends", {}).items()
            for kafka_topic, partition, until in places
        }
        replays = {
            _text(replay_filter): {
                (_text(kafka_topic), _number(partition)): ReplayPlace(
                    _number(offset), tuple(map(_number, due)), ends.get((replay_filter, kafka_topic, partition))
                )
                for kafka_topic, partition, offset, *due in places
            }
            for replay_filter, places in values.get("replays", {}).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise RecordError(f"session progress: {error!r}") from None
    return SessionProgress(positions, outgoing, incoming, unsettled, unsettled_outgoing, replays)


def amend(progress: SessionProgress, kind: bytes, data: bytes) -> None:
    """Apply an ``i`` or ``o`` record to what came before it; raises RecordError."""
    packet_id = _packet_id(kind)
    values = json_object(data, "session journal")
    if kind[:1] == KIND_INCOMING:
        if values.get("done"):
            progress.incoming.discard(packet_id)
        else:
            progress.incoming.add(packet_id)
        return
    try:
        entry = _entry(values["entry"])
        sent_to = {
            (_text(kafka_topic), _number(partition)): _number(offset)
            for kafka_topic, partition, offset in values.get("sent_to", ())
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"session journal: {error!r}") from None
    if entry.state == "done":
        progress.outgoing.pop(packet_id, None)
    else:
        progress.outgoing[packet_id] = entry
    if entry.moves_position:
        sent_to[entry.kafka_topic, entry.partition] = entry.offset + 1
    for position, offset in sent_to.items():
        progress.positions[position] = max(progress.positions.get(position, 0), offset)


def _expires_ms(connected: bool, disconnected_ms: int | None, expiry_s: int) -> int | None:
    if connected or disconnected_ms is None or expiry_s >= EXPIRY_S_MAX:
        return None
    return disconnected_ms + expiry_s * 1000


def _packet_id(kind: bytes) -> int:
    digits = kind[1:]
    if kind[:1] not in (KIND_INCOMING, KIND_OUTGOING) or not digits.isdigit() or len(digits) > 5:
        raise RecordError("session: unknown kind of record")
    packet_id = int(digits)
    if not 1 <= packet_id <= PACKET_ID_MAX:
        raise RecordError("session: not a packet id")
    return packet_id


def _checked_packet_id(value: Any) -> int:
    if not 1 <= _number(value) <= PACKET_ID_MAX:
        raise ValueError("not a packet id")
    return int(value)


def _entry_values(entry: OutgoingEntry) -> list[Any]:
    values: list[Any] = [entry.kafka_topic, entry.partition, entry.offset, entry.qos, entry.state]
    if entry.topic_name is not None or entry.shared:
        values.append(entry.topic_name)
    if entry.shared:
        values.append(True)
    return values


def _entry(values: list[Any]) -> OutgoingEntry:
    kafka_topic, partition, offset, qos, state, *rest = values
    if state not in _OUTGOING_STATES:
        raise ValueError(f"unknown state {state!r}")
    topic_name = _text(rest[0]) if rest and rest[0] is not None else None
    shared = len(rest) > 1 and _flag(rest[1])
    return OutgoingEntry(
        _text(kafka_topic), _number(partition), _number(offset), _number(qos), state, topic_name, shared
    )


def _subscription(values: list[Any]) -> StoredSubscription:
    topic_filter, qos, no_local, retain_as_published, retain_handling, *rest = values
    return StoredSubscription(
        _text(topic_filter),
        _number(qos),
        _flag(no_local),
        _flag(retain_as_published),
        _number(retain_handling),
        _number_or_none(rest[0]) if rest else None,
        _text(rest[1]) if len(rest) > 1 else "",
    )


def _subscription_values(each: StoredSubscription) -> list[Any]:
    values: list[Any] = [each.topic_filter, each.qos, each.no_local, each.retain_as_published, each.retain_handling]
    if each.subscription_id is not None or each.selector:
        values.append(each.subscription_id)
    if each.selector:
        values.append(each.selector)
    return values


def _will_values(will: StoredWill) -> dict[str, Any]:
    return {
        "topic_name": will.topic_name,
        "payload": b64encode(will.payload).decode(),
        "qos": will.qos,
        "retain": will.retain,
        "delay_s": will.delay_s,
        "headers": [[name, b64encode(value).decode()] for name, value in will.headers],
    }


def _will(values: dict[str, Any]) -> StoredWill:
    return StoredWill(
        _text(values["topic_name"]),
        b64decode(values["payload"], validate=True),
        _number(values["qos"]),
        _flag(values["retain"]),
        _number(values["delay_s"]),
        tuple((_text(name), b64decode(value, validate=True)) for name, value in values["headers"]),
    )


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"a text was expected, not {value!r}")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"a number was expected, not {value!r}")
    return value


def _number_or_none(value: Any) -> int | None:
    return None if value is None else _number(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"true or false was expected, not {value!r}")
    return value
