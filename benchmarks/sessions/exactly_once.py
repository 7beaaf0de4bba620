"""QoS 2 while the publishing edge is killed (-9) every few seconds and the subscriber loses its connection at random.

Publishers keep their state and come back to the same edge, or in turn to two edges that are killed in turn; the
subscriber's session moves between the other edges, which may be killed, too. What must hold: every flow that was
completed for its publisher is delivered exactly once, in order per topic name, and no session is ever lost.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from benchmarks.sessions.fleet import Fleet, FleetEdge, happens, until_quiet
from benchmarks.sessions.outcome import Outcome, disordered, missing, repeated, summed_up, unknown
from edge.client import MqttClient, ReconnectPolicy
from edge.wire import Connack, Publish, ReasonCode

EXPIRY_S = 3_600
STALLED_S = 60.0  # no flow is completed for so long: none will be
QUIET_S = 20.0  # longer than Kafka lets the open transaction of a killed edge hold up readers


@dataclass(frozen=True, slots=True)
class Sizes:
    """`roams`: two edges are killed in turn and publishers go to whichever answers. `spares_none`: so are the edges of
    the subscriber."""

    publishers: int = 20
    messages: int = 1_000
    names: int = 2
    per_s: float = 17.0
    kill_every_s: float = 5.0
    drop_after_s: tuple[float, float] = (0.3, 4.0)
    roams: bool = False
    spares_none: bool = False
    seed: int = 4


FULL = Sizes()
QUICK = Sizes(publishers=5, messages=100, per_s=10.0, kill_every_s=3.0, drop_after_s=(0.3, 2.0))
ROAMING = replace(FULL, roams=True)
ROAMING_QUICK = replace(QUICK, roams=True)
EVERYWHERE = replace(ROAMING, spares_none=True)
EVERYWHERE_QUICK = replace(ROAMING_QUICK, spares_none=True)


@dataclass(slots=True)
class _Publisher:
    client: MqttClient
    name: str
    completed: dict[str, list[int]] = field(default_factory=dict)
    offered: dict[str, int] = field(default_factory=dict)
    incomplete: list[str] = field(default_factory=list)
    lost_sessions: int = 0

    async def run(self, sizes: Sizes) -> None:
        futures: list[tuple[str, int, asyncio.Future[ReasonCode]]] = []
        for number in range(sizes.messages):
            name = f"{self.name}/{number % sizes.names}"
            self.offered[name] = number + 1
            future = self.client.publish(name, b"%d" % number, 2)
            assert future is not None
            futures.append((name, number, future))
            await asyncio.sleep(1 / sizes.per_s)
        for _, _, flow in futures:  # about in this order; each of them may wait for an edge to come back
            if not (await asyncio.wait([flow], timeout=STALLED_S))[0]:
                break
        for name, number, flow in futures:
            error = flow.exception() if flow.done() else "no end"
            if error is None:
                self.completed.setdefault(name, []).append(number)
            else:
                self.incomplete.append(f"{name} {number}: {error}")

    def connected(self, connack: Connack) -> None:
        if self.client.statistics().connects > 1:
            self.lost_sessions += not connack.session_present


async def run(fleet: Fleet, sizes: Sizes) -> Outcome:
    """The first edge (two when it roams) is killed again and again; the others have the subscriber."""
    outcome, chance = Outcome(), random.Random(sizes.seed)
    victims, others = (fleet.edges[:2], fleet.edges[2:]) if sizes.roams else (fleet.edges[:1], fleet.edges[1:])
    killed = [edge for pair in zip(victims, others, strict=True) for edge in pair] if sizes.spares_none else victims
    received: list[tuple[str, int]] = []
    lost_sessions = 0
    subscriber = _client(f"{fleet.tag}-subscriber", others)

    def on_message(packet: Publish) -> None:
        received.append((packet.topic_name_utf8.decode(), int(packet.payload)))

    def on_connect(connack: Connack) -> None:
        nonlocal lost_sessions
        lost_sessions += subscriber.statistics().connects > 1 and not connack.session_present

    subscriber.on_message(on_message)
    subscriber.on_connect(on_connect)
    publishers = [
        _Publisher(_client(f"{fleet.tag}-p{number}", victims), f"{fleet.tag}/{number}")
        for number in range(sizes.publishers)
    ]
    async with AsyncExitStack() as stack:
        await subscriber.connect()
        stack.push_async_callback(subscriber.disconnect)
        await subscriber.subscribe(f"{fleet.tag}/#", 2)
        for each in publishers:
            each.client.on_connect(each.connected)
            await each.client.connect()
            stack.push_async_callback(each.client.disconnect)
        over = asyncio.Event()
        began = asyncio.get_running_loop().time()
        disturbing = [
            asyncio.create_task(_kill(killed, sizes.kill_every_s, outcome, over)),
            asyncio.create_task(_drop(subscriber, sizes.drop_after_s, chance, over)),
        ]
        await asyncio.gather(*(each.run(sizes) for each in publishers))
        over.set()
        await asyncio.gather(*disturbing)
        took_s = asyncio.get_running_loop().time() - began
        completed = {name: numbers for each in publishers for name, numbers in each.completed.items()}
        offered = {name: count for each in publishers for name, count in each.offered.items()}
        await until_quiet(lambda: len(received), sizes.publishers * sizes.messages, QUIET_S)
    flows = sum(map(len, completed.values()))
    outcome.figures |= {
        "flows completed": flows,
        "deliveries": len(received),
        "publishers resent": sum(each.client.statistics().resent for each in publishers),
        "subscriber's connections": subscriber.statistics().connects,
        "publishers' connections": sum(each.client.statistics().connects for each in publishers),
        "seconds": took_s,
    }
    incomplete = [fault for each in publishers for fault in each.incomplete]
    outcome.faults += summed_up(incomplete, "flows were not completed")
    outcome.expect(not lost_sessions, f"the subscriber's session was lost {lost_sessions} times")
    lost = sum(each.lost_sessions for each in publishers)
    outcome.expect(not lost, f"publishers' sessions were lost {lost} times")
    outcome.faults += summed_up(missing(completed, received), "completed flows were not delivered")
    outcome.faults += summed_up(repeated(received), "messages were delivered again")
    outcome.faults += summed_up(disordered(received), "messages were out of order")
    outcome.faults += summed_up(unknown(offered, received), "messages nobody sent")
    return outcome


def _client(client_id: str, edges: list[FleetEdge]) -> MqttClient:
    first, *others = (edge.address for edge in edges)
    policy = ReconnectPolicy(addresses=tuple(others), wait_first_s=0.05, wait_max_s=0.3)
    return MqttClient(
        *first, client_id, clean_start=False, session_expiry_s=EXPIRY_S, reconnect=policy, keep_alive_s=10
    )


async def _kill(victims: list[FleetEdge], every_s: float, outcome: Outcome, over: asyncio.Event) -> None:
    """Each edge that is back serves for that long before the next one is killed, however long its start took."""
    kills, started_s, loop = 0, 0.0, asyncio.get_running_loop()
    while not await happens(over, every_s):
        victim = victims[kills % len(victims)]
        await victim.kill()
        kills += 1
        began = loop.time()
        await victim.start()
        started_s = max(started_s, loop.time() - began)
    outcome.figures |= {"kills": kills, "slowest start, seconds": started_s}


async def _drop(
    subscriber: MqttClient, after_s: tuple[float, float], chance: random.Random, over: asyncio.Event
) -> None:
    while not await happens(over, chance.uniform(*after_s)):
        subscriber.drop_connection()
