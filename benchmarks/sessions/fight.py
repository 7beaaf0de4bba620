"""One client id that many devices use at once, on three edges: each CONNECT takes the session over from the last one.

None of the fighters acknowledges anything. What must hold: at the end the session has one owner, soon; the edges'
memory stays what it was; and the session, its subscriptions and every message that was published, is all there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from benchmarks.sessions.fleet import Fleet, FleetEdge, happens, until, until_quiet
from benchmarks.sessions.outcome import Outcome, disordered, missing, repeated, summed_up
from edge.client import MqttClient
from edge.wire import Connect, Properties, Publish, encode

EXPIRY_S = 3_600
ONE_OWNER_WITHIN_S = 2.0
GROWTH_MAX_MB = 20.0
QUIET_S = 10.0
SAMPLES = 10  # of memory
_CONNACK = 0x20


@dataclass(frozen=True, slots=True)
class Sizes:
    """`per_s` is of each edge; memory is compared from `warm_up_s` on."""

    per_s: float = 50.0
    seconds: float = 60.0
    warm_up_s: float = 15.0
    messages_per_s: float = 10.0


FULL = Sizes()
QUICK = Sizes(seconds=10.0, warm_up_s=5.0)


class _Fighter(asyncio.Protocol):
    """Says CONNECT and nothing else."""

    def __init__(self, fighters: _Fighters, connect: bytes) -> None:
        self._fighters = fighters
        self._connect = connect
        self.is_accepted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._fighters.open.add(self)
        self.transport = transport
        transport.write(self._connect)

    def data_received(self, data: bytes) -> None:
        if data[0] == _CONNACK and not self.is_accepted:
            self.is_accepted = data[3] == 0
            self._fighters.accepted += self.is_accepted
            self._fighters.refused += not self.is_accepted
            self._fighters.without_session += self.is_accepted and not data[2] & 1

    def connection_lost(self, error: Exception | None) -> None:
        self._fighters.open.discard(self)


class _Fighters:
    def __init__(self) -> None:
        self.open: set[_Fighter] = set()
        self.begun = self.accepted = self.refused = self.without_session = 0

    @property
    def owners(self) -> int:
        return sum(each.is_accepted for each in self.open)


async def run(fleet: Fleet, sizes: Sizes) -> Outcome:
    """As many edges as there are, one fight."""
    outcome, fighters, over = Outcome(), _Fighters(), asyncio.Event()
    client_id = f"{fleet.tag}-fought-over"
    received: list[tuple[str, int]] = []
    owner = _owner(fleet, client_id, received)
    await owner.connect()
    await owner.subscribe([(f"{fleet.tag}/1/#", 1), (f"{fleet.tag}/2/#", 2)])
    await owner.disconnect()
    properties = Properties(session_expiry_interval_s=EXPIRY_S, receive_maximum=10)
    connect = encode(Connect(5, client_id, False, keep_alive_s=0, properties=properties), 5)
    async with MqttClient(*fleet.edges[-1].address, f"{fleet.tag}-p") as publisher:
        publishing = asyncio.create_task(_publish(fleet, publisher, sizes, over))
        watching = asyncio.create_task(_watch(fleet, sizes, outcome, over))
        await asyncio.gather(*(_fight(edge, fighters, connect, sizes) for edge in fleet.edges))
        began = asyncio.get_running_loop().time()
        await until(lambda: fighters.owners == len(fighters.open) == 1, 5 * ONE_OWNER_WITHIN_S)
        settled_s = asyncio.get_running_loop().time() - began
        over.set()
        sent = await publishing
        await watching
    outcome.figures |= {
        "CONNECTs": fighters.begun,
        "accepted": fighters.accepted,
        "refused": fighters.refused,
        "seconds to one owner": settled_s,
        "connections left": len(fighters.open),
    }
    outcome.expect(fighters.owners == len(fighters.open) == 1, f"{fighters.owners} owners of {len(fighters.open)}")
    outcome.expect(settled_s <= ONE_OWNER_WITHIN_S, f"one owner only after {settled_s:.1f} s")
    outcome.expect(not fighters.without_session, f"{fighters.without_session} CONNACKs told of no session")
    await _check_session(fleet, outcome, client_id, sent)
    for each in list(fighters.open):
        each.transport.abort()
    return outcome


async def _check_session(fleet: Fleet, outcome: Outcome, client_id: str, sent: dict[str, list[int]]) -> None:
    """The last one to come acknowledges, and gets everything."""
    received: list[tuple[str, int]] = []
    owner = _owner(fleet, client_id, received)
    connack = await owner.connect()
    outcome.expect(connack.session_present, "the session was lost")
    total = sum(map(len, sent.values()))
    await until_quiet(lambda: len(set(received)), total, QUIET_S)
    await owner.disconnect()
    outcome.figures["messages"] = total
    outcome.faults += summed_up(missing(sent, received), "messages were lost")
    outcome.faults += summed_up(disordered(received), "messages were out of order")
    outcome.faults += summed_up(repeated(received), "messages came again")


def _owner(fleet: Fleet, client_id: str, received: list[tuple[str, int]]) -> MqttClient:
    def take(packet: Publish) -> None:
        received.append((packet.topic_name_utf8.decode(), int(packet.payload)))

    client = MqttClient(*fleet.edges[0].address, client_id, clean_start=False, session_expiry_s=EXPIRY_S)
    client.on_message(take)
    return client


async def _fight(edge: FleetEdge, fighters: _Fighters, connect: bytes, sizes: Sizes) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(round(sizes.per_s * sizes.seconds)):
        await asyncio.sleep(max(0.0, began + number / sizes.per_s - loop.time()))
        fighters.begun += 1
        await loop.create_connection(lambda: _Fighter(fighters, connect), *edge.address)


async def _publish(fleet: Fleet, client: MqttClient, sizes: Sizes, over: asyncio.Event) -> dict[str, list[int]]:
    """What was acknowledged, of both QoS."""
    sent: dict[str, list[int]] = {}
    number = 0
    while not await happens(over, 1 / sizes.messages_per_s):
        name, qos = f"{fleet.tag}/{1 + number % 2}/x", 1 + number % 2
        future = client.publish(name, b"%d" % number, qos)
        assert future is not None
        await future
        sent.setdefault(name, []).append(number)
        number += 1
    return sent


async def _watch(fleet: Fleet, sizes: Sizes, outcome: Outcome, over: asyncio.Event) -> None:
    """Memory of all edges together, from the warm-up to the end."""
    await happens(over, sizes.warm_up_s)
    samples_mb = [_memory_mb(fleet)]
    while not await happens(over, sizes.seconds / SAMPLES):
        samples_mb.append(_memory_mb(fleet))
    samples_mb.append(_memory_mb(fleet))
    grown_mb = (samples_mb[-1] - samples_mb[0]) / len(fleet.edges)
    outcome.figures["memory of all edges, MB"] = ", ".join(f"{mb:.0f}" for mb in samples_mb)
    outcome.figures["an edge's memory grew by, MB"] = grown_mb
    outcome.expect(grown_mb <= GROWTH_MAX_MB, f"memory grew by {grown_mb:.1f} MB")


def _memory_mb(fleet: Fleet) -> float:
    return sum(edge.resident_kb() for edge in fleet.edges) / 1_000
