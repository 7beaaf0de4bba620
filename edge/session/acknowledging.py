"""What a client answers to our PUBLISH and PUBREL.

An answer of the wrong kind for an identifier in flight ends the connection: it was meant for another flow, and to take
it, or to pass over it, would lose or repeat a message. Identifiers that are not in flight do no harm: an answer to
PUBLISH may be one of an earlier connection, for the identifier's message is about to be sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.session.exactly_once import Outbound
from edge.wire import ProtocolError, Puback, Pubcomp, Pubrec, Pubrel, ReasonCode

if TYPE_CHECKING:
    from edge.session.engine import SessionEngine

_RULE = "MQTT5-4.13.1-1"  # [MQTT311-4.8.0-1]


def on_puback(engine: SessionEngine, packet: Puback, now: float) -> None:
    """The client has a QoS 1 message."""
    outgoing = engine.outgoing
    if outgoing is None or outgoing.acknowledged(packet.packet_id, now, engine.wall_offset_ms):
        return
    if outgoing.flow_state(packet.packet_id) is not None:
        raise ProtocolError("PUBACK for a QoS 2 message", _RULE)


def on_pubrec(engine: SessionEngine, packet: Pubrec, now: float) -> None:
    """The client has a QoS 2 message, or refuses it: then the flow is through [MQTT5-4.3.3-4]."""
    outgoing = engine.outgoing
    if outgoing is not None and packet.packet_id in outgoing.inflight:
        raise ProtocolError("PUBREC for a QoS 1 message", _RULE)
    if packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR:
        if outgoing is not None:
            outgoing.completed(packet.packet_id, engine.wall_ms(now))
    elif outgoing is None or not outgoing.received(packet.packet_id):
        engine.send(Pubrel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))


def on_pubcomp(engine: SessionEngine, packet: Pubcomp, now: float) -> None:
    """The client is through with a QoS 2 message."""
    outgoing = engine.outgoing
    if outgoing is None:
        return
    if packet.packet_id in outgoing.inflight:
        raise ProtocolError("PUBCOMP for a QoS 1 message", _RULE)
    if outgoing.flow_state(packet.packet_id) in (Outbound.SENT, Outbound.RELEASING):
        raise ProtocolError("PUBCOMP before PUBREL", _RULE)
    outgoing.completed(packet.packet_id, engine.wall_ms(now))
