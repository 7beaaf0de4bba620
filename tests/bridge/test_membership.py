"""The view of the nodes (pure), and heartbeats over a log."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from bridge.cluster import read_cluster
from bridge.event_log import SAMPLED_PER_S, EventLog
from bridge.kafka_log import KafkaLog
from bridge.log import LogUnavailable
from bridge.membership import Membership, NodeChange, NodeView
from bridge.memory_log import MemoryLog
from bridge.murmur2 import partition_for_key
from bridge.partitioning import Destination
from bridge.publisher import Publisher
from bridge.topics_admin import apply
from schemas.catalogue import EVENTS, NODES, catalogue
from schemas.events import Event
from schemas.nodes import NodeHeartbeat


def heartbeat(node_id: str = "a", incarnation: str = "1", **fields: object) -> NodeHeartbeat:
    return replace(NodeHeartbeat(node_id, incarnation, 0, 0, "127.0.0.1:1883", "127.0.0.1:8080"), **fields)


def tell(view: NodeView, beat: NodeHeartbeat, now: float) -> NodeChange | None:
    return view.apply(beat.node_id.encode(), beat.to_json(), now)


def kinds(*changes: NodeChange | None) -> list[tuple[str, str]]:
    return [(change.heartbeat.node_id, change.kind) for change in changes if change is not None]


# --- the view ---------------------------------------------------------------------------------------------------------


def test_a_node_joins_goes_stale_and_returns() -> None:
    view = NodeView(stale_after_s=6.0)
    assert kinds(tell(view, heartbeat(), 10.0), tell(view, heartbeat(), 12.0)) == [("a", "joined")]
    assert view.expire(18.0) == ()
    assert [node.node_id for node in view.live(18.0)] == ["a"]
    assert kinds(*view.expire(18.1)) == [("a", "stale")]
    assert view.expire(19.0) == ()
    assert [node.node_id for node in view.stale(19.0)] == ["a"]
    assert not view.is_live("a", 19.0)
    assert kinds(tell(view, heartbeat(), 20.0)) == [("a", "returned")]
    assert view.is_live("a", 26.0)
    assert view.age_s("a", 26.0) == 6.0


def test_clocks_of_other_nodes_do_not_matter() -> None:
    view = NodeView()
    tell(view, heartbeat("past", sent_ms=0), 100.0)
    tell(view, heartbeat("future", sent_ms=2**50), 100.0)
    assert len(view.live(106.0)) == 2
    assert len(view.stale(106.1)) == 2


def test_tombstone_removes_at_once() -> None:
    view = NodeView()
    tell(view, heartbeat(), 0.0)
    assert kinds(view.apply(b"a", None, 0.5), view.apply(b"a", None, 0.6)) == [("a", "left")]
    assert (view.live(0.6), view.stale(99.0)) == ((), ())
    assert view.get("a") is None
    assert view.age_s("a", 1.0) is None


def test_a_new_incarnation_is_a_restart() -> None:
    view = NodeView()
    changes = [tell(view, heartbeat(incarnation=incarnation), 1.0) for incarnation in ("1", "2", "2")]
    assert kinds(*changes) == [("a", "joined"), ("a", "restarted")]


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"a", b"no json"), (b"b", heartbeat("a").to_json()), (None, heartbeat("a").to_json()), (b"\xff", b"{}")],
    ids=["garbage", "another's key", "no key", "not UTF-8"],
)
def test_unreadable_records_are_counted_and_skipped(key: bytes | None, value: bytes) -> None:
    view = NodeView()
    assert view.apply(key, value, 0.0) is None
    assert view.statistics(0.0) == {"live": 0, "stale": 0, "unreadable": 1, "refused": 0}


# --- over a log -------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A member with a clock of its own that the test turns."""

    membership: Membership
    changes: list[NodeChange] = field(default_factory=list)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def member(log: MemoryLog, clock: Clock, node_id: str, incarnation: str = "1") -> AsyncIterator[Node]:
    changes: list[NodeChange] = []
    publisher = Publisher(log)
    membership = Membership(
        log,
        publisher.append_future,
        lambda: heartbeat(node_id, incarnation),
        changes.append,
        interval_s=0.01,
        clock=clock,
    )
    await membership.start(5.0)
    try:
        yield Node(membership, changes)
    finally:
        await membership.stop()
        await publisher.stop()


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (nothing notifies us)
            await asyncio.sleep(0.002)


