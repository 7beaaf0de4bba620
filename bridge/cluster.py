"""The cluster as an operator sees it: every node's last heartbeat, its age, and the lag on what it consumes."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from bridge.log import Log, LogConsumer, LogTruncated, Position, Record
from bridge.membership import POSITION, NodeView
from schemas.nodes import HEARTBEAT_STALE_S, NodeHeartbeat

_FETCH_TIMEOUT_S = 1.0
STALE = "stale"


@dataclass(frozen=True, slots=True)
class Consumed:
    """One partition that a node reads, its position there and how many records it is behind."""

    kafka_topic: str
    partition: int
    position: int
    lag_records: int | None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node; `state` is what it said of itself, or `stale` when it fell silent."""

    heartbeat: NodeHeartbeat
    state: str
    age_s: float
    consumed: tuple[Consumed, ...]
    consumed_exactly_once: tuple[Consumed, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "node_id": self.heartbeat.node_id,
            "state": self.state,
            "age_s": round(self.age_s, 3),
            "incarnation": self.heartbeat.incarnation,
            "mqtt_address": self.heartbeat.mqtt_address,
            "http_address": self.heartbeat.http_address,
            "connections": self.heartbeat.connections,
            "sessions": self.heartbeat.sessions,
            "subscriptions": self.heartbeat.subscriptions,
            "consumed": [asdict(one) for one in self.consumed],
            "consumed_exactly_once": [asdict(one) for one in self.consumed_exactly_once],
        }


async def read_cluster(log: Log, now_ms: int, timeout_s: float = 20.0) -> tuple[NodeStatus, ...]:
    """Every node that has not left, by node id. Ages compare Kafka's append time with `now_ms`, a wall clock.

    Raises:
        LogUnavailable: Kafka gives no answer.
        TimeoutError: `headwater.nodes` could not be read to its end in time.
    """
    async with asyncio.timeout(timeout_s):
        ages: dict[str, float] = {}
        view = NodeView()
        for record in await _read_to_end(log):
            view.apply(record.key, record.value, 0.0)
            ages[(record.key or b"").decode("utf-8", "replace")] = max(0.0, (now_ms - record.timestamp) / 1000)
        heartbeats = view.live(0.0)
        ends = await _ends(log, heartbeats)
    return tuple(_status(heartbeat, ages[heartbeat.node_id], ends) for heartbeat in heartbeats)


def _status(heartbeat: NodeHeartbeat, age_s: float, ends: dict[Position, int]) -> NodeStatus:
    state = STALE if age_s > HEARTBEAT_STALE_S else heartbeat.state
    return NodeStatus(
        heartbeat, state, age_s, _consumed(heartbeat.consumed, ends), _consumed(heartbeat.consumed_exactly_once, ends)
    )


def _consumed(positions: tuple[tuple[str, int, int], ...], ends: dict[Position, int]) -> tuple[Consumed, ...]:
    consumed: list[Consumed] = []
    for kafka_topic, partition, position in sorted(positions):
        end = ends.get((kafka_topic, partition))
        lag_records = max(0, end - position) if end is not None else None
        consumed.append(Consumed(kafka_topic, partition, position, lag_records))
    return tuple(consumed)


async def _ends(log: Log, heartbeats: tuple[NodeHeartbeat, ...]) -> dict[Position, int]:
    partitions = {
        (kafka_topic, partition)
        for node in heartbeats
        for kafka_topic, partition, _ in node.consumed + node.consumed_exactly_once
    }
    return await log.end_offsets(partitions) if partitions else {}


async def _read_to_end(log: Log) -> list[Record]:
    """Compaction leaves gaps, also at the end: an empty answer at a known end is the end, too."""
    end = (await log.end_offsets({POSITION}))[POSITION]
    consumer = log.consumer(None)
    try:
        return await _read_until(consumer, end)
    finally:
        await consumer.stop()


async def _read_until(consumer: LogConsumer, end: int) -> list[Record]:
    records: list[Record] = []
    consumer.assign({POSITION: 0})
    next_offset = 0
    while next_offset < end:
        try:
            fetched = [record for _, part in await consumer.fetch(_FETCH_TIMEOUT_S) for record in part]
        except LogTruncated as error:
            next_offset = error.start
            consumer.assign({POSITION: next_offset})
            continue
        if not fetched and consumer.end_of(POSITION) is not None:
            break
        records += fetched
        next_offset = fetched[-1].offset + 1 if fetched else next_offset
    return records
