"""A node on the in-memory log, over real sockets: TCP and WebSocket, every version, both QoS, exact and wildcard."""

from __future__ import annotations

import asyncio

import pytest
from support.edges import address_of, memory_edge, mqtt_address, records_of, until, values_of
from support.wire_client import Transport, connected, dial

from bridge.memory_log import MemoryLog
from edge.client import MqttClient
from edge.wire import (
    Connack,
    Connect,
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
    encode,
)

TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "websocket"])


@TRANSPORTS
@pytest.mark.parametrize("version", [3, 4, 5])
async def test_there_and_back(version: int, transport: Transport) -> None:
    log = MemoryLog()
    async with memory_edge(log) as node:
        address = address_of(node, transport)
        async with (
            connected(address, "reader", version, transport) as reader,
            connected(address, "writer", version, transport) as writer,
        ):
            await reader.send(Subscribe(1, (SubscriptionRequest("a/+", 1), SubscriptionRequest("x/#"))))
            assert (await reader.receive(Suback)).reason_codes == (ReasonCode.GRANTED_QOS_1, ReasonCode.GRANTED_QOS_0)
            await writer.send(Publish(b"a/1", b"one", 1, packet_id=7))
            assert await writer.receive(Puback) == Puback(7)
            await writer.send(Publish(b"x/y/z", b"two"), Publish(b"nobody", b"three"), Pingreq())
            await writer.receive(Pingresp)
            got = [await reader.receive(Publish) for _ in range(2)]
            assert {(each.topic_name_utf8, each.payload, each.qos) for each in got} == {
                (b"a/1", b"one", 1),
                (b"x/y/z", b"two", 0),
            }
            await reader.send(Puback(1), Unsubscribe(2, ("x/#", "none")))
            codes = (await reader.receive(Unsuback)).reason_codes
            assert codes == ((ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED) if version == 5 else ())
            await writer.send(Publish(b"x/y/z", b"four"), Publish(b"a/2", b"five"))
            assert (await reader.receive(Publish)).payload == b"five"
            await writer.send(Disconnect())
            assert await writer.until_closed() == []
    assert sorted(values_of(log)) == sorted([b"one", b"two", b"three", b"four", b"five"])


async def test_the_record_in_the_log() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node), "dev-1") as client:
        properties = Properties(message_expiry_interval_s=60, content_type="text/plain", user_properties=(("k", "v"),))
        await client.send(Publish(b"sensors/s/d/temp", b"21.5", 1, packet_id=1, properties=properties))
        await client.receive(Puback)
        [record] = records_of(log, "mqtt.sensors")
    assert record.key == b"s/d"
    assert record.value == b"21.5"
    assert list(record.headers) == [
        ("mqtt.topic", b"sensors/s/d/temp"),
        ("mqtt.client_id", b"dev-1"),
        ("mqtt.expiry_s", b"60"),
        ("content-type", b"text/plain"),
        ("mqtt.user.k", b"v"),
    ]


async def test_a_kafka_record_with_only_a_key_reaches_subscribers() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node)) as client:
        await client.send(Subscribe(1, (SubscriptionRequest("plain/+", 1),)))
        await client.receive(Suback)
        destination = node.services.routes.destination("plain/key")
        log.put(destination.kafka_topic, destination.partition, b"plain/key", b"from kafka")
        packet = await client.receive(Publish)
        assert (packet.topic_name_utf8, packet.payload, packet.qos) == (b"plain/key", b"from kafka", 1)


async def test_a_whole_session_in_one_write() -> None:
    """CONNECT, SUBSCRIBE, PUBLISH and DISCONNECT pipelined: all of it is done, in order."""
    async with memory_edge() as node:
        for version in (4, 5):
            async with dial(mqtt_address(node), version) as client:
                await client.send(
                    Connect(version, "c", keep_alive_s=60),
                    Subscribe(1, (SubscriptionRequest("a", 1),)),
                    Publish(b"a", b"x", 1, packet_id=2),
                    Pingreq(),
                )
                assert (await client.receive(Connack)).reason_code is ReasonCode.SUCCESS
                kinds = [type(await client.receive(object)) for _ in range(4)]
                assert kinds.index(Suback) < kinds.index(Publish)
                assert set(kinds) == {Suback, Puback, Publish, Pingresp}
                await client.send(Disconnect())
                await client.until_closed()


