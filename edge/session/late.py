"""Messages that a client has missed, read from the log again: in order with what it was left in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.delivery import Delivery
from bridge.subscriptions import Grant
from edge.session.transitions import ConnectionState

if TYPE_CHECKING:
    from edge.session.engine import SessionEngine


def deliver_late(engine: SessionEngine, delivery: Delivery, grant: Grant, now: float) -> bool:
    """A message that was missed and read from the log again; False: no room. Half the buffer is left to what comes
    live."""
    outgoing = engine.outgoing
    if outgoing is None or engine.state is not ConnectionState.CONNECTED:
        return False
    resuming = outgoing.resuming
    position = (delivery.kafka_topic, delivery.partition)
    if resuming is not None and resuming.is_before(position, delivery.offset):
        entry = resuming.entry(position, delivery.offset)
        if entry is None:
            return True  # acknowledged on an earlier connection
        if not outgoing.has_room:
            return False
        retain = delivery.retain and grant.retain_as_published
        outgoing.resend(delivery, entry, retain, grant.subscription_ids, engine.wall_ms(now))
        return True
    if resuming is not None and resuming.packet_ids:
        has_room = outgoing.has_room  # what is sent again needs an empty buffer, and would else never see one
    else:
        has_room = outgoing.has_room_for(len(delivery.payload), share=2)
    if not has_room:
        return False
    engine.deliver(delivery, grant, now)
    return True
