"""A resize under load over two edges on a log in memory: nothing is lost, doubled (QoS 2) or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from support.edges import memory_edge, mqtt_address, until

from bridge.control import Control
from bridge.memory_log import MemoryLog
from bridge.resize import ResizeFailed, Resizer, StepDone
from edge.client import MqttClient, ReconnectPolicy
from edge.node.node import EdgeNode
from edge.wire import Publish
from schemas.errors import ConfigurationError
from schemas.layouts import SETTLED
from schemas.routes import DEFAULT_ROUTES

KAFKA_TOPIC = "mqtt.sensors"
DEVICES = 20
WAIT_S = 30.0
DURABLE: dict[str, Any] = {"session_expiry_s": 3600}


class Operator:
    """What the command line has."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.control = Control(
            log,
            lambda destination, value, headers: log.submit(
                destination.kafka_topic, destination.partition, [(destination.key, value, headers)]
            ),
            keeps_dead_letters=False,
        )
        self.steps: list[StepDone] = []
        self.in_kafka = 12

    def resizer(self, **options: Any) -> Resizer:
        return Resizer(
            self.log, self.control, DEFAULT_ROUTES, KAFKA_TOPIC, self._add_partitions, told=self.steps.append, **options
        )

    async def _add_partitions(self, names: Any, at_least: int) -> int:
        self.in_kafka = max(self.in_kafka, at_least)
        return self.in_kafka


@asynccontextmanager
async def operator(log: MemoryLog) -> AsyncIterator[Operator]:
    found = Operator(log)
    await found.control.start()
    try:
        yield found
    finally:
        await found.control.stop()


class Load:
    """Publishers on both edges, each with its devices; every message has its number in its Topic Name's order."""

    def __init__(self, qos: int) -> None:
        self.qos = qos
        self.sent: dict[str, int] = {}
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, clients: list[MqttClient]) -> None:
        for number, client in enumerate(clients):
            self._tasks.append(asyncio.create_task(self._publish(client, number)))

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _publish(self, client: MqttClient, number: int) -> None:
        while not self._stop.is_set():
            acknowledged = []
            for device in range(DEVICES):
                name = f"sensors/q{self.qos}-{number}/{device}/t"
                self.sent[name] = self.sent.get(name, 0) + 1
                acknowledged.append(client.publish(name, b"%d" % self.sent[name], self.qos))
            await asyncio.gather(*acknowledged)


class Seen:
    """What one subscriber got, per Topic Name."""

    def __init__(self) -> None:
        self.got: dict[str, list[int]] = {}

    def take(self, packet: Publish) -> None:
        self.got.setdefault(packet.topic_name_utf8.decode(), []).append(int(packet.payload))

    async def whole(self, loads: list[Load], *, who: str) -> None:
        """Every message once and in order; the publishers never sent anything twice, so QoS 1 is exact, too."""
        sent = {name: count for load in loads for name, count in load.sent.items()}
        await until(
            lambda: sum(map(len, self.got.values())) >= sum(sent.values()),
            lambda: f"{who}: {sum(map(len, self.got.values()))} of {sum(sent.values())}",
            WAIT_S,
        )
        for name, count in sent.items():
            assert self.got[name] == list(range(1, count + 1)), (who, name)


async def connected(stack: AsyncExitStack, node: EdgeNode, seen: Seen | None = None, **options: Any) -> MqttClient:
    client = MqttClient(*mqtt_address(node), **options)
    if seen is not None:
        client.on_message(seen.take)
    return await stack.enter_async_context(client)


async def test_growing_and_shrinking_under_load() -> None:
    log = MemoryLog()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(memory_edge(log, node_id="edge-1"))
        two = await stack.enter_async_context(memory_edge(log, node_id="edge-2"))
        who = await stack.enter_async_context(operator(log))
        live, durable, late, few = Seen(), Seen(), Seen(), Seen()
        await (await connected(stack, one, live)).subscribe("sensors/#", 2)
        await (await connected(stack, two, durable, client_id="durable", **DURABLE)).subscribe("sensors/#", 2)
        for client_id, topic_filter in (("offline", "sensors/#"), ("narrow", "sensors/q1-0/7/#")):
            client = await connected(stack, one, client_id=client_id, **DURABLE)
            await client.subscribe(topic_filter, 2)
            await client.disconnect()
        loads = [Load(1), Load(2)]
        for load in loads:
            load.begin([await connected(stack, node) for node in (one, two)])
        for partitions in (24, 6):
            status = await who.resizer(drop_timeout_s=0.0).resize(partitions)
            assert (status.step, status.partitions) == (SETTLED, partitions)
            assert one.services.routes.destination("sensors/a/b/c").partition < partitions
        assert status.read == (12, 24, 6)
        assert {need.split()[0] for need in status.needed_by} == {"session"}
        for load in loads:
            await load.end()
        await connected(stack, two, late, client_id="offline", clean_start=False, **DURABLE)
        await connected(stack, two, few, client_id="narrow", clean_start=False, **DURABLE)
        await live.whole(loads, who="live")
        await durable.whole(loads, who="durable")
        await late.whole(loads, who="offline")
        only = Load(1)
        only.sent = {"sensors/q1-0/7/t": loads[0].sent["sensors/q1-0/7/t"]}
        await few.whole([only], who="narrow")
