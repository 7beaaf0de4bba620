"""Every limit at its default, on the wire: what just fits is taken, one more is not."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.edges import memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected, dial

from bridge.memory_log import MemoryLog
from edge.access.limits import Limits
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
    encode,
)

DEFAULT = Limits()


async def published(client: WireClient, packet: Publish) -> ReasonCode:
    await client.send(packet)
    return (await client.receive(Puback)).reason_code


async def last(client: WireClient) -> ReasonCode:
    """The reason of the DISCONNECT with which the edge ends the connection."""
    packet = (await client.until_closed())[-1]
    assert isinstance(packet, Disconnect)
    return packet.reason_code


async def test_packet_bytes() -> None:
    for excess, fits in ((0, True), (1, False)):
        async with memory_edge() as node, connected(mqtt_address(node)) as client:
            packet = Publish(b"a", b"", 1, packet_id=1)
            packet.payload = bytes(DEFAULT.packet_bytes_max - len(encode(packet, 5)) - 2 + excess)  # 3 bytes of length
            assert len(encode(packet, 5)) == 1_000_000 + excess
            if fits:
                assert await published(client, packet) is ReasonCode.SUCCESS
            else:
                await client.send(packet)
                assert await last(client) is ReasonCode.PACKET_TOO_LARGE


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        (b"n" * 1_024, True),
        (b"n" * 1_025, False),
        (b"/".join([b"n"] * 32), True),
        (b"/".join([b"n"] * 33), False),
    ],
)
async def test_topic_names_and_filters(name: bytes, fits: bool) -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        code = await published(client, Publish(name, b"", 1, packet_id=1))
        assert code is (ReasonCode.SUCCESS if fits else ReasonCode.TOPIC_NAME_INVALID)
        await client.send(Subscribe(1, (SubscriptionRequest(name.decode()),)))
        [code] = (await client.receive(Suback)).reason_codes
        assert code is (ReasonCode.GRANTED_QOS_0 if fits else ReasonCode.TOPIC_FILTER_INVALID)


@pytest.mark.parametrize(("length", "fits"), [(128, True), (129, False)])
@pytest.mark.parametrize("version", [4, 5])
async def test_client_id_bytes(length: int, fits: bool, version: int) -> None:
    async with memory_edge() as node, dial(mqtt_address(node), version) as client:
        code = (await client.connect("c" * length)).reason_code
        assert code is (ReasonCode.SUCCESS if fits else ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)


@pytest.mark.parametrize(
    ("properties", "fits"),
    [
        ([("k", "v")] * 32, True),
        ([("k", "v")] * 33, False),
        ([("k" * 4_096, "v" * 4_096)], True),
        ([("k" * 4_096, "v" * 4_097)], False),
    ],
)
async def test_user_properties(properties: list[tuple[str, str]], fits: bool) -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        packet = Publish(b"a", b"", 1, packet_id=1, properties=Properties(user_properties=tuple(properties)))
        assert await published(client, packet) is (ReasonCode.SUCCESS if fits else ReasonCode.QUOTA_EXCEEDED)


async def test_filters_in_one_subscribe() -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        await client.send(Subscribe(1, tuple(SubscriptionRequest(f"f/{number}") for number in range(101))))
        codes = (await client.receive(Suback)).reason_codes
        assert codes == (ReasonCode.GRANTED_QOS_0,) * 100 + (ReasonCode.QUOTA_EXCEEDED,)


async def test_subscriptions_of_a_client() -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        for page in range(10):
            filters = tuple(SubscriptionRequest(f"f/{page}/{number}") for number in range(100))
            await client.send(Subscribe(1, filters))
            assert set((await client.receive(Suback)).reason_codes) == {ReasonCode.GRANTED_QOS_0}
        await client.send(Subscribe(1, (SubscriptionRequest("f/0/0"), SubscriptionRequest("one/more"))))
        assert (await client.receive(Suback)).reason_codes == (ReasonCode.GRANTED_QOS_0, ReasonCode.QUOTA_EXCEEDED)


async def test_what_connack_says() -> None:
    async with memory_edge() as node, dial(mqtt_address(node)) as client:
        properties = (await client.connect("c", keep_alive_s=0)).properties
        assert properties.receive_maximum == 100
        assert properties.maximum_packet_size_bytes == 1_000_000
        assert properties.topic_alias_maximum == 16
        assert properties.server_keep_alive_s == 600


async def test_topic_aliases() -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        for alias in range(1, 17):
            packet = Publish(b"a", b"", 1, packet_id=alias, properties=Properties(topic_alias=alias))
            assert await published(client, packet) is ReasonCode.SUCCESS
        await client.send(Publish(b"a", b"", 1, packet_id=17, properties=Properties(topic_alias=17)))
        assert await last(client) is ReasonCode.TOPIC_ALIAS_INVALID


async def test_in_flight_to_a_client() -> None:
    async with memory_edge() as node, connected(mqtt_address(node), "reader") as reader:
        await reader.send(Subscribe(1, (SubscriptionRequest("a", 1),)))
        await reader.receive(Suback)
        async with connected(mqtt_address(node), "writer") as writer:
            for number in range(1, 41):
                assert await published(writer, Publish(b"a", b"", 1, packet_id=number)) is ReasonCode.SUCCESS
        ids = [(await reader.receive(Publish)).packet_id for _ in range(32)]
        await reader.send(Pingreq())
        await reader.receive(Pingresp)  # and not a 33rd PUBLISH
        await reader.send(*(Puback(each) for each in ids[:8]))
        for _ in range(8):
            await reader.receive(Publish)


async def test_who_has_authenticated_is_counted_no_more_and_the_others_are() -> None:
    limits = {"unauthenticated_max": 3, "unauthenticated_per_address_max": 10}
    async with memory_edge(limits=limits) as node:
        address = mqtt_address(node)
        async with dial(address) as one, dial(address), dial(address):
            await until(lambda: len(node.services.connections) == 3)
            async with dial(address) as fourth:
                assert await fourth.until_closed() == []
            assert node.services.access.gate.statistics()["refused_node_full"] == 1
            await one.connect("one")
            async with connected(address, "fourth"):
                pass


@pytest.mark.parametrize(
    ("limits", "payload_bytes"), [({"messages_per_s": 20}, 1), ({"bytes_per_s": 20 * 1_000}, 1_000)]
)
async def test_a_client_that_sends_too_fast_is_read_more_slowly(limits: dict[str, Any], payload_bytes: int) -> None:
    """60 messages at 20 a second, a second's worth of them at once: two seconds, and none is lost."""
    async with memory_edge(limits=limits) as node, connected(mqtt_address(node)) as client:
        began = time.monotonic()
        for number in range(1, 61):
            await client.send(Publish(b"a", bytes(payload_bytes), 1, packet_id=number))
            assert (await client.receive(Puback)).packet_id == number
        assert 1.5 < time.monotonic() - began < 10


async def test_what_a_client_does_not_read_is_bounded_in_bytes() -> None:
    """200 messages of 200 kB: 5 of them, not 1,000, wait for a client that does not read; the others are dropped."""
    async with (
        memory_edge() as node,
        connected(mqtt_address(node), "slow") as slow,
        connected(mqtt_address(node), "writer") as writer,
    ):
        await slow.send(Subscribe(1, (SubscriptionRequest("a"),)))
        await slow.receive(Suback)
        for number in range(1, 201):
            await writer.send(Publish(b"a", bytes(200_000)))
            if number % 20 == 0:
                await published(writer, Publish(b"b", b"", 1, packet_id=1))
        engine = node.services.clients["slow"].engine
        await until(lambda: engine.statistics()["dropped"] > 0, "nothing is dropped")


async def test_unacknowledged_messages_of_a_client() -> None:
    """[MQTT5-3.3.4-7]: Kafka answers none, and the 101st is one too many."""
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node)) as client:
        log.pause()
        await client.send(*(Publish(b"a", b"", 1, packet_id=number) for number in range(1, 101)))
        await client.send(Pingreq())
        await client.receive(Pingresp)
        await client.send(Publish(b"a", b"", 1, packet_id=101))
        assert await last(client) is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
        log.resume()
