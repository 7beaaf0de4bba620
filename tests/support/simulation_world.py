"""A cluster in a box: real edges on one log in memory, model clients, and a random schedule of work and trouble.

Everything is drawn from one seed: how many edges and clients, what they do, and which faults this run has (a few of
them each time, so that rare combinations get their turn). After the schedule everything heals, and what must then be
true is looked at by `simulation_checks`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from support.simulation_checks import EdgeLeft, Evidence, check, committed
from support.simulation_client import ModelClient, Plan
from support.simulation_history import Fault, History
from support.simulation_leases import SimulatedGroups
from support.simulation_link import Link
from support.simulation_log import NodeLog
from support.simulation_loop import EPOCH_S, Process, VirtualLoop

from bridge.log import Position
from bridge.memory_log import MemoryLog, MemoryRecord
from edge.access.acl import DevAcl
from edge.access.principal import Credentials, Principal
from edge.handler.protocol import EdgeProtocolHandler
from edge.node.config import make_config
from edge.node.node import EdgeNode

FAULTS = (
    "kill",
    "pause",
    "cut",
    "lost answers",
    "slow log",
    "log trouble",
    "compaction",
    "clock",
    "slow readers",
    "vanish",
    "reset",
    "wipe",
    "restart",
    "intruder",
    "truncation",
    "clock jumps",
)
TOPIC_NAMES = ("a", "a/b", "a/c", "b/c", "sensors/s/d1/t", "sensors/s/d2/t", "r/1", "r/2")
FILTERS = ("a", "a/#", "+/c", "a/+", "#", "sensors/+/d1/#", "sensors/s/d2/t", "r/+", "will/#", "b/c")
SHARED_NAMES = ("sh/1", "sh/2")  # of these groups, and of nobody else
SHARES = ("$share/g/sh/#", "$share/h/sh/1")
SECRET = "secret/x"
START_TIMEOUT_S = 60.0
HEAL_TIMEOUT_S = 240.0


class SerialHandler(EdgeProtocolHandler):
    """Sets of handlers are walked in the order of their numbers, whatever their addresses are."""

    _made = 0

    def __init__(self, services: Any) -> None:
        SerialHandler._made += 1
        self._serial = SerialHandler._made
        super().__init__(services)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


class NamedUsers:
    """Whoever says a user name is that user."""

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if not credentials.user_name:
            return None
        return Principal(credentials.user_name, credentials.client_id, credentials.peer)

    def statistics(self) -> dict[str, int]:
        return {}


class SecretAcl(DevAcl):
    """Everything is allowed but `secret/...`."""

    def may_publish(self, principal: Principal, topic_name: str) -> bool:
        return not topic_name.startswith("secret/")

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        return not topic_filter.startswith("secret/")


class Edge:
    """One node id; its process is another one after each start."""

    def __init__(self, world: World, node_id: str) -> None:
        self.world = world
        self.node_id = node_id
        self.process = Process(node_id, world.loop)
        self.log = NodeLog(world.log, self.process, world.rng, world.fault_counts)
        self.node: Any = None
        self.links: list[Link] = []
        self.is_up = False
        self.clock_offset_s = 0.0
        self.baseline_tasks = 0
        self._starting: Any = None

    def start(self) -> None:
        world = self.world
        self.process = Process(self.node_id, world.loop)
        self.process.clock_offset_s = self.clock_offset_s
        world.processes.append(self.process)
        self.log = NodeLog(world.log, self.process, world.rng, world.fault_counts)
        self.links = []
        self.process.context.run(self._make)
        self._starting = self.process.spawn(self._start())

    def _make(self) -> None:
        self.node = EdgeNode(world_config(self.node_id), self.log)
        self.node._incarnation = f"1-{self.node._started_ms}"

    async def _start(self) -> None:
        await self.node.start()
        access = self.node.services.access
        access.authenticator, access.authorizer = NamedUsers(), SecretAcl()
        self.is_up = True

    @property
    def is_starting(self) -> bool:
        return self._starting is not None and not self._starting.done() and not self.process.is_dead

    def serve(self) -> Any:
        return SerialHandler(self.node.services)

    def kill(self) -> None:
        self.is_up = False
        self.process.kill()
        self.log.kill()
        for link in self.links:
            link.edge_killed()

    def stop(self) -> Any:
        self.is_up = False
        return self.process.spawn(self.node.stop())


@cache
def world_config(node_id: str) -> Any:
    return make_config(
        {
            "node_id": node_id,
            "dev": True,
            "listeners": [],
            "http": None,
            "limits": {"buffer_messages_max": 6, "keep_alive_factor": 1.5},
        },
        "simulation",
    )


@dataclass(slots=True)
class Report:
    """What a run came to."""

    seed: int
    steps: int = 0
    callbacks: int = 0
    virtual_s: float = 0.0
    exercised: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[str, str]] = field(default_factory=list)


class World:
    """One run. `faults`: which kinds it has; None: drawn."""

    def __init__(self, seed: int, loop: VirtualLoop, faults: tuple[str, ...] | None = None, steps: int = 60) -> None:
        self.seed = seed
        self.loop = loop
        self.rng = Random(seed)
        self.steps = steps
        self.history = History()
        self.fault_counts: Counter[str] = Counter()
        self.exercised: Counter[str] = Counter()
        SerialHandler._made = 0
        self.log = MemoryLog(clock_ms=lambda: int((EPOCH_S + loop.time()) * 1000))
        self.log.groups = SimulatedGroups(loop.outside)
        self.deleted: dict[Position, list[MemoryRecord]] = {}
        self.processes: list[Process] = []
        rng = self.rng
        self.kinds = (
            faults if faults is not None else tuple(k for k in FAULTS if rng.random() < rng.choice((0.1, 0.3, 0.5)))
        )
        self.edges = [Edge(self, f"edge-{number}") for number in range(1, rng.choice((1, 2, 2, 2, 3)) + 1)]
        if "clock" in self.kinds and "clock jumps" not in self.kinds:
            rng.choice(self.edges).clock_offset_s = rng.choice((-3600.0, -30.0, -5.0, 5.0, 30.0, 3600.0))
        self.has_groups = rng.random() < 0.4
        self.clients = [self._client(number) for number in range(1, rng.randint(2, 5) + 1)]
        self.intruders = 0
        self.is_healing = False
        self.last_evidence = Evidence(self.history)
        self.errors = _Errors(loop)

    # Clients

    def _client(self, number: int) -> ModelClient:
        rng = self.rng
        version = rng.choice((4, 5, 5))
        durable = rng.random() < 0.7
        expiry_s = 0
        if durable:
            expiry_s = 518_400 if version == 4 else rng.choice((3600, 3600, 10))
        has_will = rng.random() < 0.5
        plan = Plan(
            f"c{number}",
            version,
            expiry_s,
            receive_maximum=rng.choice((1, 2, 5, 20)),
            keep_alive_s=rng.choice((0, 10)),
            will_qos=rng.choice((0, 1, 2)) if has_will else None,
            will_retain=rng.random() < 0.3,
            will_delay_s=rng.choice((0, 0, 2, 8)),
            slow_s=rng.choice((0.5, 3.0)) if "slow readers" in self.kinds and rng.random() < 0.6 else 0.0,
            alias_maximum=rng.choice((0, 0, 3)),
        )
        client = ModelClient(plan, self.loop, rng, self.history)
        client.on_end = self._client_ended
        for topic_filter in rng.sample(FILTERS, rng.randint(0, 3)):
            if not (self.has_groups and topic_filter == "#"):  # what came by a group is nobody else's
                client.want(topic_filter, rng.choice((0, 1, 1, 2, 2)), rng.random() < 0.15)
        if self.has_groups and rng.random() < 0.7:
            client.want(rng.choice(SHARES), rng.choice((1, 2, 2)))
        self._tick_client(client)
        return client

    def _tick_client(self, client: ModelClient) -> None:
        client.tick()
        self.loop.call_later(1.0, self._tick_client, client)

    def _client_ended(self, client: ModelClient) -> None:
        if not client.is_away:
            delay_s = self.rng.choice((0.05, 0.3, 1.0, 3.0))
            self.loop.call_later(delay_s, self._come_back, client)

    def _come_back(self, client: ModelClient) -> None:
        if client.link is None and not client.is_away:
            self.connect(client)

    def connect(self, client: ModelClient) -> None:
        """To any edge that takes connections, paused or not; else again in a while."""
        edges = [edge for edge in self.edges if edge.is_up]
        client.is_away = False
        if not edges:
            self.loop.call_later(0.5, self._come_back, client)
            return
        edge = self.rng.choice(edges)
        if client.link is not None:
            self._count("take-over")
            link, client.link = client.link, None
            link.peer = None
            connection = client.connection
            if connection is not None and connection.ended_at is None:
                connection.ended_at, connection.end = self.loop.time(), "taken over"
            client.is_connected = False
            client.left_elsewhere()
        clean = client.plan.expiry_s == 0
        if not clean and "wipe" in self.kinds and not self.is_healing and self.rng.random() < 0.1:
            clean = True
            self._count("wipe")
        link = Link(client, edge.process, self.rng, self.rng.choice((200, 2_000, 100_000)))
        edge.links.append(link)
        self._trace(f"{client.plan.name} -> {edge.node_id} clean={clean}")
        client.connect(link, edge.serve, clean=clean)

    # The schedule

    def run(self) -> Report:
        with self.errors:
            return self._run()

    def _run(self) -> Report:
        for edge in self.edges:
            edge.start()
        started = self.loop.run_until(lambda: all(edge.is_up for edge in self.edges), START_TIMEOUT_S)
        assert started, f"the edges do not start: {[edge._starting for edge in self.edges]} {self.errors.lines}"
        for client in self.clients:
            self.connect(client)
        mean_s = self.rng.choice((0.05, 0.2, 0.6))
        for _ in range(self.steps):
            self.loop.run_for(self.rng.expovariate(1 / mean_s))
            self._step()
        self._heal()
        evidence = self.last_evidence = self.evidence()
        self._end()
        return self._report(evidence)

    def _step(self) -> None:
        rng = self.rng
        action = rng.choices(
            ("publish", "burst", "retain", "leave", "move", "subscribe", "unsubscribe", "trouble"),
            (30, 8, 8, 6, 5, 4, 3, 12 if self.kinds else 0),
        )[0]
        if action == "trouble":
            self._trouble(rng.choice(self.kinds))
            return
        client = rng.choice(self.clients)
        if action in ("publish", "burst", "retain"):
            for _ in range(rng.randint(5, 12) if action == "burst" else 1):
                self._publish(client, retain=action == "retain")
        elif action == "leave":
            self._leave(client)
        elif action == "move":
            self.connect(client)
        elif action == "subscribe":
            self._want(client)
        elif client.wanted:
            client.unwant(rng.choice(list(client.wanted)))
        self._count(action)

    def _want(self, client: ModelClient) -> None:
        rng = self.rng
        if self.has_groups and rng.random() < 0.4:
            client.want(rng.choice(SHARES), rng.choice((1, 2, 2)))
            return
        topic_filter = rng.choice((*FILTERS, "secret/#"))
        if not (self.has_groups and topic_filter == "#"):
            client.want(topic_filter, rng.choice((0, 1, 2)), rng.random() < 0.15)

    def _publish(self, client: ModelClient, *, retain: bool) -> None:
        rng = self.rng
        name = rng.choice(("r/1", "r/2")) if retain else rng.choice((*TOPIC_NAMES, *TOPIC_NAMES, SECRET))
        if self.has_groups and not retain and rng.random() < 0.5:
            name = rng.choice(SHARED_NAMES)
        expiry_s = rng.choice((1, 3, 30)) if rng.random() < 0.1 and client.plan.version == 5 else None
        client.publish(name, rng.choice((0, 1, 1, 2, 2)), retain, expiry_s)

    def _leave(self, client: ModelClient) -> None:
        how = ["disconnect", "disconnect with will", "closed"]
        how += ["reset"] * ("reset" in self.kinds) + ["vanished"] * ("vanish" in self.kinds)
        client.is_away = True
        self._trace(f"{client.plan.name} leaves")
        client.disconnect(self.rng.choice(how))
        self.loop.call_later(self.rng.choice((0.1, 1.0, 4.0, 15.0)), self._return, client)

    def _return(self, client: ModelClient) -> None:
        if client.link is None:
            self.connect(client)

    # Trouble

    def _trouble(self, kind: str) -> None:
        rng = self.rng
        edge = rng.choice(self.edges)
        self._trace(f"{kind} {edge.node_id}")
        match kind:
            case "kill" | "restart" if edge.is_up and not edge.process.is_paused:
                self._go_down(edge, kind)
            case "pause" if edge.is_up and not edge.process.is_paused:
                fault = self._fault(edge, kind)
                edge.process.pause()
                self._after((0.3, 2.0, 7.0, 12.0, 40.0), self._resume, edge, edge.process, fault)
            case "cut" | "lost answers" if edge.is_up and not (edge.log.is_cut or edge.log.loses_answers):
                fault = self._fault(edge, kind)
                (edge.log.cut if kind == "cut" else edge.log.lose_answers)()
                self._after((0.3, 2.0, 7.0, 15.0, 40.0), self._heal_log, edge.log, fault)
            case "slow log":
                fault = self._fault(edge, kind)
                edge.log.slowness = rng.choice((20.0, 100.0, 400.0))
                self._after((2.0, 10.0), self._speed_up, edge.log, fault)
            case "log trouble":
                fault = self._fault(edge, kind)
                edge.log.trouble = rng.choice((0.02, 0.1, 0.3))
                self._after((2.0, 10.0), self._calm, edge.log, fault)
            case "compaction":
                self._compact()
            case "truncation":
                self._delete_records()
            case "clock jumps":
                edge.clock_offset_s = edge.process.clock_offset_s = rng.choice((-3600.0, 0.0, 3600.0))
            case "slow readers":
                client = rng.choice(self.clients)
                if client.link is not None:
                    client.link.reads = False
                    self._after((1.0, 5.0), client.link.read_on)
            case "intruder":
                self._intrude()
            case "vanish" | "reset":
                client = rng.choice(self.clients)
                if client.link is not None:
                    client.disconnect("vanished" if kind == "vanish" else "reset")
            case _:
                return
        self._count(kind)

    def _after(self, delays_s: tuple[float, ...], callback: Callable[..., Any], *args: Any) -> None:
        self.loop.call_later(self.rng.choice(delays_s), callback, *args)

    def _fault(self, edge: Edge, kind: str) -> Fault:
        fault = Fault(edge.node_id, kind, self.loop.time())
        self.history.faults.append(fault)
        return fault

    def _go_down(self, edge: Edge, kind: str) -> None:
        fault = self._fault(edge, kind)
        if kind == "kill":
            edge.kill()
            self._after((0.2, 3.0, 12.0), self._start_again, edge, fault)
            return
        task = edge.stop()
        task.add_done_callback(lambda _: self._stopped(edge, fault), context=self.loop.outside.context)

    def _stopped(self, edge: Edge, fault: Fault) -> None:
        left = _left_running(edge)
        if len(left) > 1 and not edge.process.is_dead:  # `stop` itself is done when this runs
            self.history.violation("I13", f"{edge.node_id} has stopped and has left {left[:5]}")
        edge.kill()
        self._after((0.2, 3.0), self._start_again, edge, fault)

    def _start_again(self, edge: Edge, fault: Fault) -> None:
        if not edge.is_up and not edge.is_starting:
            self._trace(f"start {edge.node_id}")
            edge.start()
        fault.until_at = self.loop.time()

    def _resume(self, edge: Edge, process: Process, fault: Fault) -> None:
        process.resume()
        fault.until_at = self.loop.time()

    def _heal_log(self, log: NodeLog, fault: Fault) -> None:
        log.heal()
        fault.until_at = self.loop.time()

    def _speed_up(self, log: NodeLog, fault: Fault) -> None:
        log.slowness = 1.0
        fault.until_at = self.loop.time()

    def _calm(self, log: NodeLog, fault: Fault) -> None:
        log.trouble = 0.0
        fault.until_at = self.loop.time()

    def _compact(self) -> None:
        now_ms = int((EPOCH_S + self.loop.time()) * 1000)
        for kafka_topic, lag_ms in (
            ("headwater.sessions", 0),
            ("headwater.retained", 0),
            ("headwater.claims", 900_000),
        ):
            for partition in range(12):
                self.fault_counts["records compacted"] += self.log.compact(kafka_topic, partition, now_ms - lag_ms)

    def _delete_records(self) -> None:
        """Kafka's DeleteRecords, of messages, whoever still needs them."""
        filled = [
            (position, held)
            for position, held in self.log._partitions.items()
            if position[0].startswith("mqtt.") and held.records and not held.open
        ]
        if not filled:
            return
        position, held = self.rng.choice(filled)
        until = held.start + self.rng.randint(1, len(held.records))
        gone = held.records[: until - held.start]
        self.deleted.setdefault(position, []).extend(gone)
        self.history.deleted.update(record.value for record in gone if record.value is not None)
        self.history.faults.append(Fault("", "truncation", self.loop.time(), self.loop.time()))
        self.log.truncate(*position, until)

    def _intrude(self) -> None:
        """Another user tries to take a client's session."""
        edges = [edge for edge in self.edges if edge.is_up]
        if not edges:
            return
        self.intruders += 1
        victim, edge = self.rng.choice(self.clients), self.rng.choice(edges)
        plan = Plan(victim.plan.name, 5, 0, user="intruder", will_qos=1)
        history = History()
        intruder = ModelClient(plan, self.loop, self.rng, history)
        intruder.wills = 1_000 * self.intruders
        link = Link(intruder, edge.process, self.rng, 100_000)
        edge.links.append(link)
        intruder.connect(link, edge.serve, clean=True)
        self.history.connections += history.connections
        self.history.messages |= history.messages
        self.loop.call_later(2.0, intruder.disconnect, "closed")

    # The end

    def _heal(self) -> None:
        """All trouble ends, everybody comes back, and what is under way comes to its end."""
        self.is_healing = True
        self._trace("heal")
        for edge in self.edges:
            edge.process.resume()
            edge.log.heal()
            edge.log.slowness, edge.log.trouble = 1.0, 0.0
        for fault in self.history.faults:
            fault.until_at = min(fault.until_at, self.loop.time())
        self.loop.run_until(self._all_up, START_TIMEOUT_S)
        for client in self.clients:
            client.plan.slow_s = 0.0
            if client.link is not None:
                client.link.read_on()
            elif client.is_away:
                self.connect(client)
        if not self.loop.run_until(self._all_idle, HEAL_TIMEOUT_S):
            busy = [
                f"{client.plan.name}: connected={client.is_connected} flows={client.flows} requests={client.requests} "
                f"wanted={client.wanted}"
                for client in self.clients
                if not client.is_idle
            ]
            self.history.violation("I12", f"not idle after {HEAL_TIMEOUT_S:.0f} s: {busy}")
        self._settle()
        self.history.ended_at = self.loop.time()

    def _all_up(self) -> bool:
        for edge in self.edges:
            if not edge.is_up and not edge.is_starting and edge.process.is_dead:
                edge.start()
        return all(edge.is_up for edge in self.edges)

    def _all_idle(self) -> bool:
        return all(client.is_idle for client in self.clients)

    def _settle(self) -> None:
        """Until nothing has come to anybody for a while: delayed wills, catch-up, read-repair."""
        self.loop.run_for(10.0)
        for _ in range(20):
            before = len(self.history.receipts)
            self.loop.run_for(7.0)
            if len(self.history.receipts) == before and self._all_idle():
                return
        self.history.violation("I12", "messages come for ever")

    def evidence(self) -> Evidence:
        """What the checkers look at, when all is quiet."""
        log = {
            position: committed([*self.deleted.get(position, ()), *held.records])
            for position, held in self.log._partitions.items()
        }
        wanted = {
            client.plan.name: frozenset(client.wanted)  # shared ones, too: they are stored
            for client in self.clients
            if client.is_idle and client.connection is not None and client.connection.expiry_s
        }
        edges = [self._edge_left(edge) for edge in self.edges if edge.is_up]
        return Evidence(self.history, log, edges, wanted, self.fault_counts, frozenset(self.kinds))

    def _edge_left(self, edge: Edge) -> EdgeLeft:
        services = edge.node.services
        retained = {
            name: (value, (source[0], source[1]), source[2])
            for name, (value, source) in services.retained.view.snapshot().items()
            if not name.startswith(b"$")
        }
        tables = {name: frozenset(services.table.filters_of(handler)) for name, handler in services.clients.items()}
        return EdgeLeft(edge.node_id, retained, services.sessions.view.snapshot(), tables)

    def _end(self) -> None:
        """Everybody leaves, and the edges are as they were before anybody came; then they stop, and nothing is left."""
        for client in self.clients:
            client.is_away = True
            client.disconnect("disconnect")
        self.loop.run_for(6.0)
        for edge in self.edges:
            for what, left in _left_behind(edge).items():
                if left:
                    self.history.violation("I13", f"{edge.node_id}: {what} is {left!r} when nobody is there")
        stops = [(edge, edge.stop()) for edge in self.edges]
        if not self.loop.run_until(lambda: all(stop.done() for _, stop in stops), 60.0):
            self.history.violation("I13", "an edge does not stop")
        self.loop.run_for(2.0)
        for edge, _ in stops:
            tasks = _left_running(edge)
            if tasks:
                self.history.violation("I13", f"{edge.node_id} has stopped and has left {tasks[:5]}")

    def _count(self, what: str) -> None:
        self.exercised[what] += 1

    def _trace(self, text: str) -> None:
        self.history.trace.append(f"{self.loop.time():9.3f} {text}")

    def _report(self, evidence: Evidence) -> Report:
        violations = check(evidence)
        violations += [("I0", f"an exception: {text}") for text in self.errors.exceptions]
        violations += [
            ("I0", f"an exception in a callback: {context}")
            for context in self.loop.exceptions
            if not isinstance(context.get("exception"), asyncio.CancelledError)  # of an edge that was killed
        ]
        return Report(
            self.seed,
            self.steps,
            self.loop.callbacks,
            self.loop.time(),
            self.exercised + self.fault_counts,
            violations,
        )


