"""Catch-up on the log in memory: everything, once, in order, however slow; and one scan for all who are behind."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from support.catch_up import HERE, THREE_PARTITIONS, Bench, SlowSubscriber
from support.logs import turns

import bridge.catch_up
import bridge.subscriptions
from bridge.catch_up import TURN_RECORDS_MAX
from bridge.delivery import Delivery
from bridge.log import LogUnavailable, Position
from bridge.memory_log import FETCH_RECORDS_MAX, MemoryLogConsumer
from bridge.subscriptions import Grant
from schemas.topics import matches


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.deliverer.start()
    yield made
    await made.catch_up.stop()
    await made.deliverer.stop()


async def test_a_slow_subscriber_gets_everything_once_in_order(bench: Bench) -> None:
    slow, fast = SlowSubscriber(bench.catch_up, 10), SlowSubscriber(bench.catch_up, 1_000_000)
    for each in (slow, fast):
        await bench.subscribe("a", each)
    bench.publish(count=5_000)
    await bench.live()
    assert len(fast.buffer) == 5_000, "live delivery waits for nobody"
    assert (len(slow.buffer), slow.behind) == (10, {HERE})
    assert bench.figure("records") == 0, "nothing is read for who has no room"
    bench.publish(count=5)
    await bench.drained(slow)
    bench.publish(count=3)  # live again
    await bench.live()
    slow.consume(3)
    assert slow.numbers == list(range(5_008))
    assert slow.longest == 10
    assert bench.figure("subscribers_behind") == bench.figure("partitions_behind") == 0
    assert bench.figure("records") <= 5_005 + FETCH_RECORDS_MAX, "its small room costs no second reading"
    assert bench.figure("deliveries") == 5_005 - 10


async def test_those_behind_at_one_place_cost_one_scan(bench: Bench) -> None:
    crowd = [SlowSubscriber(bench.catch_up, 1) for _ in range(100)]
    for each in crowd:
        await bench.subscribe("a", each)
    bench.publish(count=2_001)
    await bench.live()
    assert bench.figure("subscribers_behind") == 100
    for each in crowd:
        each.buffer_max = 1_000_000
        each.consume(1)
    await bench.drained(*crowd)
    assert all(each.numbers == list(range(2_001)) for each in crowd)
    assert bench.figure("deliveries") == 100 * 2_000
    assert bench.figure("records") == 2_000
    assert bench.figure("passes") == 1


async def test_a_crowd_with_little_room_shares_scans_when_it_goes_on_together() -> None:
    bench = Bench(gather_s=0.005)
    await bench.deliverer.start()
    crowd = [SlowSubscriber(bench.catch_up, 20) for _ in range(50)]
    for each in crowd:
        await bench.subscribe("a", each)
    bench.publish(count=1_020)
    await bench.live()
    while any(each.behind or each.buffer for each in crowd):
        before = bench.figure("deliveries")
        for each in crowd:
            each.consume(20)
        await bench.eventually(lambda due=before + 50 * 20: not crowd[0].behind or bench.figure("deliveries") >= due)
    assert all(each.numbers == list(range(1_020)) for each in crowd)
    assert bench.figure("records") == 1_000, "read once, whatever the steps"
    await bench.catch_up.stop()
    await bench.deliverer.stop()


async def test_who_is_further_joins_the_scan_when_it_comes_by(bench: Bench) -> None:
    first, second = SlowSubscriber(bench.catch_up, 1), SlowSubscriber(bench.catch_up, 1_000)
    for each in (first, second):
        await bench.subscribe("a", each)
    bench.publish(count=3_000)
    await bench.live()
    for each in (first, second):
        each.buffer_max = 1_000_000
    second.consume(1_000)
    first.consume(1)
    await bench.drained(first, second)
    assert first.numbers == second.numbers == list(range(3_000))
    assert bench.figure("records") == 2_999


async def test_subscribers_of_different_speed_share_what_was_read(bench: Bench) -> None:
    """They drift apart, by less than what is held."""
    crowd = [SlowSubscriber(bench.catch_up, buffer_max) for buffer_max in (30, 100, 1_000)]
    for each in crowd:
        await bench.subscribe("a", each)
    bench.publish(count=10_000)
    await bench.drained(*crowd)
    assert all(each.numbers == list(range(10_000)) for each in crowd)
    assert bench.figure("records") <= 1.2 * 10_000


@dataclass
class Held:
    """One subscription of the random schedule: from where, and until when."""

    topic_filter: str
    starts: dict[Position, int]
    removed_at: int | None = None  # number of messages published by then


@dataclass
class Peer:
    subscriber: SlowSubscriber
    held: list[Held] = field(default_factory=list)

    def open(self) -> list[Held]:
        return [each for each in self.held if each.removed_at is None]


@pytest.mark.parametrize("shard", [2, 1_024])
@pytest.mark.parametrize("seed", range(10))
async def test_random_schedules(seed: int, shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random room, records and subscriptions: what matched comes exactly once and in order, nothing else comes."""
    monkeypatch.setattr(bridge.subscriptions, "SHARD_GRANTS_MAX", shard)
    dice = random.Random(seed)
    bench = Bench(THREE_PARTITIONS)
    await bench.deliverer.start()
    names = [f"n/{number}" for number in range(8)]
    filters = ["n/#", "#", "n/+", *names[:5]]
    peers = [Peer(SlowSubscriber(bench.catch_up, dice.choice([1, 2, 5, 40]))) for _ in range(9)]
    records: list[tuple[str, Position, int, int]] = []  # name, partition, offset, QoS; by number
    for _ in range(250):
        peer = dice.choice(peers)
        match dice.choice(["publish", "publish", "consume", "consume", "subscribe", "unsubscribe", "turns"]):
            case "publish":
                for _ in range(dice.choice([1, 5, 60])):
                    name, qos = dice.choice(names), dice.choice([0, 1, 1, 1])
                    at = bench.routes.destination(name)
                    position = (at.kafka_topic, at.partition)
                    records.append((name, position, bench.log.partition(position).end, qos))
                    bench.publish(name, qos=qos)
            case "consume":
                peer.subscriber.consume(dice.choice([1, 3, 100]))
            case "subscribe":
                topic_filter = dice.choice(filters)
                if topic_filter not in [each.topic_filter for each in peer.open()]:
                    peer.held.append(Held(topic_filter, await bench.subscribe(topic_filter, peer.subscriber)))
            case "unsubscribe" if peer.open():
                held = dice.choice(peer.open())
                held.removed_at = len(records)
                bench.unsubscribe(held.topic_filter, peer.subscriber)
            case _:
                await turns(dice.choice([1, 3, 20]))
    await bench.drained(*[peer.subscriber for peer in peers])
    for peer in peers:
        must, may = _expected(peer, records)
        got = peer.subscriber.numbers
        assert len(set(got)) == len(got), "no duplicate"
        assert must <= set(got) <= may
        for partition in range(3):
            part = [records[number][2] for number in got if records[number][1][1] == partition]
            assert part == sorted(part)
    assert bench.figure("pump_errors") == bench.figure("subscriber_errors") == 0
    await bench.catch_up.stop()
    await bench.deliverer.stop()


