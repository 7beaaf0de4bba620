"""The delivery ledger's way to `headwater.events`: `delivered` and `acknowledged` of sampled messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.session.ledger import Ledger

if TYPE_CHECKING:
    from bridge.delivery import Delivery
    from edge.handler.protocol import EdgeProtocolHandler


def ledger_of(handler: EdgeProtocolHandler) -> Ledger:
    """What the handler's engine notes deliveries with."""

    def note(kind: str, delivery: Delivery, qos: int, dup: bool) -> None:
        handler.services.event(
            kind,
            handler.client_id,
            kafka_topic=delivery.kafka_topic,
            partition=delivery.partition,
            offset=delivery.offset,
            published_ms=delivery.timestamp_ms,
            qos=qos,
            dup=dup,
        )

    return Ledger(handler.services.ledger_below, note)