def _left_running(edge: Edge) -> list[Any]:
    """Tasks of an edge that has stopped, without requests under way and what a client wanted that waits for the log."""
    beside = ("NodeLog._submit", "EdgeProtocolHandler._guarded")
    return [task for task in edge.process.live_tasks() if not any(each in repr(task) for each in beside)]


def _left_behind(edge: Edge) -> dict[str, Any]:
    """What should be empty when no client is connected."""
    services = edge.node.services
    ownership, catch_up = services.ownership, services.catch_up.statistics()
    return {
        "connections": services.connections,
        "clients": services.clients,
        "subscriptions": services.table.statistics()["subscriptions"],
        "partitions": services.deliverer.positions(),
        "subscribers behind": catch_up["subscribers_behind"],
        "catch-up's held records": catch_up["held_records"],
        "endings": services.endings,
        "dirty": services.dirty,
        "waiting for room": services.waiting_for_room,
        "claimants": ownership._claimants,
        "release waiters": ownership._release_waiters,
        "ends": ownership._ends,
        "session writes": services.sessions.statistics()["writer_waiting_writes"],
    }


class _Errors(logging.Handler):
    """What the edges log as an exception is a fault of ours."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(logging.WARNING)
        self.exceptions: list[str] = []
        self.lines: list[str] = []
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self._loop.time():9.3f} {record.name}: {record.getMessage()}"
        self.lines.append(line)
        if record.exc_info and record.exc_info[1] is not None:
            self.exceptions.append(f"{line}: {record.exc_info[1]!r}")

    def __enter__(self) -> _Errors:
        self._loggers = [logging.getLogger(name) for name in ("bridge", "edge", "asyncio")]
        self._former = [(logger.propagate, logger.level) for logger in self._loggers]
        for logger in self._loggers:
            logger.addHandler(self)
            logger.propagate = False
            logger.setLevel(logging.WARNING)
        return self

    def __exit__(self, *_: object) -> None:
        for logger, (propagate, level) in zip(self._loggers, self._former, strict=True):
            logger.removeHandler(self)
            logger.propagate = propagate
            logger.setLevel(level)
