"""The subscription table against brute force, its cache under change, and what it leaves behind (nothing)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bridge.match_cache import NAME_BYTES_MAX, MatchCache
from bridge.subscriptions import SHARD_GRANTS_MAX, SHARED_LISTS_MIN, Grant, Subscription, SubscriptionTable
from bridge.topic_trie import VISITS_MAX, FilterTrie, NameIndex
from schemas.errors import RecordError
from schemas.topics import has_wildcard, matches


@dataclass(eq=False)
class Client:
    """A subscriber that remembers its deliveries."""

    name: str = ""
    got: list[Any] = field(default_factory=list)

    def deliver(self, delivery: Any, grant: Grant, /) -> None:
        self.got.append(delivery)


LEVELS = st.sampled_from(["a", "b", "", "$x"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda head, tail: "/".join(head + tail),
    st.lists(st.one_of(LEVELS, st.just("+")), max_size=4),
    st.sampled_from([["#"], []]),
).filter(bool)


def granted(table: SubscriptionTable, topic_name: str) -> dict[Client, Grant]:
    grants = [grant for shard in table.match(topic_name) for grant in shard]
    by_client = {grant.subscriber: grant for grant in grants}
    assert len(by_client) == len(grants), "one copy per subscriber"
    return by_client  # type: ignore[return-value]


@given(st.lists(FILTERS, max_size=30), st.lists(NAMES, min_size=1, max_size=10))
def test_the_trie_equals_brute_force(topic_filters: list[str], topic_names: list[str]) -> None:
    trie: FilterTrie[str] = FilterTrie()
    for topic_filter in topic_filters:
        trie.put(topic_filter, topic_filter)
    assert len(trie) == len(set(topic_filters))
    for topic_name in topic_names:
        found = trie.match(topic_name)
        assert sorted(found) == sorted(f for f in set(topic_filters) if matches(f, topic_name))
    for topic_filter in set(topic_filters):
        assert trie.get(topic_filter) == topic_filter
        trie.remove(topic_filter)
        assert trie.get(topic_filter) is None
    assert (len(trie), trie.nodes) == (0, 0)
    assert trie._root.is_empty


@given(st.lists(NAMES, max_size=20, unique=True), FILTERS, st.data())
def test_the_name_index_finds_what_a_filter_matches(
    topic_names: list[str], topic_filter: str, data: st.DataObject
) -> None:
    index = NameIndex()
    for topic_name in topic_names:
        index.add(topic_name.encode())
        index.add(topic_name.encode())
    gone = data.draw(st.sets(st.sampled_from(topic_names))) if topic_names else set()
    for topic_name in gone:
        index.discard(topic_name.encode())
        index.discard(topic_name.encode())
    left = {topic_name for topic_name in topic_names if topic_name not in gone}
    found = index.matched(topic_filter.encode())
    assert found is not None
    assert len(found) == len(set(found))
    # '$' names may be found by a leading wildcard as well: dropping too much is harmless
    wanted = {name.encode() for name in left if matches(_tame(topic_filter), _tame(name))}
    assert set(found) == wanted
    for topic_name in left:
        index.discard(topic_name.encode())
    assert index._root == {}


def _tame(text: str) -> str:
    return "!" + text if text.startswith("$") else text


def test_the_name_index_gives_up_in_time() -> None:
    index = NameIndex()
    for number in range(VISITS_MAX + 1):
        index.add(b"a/%d/x" % number)
    assert index.matched(b"a/+/x") is None
    assert index.matched(b"a/7/#") == [b"a/7/x"]


class TableMachine(RuleBasedStateMachine):
    """Random changes and questions; the model is a plain dict searched by brute force."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SubscriptionTable(names_max=8)  # small, so that generations turn
        self.clients = [Client(str(number)) for number in range(4)]
        self.model: dict[tuple[str, Client], Subscription] = {}

    @rule(
        topic_filter=FILTERS,
        client=st.integers(0, 3),
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        as_published=st.booleans(),
        subscription_id=st.one_of(st.none(), st.integers(1, 3)),
    )
    def add(
        self, topic_filter: str, client: int, qos: int, no_local: bool, as_published: bool, subscription_id: int | None
    ) -> None:
        who = self.clients[client]
        new = all(known != topic_filter for known, _ in self.model)
        subscription = Subscription(who, topic_filter, qos, no_local, as_published, subscription_id)
        assert self.table.add(subscription) is new
        self.model[topic_filter, who] = subscription

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.model:
            topic_filter, who = data.draw(st.sampled_from(list(self.model)))
            assert self.table.remove(topic_filter, who) is self.model.pop((topic_filter, who))

    @rule(topic_filter=FILTERS, client=st.integers(0, 3))
    def remove_any(self, topic_filter: str, client: int) -> None:
        who = self.clients[client]
        assert self.table.remove(topic_filter, who) is self.model.pop((topic_filter, who), None)

    @rule(topic_names=st.lists(NAMES, min_size=1, max_size=4))
    def match(self, topic_names: list[str]) -> None:
        for topic_name in topic_names:
            self._check(topic_name)

    def _check(self, topic_name: str) -> None:
        wanted: dict[Client, list[Subscription]] = defaultdict(list)
        for (topic_filter, who), subscription in self.model.items():
            if matches(topic_filter, topic_name):
                wanted[who].append(subscription)
        found = granted(self.table, topic_name)
        assert found.keys() == wanted.keys()
        for who, subscriptions in wanted.items():
            grant = found[who]
            assert grant.qos == max(s.qos for s in subscriptions)
            assert grant.no_local == all(s.no_local for s in subscriptions)
            assert grant.retain_as_published == any(s.retain_as_published for s in subscriptions)
            assert len(grant.subscription_ids) == len(set(grant.subscription_ids))
            assert set(grant.subscription_ids) == {s.subscription_id for s in subscriptions} - {None}

    @invariant()
    def sizes_fit(self) -> None:
        statistics = self.table.statistics()
        filters = {topic_filter for topic_filter, _ in self.model}
        assert statistics["subscriptions"] == len(self.model)
        assert statistics["subscribers"] == len({who for _, who in self.model})
        assert statistics["filters_wildcard"] == sum(map(has_wildcard, filters))
        assert statistics["filters_exact"] == len(filters) - statistics["filters_wildcard"]
        assert statistics["cached_names"] <= 8
        for who in self.clients:
            assert set(self.table.filters_of(who)) == {f for f, owner in self.model if owner is who}

    def teardown(self) -> None:
        for topic_filter, who in list(self.model):
            self.table.remove(topic_filter, who)
        statistics = self.table.statistics()
        assert not any(
            statistics[name]
            for name in ("subscriptions", "subscribers", "filters_exact", "filters_wildcard", "trie_nodes")
        )


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_overlapping_subscriptions_are_one_copy() -> None:
    """Highest QoS, all ids, no_local only if all have it [MQTT5-3.3.4-2] [MQTT5-3.3.4-4]."""
    table, client = SubscriptionTable(), Client()
    table.add(Subscription(client, "a/+", 0, no_local=True, subscription_id=7))
    table.add(Subscription(client, "a/b", 1, retain_as_published=True, subscription_id=9))
    table.add(Subscription(client, "#", 0))
    grant = granted(table, "a/b")[client]
    assert (grant.qos, grant.no_local, grant.retain_as_published) == (1, False, True)
    assert sorted(grant.subscription_ids) == [7, 9]


