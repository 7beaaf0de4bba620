"""`$replay` handed over to live while messages keep coming: no gap, no duplicate, over tries with reconnects.

Publishers at the first edge number their messages per topic name, most with QoS 1, some with QoS 2. Each try subscribes
at the second edge to the last seconds and goes on live. In every second try the connection is lost in the middle: the
client comes back with the position token of its last message and no session, or, in turn, to its stored session.
Between a lost connection and the stored session QoS 1 may come again, as MQTT says: what the window held, and no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.sessions.fleet import Fleet, happens, until
from benchmarks.sessions.outcome import Outcome, summed_up
from edge.client import MqttClient
from edge.wire import Publish

WAIT_S = 60.0
WINDOW = 100
EXPIRY_S = 600
TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class Sizes:
    """`per_s` messages in all, every `exactly_once_every`th with QoS 2; a try waits for `live` messages behind those
    that were there when it began."""

    per_s: int = 1_000
    history_s: int = 20
    tries: int = 10
    live: int = 3_000
    names: int = 20
    exactly_once_every: int = 20


FULL = Sizes()
QUICK = Sizes(per_s=300, history_s=3, tries=4, live=300, names=8)


@dataclass(slots=True)
class _Stream:
    """What has been published, and acknowledged."""

    sent: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0

    @property
    def total(self) -> int:
        return self.sent.total()


@dataclass(slots=True)
class _Seen:
    numbers: dict[str, list[int]] = field(default_factory=dict)
    count: int = 0
    token: str = ""

    def take(self, packet: Publish) -> None:
        self.numbers.setdefault(packet.topic_name_utf8.decode(), []).append(int(packet.payload))
        self.count += 1
        if packet.properties is not None:
            self.token = dict(packet.properties.user_properties)["headwater.position"]

    def repeated(self, names_end: str) -> int:
        return sum(len(each) - len(set(each)) for name, each in self.numbers.items() if name.endswith(names_end))


async def run(fleet: Fleet, sizes: Sizes) -> Outcome:
    """The messages go on all the time; the tries follow one another."""
    outcome, stream, over = Outcome(), _Stream(), asyncio.Event()
    publishing = asyncio.create_task(_publish(fleet, sizes, stream, over))
    try:
        assert await until(lambda: stream.acknowledged >= sizes.per_s * sizes.history_s, WAIT_S + sizes.history_s)
        for number in range(sizes.tries):
            await _try(fleet, sizes, number, stream, outcome)
    finally:
        over.set()
        await publishing
    outcome.figures |= {"tries": sizes.tries, "published": stream.total, "acknowledged": stream.acknowledged}
    return outcome


async def _try(fleet: Fleet, sizes: Sizes, number: int, stream: _Stream, outcome: Outcome) -> None:
    breaks, is_stored = number % 2 == 1, number % 4 == 3
    seen = _Seen()
    replay_filter = f"$replay/-{sizes.history_s}s/{fleet.tag}/#"
    client = _client(fleet, number, 1, seen, is_stored=is_stored)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await client.connect()
    [code] = await client.subscribe(replay_filter, 2)
    goal = sizes.per_s * sizes.history_s
    if breaks:
        await until(lambda: seen.count > goal // 2, WAIT_S)
        client.abort()
        before = sum(map(len, seen.numbers.values()))
        client = _client(fleet, number, 0, seen, is_stored=is_stored)
        await client.connect()
        if not is_stored:
            [code] = await client.subscribe(f"$replay/{seen.token}/{fleet.tag}/#", 2)
        outcome.expect(await until(lambda: seen.count > before, WAIT_S), f"try {number}: nothing came after the break")
    outcome.expect(not code.is_error, f"try {number}: SUBACK {code!r}")
    last = dict(stream.sent)
    total = stream.total + sizes.live
    await until(lambda: stream.total >= total, WAIT_S)
    goal_of = {name: count - 1 for name, count in stream.sent.items()}
    came = await until(lambda: all(seen.numbers.get(name, [-1])[-1] >= goal_of[name] for name in goal_of), WAIT_S)
    outcome.figures[f"try {number}{', reconnected' * breaks}{' to its session' * is_stored}"] = (
        f"{seen.count} messages in {loop.time() - began:.1f} s"
    )
    await client.disconnect()
    outcome.expect(came, f"try {number}: not all came: {_behind(seen, goal_of)}")
    outcome.faults += summed_up(_gaps(seen, last), f"gaps in try {number}")
    plain, exact = seen.repeated("/1"), seen.repeated("/2")
    outcome.expect(not exact, f"try {number}: {exact} QoS 2 messages came twice")
    outcome.expect(plain <= (WINDOW if is_stored else 0), f"try {number}: {plain} QoS 1 messages came twice")


def _gaps(seen: _Seen, at_least: dict[str, int]) -> list[str]:
    """Per topic name: the numbers have no hole and come in order (first comings)."""
    faults: list[str] = []
    for name, numbers in seen.numbers.items():
        firsts = list(dict.fromkeys(numbers))
        if firsts != list(range(firsts[0], firsts[0] + len(firsts))):
            faults.append(f"{name}: {_hole(firsts)}")
    faults += [f"{name} never came" for name in at_least.keys() - seen.numbers.keys()]
    return faults


def _hole(firsts: list[int]) -> str:
    return next(f"{after} after {before}" for before, after in pairwise(firsts) if after != before + 1)


def _behind(seen: _Seen, goal_of: dict[str, int]) -> str:
    late = {name: (seen.numbers.get(name, [-1])[-1], goal) for name, goal in goal_of.items()}
    return str({name: pair for name, pair in late.items() if pair[0] < pair[1]})


def _client(fleet: Fleet, number: int, edge: int, seen: _Seen, *, is_stored: bool) -> MqttClient:
    client = MqttClient(
        *fleet.edges[edge].address,
        f"{fleet.tag}-r{number}",
        clean_start=not is_stored,
        session_expiry_s=EXPIRY_S if is_stored else 0,
        receive_maximum=WINDOW,
    )
    client.on_message(seen.take)
    return client


async def _publish(fleet: Fleet, sizes: Sizes, stream: _Stream, over: asyncio.Event) -> None:
    """So many messages per second until it is over."""
    loop = asyncio.get_running_loop()
    client = MqttClient(*fleet.edges[0].address, f"{fleet.tag}-publisher", receive_maximum=WINDOW)
    await client.connect()

    def acknowledged(_: object) -> None:
        stream.acknowledged += 1

    began, sent = loop.time(), 0
    while not await happens(over, TICK_S):
        while sent < (loop.time() - began) * sizes.per_s:
            qos = 2 if sent % sizes.exactly_once_every == 0 else 1
            name = f"{fleet.tag}/{sent % sizes.names}/{qos}"
            future = client.publish(name, b"%d" % stream.sent[name], qos)
            assert future is not None
            future.add_done_callback(acknowledged)
            stream.sent[name] += 1
            sent += 1
    await client.drain()
    await client.disconnect()
