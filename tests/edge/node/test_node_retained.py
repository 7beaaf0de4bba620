"""Retained messages through edges on the log in memory: stored, found, cleared, expired, paced, the same on all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.edges import memory_edge, mqtt_address, until
from support.logs import turns
from support.wire_client import WireClient, connected, dial

from bridge.memory_log import MemoryLog
from bridge.murmur2 import partition_for_key
from edge.node.node import EdgeNode
from edge.wire import (
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from schemas.retained import RetainedMessage, encode_retained

BOTH = pytest.mark.parametrize("version", [4, 5])
RETAINED = "headwater.retained"


class Clock:
    """Kafka's clock and the edges' wall clock in one, moved by the test."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


async def retain(client: WireClient, topic_name: str, payload: bytes, qos: int = 1, **properties: object) -> None:
    """Publish with RETAIN 1; with QoS 1 until it is acknowledged."""
    with_properties = Properties(**properties) if properties else None  # type: ignore[arg-type]
    await client.send(
        Publish(topic_name.encode(), payload, qos, True, packet_id=7 if qos else 0, properties=with_properties)
    )
    if qos:
        assert (await client.receive(Puback)).reason_code in (None, ReasonCode.SUCCESS)


async def subscribe(client: WireClient, topic_filter: str, qos: int = 1, packet_id: int = 1, **options: object) -> None:
    """SUBSCRIBE and its SUBACK; what is retained comes behind."""
    await client.send(Subscribe(packet_id, (SubscriptionRequest(topic_filter, qos, **options),)))  # type: ignore[arg-type]
    assert (await client.receive(Suback)).reason_codes[0] < 0x80


async def next_publish(client: WireClient) -> Publish:
    packet = await client.receive(Publish)
    if packet.qos:
        await client.send(Puback(packet.packet_id))
    return packet


async def nothing_comes(client: WireClient) -> None:
    """Whatever was on its way came before the answer to a PINGREQ that is sent when the edge is idle."""
    await turns(50)
    await client.send(Pingreq())
    await client.receive(Pingresp)


@asynccontextmanager
async def pair(log: MemoryLog) -> AsyncIterator[tuple[EdgeNode, EdgeNode]]:
    """Two edges on one log."""
    async with memory_edge(log, node_id="edge-a") as first, memory_edge(log, node_id="edge-b") as second:
        yield first, second


def put_retained(log: MemoryLog, message: RetainedMessage) -> None:
    """Any edge's retained record, as it lands in the log."""
    key, value, headers = encode_retained(message)
    log.put(RETAINED, partition_for_key(key, 12), key, value, headers)


def retained(topic_name: str, payload: bytes | None, offset: int, partition: int = 0) -> RetainedMessage:
    return RetainedMessage(topic_name.encode(), payload, (), "mqtt.messages", partition, offset, 1_000)


@BOTH
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_new_subscription_gets_the_last_retained_message(version: int, qos: int) -> None:
    """[MQTT311-3.3.1-6] [MQTT311-3.3.1-8] [MQTT5-3.3.1-5] [MQTT5-3.3.1-9], on the same and on another edge."""
    async with pair(MemoryLog()) as nodes:
        async with connected(mqtt_address(nodes[0]), "pub", version) as publisher:
            await retain(publisher, "a/b", b"old", qos)
            await retain(publisher, "a/b", b"new", qos)
            await retain(publisher, "other", b"x", qos)
            await nothing_comes(publisher)
        for node in nodes:
            async with connected(mqtt_address(node), "sub", version) as subscriber:
                await subscribe(subscriber, "a/+")
                packet = await next_publish(subscriber)
                assert (packet.topic_name_utf8.decode(), packet.payload, packet.qos, packet.retain) == (
                    "a/b",
                    b"new",
                    qos,
                    True,
                )
                await nothing_comes(subscriber)


async def test_connack_says_nothing_of_retain() -> None:
    """Retain Available is told only when it is not; section 3.2.2.3.5."""
    async with memory_edge() as node, dial(mqtt_address(node)) as client:
        connack = await client.connect()
        assert connack.properties.retain_available is None


