"""Sessions on a real Kafka: take-over with a release, with a fence, many nodes at once, restart."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from support.edges import until
from support.session_nodes import PARTITIONS, SessionNode

from bridge.kafka_log import KafkaLog
from schemas.sessions import SessionProgress

SESSIONS = 20_000
LOAD_S_MAX = 10.0  # 0.6 s where nothing else runs


class Nodes:
    """Nodes on one Kafka, each with its own connections, on Kafka topics of this test."""

    def __init__(self, bootstrap: str, prefix: str, stack: AsyncExitStack) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._stack = stack
        self.live: set[str] = set()

    async def start(self, name: str) -> SessionNode:
        """Transactional ids are the whole Kafka's, so a node's id has the test's in it."""
        log = KafkaLog(self._bootstrap)
        await log.start()
        self._stack.push_async_callback(log.stop)
        node = SessionNode(log, f"{name}.{self._prefix}", self.live, prefix=self._prefix)
        self._stack.push_async_callback(node.stop)
        await node.start()
        return node


@pytest.fixture
async def nodes(kafka_bootstrap: str) -> AsyncIterator[Nodes]:
    async with kafka_topics(kafka_bootstrap) as prefix, AsyncExitStack() as stack:
        yield Nodes(kafka_bootstrap, prefix, stack)


@asynccontextmanager
async def kafka_topics(bootstrap: str) -> AsyncIterator[str]:
    """Claims (`.c`) and sessions (`.s`)."""
    prefix = f"test.{uuid.uuid4().hex}"
    names = [f"{prefix}.c", f"{prefix}.s"]
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    config = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=config) for name in names])
        yield prefix
        await admin.delete_topics(names)
    finally:
        await admin.close()


@pytest.mark.kafka
async def test_a_session_moves_with_its_release(nodes: Nodes) -> None:
    one, two = await nodes.start("one"), await nodes.start("two")
    epoch, stored = await one.open("c")
    assert stored is None
    opening = asyncio.create_task(two.open("c"))
    await until(lambda: one.lost == [("c", epoch)], "the claim was not seen")
    one.received("c", epoch, 1)
    await one.sink.wait(1)
    one.ownership.release("c", epoch)
    next_epoch, stored = await opening
    assert stored is not None
    assert (stored.epoch, stored.progress.incoming) == (epoch, {1})
    assert two.store.statistics()["fences"] == 0
    seen = await one.store.load("c")
    assert seen is not None
    assert (seen.epoch, seen.progress.incoming) == (next_epoch, {1})
    await until(lambda: not one.ownership.view.misplaced, "the claim was not written again behind the release")


@pytest.mark.kafka
async def test_a_paused_node_is_fenced_and_writes_nothing(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still between its records and EndTxn; a third node sees only what the new owner has written."""
    one, two, three = [await nodes.start(name) for name in ("one", "two", "three")]
    epoch, _ = await one.open("c")
    kept, _ = await one.open("kept")
    producer = one.store._writer._producer
    end, is_paused, going_on = producer._end, asyncio.Event(), asyncio.Event()  # type: ignore[attr-defined]

    async def pause_and_end() -> None:
        is_paused.set()
        await going_on.wait()
        await end()

    monkeypatch.setattr(producer, "_end", pause_and_end)
    one.received("c", epoch, 1)
    one.received("kept", kept, 2)
    await is_paused.wait()
    nodes.live.remove(one.node_id)
    next_epoch, stored = await two.open("c")
    assert stored is not None
    assert (stored.epoch, stored.progress.incoming) == (epoch, set())
    two.received("c", next_epoch, 9)
    await two.sink.wait(1)
    going_on.set()
    await one.sink.wait(2)
    assert one.sink.told == [("lost", ("c", 1)), ("stored", ("kept", 2))]
    seen = await three.store.load("c")
    assert seen is not None
    assert (seen.epoch, seen.progress.incoming) == (next_epoch, {9})
    await three.store.caught_up()
    assert three.incoming("kept") == {2}
    assert one.store.statistics()["writer_fenced"] == 1


@pytest.mark.kafka
async def test_nodes_that_contend_for_sessions_agree(nodes: Nodes) -> None:
    """Each client goes from node to node; what was confirmed under one owner, the next one has."""
    three = [await nodes.start(name) for name in ("one", "two", "three")]
    confirmed: dict[str, set[int]] = {}
    dice = random.Random(5)

    async def wander(client_id: str) -> None:
        held: tuple[SessionNode, int] | None = None
        for packet_id in range(1, 6):
            node = dice.choice(three)
            if held is not None and dice.random() < 0.7:
                held[0].ownership.release(client_id, held[1])
            epoch, stored = await node.open(client_id, 0.2)  # not released: it is fenced, though it lives
            held = (node, epoch)
            assert (stored.progress.incoming if stored is not None else set()) == confirmed.get(client_id, set())
            progress = SessionProgress(incoming={*confirmed.get(client_id, ()), packet_id})
            await node.store.write_now(client_id, epoch, node.first_records(client_id, epoch, progress))
            confirmed[client_id] = progress.incoming

    await asyncio.gather(*(wander(f"c{number}") for number in range(30)))
    views = []
    for node in three:
        await node.store.caught_up()
        await node.ownership.caught_up()
        await until(lambda node=node: not node.ownership.view.misplaced, "misplaced ones are left")  # type: ignore[misc]
        views.append((node.store.view.snapshot(), node.ownership.view.snapshot()))
    assert views[0] == views[1] == views[2]
    assert {client_id: session.progress.incoming for client_id, session in views[0][0].items()} == confirmed
    fresh = await nodes.start("fresh")
    assert (fresh.store.view.snapshot(), fresh.ownership.view.snapshot()) == views[0]


@pytest.mark.kafka
@pytest.mark.slow
async def test_a_node_that_starts_loads_20_000_sessions(nodes: Nodes) -> None:
    one = await nodes.start("one")
    claims = await asyncio.gather(*(one.claim(f"client-{number:05}") for number in range(SESSIONS)))
    for number, claimed in enumerate(claims):
        client_id = f"client-{number:05}"
        progress = SessionProgress({("mqtt.messages", partition): number for partition in range(12)}, {}, {1})
        records = one.first_records(client_id, claimed.epoch, progress)
        one.store.write(client_id, claimed.epoch, records, one.sink, client_id)
    async with asyncio.timeout(100):
        await one.sink.wait(SESSIONS)
    fresh = await nodes.start("fresh")
    store, ownership = fresh.store.load_ms, fresh.ownership.load_ms
    print(f"\n{SESSIONS} sessions loaded in {store} ms, their claims in {ownership} ms")
    assert len(fresh.store.view) == len(fresh.ownership.view) == SESSIONS
    assert store + ownership < LOAD_S_MAX * 1_000
    stored = fresh.store.view.get("client-19999")
    assert stored is not None
    assert (stored.progress.positions[("mqtt.messages", 3)], stored.progress.incoming) == (19_999, {1})
