"""The group commit on a log in memory: outcomes, order, trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.logs import VirtualClock, turns
from support.session_nodes import SessionNode, running

from bridge.log import CommitUnknown, LogUnavailable, ProducerFenced, RecordRefused, TransactionAborted
from bridge.memory_log import BATCH_BYTES_MAX, MemoryLog
from bridge.session_store import SessionLost
from schemas.catalogue import SESSIONS
from schemas.sessions import incoming_record, marker_key

C = "c"


@pytest.fixture
async def log() -> AsyncIterator[MemoryLog]:
    log = MemoryLog()
    yield log
    await log.stop()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def node(log: MemoryLog, clock: VirtualClock) -> AsyncIterator[SessionNode]:
    """It owns the session of client c, under `epoch`."""
    node = SessionNode(log, "a", set(), clock=clock)
    async with running(node):
        yield node


@pytest.fixture
async def epoch(node: SessionNode) -> int:
    epoch, _ = await node.open(C)
    node.batches = 0
    return epoch


def stored_ids(node: SessionNode) -> list[int]:
    """The packet ids in the log, in its order."""
    position = node.store.position(C)
    assert isinstance(node.log, MemoryLog)
    keys = [(record.key or b"").split(b"\0") for record in node.log.records(*position)]
    return [int(key[2][1:]) for key in keys if key[0] == C.encode() and key[2][:1] == b"i"]


async def seen(node: SessionNode) -> set[int] | None:
    await node.store.caught_up()
    return node.incoming(C)


async def test_what_waits_is_committed_together(log: MemoryLog, node: SessionNode, epoch: int) -> None:
    log.hold_commits()
    node.received(C, epoch, 1)
    await turns()
    for packet_id in (2, 3, 4):
        node.received(C, epoch, packet_id)
    await turns()
    assert node.sink.outcomes == []
    before = node.store.statistics()["writer_transactions"]
    log.release_commits()
    await node.sink.wait(4)
    assert node.sink.told == [("stored", (C, packet_id)) for packet_id in (1, 2, 3, 4)]
    offsets = [outcome[2][0] for outcome in node.sink.outcomes]
    assert offsets == sorted(set(offsets))
    assert node.store.statistics()["writer_transactions"] - before == 2
    assert node.batches == 2, "once per transaction"
    assert await seen(node) == {1, 2, 3, 4}


async def test_far_from_kafka_what_answers_a_commit_goes_with_the_next(
    log: MemoryLog, node: SessionNode, epoch: int, clock: VirtualClock
) -> None:
    """A PUBREL that comes right after its PUBREC does not wait for one more transaction of seconds."""
    before = node.store.statistics()["writer_transactions"]
    log.hold_commits()
    node.received(C, epoch, 1)
    await turns()
    node.received(C, epoch, 2)
    clock.now_s += 2.0
    log.release_commits()
    await node.sink.wait(1)
    node.received(C, epoch, 3)
    await node.sink.wait(3)
    assert node.store.statistics()["writer_transactions"] - before == 2


async def test_a_batch_is_bounded(
    log: MemoryLog, node: SessionNode, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.session_writer.BATCH_RECORDS_MAX", 10)
    for packet_id in range(1, 26):
        node.received(C, epoch, packet_id)
    await node.sink.wait(25)
    assert node.batches == 3
    monkeypatch.setattr("bridge.session_writer.BATCH_BYTES_MAX", 300)
    for packet_id in range(26, 30):
        node.received(C, epoch, packet_id)
    await node.sink.wait(29)
    assert node.batches == 5
    assert stored_ids(node) == list(range(1, 30))


async def test_the_culprit_of_a_refusal_is_found(
    log: MemoryLog, node: SessionNode, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.session_writer.BATCH_BYTES_MAX", 2 * BATCH_BYTES_MAX)
    log.hold_commits()
    node.received(C, epoch, 1)
    await turns()
    node.received(C, epoch, 2)
    too_large = (node.store.position(C), (b"c\x00%d\x00i3" % epoch, b"x" * (BATCH_BYTES_MAX + 1), ()))
    node.store.write(C, epoch, [too_large], node.sink, "large")
    node.received(C, epoch, 4)
    log.release_commits()
    await node.sink.wait(4)
    assert node.sink.told == [("stored", (C, 1)), ("stored", (C, 2)), ("refused", "large"), ("stored", (C, 4))]
    assert node.batches == 2
    assert stored_ids(node) == [1, 2, 4]


async def test_an_aborted_transaction_goes_again(log: MemoryLog, node: SessionNode, epoch: int) -> None:
    log.fail_next_commit(TransactionAborted("a leader has moved"))
    for packet_id in (1, 2):
        node.received(C, epoch, packet_id)
    await node.sink.wait(2)
    assert node.sink.told == [("stored", (C, 1)), ("stored", (C, 2))]
    assert stored_ids(node) == [1, 2]
    statistics = node.store.statistics()
    assert (statistics["writer_aborted"], statistics["writer_starts"]) == (1, 1)


@pytest.mark.parametrize("happened", [True, False])
async def test_a_commit_without_an_answer_is_settled(
    log: MemoryLog, node: SessionNode, epoch: int, happened: bool
) -> None:
    log.fail_next_commit(CommitUnknown("no answer"), happened=happened)
    node.received(C, epoch, 1)
    node.received(C, epoch, 2)
    await node.sink.wait(2)
    assert node.sink.told == [("stored", (C, 1)), ("stored", (C, 2))]
    assert ([outcome[2] for outcome in node.sink.outcomes] == [[-1], [-1]]) is happened
    assert stored_ids(node) == [1, 2], "once"
    assert node.store.statistics()["writer_found_committed"] == int(happened)
    node.received(C, epoch, 3)
    await node.sink.wait(3)
    assert stored_ids(node) == [1, 2, 3]


async def test_the_number_of_an_earlier_process_means_nothing(log: MemoryLog, node: SessionNode, epoch: int) -> None:
    position = node.store.position(C)
    for number in range(20):
        log.put(*position, marker_key("headwater.edge.a"), b"0:%d" % number)
    log.put(*position, marker_key("headwater.edge.b"), b"1:2")
    log.put(*position, marker_key("headwater.edge.a"), b"1:x")
    log.put(*position, marker_key("headwater.edge.a"), None)
    log.fail_next_commit(CommitUnknown("no answer"))
    node.received(C, epoch, 1)
    await node.sink.wait(1)
    assert node.store.statistics()["writer_found_committed"] == 0
    assert stored_ids(node) == [1]


async def test_nobody_knows_after_30_s(
    log: MemoryLog, node: SessionNode, epoch: int, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.session_writer.TICK_S", 0.001)
    log.pause()
    node.received(C, epoch, 1)
    await turns()
    clock.now_s += 29
    node.received(C, epoch, 2)
    await turns()
    clock.now_s += 1
    await node.sink.wait(2)
    assert node.sink.told == [("unknown", (C, 1)), ("unknown", (C, 2))], "never the later one without the earlier one"
    node.received(C, epoch, 3)
    log.resume()
    await node.sink.wait(3)
    assert node.sink.told[2] == ("stored", (C, 3))
    assert stored_ids(node) == [1, 3], "what was not sent is thrown away; what was has one outcome all the same"
    assert len(node.sink.outcomes) == 3


async def test_kafka_is_away_for_a_while(
    log: MemoryLog, node: SessionNode, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        log.fail_next_commit(CommitUnknown("no answer"))
    node.received(C, epoch, 1)
    node.received(C, epoch, 2)
    await node.sink.wait(2)
    assert stored_ids(node) == [1, 2]
    assert node.store.statistics()["writer_starts"] == 4


async def test_a_fenced_writer_goes_on_with_what_is_its_own(log: MemoryLog, node: SessionNode, epoch: int) -> None:
    log.fail_next_commit(ProducerFenced("a rival has started"))
    node.received(C, epoch, 1)
    await node.sink.wait(1)
    assert node.sink.told == [("stored", (C, 1))]
    assert stored_ids(node) == [1]
    assert node.store.statistics()["writer_fenced"] == 1


async def test_writes_of_a_session_that_ended_are_lost(log: MemoryLog, node: SessionNode, epoch: int) -> None:
    other, _ = await node.open("other")
    node.ownership.release(C, epoch)
    node.received(C, epoch, 1)
    node.received("other", other, 2)
    await node.sink.wait(2)
    assert node.sink.told == [("lost", (C, 1)), ("stored", ("other", 2))]
    assert stored_ids(node) == []
    with pytest.raises(SessionLost):
        await node.store.write_now(C, epoch, [])


async def test_write_now_raises_what_a_sink_hears(
    log: MemoryLog, node: SessionNode, epoch: int, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.session_writer.TICK_S", 0.001)
    position = node.store.position(C)
    offsets = await node.store.write_now(
        C, epoch, [(position, incoming_record(C, epoch, 1)), (position, incoming_record(C, epoch, 2))]
    )
    assert offsets[1] == offsets[0] + 1
    with pytest.raises(RecordRefused):
        await node.store.write_now(C, epoch, [(position, (b"k", b"x" * (BATCH_BYTES_MAX + 1), ()))])
    log.pause()
    waiting = asyncio.create_task(node.store.write_now(C, epoch, [(position, incoming_record(C, epoch, 3))]))
    await turns()
    clock.now_s += 31
    with pytest.raises(LogUnavailable):
        await waiting
    log.resume()


async def test_a_message_and_its_packet_id_are_committed_together(
    log: MemoryLog, node: SessionNode, epoch: int
) -> None:
    message = (("mqtt.messages.q2", 3), (b"k", b"hello", [("mqtt.topic", b"a")]))
    marker = (node.store.position(C), incoming_record(C, epoch, 1))
    node.store.write(C, epoch, [message, marker], node.sink, "both")
    node.store.write(C, epoch, [message], node.sink, "message")  # of a session that is not stored
    await node.sink.wait(2)
    assert [outcome[2][0] for outcome in node.sink.outcomes] == [0, 1]
    assert len(node.sink.outcomes[0][2]) == 2
    assert [record.value for record in log.records("mqtt.messages.q2", 3)] == [b"hello", b"hello"]


async def test_a_message_alone_has_its_marker_somewhere(log: MemoryLog, node: SessionNode, epoch: int) -> None:
    log.fail_next_commit(CommitUnknown("no answer"), happened=True)
    node.store.write(C, epoch, [(("mqtt.messages.q2", 3), (b"k", b"hello", ()))], node.sink, "message")
    await node.sink.wait(1)
    assert node.sink.outcomes == [("stored", "message", [-1])]
    assert [record.key for record in log.records(SESSIONS, 0)][-1:] == [marker_key("headwater.edge.a")]
    assert len(log.records("mqtt.messages.q2", 3)) == 1


async def test_a_sink_that_raises_harms_nobody_else(
    node: SessionNode, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def stored(self, token: object, offsets: list[int]) -> None:
            raise ValueError("broken")

        store_refused = store_lost = store_unknown = stored

    position = node.store.position(C)
    node.store.write(C, epoch, [(position, incoming_record(C, epoch, 1))], Broken(), None)  # type: ignore[arg-type]
    node.store.write(C, epoch + 1, [(position, incoming_record(C, epoch, 1))], Broken(), None)  # type: ignore[arg-type]
    node.received(C, epoch, 2)
    await node.sink.wait(1)
    assert node.store.statistics()["writer_sink_errors"] == 2


async def test_an_unknown_write_takes_nothing_of_others_along(
    log: MemoryLog, node: SessionNode, epoch: int, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.session_writer.TICK_S", 0.001)
    other, _ = await node.open("other")
    log.pause()
    node.received(C, epoch, 1)
    await turns()
    clock.now_s += 29
    node.received("other", other, 7)
    await turns()
    clock.now_s += 1
    await node.sink.wait(1)
    log.resume()
    await node.sink.wait(2)
    assert node.sink.told == [("unknown", (C, 1)), ("stored", ("other", 7))]


async def test_stop_reports_what_is_left(log: MemoryLog) -> None:
    node = SessionNode(log, "a", set())
    async with running(node):
        epoch, _ = await node.open(C)
        node.received(C, epoch, 1)
        await node.store.stop()
        assert node.sink.told == [("stored", (C, 1))]
    node = SessionNode(log, "a", set(), incarnation="2")
    async with running(node):
        epoch, stored = await node.open(C)
        assert stored is not None
        assert stored.progress.incoming == {1}
        log.hold_commits()
        node.received(C, epoch, 2)
        await turns()
        node.received(C, epoch, 3)
        await node.store.stop(0.01)
        assert node.sink.told == [("unknown", (C, 2)), ("unknown", (C, 3))]
        log.release_commits()


async def test_an_unexpected_error_is_survived(
    log: MemoryLog, node: SessionNode, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = node.store._writer._producer
    commit, failures = producer.commit, [ValueError("a bug"), KeyError("another")]

    async def fail_and_commit(records: Any, marks: Any) -> list[int]:
        if failures:
            raise failures.pop()
        return await commit(records)

    monkeypatch.setattr(producer, "commit", fail_and_commit)
    node.received(C, epoch, 1)
    await node.sink.wait(1)
    assert node.sink.told == [("stored", (C, 1))]
    assert stored_ids(node) == [1]
