"""A node's deliverer and catch-up on the log in memory, and a subscriber that is as slow as the test wants."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from support.logs import turns

from bridge.catch_up import CatchUp
from bridge.deliverer import Deliverer
from bridge.delivery import Delivery
from bridge.log import Position
from bridge.memory_log import MemoryLog
from bridge.partitioning import RouteTable
from bridge.subscriptions import Grant, Subscription, SubscriptionTable
from schemas.message import Message
from schemas.records import encode_headers
from schemas.routes import Route

ONE_PARTITION = (Route("#", "mqtt.messages", partitions=1),)
THREE_PARTITIONS = (Route("#", "mqtt.messages", partitions=3),)
HERE = ("mqtt.messages", 0)


class SlowSubscriber:
    """A bounded buffer and somebody who empties it when the test says so: what an edge's handler does, in small."""

    def __init__(self, catch_up: CatchUp, buffer_max: int) -> None:
        self.catch_up = catch_up
        self.buffer_max = buffer_max
        self.buffer: deque[Delivery] = deque()
        self.longest = 0
        self.got: list[Delivery] = []
        self.behind: set[Position] = set()
        self.lost: list[tuple[Position, int, int]] = []
        self.dropped = 0

    def deliver(self, delivery: Delivery, grant: Grant) -> None:
        position = (delivery.kafka_topic, delivery.partition)
        if position in self.behind:
            self.catch_up.passed_over += 1
        elif len(self.buffer) < self.buffer_max:
            self._take(delivery)
        elif delivery.qos and grant.qos:
            self.behind.add(position)
            self.catch_up.fall_behind(self, position, delivery.offset)
        else:
            self.dropped += 1

    def deliver_late(self, delivery: Delivery, grant: Grant) -> bool:
        assert (delivery.kafka_topic, delivery.partition) in self.behind
        if len(self.buffer) >= self.buffer_max:
            return False
        self._take(delivery)
        return True

    def caught_up(self, position: Position) -> None:
        self.behind.remove(position)

    def fall_behind(self, position: Position, offset: int) -> None:
        self.behind.add(position)
        self.catch_up.fall_behind(self, position, offset)

    def records_lost(self, position: Position, first: int, following: int) -> None:
        self.lost.append((position, first, following))

    def consume(self, count: int) -> None:
        for _ in range(min(count, len(self.buffer))):
            self.got.append(self.buffer.popleft())
        if self.behind and len(self.buffer) * 4 <= self.buffer_max:
            self.catch_up.wake(self)

    def _take(self, delivery: Delivery) -> None:
        self.buffer.append(delivery)
        self.longest = max(self.longest, len(self.buffer))

    @property
    def numbers(self) -> list[int]:
        return [int(delivery.payload) for delivery in self.got]


class Bench:
    """A node's deliverer and catch-up on one log in memory."""

    def __init__(self, routes: tuple[Route, ...] = ONE_PARTITION, gather_s: float = 0.0) -> None:
        self.now_ms = 1_800_000_000_000
        self.log = MemoryLog(lambda: self.now_ms)
        self.routes = RouteTable(routes)
        self.table = SubscriptionTable()
        self.deliverer = Deliverer(self.log, self.routes, self.table, "n1", clock_ms=lambda: self.now_ms)
        self.after_batches = 0
        self.catch_up = CatchUp(
            self.log,
            self.table,
            self.routes,
            self.deliverer,
            self._after_batch,
            gather_s=gather_s,
            clock_ms=lambda: self.now_ms,
        )
        self.published = 0

    def _after_batch(self) -> None:
        self.after_batches += 1

    async def subscribe(self, topic_filter: str, subscriber: Any, qos: int = 1) -> dict[Position, int]:
        """Returns where the subscription begins."""
        read_before = self.deliverer.positions()
        starts = self.deliverer.start_positions(topic_filter)
        self.table.add(Subscription(subscriber, topic_filter, qos, not_before=dict(starts)))
        known = self.deliverer.add_filter(topic_filter)
        if known is not None:
            await asyncio.wait_for(known, 5)
        # nobody writes meanwhile: partitions that are new to the node are read from their end
        return {each: at if each in read_before else self.log.partition(each).end for each, at in starts.items()}

    def unsubscribe(self, topic_filter: str, subscriber: SlowSubscriber) -> None:
        self.table.remove(topic_filter, subscriber)
        self.deliverer.remove_filter(topic_filter)
        self.catch_up.filters_removed(subscriber)

    def publish(self, topic_name: str = "a", count: int = 1, **properties: Any) -> None:
        """Numbered messages, in the log when this returns."""
        for _ in range(count):
            payload = b"%d" % self.published
            headers = encode_headers(Message(topic_name, payload, **properties))
            at = self.routes.destination(topic_name)
            self.log.put(at.kafka_topic, at.partition, at.key, payload, headers)
            self.published += 1

    async def live(self) -> None:
        """Until everything in the log has been handed out live."""

        def is_handed_out(position: Position, at: int) -> bool:
            return self.log.partition(position).end == at and not self.deliverer.is_in_hand(position)

        await self.eventually(lambda: all(is_handed_out(*each) for each in self.deliverer.positions().items()))
        await turns(10)

    async def eventually(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - anything may make it true
                await asyncio.sleep(0)

    async def drained(self, *subscribers: SlowSubscriber) -> None:
        """The subscribers empty their buffers until they are through."""

        def is_through() -> bool:
            for each in subscribers:
                each.consume(len(each.buffer))
            return not any(each.behind or each.buffer for each in subscribers)

        await self.live()
        await self.eventually(is_through)

    def figure(self, name: str) -> int:
        return self.catch_up.statistics()[name]
