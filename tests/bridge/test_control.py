"""Following `headwater.control`: loaded whole, in the order of the log, and what cannot be read harms nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.edges import until

from bridge import control as control_module
from bridge.control import Control, ControlRefused, ControlView
from bridge.log import LogUnavailable
from bridge.memory_log import MemoryLog
from bridge.publisher import Publisher
from schemas.catalogue import CONTROL
from schemas.control import AclRules, Ban, ControlEntry, NodeCommand
from schemas.errors import RecordError
from schemas.routes import DEAD_LETTER

ANN, BOB = Ban("user", "ann", reason="why"), Ban("user", "bob", expires_at=5.0)
RULES = AclRules(({"permit": "allow", "action": "all", "filter": "#"},), "root")


class Edge:
    """One edge's control, and what it was told."""

    def __init__(self, log: MemoryLog) -> None:
        self.told: list[tuple[str, ControlEntry | None]] = []
        self.refuses = ""
        self.ticks = 0
        self._publisher = Publisher(log)
        self.control = Control(log, self._publisher.append_future, self._take, self._tick)

    def _take(self, key: str, entry: ControlEntry | None) -> None:
        if entry is not None and self.refuses and self.refuses in key:
            raise RecordError("one too many")
        self.told.append((key, entry))

    def _tick(self) -> None:
        self.ticks += 1

    async def stop(self) -> None:
        await self.control.stop()
        await self._publisher.stop()


@asynccontextmanager
async def edge(log: MemoryLog, refuses: str = "") -> AsyncIterator[Edge]:
    one = Edge(log)
    one.refuses = refuses
    await one.control.start()
    try:
        yield one
    finally:
        await one.stop()


def test_the_view_is_the_last_word_of_each_key() -> None:
    view = ControlView()
    command = NodeCommand("edge-1", "7")
    for offset, entry in enumerate((ANN, BOB, RULES, command, Ban("user", "ann", reason="still"))):
        view.apply(entry.key, entry, offset, 1_000 + offset)
    view.apply(BOB.key, None, 5, 0)
    view.apply("ban/user/nobody", None, 6, 0)
    assert view.bans() == (Ban("user", "ann", reason="still"),)
    assert view.command("edge-1") == command
    assert view.command("edge-2") is None
    found = view.acl()
    assert found is not None
    assert (found[0], found[1].revision, found[1].at_ms) == (RULES, 2, 1_002)
    assert len(view) == 3


async def test_what_one_edge_decides_every_edge_is_told_in_the_same_order() -> None:
    log = MemoryLog()
    async with edge(log) as one, edge(log) as other:
        assert await one.control.put(ANN) == 0
        assert one.told == [(ANN.key, ANN)]  # in force where it was asked for, at once
        await asyncio.gather(*(each.control.put(entry) for each in (one, other) for entry in (BOB, RULES)))
        assert await other.control.remove(ANN.key) == 5
        await until(lambda: len(one.told) == len(other.told) == 6)
        assert one.told == other.told
        assert one.told[-1] == (ANN.key, None)
        assert one.control.statistics()["entries"] == 2


async def test_what_was_decided_before_is_loaded() -> None:
    log = MemoryLog()
    async with edge(log) as one:
        await one.control.put(ANN)
        await one.control.put(RULES)
        await one.control.remove(ANN.key)
    async with edge(log) as late:
        assert late.told == [(ANN.key, ANN), (RULES.key, RULES), (ANN.key, None)]
        assert late.control.view.bans() == ()


async def test_what_cannot_be_read_goes_to_the_dead_letters_and_is_skipped() -> None:
    log = MemoryLog()
    log.put(CONTROL, 0, b"ban/user/x", b"{", ())
    log.put(CONTROL, 0, None, b"{}", ())
    log.put(CONTROL, 0, b"route/x", b'{"version":9}', ())  # somebody else's
    async with edge(log) as one:
        await one.control.put(ANN)
        assert one.told == [(ANN.key, ANN)]
        await until(lambda: len(log.records(DEAD_LETTER, 0)) == 2)
        first, second = log.records(DEAD_LETTER, 0)
        assert (first.key, first.value, second.value) == (b"ban/user/x", b"{", b"{}")
        headers = dict(first.headers)
        assert b"not JSON" in (headers["headwater.reason"] or b"")
        assert headers["headwater.source"] == b"headwater.control/0/0"
        figures = one.control.statistics()
        assert (figures["unreadable"], figures["foreign"], figures["records"]) == (2, 1, 4)


async def test_what_is_refused_changes_nothing_and_is_told_to_who_asked() -> None:
    log = MemoryLog()
    async with edge(log) as one:
        await one.control.put(ANN)
        one.refuses = "ann"
        with pytest.raises(ControlRefused, match="one too many"):
            await one.control.put(Ban("user", "ann", reason="again"))
        assert one.control.view.bans() == (ANN,)
        await one.control.remove(ANN.key)
        assert one.control.view.bans() == ()


async def test_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "ENTRIES_MAX", 1)
    monkeypatch.setattr(control_module, "REFUSALS_KEPT", 2)
    async with edge(MemoryLog()) as one:
        await one.control.put(ANN)
        for _ in range(4):
            with pytest.raises(ControlRefused, match="more than 1 entries"):
                await one.control.put(BOB)
        await one.control.put(Ban("user", "ann", reason="still"))


async def test_a_topic_made_anew_takes_everything_back() -> None:
    log = MemoryLog()
    async with edge(log) as one:
        await one.control.put(ANN)
        await one.control.put(BOB)
        log.truncate(CONTROL, 0, 5)
        await until(lambda: one.told[2:] == [(ANN.key, None), (BOB.key, None)])
        assert len(one.control.view) == 0
        await one.control.put(RULES)
        assert one.told[-1] == (RULES.key, RULES)


async def test_it_ticks_without_records() -> None:
    async with edge(MemoryLog()) as one:
        await until(lambda: one.ticks > 0)


async def test_a_write_without_kafka_fails() -> None:
    log = MemoryLog()
    async with edge(log) as one:
        log.pause()
        asking = asyncio.create_task(one.control.put(ANN))
        await asyncio.sleep(0)
        one._publisher.expire(float("inf"))
        with pytest.raises(LogUnavailable):
            await asking
        log.resume()