def test_bounds_of_overlapping_subscriptions() -> None:
    one, two = ("mqtt.messages", 1), ("mqtt.messages", 2)
    table, client = SubscriptionTable(), Client()
    table.add(Subscription(client, "a/+", not_before={one: 10, two: 3}))
    assert granted(table, "a/b")[client].not_before == {one: 10, two: 3}
    table.add(Subscription(client, "a/b", not_before={one: 20}))
    assert granted(table, "a/b")[client].not_before == {one: 10}
    table.add(Subscription(client, "#"))
    assert granted(table, "a/b")[client].not_before is None


def test_bounds_can_be_lifted() -> None:
    table, client = SubscriptionTable(), Client()
    table.add(Subscription(client, "a/b", 1, subscription_id=3, not_before={("mqtt.messages", 1): 10}))
    assert granted(table, "a/b")[client].not_before == {("mqtt.messages", 1): 10}
    table.lift_not_before("a/b", client)
    table.lift_not_before("a/c", client)
    grant = granted(table, "a/b")[client]
    assert (grant.not_before, grant.qos, grant.subscription_ids) == (None, 1, (3,))
    assert table.statistics()["subscriptions"] == 1


def test_many_subscribers_come_in_shards() -> None:
    table = SubscriptionTable()
    clients = [Client() for _ in range(2 * SHARD_GRANTS_MAX + 5)]
    for client in clients:
        table.add(Subscription(client, "hot/#"))
    assert [len(shard) for shard in table.match("hot/1")] == [SHARD_GRANTS_MAX, SHARD_GRANTS_MAX, 5]
    assert table.match("hot/1") is table.match("hot/2"), "one filter's shards are shared by its names"
    other = Client()
    table.add(Subscription(other, "hot/1"))
    assert granted(table, "hot/1").keys() == {*clients, other}
    assert table.match("hot/1")[0] is table.match("hot/2")[0], "the large lists are referred to, not copied"
    table.add(Subscription(clients[0], "hot/1", qos=1))
    assert granted(table, "hot/1").keys() == {*clients, other}
    assert granted(table, "hot/1")[clients[0]].qos == 1
    assert max(len(shard) for shard in table.match("hot/1")) <= SHARD_GRANTS_MAX


