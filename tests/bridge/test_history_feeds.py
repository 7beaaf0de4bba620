"""Where replays begin and end: new ones, and those of sessions that come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bridge.delivery import Delivery
from bridge.history.feed import GAP, ReplayFeed
from bridge.history.feeds import ReplayFeeds
from bridge.log import Position
from bridge.memory_log import MemoryLog, _Transaction
from bridge.partitioning import RouteTable
from schemas.replay_range import ReplayRangeError
from schemas.routes import Route
from schemas.sessions import ReplayPlace, SessionProgress, decode_progress, progress_record

START_MS = 1_795_248_000_000  # 2026-11-21T08:00Z
HERE = ("mqtt.messages", 0)


class Member:
    def __init__(self) -> None:
        self.got: list[Delivery] = []
        self.has_ended = asyncio.Event()

    def has_room(self) -> bool:
        return True

    def takes(self, delivery: Delivery, feed: ReplayFeed) -> bool:
        return True

    def deliver_replayed(self, delivery: Delivery, feed: ReplayFeed) -> bool:
        self.got.append(delivery)
        return False

    def replay_ended(self, feed: ReplayFeed) -> None:
        self.has_ended.set()


class World:
    def __init__(self) -> None:
        self.now_ms = START_MS
        self.log = MemoryLog(lambda: self.now_ms)
        self.routes = RouteTable((Route("#", "mqtt.messages", partitions=1),))
        self.feeds = ReplayFeeds(
            self.log,
            self.routes,
            per_s=0,
            after_batch=lambda: None,
            dead_letter=lambda *_: None,
            clock_ms=lambda: self.now_ms,
        )

    def put(self, count: int, position: Position = HERE) -> None:
        for _ in range(count):
            self.log.put(*position, b"a", b"x", (("mqtt.topic", b"a"),))

    async def open(self, replay_filter: str, places: dict[Position, ReplayPlace] | None = None) -> ReplayFeed:
        return await self.feeds.open(Member(), replay_filter, places, with_positions=False)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.feeds.stop()


def stored(feed: ReplayFeed, replay_filter: str) -> dict[Position, ReplayPlace]:
    """What a session's record makes of the places."""
    record = progress_record("c", 1, SessionProgress(replays={replay_filter: feed.places()}))
    return decode_progress(record[1] or b"").replays[replay_filter]


@pytest.mark.parametrize("to", ["now", "-0s", "2026-11-21T08:00:00.001Z"])
async def test_the_end_stays_where_it_was_when_the_replay_began(world: World, to: str) -> None:
    world.put(10)
    world.now_ms += 1
    replay_filter = f"$replay/-1h/{to}/#"
    places = stored(await world.open(replay_filter), replay_filter)
    world.now_ms += 60_000
    world.put(5)
    again = (await world.open(replay_filter, places)).places()
    assert again == places
    assert {place.until for place in again.values()} == {10, 0}


async def test_a_relative_from_may_come_to_lie_behind_a_to_that_is_a_time(world: World) -> None:
    replay_filter = "$replay/-1h/2026-11-21T07:30Z/#"
    places = stored(await world.open(replay_filter), replay_filter)
    world.now_ms += 7_200_000
    with pytest.raises(ReplayRangeError):
        await world.open(replay_filter)
    assert (await world.open(replay_filter, places)).places() == places


async def test_partitions_that_are_new_to_a_session_are_read_from_their_beginning(world: World) -> None:
    world.put(10)
    places = {("mqtt.messages.q2", 0): ReplayPlace(0)}  # as if the other one had come since
    for text_from in ("-1s", "now"):
        feed = await world.open(f"$replay/{text_from}/#", places)
        assert feed.places()[HERE] == ReplayPlace(0)
    bounded = await world.open("$replay/-1s/now/#", {("mqtt.messages.q2", 0): ReplayPlace(0, (), 0)})
    assert bounded.positions == places.keys()


async def test_a_resize_while_it_is_opened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    more = ("mqtt.messages", 1)
    before = world.routes.kept_partitions("#")
    answers = iter((before, before | {more}, before | {more}))

    class Resized:
        def kept_partitions(self, topic_filter: str) -> frozenset[Position]:
            return next(answers)

    monkeypatch.setattr(world.feeds, "_routes", Resized())
    assert more in (await world.open("$replay/-1h/#")).positions


async def test_transactions_at_the_end_of_a_range(world: World) -> None:
    """What was aborted is gone past; what is open is waited for, and comes when it is committed."""
    twin = ("mqtt.messages.q2", 0)
    aborted, undecided = _Transaction(), _Transaction()
    record = (b"a", b"x", (("mqtt.topic", b"a"), ("mqtt.qos", b"2")))
    world.log.append_in(aborted, twin, record)
    world.log.end(aborted, aborted=True)
    offset = world.log.append_in(undecided, twin, record)
    member = Member()
    feed = await world.feeds.open(member, "$replay/beginning/now/#", None, with_positions=True)
    world.feeds.start(feed)
    await asyncio.sleep(0)
    assert not member.has_ended.is_set()
    world.log.end(undecided, aborted=False)
    async with asyncio.timeout(20):
        await member.has_ended.wait()
    assert [each.offset for each in member.got] == [offset]


async def test_records_deleted_before_and_while_they_are_read(world: World) -> None:
    world.put(100)
    member = Member()
    feed = await world.feeds.open(member, "$replay/beginning/now/#", None, with_positions=True)
    world.log.truncate(*HERE, 40)
    world.feeds.start(feed)
    async with asyncio.timeout(20):
        await member.has_ended.wait()
    assert [each.offset for each in member.got] == list(range(40, 100))
    first = member.got[0].properties
    assert first is not None
    assert dict(first.user_properties)[GAP].startswith("40 ")


async def test_records_that_are_all_deleted(world: World) -> None:
    world.put(10)
    member = Member()
    feed = await world.feeds.open(member, "$replay/beginning/now/#", None, with_positions=True)
    world.put(10)
    world.log.truncate(*HERE, 15)
    world.feeds.start(feed)
    async with asyncio.timeout(20):
        await member.has_ended.wait()
    assert (member.got, feed.gap) == ([], 10)
