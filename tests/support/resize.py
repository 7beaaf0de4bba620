"""Load over a resize: numbered messages, and subscribers that say whether they got each of them once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from support.edges import until

from bridge.control import Control
from bridge.memory_log import MemoryLog
from bridge.resize import Resizer, StepDone
from edge.client import MqttClient
from edge.wire import Publish
from schemas.routes import DEFAULT_ROUTES

KAFKA_TOPIC = "mqtt.sensors"
DEVICES = 20
WAIT_S = 40.0
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

    def __init__(self, qos: int, prefix: str = "sensors", pause_s: float = 0.0) -> None:
        self.qos = qos
        self.prefix = prefix
        self.pause_s = pause_s
        self.sent: dict[str, int] = {}
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, clients: list[MqttClient]) -> None:
        for number, client in enumerate(clients):
            self._tasks.append(asyncio.create_task(self._publish(client, number)))

    @property
    def total(self) -> int:
        """Messages so far."""
        return sum(self.sent.values())

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _publish(self, client: MqttClient, number: int) -> None:
        while not self._stop.is_set():
            acknowledged = []
            for device in range(DEVICES):
                name = f"{self.prefix}/q{self.qos}-{number}/{device}/t"
                self.sent[name] = self.sent.get(name, 0) + 1
                acknowledged.append(client.publish(name, b"%d" % self.sent[name], self.qos))
            await asyncio.gather(*acknowledged)
            await asyncio.sleep(self.pause_s)


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
            assert self.got.get(name) == list(range(1, count + 1)), (who, name)


async def shared_whole(members: Iterable[Seen], loads: Iterable[Load], *, who: str) -> None:
    """Every message at one member; with QoS 1 perhaps at another one, too, as partitions move between edges."""
    parts = list(members)
    for load in loads:
        for name, count in load.sent.items():
            wanted = set(range(1, count + 1))
            await until(
                lambda name=name, wanted=wanted: wanted <= {each for seen in parts for each in seen.got.get(name, ())},
                lambda name=name: f"{who}: {name}",
                WAIT_S,
            )
            got = sorted(each for seen in parts for each in seen.got.get(name, ()))
            assert load.qos < 2 or got == sorted(wanted), (who, name)


async def connected(
    stack: AsyncExitStack, address: tuple[str, int], seen: Seen | None = None, **options: Any
) -> MqttClient:
    """A client whose messages are seen from the first one on."""
    client = MqttClient(*address, **options)
    if seen is not None:
        client.on_message(seen.take)
    return await stack.enter_async_context(client)