def _expected(peer: Peer, records: list[tuple[str, Position, int, int]]) -> tuple[set[int], set[int]]:
    must, may = set(), set()
    for number, (name, position, offset, qos) in enumerate(records):
        for held in peer.held:
            if not matches(held.topic_filter, name):
                continue
            if offset >= held.starts[position] and (held.removed_at is None or number < held.removed_at):
                may.add(number)
                if qos and held.removed_at is None:
                    must.add(number)
    return must, may


async def test_what_is_before_a_subscription_stays_before_it(bench: Bench) -> None:
    """Behind by one subscription, the client makes another: the older records are not for that one, even when live
    delivery has passed the bound."""
    slow = SlowSubscriber(bench.catch_up, 1)
    await bench.subscribe("a", slow)
    bench.publish("a", 5)
    bench.publish("b", 5)
    await bench.live()
    await bench.subscribe("b", slow)
    bench.publish("b", 2)
    bench.publish("a", 1)
    await bench.drained(slow)
    assert slow.numbers == [0, 1, 2, 3, 4, 10, 11, 12]


async def test_what_the_client_gave_up_does_not_come(bench: Bench) -> None:
    """[MQTT5-3.10.4-2]"""
    slow = SlowSubscriber(bench.catch_up, 1)
    for topic_filter in ("a", "b"):
        await bench.subscribe(topic_filter, slow)
    for _ in range(4):
        bench.publish("a")
        bench.publish("b")
    await bench.live()
    while len(slow.got) < 3:
        slow.consume(1)
        await asyncio.sleep(0)
    bench.unsubscribe("b", slow)
    assert slow.behind == {HERE}, "the other subscription still needs the partition"
    await bench.drained(slow)
    assert slow.numbers in ([0, 1, 2, 4, 6], [0, 1, 2, 3, 4, 6])  # 3 may have been in the buffer


