"""`EdgeProtocolHandler` extends amqtt's `BrokerProtocolHandler`: its life cycle and extension points stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from amqtt.errors import ProtocolHandlerError
from amqtt.mqtt.pingresp import PingRespPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.session import Session
from support.edges import memory_edge, mqtt_address, until, values_of
from support.wire_client import connected, dial

from bridge.memory_log import MemoryLog
from edge.access.principal import Principal
from edge.handler.amqtt_session import EdgeSession
from edge.handler.protocol import EdgeProtocolHandler
from edge.node.node import EdgeNode
from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)

CALLS: list[tuple[str, str]] = []


class Extended(EdgeProtocolHandler):
    """What an extension does: look, then call amqtt's name for it."""

    async def handle_connect(self, connect: Any) -> None:
        CALLS.append(("connect", connect.client_id))
        if connect.client_id == "unwanted":
            self.refuse(ReasonCode.BANNED, "not here")
            return
        await super().handle_connect(connect)

    async def handle_subscribe(self, subscribe: Any) -> None:
        CALLS.append(("subscribe", subscribe.subscriptions[0].topic_filter))
        await super().handle_subscribe(subscribe)

    async def handle_unsubscribe(self, unsubscribe: Any) -> None:
        CALLS.append(("unsubscribe", unsubscribe.topic_filters[0]))
        await super().handle_unsubscribe(unsubscribe)


@asynccontextmanager
async def extended(node: EdgeNode) -> AsyncIterator[tuple[str, int]]:
    """A listener of our own class beside the node's."""
    CALLS.clear()
    server = await asyncio.get_running_loop().create_server(lambda: Extended(node.services), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()


def test_it_is_amqtts_handler() -> None:
    assert issubclass(EdgeProtocolHandler, BrokerProtocolHandler)
    for name in ("attach", "detach", "start", "stop", "wait_disconnect", "_is_attached", "_send_packet"):
        assert callable(getattr(EdgeProtocolHandler, name))
    for name in ("handle_connect", "handle_subscribe", "handle_unsubscribe", "handle_disconnect", "handle_pingreq"):
        assert asyncio.iscoroutinefunction(getattr(EdgeProtocolHandler, name))


@pytest.mark.parametrize("version", [4, 5])
async def test_extension_points_are_called_in_a_subclass(version: int) -> None:
    async with memory_edge() as node, extended(node) as address, connected(address, "c", version) as client:
        await client.send(
            Subscribe(1, (SubscriptionRequest("a"),)), Publish(b"a", b"x"), Unsubscribe(2, ("a",)), Pingreq()
        )
        kinds = [type(await client.receive(object)) for _ in range(3)]
        assert Suback in kinds
        assert Pingresp in kinds
        while Unsuback not in kinds:
            kinds.append(type(await client.receive(object)))
    assert CALLS == [("connect", "c"), ("subscribe", "a"), ("unsubscribe", "a")]


async def test_a_subclass_may_refuse() -> None:
    async with memory_edge() as node, extended(node) as address, dial(address) as client:
        connack = await client.connect("unwanted", will=Will("w"))
        assert connack.reason_code is ReasonCode.BANNED
        assert await client.until_closed() == []
        assert node.services.clients == {}


async def test_attach_start_stop_detach() -> None:
    """amqtt's order: attach a session, start, wait for the end, stop, detach."""
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node), "c", will=Will("w", b"gone")) as client:
        handler = node.services.clients["c"]
        principal = Principal("anonymous", "c", "127.0.0.1")
        session = EdgeSession(Connect(5, "c", keep_alive_s=30, user_name="ann"), principal)
        handler.attach(session, None, None)
        assert handler._is_attached()
        assert handler.session is session
        assert (session.client_id, session.username, session.keep_alive) == ("c", "ann", 30)
        assert handler.keepalive_timeout == 30
        with pytest.raises(ProtocolHandlerError):
            handler.attach(session, None, None)
        await handler.start()
        waiting = asyncio.create_task(handler.wait_disconnect())
        await asyncio.sleep(0)
        assert not waiting.done()
        await handler.stop()  # as amqtt's: the connection ends without a DISCONNECT
        assert await client.until_closed() == []
        async with asyncio.timeout(5):
            assert await waiting is None
        handler.detach()
        assert not handler._is_attached()
        await until(lambda: not node.services.clients)
        await until(lambda: values_of(log, topic_name="w") == [b"gone"])


