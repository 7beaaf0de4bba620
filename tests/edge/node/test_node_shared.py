"""Shared subscriptions on edges that share a log: one member per message, across edges, QoS and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.edges import memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected, dial

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode
from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)

SHARE = "$share/g/t/#"
BOTH = pytest.mark.parametrize("version", [4, 5])


@asynccontextmanager
async def two_edges() -> AsyncIterator[tuple[EdgeNode, EdgeNode]]:
    log = MemoryLog()
    async with memory_edge(log, node_id="a") as first, memory_edge(log, node_id="b") as second:
        yield first, second


async def share(connection: WireClient, qos: int = 2, share_filter: str = SHARE) -> None:
    await connection.send(Subscribe(1, (SubscriptionRequest(share_filter, qos),)))
    assert (await connection.receive(Suback)).reason_codes == (ReasonCode(qos),)


async def publish(node: EdgeNode, count: int, qos: int = 1, topic_name: str = "t/%d") -> set[bytes]:
    """Numbered payloads on so many topic names; done when every flow is."""
    async with connected(mqtt_address(node), "") as publisher:
        for number in range(count):
            name = (topic_name % number if "%" in topic_name else topic_name).encode()
            await publisher.send(Publish(name, b"%d" % number, qos, packet_id=number + 1 if qos else 0))
            if qos == 1:
                await publisher.receive(Puback)
            elif qos == 2:
                await publisher.receive(Pubrec)
                await publisher.send(Pubrel(number + 1))
                await publisher.receive(Pubcomp)
        await publisher.send(Disconnect())
    return {b"%d" % number for number in range(count)}


class Taker:
    """Acknowledges what comes, and keeps it."""

    def __init__(self, connection: WireClient) -> None:
        self.connection = connection
        self.messages: list[Publish] = []
        self.task = asyncio.create_task(self._take())

    async def _take(self) -> None:
        while True:
            packet = await self.connection.receive(object, 60.0)
            if isinstance(packet, Publish):
                self.messages.append(packet)
                if packet.qos:
                    await self.connection.send((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
            elif isinstance(packet, Pubrel):
                await self.connection.send(Pubcomp(packet.packet_id))

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def takers(*connections: WireClient) -> AsyncIterator[list[Taker]]:
    taking = [Taker(each) for each in connections]
    try:
        yield taking
    finally:
        for each in taking:
            await each.stop()


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_each_message_goes_to_one_member_on_whichever_edge(version: int, qos: int) -> None:
    async with (
        two_edges() as (a, b),
        connected(mqtt_address(a), "m1", version) as m1,
        connected(mqtt_address(a), "m2", version) as m2,
        connected(mqtt_address(b), "m3", version) as m3,
    ):
        for member in (m1, m2, m3):
            await share(member, qos)
        async with takers(m1, m2, m3) as members:
            sent = await publish(b, 120, qos)
            await until(lambda: sum(len(each.messages) for each in members) >= 120)
            got = [payload for each in members for payload in each.payloads]
            assert len(got) == len(set(got))
            assert set(got) == sent
            assert all(each.messages for each in members)
            assert {message.qos for each in members for message in each.messages} == {qos}


async def test_what_a_member_leaves_unacknowledged_goes_to_another() -> None:
    async with two_edges() as (a, b), connected(mqtt_address(b), "stays") as stays:
        async with connected(mqtt_address(a), "leaves") as leaves:
            await share(leaves, 1)
            sent = await publish(a, 10)
            got = {(await leaves.receive(Publish)).payload for _ in range(10)}
            assert got == sent
            await share(stays, 1)
        async with takers(stays) as [member]:
            await until(lambda: set(member.payloads) == sent)


async def test_an_ordinary_subscription_beside_a_shared_one() -> None:
    async with two_edges() as (a, b), connected(mqtt_address(a), "c") as client:
        await share(client, 1)
        await client.send(Subscribe(2, (SubscriptionRequest("t/#", 1),), Properties(subscription_identifiers=(7,))))
        await client.receive(Suback)
        async with takers(client) as [member]:
            await publish(b, 5)
            await until(lambda: len(member.messages) == 10)
            identifiers = [each.properties.subscription_identifiers for each in member.messages if each.properties]
            assert [each for each in identifiers if each] == [(7,)] * 5


async def test_unsubscribe() -> None:
    async with two_edges() as (a, _), connected(mqtt_address(a), "c") as client:
        await share(client, 1)
        await client.send(Unsubscribe(2, (SHARE, SHARE)))
        codes = (await client.receive(Unsuback)).reason_codes
        assert codes == (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)
        await publish(a, 3)
        await client.send(Pingreq())
        await client.receive(Pingresp)


async def test_no_retained_message_for_a_shared_subscription() -> None:
    """MQTT 5.0 section 4.8.2."""
    async with two_edges() as (a, _), connected(mqtt_address(a), "c") as client:
        await client.send(Publish(b"t/r", b"kept", 1, True, packet_id=1))
        await client.receive(Puback)
        await share(client, 1)
        await client.send(Pingreq())
        await client.receive(Pingresp)


async def test_a_stored_session_takes_part_again_and_completes_its_qos_2() -> None:
    """[MQTT5-4.8.2-4]: nobody else gets what was sent to it with QoS 2."""
    connect = Connect(5, "c", False, keep_alive_s=60, properties=Properties(session_expiry_interval_s=600))
    async with two_edges() as (a, b):
        async with dial(mqtt_address(a)) as client:
            await client.send(connect)
            await client.receive(Connack)
            await share(client, 2)
            await publish(a, 1, 2)
            first = await client.receive(Publish)
        async with connected(mqtt_address(b), "other") as other:
            await share(other, 2)
            async with takers(other) as [rest]:
                async with dial(mqtt_address(b)) as client:
                    await client.send(connect)
                    assert (await client.receive(Connack)).session_present
                    again = await client.receive(Publish)
                    assert (again.payload, again.packet_id, again.dup) == (first.payload, first.packet_id, True)
                    await until(lambda: len(b.services.shared.groups()[SHARE].members) == 2)
                    async with takers(client) as [member]:
                        await client.send(Pubrec(again.packet_id))
                        sent = await publish(a, 60, 1)
                        await until(lambda: set(rest.payloads + member.payloads) >= sent)
                        assert member.messages
                assert [message for message in rest.messages if message.qos == 2] == []


async def test_the_group_goes_with_its_last_session() -> None:
    log = MemoryLog()
    async with memory_edge(log) as node:
        async with connected(mqtt_address(node), "c") as client:
            await share(client, 1)
            await publish(node, 3)
            async with takers(client) as [member]:
                await until(lambda: len(member.messages) == 3)
        await until(lambda: log.groups.deleted)
