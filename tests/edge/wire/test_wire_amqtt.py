"""amqtt as the second opinion on 3.1.1: its packet types, and its own classes on our bytes and we on its."""

from __future__ import annotations

from typing import Any

import amqtt.mqtt.packet as amqtt_packet
import pytest
from amqtt.adapters import BufferReader
from amqtt.mqtt import packet_class
from amqtt.mqtt.connack import ConnackPacket
from amqtt.mqtt.connect import ConnectPacket
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.suback import SubackPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket
from corpus.packet_corpus import CORPUS, CorpusPacket

from edge.wire import Framer, Packet, decode, packet_types
from edge.wire.packets import Connack, Connect, Publish, Suback, Subscribe, Unsubscribe

# What amqtt 0.12.1 reads otherwise, and why we do not follow it.
NOT_AMQTTS = {
    "CONNECT, empty client id (3.1.1)": "it invents an identifier while decoding; here the session does",
    "CONNECT with user name and password (3.1.1)": "it takes a password for text; the standard says bytes",
}
VALID_311 = [
    case for case in CORPUS if case.protocol_version == 4 and case.is_canonical and case.name not in NOT_AMQTTS
]


def test_the_differences_are_still_in_the_corpus() -> None:
    assert set(NOT_AMQTTS) < {case.name for case in CORPUS}


def test_packet_types_are_amqtts() -> None:
    for name in packet_types.NAMES[1:15]:
        assert getattr(packet_types, name) == getattr(amqtt_packet, name)
    assert packet_types.AUTH == amqtt_packet.RESERVED_15


async def amqtt_decode(data: bytes) -> Any:
    reader = BufferReader(data)
    fixed_header = await MQTTFixedHeader.from_stream(reader)
    assert fixed_header is not None
    return await packet_class(fixed_header).from_stream(reader, fixed_header=fixed_header)


def in_our_words(theirs: Any) -> dict[str, Any]:
    """Give the values of amqtt's packet under our names."""
    match theirs:
        case ConnectPacket():
            return {
                "client_id": theirs.client_id,
                "clean_start": theirs.clean_session_flag,
                "keep_alive_s": theirs.keep_alive,
                "user_name": theirs.username if theirs.username_flag else None,
                "protocol_version": theirs.proto_level,
            }
        case ConnackPacket():
            return {"session_present": bool(theirs.session_parent)}
        case PublishPacket():
            return {
                "topic_name_utf8": theirs.topic_name.encode(),
                "payload": bytes(theirs.data or b""),
                "qos": theirs.qos,
                "retain": theirs.retain_flag,
                "dup": theirs.dup_flag,
                "packet_id": theirs.packet_id or 0,
            }
        case SubscribePacket():
            return {"packet_id": theirs.variable_header.packet_id, "subscriptions": theirs.payload.topics}
        case SubackPacket():
            return {"packet_id": theirs.variable_header.packet_id, "reason_codes": tuple(theirs.payload.return_codes)}
        case UnsubscribePacket():
            return {"packet_id": theirs.variable_header.packet_id, "topic_filters": tuple(theirs.payload.topics)}
    return {} if theirs.variable_header is None else {"packet_id": theirs.variable_header.packet_id}


def ours_in_the_same_words(packet: Packet, names: dict[str, Any]) -> dict[str, Any]:
    values = {name: getattr(packet, name) for name in names}
    if isinstance(packet, Subscribe):
        values["subscriptions"] = [(request.topic_filter, request.qos) for request in packet.subscriptions]
    return values


@pytest.mark.parametrize("case", VALID_311, ids=lambda case: case.name)
async def test_amqtt_reads_our_bytes_as_the_same_values(case: CorpusPacket) -> None:
    theirs = in_our_words(await amqtt_decode(case.data))
    assert case.expected is not None
    if isinstance(case.expected, Connect | Connack | Publish | Subscribe | Suback | Unsubscribe):
        assert theirs
    assert theirs == ours_in_the_same_words(case.expected, theirs)


@pytest.mark.parametrize("case", VALID_311, ids=lambda case: case.name)
async def test_we_read_amqtts_bytes_as_the_same_values(case: CorpusPacket) -> None:
    theirs = await amqtt_decode(case.data)
    [(first_byte, body)] = Framer(100_000, 4).feed(bytes(theirs.to_bytes()))
    assert decode(first_byte, body, 4) == case.expected