async def test_an_acknowledged_message_is_in_the_retained_topic() -> None:
    """PUBACK comes after both records: an edge that dies has lost nothing that it acknowledged."""
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node)) as client:
        await retain(client, "a", b"x", content_type="text/plain", user_properties=(("k", "v"),))
        (record,) = log.records(RETAINED, partition_for_key(b"a", 12))
        assert (record.key, record.value) == (b"a", b"x")
        headers = dict(record.headers)
        assert headers["content-type"] == b"text/plain"
        assert headers["mqtt.user.k"] == b"v"
        kafka_topic, partition, offset = headers["headwater.source"].decode().split("/")
        message = log.records(kafka_topic, int(partition))[int(offset)]
        assert (message.value, dict(message.headers)["mqtt.retain"]) == (b"x", b"1")


async def test_what_is_not_retained_leaves_the_store_alone() -> None:
    """[MQTT5-3.3.1-8] [MQTT311-3.3.1-12]"""
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        await retain(client, "a", b"kept")
        await client.send(Publish(b"a", b"passing", 1, packet_id=2), Publish(b"a", b"", 1, packet_id=3))
        await client.receive(Puback)
        await client.receive(Puback)
        await subscribe(client, "a")
        assert (await next_publish(client)).payload == b"kept"


@BOTH
async def test_an_empty_payload_is_forwarded_and_clears(version: int) -> None:
    """[MQTT5-3.3.1-6] [MQTT5-3.3.1-7] [MQTT311-3.3.1-10] [MQTT311-3.3.1-11]"""
    log = MemoryLog()
    async with pair(log) as (first, second):
        async with connected(mqtt_address(first), "pub", version) as publisher:
            await retain(publisher, "a", b"x")
            async with connected(mqtt_address(second), "live", version) as live:
                await subscribe(live, "a")
                assert (await next_publish(live)).retain
                await retain(publisher, "a", b"")
                packet = await next_publish(live)
                assert (packet.payload, packet.retain) == (b"", False)
        for node in (first, second):
            async with connected(mqtt_address(node), "late", version) as late:
                await subscribe(late, "#")
                await nothing_comes(late)
        tombstone = log.records(RETAINED, partition_for_key(b"a", 12))[-1]
        assert tombstone.value is None
        assert b"/" in (dict(tombstone.headers)["headwater.source"] or b"")


async def test_retain_handling() -> None:
    """[MQTT5-3.3.1-9] [MQTT5-3.3.1-10] [MQTT5-3.3.1-11] [MQTT5-3.8.4-4]"""
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        await retain(client, "a", b"x")
        await subscribe(client, "a", retain_handling=2)
        await nothing_comes(client)
        await subscribe(client, "a", retain_handling=1)  # it exists
        await nothing_comes(client)
        await subscribe(client, "a", retain_handling=0)
        assert (await next_publish(client)).retain
        await subscribe(client, "a", retain_handling=0)
        assert (await next_publish(client)).retain
        await client.send(Unsubscribe(9, ("a",)))
        await client.receive(Unsuback)
        await subscribe(client, "a", retain_handling=1)  # it is new
        assert (await next_publish(client)).retain


async def test_a_subscription_of_3_1_1_that_replaces_gets_them_again() -> None:
    """[MQTT311-3.8.4-3]"""
    async with memory_edge() as node, connected(mqtt_address(node), protocol_version=4) as client:
        await retain(client, "a", b"x")
        for _ in range(3):
            await subscribe(client, "a")
            assert (await next_publish(client)).retain
        await nothing_comes(client)


async def test_options_and_properties_of_a_retained_message() -> None:
    """The lower QoS, the Subscription Identifier, the publisher's properties [MQTT5-3.3.4-3] [MQTT5-3.3.2-17]."""
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        await retain(
            client,
            "a",
            b"x",
            content_type="t",
            response_topic="r",
            correlation_data=b"c",
            payload_format_indicator=1,
            user_properties=(("k", "1"), ("k", "2")),
        )
        packet = Subscribe(1, (SubscriptionRequest("a", 0),), Properties(subscription_identifiers=(9,)))
        await client.send(packet)
        await client.receive(Suback)
        got = await client.receive(Publish)
        assert (got.qos, got.retain) == (0, True)
        properties = got.properties
        assert properties is not None
        assert properties.subscription_identifiers == (9,)
        assert (properties.content_type, properties.response_topic) == ("t", "r")
        assert (properties.correlation_data, properties.payload_format_indicator) == (b"c", 1)
        assert properties.user_properties == (("k", "1"), ("k", "2"))


