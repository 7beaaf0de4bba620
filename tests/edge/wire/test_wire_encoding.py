"""The encoder's own rules: fan-out helpers, Maximum Packet Size, and values that no packet can carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.wire import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unencodable,
    Unsuback,
    Unsubscribe,
    Will,
    connack_return_code,
    encode,
    encode_publish_properties,
    encode_within,
    prepare_publish,
    puback,
    pubcomp,
    publish_head,
    publish_tail,
    pubrec,
    pubrel,
    variable_bytes,
)

USER_PROPERTIES = (("name", "value" * 20),)
PROPERTIES = Properties(reason_string="because" * 5, user_properties=USER_PROPERTIES)


@pytest.mark.parametrize("version", [3, 4, 5])
@given(packet_id=st.integers(1, 0xFFFF))
def test_short_acknowledgements_equal_the_encoder(version: int, packet_id: int) -> None:
    assert puback(packet_id) == encode(Puback(packet_id), version)
    assert pubrec(packet_id) == encode(Pubrec(packet_id), version)
    assert pubrel(packet_id) == encode(Pubrel(packet_id), version)
    assert pubcomp(packet_id) == encode(Pubcomp(packet_id), version)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 100, 200, 20_000])
def test_a_prepared_publish_equals_the_encoder(version: int, qos: int, size: int) -> None:
    properties = Properties(content_type="text/plain", subscription_identifiers=(1, 300), message_expiry_interval_s=9)
    properties_bytes = encode_publish_properties(
        content_type="text/plain", subscription_identifiers=(1, 300), message_expiry_interval_s=9
    )
    packet = Publish(b"a/b", bytes(size), qos, True, False, 777 if qos else 0, properties)
    prepared = prepare_publish(b"a/b", bytes(size), qos, True, properties_bytes, version)
    encoded = prepared.with_packet_id(777)
    assert encoded == encode(packet, version)
    assert len(encoded) == prepared.packet_bytes
    packet.dup = qos > 0
    assert prepared.again_with_packet_id(777) == encode(packet, version)


def test_head_and_tail_leave_a_gap_of_two_bytes() -> None:
    head = publish_head(b"a", 2, 1, False, False, b"", 5)
    assert head + b"\x00\x07" + publish_tail(b"hi", b"", 5) == encode(Publish(b"a", b"hi", 1, packet_id=7), 5)
    assert encode_publish_properties() == b"\0"


@given(st.integers(0, 268_435_455))
def test_variable_bytes_are_as_short_as_can_be(value: int) -> None:
    encoded = variable_bytes(value)
    assert sum((byte & 0x7F) << 7 * index for index, byte in enumerate(encoded)) == value
    assert len(encoded) == (1 if value < 1 << 7 else 2 if value < 1 << 14 else 3 if value < 1 << 21 else 4)


ANSWERS: list[Packet] = [
    Connack(False, ReasonCode.NOT_AUTHORIZED, PROPERTIES),
    Puback(1, ReasonCode.NOT_AUTHORIZED, PROPERTIES),
    Pubrec(1, ReasonCode.NOT_AUTHORIZED, PROPERTIES),
    Pubrel(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND, PROPERTIES),
    Pubcomp(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND, PROPERTIES),
    Suback(1, (ReasonCode.NOT_AUTHORIZED,), PROPERTIES),
    Unsuback(1, (ReasonCode.NOT_AUTHORIZED,), PROPERTIES),
    Disconnect(ReasonCode.NOT_AUTHORIZED, PROPERTIES),
    Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(authentication_method="m", user_properties=USER_PROPERTIES)),
]


@pytest.mark.parametrize("packet", ANSWERS, ids=lambda packet: type(packet).__name__)
def test_a_too_large_answer_loses_user_properties_then_the_reason_string(packet: Packet) -> None:
    whole = encode(packet, 5)
    assert encode_within(packet, 5, None) == whole
    assert encode_within(packet, 5, len(whole)) == whole
    without_user = encode_within(packet, 5, len(whole) - 1)
    assert without_user is not None
    assert b"value" not in without_user
    assert (b"because" in without_user) is (b"because" in whole)
    shortest = encode_within(packet, 5, len(without_user) - 1)
    if b"because" in whole:
        assert shortest is not None
        assert b"because" not in shortest
    assert encode_within(packet, 5, 1) is None


@pytest.mark.parametrize("packet", ANSWERS, ids=lambda packet: type(packet).__name__)
def test_a_client_may_ask_for_no_problem_information(packet: Packet) -> None:
    encoded = encode_within(packet, 5, None, problem_information=False)
    assert encoded is not None
    assert (b"value" in encoded) is isinstance(packet, Connack | Disconnect)


def test_a_too_large_publish_keeps_its_user_properties_and_is_not_sent() -> None:
    packet = Publish(b"a", b"hi", properties=Properties(user_properties=USER_PROPERTIES))
    size = len(encode(packet, 5))
    assert encode_within(packet, 5, size, problem_information=False) == encode(packet, 5)
    assert encode_within(packet, 5, size - 1) is None


WRONG: list[tuple[Packet, int]] = [
    (Publish(b"a", qos=1), 4),
    (Publish(b"a", qos=3, packet_id=1), 4),
    (Publish(b"a", dup=True), 4),
    (Publish(b""), 5),
    (Publish(b"", properties=Properties(topic_alias=1)), 4),
    (Publish(b"a/#"), 5),
    (Publish(b"\xff"), 5),
    (Publish(b"x" * 65_536), 5),
    (Publish(b"a", properties=Properties(reason_string="no")), 5),
    (Publish(b"a", properties=Properties(topic_alias=0)), 5),
    (Publish(b"a", properties=Properties(topic_alias=65_536)), 5),
    (Publish(b"a", properties=Properties(subscription_identifiers=(0,))), 5),
    (Publish(b"a", properties=Properties(content_type="\ud800")), 5),
    (Publish(b"a", properties=Properties(user_properties=(("a", "\0"),))), 5),
    (Puback(0), 4),
    (Puback(65_536), 4),
    (Puback(1, ReasonCode.SESSION_TAKEN_OVER), 5),
    (Connect(6), 5),
    (Connect(4, password=b"x"), 4),
    (Connect(4, "x" * 65_536), 4),
    (Connect(4, keep_alive_s=65_536), 4),
    (Connect(5, will=Will("a/+")), 5),
    (Connect(5, will=Will("a", qos=3)), 5),
    (Connect(5, properties=Properties(receive_maximum=0)), 5),
    (Connack(True, ReasonCode.NOT_AUTHORIZED), 5),
    (Connack(False, ReasonCode.MALFORMED_PACKET), 4),
    (Connack(False, ReasonCode.KEEP_ALIVE_TIMEOUT), 5),
    (Connack(properties=Properties(maximum_qos=2)), 5),
    (Subscribe(1, ()), 5),
    (Subscribe(1, (SubscriptionRequest(""),)), 4),
    (Subscribe(1, (SubscriptionRequest("a", 3),)), 4),
    (Subscribe(1, (SubscriptionRequest("$share/g/a", no_local=True),)), 5),
    (Subscribe(1, (SubscriptionRequest("a"),), Properties(subscription_identifiers=(1, 2))), 5),
    (Suback(1, ()), 4),
    (Suback(1, (ReasonCode.NO_SUBSCRIPTION_EXISTED,)), 5),
    (Unsubscribe(1, ()), 4),
    (Unsuback(1, ()), 5),
    (Disconnect(ReasonCode.GRANTED_QOS_1), 5),
    (Auth(ReasonCode.GRANTED_QOS_1), 5),
    (Auth(), 4),
]


@pytest.mark.parametrize(("packet", "version"), WRONG, ids=lambda value: repr(value)[:60])
def test_what_no_packet_can_carry_is_unencodable(packet: Packet, version: int) -> None:
    with pytest.raises(Unencodable):
        encode(packet, version)


def test_properties_and_reasons_vanish_in_311() -> None:
    assert encode(Puback(1, ReasonCode.NOT_AUTHORIZED, PROPERTIES), 4) == b"\x40\x02\x00\x01"
    assert encode(Suback(1, (ReasonCode.QUOTA_EXCEEDED,), PROPERTIES), 4) == b"\x90\x03\x00\x01\x80"
    assert encode(Disconnect(ReasonCode.SERVER_BUSY, PROPERTIES), 4) == b"\xe0\x00"


def test_every_refusal_is_mapped_to_a_return_code_or_to_none() -> None:
    assert {connack_return_code(code) for code in ReasonCode} == {None, 0, 1, 2, 3, 4, 5}
    assert connack_return_code(ReasonCode.BANNED) == 5
    assert connack_return_code(ReasonCode.MALFORMED_PACKET) is None
