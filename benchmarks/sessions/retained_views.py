"""Two edges retain messages for the same 100,000 topic names at once, then both are restarted.

What must hold (invariant I9): all views are the same, before and after: for each topic name the message with the
highest position in Kafka, or none where that one was empty. Views are compared through MQTT, by subscribing to all.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass

from benchmarks.sessions.fleet import Fleet, FleetEdge, until_quiet
from benchmarks.sessions.outcome import Outcome, summed_up
from bridge.kafka_log import KafkaLog
from bridge.log import Position
from edge.client import MqttClient
from edge.wire import Publish
from schemas.records import HEADER_TOPIC

CLIENTS = 4  # on each edge
IN_FLIGHT_MAX = 100
EMPTY_EVERY = 20  # so many messages, one deletes
QUIET_S = 10.0
PARTITIONS = 12
LOADED = re.compile(r"(\d+) retained messages loaded in (\d+) ms")

View = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Each edge writes each name `rounds` times, in an order of its own."""

    names: int = 100_000
    rounds: int = 1
    seed: int = 6


FULL = Sizes()
QUICK = Sizes(names=500, rounds=3)


async def run(fleet: Fleet, sizes: Sizes) -> Outcome:
    """Two edges."""
    loop, chance = asyncio.get_running_loop(), random.Random(sizes.seed)
    outcome = Outcome({"names": sizes.names, "messages": 2 * sizes.names * sizes.rounds})
    began = loop.time()
    await asyncio.gather(*(_write(fleet, edge, sizes, chance.random()) for edge in fleet.edges))
    outcome.figures["seconds to write"] = loop.time() - began
    expected = await _expected(fleet)
    began = loop.time()
    before = [await _view(fleet, edge, len(expected)) for edge in fleet.edges]
    outcome.figures["seconds to read a view by MQTT"] = (loop.time() - began) / len(before)
    await asyncio.gather(*(edge.stop() for edge in fleet.edges))
    await asyncio.gather(*(edge.start() for edge in fleet.edges))
    loads = [LOADED.findall(edge.log_path.read_text())[-1] for edge in fleet.edges]
    outcome.figures["retained messages loaded"] = ", ".join(count for count, _ in loads)
    outcome.figures["milliseconds to load"] = ", ".join(ms for _, ms in loads)
    after = [await _view(fleet, edge, len(expected)) for edge in fleet.edges]
    outcome.figures["names with a message"] = len(expected)
    for when, views in (("before", before), ("after", after)):
        for edge, view in zip(fleet.edges, views, strict=True):
            differing = [name for name in expected.keys() | view.keys() if expected.get(name) != view.get(name)]
            outcome.faults += summed_up(sorted(differing), f"names differ on {edge.node_id} {when} the restart")
    return outcome


async def _write(fleet: Fleet, edge: FleetEdge, sizes: Sizes, seed: float) -> None:
    """Every name `rounds` times through this edge."""
    chance = random.Random(seed)
    order = [name for _ in range(sizes.rounds) for name in chance.sample(range(sizes.names), sizes.names)]

    async def write(number: int) -> None:
        async with MqttClient(*edge.address, f"{edge.node_id}-p{number}") as client:
            flows: list[asyncio.Future[object]] = []
            for index in range(number, len(order), CLIENTS):
                payload = b"" if chance.randrange(EMPTY_EVERY) == 0 else f"{edge.node_id} {index}".encode()
                future = client.publish(f"{fleet.tag}/{order[index] % 100}/{order[index]}", payload, 1, retain=True)
                assert future is not None
                flows.append(future)  # type: ignore[arg-type]
                if len(flows) == IN_FLIGHT_MAX:
                    await asyncio.gather(*flows)
                    flows.clear()
            await asyncio.gather(*flows)

    await asyncio.gather(*(write(number) for number in range(CLIENTS)))


async def _view(fleet: Fleet, edge: FleetEdge, count: int) -> View:
    """What a new subscriber is sent."""
    view: View = {}

    def take(packet: Publish) -> None:
        view[packet.topic_name_utf8.decode()] = packet.payload

    client = MqttClient(*edge.address, f"{edge.node_id}-reader", keep_alive_s=0)
    client.on_message(take)
    async with client:
        await client.subscribe(f"{fleet.tag}/#", 1)
        await until_quiet(lambda: len(view), count, QUIET_S)
    return view


async def _expected(fleet: Fleet) -> View:
    """The last message of each topic name in Kafka: one topic name, one partition."""
    log = KafkaLog(fleet.bootstrap)
    await log.start()
    view: View = {}
    try:
        positions: dict[Position, int] = {("mqtt.messages", partition): 0 for partition in range(PARTITIONS)}
        ends = await log.end_offsets(frozenset(positions))
        consumer = log.consumer(None)
        consumer.assign(positions)
        while any(positions[position] < ends[position] for position in positions):
            for position, records in await consumer.fetch(1.0):
                positions[position] = records[-1].offset + 1
                for record in records:
                    name = (dict(record.headers)[HEADER_TOPIC] or b"").decode()
                    if not name.startswith(f"{fleet.tag}/"):
                        continue
                    if record.value:
                        view[name] = record.value
                    else:
                        view.pop(name, None)
        await consumer.stop()
    finally:
        await log.stop()
    return view