async def test_no_local_holds_for_retained_messages() -> None:
    """[MQTT5-3.8.3-3]: "Application Messages MUST NOT be forwarded", retained or not; others get it, and it others'."""
    async with memory_edge() as node, connected(mqtt_address(node), "me") as client:
        await retain(client, "a", b"mine")
        await subscribe(client, "#", no_local=True)
        await nothing_comes(client)
        async with connected(mqtt_address(node), "you") as other:
            await subscribe(other, "a", no_local=True)
            assert (await next_publish(other)).payload == b"mine"


async def test_live_messages_keep_their_flag_as_subscribed() -> None:
    """[MQTT5-3.3.1-12] [MQTT5-3.3.1-13] for a message that is retained."""
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        await subscribe(client, "a", retain_as_published=True)
        await subscribe(client, "b")
        await client.send(Publish(b"a", b"1", 0, True), Publish(b"b", b"2", 0, True))
        flags = {
            packet.topic_name_utf8.decode(): packet.retain
            for packet in (await next_publish(client), await next_publish(client))
        }
        assert flags == {"a": True, "b": False}


async def test_names_that_start_with_a_dollar() -> None:
    """[MQTT5-4.7.2-1] [MQTT311-4.7.2-1]"""
    log = MemoryLog()
    put_retained(log, retained("$other/a", b"x", 0))
    put_retained(log, retained("plain/a", b"y", 1))
    async with memory_edge(log) as node, connected(mqtt_address(node)) as client:
        for number, topic_filter in enumerate(("#", "+/a", "+/#"), start=1):
            await subscribe(client, topic_filter, packet_id=number)
            assert (await next_publish(client)).payload == b"y"
        await nothing_comes(client)
        await subscribe(client, "$other/#", packet_id=9)
        assert (await next_publish(client)).payload == b"x"


async def test_a_retained_will() -> None:
    """[MQTT5-3.1.2-15] [MQTT311-3.1.2-17] and, not retained, [MQTT5-3.1.2-14]"""
    async with memory_edge() as node:
        for version in (4, 5):
            for keep in (True, False):
                name = f"will/{version}/{keep}"
                async with connected(mqtt_address(node), "w", version, will=Will(name, b"gone", 1, keep)):
                    pass
        await until(lambda: node.services.counters.wills_published == 4)
        async with connected(mqtt_address(node), "s") as client:
            await subscribe(client, "will/#")
            assert [(await next_publish(client)).topic_name_utf8.decode() for _ in range(2)] == [
                "will/4/True",
                "will/5/True",
            ]
            await nothing_comes(client)


async def test_expiry_counts_on_while_stored() -> None:
    """[MQTT5-3.3.2-5] [MQTT5-3.3.2-6]; what has expired is cleared in the log, too."""
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node)) as client:
        await retain(client, "short", b"x", message_expiry_interval_s=10)
        await retain(client, "long", b"y", message_expiry_interval_s=10_000)
        store = node.services.retained
        assert store is not None
        now_ms = node.services.wall_ms()
        node.services.wall_clock_offset_ms += 100_000
        store._clock_ms = lambda: now_ms + 100_000
        async with connected(mqtt_address(node), "late") as late:
            await subscribe(late, "#")
            packet = await next_publish(late)
            assert packet.topic_name_utf8 == b"long"
            assert packet.properties is not None
            assert packet.properties.message_expiry_interval_s is not None
            assert 9_800 <= packet.properties.message_expiry_interval_s <= 9_901
            await nothing_comes(late)
        await until(lambda: store.view.statistics()["messages"] == 1, "the expired one stays")
        store._clock_ms = lambda: now_ms + 102_000
        await until(lambda: log.records(RETAINED, partition_for_key(b"short", 12))[-1].value is None, "no tombstone")


