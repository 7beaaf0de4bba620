"""The faults, each a named scenario: what is done to a site under load, and what it must show beyond the invariants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from statistics import quantiles

from aiokafka import AIOKafkaProducer
from support.chaos_checks import Run, group_stall_s, resume_s
from support.chaos_client import KEEP_ALIVE_S, RecordedClient
from support.chaos_context import Context, Scenario
from support.chaos_crowds import group_churn, silent_and_wrong, slow_reader, take_passwords
from support.chaos_poison import poison_records
from support.chaos_proxy import FaultProxy, Mode
from support.chaos_site import ChaosEdge, until_status
from support.chaos_surroundings import clock, compaction, disk_full, need_libfaketime, small_disk
from support.simulation_loop import EPOCH_S

from edge.wire import Will
from schemas.catalogue import catalogue

KILL_EVERY_S = 20.0
SHORT_PAUSE_S = 6.0
SHARED_STALL_S = 8.0
RESUME_P95_S = 5.0
FIRST_PUBACK_S = 3.0
ANSWERED_WITHIN_S = 20.0
NOT_READY_S = 10.0
CLOSED_S = 25.0
DRAINED_S = 10.0
HALF_OPEN_S = 1.5 * KEEP_ALIVE_S + 5.0


async def nothing(context: Context) -> None:
    await asyncio.sleep(12)


async def kill_edges(context: Context) -> None:
    """Every 20 s, and once each."""
    for edge in context.site.edges:
        began = time.monotonic()
        async with context.site.fault("kill -9", edge.node_id):
            await edge.kill()
            await asyncio.sleep(2)
            await edge.start()
        if edge is not context.site.edges[-1]:
            await asyncio.sleep(max(0.0, KILL_EVERY_S - (time.monotonic() - began)))
    context.after.append(lambda run: _resumed(context, run))


def _resumed(context: Context, run: Run) -> None:
    took = sorted(resume_s(run))
    if len(took) > 1:
        context.must("resume p95, s", quantiles(took, n=20)[-1], RESUME_P95_S)
    context.must("longest stall of the shared group, s", group_stall_s(run), SHARED_STALL_S)


def brief_kill(context: Context) -> Awaitable[None]:
    return _killed(context, context.site.edges[1])


async def _killed(context: Context, edge: ChaosEdge) -> None:
    async with context.site.fault("kill -9", edge.node_id):
        await edge.kill()
        await edge.start()


def pause_edge(seconds: float) -> Callable[[Context], Awaitable[None]]:
    async def run(context: Context) -> None:
        edge = context.site.edges[0]
        async with context.site.fault("SIGSTOP", edge.node_id):
            edge.pause()
            await asyncio.sleep(seconds)
            edge.go_on()

    return run


def kill_kafka(times: int) -> Callable[[Context], Awaitable[None]]:
    async def run(context: Context) -> None:
        kafka = context.site.kafka
        recorder = context.site.recorder
        for _ in range(times):
            async with context.site.fault("kill -9"):
                await asyncio.to_thread(kafka.kill)
                await asyncio.sleep(1)
                await asyncio.to_thread(kafka.start)
            recorder.answered.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWERED_WITHIN_S):
                    await recorder.answered.wait()
            await asyncio.sleep(2)
        context.after.append(lambda run: _first_puback(context, run))

    return run


def _first_puback(context: Context, run: Run) -> None:
    history = run.recorded.history
    answers = sorted(each.answered_at for each in history.messages.values() if each.answered_at is not None)
    took = [
        next((at for at in answers if at > fault.until_at), fault.until_at + 1e6) - fault.until_at
        for fault in history.faults
        if (fault.kind, fault.edge) == ("kill -9", "kafka")
    ]
    context.must("first PUBACK after Kafka, s", max(took), FIRST_PUBACK_S)


def pause_kafka(seconds: float) -> Callable[[Context], Awaitable[None]]:
    async def run(context: Context) -> None:
        kafka = context.site.kafka
        async with context.site.fault("SIGSTOP"):
            await asyncio.to_thread(kafka.pause)
            await asyncio.sleep(seconds)
            kafka.go_on()

    return run


def cut_edge(seconds: float) -> Callable[[Context], Awaitable[None]]:
    async def run(context: Context) -> None:
        edge = context.site.edges[0]
        async with context.site.fault("cut from Kafka", edge.node_id):
            edge.to_kafka.set(requests="hold", answers="hold")
            context.must("not ready after, s", await until_status(edge, 503, 30), NOT_READY_S)
            await asyncio.sleep(max(0.0, seconds - context.figures["not ready after, s"]))
            edge.to_kafka.set()
        context.must("ready again after, s", await until_status(edge, 200, 30), 30)
        context.after.append(lambda run: _closed_in_time(context, run, edge))

    return run


def _closed_in_time(context: Context, run: Run, edge: ChaosEdge) -> None:
    history = run.recorded.history
    cut, address = history.faults[0], "{}:{}".format(*edge.to_clients.address)
    lasted = [
        (each.ended_at or history.ended_at) - cut.from_at
        for each in history.connections
        if each.edge == address
        and each.accepted_at is not None
        and each.accepted_at < cut.from_at
        and (each.ended_at or history.ended_at) > cut.from_at
    ]
    context.must("clients closed after, s", max(lasted, default=0.0), CLOSED_S)


def lose(requests: Mode, answers: Mode, seconds: float) -> Callable[[Context], Awaitable[None]]:
    async def run(context: Context) -> None:
        edge = context.site.edges[0]
        async with context.site.fault("direction lost", edge.node_id):
            edge.to_kafka.set(requests=requests, answers=answers)
            await asyncio.sleep(seconds)
            edge.to_kafka.set()

    return run


async def latency(context: Context) -> None:
    """50 to 250 ms each way: 100 to 500 ms there and back."""
    began = time.time() - EPOCH_S
    async with context.site.fault("latency", "all"):
        for edge in context.site.edges:
            edge.to_kafka.set(latency_s=(0.05, 0.25))
        await asyncio.sleep(16)
        ended = time.time() - EPOCH_S
        for edge in context.site.edges:
            edge.to_kafka.set()

    def judge(run: Run) -> None:
        took = [
            each.answered_at - each.sent_at
            for each in run.recorded.history.messages.values()
            if each.answered_at is not None and len(each.sends) == 1 and began + 2 < each.sent_at < ended - 3
        ]
        context.must("acknowledged p99, s", quantiles(took, n=100)[-1], 3 * 0.5 + 0.1)

    context.after.append(judge)


async def reset_clients(context: Context) -> None:
    for number in range(4):
        edge = context.site.edges[number % len(context.site.edges)]
        async with context.site.fault("clients reset", edge.node_id):
            edge.to_clients.reset_all()
        await asyncio.sleep(4)


async def reset_once(context: Context) -> None:
    edge = context.site.edges[0]
    async with context.site.fault("clients reset", edge.node_id):
        edge.to_clients.reset_all()


async def drop_to_clients(context: Context) -> None:
    """What an edge sends is lost for 8 s; what clients send arrives."""
    edge = context.site.edges[0]
    async with context.site.fault("to clients dropped", edge.node_id):
        edge.to_clients.set(answers="drop")
        await asyncio.sleep(8)
        edge.to_clients.set()


async def half_open(context: Context) -> None:
    """A client with a will disappears without a word; its network goes on in silence."""
    site = context.site
    proxy = FaultProxy(0, site.edges[1].address)
    await proxy.start()
    will = Will("will/half", b"", 2)
    client = RecordedClient(site.recorder, "half", [proxy.address], will=will, reconnect=None)
    try:
        await client.connect()
        await asyncio.sleep(1)
        began = time.time() - EPOCH_S
        async with site.fault("half-open", "client"):
            proxy.set(requests="hold", answers="hold")
            await asyncio.sleep(HALF_OPEN_S + 4)
    finally:
        await proxy.stop()

    def judge(run: Run) -> None:
        came = [each.at for each in run.recorded.history.receipts if each.topic_name == "will/half"]
        context.must("the will came after, s", came[0] - began if came else None, HALF_OPEN_S)

    context.after.append(judge)


async def rolling(context: Context) -> None:
    for number in range(len(context.site.edges)):
        await asyncio.sleep(3 if number else 0)
        await _rolled(context, context.site.edges[number])


async def rolling_one(context: Context) -> None:
    await _rolled(context, context.site.edges[2])


async def _rolled(context: Context, edge: ChaosEdge) -> None:
    async with context.site.fault("SIGTERM", edge.node_id):
        code, took_s = await edge.terminate()
        await edge.start()
    if code:
        context.faults.append(f"{edge.node_id} ended with {code}")
    context.must(f"{edge.node_id} drained in, s", took_s, DRAINED_S)


async def storm(context: Context) -> None:
    for _ in range(7):
        await storm_once(context)
        await asyncio.sleep(2)


async def storm_once(context: Context) -> None:
    async with context.site.fault("take-over", "all"):
        context.load.storm()


async def poison(context: Context) -> None:
    """Records in every Kafka topic that nobody who keeps to the formats would write."""
    producer = AIOKafkaProducer(bootstrap_servers=context.site.kafka.bootstrap)
    await producer.start()
    try:
        async with context.site.fault("poison", "all"):
            for spec in catalogue():
                for number, (key, value, headers) in enumerate(poison_records(spec)):
                    partition = number % spec.partitions
                    await producer.send_and_wait(spec.name, value, key, partition=partition, headers=list(headers))
    finally:
        await producer.stop()
    await asyncio.sleep(4)


async def truncate(context: Context) -> None:
    """DeleteRecords past the position of a session that is away: it must begin anew, and say so."""
    load, site = context.load, context.site
    load.resting.update(client.client_id for client in load.subscribers)
    client = load.subscribers[1]
    await asyncio.sleep(4)
    await client.disconnect()
    await asyncio.sleep(4)
    site.recorder.write("mark", values={"truncated": [client.client_id]})
    async with site.fault("DeleteRecords"):
        await site.delete_records("mqtt.messages")
    await client.connect()
    if client.connack is None or client.connack.session_present:
        context.faults.append("the session goes on over deleted records without a word")


def one_after_the_other(*runs: Callable[[Context], Awaitable[None]]) -> Callable[[Context], Awaitable[None]]:
    """Several faults on one site, with a pause between them."""

    async def run(context: Context) -> None:
        for number, each in enumerate(runs):
            await asyncio.sleep(SHORT_PAUSE_S if number else 0)
            await each(context)

    return run


SCENARIOS: dict[str, Scenario] = {
    "nothing": Scenario("no fault: subscribers come and go", nothing),
    "kill-edges": Scenario("kill -9 of an edge every 20 s", kill_edges),
    "pause-edge-5": Scenario("SIGSTOP of an edge, 5 s", pause_edge(5)),
    "pause-edge-15": Scenario("SIGSTOP of an edge, 15 s", pause_edge(15)),
    "pause-edge-40": Scenario("SIGSTOP of an edge, 40 s", pause_edge(40)),
    "kill-kafka": Scenario("kill -9 of Kafka, ten times", kill_kafka(10)),
    "pause-kafka-5": Scenario("SIGSTOP of Kafka, 5 s", pause_kafka(5)),
    "pause-kafka-30": Scenario("SIGSTOP of Kafka, 30 s", pause_kafka(30)),
    "pause-kafka-90": Scenario("SIGSTOP of Kafka, 90 s", pause_kafka(90)),
    "cut-edge-30": Scenario("an edge cut from Kafka, 30 s", cut_edge(30)),
    "cut-edge-120": Scenario("an edge cut from Kafka, 120 s", cut_edge(120)),
    "answers-dropped": Scenario("Kafka's answers to an edge dropped, requests passed, 10 s", lose("pass", "drop", 10)),
    "requests-dropped": Scenario("an edge's requests to Kafka dropped, 10 s", lose("drop", "pass", 10)),
    "latency": Scenario("100-500 ms between edges and Kafka", latency),
    "reset-clients": Scenario("all connections to an edge reset, every 4 s", reset_clients),
    "drop-to-clients": Scenario("what an edge sends to clients dropped, 8 s", drop_to_clients),
    "half-open": Scenario("half-open client with a will", half_open),
    "slow-reader": Scenario("one slow reader among 50", slow_reader),
    "disk-full": Scenario("Kafka's disk full, then free again", disk_full, small_disk),
    "clock": Scenario("clock of an edge 1 h ahead, then 1 h behind", clock, need_libfaketime),
    "rolling": Scenario("rolling SIGTERM of all edges", rolling),
    "take-over": Scenario("take-over storm: 13 sessions at once, every 2 s", storm),
    "group-churn": Scenario("members of a shared group (30) and then edges come and go every 5 s", group_churn),
    "compaction": Scenario("forced compaction, then all edges restarted", compaction),
    "poison": Scenario("poison records in each Kafka topic", poison),
    "truncate": Scenario("DeleteRecords past a session's position", truncate),
    "strangers": Scenario("1,000 silent connections with 500 bad passwords a second", silent_and_wrong, take_passwords),
}
SHORT = Scenario(
    "what every run of the tests does: several faults on one site",
    one_after_the_other(
        brief_kill,
        pause_edge(5),
        lose("pass", "drop", 5),
        reset_once,
        kill_kafka(1),
        pause_kafka(3),
        rolling_one,
        storm_once,
        poison,
    ),
)
