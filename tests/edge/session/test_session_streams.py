"""Any bytes: the two ways of a PUBLISH agree, chunking changes nothing, nothing is raised across the engine's edge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from corpus.packet_corpus import CORPUS
from hypothesis import given, settings
from hypothesis import strategies as st
from support.playbook import LIMITS, START_S, delivery, each_record, grant, target_of

from edge.session.connect import Capabilities
from edge.session.effects import (
    AppendRecord,
    AppendRun,
    Authenticate,
    CloseConnection,
    CloseSubscriptions,
    OpenSubscriptions,
    PublishWill,
)
from edge.session.engine import SessionEngine
from edge.session.incoming import Incoming
from edge.wire import (
    Connect,
    Disconnect,
    Framer,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Publish,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
    decode_for_client,
    encode,
)

EXAMPLES = settings(max_examples=250, deadline=None)
VERSIONS = st.sampled_from([4, 5])
NAMES = st.sampled_from([b"a", b"a/b", b"a/b/c", b"forbidden/x", b"a/+", b"\xff", "é".encode(), b""])


class LongWay(Incoming):
    """Takes no short way."""

    __slots__ = ()

    def take_plain(self, *_: Any) -> int:
        return 0


def new_engine() -> SessionEngine:
    return SessionEngine(LIMITS, Capabilities(), target_of, lambda: "assigned", START_S, 0.0)


def connected_engine(version: int) -> SessionEngine:
    engine = new_engine()
    engine.receive_data(encode(Connect(version, "c", keep_alive_s=60, will=Will("w", b"gone")), version), START_S)
    engine.accept(False, START_S)
    engine.out.clear()
    engine.effects.clear()
    return engine


def look(engine: SessionEngine) -> tuple[Any, ...]:
    """Everything that can be seen of an engine from outside, but the sentence for the log."""
    effects = each_record(engine.effects)
    effects = [CloseConnection("") if isinstance(effect, CloseConnection) else effect for effect in effects]
    return (engine.state, b"".join(engine.out), effects, engine.statistics(), engine.get_timer())


def complete(engine: SessionEngine) -> None:
    """Answer every awaited effect, in order, until none is left; deliver something in between."""
    done = 0
    while done < len(engine.effects):
        effect = engine.effects[done]
        done += 1
        if isinstance(effect, Authenticate):
            engine.accept(False, START_S)
        elif isinstance(effect, AppendRun):
            engine.records_appended(effect.packet_ids)
        elif isinstance(effect, AppendRecord) and effect.packet_id:
            engine.record_appended(effect.packet_id)
        elif isinstance(effect, OpenSubscriptions):
            codes = tuple(ReasonCode(min(each.qos, 1)) for each in effect.packet.subscriptions)
            engine.subscribed(effect.packet.packet_id, codes, START_S)
            engine.deliver(delivery(), grant(), START_S)
        elif isinstance(effect, CloseSubscriptions):
            codes = (ReasonCode.SUCCESS,) * len(effect.packet.topic_filters)
            engine.unsubscribed(effect.packet.packet_id, codes, START_S)


def check_ends(engine: SessionEngine) -> None:
    """At most one will, at most one close and nothing but what belongs to them behind it."""
    kinds = [type(effect) for effect in engine.effects]
    assert kinds.count(PublishWill) <= 1
    assert kinds.count(CloseConnection) <= 1
    if CloseConnection in kinds:
        assert kinds[-1] is CloseConnection
        assert engine.is_closed()
    framer = Framer(1 << 28)
    framer.protocol_version = engine.protocol_version
    for first_byte, body in framer.feed(b"".join(engine.out)):
        is_5 = first_byte == 0x20 and len(body) > 2  # a refusal of a CONNECT that could not be read
        decode_for_client(first_byte, body, 5 if is_5 else engine.protocol_version)  # what we say is well-formed
    assert framer.error is None
    assert framer.buffered_bytes == 0


@st.composite
def publish_frames(draw: st.DrawFn) -> tuple[int, bytes]:
    """Bodies that look like those of a PUBLISH, right or wrong in any place."""
    name = draw(NAMES)
    length = draw(st.one_of(st.just(len(name)), st.integers(0, 20)))
    identifier = draw(st.sampled_from([b"", b"\x00\x01", b"\x00\x00", b"\xff\xff", b"\x07"]))
    properties = draw(st.sampled_from([b"", b"\x00", b"\x02\x01\x01", b"\x80\x00", b"\x03\x23\x00\x01", b"\x05"]))
    body = length.to_bytes(2, "big") + name + identifier + properties + draw(st.binary(max_size=5))
    return draw(st.sampled_from([0x30, 0x32, 0x31, 0x33, 0x34, 0x3A, 0x3B, 0x38])), draw(
        st.one_of(st.just(body), st.binary(max_size=12), st.just(body[: draw(st.integers(0, len(body)))]))
    )


@EXAMPLES
@given(version=VERSIONS, frames=st.lists(publish_frames(), min_size=1, max_size=4), in_flight=st.sampled_from([0, 98]))
def test_the_short_way_is_the_long_way(version: int, frames: list[tuple[int, bytes]], in_flight: int) -> None:
    warm = b"".join(encode(Publish(name, b"w"), version) for name in (b"a", b"a/b", b"a/b/c", "é".encode()))
    window = b"".join(encode(Publish(b"a", b"x", 1, packet_id=n + 1), version) for n in range(in_flight))
    stream = b"".join(bytes((first_byte, len(body))) + body for first_byte, body in frames)
    seen = []
    for long_way in (False, True):
        engine = connected_engine(version)
        if long_way:
            engine.incoming = LongWay(engine.out, engine.resolve, LIMITS.topic_alias_maximum)
        engine.receive_data(warm + window, START_S)
        engine.receive_data(stream, START_S)
        complete(engine)
        check_ends(engine)
        seen.append(look(engine))
    assert seen[0] == seen[1]


@EXAMPLES
@given(version=VERSIONS, name=st.text(min_size=1, max_size=40), payload=st.binary(max_size=200), qos=st.integers(0, 1))
def test_the_short_way_makes_the_same_record_for_any_name(version: int, name: str, payload: bytes, qos: int) -> None:
    raw = name.encode(errors="surrogatepass")
    body = len(raw).to_bytes(2, "big") + raw + (b"\x12\x34" if qos else b"") + (b"\x00" if version == 5 else b"")
    packet = encode(Publish(b"x", payload, qos, packet_id=qos), version)[:1] + _length(body + payload) + body + payload
    engines = connected_engine(version), connected_engine(version)
    engines[1].incoming = LongWay(engines[1].out, engines[1].resolve, 16)
    for engine in engines:
        engine.receive_data(packet, START_S)
        engine.receive_data(packet, START_S)
    assert look(engines[0]) == look(engines[1])


def _length(body: bytes) -> bytes:
    size = len(body)
    return bytes((size,)) if size < 128 else bytes((size & 0x7F | 0x80, size >> 7))


PACKETS: st.SearchStrategy[Packet] = st.sampled_from(
    [
        Publish(b"a", b"x"),
        Publish(b"a", b"y" * 200, 1, packet_id=5),
        Publish(b"forbidden/x", b"", 1, packet_id=6),
        Publish(b"a", b"", 1, True, packet_id=7),
        Publish(b"a", b"z", 2, packet_id=8),
        Subscribe(3, (SubscriptionRequest("a/#", 1), SubscriptionRequest("b"))),
        Unsubscribe(4, ("a/#",)),
        Pingreq(),
        Puback(1),
        Puback(9),
        Disconnect(),
        Connect(5, "d"),
        Connect(4, "d", will=Will("w")),
    ]
)
PACKETS_5: st.SearchStrategy[Packet] = st.sampled_from(
    [
        Publish(b"a", b"x", properties=Properties(topic_alias=1)),
        Publish(b"", b"x", properties=Properties(topic_alias=1)),
        Publish(b"", b"x", properties=Properties(topic_alias=2)),
        Publish(b"a", b"\xff", 1, packet_id=9, properties=Properties(payload_format_indicator=1)),
        Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE),
        Disconnect(ReasonCode.SUCCESS, Properties(session_expiry_interval_s=5)),
    ]
)
CORPUS_BYTES = {
    version: [each.data for each in CORPUS if each.protocol_version == version and len(each.data) < 2_000]
    for version in (4, 5)
}


@st.composite
def streams(draw: st.DrawFn, version: int) -> bytes:
    """Packets, right, wrong and cut off, of the corpus and of our own, with garbage between them now and then."""
    packet = PACKETS if version == 4 else st.one_of(PACKETS, PACKETS_5)
    piece = st.one_of(
        packet.map(lambda each: encode(each, each.protocol_version if isinstance(each, Connect) else version)),
        packet.map(lambda each: encode(each, each.protocol_version if isinstance(each, Connect) else version)),
        st.sampled_from(CORPUS_BYTES[version]),
        st.binary(max_size=8),
    )
    stream = b"".join(draw(st.lists(piece, max_size=8)))
    if draw(st.booleans()):
        return stream
    return stream[: draw(st.integers(0, len(stream)))]


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[one:two] for one, two in pairwise(edges)]


@settings(max_examples=400, deadline=None)
@given(data=st.data(), version=VERSIONS, before_connect=st.booleans())
def test_chunking_changes_nothing(data: st.DataObject, version: int, before_connect: bool) -> None:
    stream = data.draw(streams(version))
    if before_connect and data.draw(st.booleans()):
        stream = encode(Connect(version, "c", will=Will("w"), keep_alive_s=60), version) + stream
    places = data.draw(st.lists(st.integers(0, 4_000), max_size=6))
    seen = []
    for chunks in ([stream], cut(stream, places), [stream[at : at + 1] for at in range(len(stream))]):
        engine = new_engine() if before_connect else connected_engine(version)
        for chunk in chunks:
            engine.receive_data(chunk, START_S)
        complete(engine)
        engine.connection_lost()
        seen.append(look(engine))
        if engine.effects and CloseConnection not in [type(effect) for effect in engine.effects]:
            assert [type(effect) for effect in engine.effects].count(PublishWill) <= 1
        else:
            check_ends(engine)
    assert seen[0] == seen[1]
    assert seen[0] == seen[2]


@pytest.mark.parametrize("version", [4, 5])
def test_every_corpus_packet_before_and_after_connect(version: int) -> None:
    for packet in CORPUS:
        for engine in (new_engine(), connected_engine(version)):
            engine.receive_data(packet.data, START_S)
            complete(engine)
            check_ends(engine)
            engine.connection_lost()
            engine.handle_timer(START_S + 10_000)


EVENTS = st.sampled_from(
    [
        *("packet", "packet", "packet", "packet", "bytes"),
        *("accept", "refuse", "append", "append", "append_last", "refuse_record"),
        *("subscribed", "deliver", "deliver", "full", "room", "stuck", "free", "timer", "disconnect", "lost"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), version=VERSIONS)
def test_no_order_of_events_raises(data: st.DataObject, version: int) -> None:
    """Random events in random order: the engine never raises, sends one will and one close at most."""
    engine = new_engine()
    now = START_S
    effects: list[Any] = []
    waiting: list[list[int]] = []
    opened: list[OpenSubscriptions | CloseSubscriptions] = []
    engine.receive_data(encode(Connect(version, "c", will=Will("w"), keep_alive_s=60), version), now)
    for kind in data.draw(st.lists(EVENTS, max_size=25)):
        match kind:
            case "packet" | "bytes":
                engine.receive_data(data.draw(streams(version)) if kind == "bytes" else _one(data, version), now)
            case "accept":
                engine.accept(False, now)
            case "refuse":
                engine.refuse(ReasonCode.NOT_AUTHORIZED, "no")
            case "append" if waiting:
                engine.records_appended(waiting.pop(0))
            case "append_last" if waiting:
                for packet_id in waiting.pop():
                    engine.record_appended(packet_id)
            case "refuse_record" if waiting:
                for packet_id in waiting.pop():
                    engine.record_refused(packet_id, ReasonCode.QUOTA_EXCEEDED, "no")
            case "subscribed" if opened:
                answer = opened.pop(0)
                if isinstance(answer, OpenSubscriptions):
                    engine.subscribed(answer.packet.packet_id, (ReasonCode.SUCCESS,), now)
                else:
                    engine.unsubscribed(answer.packet.packet_id, (ReasonCode.SUCCESS,), now)
            case "deliver":
                engine.deliver(delivery(qos=1), grant(), now)
            case "full" | "room":
                engine.backbone_full(kind == "full")
            case "stuck":
                engine.writing_paused()
            case "free":
                engine.writing_resumed(now)
            case "timer":
                due = engine.get_timer()
                now = max(now, due if due is not None else now)
                engine.handle_timer(now)
            case "disconnect":
                engine.disconnect(ReasonCode.SERVER_SHUTTING_DOWN, "bye")
            case "lost":
                engine.connection_lost()
        waiting += [[each.packet_id] for each in engine.effects if isinstance(each, AppendRecord) and each.packet_id]
        waiting += [each.packet_ids for each in engine.effects if isinstance(each, AppendRun)]
        opened += [each for each in engine.effects if isinstance(each, OpenSubscriptions | CloseSubscriptions)]
        effects += engine.effects
        engine.effects = []
        engine.statistics()
    kinds = [type(effect) for effect in effects]
    assert kinds.count(PublishWill) <= 1
    assert kinds.count(CloseConnection) <= 1
    if CloseConnection in kinds:
        behind = kinds[kinds.index(CloseConnection) + 1 :]
        assert AppendRecord not in behind
        assert AppendRun not in behind
        assert PublishWill not in behind


def _one(data: st.DataObject, version: int) -> bytes:
    packet = data.draw(PACKETS if version == 4 else st.one_of(PACKETS, PACKETS_5))
    return encode(packet, packet.protocol_version if isinstance(packet, Connect) else version)