async def test_two_edges_that_write_the_same_names_agree() -> None:
    """Invariant I9: in whatever order the retained records land."""
    log = MemoryLog()
    async with (
        pair(log) as nodes,
        connected(mqtt_address(nodes[0]), "one") as one,
        connected(mqtt_address(nodes[1]), "two") as two,
    ):

        async def write(client: WireClient, tag: bytes) -> None:
            for number in range(200):
                await client.send(Publish(b"n/%d" % (number % 7), tag + b"%d" % number, 0, True))
            await retain(client, "last/" + tag.decode(), b"x")

        await asyncio.gather(write(one, b"a"), write(two, b"b"))
        views = [node.services.retained.view for node in nodes if node.services.retained is not None]
        await until(lambda: not any(view.misplaced for view in views))
        await until(lambda: views[0].snapshot() == views[1].snapshot())
        assert len(views[0]) == 9
        for name, (payload, (kafka_topic, partition, offset)) in views[0].snapshot().items():
            records = log.records(kafka_topic, partition)
            mine = [record for record in records if dict(record.headers)["mqtt.topic"] == name]
            assert (mine[-1].offset, mine[-1].value) == (offset, payload)
    async with memory_edge(log, node_id="edge-c") as fresh:
        assert fresh.services.retained is not None
        assert fresh.services.retained.view.snapshot() == views[0].snapshot()


@pytest.mark.parametrize("newer", [b"newer", None])
async def test_read_repair(newer: bytes | None) -> None:
    """An older record lands last: every edge keeps the newer one, and one of them writes it again behind."""
    log = MemoryLog()
    async with pair(log) as nodes:
        put_retained(log, retained("a", newer, 9))
        put_retained(log, retained("a", b"older", 5))
        partition = partition_for_key(b"a", 12)
        await until(lambda: len(log.records(RETAINED, partition)) >= 3, "no repair")
        last = log.records(RETAINED, partition)[-1]
        assert last.value == newer
        assert dict(last.headers)["headwater.source"] == b"mqtt.messages/0/9"
        for node in nodes:
            store = node.services.retained
            assert store is not None
            await until(lambda store=store: not store.view.misplaced)  # type: ignore[misc]
            assert store.view.get(b"a", 0) is None if newer is None else store.view.snapshot()[b"a"][0] == newer
    log.truncate(RETAINED, partition, last.offset)  # what compaction leaves
    async with memory_edge(log) as fresh:
        assert fresh.services.retained is not None
        assert len(fresh.services.retained.view) == (newer is not None)


async def test_a_repair_is_due_from_an_earlier_life() -> None:
    """An edge that starts finds the older record last, and repairs."""
    log = MemoryLog()
    put_retained(log, retained("a", b"newer", 9))
    put_retained(log, retained("a", b"older", 5))
    async with memory_edge(log):
        await until(lambda: log.records(RETAINED, partition_for_key(b"a", 12))[-1].value == b"newer")


async def test_unreadable_records_are_set_aside() -> None:
    log = MemoryLog()
    log.put(RETAINED, 0, b"a/#", b"x")
    log.put(RETAINED, 0, None, b"x")
    log.put(RETAINED, 0, b"a", b"x", [("mqtt.expiry_s", b"soon")])
    log.put(RETAINED, 0, b"good", b"x")
    async with memory_edge(log) as node:
        assert node.services.retained is not None
        assert node.services.retained.view.snapshot().keys() == {b"good"}
        await until(lambda: len(log.records("mqtt.dead_letter", 0)) == 3)


async def test_20_000_of_them_do_not_stall_the_others() -> None:
    """20,000 matches go to a client that takes them, and to one that takes none; a third one's pings are answered."""
    log = MemoryLog()
    for number in range(20_000):
        put_retained(log, retained(f"n/{number:05}", b"x" * 200, number))
    async with (
        memory_edge(log) as node,
        connected(mqtt_address(node), "deaf") as deaf,
        connected(mqtt_address(node), "all") as client,
        connected(mqtt_address(node), "other") as other,
    ):
        loop = asyncio.get_running_loop()
        await deaf.send(Subscribe(1, (SubscriptionRequest("#", 0),)))
        await subscribe(client, "#", 0)
        worst_s, pings, done = 0.0, 0, False

        async def ping() -> None:
            nonlocal worst_s, pings
            while not done:
                began = loop.time()
                await other.send(Pingreq())
                await other.receive(Pingresp)
                worst_s, pings = max(worst_s, loop.time() - began), pings + 1

        pinging = asyncio.create_task(ping())
        names = [(await client.receive(Publish)).topic_name_utf8.decode() for _ in range(20_000)]
        done = True
        await pinging
        assert names == [f"n/{number:05}" for number in range(20_000)]
        assert pings > 10
        assert worst_s < 0.5
        handler = node.services.clients["deaf"]
        assert handler.transport is not None
        assert handler.transport.get_write_buffer_size() < 1024 * 1024
        assert sum(map(len, handler.engine.out)) < 256 * 1024
        count = 0
        await deaf.receive(Suback)
        for _ in range(20_000):
            await deaf.receive(Publish)
            count += 1
        assert count == 20_000
        await until(lambda: node.services.clients["deaf"].retaining is None)


