"""An edge is killed (-9) with clients of every kind: who gets their wills, and what becomes of their sessions.

Each kind is there so many times. Wills must be published exactly once, by an edge that lives, when the MQTT rules say
so, and never for a client that came back in time; sessions must expire when they have to, and be there when not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchmarks.sessions.fleet import Fleet, until
from benchmarks.sessions.outcome import Outcome, summed_up
from edge.client import MqttClient, ReconnectPolicy
from edge.wire import Connack, Properties, Publish, Will

DEAD_AFTER_S = 6.0  # without a heartbeat
SLACK_S = 6.0  # the heartbeat before the end is up to 2 s old, who adopts looks around every 0.5 s, machines are busy
EARLY_S = 2.0  # so old may the last heartbeat be when the edge dies
MOVED_WITHIN_S = 5.0
EXPIRY_S = 3_600
OF_EACH, OF_EACH_QUICK = 50, 3


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of client of the dead edge. `will_s`: when its will is due, from the death of the edge on."""

    name: str
    expiry_s: int
    will_delay_s: int | None = None
    qos: int = 1
    retain: bool = False
    leaves: bool = False  # says goodbye before the edge dies
    moves: bool = False  # comes back at another edge at once
    has_expired: bool = False  # when it comes back at the end

    @property
    def will_s(self) -> float | None:
        """None: its will must never be published."""
        if self.will_delay_s is None or self.leaves or (self.moves and self.will_delay_s):
            return None
        if self.moves:
            return 0.0  # at its come-back: its old connection ended without a DISCONNECT
        return DEAD_AFTER_S + min(self.will_delay_s, self.expiry_s)


KINDS = (
    Kind("plain-will", 0, 0),
    Kind("exactly-once-will", 0, 0, qos=2),
    Kind("retained-will", EXPIRY_S, 0, retain=True),
    Kind("delayed-will", EXPIRY_S, 2),
    Kind("will-at-expiry", 3, 1_000, has_expired=True),
    Kind("no-will-comes-back", EXPIRY_S, 30, moves=True),
    Kind("comes-back", EXPIRY_S, moves=True),
    Kind("will-and-comes-back", EXPIRY_S, 0, moves=True),
    Kind("left-with-will", EXPIRY_S, 0, leaves=True),
    Kind("left-and-expires", 3, leaves=True, has_expired=True),
    Kind("expires", 3, has_expired=True),
    Kind("stays", EXPIRY_S),
)


@dataclass(slots=True)
class _Client:
    kind: Kind
    client: MqttClient
    name: str
    received: list[bytes] = field(default_factory=list)
    moved_at: float | None = None
    session_present: bool = False

    def connected(self, connack: Connack) -> None:
        if self.client.statistics().connects > 1:
            self.moved_at = asyncio.get_running_loop().time()
            self.session_present = connack.session_present


async def run(fleet: Fleet, of_each: int) -> Outcome:
    """The first edge dies; observers of the wills are on both others, clients move to the second."""
    first, second, third = fleet.edges
    outcome = Outcome({"clients": of_each * len(KINDS)})
    loop = asyncio.get_running_loop()
    clients = [_client(fleet, kind, number) for kind in KINDS for number in range(of_each)]
    async with AsyncExitStack() as stack:
        wills: dict[str, list[tuple[str, float]]] = {}
        for edge in (second, third):
            observer = MqttClient(*edge.address, f"{fleet.tag}-observer-{edge.node_id}")
            seen = wills.setdefault(edge.node_id, [])
            observer.on_message(lambda packet, seen=seen: seen.append((_name(packet), loop.time())))  # type: ignore[misc]
            await observer.connect()
            stack.push_async_callback(observer.disconnect)
            await observer.subscribe(f"{fleet.tag}/will/#", 2)
        for each in sorted(clients, key=lambda each: not each.kind.leaves):  # who leaves does so some time before
            await each.client.connect()
            stack.push_async_callback(each.client.disconnect)
            await each.client.subscribe(each.name, 1)
            if each.kind.leaves:
                await each.client.disconnect()
        await first.kill()
        died_at = loop.time()
        publisher = await stack.enter_async_context(MqttClient(*third.address, f"{fleet.tag}-p"))
        futures = [publisher.publish(each.name, b"after", 1) for each in clients]
        await asyncio.gather(*(future for future in futures if future is not None))
        await until(lambda: all(each.moved_at is not None for each in clients if each.kind.moves), 2 * MOVED_WITHIN_S)
        due_s = max(each.kind.will_s or 0.0 for each in clients)
        await asyncio.sleep(max(0.0, died_at + due_s + SLACK_S - loop.time()))
        for seen in wills.values():
            _check_wills(outcome, clients, seen, died_at)
        await _check_moved(outcome, [each for each in clients if each.kind.moves], died_at)
        await _check_sessions(outcome, [each for each in clients if not each.kind.moves], second.address)
        await _check_retained(outcome, clients, third.address, fleet.tag)
    return outcome


