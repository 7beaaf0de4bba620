"""Ownership on a log in memory: claims, take-over, release, read-repair."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.edges import until
from support.logs import turns

from bridge.log import LogUnavailable, RecordRefused
from bridge.memory_log import MemoryLog
from bridge.murmur2 import partition_for_key
from bridge.ownership import AGAIN_MS, REPAIR_AFTER_MS, REPAIR_SPREAD_MS, Ownership
from bridge.publisher import Publisher
from schemas.catalogue import CLAIMS
from schemas.claims import Claim, Forgotten, decode_claim

PARTITIONS = 12


class Node:
    """What a node has for ownership. Time stands still; who is live is the cluster's to say."""

    def __init__(self, cluster: Cluster, node_id: str, incarnation: str) -> None:
        self.cluster = cluster
        self.publisher = Publisher(cluster.log)
        self.lost: list[tuple[str, int]] = []
        self.ownership = Ownership(
            cluster.log,
            self.publisher.append_future,
            node_id,
            incarnation,
            lambda *who: who in cluster.live,
            lambda client_id, epoch: self.lost.append((client_id, epoch)),
            is_replaced=lambda *who: who in cluster.replaced,
            clock_ms=lambda: cluster.now_ms,
        )


class Cluster:
    def __init__(self) -> None:
        self.log = MemoryLog(lambda: self.now_ms)
        self.now_ms = 1_000_000
        self.live: set[tuple[str, str]] = set()
        self.replaced: set[tuple[str, str]] = set()
        self.nodes: list[Node] = []

    async def node(self, node_id: str, incarnation: str = "1") -> Node:
        node = Node(self, node_id, incarnation)
        self.live.add((node_id, incarnation))
        await node.ownership.start()
        self.nodes.append(node)
        return node

    async def stop(self, node: Node) -> None:
        """As a crash would: it says nothing."""
        self.nodes.remove(node)
        self.live -= {(node.ownership.node_id, node.ownership.incarnation)}
        await node.ownership.stop()
        await node.publisher.stop(0)

    async def seen(self) -> None:
        """Until every node has read what is in the log, and what that has made them write."""
        for _ in range(4):
            await turns()
            for node in self.nodes:
                await node.publisher.flush(5)
                await node.ownership.caught_up()

    def records(self, client_id: str) -> list[Claim | Forgotten]:
        key = client_id.encode()
        records = self.log.records(CLAIMS, partition_for_key(key, PARTITIONS))
        return [decode_claim(each.key, each.value, each.headers)[1] for each in records if each.key == key]

    def put(self, client_id: str, record: Claim | Forgotten) -> int:
        """As another node might write it at any time."""
        key = client_id.encode()
        partition = partition_for_key(key, PARTITIONS)
        if isinstance(record, Claim):
            return self.log.put(CLAIMS, partition, key, record.to_json()).offset
        return self.log.put(CLAIMS, partition, key, None, record.headers()).offset

    async def pass_time(self, milliseconds: int) -> None:
        """The clocks go on; a record that is nobody's wakes the tails."""
        self.now_ms += milliseconds
        self.log.put(CLAIMS, 0, b"", b"")
        await self.seen()


@asynccontextmanager
async def running_cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        for node in list(cluster.nodes):
            await cluster.stop(node)
        await cluster.log.stop()


async def test_a_claim_is_seen_everywhere() -> None:
    async with running_cluster() as cluster:
        one, two = await cluster.node("a"), await cluster.node("b")
        claimed = await one.ownership.claim("c", "p", True)
        assert (claimed.is_void, claimed.predecessors, claimed.had_session) == (False, (), False)
        await cluster.seen()
        for node in (one, two):
            owner = node.ownership.owner("c")
            assert owner is not None
            assert (owner.epoch, owner.claim.node_id, owner.claim.principal) == (claimed.epoch, "a", "p")
            assert node.ownership.is_owner("c", claimed.epoch)
        assert one.ownership.owner("other") is None


