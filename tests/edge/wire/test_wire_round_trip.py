"""Every packet of both versions, generated: encoded and decoded it is the same value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.wire import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Framer,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
    encode,
    packet_types,
    reason_codes,
)
from edge.wire.properties import PROPERTIES, WILL, DataType, Properties, PropertySpec
from edge.wire.reason_codes import ReasonCode, ReasonCodes

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)
TOPIC_NAME = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0+#"), min_size=1, max_size=12)
TOPIC_FILTER = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0$"), min_size=1, max_size=12)
BINARY = st.binary(max_size=40)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
PACKET_ID = st.integers(1, 0xFFFF)
QOS = st.integers(0, 2)


def values_of(spec: PropertySpec, place: int) -> st.SearchStrategy[object]:
    """Give what a property may hold; None or () is its absence."""
    if spec.name == "response_topic":
        return st.none() | TOPIC_NAME
    if spec.data_type == DataType.STRING_PAIR:
        return PAIRS
    if spec.data_type == DataType.VARIABLE_BYTES:
        most = 3 if place == packet_types.PUBLISH else 1
        return st.lists(st.integers(1, 268_435_455), max_size=most).map(tuple)
    simple: dict[DataType, st.SearchStrategy[object]] = {
        DataType.FLAG: st.booleans(),
        DataType.BIT: st.integers(0, 1),
        DataType.TWO_BYTES: st.integers(int(spec.not_zero), 0xFFFF),
        DataType.FOUR_BYTES: st.integers(int(spec.not_zero), 0xFFFFFFFF),
        DataType.STRING: TEXT,
        DataType.BINARY: BINARY,
    }
    return st.none() | simple[spec.data_type]


def properties_of(place: int) -> st.SearchStrategy[Properties]:
    allowed = {spec.name: values_of(spec, place) for spec in PROPERTIES if spec.places >> place & 1}

    def mend(properties: Properties) -> Properties:
        if properties.authentication_method is None:
            properties.authentication_data = None
            if place == packet_types.AUTH:
                properties.authentication_method = "m"
        return properties

    return st.builds(Properties, **allowed).map(mend)


def some_properties(place: int) -> st.SearchStrategy[Properties | None]:
    return st.none() | properties_of(place).filter(lambda properties: properties != Properties())


def reasons(codes: ReasonCodes) -> st.SearchStrategy[ReasonCode]:
    return st.sampled_from(sorted(codes.values()))


def wills(properties: st.SearchStrategy[Properties]) -> st.SearchStrategy[Will]:
    return st.builds(Will, TOPIC_NAME, BINARY, QOS, st.booleans(), properties)


def connects(version: int) -> st.SearchStrategy[Packet]:
    is_5 = version == 5
    properties = properties_of(packet_types.CONNECT) if is_5 else st.builds(Properties)
    will = st.none() | wills(properties_of(WILL) if is_5 else st.builds(Properties))

    def mend(packet: Connect) -> Connect:
        if not is_5 and packet.user_name is None:
            packet.password = None
        return packet

    return st.builds(
        Connect,
        st.just(version),
        TEXT,
        st.booleans(),
        st.integers(0, 0xFFFF),
        will,
        st.none() | TEXT,
        st.none() | BINARY,
        properties,
    ).map(mend)


def publishes(is_5: bool) -> st.SearchStrategy[Packet]:
    def mend(packet: Publish) -> Publish:
        if packet.qos == 0:
            packet.dup, packet.packet_id = False, 0
        return packet

    return st.builds(
        Publish,
        TOPIC_NAME.map(str.encode),
        st.binary(max_size=300),
        QOS,
        st.booleans(),
        st.booleans(),
        PACKET_ID,
        some_properties(packet_types.PUBLISH) if is_5 else st.none(),
    ).map(mend)


REQUESTS_5 = st.builds(SubscriptionRequest, TOPIC_FILTER, QOS, st.booleans(), st.booleans(), st.integers(0, 2))
REQUESTS_311 = st.builds(SubscriptionRequest, TOPIC_FILTER, QOS)


def several(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, min_size=1, max_size=4).map(tuple)


PACKETS_5 = st.one_of(
    connects(5),
    st.builds(Connack, st.just(True), st.just(ReasonCode.SUCCESS), properties_of(packet_types.CONNACK)),
    st.builds(Connack, st.just(False), reasons(reason_codes.CONNACK_CODES), properties_of(packet_types.CONNACK)),
    publishes(True),
    st.builds(Puback, PACKET_ID, reasons(reason_codes.PUBACK_CODES), some_properties(packet_types.PUBACK)),
    st.builds(Pubrec, PACKET_ID, reasons(reason_codes.PUBACK_CODES), some_properties(packet_types.PUBREC)),
    st.builds(Pubrel, PACKET_ID, reasons(reason_codes.PUBREL_CODES), some_properties(packet_types.PUBREL)),
    st.builds(Pubcomp, PACKET_ID, reasons(reason_codes.PUBREL_CODES), some_properties(packet_types.PUBCOMP)),
    st.builds(Subscribe, PACKET_ID, several(REQUESTS_5), some_properties(packet_types.SUBSCRIBE)),
    st.builds(Suback, PACKET_ID, several(reasons(reason_codes.SUBACK_CODES)), some_properties(packet_types.SUBACK)),
    st.builds(Unsubscribe, PACKET_ID, several(TOPIC_FILTER), some_properties(packet_types.UNSUBSCRIBE)),
    st.builds(
        Unsuback, PACKET_ID, several(reasons(reason_codes.UNSUBACK_CODES)), some_properties(packet_types.UNSUBACK)
    ),
    st.builds(Pingreq),
    st.builds(Pingresp),
    st.builds(Disconnect, reasons(reason_codes.DISCONNECT_CODES), some_properties(packet_types.DISCONNECT)),
    st.builds(Auth, reasons(reason_codes.AUTH_CODES), properties_of(packet_types.AUTH)),
)

RETURN_CODES = st.sampled_from([0x84, 0x85, 0x86, 0x87, 0x88]).map(ReasonCode)
PACKETS_311 = st.one_of(
    connects(3),
    connects(4),
    st.builds(Connack, st.booleans()),
    st.builds(Connack, st.just(False), RETURN_CODES),
    publishes(False),
    st.builds(Puback, PACKET_ID),
    st.builds(Pubrec, PACKET_ID),
    st.builds(Pubrel, PACKET_ID),
    st.builds(Pubcomp, PACKET_ID),
    st.builds(Subscribe, PACKET_ID, several(REQUESTS_311)),
    st.builds(Suback, PACKET_ID, several(reasons(reason_codes.SUBACK_CODES_311))),
    st.builds(Unsubscribe, PACKET_ID, several(TOPIC_FILTER)),
    st.builds(Unsuback, PACKET_ID),
    st.builds(Pingreq),
    st.builds(Pingresp),
    st.builds(Disconnect),
)


def there_and_back(packet: Packet, version: int) -> Packet:
    encoded = encode(packet, version)
    [(first_byte, body)] = Framer(1_000_000, version).feed(encoded)
    assert first_byte >> 4 == packet.packet_type
    return decode(first_byte, body, version)


@given(PACKETS_5)
def test_every_packet_of_5_comes_back(packet: Packet) -> None:
    assert there_and_back(packet, 5) == packet


@given(PACKETS_311)
def test_every_packet_of_311_comes_back(packet: Packet) -> None:
    assert there_and_back(packet, 4) == packet


@given(st.lists(PACKETS_5, min_size=1, max_size=5), st.data())
def test_any_chunking_gives_the_same_frames(packets: list[Packet], data: st.DataObject) -> None:
    stream = b"".join(encode(packet, 5) for packet in packets)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    framer = Framer(1_000_000, 5)
    frames = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames += framer.feed(stream[start:stop])
    assert framer.error is None
    assert framer.buffered_bytes == 0
    assert [decode(first_byte, body, 5) for first_byte, body in frames] == packets