async def test_qos_1_is_paced_by_the_window() -> None:
    """Never more in flight than Receive Maximum [MQTT5-3.3.4-9], nothing in the buffer, every one in the end."""
    log = MemoryLog()
    for number in range(300):
        put_retained(log, retained(f"n/{number:03}", b"x", number))
    async with (
        memory_edge(log) as node,
        connected(mqtt_address(node), properties=Properties(receive_maximum=5)) as client,
    ):
        await subscribe(client, "n/+")
        for _ in range(60):
            packets = [await client.receive(Publish) for _ in range(5)]
            outgoing = node.services.clients["c"].engine.outgoing
            assert outgoing is not None
            assert (len(outgoing.inflight), outgoing.queue_length) == (5, 0)
            await client.send(*(Puback(packet.packet_id) for packet in packets))
        await nothing_comes(client)
        await until(lambda: node.services.clients["c"].retaining is None)


async def test_an_older_retained_message_never_follows_a_newer_live_one() -> None:
    """A client that acknowledges slowly; meanwhile everything is written anew, retained or not."""
    log = MemoryLog()
    async with (
        memory_edge(log) as node,
        connected(mqtt_address(node), "pub") as publisher,
        connected(mqtt_address(node), properties=Properties(receive_maximum=2)) as client,
    ):
        names = [f"n/{number}" for number in range(20)]
        for name in names:
            await retain(publisher, name, b"0")
        await subscribe(client, "#")
        for name in names:
            await publisher.send(Publish(name.encode(), b"1", 0, name.endswith("5")))
        got: dict[str, list[tuple[bytes, bool]]] = {}
        for _ in range(2 * len(names)):
            packet = await next_publish(client)
            got.setdefault(packet.topic_name_utf8.decode(), []).append((packet.payload, packet.retain))
        assert got == {name: [(b"0", True), (b"1", False)] for name in names}
        await nothing_comes(client)


@BOTH
async def test_a_retained_record_that_lands_after_the_subscription(version: int) -> None:
    """Its message was before the subscription, so it never comes live: it is sent when the edge learns of it."""
    log = MemoryLog()
    for number in range(3):
        log.put("mqtt.messages", 0, b"x/%d" % number, b"x", [("mqtt.topic", b"x/%d" % number)])
    async with memory_edge(log) as node, connected(mqtt_address(node), "c", version) as client:
        await subscribe(client, "n/+")
        put_retained(log, retained("n/late", b"0", 1))
        packet = await next_publish(client)
        assert (packet.topic_name_utf8, packet.payload, packet.retain) == (b"n/late", b"0", True)
        put_retained(log, retained("n/live", b"1", 3))  # behind the beginning: comes live, if it is there
        put_retained(log, retained("other", b"1", 2))
        await until(lambda: node.services.retained is not None and len(node.services.retained.view) == 3)
        await nothing_comes(client)
        await until(lambda: node.services.clients["c"].retaining is None)
        put_retained(log, retained("n/too-late", b"1", 2))
        await until(lambda: node.services.retained is not None and len(node.services.retained.view) == 4)
        await nothing_comes(client)


async def test_nothing_older_follows_a_live_message() -> None:
    """The retained record of an older message lands after a newer one came live: it is left out."""
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node)) as client:
        destination = node.services.routes.destination("n/a")
        put = (destination.kafka_topic, destination.partition, b"n/a")
        log.put(*put, b"old", [("mqtt.topic", b"n/a"), ("mqtt.retain", b"1")])
        await subscribe(client, "n/+")
        log.put(*put, b"new", [("mqtt.topic", b"n/a")])
        assert (await next_publish(client)).payload == b"new"
        put_retained(log, retained("n/a", b"old", 0, destination.partition))
        await until(lambda: node.services.retained is not None and len(node.services.retained.view) == 1)
        await nothing_comes(client)


async def test_a_client_that_leaves_is_forgotten_at_once() -> None:
    log = MemoryLog()
    for number in range(1_000):
        put_retained(log, retained(f"n/{number:04}", b"x", number))
    async with memory_edge(log) as node:
        async with connected(mqtt_address(node)) as client:
            await subscribe(client, "#")
            assert node.services.pacer is not None
            assert node.services.pacer.statistics()["clients_active"] == 1
        await until(lambda: not node.services.connections)
        assert node.services.pacer.statistics()["clients_active"] == 0