async def test_a_take_over_waits_for_the_release() -> None:
    async with running_cluster() as cluster:
        one, two = await cluster.node("a"), await cluster.node("b")
        first = await one.ownership.claim("c", "p", True)
        second = await two.ownership.claim("c", "p", True)
        assert second.had_session
        assert [each.epoch for each in second.predecessors] == [first.epoch]
        await cluster.seen()
        assert one.lost == [("c", first.epoch)]
        assert not one.ownership.is_owner("c", first.epoch)
        assert one.ownership.may_write("c", first.epoch), "its last state is still to be stored"
        waiting = asyncio.create_task(two.ownership.released("c", second.epoch, 5))
        await turns()
        assert not waiting.done()
        one.ownership.release("c", first.epoch)
        assert not one.ownership.may_write("c", first.epoch), "at once"
        assert await waiting == ()
        assert two.ownership.is_owner("c", second.epoch)


async def test_a_node_that_is_gone_is_not_waited_for() -> None:
    async with running_cluster() as cluster:
        one, two = await cluster.node("a"), await cluster.node("b")
        first = await one.ownership.claim("c", "p", True)
        await cluster.stop(one)
        second = await two.ownership.claim("c", "p", True)
        async with asyncio.timeout(5):
            left = await two.ownership.released("c", second.epoch, 1_000)
        assert [(each.epoch, each.claim.node_id) for each in left] == [(first.epoch, "a")]
        assert two.ownership.orphans() == []
        third = await two.ownership.claim("d", "p", True)
        cluster.live.clear()
        assert two.ownership.orphans() == [], "we are there, whatever has become of our heartbeat"
        looking = await cluster.node("d")
        cluster.live.clear()
        assert {(client_id, claim.epoch) for client_id, claim in looking.ownership.orphans()} == {
            ("c", second.epoch),
            ("d", third.epoch),
        }


async def test_a_live_node_that_does_not_release_is_given_up() -> None:
    async with running_cluster() as cluster:
        one, two = await cluster.node("a"), await cluster.node("b")
        first = await one.ownership.claim("c", "p", True)
        second = await two.ownership.claim("c", "p", True)
        left = await two.ownership.released("c", second.epoch, 0.01)
        assert [each.epoch for each in left] == [first.epoch]


async def test_all_earlier_claims_are_waited_for() -> None:
    """Also those that were superseded before they came to a connection."""
    async with running_cluster() as cluster:
        nodes = [await cluster.node(node_id) for node_id in "abc"]
        claims = [await node.ownership.claim("c", "p", True) for node in nodes]
        assert [each.epoch for each in claims[2].predecessors] == [claims[0].epoch, claims[1].epoch]
        nodes[1].ownership.release("c", claims[1].epoch)
        await cluster.seen()
        left = await nodes[2].ownership.released("c", claims[2].epoch, 0.01)
        assert [each.epoch for each in left] == [claims[0].epoch]
        nodes[0].ownership.release("c", claims[0].epoch)
        assert await nodes[2].ownership.released("c", claims[2].epoch, 5) == ()


async def test_an_earlier_incarnation_has_been_fenced_by_the_later_one() -> None:
    async with running_cluster() as cluster:
        old, other = await cluster.node("a"), await cluster.node("b")
        await old.ownership.claim("c", "p", True)
        await old.ownership.claim("d", "p", True)
        await cluster.stop(old)
        new = await cluster.node("a", "2")
        claimed = await new.ownership.claim("c", "p", True)
        assert (claimed.had_session, claimed.predecessors) == (True, ())
        cluster.replaced.add(("a", "1"))
        claimed = await other.ownership.claim("d", "p", True)
        assert (claimed.had_session, claimed.predecessors) == (True, ())
        assert await other.ownership.released("d", claimed.epoch, 5) == ()


