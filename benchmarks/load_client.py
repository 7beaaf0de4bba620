"""The load generator of last resort: our own client in a process of its own. Prints what mqload prints.

`python load_client.py JSON`, with the JSON of `load.client_arguments`. Every payload holds publisher, sequence and send
time, so that loss, order, repetition and latency are seen. The window is per publisher here. It reaches a quarter of
what mqload does: messages come in smaller lots, which makes them dearer for any broker.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from edge.client import MqttClient, Publish, QueueFull

_HEAD = struct.Struct(">IIQ?")  # publisher, sequence, sent at (ns), whether it counts
_TICK_S = 0.001


def main() -> None:
    """Run on uvloop where it is installed."""
    spec = orjson.loads(sys.argv[1])
    work = _idle(spec) if spec["connections"] else _traffic(spec)
    try:
        import uvloop
    except ImportError:
        figures = asyncio.run(work)
    else:
        figures = uvloop.run(work)
    sys.stdout.buffer.write(orjson.dumps(figures))


def _client(spec: dict[str, Any], name: str) -> MqttClient:
    return MqttClient(
        spec["host"],
        spec["port"],
        f"{spec['run_id']}-{name}",
        protocol_version=4,
        user_name=spec["user_name"],
        password=spec["password"],
        connect_timeout_s=30.0,
    )


@dataclass(slots=True)
class Traffic:
    """The counters of one run, shared by its clients."""

    spec: dict[str, Any]
    load: dict[str, Any] = field(init=False)
    publishers: list[Publisher] = field(default_factory=list)
    measuring: bool = False
    stopped: bool = False
    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    delivered: int = 0
    gaps: int = 0
    repeated: int = 0
    lost_connections: int = 0
    latencies_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.load = self.spec["load"]

    @property
    def is_unacknowledged(self) -> bool:
        """Whether a message of QoS 1 waits for its PUBACK."""
        return bool(self.load["qos"]) and self.acknowledged + self.refused < self.sent


class Subscriber:
    """One subscribing client: checks the sequence of each publisher, gives windows back."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._next = [0] * traffic.load["publishers"]

    def on_message(self, message: Publish) -> None:
        traffic = self._traffic
        publisher, sequence, sent_ns, counts = _HEAD.unpack_from(message.payload)
        expected = self._next[publisher]
        if sequence < expected:
            traffic.repeated += 1
        else:
            traffic.gaps += sequence - expected
            self._next[publisher] = sequence + 1
        traffic.delivered += 1
        if counts:
            traffic.latencies_ns.append(time.monotonic_ns() - sent_ns)
        traffic.publishers[publisher].delivered()


