"""The ends of a connection: DISCONNECT and what it says of will and session, and who is told of a violation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.session.connect import MQTT_5
from edge.session.transitions import ConnectionEvent, next_state
from edge.wire import Disconnect, ProtocolError, ProtocolViolation, ReasonCode, UnsupportedProtocolVersion

if TYPE_CHECKING:
    from edge.session.engine import SessionEngine


def is_normal(packet: Disconnect | None) -> bool:
    """Whether the client said goodbye without wanting its will published."""
    return packet is not None and packet.reason_code is ReasonCode.NORMAL_DISCONNECTION


def may_be_told(violation: ProtocolViolation, version: int) -> bool:
    """Whether a CONNECT that broke the rules is answered [MQTT5-3.1.4-1] or the connection just closed
    [MQTT311-3.1.4-1]; an unknown protocol level is always answered [MQTT5-3.1.2-2] [MQTT311-3.1.2-2]."""
    if isinstance(violation, UnsupportedProtocolVersion):
        return violation.protocol_level is not None
    return version == MQTT_5


def on_disconnect(engine: SessionEngine, packet: Disconnect) -> None:
    """The client says goodbye."""
    if not take_session_expiry(engine, packet):
        raise ProtocolError("Session Expiry Interval was 0 in CONNECT and must stay 0", "MQTT5 §3.14.2.2.2")
    engine.state = next_state(engine.state, ConnectionEvent.DISCONNECT_RECEIVED)
    if not is_normal(packet):  # [MQTT5-3.14.4-3] [MQTT311-3.14.4-3]
        engine.publish_will()
    engine.close("DISCONNECT")


def take_session_expiry(engine: SessionEngine, packet: Disconnect) -> bool:
    """What DISCONNECT says of it, if anything; False: it may not be said."""
    assert engine.negotiated is not None
    expiry_s = packet.properties.session_expiry_interval_s if packet.properties is not None else None
    if expiry_s and not engine.negotiated.session_expiry_requested_s:
        return False
    if expiry_s is not None:
        engine.session_expiry_s = min(expiry_s, engine.capabilities.session_expiry_s_max)
    return True