async def test_another_principals_claim_is_void_and_the_owner_writes_its_own_again() -> None:
    async with running_cluster() as cluster:
        one, two = await cluster.node("a"), await cluster.node("b")
        first = await one.ownership.claim("c", "p", True)
        void = await two.ownership.claim("c", "q", True)
        assert (void.is_void, void.predecessors, void.had_session) == (True, (), False)
        await cluster.seen()
        assert one.ownership.is_owner("c", first.epoch)
        assert one.lost == []
        repair = cluster.records("c")[-1]
        assert isinstance(repair, Claim)
        assert (repair.epoch, repair.seen, repair.principal) == (first.epoch, void.epoch, "p")
        two.ownership.release("c", void.epoch)
        two.ownership.forget("c", void.epoch)
        await cluster.seen()
        assert cluster.records("c")[-1] == repair, "a void claim has no end"
        assert (await cluster.node("d")).ownership.is_owner("c", first.epoch)


async def test_who_forgets_leaves_nothing() -> None:
    async with running_cluster() as cluster:
        one, two = await cluster.node("a"), await cluster.node("b")
        first = await one.ownership.claim("c", "p", True)
        one.ownership.forget("c", first.epoch)
        await cluster.seen()
        assert two.ownership.owner("c") is None
        assert one.lost == [], "it knows"
        claimed = await two.ownership.claim("c", "q", True)
        assert (claimed.is_void, claimed.had_session) == (False, False)


async def test_a_tombstone_that_lands_behind_a_later_claim_is_repaired() -> None:
    async with running_cluster() as cluster:
        one, two = await cluster.node("a"), await cluster.node("b")
        first = await one.ownership.claim("c", "p", True)
        second = await two.ownership.claim("c", "p", True)
        cluster.put("c", Forgotten(first.epoch))
        await cluster.seen()
        repair = cluster.records("c")[-1]
        assert isinstance(repair, Claim)
        assert (repair.epoch, repair.node_id, repair.is_released) == (second.epoch, "b", False)
        for node in (one, two, await cluster.node("d")):
            assert node.ownership.is_owner("c", second.epoch)
            assert node.ownership.view.misplaced == {}
        assert two.lost == []


async def test_the_others_repair_when_the_owner_is_gone() -> None:
    async with running_cluster() as cluster:
        one, two, three = [await cluster.node(node_id) for node_id in "abc"]
        first = await one.ownership.claim("c", "p", True)
        second = await two.ownership.claim("c", "p", True)
        await cluster.stop(two)
        one.ownership.release("c", first.epoch)
        await cluster.seen()
        await cluster.pass_time(REPAIR_AFTER_MS - 1)
        assert three.ownership.view.misplaced
        await cluster.pass_time(REPAIR_SPREAD_MS + 1)
        assert three.ownership.view.misplaced == {}
        repair = cluster.records("c")[-1]
        assert isinstance(repair, Claim)
        assert repair.epoch == second.epoch
        repairs = sum(node.ownership.statistics()["repairs"] for node in (one, three))
        assert 1 <= repairs <= 2


async def test_a_release_that_did_not_reach_kafka_is_written_again() -> None:
    async with running_cluster() as cluster:
        one = await cluster.node("a")
        claimed = await one.ownership.claim("c", "p", True)
        cluster.log.fail_next(RecordRefused("not now"))
        one.ownership.release("c", claimed.epoch)
        one.ownership.release("c", claimed.epoch)
        await cluster.seen()
        owner = one.ownership.owner("c")
        assert owner is not None
        assert not owner.is_released
        assert one.ownership.statistics()["append_failures"] == 1
        await cluster.pass_time(AGAIN_MS)
        assert owner.is_released
        assert len(cluster.records("c")) == 2


async def test_a_claim_that_is_refused_is_told() -> None:
    async with running_cluster() as cluster:
        one = await cluster.node("a")
        cluster.log.fail_next(RecordRefused("never"))
        with pytest.raises(RecordRefused):
            await one.ownership.claim("c", "p", True)
        assert one.ownership.statistics()["claiming"] == 0


