"""The delivery ledger: what became of sampled messages on their way to one client.

It is a subclass, so that without it nothing is asked and nothing costs: `SessionEngine` makes the one or the other
when the client first subscribes. Only deliveries of ordinary subscriptions are noted: retained ones, replays and shared
ones say nothing about the way from publish to subscriber.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.delivery import Delivery
from bridge.subscriptions import Grant
from edge.session.outgoing import Outgoing
from schemas.sampling import is_sampled

DELIVERED, ACKNOWLEDGED = "delivered", "acknowledged"
Note = Callable[[str, Delivery, int, bool], None]
"""Called with DELIVERED or ACKNOWLEDGED, the delivery, its QoS, and whether it was sent with DUP."""


class Ledger:
    """Which deliveries are noted, and by whom."""

    __slots__ = ("_below", "note")

    def __init__(self, below: int, note: Note) -> None:
        self._below = below
        self.note = note

    def takes(self, delivery: Delivery) -> bool:
        """Whether it is an ordinary delivery of a sampled message."""
        return delivery.__class__ is Delivery and is_sampled(
            delivery.kafka_topic, delivery.partition, delivery.offset, self._below
        )


class LedgerOutgoing(Outgoing):
    """`Outgoing` that notes what it sends and what is acknowledged."""

    __slots__ = ("_ledger", "_noted")

    def __init__(self, ledger: Ledger, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ledger = ledger
        self._noted: dict[int, tuple[Delivery, int]] = {}  # sampled ones in flight, and their QoS

    def take_live(self, delivery: Delivery, grant: Grant) -> bool:
        taken = super().take_live(delivery, grant)
        if taken and self._ledger.takes(delivery):
            qos = min(delivery.qos, grant.qos)
            self._sent(delivery, qos, self._last_id, False)
        return taken

    def take_live_run(self, deliveries: list[Delivery], grant: Grant) -> int:
        count = super().take_live_run(deliveries, grant)
        for delivery in deliveries[:count]:
            if self._ledger.takes(delivery):
                qos = min(delivery.qos, grant.qos)
                self._sent(delivery, qos, self._packet_id_of(delivery) if qos else 0, False)
        return count

    def take_acknowledgements(self, data: bytes, now: float, wall_offset_ms: float) -> int:
        taken = super().take_acknowledgements(data, now, wall_offset_ms)
        self._settle()
        return taken

    def acknowledged(self, packet_id: int, now: float, wall_offset_ms: float) -> bool:
        is_known = super().acknowledged(packet_id, now, wall_offset_ms)
        self._settle()
        return is_known

    def completed(self, packet_id: int, wall_ms: int) -> bool:
        is_known = super().completed(packet_id, wall_ms)
        self._settle()
        return is_known

    def _put_out(
        self,
        delivery: Delivery,
        qos: int,
        retain: bool,
        subscription_ids: tuple[int, ...],
        wall_ms: int,
        packet_id: int,
        dup: bool = False,
    ) -> bool:
        sent = super()._put_out(delivery, qos, retain, subscription_ids, wall_ms, packet_id, dup)
        if sent and self._ledger.takes(delivery):
            self._sent(delivery, qos, packet_id, dup)
        return sent

    def _sent(self, delivery: Delivery, qos: int, packet_id: int, dup: bool) -> None:
        self._ledger.note(DELIVERED, delivery, qos, dup)
        if qos:
            self._noted[packet_id] = delivery, qos

    def _packet_id_of(self, delivery: Delivery) -> int:
        return next(packet_id for packet_id, each in reversed(self.inflight.items()) if each is delivery)

    def _settle(self) -> None:
        """What is in flight no more has been acknowledged."""
        for packet_id, (delivery, qos) in list(self._noted.items()):
            if self.inflight.get(packet_id) is not delivery and packet_id not in self.flows:
                del self._noted[packet_id]
                self._ledger.note(ACKNOWLEDGED, delivery, qos, False)