async def test_waiting_for_the_end_of_a_client_that_says_goodbye() -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        handler = node.services.clients["c"]
        await handler.start()
        waiting = asyncio.create_task(handler.wait_disconnect())
        await client.send(Disconnect())
        async with asyncio.timeout(5):
            await waiting


async def test_packets_of_ours_and_of_amqtts_can_be_sent() -> None:
    async with memory_edge() as node, connected(mqtt_address(node), "c", 4) as client:
        handler = node.services.clients["c"]
        await handler._send_packet(Publish(b"a", b"from an extension"))
        assert (await client.receive(Publish)).payload == b"from an extension"
        await handler._send_packet(PingRespPacket.build())
        await client.receive(Pingresp)


async def test_two_stops_are_one() -> None:
    async with memory_edge() as node, connected(mqtt_address(node)) as client:
        handler = node.services.clients["c"]
        await handler.stop()
        await handler.stop()
        handler.disconnect(ReasonCode.SERVER_BUSY, "too late")
        assert await client.until_closed() == []
        await until(lambda: not node.services.connections)
        await handler.stop()


async def test_a_handler_without_a_connection_takes_every_call() -> None:
    """Late completions reach a handler whose network connection is long gone."""
    async with memory_edge() as node:
        async with connected(mqtt_address(node)):
            handler = node.services.clients["c"]
        await until(lambda: not node.services.connections)
        handler.flush()
        handler.backbone_has_room()
        handler.rights_changed()
        handler.disconnect(ReasonCode.SERVER_BUSY, "late")
        handler.refuse(ReasonCode.NOT_AUTHORIZED, "late")
        await handler.handle_subscribe(Subscribe(1, (SubscriptionRequest("late"),)))
        await handler.handle_unsubscribe(Unsubscribe(2, ("late",)))
        assert not handler.is_open
        assert node.services.table.statistics()["subscriptions"] == 0
        assert node.services.deliverer.positions() == {}
        assert "c" not in node.services.clients


async def test_the_amqtt_session_of_a_client() -> None:
    session = EdgeSession(
        Connect(4, "c", clean_start=False, keep_alive_s=9, user_name="u"), Principal("u", "c", "192.0.2.1")
    )
    assert isinstance(session, Session)
    assert not session.clean_session
    assert session.remote_address == "192.0.2.1"
    assert session.transitions.state == "connected"
    assert session.transitions.connect()
    assert session.transitions.disconnect()


async def test_nothing_follows_a_disconnect_of_ours() -> None:
    """[MQTT5-4.13.1-1]: answers of Kafka that come after it are not sent."""
    log = MemoryLog()
    async with memory_edge(log) as node, connected(mqtt_address(node)) as client:
        log.pause()
        await client.send(Publish(b"a", b"x", 1, packet_id=1))
        await until(lambda: node.services.counters.messages_received == 1)
        handler = node.services.clients["c"]
        handler.disconnect(ReasonCode.SERVER_BUSY, "go")
        log.resume()
        assert [type(each) for each in await client.until_closed()] == [Disconnect]


async def test_connack_comes_before_anything_else() -> None:
    """[MQTT5-3.2.0-1] [MQTT311-3.2.0-1]"""
    async with memory_edge() as node:
        for version in (3, 4, 5):
            async with dial(mqtt_address(node), version) as client:
                await client.send(
                    Connect(version, f"c{version}", keep_alive_s=9), Pingreq(), Publish(b"a", b"", 1, packet_id=1)
                )
                await client.receive(Connack)