@given(st.sets(st.integers(0, SHARED_LISTS_MIN + 2)), st.sets(st.integers(0, SHARED_LISTS_MIN + 2)))
@settings(max_examples=30)
def test_large_filters_with_and_without_common_subscribers(left: set[int], right: set[int]) -> None:
    clients = [Client() for _ in range(SHARED_LISTS_MIN + 3)]
    table = SubscriptionTable()
    for client in clients[:SHARED_LISTS_MIN]:
        table.add(Subscription(client, "#"))
    for number in left:
        table.add(Subscription(clients[number], "a/+", 1))
    for number in right:
        table.add(Subscription(clients[number], "a/b", 2))
    found = granted(table, "a/b")
    assert found.keys() == {*clients[:SHARED_LISTS_MIN], *(clients[n] for n in left | right)}
    for number, client in enumerate(clients):
        if client in found:
            assert found[client].qos == (2 if number in right else 1 if number in left else 0)


def test_a_result_outlives_a_change() -> None:
    """A delivery yields between shards: what it walks over must not change under it."""
    table = SubscriptionTable()
    clients = [Client() for _ in range(3)]
    for client in clients:
        table.add(Subscription(client, "a"))
    shards = table.match("a")
    table.remove("a", clients[0])
    assert [grant.subscriber for grant in shards[0]] == clients
    assert [grant.subscriber for grant in table.match("a")[0]] == clients[1:]


def test_a_change_drops_only_what_it_touches() -> None:
    """10,000 clients with an exact filter each: one more or less costs the others nothing."""
    table = SubscriptionTable()
    names = [b"cmd/device%d/set" % number for number in range(10_000)]
    clients = [Client() for _ in names]
    for client, name in zip(clients, names, strict=True):
        table.add(Subscription(client, name.decode()))
    for name in names:
        table.match_bytes(name)
    misses = table.statistics()["cache_misses"]
    newcomer = Client()
    for topic_filter in ("cmd/device7/set", "cmd/new/set", "cmd/device8/#", "cmd/device9/+", "other/+/x"):
        table.add(Subscription(newcomer, topic_filter))
        table.remove(topic_filter, newcomer)
    for name in names:
        table.match_bytes(name)
    assert table.statistics()["cache_misses"] - misses == 3
    assert table.statistics()["cached_names"] == len(names)


def test_a_wide_change_drops_everything() -> None:
    table = SubscriptionTable()
    for number in range(VISITS_MAX + 1):
        table.match_bytes(b"a/%d" % number)
    client = Client()
    table.add(Subscription(client, "a/+"))
    assert table.statistics()["cached_names"] == 0
    assert granted(table, "a/5").keys() == {client}


def test_the_cache_is_bounded() -> None:
    table = SubscriptionTable(names_max=10)
    for number in range(1_000):
        table.match_bytes(b"n/%d" % number)
        table.match_bytes(b"often")
    statistics = table.statistics()
    assert statistics["cached_names"] <= 10
    assert statistics["cache_misses"] == 1_001, "a name in use stays"
    table.match_bytes(b"x" * (NAME_BYTES_MAX + 1))
    assert table.statistics()["cached_names"] == statistics["cached_names"], "an overlong name is not kept"


def test_the_cache_is_bounded_by_weight() -> None:
    cache: MatchCache[int] = MatchCache(names_max=1_000, weight_max=100)
    for number in range(100):
        cache.store(b"%d" % number, number, 20)
    assert len(cache) <= 8


@pytest.mark.parametrize("topic_name", [b"", b"\xff", b"a/+", b"a/#", b"a\0b", b"\xed\xa0\x80", b"a" * 65_536])
def test_a_bad_name_in_a_record_is_told(topic_name: bytes) -> None:
    table = SubscriptionTable()
    table.add(Subscription(Client(), "#"))
    with pytest.raises(RecordError):
        table.match_bytes(topic_name)
    assert table.statistics()["cached_names"] == 0


def test_a_surrogate_is_told() -> None:
    with pytest.raises(RecordError):
        SubscriptionTable().match("\ud800")


def test_lookups() -> None:
    table, client, other = SubscriptionTable(), Client(), Client()
    first = Subscription(client, "a/+", 1)
    table.add(first)
    table.add(Subscription(client, "b"))
    assert table.filters_of(client) == ("a/+", "b")
    assert table.filters_of(other) == ()
    assert table.subscription("a/+", client) is first
    assert table.subscription("a/+", other) is None
    assert table.has_filter("a/+")
    assert not table.has_filter("a/#")
    assert table.remove("a/+", other) is None
    assert table.remove("nothing", client) is None
    assert granted(table, "a/x").keys() == {client}
    assert table.match("c") == ()


@pytest.mark.parametrize("topic_filter", ["n/0", "n/+"])
def test_a_change_reaches_the_old_generation(topic_filter: str) -> None:
    """The name was asked for long ago, but its result is still kept."""
    table, client = SubscriptionTable(names_max=8), Client()
    for number in range(5):
        table.match(f"n/{number}")
    assert table.statistics()["cached_names"] == 5
    assert b"n/0" not in table._cache.young
    table.add(Subscription(client, topic_filter))
    assert granted(table, "n/0").keys() == {client}