async def test_byte_by_byte() -> None:
    async with memory_edge() as node, dial(mqtt_address(node)) as client:
        stream = encode(Connect(5, "c", keep_alive_s=60), 5) + encode(Publish(b"a", b"x", 1, packet_id=1), 5)
        for at in range(len(stream)):
            await client.send(stream[at : at + 1])
        await client.receive(Connack)
        assert await client.receive(Puback) == Puback(1)


async def test_two_nodes_on_one_log() -> None:
    log = MemoryLog()
    async with memory_edge(log, node_id="a") as one, memory_edge(log, node_id="b") as two:
        async with MqttClient(*mqtt_address(one)) as writer, MqttClient(*mqtt_address(two)) as reader:
            inbox = reader.inbox()
            await reader.subscribe("t/#", 1)
            for number in range(100):
                writer.publish(f"t/{number % 7}", b"%d" % number, number % 2)
            got = await inbox.get_many(100)
        by_name: dict[bytes, list[int]] = {}
        for packet in got:
            by_name.setdefault(packet.topic_name_utf8, []).append(int(packet.payload))
        assert all(numbers == sorted(numbers) for numbers in by_name.values())
        assert len(got) == 100


async def test_no_local_and_overlapping_subscriptions() -> None:
    """[MQTT5-3.8.3-3] [MQTT5-3.3.4-2]: one copy, the highest QoS, every identifier."""
    async with (
        memory_edge() as node,
        connected(mqtt_address(node), "me") as me,
        connected(mqtt_address(node), "you") as you,
    ):
        await me.send(
            Subscribe(1, (SubscriptionRequest("a/#", 0),), Properties(subscription_identifiers=(5,))),
            Subscribe(2, (SubscriptionRequest("a/b", 1),), Properties(subscription_identifiers=(6,))),
            Subscribe(3, (SubscriptionRequest("mine", 1, no_local=True),)),
        )
        for _ in range(3):
            await me.receive(Suback)
        await me.send(Publish(b"mine", b"not to me"))
        await you.send(Publish(b"a/b", b"x", 1, packet_id=1), Publish(b"mine", b"to you"))
        got = {(await me.receive(Publish)).payload: None for _ in range(2)}
        assert set(got) == {b"x", b"to you"}


async def test_overlapping_subscriptions_bring_one_copy() -> None:
    async with memory_edge() as node, connected(mqtt_address(node), "me") as me:
        for packet_id, topic_filter, qos in ((1, "a/#", 0), (2, "a/b", 1), (3, "+/b", 0)):
            properties = Properties(subscription_identifiers=(packet_id,))
            await me.send(Subscribe(packet_id, (SubscriptionRequest(topic_filter, qos),), properties))
            await me.receive(Suback)
        await me.send(Publish(b"a/b", b"x", 1, packet_id=1))
        packets = [await me.receive(object) for _ in range(2)]
        [packet] = [each for each in packets if isinstance(each, Publish)]
        assert packet.qos == 1
        assert packet.properties is not None
        assert sorted(packet.properties.subscription_identifiers) == [1, 2, 3]
        await me.send(Pingreq())
        await me.receive(Pingresp)  # and no second copy before it


