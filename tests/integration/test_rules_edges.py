"""Delayed messages and exclusive subscriptions on real edges and a real Kafka, under kill -9."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.wire_client import WireClient, connected

from benchmarks.sessions.fleet import FleetEdge, fleet
from edge.wire import (
    Packet,
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
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

MESSAGES = 120
STORED = Properties(session_expiry_interval_s=600)
WITHIN_S = 40.0


async def subscribe(client: WireClient, name: str) -> ReasonCode:
    await client.send(Subscribe(1, (SubscriptionRequest(name, 1),)))
    return (await client.receive(Suback, WITHIN_S)).reason_codes[0]


async def publish(client: WireClient, name: str, payload: bytes, qos: int) -> None:
    await client.send(Publish(name.encode(), payload, qos, packet_id=1))
    if qos == 1:
        answer: Packet = await client.receive(Puback, WITHIN_S)
    else:
        answer = await client.receive(Pubrec, WITHIN_S)
        await client.send(Pubrel(1))
        await client.receive(Pubcomp, WITHIN_S)
    assert isinstance(answer, Puback | Pubrec)
    assert answer.reason_code is ReasonCode.SUCCESS


async def take(client: WireClient) -> bytes:
    got = await client.receive(Publish, WITHIN_S)
    await client.send(Puback(got.packet_id))
    return got.payload


async def test_delayed_messages_come_once_though_the_edges_that_publish_them_are_killed(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    async with fleet(kafka_bootstrap, tmp_path, 4) as edges:
        *doomed, last = edges.edges
        async with connected(last.address, "reader") as reader:
            assert await subscribe(reader, f"{edges.tag}/#") == 1
            for number, edge in enumerate(doomed):
                async with connected(edge.address, f"writer-{number}") as writer:
                    for each in range(MESSAGES // 3):
                        name = f"$delayed/{3 + each % 5}/{edges.tag}/{each}"
                        await publish(writer, name, b"%d/%d" % (number, each), 1 + each % 2)
            got = [await take(reader) for _ in range(10)]
            await doomed[0].kill()
            got += [await take(reader) for _ in range(20)]
            await asyncio.gather(doomed[1].kill(), doomed[2].kill())
            got += [await take(reader) for _ in range(MESSAGES - len(got))]
            assert len(set(got)) == MESSAGES
            assert await subscribe(reader, f"{edges.tag}-end") == 1  # nothing more is on its way to it
            figures = await last.figures()
            assert figures["delayed_published_total"] > 0
        assert not last.complaints()


async def taken_at(edge: FleetEdge, name: str, client_id: str) -> ReasonCode:
    async with connected(edge.address, client_id) as client:
        return await subscribe(client, name)


async def test_exclusive_filters_after_the_death_of_the_edge(kafka_bootstrap: str, tmp_path: Path) -> None:
    async with fleet(kafka_bootstrap, tmp_path, 3) as edges:
        one, two, three = edges.edges
        fleeting, kept = f"$exclusive/{edges.tag}/fleeting", f"$exclusive/{edges.tag}/kept"
        ours = {"properties": STORED, "clean_start": False}
        async with (
            connected(one.address, "fleeting") as first,
            connected(one.address, f"kept-{edges.tag}", **ours) as second,
        ):
            assert await subscribe(first, fleeting) == 1
            assert await subscribe(second, kept) == 1
            assert await taken_at(two, fleeting, "other") == ReasonCode.QUOTA_EXCEEDED
            await one.kill()
        async with asyncio.timeout(WITHIN_S):
            while (code := await taken_at(two, fleeting, "other")) != 1:
                assert code == ReasonCode.QUOTA_EXCEEDED
        assert await taken_at(two, kept, "other") == ReasonCode.QUOTA_EXCEEDED
        async with (
            connected(three.address, f"kept-{edges.tag}", **ours) as second,
            connected(two.address, "w") as writer,
        ):
            await publish(writer, f"{edges.tag}/kept", b"here", 1)
            assert await take(second) == b"here"
            assert await taken_at(two, kept, "other") == ReasonCode.QUOTA_EXCEEDED
        assert not two.complaints() + three.complaints()
