"""QoS 2 messages of a shared subscription on edges: a hand-over that is under way when a connection or an edge ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.edges import memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected

from bridge.memory_log import MemoryLog
from edge.node.node import EdgeNode
from edge.wire import Properties, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, SubscriptionRequest
from schemas.message import Message
from schemas.records import encode_headers

SHARE = "$share/g/t/#"


@asynccontextmanager
async def edge_with(log: MemoryLog) -> AsyncIterator[EdgeNode]:
    async with memory_edge(log, node_id="a") as node:
        yield node


def put(log: MemoryLog, node: EdgeNode, topic_name: str) -> None:
    at = node.services.routes.destination(topic_name).twin()
    headers = encode_headers(Message(topic_name, b"x", qos=2))
    log.put(at.kafka_topic, at.partition, at.key, b"x", headers)


async def share(client: WireClient) -> None:
    await client.send(Subscribe(1, (SubscriptionRequest(SHARE, 2),)))
    await client.receive(Suback)


async def complete(client: WireClient) -> Publish:
    message = await client.receive(Publish)
    await client.send(Pubrec(message.packet_id))
    await client.receive(Pubrel)
    await client.send(Pubcomp(message.packet_id))
    return message


def is_under_way(node: EdgeNode) -> bool:
    return node.services.sessions.statistics()["writer_in_hand"] > 0


@pytest.mark.parametrize("expiry_s", [0, 300])
async def test_whose_a_message_is_when_its_connection_ended_in_the_middle(expiry_s: int) -> None:
    """Its identifier was not stored yet and nothing was sent. The session has it if it goes on, else another member."""
    log = MemoryLog()
    fields = {"clean_start": False, "properties": Properties(session_expiry_interval_s=expiry_s)}
    async with edge_with(log) as node:
        async with connected(mqtt_address(node), "first", **fields) as first:
            await share(first)
            log.hold_commits()
            put(log, node, "t/1")
            await until(lambda: is_under_way(node))
        async with asyncio.timeout(20):
            await until(lambda: "first" not in node.services.clients)
            log.release_commits()
            await until(lambda: not is_under_way(node))
        if expiry_s:
            async with connected(mqtt_address(node), "first", **fields) as again:
                assert (await complete(again)).topic_name_utf8 == b"t/1"
        else:
            async with connected(mqtt_address(node), "second") as second:
                await share(second)
                # the group went with its last session: what it had not given away went with it
                put(log, node, "t/2")
                assert (await complete(second)).topic_name_utf8 == b"t/2"


async def test_another_member_gets_what_ended_with_its_session() -> None:
    log = MemoryLog()
    async with edge_with(log) as node, connected(mqtt_address(node), "other") as other:
        async with connected(mqtt_address(node), "first") as first:
            await share(first)
            log.hold_commits()
            put(log, node, "t/1")
            await until(lambda: is_under_way(node))
            subscribing = asyncio.create_task(share(other))
            [group] = node.services.shared.groups().values()
            await until(lambda: len(group.members) == 2)
        await until(lambda: len(group.members) == 1)
        log.release_commits()
        await subscribing
        assert (await complete(other)).topic_name_utf8 == b"t/1"
