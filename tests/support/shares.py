"""Shared subscriptions in tests: members that do what the test says, a node, groups with leases in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Set
from typing import Any

from support.logs import READ_S

from bridge.delivery import Delivery
from bridge.log import Log, Position
from bridge.partitioning import RouteTable
from bridge.shared.group import ShareGroup
from bridge.shared.lease import Leases
from bridge.shared.memory_lease import MemoryGroups, MemoryLease, MemoryLeases
from bridge.shared.shared_subscriptions import SharedSubscriptions
from bridge.subscriptions import Grant
from schemas.message import Message
from schemas.records import encode_headers

__all__ = ["FakeMember", "MemoryGroups", "MemoryLease", "MemoryLeases", "eventually", "make_node", "record", "until_in"]

Held = tuple[ShareGroup, Position, int]


class FakeMember:
    """Takes up to `room` unacknowledged messages; acknowledges at once, or when the test says so."""

    def __init__(self, client_id: str, room: int = 1_000_000, *, acknowledges: bool = True) -> None:
        self.client_id = client_id
        self.room = room
        self.acknowledges = acknowledges
        self.got: list[Delivery] = []
        self.grants: list[Grant] = []
        self.unacknowledged: dict[Held, Delivery] = {}
        self.arrived = asyncio.Event()

    def __repr__(self) -> str:
        return f"<FakeMember {self.client_id}>"

    @property
    def inflight(self) -> int:
        return len(self.unacknowledged)

    def has_room(self) -> bool:
        return len(self.unacknowledged) < self.room

    def deliver(self, delivery: Delivery, grant: Grant) -> None:
        raise AssertionError("a shared subscription's member")

    def deliver_shared(self, delivery: Delivery, grant: Grant, group: ShareGroup) -> None:
        assert self.has_room(), "asked before"
        self.got.append(delivery)
        self.grants.append(grant)
        self.arrived.set()
        if delivery.qos and grant.qos:
            if self.acknowledges:
                group.acknowledged(self, position_of(delivery), delivery.offset)
            else:
                self.unacknowledged[group, position_of(delivery), delivery.offset] = delivery

    def acknowledge(self, count: int = 1_000_000, node: SharedSubscriptions | None = None) -> None:
        """The oldest ones first."""
        for held in list(self.unacknowledged)[:count]:
            del self.unacknowledged[held]
            held[0].acknowledged(self, held[1], held[2])
        if node is not None:
            node.wake(self)

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.got]


def position_of(delivery: Delivery) -> Position:
    return (delivery.kafka_topic, delivery.partition)


def place_of(delivery: Delivery) -> tuple[Position, int]:
    return position_of(delivery), delivery.offset


async def eventually(condition: Callable[[], object], timeout_s: float = READ_S) -> None:
    """Until it holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - anything may make it true
            await asyncio.sleep(0.002)


async def until_in(members: list[FakeMember], payloads: Set[bytes], timeout_s: float = READ_S) -> None:
    """Until the members together have got all of these."""
    await eventually(lambda: payloads <= {payload for member in members for payload in member.payloads}, timeout_s)


def record(topic_name: str, payload: bytes, **properties: Any) -> tuple[bytes, bytes, Any]:
    """What to put into the log: (key, value, headers)."""
    return topic_name.encode(), payload, encode_headers(Message(topic_name, payload, **properties))


def make_node(
    source: Log, routes: RouteTable, leases: Leases, *, strategy: str = "least_inflight", **options: Any
) -> SharedSubscriptions:
    options = {"is_held": lambda share_filter: False, "rng": random.Random(1), "commit_interval_s": 0.02, **options}
    return SharedSubscriptions(
        source, routes, leases, after_batch=lambda: None, strategy=lambda share_filter: strategy, **options
    )
