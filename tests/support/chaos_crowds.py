"""Faults that are clients: one that reads slowly, a group that is never the same, strangers at the door."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from statistics import mean

from support import chaos_strangers
from support.chaos_checks import Run
from support.chaos_client import RecordedClient
from support.chaos_context import Context
from support.chaos_invariants import p95
from support.chaos_site import ChaosEdge, Site
from support.chaos_workload import GROUP
from support.simulation_loop import EPOCH_S

from edge.access.passwords import add_user
from edge.client import ConnectFailed, ConnectRefused, MqttClient, MqttClientError

READERS = 50
SLOW_P99_RATIO = 1.2
SLOW_MEMORY_KB = 64 * 1024
MESSAGES_PER_S = 20
SLOW_BYTES = 60_000  # QoS 0, to the slow reader alone: 1.2 MB/s, so that what the kernel holds for it is soon full
BEFORE_S, SLOW_S = 6, 12

PASSING = 27  # members that come and go; with the three that stay the group has 30
CHURN_EVERY_S = 5
CHURN_ROUNDS = 4
CHURNED = 6

USER, PASSWORD = "device", "right"
STRANGERS_S = 15
CONNECTS_WITHIN_S = 12.0  # a silent stranger gives its place free after 10 s


async def slow_reader(context: Context) -> None:
    """50 subscribers of one edge; one stops reading for 12 s, with more on its way to it than the kernel holds."""
    load, edge = context.load, context.site.edges[1]
    brief = {"session_expiry_s": 0, "clean_start": True}
    readers = [load.guest(f"r{number}", 1, keep_alive_s=60, **(brief if number else {})) for number in range(READERS)]
    for reader in readers:
        reader.prefer([edge.to_clients.address])
        await reader.connect()
        await reader.subscribe("slow/x", 1)
    slow, publisher = readers[0], load.guest("fast", 2)
    await slow.subscribe("heavy/x", 0)
    await publisher.connect()
    sending = asyncio.create_task(_send(publisher))
    began = time.time() - EPOCH_S
    await asyncio.sleep(BEFORE_S)
    sample = await edge.sample()
    before_kb, most_kb = sample[0] if sample is not None else 0, 0
    slow_from = time.time() - EPOCH_S
    async with context.site.fault("slow reader", "client"):
        slow.stop_reading()
        for _ in range(SLOW_S):
            await asyncio.sleep(1)
            sample = await edge.sample()
            most_kb = max(most_kb, sample[0] if sample is not None else 0)
        slow_until = time.time() - EPOCH_S
        slow.go_on_reading()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    context.must("memory of the edge, more KiB", float(most_kb - before_kb), SLOW_MEMORY_KB)

    def judge(run: Run) -> None:
        usual, meanwhile = _others(run, began, slow_from), _others(run, slow_from, slow_until)
        context.figures["others' p99 before, ms"] = round(usual * 1e3, 1)
        context.must("others' p99 meanwhile / before", meanwhile / usual, SLOW_P99_RATIO)

    context.after.append(judge)


async def _send(publisher: RecordedClient) -> None:
    number = 0
    while True:
        await asyncio.sleep(1 / MESSAGES_PER_S)
        number += 1
        with suppress(MqttClientError):
            publisher.publish("slow/x", f"slow:{number}", 1)
            publisher.publish("heavy/x", f"heavy:{number}:".ljust(SLOW_BYTES, "."), 0)


def _others(run: Run, since: float, until: float) -> float:
    """The p99 of their delivery times."""
    sent = {payload: each.sent_at for payload, each in run.recorded.history.messages.items()}
    took = sorted(
        each.at - sent[each.payload]
        for each in run.recorded.history.receipts
        if each.topic_name == "slow/x" and each.client != "r0" and since + 1 < sent[each.payload] < until - 1
    )
    return took[int(0.99 * (len(took) - 1))]


async def group_churn(context: Context) -> None:
    """Every 5 s six members leave and come back, by turns with DISCONNECT and UNSUBSCRIBE; then edges go, too.

    Those without a session have QoS 1: a QoS 2 message whose delivery has begun must not come to anybody else when its
    session ends (section 4.8.2).
    """
    load, site = context.load, context.site
    passing: dict[RecordedClient, int] = {}
    for number in range(PASSING):
        stays = number % 3 > 0
        settings = {} if stays else {"session_expiry_s": 0, "clean_start": True}
        passing[load.guest(f"n{number}", number, **settings)] = 2 if stays else 1
    site.recorder.write("mark", values={"passing": [client.client_id for client in passing]})
    for client, qos in passing.items():
        await client.connect()
        await client.subscribe(GROUP, qos)
    for number in range(CHURN_ROUNDS * 2):
        await asyncio.sleep(CHURN_EVERY_S)
        leaving = load.rng.sample(list(passing), CHURNED)
        await asyncio.gather(*(_leave_and_return(each, passing[each], by_goodbye=number % 2 == 0) for each in leaving))
        if number >= CHURN_ROUNDS:
            edge = site.edges[number % len(site.edges)]
            async with site.fault("SIGTERM", edge.node_id):
                await edge.terminate()
                await edge.start()

    def judge(run: Run) -> None:
        counts = [sum(each.client == client.client_id for each in run.recorded.history.receipts) for client in passing]
        context.figures["least share of a member that comes and goes, of their mean"] = round(
            min(counts) / mean(counts), 2
        )

    context.after.append(judge)


async def _leave_and_return(client: RecordedClient, qos: int, *, by_goodbye: bool) -> None:
    with suppress(MqttClientError):  # an edge went at the same time: the client comes back by itself
        if by_goodbye:
            await client.disconnect()
            await client.connect()
        else:
            await client.unsubscribe(GROUP)
        await client.subscribe(GROUP, qos)


def take_passwords(site: Site) -> None:
    """The edges want passwords, and have the limits of a server for strangers."""
    path = site.folder / "passwords"
    add_user(path, USER, PASSWORD)
    site.credentials = {"user_name": USER, "password": PASSWORD}
    for edge in site.edges:
        edge.configure(
            authentication={"password_file": path},
            limits={
                "flapping_per_min": 1_000_000,
                "unauthenticated_per_address_max": 50,
                "unauthenticated_per_address_per_s": 20.0,
                "unauthenticated_max": 1_000,
                "failures_per_min": 10,
            },
        )


async def silent_and_wrong(context: Context) -> None:
    """A thousand connections say nothing, and 250 addresses guess passwords, at one edge; a client with the right
    password connects there every half second."""
    edge, took = context.site.edges[0], list[float]()
    async with context.site.fault("strangers", edge.node_id):
        strangers = await asyncio.create_subprocess_exec(
            *(sys.executable, chaos_strangers.__file__, str(edge.address[1]), str(STRANGERS_S)),
            stdout=asyncio.subprocess.PIPE,
        )
        deadline = time.monotonic() + STRANGERS_S
        while time.monotonic() < deadline:
            took.append(await _connects(edge))
            await asyncio.sleep(0.5)
        said, _ = await strangers.communicate()
    context.figures |= json.loads(said)
    context.must("a client with the right password: p95 to connect, s", p95(took), CONNECTS_WITHIN_S)


async def _connects(edge: ChaosEdge) -> float:
    """How long until it is in, with as many tries as it needs."""
    began = time.monotonic()
    while time.monotonic() - began < 2 * CONNECTS_WITHIN_S:
        client = MqttClient(*edge.address, "legitimate", user_name=USER, password=PASSWORD, connect_timeout_s=5.0)
        try:
            await client.connect()
        except (ConnectFailed, ConnectRefused):
            await asyncio.sleep(0.2)
            continue
        await client.disconnect()
        break
    return time.monotonic() - began
