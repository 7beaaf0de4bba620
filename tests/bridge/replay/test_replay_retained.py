"""The retained state as of a time, on a log in memory: checked against a model that keeps everything."""

from __future__ import annotations

from random import Random

from support.replay import FIRST_MS, TABLE, Clock

from bridge.log import Position
from bridge.memory_log import MemoryLog
from bridge.replay.retained_at import RetainedAt, read_retained
from schemas.message import Message
from schemas.records import encode_headers
from schemas.retained import RetainedMessage, encode_retained


class Site:
    """Retains as edges do, and remembers what was there at each time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.log = MemoryLog(self.clock)
        self.now: dict[str, bytes] = {}
        self.then: list[tuple[int, dict[str, bytes]]] = []

    def retain(self, topic_name: str, value: bytes, qos: int = 1, expiry_s: int | None = None) -> int:
        message = Message(topic_name, value, qos=qos, retain=True, client_id="c", expiry_s=expiry_s)
        to = TABLE.destination(topic_name)
        position: Position = to.twin().position if qos == 2 else to.position
        record = self.log.put(*position, to.key, value, encode_headers(message))
        headers = (("mqtt.expiry_s", b"%d" % expiry_s),) if expiry_s is not None else ()
        stored = RetainedMessage(topic_name.encode(), value, headers, *position, record.offset, record.timestamp)
        key, body, more = encode_retained(stored)
        self.log.put("headwater.retained", len(topic_name) % 12, key, body, list(more))
        self.now.pop(topic_name, None)
        if value:
            self.now[topic_name] = value
        self.then.append((record.timestamp, dict(self.now)))
        return record.timestamp

    async def read(self, at_ms: int | None = None, topic_filter: str = "#") -> RetainedAt:
        return await read_retained(self.log, TABLE, [topic_filter], at_ms)

    async def values(self, at_ms: int | None = None, topic_filter: str = "#") -> dict[str, bytes | None]:
        found = await self.read(at_ms, topic_filter)
        return {name.decode(): record.value for _, _, record, name in found.items(self.clock.now_ms)}


def busy_site(changes: int = 200) -> Site:
    chance, site = Random(4), Site()
    for number in range(changes):
        name = f"{chance.choice(['sensors/s/1', 'a', 'b/c'])}/{chance.randrange(4)}"
        site.retain(name, b"" if chance.random() < 0.3 else b"%d" % number, qos=chance.choice([1, 2]))
    return site


async def test_every_moment_is_found_again() -> None:
    site = busy_site()
    for at_ms, expected in site.then[::7]:
        assert await site.values(at_ms) == expected
    assert await site.values() == site.now


async def test_after_compaction_the_log_has_the_older_values() -> None:
    site = busy_site()
    for partition in range(12):
        site.log.compact("headwater.retained", partition, site.clock.now_ms)
    for at_ms, expected in site.then[::11]:
        found = await site.read(at_ms)
        assert {name.decode(): record.value for _, _, record, name in found.items(0)} == expected
        assert not found.uncertain()
        assert not found.is_before_log


async def test_what_the_log_has_lost_is_uncertain() -> None:
    site = Site()
    site.retain("a", b"1")
    then_ms = site.retain("kept", b"1")
    site.retain("b", b"1")
    site.retain("a", b"2")
    for partition in range(12):
        site.log.compact("headwater.retained", partition, site.clock.now_ms)
        site.log.truncate("mqtt.messages", partition, site.log.partition(("mqtt.messages", partition)).end - 1)
    found = await site.read(then_ms)
    assert [record.value for _, _, record, _ in found.items(0)] == [b"1"]
    assert found.uncertain() == ["a", "b"] or found.uncertain() == ["a"]


async def test_a_time_before_the_log_is_said() -> None:
    site = Site()
    site.retain("a", b"1")
    site.retain("a", b"2")
    to = TABLE.destination("a").position
    site.log.truncate(*to, 1)
    found = await site.read(FIRST_MS)
    assert found.is_before_log
    assert not (await site.read(site.clock.now_ms)).is_before_log


async def test_only_what_the_filter_matches() -> None:
    site = Site()
    site.retain("a/1", b"1")
    site.retain("b/1", b"1")
    assert await site.values(topic_filter="+/1") == {"a/1": b"1", "b/1": b"1"}
    assert await site.values(topic_filter="a/#") == {"a/1": b"1"}


async def test_what_had_expired_then_is_not_there() -> None:
    site = Site()
    at_ms = site.retain("a", b"1", expiry_s=1)
    assert await site.values(at_ms + 999) == {"a": b"1"}
    assert await site.values(at_ms + 1_000) == {}


async def test_a_tombstone_of_kafkas_own_tools_clears() -> None:
    site = Site()
    at_ms = site.retain("a", b"1")
    site.log.put("headwater.retained", 1, b"a", None, [])
    assert await site.values() == {}
    assert await site.values(at_ms) == {"a": b"1"}