async def test_a_client_that_leaves_during_its_subscribe_is_forgotten() -> None:
    """The SUBSCRIBE is done only after the session's end: nothing may be due to nobody."""
    log = MemoryLog()
    put_retained(log, retained("a", b"x", 0))
    async with memory_edge(log) as node:
        for _ in range(20):
            async with connected(mqtt_address(node)) as client:
                await client.send(Subscribe(1, (SubscriptionRequest("#"),)))
        await until(lambda: not node.services.connections)
        assert node.services.pacer is not None
        await until(lambda: node.services.table.statistics()["subscriptions"] == 0)
        await until(lambda: node.services.pacer.statistics()["clients_active"] == 0)  # type: ignore[union-attr]


async def test_unsubscribe_ends_what_is_due() -> None:
    """[MQTT5-3.10.4-2]"""
    log = MemoryLog()
    for number in range(100):
        put_retained(log, retained(f"n/{number:03}", b"x", number))
    async with (
        memory_edge(log) as node,
        connected(mqtt_address(node), properties=Properties(receive_maximum=1)) as client,
    ):
        await subscribe(client, "#")
        first = await client.receive(Publish)
        await client.send(Unsubscribe(2, ("#",)), Puback(first.packet_id))
        await until(lambda: node.services.clients["c"].retaining is None)
        assert node.services.pacer is not None
        assert node.services.pacer.sent < 5


async def test_rights_that_are_taken_away_end_what_is_due() -> None:
    log = MemoryLog()
    for number in range(100):
        put_retained(log, retained(f"n/{number:03}", b"x", number))
    rules = [{"permit": "allow", "action": "all", "filter": "n/#"}]
    async with (
        memory_edge(log, acl=rules) as node,
        connected(mqtt_address(node), properties=Properties(receive_maximum=1)) as client,
    ):
        await client.send(Subscribe(1, (SubscriptionRequest("#", 1), SubscriptionRequest("n/+", 1))))
        assert (await client.receive(Suback)).reason_codes == (ReasonCode.NOT_AUTHORIZED, ReasonCode.GRANTED_QOS_1)
        first = await client.receive(Publish)
        node.services.access.authorizer.replace(())  # type: ignore[attr-defined]
        node.services.clients["c"].rights_changed()
        await client.send(Puback(first.packet_id))
        await until(lambda: node.services.clients["c"].retaining is None)
        assert node.services.pacer is not None
        assert node.services.pacer.sent < 5


@BOTH
async def test_a_new_name_beyond_the_limit_is_refused(version: int) -> None:
    async with (
        memory_edge(limits={"retained_messages_max": 2}) as node,
        connected(mqtt_address(node), "c", version) as client,
    ):
        await retain(client, "a", b"1")
        await retain(client, "b", b"1")
        await retain(client, "a", b"2")
        await until(lambda: node.services.retained is not None and len(node.services.retained.view) == 2)
        await client.send(Publish(b"c", b"1", 1, True, packet_id=9))
        if version == 5:
            assert (await client.receive(Puback)).reason_code is ReasonCode.QUOTA_EXCEEDED
        else:
            assert await client.until_closed() == []


async def test_kafka_does_not_answer() -> None:
    """A subscription goes on with what the edge knows; a publish is not acknowledged."""
    log = MemoryLog()
    put_retained(log, retained("a", b"x", 0))
    async with memory_edge(log) as node, connected(mqtt_address(node)) as client:
        log.pause()
        await client.send(Publish(b"b", b"x", 0, True))
        await subscribe(client, "a")
        assert (await next_publish(client)).payload == b"x"
        await client.send(Publish(b"b", b"x", 1, True, packet_id=1))
        await nothing_comes(client)
        log.resume()
        await client.receive(Puback)


async def test_the_node_tells_its_figures() -> None:
    from edge.node.statistics import node_statistics, prometheus_text

    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        await retain(client, "a", b"1")
        figures = node_statistics(node.services)["retained"]
        assert (figures["messages"], figures["published"]) == (1, 1)
        assert b"headwater_retained_messages" in prometheus_text(node.services)
        await client.send(Disconnect())
