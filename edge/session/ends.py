"""The ends of a connection: what DISCONNECT says of the will, and who is told of a violation."""

from edge.session.connect import MQTT_5
from edge.wire import Disconnect, ProtocolViolation, ReasonCode, UnsupportedProtocolVersion


def is_normal(packet: Disconnect | None) -> bool:
    """Whether the client said goodbye without wanting its will published."""
    return packet is not None and packet.reason_code is ReasonCode.NORMAL_DISCONNECTION


def may_be_told(violation: ProtocolViolation, version: int) -> bool:
    """Whether a CONNECT that broke the rules is answered [MQTT5-3.1.4-1] or the connection just closed
    [MQTT311-3.1.4-1]; an unknown protocol level is always answered [MQTT5-3.1.2-2] [MQTT311-3.1.2-2]."""
    if isinstance(violation, UnsupportedProtocolVersion):
        return violation.protocol_level is not None
    return version == MQTT_5
