"""Sessions that move between nodes, on a log in memory: what is fenced never writes for a session that moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Set
from typing import Any

import pytest
from support.edges import until
from support.logs import turns
from support.session_nodes import SessionNode, running

from bridge.log import CommitUnknown, LogUnavailable, Position
from bridge.memory_log import MemoryLog
from bridge.session_store import SessionLost, session_position
from schemas.catalogue import CLAIMS, SESSIONS
from schemas.sessions import (
    SessionProgress,
    deletion_records,
    incoming_record,
    progress_record,
    state_record,
)

C = "c"


class CountingLog(MemoryLog):
    """Counts the questions for end offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        self.fail_ends = False

    async def end_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        self.questions += 1
        if self.fail_ends:
            raise LogUnavailable("no answer")
        return await super().end_offsets(partitions)


@pytest.fixture
async def log() -> AsyncIterator[CountingLog]:
    log = CountingLog()
    yield log
    await log.stop()


@pytest.fixture
def live() -> set[str]:
    return set()


@pytest.fixture
async def one(log: CountingLog, live: set[str]) -> AsyncIterator[SessionNode]:
    node = SessionNode(log, "one", live)
    async with running(node):
        yield node


@pytest.fixture
async def two(log: CountingLog, live: set[str]) -> AsyncIterator[SessionNode]:
    node = SessionNode(log, "two", live)
    async with running(node):
        yield node


@pytest.fixture
async def three(log: CountingLog, live: set[str]) -> AsyncIterator[SessionNode]:
    """It only looks."""
    node = SessionNode(log, "three", live)
    async with running(node):
        yield node


def stall_commits(log: MemoryLog) -> None:
    """Who is in mid-commit stays there until `release_commits`; other commits go on."""
    log._commits_held = False


def committed_keys(log: MemoryLog, node: SessionNode, client_id: str) -> list[bytes]:
    return [record.key or b"" for record in log.records(*node.store.position(client_id)) if record.value is not None]


async def test_a_session_is_seen_by_every_node(one: SessionNode, three: SessionNode) -> None:
    epoch, stored = await one.open(C)
    assert stored is None
    assert await three.store.load(C) is not None
    one.received(C, epoch, 7)
    await one.sink.wait(1)
    seen = await three.store.load(C)
    assert seen is not None
    assert (seen.epoch, seen.state.node_id, seen.progress.incoming) == (epoch, "one", {7})
    assert session_position(C)[0] == SESSIONS


async def test_a_superseded_owner_stores_its_last_state_and_the_next_one_finds_it(
    one: SessionNode, two: SessionNode, three: SessionNode
) -> None:
    epoch, _ = await one.open(C)
    opening = asyncio.create_task(two.open(C))
    await until(lambda: one.lost == [(C, epoch)], "the claim was not seen")
    one.received(C, epoch, 1)
    await one.sink.wait(1)
    assert one.sink.told == [("stored", (C, 1))]
    one.ownership.release(C, epoch)
    one.received(C, epoch, 2)  # too late
    next_epoch, stored = await opening
    assert stored is not None
    assert (stored.epoch, stored.progress.incoming) == (epoch, {1})
    await one.sink.wait(2)
    assert one.sink.told[1] == ("lost", (C, 2))
    await three.store.caught_up()
    assert three.store.view.epoch(C) == next_epoch
    assert three.incoming(C) == {1}
    assert three.store.stale_keys(C, next_epoch) == [], "the new owner has deleted what was before"
    assert two.store.statistics()["fences"] == 0


