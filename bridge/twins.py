"""The two ways out as one: what is read at once (QoS 0 and 1) and the QoS 2 twins, which are read committed.

Each route has two Kafka topics, so that no reader of QoS 0 and 1 waits behind an open transaction; MQTT orders per
Topic Name *and* QoS [MQTT5-4.6.0-5], so two independent readers keep the order it asks for. A subscription needs both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from bridge.catch_up import CatchUp, LateSubscriber
from bridge.deliverer import Deliverer
from bridge.log import Position
from schemas.layouts import Offsets, offset_of
from schemas.routes import Q2_SUFFIX


class TwinDeliverer:
    """A `Deliverer` for each of the two; the same methods over both."""

    def __init__(self, plain: Deliverer, exactly_once: Deliverer) -> None:
        self.plain = plain
        self.exactly_once = exactly_once

    async def start(self) -> None:
        await self.plain.start()
        await self.exactly_once.start()

    async def stop(self) -> None:
        await asyncio.gather(self.plain.stop(), self.exactly_once.stop())

    def add_filter(self, topic_filter: str) -> asyncio.Future[Any] | None:
        """`Deliverer.add_filter`: resolves when both know their positions."""
        return _both(self.plain.add_filter(topic_filter), self.exactly_once.add_filter(topic_filter))

    def remove_filter(self, topic_filter: str) -> None:
        self.plain.remove_filter(topic_filter)
        self.exactly_once.remove_filter(topic_filter)

    def relayout(self) -> asyncio.Future[Any] | None:
        """`Deliverer.relayout`, likewise."""
        return _both(self.plain.relayout(), self.exactly_once.relayout())

    def confirm(self) -> None:
        self.plain.confirm()
        self.exactly_once.confirm()

    def restart_fresh(self, begins: Callable[[Position], int]) -> None:
        self.plain.restart_fresh(begins)
        self.exactly_once.restart_fresh(begins)

    async def pause(self, kafka_topic: str) -> None:
        """The Kafka topic and its twin."""
        await self.plain.pause(kafka_topic)
        await self.exactly_once.pause(kafka_topic + Q2_SUFFIX)

    def go_on(self, kafka_topic: str, since: tuple[Offsets, Offsets] | None) -> None:
        """The Kafka topic and its twin; ``since`` has the offsets of both."""
        if since is None:
            self.plain.go_on(kafka_topic, None)
            self.exactly_once.go_on(kafka_topic + Q2_SUFFIX, None)
        else:
            self.plain.go_on(kafka_topic, partial(offset_of, since[0]))
            self.exactly_once.go_on(kafka_topic + Q2_SUFFIX, partial(offset_of, since[1]))

    def passed_barriers(self, kafka_topic: str, barriers: int) -> int:
        """How many of the resizes everything from before was handed out of: all, or all but the last."""
        is_held = self.plain.is_limited(kafka_topic) or self.exactly_once.is_limited(kafka_topic + Q2_SUFFIX)
        return max(0, barriers - is_held)

    def partitions_of(self, topic_filter: str) -> frozenset[Position]:
        return self.plain.partitions_of(topic_filter) | self.exactly_once.partitions_of(topic_filter)

    def start_positions(self, topic_filter: str) -> dict[Position, int]:
        return self.plain.start_positions(topic_filter) | self.exactly_once.start_positions(topic_filter)

    def positions(self) -> dict[Position, int]:
        return self.plain.positions() | self.exactly_once.positions()

    def position_of(self, position: Position) -> int | None:
        return self._of(position).position_of(position)

    def is_in_hand(self, position: Position) -> bool:
        return self._of(position).is_in_hand(position)

    def statistics(self) -> dict[str, Any]:
        """The figures of the QoS 0 and 1 way with those of the other added up; `exactly_once` has the latter alone."""
        plain, exactly_once = self.plain.statistics(), self.exactly_once.statistics()
        total = {name: value + exactly_once[name] if type(value) is int else value for name, value in plain.items()}
        return {**total, "filters": plain["filters"], "lag": plain["lag"] | exactly_once["lag"]}

    def _of(self, position: Position) -> Deliverer:
        return self.exactly_once if position[0].endswith(Q2_SUFFIX) else self.plain


class TwinCatchUp:
    """A `CatchUp` for each of the two; the same methods over both."""

    def __init__(self, plain: CatchUp, exactly_once: CatchUp) -> None:
        self.plain = plain
        self.exactly_once = exactly_once

    async def stop(self) -> None:
        await asyncio.gather(self.plain.stop(), self.exactly_once.stop())

    def passed_over(self, position: Position) -> None:
        """A live delivery was not taken."""
        self._of(position).passed_over += 1

    def fall_behind(self, subscriber: LateSubscriber, position: Position, offset: int) -> None:
        self._of(position).fall_behind(subscriber, position, offset)

    def need_of(self, subscriber: LateSubscriber, position: Position) -> int | None:
        return self._of(position).need_of(subscriber, position)

    def keep_order(self, subscriber: LateSubscriber) -> None:
        self.plain.keep_order(subscriber)
        self.exactly_once.keep_order(subscriber)

    def passed_barriers(self, kafka_topic: str) -> int:
        """How many of the Kafka topic's resizes nobody who is behind needs anything from before."""
        return min(self.plain.passed_barriers(kafka_topic), self.exactly_once.passed_barriers(kafka_topic + Q2_SUFFIX))

    def wake(self, subscriber: LateSubscriber) -> None:
        self.plain.wake(subscriber)
        self.exactly_once.wake(subscriber)

    def filters_removed(self, subscriber: LateSubscriber) -> None:
        self.plain.filters_removed(subscriber)
        self.exactly_once.filters_removed(subscriber)

    def forget(self, subscriber: LateSubscriber) -> None:
        self.plain.forget(subscriber)
        self.exactly_once.forget(subscriber)

    def statistics(self) -> dict[str, int]:
        """The figures of both added up."""
        plain, exactly_once = self.plain.statistics(), self.exactly_once.statistics()
        return {name: value + exactly_once[name] for name, value in plain.items()}

    def _of(self, position: Position) -> CatchUp:
        return self.exactly_once if position[0].endswith(Q2_SUFFIX) else self.plain


def _both(one: asyncio.Future[Any] | None, other: asyncio.Future[Any] | None) -> asyncio.Future[Any] | None:
    waiting = [waiter for waiter in (one, other) if waiter is not None]
    return asyncio.gather(*waiting) if len(waiting) > 1 else waiting[0] if waiting else None
