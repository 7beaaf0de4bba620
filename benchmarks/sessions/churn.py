"""A shared subscription while members and edges come and go every few seconds.

Half of the members have sessions that outlive their connections, the others do not; messages have QoS 1 and 2 by turns.
Every few seconds some members leave and others come back, to any edge; now and then an edge is stopped (SIGTERM) or
comes back. What must hold: the members together get everything, with QoS 2 each message once; and when nothing has
changed for a while each message goes to one member, whose share is within a quarter of the fair one.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchmarks.sessions.fleet import Fleet, FleetEdge, until_quiet
from benchmarks.sessions.outcome import Outcome, summed_up
from edge.client import MqttClient, MqttClientError, ReconnectPolicy
from edge.wire import Publish, ReasonCode

EXPIRY_S = 3_600
QUIET_S = 20.0  # longer than Kafka lets an open transaction hold up readers
SETTLE_S = 12.0  # rebalances after the last change
SHARE_MAX = 0.25  # how far a member may be from its fair share
CONNECT_S = 30.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """`calm_s`: how long nothing changes at the end."""

    members: int = 30
    names: int = 600
    per_s: float = 120.0
    churn_s: float = 300.0
    every_s: float = 5.0
    leaving: int = 5
    calm_s: float = 50.0
    seed: int = 5


FULL = Sizes()
QUICK = Sizes(members=9, names=200, per_s=60.0, churn_s=12.0, every_s=3.0, leaving=2, calm_s=8.0)


@dataclass(slots=True)
class _Member:
    client: MqttClient
    is_durable: bool
    is_there: bool = False
    got: list[int] = field(default_factory=list)

    def take(self, packet: Publish) -> None:
        self.got.append(int(packet.payload))


@dataclass(slots=True)
class _Sent:
    completed: list[int] = field(default_factory=list)
    calm_from: int = 1 << 60
    count: int = 0
    open: dict[int, asyncio.Future[ReasonCode]] = field(default_factory=dict)


async def run(fleet: Fleet, sizes: Sizes) -> Outcome:
    """Churn, then calm, then the count."""
    outcome, chance = Outcome(), random.Random(sizes.seed)
    share_filter = f"$share/{fleet.tag}/{fleet.tag}/#"
    members = [_member(fleet, number, chance) for number in range(sizes.members)]
    publisher = _client(f"{fleet.tag}-p", fleet.edges, durable=True)
    sent, over = _Sent(), asyncio.Event()
    async with AsyncExitStack() as stack:
        await publisher.connect()
        stack.push_async_callback(publisher.disconnect)
        for each in members:
            stack.push_async_callback(_leave, each)
        await asyncio.gather(*(_come(each, share_filter) for each in members))
        publishing = asyncio.create_task(_publish(publisher, fleet.tag, sizes, sent, over))
        changes = await _churn(fleet.edges, members, share_filter, sizes, chance)
        await asyncio.sleep(SETTLE_S)
        sent.calm_from = sent.count
        await asyncio.sleep(sizes.calm_s)
        over.set()
        await publishing
        total = len(sent.completed)
        await until_quiet(lambda: len({number for each in members for number in each.got}), total, QUIET_S)
    times = Counter(number for each in members for number in each.got)
    calm = Counter({each.client.client_id: sum(n >= sent.calm_from for n in each.got) for each in members})
    fair = sum(calm.values()) / len(members)
    outcome.figures |= {
        "messages acknowledged": total,
        "members came or left": changes["members"],
        "edges stopped or came back": changes["edges"],
        "QoS 1 repeated": sum(count - 1 for number, count in times.items() if number % 2 == 0),
        "messages while calm": sum(calm.values()),
        "least share of a member, of fair": min(calm.values()) / fair,
        "greatest share of a member, of fair": max(calm.values()) / fair,
    }
    outcome.faults += summed_up([str(n) for n in sent.completed if n not in times], "acknowledged messages are missing")
    again = [f"{number} came {count} times" for number, count in times.items() if count > 1 and number % 2]
    outcome.faults += summed_up(again, "messages with QoS 2 went to two members")
    again = [
        f"{number} came {count} times" for number, count in times.items() if count > 1 and number >= sent.calm_from
    ]
    outcome.faults += summed_up(again, "messages went to two members while nothing changed")
    if sizes.calm_s >= FULL.calm_s:  # fewer messages say little about shares
        unfair = [f"{name} {count}" for name, count in calm.items() if abs(count - fair) > SHARE_MAX * fair]
        outcome.faults += summed_up(unfair, f"members are far from the fair share of {fair:.0f}")
    return outcome


async def _publish(client: MqttClient, prefix: str, sizes: Sizes, sent: _Sent, over: asyncio.Event) -> None:
    """Odd numbers have QoS 2."""
    while not over.is_set():
        number, sent.count = sent.count, sent.count + 1
        future = client.publish(f"{prefix}/{number % sizes.names}", b"%d" % number, 2 if number % 2 else 1)
        assert future is not None
        future.add_done_callback(lambda done, number=number: _done(sent, number, done))  # type: ignore[misc]
        sent.open[number] = future
        await asyncio.sleep(1 / sizes.per_s)
    if sent.open:
        await asyncio.wait(list(sent.open.values()), timeout=60.0)


def _done(sent: _Sent, number: int, done: asyncio.Future[ReasonCode]) -> None:
    sent.open.pop(number, None)
    if not done.cancelled() and done.exception() is None:
        sent.completed.append(number)


async def _churn(
    edges: list[FleetEdge], members: list[_Member], share_filter: str, sizes: Sizes, chance: random.Random
) -> Counter[str]:
    """Two edges at least are there; in the end all edges and all members are."""
    loop = asyncio.get_running_loop()
    until_s, changes, away = loop.time() + sizes.churn_s, Counter[str](), list[FleetEdge]()
    while loop.time() < until_s:
        tick = asyncio.create_task(asyncio.sleep(sizes.every_s))
        there = [each for each in members if each.is_there]
        back = [each for each in members if not each.is_there]
        going = chance.sample(there, min(sizes.leaving, max(0, len(there) - len(members) // 2)))
        changes["members"] += len(going) + len(back)
        changes["edges"] += 1
        await asyncio.gather(*(_leave(each) for each in going), *(_come(each, share_filter) for each in back))
        if away:
            await away.pop().start()
        else:
            away.append(chance.choice(edges))
            await away[-1].stop()
        await tick
    await asyncio.gather(*(each.start() for each in away))
    await asyncio.gather(*(_come(each, share_filter) for each in members if not each.is_there))
    return changes


async def _come(member: _Member, share_filter: str) -> None:
    """To some edge; again if that one is just going."""
    async with asyncio.timeout(CONNECT_S):
        while not member.is_there:
            try:
                await member.client.connect()
                await member.client.subscribe(share_filter, 2)
                member.is_there = True
            except (MqttClientError, OSError):
                await asyncio.sleep(0.2)


async def _leave(member: _Member) -> None:
    if member.is_there:
        member.is_there = False
        await member.client.disconnect()


def _member(fleet: Fleet, number: int, chance: random.Random) -> _Member:
    edges = list(fleet.edges)
    chance.shuffle(edges)
    member = _Member(_client(f"{fleet.tag}-m{number}", edges, durable=number % 2 == 0), number % 2 == 0)
    member.client.on_message(member.take)
    return member


def _client(client_id: str, edges: list[FleetEdge], *, durable: bool) -> MqttClient:
    first, *others = (edge.address for edge in edges)
    return MqttClient(
        *first,
        client_id,
        clean_start=not durable,
        session_expiry_s=EXPIRY_S if durable else 0,
        keep_alive_s=10,
        receive_maximum=20,
        reconnect=ReconnectPolicy(addresses=tuple(others), wait_first_s=0.05, wait_max_s=0.5),
    )
