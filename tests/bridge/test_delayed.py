"""The delayed messages of one node: in order of what is due, in one transaction with their tombstones; fences."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from support.edges import records_of, values_of

from bridge.delayed import BATCH_MESSAGES_MAX, DelayedMessages
from bridge.delayed_view import DelayedView, Waiting
from bridge.log import PendingRecord, Position, ProducerFenced, RecordRefused, TransactionalProducer
from bridge.memory_log import MemoryLog
from bridge.partitioning import RouteTable
from schemas.catalogue import DELAYED
from schemas.delayed import HEADER_DELAY_S
from schemas.records import HEADER_TOPIC
from schemas.routes import DEFAULT_ROUTES

T0_MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = T0_MS


def waiting(key: bytes, due_ms: int, offset: int, value: bytes = b"v") -> Waiting:
    return Waiting(key, due_ms, offset, value, ((HEADER_TOPIC, b"t"),))


def test_what_is_due_comes_in_order_and_stays_until_it_is_published() -> None:
    view = DelayedView(2)
    for key, due_ms, offset in ((b"c", 30, 0), (b"a", 10, 1), (b"b", 10, 2), (b"d", 40, 3)):
        view.add(0, waiting(key, due_ms, offset))
    view.add(0, waiting(b"a", 5, 9))  # sent again
    view.add(1, waiting(b"x", 1, 0))
    assert [each.key for each in view.due(0, 30, 10)] == [b"a", b"b", b"c"]
    assert [each.key for each in view.due(0, 30, 2)] == [b"a", b"b"]
    view.remove(0, b"a")
    view.remove(0, b"a")
    assert view.next_due_ms(0) == 10
    assert [each.key for each in view.due(0, 30, 10)] == [b"b", b"c"]
    for key in (b"b", b"c", b"d"):
        view.remove(0, key)
    assert view.next_due_ms(0) is None
    view.clear(1)
    assert (view.messages, view.size_bytes, view.next_due_ms(1)) == (0, 0, None)


async def append(log: MemoryLog, messages: DelayedMessages, name: str, value: bytes, delay_s: object = 1) -> None:
    place = messages.place(name, len(value))
    assert place is not None
    headers = [(HEADER_TOPIC, name.encode()), (HEADER_DELAY_S, str(delay_s).encode())]
    await log.submit(place.kafka_topic, place.partition, [(place.key, value, headers)])


def node(log: MemoryLog, clock: Clock, node_id: str, live: set[str]) -> DelayedMessages:
    return DelayedMessages(
        log,
        RouteTable(DEFAULT_ROUTES),
        None,
        node_id,
        "1",
        lambda: live,
        messages_max=10_000,
        bytes_max=1 << 24,
        clock_ms=lambda: clock.now_ms,
    )


async def test_nothing_before_its_time_then_all_of_it_once_and_nothing_after_a_restart() -> None:
    clock = Clock()
    log = MemoryLog(lambda: clock.now_ms)
    one = node(log, clock, "one", {"one"})
    await one.start()
    count = BATCH_MESSAGES_MAX + 10
    for number in range(count):
        await append(log, one, "t", b"%d" % number)
    await append(log, one, "late", b"late", 100)
    await append(log, one, "t", b"nonsense", "soon")
    await one._tail.caught_up()
    await one.publish_due()
    assert values_of(log, "mqtt.messages.q2") == []
    clock.now_ms += 1_000
    await one.publish_due()
    assert values_of(log, "mqtt.messages.q2") == [b"%d" % number for number in range(count)]
    figures = one.statistics()
    assert (figures["published"], figures["messages"], figures["unreadable"]) == (count, 1, 1)
    await one.stop()

    two = node(log, clock, "two", {"two"})
    await two.start()
    await two.publish_due()
    clock.now_ms += 99_000
    await two.publish_due()
    assert two.statistics()["published"] == 1
    assert values_of(log, "mqtt.messages.q2", "late") == [b"late"]
    assert not any(
        name == HEADER_DELAY_S for record in records_of(log, "mqtt.messages.q2") for name, _ in record.headers
    )
    assert all(record.value is None for record in records_of(log, DELAYED)[-1:])
    await two.stop()


async def test_a_node_that_is_fenced_learns_what_the_other_one_has_published() -> None:
    clock = Clock()
    log = MemoryLog(lambda: clock.now_ms)
    one, two = node(log, clock, "one", {"one"}), node(log, clock, "two", {"two"})
    await one.start()
    await two.start()
    total = 0
    for turn in range(4):
        for each in (one, two):
            await append(log, each, "t", b"%d" % total, 0)
            total += 1
        await one._tail.caught_up()
        await two._tail.caught_up()
        for each in (one, two) if turn % 2 else (two, one):
            while each.view.messages:
                with suppress(ProducerFenced):  # the next time it takes the partition over
                    await each.publish_due()
                await each._tail.caught_up()
    assert values_of(log, "mqtt.messages.q2") == [b"%d" % number for number in range(total)]
    await one.stop()
    await two.stop()


class Refusing:
    """A producer that takes no message with this payload, wherever it is to go."""

    def __init__(self, producer: TransactionalProducer, payload: bytes) -> None:
        self._producer = producer
        self._payload = payload

    async def start(self) -> None:
        await self._producer.start()

    async def commit(self, records: Sequence[tuple[Position, PendingRecord]]) -> list[int]:
        if any(value == self._payload for _, (_, value, _) in records):
            raise RecordRefused("too large")
        return await self._producer.commit(records)

    async def stop(self) -> None:
        await self._producer.stop()


async def test_a_message_that_kafka_does_not_take_is_put_aside_and_holds_up_nobody() -> None:
    clock = Clock()
    log = MemoryLog(lambda: clock.now_ms)
    one = node(log, clock, "one", {"one"})
    await one.start()
    for value in (b"1", b"bad", b"2"):
        await append(log, one, "t", value, 0)
    await one._tail.caught_up()
    (partition,) = {record.partition for record in [one.place("t", 1)] if record is not None}
    one._producers[partition] = Refusing(log.transactional_producer("test"), b"bad")
    await one.publish_due()
    assert values_of(log, "mqtt.messages.q2") == [b"1", b"2"]
    assert [record.value for record in records_of(log, "mqtt.dead_letter")] == [b""]
    figures = one.statistics()
    assert (figures["refused"], figures["messages"]) == (1, 0)
    await one.stop()