async def test_live_delivery_does_not_take_over_between_two_shards(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record is being handed out, a shard per turn, while a subscriber of the last one comes to it by the log."""
    monkeypatch.setattr(bridge.subscriptions, "SHARD_GRANTS_MAX", 1)
    crowd = [SlowSubscriber(bench.catch_up, 1_000) for _ in range(40)]
    first, last = crowd[0], crowd[-1]
    first.buffer_max = last.buffer_max = 1
    for each in crowd:
        await bench.subscribe("a", each)
    bench.publish(count=3)
    await bench.live()
    for number in (3, 4):
        bench.publish()
        await bench.eventually(lambda: bench.deliverer.is_in_hand(HERE))
        assert bench.deliverer.position_of(HERE) == number + 1
        for each in (first, last):
            each.buffer_max = 1_000
            each.consume(1)
        await bench.live()
        await bench.drained(first, last)
        for each in (first, last):
            assert each.numbers == list(range(number + 1))
            each.behind.add(HERE)  # once more, from the next record on
            bench.catch_up.fall_behind(each, HERE, number + 1)
            bench.catch_up.wake(each)


async def test_who_gets_room_while_kafka_is_asked_for_later_records_misses_nothing(bench: Bench) -> None:
    early, late = SlowSubscriber(bench.catch_up, 1), SlowSubscriber(bench.catch_up, 50)
    for each in (early, late):
        await bench.subscribe("a", each)
    bench.publish(count=100)
    await bench.live()
    bench.log.pause()
    late.consume(50)
    await turns(10)
    early.buffer_max = 1_000
    early.consume(1)
    await turns(10)
    bench.log.resume()
    await bench.drained(early, late)
    assert early.numbers == late.numbers == list(range(100))


async def test_needs_end_with_the_last_subscription_and_with_the_subscriber(bench: Bench) -> None:
    one, other = SlowSubscriber(bench.catch_up, 1), SlowSubscriber(bench.catch_up, 1)
    for each in (one, other):
        await bench.subscribe("a", each)
    bench.publish(count=10)
    await bench.live()
    bench.unsubscribe("a", one)
    assert one.behind == set()
    bench.catch_up.forget(other)
    assert bench.figure("subscribers_behind") == bench.figure("partitions_behind") == 0
    for each in (one, other):
        bench.catch_up.wake(each)
        bench.catch_up.forget(each)
        bench.catch_up.filters_removed(each)
    one.consume(1)
    await bench.subscribe("a", one)
    bench.publish()
    await bench.live()
    one.consume(1)
    assert one.numbers == [0, 10]
    await bench.eventually(
        lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "headwater-catch-up"]
    )


async def test_a_partition_that_the_node_gave_back_is_not_waited_for(bench: Bench) -> None:
    slow = SlowSubscriber(bench.catch_up, 1)
    await bench.subscribe("a", slow)
    bench.publish(count=3)
    await bench.live()
    bench.deliverer.remove_filter("a")
    slow.consume(1)
    await bench.eventually(lambda: not slow.behind)
    assert slow.numbers == [0]


async def test_the_first_need_counts(bench: Bench) -> None:
    slow = SlowSubscriber(bench.catch_up, 1_000)
    await bench.subscribe("a", slow)
    bench.publish(count=10)
    await bench.live()
    slow.consume(10)
    slow.behind.add(HERE)
    bench.catch_up.fall_behind(slow, HERE, 4)
    bench.catch_up.fall_behind(slow, HERE, 2)
    slow.consume(0)
    await bench.drained(slow)
    assert slow.numbers == [*range(10), *range(4, 10)]


async def test_nothing_to_read_again_is_through_at_once(bench: Bench) -> None:
    slow = SlowSubscriber(bench.catch_up, 1)
    await bench.subscribe("a", slow)
    bench.publish(count=1)
    await bench.live()
    slow.behind.add(HERE)
    bench.catch_up.fall_behind(slow, HERE, 1)
    await bench.eventually(lambda: not slow.behind)
    assert bench.figure("records") == 0


async def test_a_truncated_log_is_told(bench: Bench) -> None:
    slow, other = SlowSubscriber(bench.catch_up, 5), SlowSubscriber(bench.catch_up, 50)
    for each in (slow, other):
        await bench.subscribe("a", each)
    bench.publish(count=100)
    await bench.live()
    bench.log.truncate(*HERE, 40)
    await bench.drained(slow, other)
    assert slow.lost == [(HERE, 5, 40)]
    assert slow.numbers == [*range(5), *range(40, 100)]
    assert (other.lost, other.numbers) == ([], list(range(100)))
    assert (bench.figure("truncations"), bench.figure("truncated_records")) == (1, 35)


async def test_a_log_that_was_cut_at_its_end(bench: Bench) -> None:
    slow = SlowSubscriber(bench.catch_up, 5)
    await bench.subscribe("a", slow)
    bench.publish(count=100)
    await bench.live()
    del bench.log.partition(HERE).records[50:]
    bench.log.truncate(*HERE, 0)  # deletes nothing: the readers look again
    slow.consume(5)
    await bench.eventually(lambda: len(slow.buffer) == 5 or not slow.behind)
    await bench.drained(slow)
    bench.publish(count=2)
    await bench.drained(slow)
    assert slow.numbers == [*range(50), 100, 101]
    assert slow.lost == []


async def test_what_is_skipped_live_is_skipped_here(bench: Bench) -> None:
    slow = SlowSubscriber(bench.catch_up, 1)
    await bench.subscribe("a", slow)
    await bench.subscribe("quiet", slow, 0)
    bench.publish("a", 2)
    bench.publish("a", qos=0)
    bench.publish("quiet")
    bench.publish("a", expiry_s=10)
    bench.publish("a", expiry_s=1_000)
    bench.publish("nobody")
    bench.log.put(*HERE, b"a", b"unreadable", [("mqtt.topic", b"a"), ("mqtt.qos", b"7")])
    bench.log.put(*HERE, None, b"without a name")
    bench.log.put(*HERE, b"a", b"wrong", [("mqtt.topic", b"a/#")])
    await bench.live()
    bench.now_ms += 20_000
    await bench.drained(slow)
    assert slow.numbers == [0, 1, 5]
    assert bench.figure("expired_records") == 1
    assert bench.figure("pump_errors") == 0


async def test_a_subscriber_that_raises_harms_nobody(bench: Bench) -> None:
    class Broken(SlowSubscriber):
        def deliver_late(self, delivery: Delivery, grant: Grant) -> bool:
            raise ValueError("broken")

        def caught_up(self, position: Position) -> None:
            super().caught_up(position)
            raise ValueError("broken")

        def records_lost(self, position: Position, first: int, following: int) -> None:
            raise ValueError("broken")

    broken, slow = Broken(bench.catch_up, 1), SlowSubscriber(bench.catch_up, 1)
    for each in (broken, slow):
        await bench.subscribe("a", each)
    bench.publish(count=10)
    await bench.live()
    bench.log.truncate(*HERE, 5)
    await bench.drained(broken, slow)
    assert broken.numbers == [0]
    assert slow.numbers == [0, *range(5, 10)]
    assert bench.figure("subscriber_errors") == 7


async def test_kafka_that_does_not_answer_delays_and_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowSubscriber(bench.catch_up, 5)
    await bench.subscribe("a", slow)
    bench.publish(count=50)
    await bench.live()
    whole = MemoryLogConsumer.fetch
    troubles = deque([LogUnavailable("away"), ValueError("a fault of ours")])

    async def fetch(consumer: MemoryLogConsumer, timeout_s: float) -> Any:
        if consumer._group_id is None and troubles:
            raise troubles.popleft()
        return await whole(consumer, timeout_s)

    monkeypatch.setattr(MemoryLogConsumer, "fetch", fetch)
    bench.log.pause()
    slow.consume(5)
    await turns(50)
    assert not slow.buffer
    bench.log.resume()
    await bench.drained(slow)
    assert slow.numbers == list(range(50))
    assert (bench.figure("log_errors"), bench.figure("pump_errors")) == (1, 1)


async def test_what_is_held_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.catch_up, "HELD_RECORDS_MAX", 1_200)
    monkeypatch.setattr(bridge.catch_up, "HELD_BYTES_MAX", 4_500)
    crowd = [SlowSubscriber(bench.catch_up, dice) for dice in range(1, 40)]
    for each in crowd:
        await bench.subscribe("#", each)
    bench.publish(count=3_000)
    await bench.live()

    def step() -> bool:
        for each in crowd:
            each.consume(each.buffer_max)
        assert bench.figure("held_records") <= 1_200
        assert bench.figure("held_bytes") <= 4_500
        return not any(each.behind for each in crowd[20:])

    await bench.eventually(step)
    for each in crowd[:20]:
        bench.catch_up.forget(each)
    await bench.eventually(lambda: bench.figure("held_records") == bench.figure("held_bytes") == 0)


async def test_the_pump_gives_way() -> None:
    """Between two of its turns everybody else has one, and what it handed over is written."""
    bench = Bench()
    await bench.deliverer.start()
    slow = SlowSubscriber(bench.catch_up, 1)
    await bench.subscribe("a", slow)
    bench.publish(count=10_001)
    await bench.live()
    slow.buffer_max = 1_000_000
    slow.consume(1)
    turns_seen = []
    while slow.behind:
        await asyncio.sleep(0)
        turns_seen.append(len(slow.buffer))
    steps = [after - before for before, after in pairwise(turns_seen)]
    assert max(steps) <= TURN_RECORDS_MAX
    assert bench.after_batches >= 100
    await bench.catch_up.stop()
    await bench.deliverer.stop()


async def test_stop_in_the_middle(bench: Bench) -> None:
    slow = SlowSubscriber(bench.catch_up, 1)
    await bench.subscribe("a", slow)
    bench.publish(count=100)
    await bench.live()
    slow.consume(1)
    await bench.eventually(lambda: bench.figure("records") > 0)
    await bench.catch_up.stop()
    assert slow.behind
    bench.catch_up.forget(slow)
    bench.catch_up.fall_behind(slow, HERE, 0)  # nothing happens any more
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "headwater-catch-up"]