async def test_nodes_see_each_other_and_a_clean_leave() -> None:
    log, clock = MemoryLog(), Clock()
    async with member(log, clock, "a") as a, member(log, clock, "b") as b:
        assert [node.node_id for node in b.membership.live()] == ["a", "b"]
        await until(lambda: a.membership.is_live("b"))
        await b.membership.leave()
        await until(lambda: not a.membership.is_live("b"))
        assert kinds(*a.changes) == [("a", "joined"), ("b", "joined"), ("b", "left")]
        await a.membership.leave()
    assert log.records(NODES, 0)[-1].value is None


async def test_a_silent_node_goes_stale_and_the_one_that_beats_does_not() -> None:
    log, clock = MemoryLog(), Clock()
    async with member(log, clock, "a") as a, member(log, clock, "b") as b:
        await until(lambda: a.membership.is_live("b"))
        await b.membership.stop()
        for _ in range(8):
            clock.now += 1.0
            count = a.membership.statistics()["heartbeats"]
            await until(lambda count=count: a.membership.statistics()["heartbeats"] > count + 1)
        await until(lambda: ("b", "stale") in kinds(*a.changes))
        assert [node.node_id for node in a.membership.stale()] == ["b"]
        assert a.membership.is_live("a")


async def test_who_was_stopped_takes_nobody_for_dead() -> None:
    """SIGSTOP: time has gone on, but not a single heartbeat was read, our own neither."""
    log, clock = MemoryLog(), Clock()
    async with member(log, clock, "a") as a, member(log, clock, "b") as b:
        await until(lambda: a.membership.is_live("b"))
        clock.now += 60.0
        assert a.membership.silence_s(clock()) >= 60.0
        assert [node.node_id for node in a.membership.live()] == ["a", "b"]
        count = a.membership.statistics()["heartbeats"]
        await until(lambda: a.membership.statistics()["heartbeats"] > count + 2)
        await until(lambda: a.membership.silence_s(clock()) == 0.0)
        assert a.membership.is_live("b")
        assert b.membership.is_live("a")
        assert "stale" not in {kind for _, kind in kinds(*a.changes)}


async def test_old_heartbeats_are_stale_when_a_node_starts() -> None:
    now_ms = [1_000_000]
    log, clock = MemoryLog(lambda: now_ms[0]), Clock()
    log.put(NODES, 0, b"dead", heartbeat("dead").to_json())
    now_ms[0] += 4_000
    log.put(NODES, 0, b"alive", heartbeat("alive").to_json())
    now_ms[0] += 4_000
    async with member(log, clock, "new") as new:
        assert [node.node_id for node in new.membership.live()] == ["alive", "new"]
        assert [node.node_id for node in new.membership.stale()] == ["dead"]


async def test_the_same_node_id_twice_is_noticed_by_both() -> None:
    log, clock = MemoryLog(), Clock()
    async with member(log, clock, "a", "1") as first, member(log, clock, "a", "2") as second:
        await until(lambda: first.membership.rival is not None and second.membership.rival is not None)
        assert first.membership.rival is not None
        assert first.membership.rival.incarnation == "2"
        await second.membership.stop()
        count = first.membership.statistics()["heartbeats"]
        await until(lambda: first.membership.statistics()["heartbeats"] > count + 2)
        clock.now += 7.0
        await until(lambda: first.membership.rival is None)


async def test_heartbeats_go_on_after_a_failure() -> None:
    log, clock = MemoryLog(), Clock()
    failures = [LogUnavailable("away")] * 3
    publisher = Publisher(log)

    def flaky(destination: Destination, value: bytes | None, headers: object) -> asyncio.Future[int]:
        if publisher.known_end(NODES, 0) and failures:
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(failures.pop())
            return failed
        return publisher.append_future(destination, value, ())

    membership = Membership(log, flaky, heartbeat, interval_s=0.01, clock=clock)
    await membership.start(5.0)
    try:
        await until(lambda: membership.statistics()["heartbeats"] > 2)
        assert membership.statistics()["heartbeats_failed"] == 3
    finally:
        await membership.stop()
        await publisher.stop()


