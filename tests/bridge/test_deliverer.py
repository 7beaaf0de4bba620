"""The deliverer on the log in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from support.logs import RecordingSubscriber, turns

from bridge.deliverer import Deliverer
from bridge.delivery import Delivery
from bridge.log import LogUnavailable, Position
from bridge.memory_log import MemoryLog
from bridge.partitioning import Destination, RouteTable
from bridge.publisher import Publisher
from bridge.subscriptions import Grant, Subscription, SubscriptionTable
from schemas.message import Message
from schemas.records import encode_headers
from schemas.routes import DEAD_LETTER, DEFAULT_ROUTES

NODE = "n1"
GROUP = "headwater.node.n1"


class Bench:
    """A node's deliverer and publisher on one log in memory."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000
        self.log = MemoryLog(lambda: self.now_ms)
        self.routes = RouteTable(DEFAULT_ROUTES)
        self.table = SubscriptionTable()
        self.publisher = Publisher(self.log)
        self.after_batches = 0
        self.deliverer = Deliverer(
            self.log,
            self.routes,
            self.table,
            NODE,
            self._after_batch,
            publisher=self.publisher,
            commit_interval_s=0.02,
            clock_ms=lambda: self.now_ms,
        )

    def _after_batch(self) -> None:
        self.after_batches += 1

    async def subscribe(self, topic_filter: str, subscriber: RecordingSubscriber, **options: Any) -> None:
        self.table.add(Subscription(subscriber, topic_filter, 1, **options))
        known = self.deliverer.add_filter(topic_filter)
        if known is not None:
            await asyncio.wait_for(known, 5)

    def unsubscribe(self, topic_filter: str, subscriber: RecordingSubscriber) -> None:
        self.table.remove(topic_filter, subscriber)
        self.deliverer.remove_filter(topic_filter)

    def publish(self, topic_name: str, payload: bytes = b"", **properties: Any) -> Destination:
        """What another node or a Kafka client writes: it is in the log when this returns."""
        headers = encode_headers(Message(topic_name, payload, **properties))
        destination = self.routes.destination(topic_name)
        self.log.put(destination.kafka_topic, destination.partition, destination.key, payload, headers)
        return destination

    async def eventually(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - anything may make it true
                await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.deliverer.start()
    yield made
    await made.deliverer.stop()
    await made.publisher.stop(timeout_s=0)
    await made.log.stop()


async def test_what_is_published_after_the_subscription_is_delivered_whole(bench: Bench) -> None:
    subscriber = RecordingSubscriber()
    bench.publish("sensors/a/b/temp", b"before")
    await bench.subscribe("sensors/a/b/#", subscriber)
    properties = {"qos": 0, "retain": True, "client_id": "dev", "content_type": "text/plain", "expiry_s": 60}
    place = bench.publish("sensors/a/b/temp", b"21.5", user_properties=(("unit", "C"),), **properties)
    await subscriber.wait(1)
    (delivery,) = subscriber.deliveries
    assert delivery.topic_name_utf8 == b"sensors/a/b/temp"
    assert (delivery.topic_name, delivery.payload) == ("sensors/a/b/temp", b"21.5")
    assert (delivery.qos, delivery.retain, delivery.client_id, delivery.expiry_s) == (0, True, "dev", 60)
    assert (delivery.kafka_topic, delivery.partition, delivery.offset) == (place.kafka_topic, place.partition, 1)
    assert delivery.timestamp_ms == bench.now_ms
    assert delivery.properties is not None
    assert delivery.properties.content_type == "text/plain"
    assert delivery.properties.user_properties == (("unit", "C"),)
    assert delivery.remaining_expiry_s(bench.now_ms + 20_500) == 40
    assert delivery.frames is None
    assert bench.after_batches >= 1


async def test_a_plain_record_has_defaults_and_a_record_of_a_kafka_client_gets_its_name_from_the_key(
    bench: Bench,
) -> None:
    subscriber = RecordingSubscriber()
    await bench.subscribe("#", subscriber)
    bench.publish("sensors/a/b/temp", b"1")
    destination = bench.routes.destination("sensors/a/b")
    bench.log.put(destination.kafka_topic, destination.partition, b"a/b", None, ())
    await subscriber.wait(2)
    plain, keyed = subscriber.deliveries
    assert (plain.qos, plain.retain, plain.client_id, plain.expiry_s, plain.properties) == (1, False, "", None, None)
    assert (keyed.topic_name, keyed.payload) == ("sensors/a/b", b"")


async def test_a_filter_that_fixes_the_key_reads_one_partition_and_a_thousand_subscribers_read_no_more(
    bench: Bench,
) -> None:
    subscribers = [RecordingSubscriber() for _ in range(1_000)]
    for subscriber in subscribers:
        await bench.subscribe("sensors/a/b/#", subscriber)
    (position,) = bench.deliverer.positions()
    assert position == (bench.routes.destination("sensors/a/b/x").kafka_topic, position[1])
    assert bench.deliverer.statistics()["assignments"] == 1
    bench.publish("sensors/a/b/temp", b"1")
    for subscriber in subscribers:
        await subscriber.wait(1)
    await bench.eventually(lambda: bench.log.committed.get(GROUP) == {position: 1})
    for subscriber in subscribers[1:]:
        bench.unsubscribe("sensors/a/b/#", subscriber)
    assert set(bench.deliverer.positions()) == {position}
    bench.unsubscribe("sensors/a/b/#", subscribers[0])
    assert bench.deliverer.positions() == {}
    await bench.eventually(lambda: bench.log.committed.get(GROUP) == {})


async def test_a_partition_stays_while_any_filter_needs_it(bench: Bench) -> None:
    one, other = RecordingSubscriber(), RecordingSubscriber()
    await bench.subscribe("sensors/a/b/#", one)
    await bench.subscribe("sensors/a/+/temp", other)
    assert len(bench.deliverer.positions()) == 12
    bench.unsubscribe("sensors/a/+/temp", other)
    assert len(bench.deliverer.positions()) == 1
    bench.publish("sensors/a/b/temp", b"1")
    await one.wait(1)
    assert other.deliveries == []


async def test_add_filter_is_done_at_once_when_the_positions_are_known(bench: Bench) -> None:
    subscriber = RecordingSubscriber()
    await bench.subscribe("#", subscriber)
    assert bench.deliverer.add_filter("sensors/+/+/temp") is None
    assert bench.deliverer.add_filter("#") is None


async def test_add_filter_waits_for_a_log_that_is_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [LogUnavailable("away"), LogUnavailable("away")]
    real = bench.log.end_offsets

    async def end_offsets(partitions: frozenset[Position]) -> dict[Position, int]:
        if answers:
            raise answers.pop()
        return await real(partitions)

    monkeypatch.setattr(bench.log, "end_offsets", end_offsets)
    subscriber = RecordingSubscriber()
    await bench.subscribe("a", subscriber)
    bench.publish("a", b"1")
    await subscriber.wait(1)


async def test_a_filter_removed_while_its_positions_are_asked_for_leaves_nothing(bench: Bench) -> None:
    known = bench.deliverer.add_filter("a")
    assert known is not None
    bench.deliverer.remove_filter("a")
    await asyncio.wait_for(known, 5)
    await turns()
    assert bench.deliverer.positions() == {}
    assert bench.deliverer.statistics()["partitions"] == 0


async def test_records_before_the_subscription_are_not_for_it_though_the_node_reads_them(bench: Bench) -> None:
    early, late = RecordingSubscriber(), RecordingSubscriber()
    await bench.subscribe("a/b", early)
    bench.log.pause()
    for number in range(5):
        bench.publish("a/b", b"%d" % number)
    destination = bench.routes.destination("a/b")
    position = (destination.kafka_topic, destination.partition)
    assert bench.deliverer.start_positions("a/b") == {position: 0}, "nobody told this node of them yet"
    await bench.subscribe("a/b", late, not_before={position: 3})
    bench.log.resume()
    await early.wait(5)
    await late.wait(2)
    assert late.payloads == [b"3", b"4"]
    (shard,) = bench.table.match("a/b")
    assert not any(grant.not_before for grant in shard), "once passed, the bound is dropped"


async def test_start_positions_know_what_our_own_publisher_has_had_acknowledged(bench: Bench) -> None:
    destination = bench.routes.destination("a/b")
    position = (destination.kafka_topic, destination.partition)
    assert bench.deliverer.start_positions("a/b") == {position: 0}
    headers = encode_headers(Message("a/b", b"x"))
    await bench.publisher.append_future(destination, b"x", headers)
    assert bench.deliverer.start_positions("a/b") == {position: 1}


class RunRecorder(RecordingSubscriber):
    """Takes runs, and knows how long they were."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def deliver_run(self, deliveries: list[Delivery], grant: Grant) -> None:
        self.lengths.append(len(deliveries))
        for delivery in deliveries:
            self.deliver(delivery, grant)


@pytest.mark.parametrize("seed", range(5))
async def test_records_that_have_their_headers_in_common_come_as_runs_and_are_the_same(bench: Bench, seed: int) -> None:
    """Two nodes read the same records: one has a subscriber that takes runs, the other one that does not."""
    chance = random.Random(seed)
    other = Bench()
    await other.deliverer.start()
    plain, runs = RecordingSubscriber(), RunRecorder()
    kinds: list[dict[str, Any]] = [{}, {}, {"qos": 0}, {"client_id": "x"}, {"expiry_s": 9}, {"content_type": "t"}]
    for each, subscriber in ((bench, runs), (other, plain)):
        await each.subscribe("a/#", subscriber)
        each.publish("a/b", b"the first of each partition comes alone")
        each.publish("a/c", b"the first of each partition comes alone")
    count = 2
    for _ in range(40):
        name, kind = chance.choice(["a/b", "a/c", "other"]), chance.choice(kinds)
        for _ in range(chance.randrange(5)):
            count += name != "other"
            payload = b"%d" % count if chance.random() < 0.8 else b""
            for each in (bench, other):
                each.publish(name, payload, **kind)
    for name in (b"a/b", b"a/c", b"a/b", b"a/c"):  # without a header of ours: the key says the name
        destination = bench.routes.destination("a/b")
        for each in (bench, other):
            each.log.put(destination.kafka_topic, destination.partition, name, b"by key", ())
    await runs.wait(count + 4)
    await plain.wait(count + 4)
    await other.deliverer.stop()
    await other.publisher.stop(timeout_s=0)
    await other.log.stop()
    assert sorted(map(repr, map(tuple, runs.deliveries))) == sorted(map(repr, map(tuple, plain.deliveries)))
    for name in (b"a/b", b"a/c"):
        offsets = [each.offset for each in runs.deliveries if each.topic_name_utf8 == name]
        assert offsets == sorted(offsets)
    assert max(runs.lengths) >= 3
    assert bench.deliverer.statistics()["deliveries"] == other.deliverer.statistics()["deliveries"] == count + 4


async def test_an_expired_message_is_not_delivered(bench: Bench) -> None:
    subscriber = RecordingSubscriber()
    await bench.subscribe("a", subscriber)
    bench.log.pause()
    bench.publish("a", b"short", expiry_s=10)
    bench.publish("a", b"long", expiry_s=11)
    bench.now_ms += 10_000
    bench.log.resume()
    await subscriber.wait(1)
    assert subscriber.payloads == [b"long"]
    assert bench.deliverer.statistics()["expired_records"] == 1


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([("mqtt.topic", b"a"), ("mqtt.qos", b"7")], "mqtt.qos"),
        ([("mqtt.topic", b"a"), ("mqtt.client_id", b"\xff")], "mqtt.client_id"),
        ([("mqtt.topic", b"a"), ("mqtt.expiry_s", b"soon")], "mqtt.expiry_s"),
        ([("mqtt.topic", b"a"), ("content-type", b"\xff")], "content-type"),
        ([("mqtt.topic", b"a/+")], "Topic Name"),
        ([("mqtt.topic", b"\xff")], "UTF-8"),
        ([], "the key gives no Topic Name"),
    ],
)
async def test_an_unreadable_record_goes_to_the_dead_letter_topic_and_the_next_is_delivered(
    bench: Bench, headers: list[tuple[str, bytes]], reason: str
) -> None:
    subscriber = RecordingSubscriber()
    await bench.subscribe("a", subscriber)
    destination = bench.routes.destination("a")
    key = b"a" if headers else b"no/+"
    bench.log.put(destination.kafka_topic, destination.partition, key, b"poison", headers)
    bench.publish("a", b"good")
    await subscriber.wait(1)
    assert subscriber.payloads == [b"good"]
    assert await bench.publisher.flush(5)
    (letter,) = bench.log.records(DEAD_LETTER, 0)
    assert (letter.key, letter.value) == (key, b"poison")
    found = dict(letter.headers)
    assert reason in (found["headwater.reason"] or b"").decode()
    assert found["headwater.source"] == f"{destination.kafka_topic}/{destination.partition}/0".encode()
    assert bench.deliverer.statistics()["unreadable_records"] == 1


async def test_a_subscriber_that_raises_harms_nobody_else(bench: Bench) -> None:
    class Bad(RecordingSubscriber):
        def deliver(self, delivery: object, grant: object) -> None:
            raise RuntimeError("bad subscriber")

    good = RecordingSubscriber()
    await bench.subscribe("a", Bad())
    await bench.subscribe("a", good)
    bench.publish("a", b"1")
    bench.publish("a", b"2")
    await good.wait(2)
    assert bench.deliverer.statistics()["subscriber_errors"] == 2


async def test_a_truncated_log_is_counted_and_reading_goes_on(bench: Bench) -> None:
    subscriber = RecordingSubscriber()
    await bench.subscribe("a", subscriber)
    bench.log.pause()
    for number in range(10):
        destination = bench.publish("a", b"%d" % number)
    bench.log.truncate(destination.kafka_topic, destination.partition, 7)
    bench.log.resume()
    await subscriber.wait(3)
    assert subscriber.payloads == [b"7", b"8", b"9"]
    statistics = bench.deliverer.statistics()
    assert (statistics["truncations"], statistics["truncated_records"]) == (1, 7)


async def test_a_hot_filter_gives_way_between_its_shards_and_keeps_the_order(bench: Bench) -> None:
    """3,000 subscribers are three shards; another task gets its turns meanwhile, and nobody sees a swap."""
    subscribers = [RecordingSubscriber() for _ in range(3_000)]
    for subscriber in subscribers:
        await bench.subscribe("hot", subscriber)
    running = 0
    stop = asyncio.Event()

    async def ping() -> None:
        nonlocal running
        while not stop.is_set():
            running += 1
            await asyncio.sleep(0)

    seen_at: list[int] = []
    subscribers[0].deliver = lambda delivery, grant: seen_at.append(running)  # type: ignore[method-assign]
    pinging = asyncio.ensure_future(ping())
    for number in range(5):
        bench.publish("hot", b"%d" % number)
    await subscribers[-1].wait(5)
    stop.set()
    await pinging
    assert max(later - earlier for earlier, later in pairwise(seen_at)) >= 3, "at least a turn for others per shard"
    for subscriber in subscribers[1:]:
        assert subscriber.payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert bench.deliverer.statistics()["deliveries"] == 15_000


async def test_who_unsubscribes_between_two_shards_gets_no_more(bench: Bench) -> None:
    subscribers = [RecordingSubscriber() for _ in range(1_500)]
    for subscriber in subscribers:
        await bench.subscribe("hot", subscriber)
    last = subscribers[-1]
    first_deliver = subscribers[0].deliver

    def deliver(delivery: Any, grant: Any) -> None:
        first_deliver(delivery, grant)
        asyncio.get_running_loop().call_soon(bench.unsubscribe, "hot", last)

    subscribers[0].deliver = deliver  # type: ignore[method-assign]
    bench.publish("hot", b"1")
    await subscribers[-2].wait(1)
    await turns()
    assert last.deliveries == []


async def test_the_pump_gives_way_within_a_long_run(bench: Bench) -> None:
    subscriber = RecordingSubscriber()
    await bench.subscribe("a", subscriber)
    bench.log.pause()
    for number in range(5_000):
        bench.publish("a", b"%d" % number)
    before = bench.after_batches
    bench.log.resume()
    await subscriber.wait(5_000)
    assert bench.after_batches - before >= 9
    assert subscriber.payloads == [b"%d" % number for number in range(5_000)]


async def test_offsets_of_an_earlier_life_are_forgotten(bench: Bench) -> None:
    bench.log.committed[GROUP] = {("mqtt.messages", 3): 99}
    fresh = Deliverer(bench.log, bench.routes, bench.table, NODE, commit_interval_s=0.01)
    await fresh.start()
    await bench.eventually(lambda: bench.log.committed[GROUP] == {})
    await fresh.stop()


async def test_stop_stores_the_positions(bench: Bench) -> None:
    deliverer = Deliverer(bench.log, bench.routes, bench.table, "leaving", commit_interval_s=60)
    await deliverer.start()
    known = deliverer.add_filter("a")
    assert known is not None
    await known
    bench.publish("a", b"1")
    await bench.eventually(lambda: list(deliverer.positions().values()) == [1])
    await deliverer.stop()
    assert list(bench.log.committed["headwater.node.leaving"].values()) == [1]


@pytest.mark.parametrize("seed", range(10))
async def test_no_gap_and_no_repeat_over_random_reassignments_under_load(bench: Bench, seed: int) -> None:
    """Filters come and go while records pour in: who stays sees every record of its names once, in order."""
    chance = random.Random(seed)
    names = [f"sensors/s{number % 4}/d{number}/temp" for number in range(30)]
    steady, all_of_it = RecordingSubscriber(), RecordingSubscriber()
    await bench.subscribe(names[0], steady)
    await bench.subscribe("sensors/s1/#", all_of_it)
    visitors: list[tuple[str, RecordingSubscriber]] = []
    sent: dict[str, int] = dict.fromkeys(names, 0)

    async def pour() -> None:
        for _ in range(400):
            for name in chance.choices(names, k=chance.randrange(1, 12)):
                bench.publish(name, b"%d" % sent[name])
                sent[name] += 1
            await asyncio.sleep(0)

    pouring = asyncio.ensure_future(pour())
    for _ in range(50):
        if visitors and chance.random() < 0.5:
            topic_filter, visitor = visitors.pop(chance.randrange(len(visitors)))
            bench.unsubscribe(topic_filter, visitor)
        else:
            topic_filter = chance.choice([*names, "sensors/+/d7/#", "sensors/#", "sensors/s2/#"])
            visitor = RecordingSubscriber()
            await bench.subscribe(topic_filter, visitor)
            visitors.append((topic_filter, visitor))
        await turns(chance.randrange(8))
    await pouring
    await steady.wait(sent[names[0]])
    expected = sum(sent[name] for name in names if name.startswith("sensors/s1/"))
    await all_of_it.wait(expected)
    await turns(20)
    assert steady.payloads == [b"%d" % number for number in range(sent[names[0]])]
    for subscriber in (all_of_it, *(visitor for _, visitor in visitors)):
        by_name: dict[str, list[int]] = {}
        for delivery in subscriber.deliveries:
            by_name.setdefault(delivery.topic_name, []).append(int(delivery.payload))
        for name, numbers in by_name.items():
            assert numbers == list(range(numbers[0], sent[name])), name
    assert len(all_of_it.deliveries) == expected
