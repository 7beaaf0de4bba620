"""PUBLISH from the client: answers and their order, what is refused and how, aliases, properties, rates."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.playbook import (
    LIMITS,
    Appended,
    BackboneFull,
    Lost,
    Playbook,
    RefusedRecord,
    ServerDisconnect,
    TimePasses,
    connected,
    each_record,
)

from edge.access.limits import Limits
from edge.session.effects import AppendRecord, AppendRun, CloseConnection, PauseReading, ResumeReading
from edge.wire import Connect, Disconnect, Properties, Puback, Publish, ReasonCode, encode
from schemas.records import decode_headers

BOTH = pytest.mark.parametrize("version", [4, 5])
PLAIN = [("mqtt.topic", b"a"), ("mqtt.client_id", b"c")]


def publish(packet_id: int, topic_name: bytes = b"a", payload: bytes = b"x") -> Publish:
    return Publish(topic_name, payload, 1, packet_id=packet_id)


@BOTH
def test_qos_0_is_appended_and_never_answered(version: int) -> None:
    book = connected(version)
    for _ in range(2):  # the long way, then the short one
        book >> Publish(b"a", b"x")
        record = book.effect(AppendRecord)
        assert record.value == b"x"
        assert record.packet_id == 0
        assert list(record.headers) == [*PLAIN, ("mqtt.qos", b"0")]
        assert record.target.destination.kafka_topic == "mqtt.messages"
        book.silent()


@BOTH
def test_qos_1_is_answered_when_kafka_has_it(version: int) -> None:
    """[MQTT5-4.3.2-4] [MQTT311-4.3.2-2]"""
    book = connected(version)
    for packet_id in (1, 65_535, 1):
        book >> publish(packet_id)
        assert list(book.effect(AppendRecord).headers) == PLAIN
        book.silent()
        book >> Appended(packet_id) << Puback(packet_id)
        book.silent()


@BOTH
@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_answers_come_in_the_order_of_the_packets(version: int, order: tuple[int, ...]) -> None:
    """[MQTT5-4.6.0-2] [MQTT311-4.6.0-2], whatever partition answers first."""
    book = connected(version)
    for packet_id in (1, 2, 3):
        book >> publish(packet_id, b"abc"[packet_id - 1 : packet_id])
    answered: set[int] = set()
    out: list[int] = []
    for packet_id in order:
        book >> Appended(packet_id)
        answered.add(packet_id)
        out += [packet.packet_id for packet in book.packets() if isinstance(packet, Puback)]
        known = next((n for n in range(1, 4) if n not in answered), 4)
        assert out == list(range(1, known))


@BOTH
def test_what_comes_together_is_one_run_per_name_and_qos(version: int) -> None:
    """As many steps as there are changes of Topic Name or QoS, and the same records in the same order."""
    engine = known_names(version).engine
    sent = [publish(1), publish(2), Publish(b"a", b"q0"), Publish(b"a", b"q0"), publish(3, b"b"), publish(4)]
    engine.receive_data(b"".join(encode(each, version) for each in sent), 0.0)
    runs = [(type(effect), effect.packet_ids) for effect in engine.effects if isinstance(effect, AppendRun)]
    assert runs == [(AppendRun, [1, 2]), (AppendRun, [])]
    assert [type(effect) for effect in engine.effects] == [AppendRun, AppendRun, AppendRecord, AppendRecord]
    records = each_record(engine.effects)
    assert [(each.packet_id, each.target.destination.key, each.value) for each in records] == [
        (each.packet_id, each.topic_name_utf8, each.payload) for each in sent
    ]


packets = st.builds(
    publish, st.sampled_from([1, 2, 3, 4]), st.sampled_from([b"a", b"b", b"forbidden/x"]), st.binary(max_size=3)
) | st.builds(Publish, st.sampled_from([b"a", b"b"]), st.binary(max_size=3))


@settings(max_examples=300, deadline=None)
@given(version=st.sampled_from([4, 5]), reads=st.lists(st.lists(packets, max_size=6), max_size=5), data=st.data())
def test_a_run_is_what_its_records_are(version: int, reads: list[list[Publish]], data: st.DataObject) -> None:
    """Whatever comes in one read, whatever partition answers first and however: byte by byte (the long way, where each
    has its own outcome) the same goes to Kafka and the same is answered, in the same order."""
    short, long = known_names(version).engine, known_names(version).engine
    steps: list[AppendRun | AppendRecord] = []
    for read in reads:
        octets = b"".join(encode(each, version) for each in read)
        short.receive_data(octets, 0.0)
        for octet in octets:
            long.receive_data(bytes((octet,)), 0.0)
        assert each_record(short.effects) == long.effects
        steps += [each for each in short.effects if isinstance(each, AppendRun | AppendRecord)]
        short.effects, long.effects = [], []
    for step in data.draw(st.permutations(steps)):
        packet_ids = step.packet_ids if isinstance(step, AppendRun) else [step.packet_id] * bool(step.packet_id)
        whole = data.draw(st.booleans())
        if whole and packet_ids:
            short.records_appended(packet_ids)
        for packet_id in packet_ids:
            long.record_appended(packet_id)
            if not whole:
                short.record_appended(packet_id)
        assert b"".join(short.out) == b"".join(long.out)
        assert short.statistics() == long.statistics()
    assert short.statistics()["unacknowledged"] == 0


def known_names(version: int) -> Playbook:
    """A client whose Topic Names have been resolved, so that the short way takes them."""
    book = connected(version)
    for name in (b"a", b"b", b"forbidden/x"):
        book >> Publish(name, b"")
    book.effects()
    return book


@BOTH
def test_a_dup_is_another_message(version: int) -> None:
    """A QoS 1 receiver must treat it as new [MQTT5-4.3.2-5]: it may be one that Kafka never got."""
    book = connected(version)
    book >> publish(7) << AppendRecord
    book >> Publish(b"a", b"x", 1, dup=True, packet_id=7)
    assert book.effect(AppendRecord).packet_id == 7
    assert book.engine.incoming is not None
    assert book.engine.incoming.unacknowledged == 2


def test_a_refused_topic_name_is_told_in_version_5() -> None:
    book = connected(5)
    book >> publish(1, b"forbidden/x")
    assert book.packet(Puback).reason_code is ReasonCode.NOT_AUTHORIZED
    book >> Publish(b"forbidden/x", b"", 0)
    book.silent()
    assert book.engine.statistics()["refused"] == 2


def test_a_refused_topic_name_is_acknowledged_in_version_3() -> None:
    """[MQTT311-3.3.5-2]: a positive answer, or the end; nothing else exists."""
    book = connected(4)
    book >> publish(1, b"forbidden/x") << Puback(1)
    book.silent()


@BOTH
def test_a_refusal_waits_for_its_turn(version: int) -> None:
    book = connected(version)
    book >> publish(1) << AppendRecord
    book >> publish(2, b"forbidden/x") >> publish(3) << AppendRecord
    book.silent()
    book >> Appended(3)
    book.silent()
    book >> Appended(1)
    answers = [packet for packet in book.packets() if isinstance(packet, Puback)]
    assert [(answer.packet_id, answer.reason_code.is_error) for answer in answers] == [
        (1, False),
        (2, version == 5),
        (3, False),
    ]


def test_kafkas_refusal_is_a_negative_answer_in_version_5() -> None:
    book = connected(5)
    book >> publish(1) >> publish(2) << AppendRecord << AppendRecord
    book >> RefusedRecord(2)
    book.silent()
    book >> Appended(1) << Puback(1)
    negative = book.packet(Puback)
    assert (negative.packet_id, negative.reason_code) == (2, ReasonCode.QUOTA_EXCEEDED)
    assert negative.properties is not None
    assert negative.properties.reason_string == "too large"
    book.silent()


def test_kafkas_refusal_ends_a_client_of_version_3() -> None:
    book = connected(4)
    book >> publish(1) >> publish(2) << AppendRecord << AppendRecord
    book >> RefusedRecord(1)
    book.closed()
    book >> RefusedRecord(2)
    book.silent()


def test_no_reason_string_for_whom_wants_none() -> None:
    """[MQTT5-3.4.2-2] [MQTT5-3.1.2-29]"""
    book = connected(5, Connect(5, "c", properties=Properties(request_problem_information=False)))
    book >> publish(1) << AppendRecord
    book >> RefusedRecord(1) << Puback(1, ReasonCode.QUOTA_EXCEEDED)


def test_the_reason_string_never_makes_puback_too_large() -> None:
    """[MQTT5-3.4.2-2]"""
    book = connected(5, Connect(5, "c", keep_alive_s=9, properties=Properties(maximum_packet_size_bytes=60)))
    book >> publish(1) << AppendRecord
    book >> RefusedRecord(1, reason="x" * 100) << Puback(1, ReasonCode.QUOTA_EXCEEDED)


def test_receive_maximum_of_version_5() -> None:
    """[MQTT5-3.3.4-7] [MQTT5-3.3.4-8]: 100 unacknowledged are allowed, QoS 0 is not counted."""
    book = connected(5)
    for packet_id in range(1, 101):
        book >> publish(packet_id)
    book >> Publish(b"a", b"q0")
    assert len(book.effects()) == 101
    book >> Appended(1) << Puback(1)
    book >> publish(101) << AppendRecord
    book.silent()
    book >> publish(102)
    assert book.packet(Disconnect).reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    book.closed()


def test_receive_maximum_in_one_read() -> None:
    book = connected(5)
    book >> b"".join(encode(publish(packet_id), 5) for packet_id in range(1, 102))
    assert len(book.records) == 100
    assert book.packet(Disconnect).reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_version_3_pauses_instead() -> None:
    book = connected(4)
    for packet_id in range(1, 1_001):
        book >> publish(packet_id)
    assert len(book.effects()) == 1_000
    book >> publish(1_001)
    assert [type(effect) for effect in book.effects()] == [PauseReading, AppendRecord]
    for packet_id in range(1, 501):
        book >> Appended(packet_id)
    assert book.effects() == []
    book >> Appended(501) << ResumeReading()
    assert [packet.packet_id for packet in book.packets() if isinstance(packet, Puback)] == list(range(1, 502))


def test_qos_2_is_above_the_maximum() -> None:
    """[MQTT5-3.2.2-11]"""
    book = connected(5)
    book >> Publish(b"a", b"x", 2, packet_id=1)
    assert book.packet(Disconnect).reason_code is ReasonCode.QOS_NOT_SUPPORTED
    book.closed()
    book = connected(4)
    book >> Publish(b"a", b"x", 2, packet_id=1)
    book.closed()


@pytest.mark.parametrize("properties", [None, Properties(content_type="text/plain")])
@pytest.mark.parametrize("qos", [0, 1])
def test_retain_is_not_available(properties: Properties | None, qos: int) -> None:
    """[MQTT5-3.2.2-14]"""
    book = connected(5)
    book >> Publish(b"a", b"x", qos, True, packet_id=qos, properties=properties)
    assert book.packet(Disconnect).reason_code is ReasonCode.RETAIN_NOT_SUPPORTED
    book.closed()


def test_retain_without_the_right_is_still_refused() -> None:
    book = connected(5)
    book >> Publish(b"forbidden/a", b"x", 1, True, packet_id=1)
    codes = [packet.reason_code for packet in book.packets() if isinstance(packet, Puback | Disconnect)]
    assert codes in ([ReasonCode.NOT_AUTHORIZED], [ReasonCode.RETAIN_NOT_SUPPORTED])


def test_retain_of_version_3_is_a_header() -> None:
    """3.1.1 cannot be told: the message goes out like any other, and says that it was to be retained."""
    book = connected(4)
    book >> Publish(b"a", b"x", 1, True, packet_id=1)
    assert list(book.effect(AppendRecord).headers) == [*PLAIN, ("mqtt.retain", b"1")]


def test_topic_aliases() -> None:
    """[MQTT5-3.3.2-12]: set, used, set anew; each connection has its own."""
    book = connected(5)
    book >> Publish(b"one", b"1", properties=Properties(topic_alias=1))
    book >> Publish(b"", b"2", properties=Properties(topic_alias=1))
    book >> Publish(b"two", b"3", 1, packet_id=1, properties=Properties(topic_alias=1))
    book >> Publish(b"", b"4", 1, packet_id=2, properties=Properties(topic_alias=1, content_type="t"))
    book >> Publish(b"sixteen", b"5", properties=Properties(topic_alias=16))
    records = [effect for effect in book.effects() if isinstance(effect, AppendRecord)]
    assert [(record.target.destination.key, record.value) for record in records] == [
        (b"one", b"1"),
        (b"one", b"2"),
        (b"two", b"3"),
        (b"two", b"4"),
        (b"sixteen", b"5"),
    ]
    assert not any("alias" in name for record in records for name, _ in record.headers)
    assert ("content-type", b"t") in records[3].headers


@pytest.mark.parametrize(
    ("properties", "reason_code"),
    [
        (Properties(topic_alias=17), ReasonCode.TOPIC_ALIAS_INVALID),  # [MQTT5-3.3.2-9]
        (Properties(topic_alias=2), ReasonCode.PROTOCOL_ERROR),  # never set
    ],
)
def test_topic_aliases_that_are_wrong(properties: Properties, reason_code: ReasonCode) -> None:
    book = connected(5)
    book >> Publish(b"a" if properties.topic_alias == 17 else b"", b"x", properties=properties)
    assert book.packet(Disconnect).reason_code is reason_code
    book.closed()


def test_topic_alias_0() -> None:
    """[MQTT5-3.3.2-8]"""
    book = connected(5)
    book >> b"\x30\x08\x00\x01a\x03\x23\x00\x00x"
    assert book.packet(Disconnect).reason_code in (ReasonCode.PROTOCOL_ERROR, ReasonCode.TOPIC_ALIAS_INVALID)
    book.closed()


@BOTH
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("raw", [b"a/+", b"#", b"a\x00b", b"\xff", b"\xed\xa0\x80"])
def test_what_is_no_topic_name_ends_the_connection(version: int, raw: bytes, qos: int) -> None:
    """[MQTT5-3.3.2-2] [MQTT311-3.3.2-2] [MQTT5-1.5.4-1] [MQTT5-1.5.4-2]; nothing is appended."""
    identifier = b"\x00\x01" if qos else b""
    body = len(raw).to_bytes(2, "big") + raw + identifier + (b"\x00" if version == 5 else b"") + b"x"
    book = connected(version)
    book >> Publish(b"a", b"x") << AppendRecord
    book >> bytes((0x30 | qos << 1, len(body))) + body
    if version == 5:
        wanted = ReasonCode.TOPIC_NAME_INVALID if raw in (b"a/+", b"#") else ReasonCode.MALFORMED_PACKET
        assert book.packet(Disconnect).reason_code is wanted
    book.closed()


@pytest.mark.parametrize(("payload", "is_right"), [("é".encode(), True), (b"\xff", False), (b"", True)])
def test_payload_format_utf_8_is_checked(payload: bytes, is_right: bool) -> None:
    """MQTT 5.0 section 3.3.2.3.2: 0x99 where the payload is not what it says."""
    book = connected(5)
    book >> Publish(b"a", payload, 1, packet_id=1, properties=Properties(payload_format_indicator=1))
    if is_right:
        assert ("mqtt.payload_format", b"1") in book.effect(AppendRecord).headers
    else:
        assert book.packet(Puback).reason_code is ReasonCode.PAYLOAD_FORMAT_INVALID
    book.silent()


def test_payload_format_bytes_goes_on_unaltered() -> None:
    """[MQTT5-3.3.2-4]"""
    book = connected(5)
    book >> Publish(b"a", b"\xff", properties=Properties(payload_format_indicator=0))
    assert list(book.effect(AppendRecord).headers) == [*PLAIN, ("mqtt.qos", b"0"), ("mqtt.payload_format", b"0")]


@pytest.mark.parametrize(
    ("user_properties", "is_taken"),
    [
        ((("n", "v"),) * 32, True),
        ((("n", "v"),) * 33, False),
        ((("n" * 4_096, "v" * 4_096),), True),
        ((("n" * 4_096, "v" * 4_097),), False),
        ((("é" * 2_048, "v" * 4_097),), False),
    ],
)
def test_user_properties_are_bounded(user_properties: tuple[tuple[str, str], ...], is_taken: bool) -> None:
    book = connected(5)
    book >> Publish(b"a", b"x", 1, packet_id=1, properties=Properties(user_properties=user_properties))
    if is_taken:
        headers = book.effect(AppendRecord).headers
        assert decode_headers(headers).user_properties == user_properties  # order and repetition [MQTT5-3.3.2-18]
    else:
        assert book.packet(Puback).reason_code is ReasonCode.QUOTA_EXCEEDED
    book.silent()


def test_every_property_becomes_its_header() -> None:
    book = connected(5)
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval_s=4_294_967_295,
        content_type="text/plain",
        response_topic="answers/1",
        correlation_data=b"\x00\xff",
        user_properties=(("b", "2"), ("a", "1"), ("b", "3")),
        topic_alias=3,
    )
    book >> Publish(b"a", b"x", 1, packet_id=1, properties=properties)
    message = decode_headers(book.effect(AppendRecord).headers)
    assert message.expiry_s == 4_294_967_295
    assert message.content_type == "text/plain"
    assert message.response_topic == "answers/1"
    assert message.correlation_data == b"\x00\xff"
    assert message.payload_format == 1
    assert message.user_properties == properties.user_properties
    assert message.client_id == "c"


def test_headers_are_not_shared_between_messages_with_properties() -> None:
    book = connected(5)
    book >> Publish(b"a", b"x", properties=Properties(content_type="t"))
    book >> Publish(b"a", b"x", properties=Properties(user_properties=(("n", "v"),)))
    book >> Publish(b"a", b"x")
    headers = [list(effect.headers) for effect in book.effects() if isinstance(effect, AppendRecord)]
    assert headers[2] == [*PLAIN, ("mqtt.qos", b"0")]
    assert ("content-type", b"t") not in headers[1]


@pytest.mark.parametrize(
    "properties", [Properties(subscription_identifiers=(1,)), Properties(response_topic="a/#")], ids=["id", "wildcard"]
)
def test_properties_that_a_client_must_not_send(properties: Properties) -> None:
    """[MQTT5-3.3.4-6] [MQTT5-3.3.2-14]"""
    bodies = {
        "id": b"\x00\x01a\x02\x0b\x01x",
        "wildcard": b"\x00\x01a\x06\x08\x00\x03a/#x",
    }
    body = bodies["id" if properties.subscription_identifiers else "wildcard"]
    book = connected(5)
    book >> bytes((0x30, len(body))) + body
    assert book.packet(Disconnect).reason_code.is_error
    book.closed()


def test_many_topic_names_are_resolved_anew_not_kept_for_ever() -> None:
    book = connected(5)
    for number in range(1_000):
        book >> Publish(b"t/%d" % number, b"x")
    assert len(book.effects()) == 1_000
    assert book.engine.incoming is not None
    assert len(book.engine.incoming._targets) <= 256
    book >> Publish(b"t/0", b"x") << AppendRecord


RATES = replace(Limits(), messages_per_s=8, bytes_per_s=1_000_000)


@BOTH
def test_a_rate_pauses_reading_and_drops_nothing(version: int) -> None:
    book = connected(version, limits=RATES)
    for _ in range(8):
        book >> Publish(b"a", b"x")
    assert len(book.effects()) == 8
    book >> Publish(b"a", b"x")
    assert [type(effect) for effect in book.effects()] == [AppendRecord, PauseReading]
    book >> TimePasses(0.12)
    book.silent()
    book >> TimePasses(0.01) << ResumeReading()
    book.silent()
    book >> Publish(b"a", b"x") << AppendRecord


def test_bytes_have_a_rate_too() -> None:
    book = connected(5, limits=replace(Limits(), messages_per_s=0, bytes_per_s=1_000))
    book >> Publish(b"a", bytes(3_000)) << AppendRecord << PauseReading()
    book >> TimePasses(1.9)
    book.silent()
    book >> TimePasses(0.2) << ResumeReading()


def test_many_messages_in_one_read_are_all_counted() -> None:
    book = connected(5, limits=RATES)
    book >> encode(Publish(b"a", b"x"), 5) * 24
    effects = book.effects()
    assert [type(effect) for effect in effects] == [AppendRecord] * 24 + [PauseReading]
    book >> TimePasses(1.9)
    book.silent()
    book >> TimePasses(0.2) << ResumeReading()


@BOTH
def test_the_backbone_pauses_reading(version: int) -> None:
    book = connected(version)
    book >> BackboneFull(True) << PauseReading()
    book >> BackboneFull(True)
    book.silent()
    book >> BackboneFull(False) << ResumeReading()
    book >> BackboneFull(False)
    book.silent()


def test_two_reasons_to_pause() -> None:
    book = connected(5, limits=RATES)
    book >> encode(Publish(b"a", b"x"), 5) * 11
    assert type(book.effects()[-1]) is PauseReading
    book >> BackboneFull(True)
    book >> TimePasses(5)
    book.silent()  # the rate is over, the backbone is not
    book >> BackboneFull(False) << ResumeReading()
    book.silent()


@BOTH
@pytest.mark.parametrize("end", [Lost(), ServerDisconnect(ReasonCode.SERVER_SHUTTING_DOWN)])
def test_late_answers_of_kafka_find_a_closed_connection(version: int, end: Lost | ServerDisconnect) -> None:
    book = connected(version)
    book >> publish(1) >> publish(2)
    book.effects()
    book >> end
    ends = book.effects()
    assert [type(effect) for effect in ends] == ([] if isinstance(end, Lost) else [CloseConnection])
    book.packets()
    book >> RefusedRecord(2) >> BackboneFull(False)
    assert book.effects() == []


def test_figures() -> None:
    book = connected(5)
    assert book.engine.statistics() == {"received": 0, "refused": 0, "unacknowledged": 0}
    book >> Publish(b"a", b"x") >> publish(1) >> publish(2, b"forbidden/x")
    assert book.engine.statistics() == {"received": 3, "refused": 1, "unacknowledged": 2}


def test_the_playbook_itself_complains() -> None:
    book = Playbook(5)
    with pytest.raises(AssertionError, match="did not come"):
        book << AppendRecord
    assert LIMITS.receive_maximum_in == 100