async def test_a_claim_that_is_given_up_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster() as cluster:
        one = await cluster.node("a")
        cluster.log.pause()
        monkeypatch.setattr("bridge.ownership.CLAIM_TIMEOUT_S", 0.01)
        with pytest.raises(LogUnavailable):
            await one.ownership.claim("c", "p", True)
        claiming = asyncio.create_task(one.ownership.claim("d", "p", True))
        await turns()
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        cluster.log.resume()
        await cluster.seen()
        for client_id in ("c", "d"):
            owner = one.ownership.owner(client_id)
            assert owner is not None
            assert owner.is_released
        assert one.ownership.statistics()["abandoned"] == 2


async def test_a_claim_that_came_as_the_caller_gave_up_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster() as cluster:
        one = await cluster.node("a")
        take_own = one.ownership._take_own

        def take_and_cancel(*args: Any) -> None:
            take_own(*args)
            claiming.cancel()  # the result is there, the task has not run yet

        monkeypatch.setattr(one.ownership, "_take_own", take_and_cancel)
        claiming = asyncio.create_task(one.ownership.claim("c", "p", True))
        with pytest.raises(asyncio.CancelledError):
            await claiming
        await cluster.seen()
        owner = one.ownership.owner("c")
        assert owner is not None
        assert owner.is_released


async def test_who_was_fenced_renounces_what_was_superseded() -> None:
    async with running_cluster() as cluster:
        one, two = await cluster.node("a"), await cluster.node("b")
        lost, kept = await one.ownership.claim("c", "p", True), await one.ownership.claim("d", "p", True)
        second = await two.ownership.claim("c", "p", True)
        await one.ownership.renounce_superseded()
        assert not one.ownership.may_write("c", lost.epoch)
        assert one.ownership.may_write("d", kept.epoch)
        assert await two.ownership.released("c", second.epoch, 5) == ()


async def test_a_claim_on_the_same_node_supersedes_too() -> None:
    async with running_cluster() as cluster:
        one = await cluster.node("a")
        first = await one.ownership.claim("c", "p", True)
        second = await one.ownership.claim("c", "p", True)
        assert one.lost == [("c", first.epoch)]
        assert [each.epoch for each in second.predecessors] == [first.epoch]
        one.ownership.renounce("c")
        assert await one.ownership.released("c", second.epoch, 5) == ()


async def test_a_kafka_topic_that_was_made_anew_has_no_owners() -> None:
    async with running_cluster() as cluster:
        one = await cluster.node("a")
        claimed = await one.ownership.claim("c", "p", True)
        position = (CLAIMS, partition_for_key(b"c", PARTITIONS))
        cluster.log.truncate(*position, claimed.epoch + 5)
        await until(lambda: one.lost == [("c", claimed.epoch)], "nothing was lost")
        assert one.ownership.owner("c") is None
        assert (await one.ownership.claim("c", "q", True)).epoch >= claimed.epoch + 5


async def test_a_thousand_claims_at_once_and_a_new_node_that_reads_them() -> None:
    async with running_cluster() as cluster:
        one = await cluster.node("a")
        claims = await asyncio.gather(*(one.ownership.claim(f"c{number}", "p", True) for number in range(1_000)))
        two = await cluster.node("b")
        for number, claimed in enumerate(claims):
            assert two.ownership.is_owner(f"c{number}", claimed.epoch)
        assert two.ownership.statistics()["claims"] == 1_000


async def test_records_that_cannot_be_read_are_passed_over() -> None:
    async with running_cluster() as cluster:
        one = await cluster.node("a")
        cluster.log.put(CLAIMS, 0, b"c", b"?")
        cluster.log.put(CLAIMS, 0, None, None)
        await cluster.seen()
        assert one.ownership.statistics()["unreadable"] == 2
        assert re.fullmatch(r"\d+", str(one.ownership.load_ms))


async def test_a_log_that_cannot_be_read_is_told() -> None:
    async with running_cluster() as cluster:
        cluster.put("c", Claim("p", "a", "1", True))
        cluster.log.pause()
        node = Node(cluster, "a", "1")
        with pytest.raises(LogUnavailable):
            await node.ownership.start(0.01)
