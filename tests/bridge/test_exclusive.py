"""Exclusive filters when edges die: the stored session keeps its own, what is left over is given back."""

from __future__ import annotations

from dataclasses import replace

from support.session_nodes import SessionNode, running

from bridge.exclusive import ExclusiveFilters
from bridge.memory_log import MemoryLog
from schemas.sessions import StoredSubscription, state_record
from schemas.topics import EXCLUSIVE_PREFIX


def exclusive_of(node: SessionNode, live: set[str]) -> ExclusiveFilters:
    return ExclusiveFilters(node.ownership, node.store, lambda: live)


async def store(node: SessionNode, client_id: str, epoch: int, *names: str, connected: bool = True) -> None:
    """The client's session with these subscriptions."""
    subscriptions = tuple(StoredSubscription(name, 1) for name in names)
    state = replace(node.state(client_id, connected=connected), subscriptions=subscriptions)
    await node.store.write_now(client_id, epoch, [(node.store.position(client_id), state_record(epoch, state))])


async def test_the_first_in_the_log_has_it_and_its_own_client_takes_it_along() -> None:
    log, live = MemoryLog(), set[str]()
    one, two = SessionNode(log, "one", live), SessionNode(log, "two", live)
    async with running(one, two):
        here, there = exclusive_of(one, live), exclusive_of(two, live)
        first = await here.take("a", "t")
        assert first is not None
        assert await there.take("b", "t") is None
        moved = await there.take("a", "t")
        assert moved is not None
        assert moved > first
        await two.ownership.caught_up()
        assert one.lost == [("\0exclusive\0t", first)]
        here.forget("t", first)  # the old edge ends what is not its own any more
        await two.ownership.caught_up()
        assert there.holder("t") == "a"
        assert await there.take("b", "t") is None
        there.forget("t", moved)
        await there.given_back("t", moved)
        assert await there.take("b", "t") is not None
        assert there.statistics() == {"taken": 2, "refused": 2, "given_back": 1, "settled": 0}


async def test_an_edge_dies_and_a_session_that_is_stored_keeps_what_it_has() -> None:
    log, live = MemoryLog(), set[str]()
    one, two = SessionNode(log, "one", live), SessionNode(log, "two", live)
    async with running(one, two):
        here, there = exclusive_of(one, live), exclusive_of(two, live)
        epoch, _ = await one.open("stored")
        assert await here.take("stored", "kept") is not None
        await store(one, "stored", epoch, EXCLUSIVE_PREFIX + "kept")
        assert await here.take("stored", "unstored") is not None  # the edge dies before SUBACK
        assert await here.take("fleeting", "left") is not None  # a session that ends with its connection
        live.discard("one")
        assert not [client_id for client_id, _ in two.ownership.orphans() if client_id.startswith("\0")]
        await there.settle_due()
        await two.ownership.caught_up()
        assert [there.holder(each) for each in ("kept", "unstored", "left")] == ["stored", None, None]
        assert await there.take("other", "kept") is None
        assert await there.take("other", "left") is not None
        moved = await there.take("stored", "kept")
        assert moved is not None
        there.leave("kept", moved)  # and its connection ends in an orderly way
        await there.settle_due()
        await two.ownership.caught_up()
        assert there.holder("kept") == "stored"
        again, _ = await two.open("stored")
        await store(two, "stored", again, connected=False)
        await there.settle_due()
        await two.ownership.caught_up()
        assert there.holder("kept") is None


async def test_what_a_live_connection_holds_is_left_alone_and_so_is_what_another_edge_looks_after() -> None:
    log, live = MemoryLog(), set[str]()
    one, two = SessionNode(log, "one", live), SessionNode(log, "two", live)
    async with running(one, two):
        here, there = exclusive_of(one, live), exclusive_of(two, live)
        for number in range(20):
            assert await here.take("a", f"t/{number}") is not None
        await there.settle_due()
        await here.settle_due()
        assert there.statistics()["settled"] == here.statistics()["settled"] == 0
        live.discard("one")
        nobody = ExclusiveFilters(two.ownership, two.store, lambda: {"somebody else"})
        await nobody.settle_due()
        assert nobody.statistics()["settled"] == 0
        await there.settle_due()
        assert there.statistics()["settled"] == 20
