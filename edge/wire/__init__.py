"""The MQTT codec, 3.1, 3.1.1 and 5.0: bytes -> frames -> packets and back. Pure: no I/O, no clock, no amqtt.

    Framer.feed(bytes) -> [(first_byte, body)]  ->  decode_for_server(first_byte, body, version) -> packet
    packet -> encode(packet, version) -> bytes;  fan-out: prepare_publish(...).with_packet_id(packet_id) -> bytes

What a peer may do wrong ends in a ``ProtocolViolation``, what we may do wrong in an ``Unencodable``; nothing else
comes out.
"""

from __future__ import annotations

from edge.wire.decode_publish import (
    check_topic_name,
    check_topic_name_utf8,
    decode_publish,
)
from edge.wire.decoding import (
    decode,
    decode_for_client,
    decode_for_server,
)
from edge.wire.encode_publish import (
    PreparedPublish,
    encode_publish_properties,
    prepare_publish,
    puback,
    pubcomp,
    publish_head,
    publish_tail,
    pubrec,
    pubrel,
)
from edge.wire.encoding import (
    encode,
    encode_within,
)
from edge.wire.errors import (
    MalformedPacket,
    PacketTooLarge,
    ProtocolError,
    ProtocolViolation,
    QuotaExceeded,
    TopicFilterInvalid,
    TopicNameInvalid,
    Unencodable,
    UnsupportedProtocolVersion,
)
from edge.wire.framing import (
    Frame,
    Framer,
)
from edge.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
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
)
from edge.wire.properties import Properties
from edge.wire.reason_codes import (
    ReasonCode,
    connack_return_code,
    reason_code_from_return_code,
)
from edge.wire.writer import (
    packet_id_bytes,
    variable_bytes,
)

__all__ = [
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Frame",
    "Framer",
    "MalformedPacket",
    "Packet",
    "PacketTooLarge",
    "Pingreq",
    "Pingresp",
    "PreparedPublish",
    "Properties",
    "ProtocolError",
    "ProtocolViolation",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "QuotaExceeded",
    "ReasonCode",
    "Suback",
    "Subscribe",
    "SubscriptionRequest",
    "TopicFilterInvalid",
    "TopicNameInvalid",
    "Unencodable",
    "Unsuback",
    "Unsubscribe",
    "UnsupportedProtocolVersion",
    "Will",
    "check_topic_name",
    "check_topic_name_utf8",
    "connack_return_code",
    "decode",
    "decode_for_client",
    "decode_for_server",
    "decode_publish",
    "encode",
    "encode_publish_properties",
    "encode_within",
    "packet_id_bytes",
    "prepare_publish",
    "puback",
    "pubcomp",
    "publish_head",
    "publish_tail",
    "pubrec",
    "pubrel",
    "reason_code_from_return_code",
    "variable_bytes",
]
