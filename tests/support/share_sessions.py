"""Shared subscriptions whose members have stored sessions: what an edge is for QoS 2, without MQTT."""

from __future__ import annotations

import random
from typing import Any

from support.session_nodes import SessionNode

from bridge.delivery import Delivery
from bridge.log import Log, RecordRefused
from bridge.partitioning import RouteTable
from bridge.shared.group import Handover, ShareGroup
from bridge.shared.lease import Leases
from bridge.shared.shared_subscriptions import SharedSubscriptions
from bridge.subscriptions import Grant
from schemas.sessions import OutgoingEntry, outgoing_record

Place = tuple[str, int, int]


class SessionMember:
    """A client's session that takes QoS 2 messages only; ``sent`` are those whose hand-over it has heard of."""

    def __init__(self, node: SharingNode, client_id: str, epoch: int) -> None:
        self.node = node
        self.client_id = client_id
        self.epoch = epoch
        self.room = 1_000
        self.sent: list[Place] = []
        self.refused: list[Place] = []
        self.doubtful: list[Place] = []
        self.waiting: dict[Handover, Place] = {}

    @property
    def inflight(self) -> int:
        return len(self.waiting)

    def has_room(self) -> bool:
        return len(self.waiting) < self.room

    def deliver_shared(self, delivery: Delivery, grant: Grant, group: ShareGroup) -> None:
        handover = group.hand_over(self, delivery)
        assert handover is not None
        assert handover.begin()
        place = (delivery.kafka_topic, delivery.partition, delivery.offset)
        self.waiting[handover] = place
        packet_id = len(self.sent) + len(self.refused) + len(self.doubtful) + len(self.waiting)
        entry = OutgoingEntry(*place, 2, "sent", None, True)
        record = outgoing_record(self.client_id, self.epoch, packet_id, entry)
        store = self.node.sessions.store
        store.write(self.client_id, self.epoch, [(store.position(self.client_id), record)], self, handover, handover)

    # StoreSink

    def stored(self, token: Any, offsets: list[int]) -> None:
        self.sent.append(self.waiting.pop(token))
        token.committed()

    def store_refused(self, token: Any, error: RecordRefused) -> None:
        self.refused.append(self.waiting.pop(token))
        token.failed()

    def store_lost(self, token: Any) -> None:
        self.refused.append(self.waiting.pop(token))
        token.failed()

    def store_unknown(self, token: Any) -> None:
        self.doubtful.append(self.waiting.pop(token))
        token.doubtful()


class SharingNode:
    """One edge's sessions and shared subscriptions."""

    def __init__(
        self,
        log: Log,
        routes: RouteTable,
        node_id: str,
        live: set[str],
        *,
        leases: Leases | None = None,
        **options: Any,
    ) -> None:
        self.sessions = SessionNode(log, node_id, live, **options)
        self.leases = leases or log.leases()
        self.shared = SharedSubscriptions(
            log,
            routes,
            self.leases,
            after_batch=lambda: None,
            is_held=lambda share_filter: True,
            rng=random.Random(1),
            writer=self.sessions.store,
            commit_interval_s=0.05,
        )

    async def start(self) -> None:
        await self.sessions.start()

    async def member(self, client_id: str, share_filter: str) -> SessionMember:
        epoch, _ = await self.sessions.open(client_id)
        member = SessionMember(self, client_id, epoch)
        await self.shared.subscribe(member, share_filter, 2)
        return member

    async def stop(self) -> None:
        await self.shared.stop()
        await self.sessions.stop()

    async def crash(self) -> None:
        """It writes nothing more and reads nothing more; what was under way to the log is left as it is."""
        assert self.sessions.store._writer._task is not None
        tasks = [self.sessions.store._writer._task, self.shared._committer]
        for share in self.shared._shares.values():
            tasks += [share._starting, share._readying]
        for task in tasks:
            if task is not None:
                task.cancel()
        await self.shared._reader.stop()
        await self.sessions.stop()

    def owned(self) -> list[tuple[str, Place]]:
        """Which session has which message, as this node's view says."""
        view = self.sessions.store.view
        sessions = ((client_id, view.get(client_id)) for client_id in view)
        return [
            (client_id, (entry.kafka_topic, entry.partition, entry.offset))
            for client_id, session in sessions
            if session is not None
            for entry in session.progress.outgoing.values()
        ]