async def test_read_cluster_tells_age_state_and_lag() -> None:
    now_ms = [1_000_000]
    log = MemoryLog(lambda: now_ms[0])
    log.put(NODES, 0, b"old", heartbeat("old").to_json())
    log.put(NODES, 0, b"gone", heartbeat("gone").to_json())
    log.put(NODES, 0, b"gone", None)
    now_ms[0] += 10_000
    for _ in range(5):
        log.put("mqtt.messages", 3, b"k", b"v")
    consumed = (("mqtt.messages", 3, 2),)
    log.put(NODES, 0, b"new", heartbeat("new", consumed=consumed, state="draining", connections=7).to_json())
    new, old = await read_cluster(log, now_ms[0] + 1_500)
    assert (new.heartbeat.node_id, new.state, new.age_s) == ("new", "draining", 1.5)
    assert (old.heartbeat.node_id, old.state, old.age_s) == ("old", "stale", 11.5)
    assert new.to_dict()["consumed"] == [
        {"kafka_topic": "mqtt.messages", "partition": 3, "position": 2, "lag_records": 3}
    ]
    assert new.to_dict()["connections"] == 7


async def test_on_a_real_kafka(kafka_bootstrap: str) -> None:
    await apply(kafka_bootstrap, [spec for spec in catalogue() if spec.name == NODES], 1)
    log = KafkaLog(kafka_bootstrap)
    await log.start()
    node_id = f"real-{secrets.token_hex(4)}"
    publisher = Publisher(log)
    membership = Membership(log, publisher.append_future, lambda: heartbeat(node_id), interval_s=0.05)
    try:
        await membership.start(20.0)
        assert membership.is_live(node_id)
        await until(lambda: membership.statistics()["heartbeats"] > 2)
        now_ms = time.time_ns() // 1_000_000
        (status,) = (node for node in await read_cluster(log, now_ms) if node.heartbeat.node_id == node_id)
        assert status.state == "up"
        await membership.leave()
        assert node_id not in {node.heartbeat.node_id for node in await read_cluster(log, now_ms)}
    finally:
        await membership.stop()
        await publisher.stop()
        await log.stop()


async def test_read_cluster_of_an_empty_log() -> None:
    assert await read_cluster(MemoryLog(), 0) == ()


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass
class Appended:
    records: list[tuple[Destination, Event]] = field(default_factory=list)

    def __call__(self, destination: Destination, value: bytes | None, headers: object, sink: None, token: None) -> None:
        assert value is not None
        self.records.append((destination, Event.from_json(value)))


def test_an_event_goes_to_its_clients_partition() -> None:
    appended = Appended()
    events = EventLog(appended, "node-1", clock_ms=lambda: 1234)
    events.record("connected", "sensor-7", peer="192.0.2.1:5", text="x" * 5000)
    ((destination, event),) = appended.records
    assert destination == Destination(EVENTS, partition_for_key(b"sensor-7", 4), b"sensor-7")
    assert event == Event("connected", "sensor-7", "node-1", 1234, {"peer": "192.0.2.1:5", "text": "x" * 1024})
    assert events.statistics()["connected"] == 1


def test_denials_are_sampled_and_the_next_one_says_how_many_were_left_out() -> None:
    appended, now_ms = Appended(), [5_000]
    events = EventLog(appended, "node-1", clock_ms=lambda: now_ms[0])
    for _ in range(SAMPLED_PER_S + 30):
        events.record("denied", "flood")
    events.record("connected", "other")
    assert len(appended.records) == SAMPLED_PER_S + 1
    now_ms[0] += 1_000
    events.record("denied", "flood")
    assert appended.records[-1][1].detail == {"left_out": 30}
    assert events.statistics()["denied"] == SAMPLED_PER_S + 31
