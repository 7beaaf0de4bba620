"""A connection that is over goes at once, without waiting for a garbage collection: edges look for cycles rarely."""

from __future__ import annotations

import gc
import uuid
from collections import Counter

import pytest
from support.edges import memory_edge, mqtt_address, until
from support.wire_client import connected

from edge.handler.protocol import EdgeProtocolHandler
from edge.session.engine import SessionEngine
from edge.wire import (
    Properties,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)

CONNECTIONS = 20
WAIT_S = 30.0


def left_of(tag: str) -> list[object]:
    """What is there of the connections of this test; other tests may have left theirs."""
    kinds = (EdgeProtocolHandler, SessionEngine)
    return [each for each in gc.get_objects() if type(each) in kinds and each.client_id.startswith(tag)]


def holders_of(tag: str) -> str:
    """How many are left, and what refers to them: short enough for pytest's last lines."""
    left = left_of(tag)
    holders = Counter(_kind(holder) for each in left for holder in gc.get_referrers(each) if holder is not left)
    return f"{len(left)} left, held by {dict(holders.most_common(5))}"


def _kind(holder: object) -> str:
    code = getattr(holder, "f_code", None) or getattr(holder, "cr_code", None)
    return f"{type(holder).__name__} {code.co_qualname}" if code is not None else type(holder).__name__


@pytest.mark.parametrize("expiry_s", [0, 600])
@pytest.mark.parametrize("does", ["nothing", "qos 1", "qos 2", "retained", "will"])
async def test_connections_leave_no_cycles(does: str, expiry_s: int) -> None:
    tag = uuid.uuid4().hex[:8]
    async with memory_edge() as node:
        will = Will("w", b"x", 1) if does == "will" else None
        gc.collect()
        gc.disable()
        try:
            for number in range(CONNECTIONS):
                properties = Properties(session_expiry_interval_s=expiry_s)
                async with connected(
                    mqtt_address(node), f"{tag}-{number}", clean_start=False, properties=properties, will=will
                ) as client:
                    await client.send(Subscribe(1, (SubscriptionRequest(f"t/{number}", 2),)))
                    await client.receive(Suback)
                    assert number or len(left_of(tag)) == 2
                    if does == "qos 1":
                        await client.send(Publish(b"t/%d" % number, b"x", 1, packet_id=1))
                        await client.receive(object)
                        await client.receive(object)
                    elif does == "retained":
                        await client.send(Publish(b"t/%d" % number, b"x", 1, retain=True, packet_id=1))
                        await client.receive(object)
                        await client.receive(object)
                    elif does == "qos 2":
                        await client.send(Publish(b"t/%d" % number, b"x", 2, packet_id=1))
                        await client.receive(Pubrec)
                        await client.send(Pubrel(1))
                        await client.receive(object)
                        await client.receive(object)
                await until(lambda: not node.services.connections, "connections are left", WAIT_S)
            await until(lambda: not node.services.endings, "endings are left", WAIT_S)
            await until(lambda: not left_of(tag), lambda: holders_of(tag), WAIT_S)
        finally:
            gc.enable()
