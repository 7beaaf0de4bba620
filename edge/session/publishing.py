"""PUBLISH and PUBREL of the client, the long way: what is appended, refused, answered again, or a violation.

Functions over a `SessionEngine`, whose `incoming` (answers of QoS 1) and `flows` (QoS 2) are made here at first need.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edge.session.connect import MQTT_5
from edge.session.effects import AppendExactlyOnce, AppendRetained, CheckedTarget, ForgetReceived, PublishTarget
from edge.session.errors import QosNotSupported, ReceiveMaximumExceeded, RetainNotSupported
from edge.session.exactly_once import IncomingFlows
from edge.session.incoming import Incoming
from edge.session.publish_headers import record_headers
from edge.session.reading import UNACKNOWLEDGED, UNACKNOWLEDGED_MAX_3
from edge.session.transitions import ConnectionState
from edge.wire import (
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    encode,
    encode_within,
    puback,
)

if TYPE_CHECKING:
    from edge.session.engine import SessionEngine


def on_publish(engine: SessionEngine, packet: Publish) -> None:
    """One PUBLISH of whatever form; raises ProtocolViolation."""
    incoming = engine.incoming
    if incoming is None:
        incoming = engine.incoming = Incoming(engine.out, engine.resolve, engine.limits.topic_alias_maximum)
    incoming.received += 1
    qos = packet.qos
    if qos > engine.capabilities.qos_max:
        raise QosNotSupported(f"QoS {qos} is above the Maximum QoS", "MQTT5-3.2.2-11")
    if qos and unacknowledged(engine) >= engine.limits.receive_maximum_in:
        _too_many_unacknowledged(engine, packet)
    target = incoming.target(packet)
    if isinstance(target, CheckedTarget):
        target = target.of(packet.payload)
    if qos == 2:
        _on_publish_exactly_once(engine, packet, target)
    elif isinstance(target, ReasonCode):
        _refuse_publish(engine, incoming, packet, target)
    elif packet.retain or packet.properties is not None:
        _check_retain(engine, packet)
        headers = record_headers(packet, target, engine.limits)
        if isinstance(headers, ReasonCode):
            _refuse_publish(engine, incoming, packet, headers)
        else:
            record = incoming.append(packet, target, headers)
            retains = packet.retain and engine.capabilities.retain_available and target.retains
            engine.effects.append(AppendRetained(*record) if retains else record)
    else:
        engine.effects.append(incoming.append(packet, target, target.headers[qos]))


def _on_publish_exactly_once(engine: SessionEngine, packet: Publish, target: PublishTarget | ReasonCode) -> None:
    flows = flows_of(engine)
    if flows.is_known(packet.packet_id):
        return
    _check_retain(engine, packet)
    flows.begin(packet.packet_id)
    headers = target if isinstance(target, ReasonCode) else record_headers(packet, target, engine.limits)
    if isinstance(target, ReasonCode) or isinstance(headers, ReasonCode):
        assert engine.incoming is not None
        assert isinstance(headers, ReasonCode)
        engine.incoming.refused += 1
        flows.refused(packet.packet_id, headers, "")
        return
    retains = packet.retain and engine.capabilities.retain_available and target.retains
    engine.effects.append(AppendExactlyOnce(packet.packet_id, target, packet.payload, headers, retains))


def _check_retain(engine: SessionEngine, packet: Publish) -> None:
    if packet.retain and not engine.capabilities.retain_available and engine.protocol_version == MQTT_5:
        raise RetainNotSupported("Retain Available is 0", "MQTT5-3.2.2-14")


def on_pubrel(engine: SessionEngine, packet: Pubrel) -> None:
    """The client is through with a QoS 2 message: PUBCOMP, once that is stored."""
    packet_id, flows = packet.packet_id, engine.flows
    if flows is not None and flows.release(packet_id):
        if engine.is_durable:
            engine.effects.append(ForgetReceived(packet_id))
        else:
            flows.forgotten(packet_id)
    elif flows is None or not flows.is_under_way(packet_id):
        # nobody knows the identifier any more: the flow is through [MQTT5-4.3.3-11]
        engine.send(Pubcomp(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))


def release_early(engine: SessionEngine, flows: IncomingFlows) -> None:
    """PUBRECs went out whose PUBRELs had come before."""
    if engine.state is ConnectionState.CONNECTED:
        for packet_id in flows.take_early():
            on_pubrel(engine, Pubrel(packet_id))


def flows_of(engine: SessionEngine, received: frozenset[int] = frozenset()) -> IncomingFlows:
    """The QoS 2 flows of the client; `received` are those that an earlier connection has left."""
    if engine.flows is None:
        is_5 = engine.protocol_version == MQTT_5
        engine.flows = IncomingFlows(engine.out, partial(negative_pubrec, engine) if is_5 else None, received)
    return engine.flows


def unacknowledged(engine: SessionEngine) -> int:
    """PUBLISH packets that count to our Receive Maximum [MQTT5-4.9.0-1]."""
    incoming, flows = engine.incoming, engine.flows
    return (incoming.unacknowledged if incoming is not None else 0) + (flows.begun if flows is not None else 0)


def _too_many_unacknowledged(engine: SessionEngine, packet: Publish) -> None:
    flows = engine.flows
    if engine.protocol_version == MQTT_5:
        if packet.qos == 2 and flows is not None and flows.is_under_way(packet.packet_id):
            return  # sent again: counted already
        raise ReceiveMaximumExceeded(
            f"more than {engine.limits.receive_maximum_in} unacknowledged PUBLISH packets", "MQTT5-3.3.4-7"
        )
    # what waits for its PUBREL does not count: it would never come if we did not read
    waiting = engine.incoming.unacknowledged if engine.incoming is not None else 0
    if waiting + (flows.pending if flows is not None else 0) >= UNACKNOWLEDGED_MAX_3:
        engine.pause(UNACKNOWLEDGED)


def _refuse_publish(engine: SessionEngine, incoming: Incoming, packet: Publish, reason_code: ReasonCode) -> None:
    """A definite refusal: 5.0 hears it in PUBACK; 3.1.1 gets a normal PUBACK [MQTT311-3.3.5-2]."""
    if not packet.qos:
        incoming.refuse(packet, None)
    elif engine.protocol_version == MQTT_5:
        incoming.refuse(packet, negative_puback(engine, packet.packet_id, reason_code, ""))
    else:
        incoming.refuse(packet, puback(packet.packet_id))


def negative_puback(engine: SessionEngine, packet_id: int, reason_code: ReasonCode, reason: str) -> bytes:
    """PUBACK that refuses, with the reason when the client wants to hear it."""
    return _negative(engine, Puback(packet_id, reason_code), reason)


def negative_pubrec(engine: SessionEngine, packet_id: int, reason_code: ReasonCode, reason: str) -> bytes:
    """PUBREC that refuses, with the reason when the client wants to hear it."""
    return _negative(engine, Pubrec(packet_id, reason_code), reason)


def _negative(engine: SessionEngine, packet: Puback | Pubrec, reason: str) -> bytes:
    negotiated = engine.negotiated
    assert negotiated is not None
    if reason and negotiated.problem_information:
        packet.properties = Properties(reason_string=reason)
    encoded = encode_within(packet, MQTT_5, negotiated.packet_bytes_max)  # [MQTT5-3.4.2-2] [MQTT5-3.5.2-2]
    packet.properties = None
    return encoded if encoded is not None else encode(packet, MQTT_5)