async def test_subscribing_again_replaces() -> None:
    """[MQTT5-3.8.4-3] [MQTT311-3.8.4-3]"""
    async with memory_edge() as node, connected(mqtt_address(node), "me") as me:
        for qos in (1, 0):
            await me.send(Subscribe(1, (SubscriptionRequest("a", qos),)))
            await me.receive(Suback)
        await me.send(Publish(b"a", b"x"), Publish(b"a", b"y", 1, packet_id=1))
        packets = [await me.receive(object) for _ in range(3)]
        assert [each.qos for each in packets if isinstance(each, Publish)] == [0, 0]
        await me.send(Unsubscribe(2, ("a",)))
        await me.receive(Unsuback)
        assert node.services.deliverer.positions() == {}


@pytest.mark.parametrize("version", [4, 5])
async def test_filters_that_are_refused_one_by_one(version: int) -> None:
    async with memory_edge() as node, connected(mqtt_address(node), "c", version) as client:
        deep = "/".join("x" * 33)
        filters = ("ok/1", "$share/+/a", deep, "b" * 1_025, "ok/2")
        await client.send(Subscribe(1, tuple(SubscriptionRequest(each, 1) for each in filters)))
        codes = (await client.receive(Suback)).reason_codes
        assert [code.is_error for code in codes] == [False, True, True, True, False]
        if version == 5:
            assert set(codes[1:4]) == {ReasonCode.TOPIC_FILTER_INVALID}
        else:
            assert set(codes[1:4]) == {ReasonCode.UNSPECIFIED_ERROR}
        assert set(node.services.table.filters_of(node.services.clients["c"])) == {"ok/1", "ok/2"}


async def test_the_number_of_subscriptions_is_bounded() -> None:
    limits = {"subscriptions_per_client_max": 3, "filters_per_subscribe_max": 4}
    async with memory_edge(limits=limits) as node, connected(mqtt_address(node)) as client:
        await client.send(Subscribe(1, tuple(SubscriptionRequest(f"f/{n}") for n in range(6))))
        codes = (await client.receive(Suback)).reason_codes
        assert codes == (ReasonCode.SUCCESS,) * 3 + (ReasonCode.QUOTA_EXCEEDED,) * 3
        await client.send(Subscribe(2, (SubscriptionRequest("f/1", 1),)))  # one that is held may be replaced
        assert (await client.receive(Suback)).reason_codes == (ReasonCode.GRANTED_QOS_1,)
        await client.send(Unsubscribe(3, ("f/0",)), Subscribe(4, (SubscriptionRequest("f/5"),)))
        await client.receive(Unsuback)
        assert (await client.receive(Suback)).reason_codes == (ReasonCode.SUCCESS,)


async def test_sys_statistics_reach_subscribers() -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        await client.send(Subscribe(1, (SubscriptionRequest("$SYS/brokers/+/stats"),)))
        assert (await client.receive(Suback)).reason_codes == (ReasonCode.SUCCESS,)
        assert b'"node":"edge-test"' in (await client.receive(Publish)).payload


async def test_a_slow_reader_gets_everything_later() -> None:
    """The bound of the buffer on a real socket: QoS 1 that does not fit is read from the log again."""
    async with memory_edge(limits={"buffer_messages_max": 10}) as node, connected(mqtt_address(node), "slow") as slow:
        await slow.send(Subscribe(1, (SubscriptionRequest("a", 1),)))
        await slow.receive(Suback)
        async with MqttClient(*mqtt_address(node), "w") as writer:
            futures = [writer.publish("a", b"%d" % number, 1) for number in range(60)]
            await asyncio.gather(*[future for future in futures if future is not None])
        handler = node.services.clients["slow"]
        await until(lambda: handler.behind == set(node.services.deliverer.plain.positions()))
        packets = [await slow.receive(Publish) for _ in range(32)]
        await slow.send(Pingreq())
        await slow.receive(Pingresp)  # no more than the window until it acknowledges, and no end
        for number in range(60):
            if number >= 32:
                packets.append(await slow.receive(Publish))
            await slow.send(Puback(packets[number].packet_id))
        assert [packet.payload for packet in packets] == [b"%d" % number for number in range(60)]
        await until(lambda: handler.behind is None)
        await slow.send(Pingreq())
        await slow.receive(Pingresp)