class Publisher:
    """One publishing client. `pump` sends what window, in-flight limit and batch allow."""

    def __init__(self, traffic: Traffic, number: int, client: MqttClient) -> None:
        load = traffic.load
        self._traffic = traffic
        self._number = number
        self._client = client
        self._topic_name = load["topic_name"].replace("{i}", str(number))
        self._filler = bytes(max(0, load["payload_bytes"] - _HEAD.size))
        self._sequence = 0
        self._in_flight = 0
        self._in_flight_max = load["in_flight"]
        self._window = max(1, load["window"] // load["publishers"]) * load["fan"] if load["window"] else sys.maxsize
        self._is_free_running = not load["rate_per_s"]

    def pump(self) -> None:
        fan, qos = self._traffic.load["fan"], self._traffic.load["qos"]
        for _ in range(self._traffic.load["batch"]):
            if self._traffic.stopped or self._window < fan or (qos and self._in_flight >= self._in_flight_max):
                return
            self.send()

    def send(self) -> None:
        traffic = self._traffic
        head = _HEAD.pack(self._number, self._sequence, time.monotonic_ns(), traffic.measuring)
        try:
            future = self._client.publish(self._topic_name, head + self._filler, traffic.load["qos"])
        except QueueFull:
            return
        self._sequence += 1
        self._window -= traffic.load["fan"]
        traffic.sent += 1
        if future is not None:
            self._in_flight += 1
            future.add_done_callback(self._acknowledged)

    def delivered(self) -> None:
        self._window += 1
        if self._is_free_running:
            self.pump()

    def _acknowledged(self, future: asyncio.Future[Any]) -> None:
        self._in_flight -= 1
        if future.cancelled() or future.exception() is not None:
            self._traffic.refused += 1
            return
        self._traffic.acknowledged += 1
        if self._is_free_running:
            self.pump()


async def _traffic(spec: dict[str, Any]) -> dict[str, Any]:
    traffic = Traffic(spec)
    load = traffic.load
    subscribers = [_client(spec, f"s{number}") for number in range(load["subscribers"])]
    publishers = [_client(spec, f"p{number}") for number in range(load["publishers"])]
    await _connect([*subscribers, *publishers], spec["parallel"])
    for number, client in enumerate(subscribers):
        client.on_message(Subscriber(traffic).on_message)
        await client.subscribe(load["topic_filter"].replace("{i}", str(number)), load["qos"])

    def on_close(error: Exception | None) -> None:
        traffic.lost_connections += 1

    for client in (*subscribers, *publishers):
        client.on_close(on_close)
    traffic.publishers = [Publisher(traffic, number, client) for number, client in enumerate(publishers)]
    figures = await _measure(traffic)
    lost_connections = traffic.lost_connections  # before we close them ourselves
    await asyncio.gather(*(client.disconnect() for client in (*subscribers, *publishers)))
    return figures | {"lost_connections": lost_connections}


async def _measure(traffic: Traffic) -> dict[str, Any]:
    spec, load = traffic.spec, traffic.load
    schedule = asyncio.ensure_future(_schedule(traffic)) if load["rate_per_s"] else None
    if schedule is None:
        for publisher in traffic.publishers:
            publisher.pump()
    await asyncio.sleep(spec["warm_up_s"])
    traffic.measuring = True
    delivered, cpu_s, own_s, began_s = traffic.delivered, _cpu_s(spec["pid"]), time.process_time(), time.monotonic()
    await asyncio.sleep(spec["measured_s"])
    delivered, cpu_s = traffic.delivered - delivered, _cpu_s(spec["pid"]) - cpu_s
    wall_s, own_s = time.monotonic() - began_s, time.process_time() - own_s
    traffic.stopped = True
    if schedule is not None:
        await schedule
    expected = traffic.sent * load["fan"]
    deadline_s = time.monotonic() + spec["drain_s"]
    # An event instead would cost the hot path a test per message.
    while time.monotonic() < deadline_s and (traffic.delivered < expected or traffic.is_unacknowledged):  # noqa: ASYNC110
        await asyncio.sleep(_TICK_S)
    return {
        "delivered_per_s": delivered / wall_s,
        "broker_cpu_us_per_delivered": cpu_s / delivered * 1e6 if delivered else 0.0,
        "broker_util": cpu_s / wall_s,
        "loadgen_util": own_s / wall_s,
        "lat_us": _quantiles_us(traffic.latencies_ns),
        "total_sent": traffic.sent,
        "total_delivered": traffic.delivered,
        "missing": expected - traffic.delivered,
        "gaps": traffic.gaps,
        "dups_or_reordered": traffic.repeated,
        "refused": traffic.refused,
    }


async def _schedule(traffic: Traffic) -> None:
    """Open loop: what is due by now, in turn over the publishers."""
    began_s, sent = time.monotonic(), 0
    while not traffic.stopped:
        due = int((time.monotonic() - began_s) * traffic.load["rate_per_s"]) + 1
        for number in range(sent, due):
            traffic.publishers[number % len(traffic.publishers)].send()
        sent = due
        await asyncio.sleep(_TICK_S)


async def _idle(spec: dict[str, Any]) -> dict[str, Any]:
    clients = [_client(spec, f"i{number}") for number in range(spec["connections"])]
    memory_kb, cpu_s, began_s = _resident_kb(spec["pid"]), _cpu_s(spec["pid"]), time.monotonic()
    await _connect(clients, spec["parallel"])
    cpu_s, wall_s = _cpu_s(spec["pid"]) - cpu_s, time.monotonic() - began_s
    await asyncio.sleep(spec["hold_s"])
    memory_kb = _resident_kb(spec["pid"]) - memory_kb
    for client in clients:
        client.abort()
    return {
        "conns": len(clients),
        "connects_per_s": len(clients) / wall_s,
        "broker_cpu_us_per_connect": cpu_s / len(clients) * 1e6,
        "rss_kb_per_conn": memory_kb / len(clients),
    }


async def _connect(clients: list[MqttClient], parallel: int) -> None:
    gate = asyncio.Semaphore(parallel)

    async def connect(client: MqttClient) -> None:
        async with gate:
            await client.connect()

    await asyncio.gather(*(connect(client) for client in clients))


def _quantiles_us(latencies_ns: list[int]) -> dict[str, float]:
    if not latencies_ns:
        return {}
    ordered = sorted(latencies_ns)
    return {name: ordered[int(len(ordered) * part)] / 1_000 for name, part in (("p50", 0.5), ("p99", 0.99))}


def _cpu_s(pid: int) -> float:
    """As `processes.cpu_s`: this file is run by its path and imports nothing beside it."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    by_thread = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return max(by_thread, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"))


def _resident_kb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("Rss:")).split()[1])


if __name__ == "__main__":
    main()