def _client(fleet: Fleet, kind: Kind, number: int) -> _Client:
    first, second, _ = fleet.edges
    name = f"{kind.name}-{number}"
    will = None
    if kind.will_delay_s is not None:
        properties = Properties(will_delay_interval_s=kind.will_delay_s)
        will = Will(f"{fleet.tag}/will/{name}", name.encode(), kind.qos, kind.retain, properties)
    client = MqttClient(
        *first.address,
        f"{fleet.tag}-{name}",
        clean_start=False,
        session_expiry_s=kind.expiry_s,
        will=will,
        reconnect=ReconnectPolicy(addresses=(second.address,), wait_first_s=0.05, wait_max_s=0.2)
        if kind.moves
        else None,
    )
    each = _Client(kind, client, f"{fleet.tag}/to/{name}")
    client.on_message(lambda packet: each.received.append(packet.payload))
    client.on_connect(each.connected)
    return each


def _name(packet: Publish) -> str:
    return packet.topic_name_utf8.decode().rpartition("/")[2]


def _check_wills(outcome: Outcome, clients: list[_Client], seen: list[tuple[str, float]], died_at: float) -> None:
    """Each will that is due exactly once and in time, and no others (invariant I10)."""
    counts = Counter(name for name, _ in seen)
    wanted = {f"{each.client.client_id}".partition("-")[2]: each.kind.will_s for each in clients}
    wanted = {name: will_s for name, will_s in wanted.items() if will_s is not None}
    faults = [f"{name}: {counts[name]}" for name in wanted.keys() | counts.keys() if counts[name] != (name in wanted)]
    outcome.faults += summed_up(sorted(faults), "wills were not published as often as they must")
    late = [
        f"{name}: {at - died_at:.1f} s, not {wanted[name]:.1f}"
        for name, at in seen
        if name in wanted and not (wanted[name] or 0) - EARLY_S <= at - died_at <= (wanted[name] or 0) + SLACK_S
    ]
    outcome.faults += summed_up(late, "wills were not published when they were due")
    outcome.figures["wills published"] = len(seen)
    outcome.figures["seconds to the first and last will"] = (
        f"{min(at for _, at in seen) - died_at:.1f}, {max(at for _, at in seen) - died_at:.1f}" if seen else "none"
    )


async def _check_moved(outcome: Outcome, moved: list[_Client], died_at: float) -> None:
    """They were back in time, with their sessions, and get what was published meanwhile."""
    took_s = [each.moved_at - died_at for each in moved if each.moved_at is not None]
    outcome.figures["seconds to move, at most"] = max(took_s, default=0.0)
    outcome.expect(len(took_s) == len(moved), f"{len(moved) - len(took_s)} clients did not come back")
    outcome.expect(max(took_s, default=0.0) <= MOVED_WITHIN_S, f"a client needed more than {MOVED_WITHIN_S} s to move")
    present = sum(each.session_present for each in moved)
    outcome.expect(present == len(moved), f"{len(moved) - present} clients that moved have lost their sessions")
    await until(lambda: all(each.received for each in moved), SLACK_S)
    faults = [each.name for each in moved if each.received != [b"after"]]
    outcome.faults += summed_up(faults, "clients that moved did not get their message once")


async def _check_sessions(outcome: Outcome, left: list[_Client], address: tuple[str, int]) -> None:
    """Who comes back at the end finds a session, or none: as long as it had to be kept."""
    faults: list[str] = []
    for each in left:
        has_session = each.kind.expiry_s > 0 and not each.kind.has_expired
        again = MqttClient(*address, each.client.client_id, clean_start=False, session_expiry_s=each.kind.expiry_s)
        inbox = again.inbox()
        connack = await again.connect()
        if connack.session_present != has_session:
            faults.append(f"{each.name}: session present {connack.session_present}")
        elif has_session and (await inbox.get()).payload != b"after":
            faults.append(f"{each.name}: not its message")
        await again.disconnect()
    outcome.faults += summed_up(faults, "sessions were not as they must be")


async def _check_retained(outcome: Outcome, clients: list[_Client], address: tuple[str, int], tag: str) -> None:
    """Wills with RETAIN are retained."""
    wanted = {each.client.client_id.partition("-")[2] for each in clients if each.kind.retain}
    async with MqttClient(*address, f"{tag}-late") as late:
        inbox = late.inbox()
        await late.subscribe(f"{tag}/will/#", 1)
        await until(lambda: len(inbox) >= len(wanted), SLACK_S)
        outcome.expect_equal("retained wills", {_name(packet) for packet in inbox.drain()}, wanted)
