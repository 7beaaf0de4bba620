"""A connection that is over goes at once, without waiting for a garbage collection: edges look for cycles rarely."""

from __future__ import annotations

import gc
import weakref

import pytest
from support.edges import memory_edge, mqtt_address, until
from support.wire_client import connected

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


@pytest.mark.parametrize("expiry_s", [0, 600])
@pytest.mark.parametrize("does", ["nothing", "qos 1", "qos 2", "retained", "will"])
async def test_connections_leave_no_cycles(does: str, expiry_s: int) -> None:
    async with memory_edge() as node:
        will = Will("w", b"x", 1) if does == "will" else None
        handlers: list[weakref.ref[object]] = []
        gc.collect()
        gc.disable()
        try:
            for number in range(CONNECTIONS):
                properties = Properties(session_expiry_interval_s=expiry_s)
                async with connected(
                    mqtt_address(node), f"c{number}", clean_start=False, properties=properties, will=will
                ) as client:
                    [handler] = node.services.connections
                    handlers.append(weakref.ref(handler))
                    del handler
                    await client.send(Subscribe(1, (SubscriptionRequest(f"t/{number}", 2),)))
                    await client.receive(Suback)
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
                await until(lambda: not node.services.connections)
            await until(lambda: not node.services.endings)
            await until(lambda: sum(each() is not None for each in handlers) <= 1, "handlers are left")
            await until(lambda: sum(type(each) is SessionEngine for each in gc.get_objects()) <= 1, "engines are left")
        finally:
            gc.enable()