async def test_a_paused_writer_never_writes_for_a_session_that_moved(
    log: CountingLog, live: set[str], one: SessionNode, two: SessionNode, three: SessionNode
) -> None:
    """It stands still in mid-commit; the session goes on elsewhere; when it wakes, nothing of it appears."""
    epoch, _ = await one.open(C)
    kept, _ = await one.open("kept")
    before = committed_keys(log, one, C)
    log.hold_commits()
    one.received(C, epoch, 1)
    one.received("kept", kept, 2)
    await until(lambda: one.store.statistics()["writer_in_hand"] == 2, "nothing is under way")
    await turns()
    one.received(C, epoch, 3)  # waits behind
    stall_commits(log)
    live.remove("one")
    next_epoch, stored = await two.open(C)
    assert stored is not None
    assert (stored.epoch, stored.progress.incoming) == (epoch, set())
    two.received(C, next_epoch, 9)
    await two.sink.wait(1)
    assert (await three.store.load(C)) is not None
    assert three.incoming(C) == {9}
    log.release_commits()
    await one.sink.wait(3)
    assert one.sink.told == [("lost", (C, 1)), ("stored", ("kept", 2)), ("lost", (C, 3))]
    await three.store.caught_up()
    assert (three.store.view.epoch(C), three.incoming(C)) == (next_epoch, {9})
    assert three.incoming("kept") == {2}
    own = b"c\0%d\0" % epoch
    assert [key for key in committed_keys(log, one, C) if key.startswith(own)] == [
        key for key in before if key.startswith(own)
    ]
    with pytest.raises(SessionLost):
        await one.store.write_now(C, epoch, [])


