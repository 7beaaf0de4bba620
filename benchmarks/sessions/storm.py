"""A thousand durable sessions that were away come back at once, to an edge that none of them was connected to.

Each session has a filter of its own, with a wildcard so that it needs every partition, and one that all of them share.
Half of the messages have QoS 1, half QoS 2. Each must come to whom it is for, once, in order per topic name and QoS.
While the sessions come back more is published to all of them, which they get live, or late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.sessions.fleet import Fleet, until_quiet
from benchmarks.sessions.outcome import Outcome, disordered, missing, repeated, summed_up
from edge.client import MqttClient
from edge.wire import Publish

EXPIRY_S = 3_600
TOGETHER_MAX = 100  # that subscribe at a time, beforehand
IN_FLIGHT_MAX = 1_000
QUIET_S = 15.0
LIVE_EVERY_S = 0.05
CONNECT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """`own`: messages for each session alone; `shared`: for all of them; half of both QoS 2.
    `live`: for all, while they come.
    """

    sessions: int = 1_000
    own: int = 100
    shared: int = 100
    live: int = 20
    publishers: int = 10
    payload_bytes: int = 100

    @property
    def messages(self) -> int:
        return self.sessions * self.own + self.shared + self.live

    @property
    def deliveries(self) -> int:
        return self.sessions * (self.own + self.shared + self.live)


FULL = Sizes()
QUICK = Sizes(sessions=50, own=20, shared=20, publishers=2)


@dataclass(slots=True)
class _Session:
    number: int
    client_id: str
    received: list[tuple[str, int]] = field(default_factory=list)
    session_present: bool = False

    def take(self, packet: Publish) -> None:
        self.received.append((f"{packet.topic_name_utf8.decode()} QoS {packet.qos}", int(packet.payload)))


async def run(fleet: Fleet, sizes: Sizes) -> Outcome:
    """Sessions are made on the first edge, messages published there; all come back to the second edge."""
    first, second = fleet.edges
    loop = asyncio.get_running_loop()
    outcome = Outcome({"sessions": sizes.sessions, "messages": sizes.messages, "deliveries": sizes.deliveries})
    sessions = [_Session(number, f"{fleet.tag}-s{number}") for number in range(sizes.sessions)]
    for start in range(0, len(sessions), TOGETHER_MAX):
        together = sessions[start : start + TOGETHER_MAX]
        await asyncio.gather(*(_subscribe(fleet, each, first.address) for each in together))
    began = loop.time()
    sent = await _publish(fleet, sizes, first.address)
    outcome.figures["seconds to publish"] = loop.time() - began
    before = await second.figures()
    began = loop.time()
    clients = [_back(each, second.address) for each in sessions]
    try:
        live = asyncio.create_task(_publish_live(fleet, sizes, first.address, sent[-1]))
        await asyncio.gather(*(_connect(each, client) for each, client in zip(sessions, clients, strict=True)))
        outcome.figures["seconds until all were connected"] = loop.time() - began
        await live
        await until_quiet(lambda: sum(len(each.received) for each in sessions), sizes.deliveries, QUIET_S)
        outcome.figures["seconds until all was delivered"] = loop.time() - began
        after = await second.figures()
    finally:
        await asyncio.gather(*(client.disconnect() for client in clients))
    records, late = (after[name] - before[name] for name in ("catch_up_records_total", "catch_up_deliveries_total"))
    outcome.figures["records read from Kafka again"] = int(records)
    outcome.figures["of the deliveries, read again"] = int(late)
    outcome.figures["records read per delivered message"] = records / max(1, late)
    outcome.figures["edge's memory, MB"] = second.resident_kb() / 1_000
    _check(outcome, sessions, sent)
    return outcome


def _check(outcome: Outcome, sessions: Iterable[_Session], sent: dict[int, dict[str, list[int]]]) -> None:
    absent = [each.client_id for each in sessions if not each.session_present]
    outcome.faults += summed_up(absent, "sessions were lost")
    faults: dict[str, list[str]] = {}
    for each in sessions:
        due = sent[each.number] | sent[-1]
        for what, found in (
            ("messages were lost", missing(due, each.received)),
            ("messages came again", repeated(each.received)),
            ("messages were out of order", disordered(each.received)),
            ("messages came to somebody else", sorted({name for name, _ in each.received} - due.keys())),
        ):
            faults.setdefault(what, []).extend(f"{each.client_id}: {fault}" for fault in found)
    for what, found in faults.items():
        outcome.faults += summed_up(found, what)


async def _subscribe(fleet: Fleet, session: _Session, address: tuple[str, int]) -> None:
    client = MqttClient(*address, session.client_id, clean_start=False, session_expiry_s=EXPIRY_S)
    await client.connect()
    await client.subscribe([(f"{fleet.tag}/own/{session.number}/+", 2), (f"{fleet.tag}/shared/#", 2)])
    await client.disconnect()


def _back(session: _Session, address: tuple[str, int]) -> MqttClient:
    client = MqttClient(
        *address,
        session.client_id,
        clean_start=False,
        session_expiry_s=EXPIRY_S,
        receive_maximum=100,
        connect_timeout_s=CONNECT_TIMEOUT_S,
    )
    client.on_message(session.take)
    return client


async def _connect(session: _Session, client: MqttClient) -> None:
    session.session_present = (await client.connect()).session_present


async def _publish(fleet: Fleet, sizes: Sizes, address: tuple[str, int]) -> dict[int, dict[str, list[int]]]:
    """By session (-1: for all) what was sent, by topic name and QoS."""
    sent: dict[int, dict[str, list[int]]] = {number: {} for number in range(-1, sizes.sessions)}

    async def publish(number: int) -> None:
        async with MqttClient(*address, f"{fleet.tag}-p{number}") as client:
            flows: list[asyncio.Future[object]] = []
            for session, name, index in _messages(fleet, sizes, number):
                qos = 1 + index % 2
                future = client.publish(name, str(index).zfill(sizes.payload_bytes), qos)
                assert future is not None
                flows.append(future)  # type: ignore[arg-type]
                sent[session].setdefault(f"{name} QoS {qos}", []).append(index)
                if len(flows) == IN_FLIGHT_MAX:
                    await asyncio.gather(*flows)
                    flows.clear()
            await asyncio.gather(*flows)

    await asyncio.gather(*(publish(number) for number in range(sizes.publishers)))
    return sent


async def _publish_live(fleet: Fleet, sizes: Sizes, address: tuple[str, int], sent: dict[str, list[int]]) -> None:
    async with MqttClient(*address, f"{fleet.tag}-live") as client:
        for index in range(sizes.live):
            name, qos = f"{fleet.tag}/shared/live", 1 + index % 2
            future = client.publish(name, b"%d" % index, qos)
            assert future is not None
            await future
            sent.setdefault(f"{name} QoS {qos}", []).append(index)
            await asyncio.sleep(LIVE_EVERY_S)


def _messages(fleet: Fleet, sizes: Sizes, publisher: int) -> Iterable[tuple[int, str, int]]:
    """What one publisher sends: session, topic name, number. Each topic name has one publisher."""
    for index in range(max(sizes.own, sizes.shared)):
        for session in range(publisher, sizes.sessions, sizes.publishers):
            if index < sizes.own:
                yield session, f"{fleet.tag}/own/{session}/{index // 2 % 2}", index
        if publisher == 0 and index < sizes.shared:
            yield -1, f"{fleet.tag}/shared/{index // 2 % 2}", index