async def test_a_paused_node_that_has_not_read_the_claims_writes_nothing_either(
    log: CountingLog, live: set[str], one: SessionNode, two: SessionNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole process stands still: when it wakes, its view of the claims is old."""
    epoch, _ = await one.open(C)
    going_on = asyncio.Event()
    consumer = one.ownership._tail._consumer
    assert consumer is not None
    fetch, is_waiting = consumer.fetch, asyncio.Event()

    async def wait_and_fetch(timeout_s: float) -> Any:
        is_waiting.set()
        await going_on.wait()
        return await fetch(timeout_s)

    monkeypatch.setattr(consumer, "fetch", wait_and_fetch)
    log.put(CLAIMS, 0, b"", b"")  # so that the fetch under way ends
    await is_waiting.wait()
    log.hold_commits()
    one.received(C, epoch, 1)
    await until(lambda: one.store.statistics()["writer_in_hand"] == 1, "nothing is under way")
    await turns()
    stall_commits(log)
    live.remove("one")
    await two.open(C)
    assert one.ownership.may_write(C, epoch), "so far it believes so"
    log.release_commits()
    await until(lambda: one.store.statistics()["writer_starts"] == 2, "it does not start again")
    await turns(20)
    assert one.sink.outcomes == []
    going_on.set()
    await one.sink.wait(1)
    assert one.sink.told == [("lost", (C, 1))]


async def test_a_fence_that_comes_while_the_writer_starts_again_counts_too(
    log: CountingLog, live: set[str], one: SessionNode, two: SessionNode
) -> None:
    """The commit failed for another reason, and the node was fenced before it had its id back."""
    epoch, _ = await one.open(C)
    log.hold_commits()
    log.fail_next_commit(CommitUnknown("no answer"))
    one.received(C, epoch, 1)
    await until(lambda: one.store.statistics()["writer_in_hand"] == 1, "nothing is under way")
    await turns()
    stall_commits(log)
    live.remove("one")
    _, stored = await two.open(C)
    assert stored is not None
    assert stored.progress.incoming == set()
    log.release_commits()
    await one.sink.wait(1)
    assert one.sink.told == [("lost", (C, 1))]


async def test_a_commit_that_happened_before_the_fence_is_read_by_the_next_owner(
    log: CountingLog, live: set[str], one: SessionNode, two: SessionNode
) -> None:
    epoch, _ = await one.open(C)
    log.fail_next_commit(CommitUnknown("no answer"), happened=True)
    log.fail_ends = True  # so that it cannot settle yet
    one.received(C, epoch, 1)
    await until(lambda: log.questions > 0 and one.store.statistics()["writer_starts"] > 1, "no second start")
    assert one.sink.outcomes == []
    log.fail_ends = False
    live.remove("one")
    _, stored = await two.open(C)
    assert stored is not None
    assert stored.progress.incoming == {1}
    await one.sink.wait(1)
    assert one.sink.outcomes == [("stored", (C, 1), [-1])]


async def test_an_earlier_connection_on_the_same_node_is_given_up(log: CountingLog, one: SessionNode) -> None:
    """It has not released in time: what it still has to write is dropped, what is under way is waited for."""
    epoch, _ = await one.open(C)
    log.hold_commits()
    one.received(C, epoch, 1)
    await until(lambda: one.store.statistics()["writer_in_hand"] == 1, "nothing is under way")
    await turns()
    one.received(C, epoch, 2)
    opening = asyncio.create_task(one.open(C, 0.01))
    await until(lambda: not one.ownership.may_write(C, epoch), "it was not renounced")
    assert not opening.done()
    log.release_commits()
    _, stored = await opening
    assert stored is not None
    assert stored.progress.incoming == {1}
    await one.sink.wait(2)
    assert one.sink.told == [("stored", (C, 1)), ("lost", (C, 2))]


async def test_a_commit_of_ours_that_has_not_begun_to_write_is_waited_for(
    one: SessionNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, _ = await one.open(C)
    going_on = asyncio.Event()
    producer = one.store._writer._producer
    commit = producer.commit

    async def wait_and_commit(records: Any, marks: Any) -> list[int]:
        await going_on.wait()
        return await commit(records)

    monkeypatch.setattr(producer, "commit", wait_and_commit)
    one.received(C, epoch, 1)
    await until(lambda: one.store.statistics()["writer_in_hand"] == 1, "nothing is under way")
    opening = asyncio.create_task(one.open(C, 0.01))
    await until(lambda: not one.ownership.may_write(C, epoch), "it was not renounced")
    await turns(20)
    going_on.set()
    _, stored = await opening
    assert stored is not None
    assert stored.progress.incoming == {1}


async def test_many_loads_share_their_questions(
    log: CountingLog, live: set[str], one: SessionNode, two: SessionNode, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.gather(*(one.open(f"c{number}") for number in range(200)))
    live.remove("one")
    log.questions = 0
    opened = await asyncio.gather(*(two.open(f"c{number}") for number in range(200)))
    assert all(stored is not None for _, stored in opened)
    assert log.questions < 20
    assert 1 <= two.store.statistics()["fences"] < 20
    assert two.store._fences == {}
    for _ in range(5):  # and one by one
        await two.store._fence("one")
    assert [each.getMessage() for each in caplog.records if "is fenced" in each.getMessage()] == [
        "node one does not release its sessions and is fenced"
    ]


async def test_a_load_that_kafka_does_not_answer_is_told(
    log: CountingLog, one: SessionNode, two: SessionNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.session_store.OPEN_TIMEOUT_S", 0.01)
    log.pause()
    with pytest.raises(LogUnavailable):
        await two.store.load(C, {"one"})
    log.resume()
    log.fail_ends = True
    with pytest.raises(LogUnavailable):
        await two.store.load(C)
    log.fail_ends = False
    assert await two.store.load(C) is None


async def test_a_progress_record_takes_the_journal_with_it(
    log: CountingLog, one: SessionNode, three: SessionNode
) -> None:
    epoch, _ = await one.open(C)
    for packet_id in (1, 2, 3):
        one.received(C, epoch, packet_id)
    await one.sink.wait(3)
    await one.store.caught_up()
    position = one.store.position(C)
    offsets = await one.store.write_now(
        C,
        epoch,
        [
            (position, progress_record(C, epoch, SessionProgress(incoming={1}))),
            (position, incoming_record(C, epoch, 3)),
        ],
    )
    assert len(offsets) == 2, "those of the tombstones are nobody's business"
    await three.store.caught_up()
    assert three.incoming(C) == {1, 3}
    assert three.store.view.journal_keys(C, epoch) == [b"c\0%d\0i3" % epoch]


async def test_a_session_that_is_over_leaves_nothing(one: SessionNode, three: SessionNode) -> None:
    epoch, _ = await one.open(C)
    one.received(C, epoch, 1)
    await one.sink.wait(1)
    await one.store.caught_up()
    position = one.store.position(C)
    keys = one.store.stale_keys(C, epoch + 1)
    await one.store.write_now(C, epoch, [(position, record) for record in deletion_records(keys)])
    one.ownership.forget(C, epoch)
    await three.store.caught_up()
    assert three.store.view.get(C) is None
    assert three.store.stale_keys(C, epoch + 1) == []
    claimed = await three.claim(C, "another")
    assert (claimed.is_void, claimed.had_session) == (False, False)


async def test_a_node_that_starts_anew_reads_all(log: CountingLog, live: set[str], one: SessionNode) -> None:
    await asyncio.gather(*(one.open(f"c{number}") for number in range(50)))
    fresh = SessionNode(log, "fresh", live)
    async with running(fresh):
        assert len(fresh.store.view) == 50
        assert fresh.store.view.snapshot() == one.store.view.snapshot()
        statistics = fresh.store.statistics()
        assert (statistics["sessions"], statistics["unreadable"]) == (50, 0)


async def test_a_restarted_node_fences_what_it_was(log: CountingLog, live: set[str], one: SessionNode) -> None:
    """Its own earlier process, still in mid-commit: it is fenced by the start alone, and loses what is claimed anew."""
    epoch, _ = await one.open(C)
    log.hold_commits()
    one.received(C, epoch, 1)
    await until(lambda: one.store.statistics()["writer_in_hand"] == 1, "nothing is under way")
    await turns()
    stall_commits(log)
    again = SessionNode(log, "one", live, incarnation="2")
    async with running(again):
        claimed = await again.claim(C)
        assert claimed.predecessors == ()
        stored = await again.store.load(C)
        assert stored is not None
        assert stored.progress.incoming == set()
        log.release_commits()
        await one.sink.wait(1)
        assert one.sink.told == [("lost", (C, 1))]


async def test_records_that_cannot_be_read_are_passed_over(log: CountingLog, one: SessionNode) -> None:
    epoch, _ = await one.open(C)
    position = one.store.position(C)
    log.put(*position, b"c", b"{}")
    log.put(*position, None, None)
    log.put(*position, b"c\x009\x00s", b"?")
    log.put(*position, *state_record(epoch, one.state(C, connected=False)))
    await one.store.caught_up()
    assert one.store.statistics()["unreadable"] == 3
    assert one.store.view.connected_on("one") == []


async def test_a_kafka_topic_that_was_made_anew_has_no_sessions(log: CountingLog, one: SessionNode) -> None:
    epoch, _ = await one.open(C)
    position = one.store.position(C)
    log.truncate(*position, (await log.end_offsets({position}))[position] + 10)
    await until(lambda: C not in one.store.view, "the session is still there")
    one.received(C, epoch, 1)
    await one.sink.wait(1)
    assert await one.store.load(C) is None


async def test_what_waits_is_bounded_by_who_asks(
    log: CountingLog, one: SessionNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, _ = await one.open(C)
    monkeypatch.setattr("bridge.session_writer.BUFFER_BYTES_MAX", 500)
    log.hold_commits()
    one.received(C, epoch, 1)
    await until(lambda: one.store.statistics()["writer_in_hand"] == 1, "nothing is under way")
    assert not one.store.is_full
    for packet_id in range(2, 8):
        one.received(C, epoch, packet_id)
    assert one.store.is_full
    log.release_commits()
    await one.sink.wait(7)
    assert not one.store.is_full


async def test_a_log_that_cannot_be_read_is_told(log: CountingLog) -> None:
    log.put(SESSIONS, 0, b"c\x009\x00s", b"?")
    log.pause()
    node = SessionNode(log, "a", set())
    starting = asyncio.create_task(node.store.start(0.01))
    await turns()
    log.fail_ends = True
    log.resume()
    with pytest.raises(LogUnavailable):
        await starting
    await node.stop()
