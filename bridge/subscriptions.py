"""Who gets a message: the subscriptions of one node, matched by Topic Name.

Exact filters are in a dict, wildcard filters in a trie; results are cached by the name's raw bytes, so the hot path is
one dict lookup. What ``match`` returns is never changed afterwards: a delivery that is half-way through it while
somebody unsubscribes goes on over the old result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bridge.match_cache import NAMES_MAX, MatchCache
from bridge.topic_trie import FilterTrie
from schemas.errors import RecordError, TopicError
from schemas.topics import check_topic_name, has_wildcard

SHARD_GRANTS_MAX = 1_024  # one shard is delivered in one go: about a millisecond, then other clients have their turn
SHARED_LISTS_MIN = 64  # from this size on, a filter's grants are referred to and not copied per name

NotBefore = dict[tuple[str, int], int]


class Subscriber(Protocol):
    """Whoever gets deliveries: a client's session, or later a shared subscription's group. Hashable."""

    def deliver(self, delivery: Any, grant: Grant, /) -> object:
        """Take one delivery, now and without waiting."""


class RunSubscriber(Subscriber, Protocol):
    """A subscriber that takes several deliveries in one step."""

    def deliver_run(self, deliveries: list[Any], grant: Grant, /) -> object:
        """Take deliveries that follow one another in the log and have all their headers in common; none expires."""


@dataclass(slots=True, eq=False)
class Grant:
    """What one subscriber gets of one name: all its matching subscriptions merged into one copy.

    The highest QoS [MQTT5-3.3.4-2] and all Subscription Identifiers [MQTT5-3.3.4-4]; ``no_local`` only when every
    matching subscription has it; RETAIN is kept when one of them asks for it. A record before ``not_before`` of its
    partition is not meant for this subscriber; None, and a partition that is not in it: no such bound. The deliverer
    strikes out what it has passed; ``begins`` stays whole, for who reads the log again.
    """

    subscriber: Subscriber
    qos: int
    no_local: bool
    retain_as_published: bool
    subscription_ids: tuple[int, ...]
    not_before: NotBefore | None
    begins: NotBefore | None = None
    takes_runs: bool = False  # the subscriber is a `RunSubscriber`
    parts: tuple[Subscription, ...] | None = None  # what it was merged from, where one of them has a selector
    is_conditional: bool = field(init=False)  # whether the subscriber gets it depends on the message, too

    def __post_init__(self) -> None:
        self.is_conditional = self.no_local or self.parts is not None


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscriber's subscription to one ordinary (not shared) Topic Filter. Not changed once it is in a table.

    ``selector`` is the edge's: it says of each message whether this subscription takes it.
    """

    subscriber: Subscriber
    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    subscription_id: int | None = None
    not_before: NotBefore | None = None
    selector: Any = None
    _grant: Grant | None = field(default=None, init=False, repr=False)

    def grant(self) -> Grant:
        """The grant when no other subscription of the subscriber matches: made once, shared by all names."""
        if self._grant is None:
            self._grant = _merged([self])
        return self._grant


Shards = tuple[list[Grant], ...]


class _Entry:
    """The subscriptions of one filter: mostly a single one, so the dict is only made for the second."""

    __slots__ = ("_many", "_only", "_shards")

    def __init__(self, subscription: Subscription) -> None:
        self._only: Subscription | None = subscription
        self._many: dict[Subscriber, Subscription] | None = None
        self._shards: Shards | None = None

    def __len__(self) -> int:
        return len(self._many) if self._many is not None else 1

    def __contains__(self, subscriber: Subscriber) -> bool:
        if self._many is not None:
            return subscriber in self._many
        return self._only is not None and self._only.subscriber == subscriber

    def subscriptions(self) -> Iterable[Subscription]:
        if self._many is not None:
            return self._many.values()
        return (self._only,) if self._only is not None else ()

    def put(self, subscription: Subscription) -> None:
        self._shards = None
        if self._many is not None:
            self._many[subscription.subscriber] = subscription
        elif self._only is None or self._only.subscriber == subscription.subscriber:
            self._only = subscription
        else:
            self._many = {self._only.subscriber: self._only, subscription.subscriber: subscription}
            self._only = None

    def take(self, subscriber: Subscriber) -> bool:
        """Remove the subscriber's subscription; whether the entry is empty now."""
        self._shards = None
        if self._many is None:
            self._only = None
            return True
        del self._many[subscriber]
        if len(self._many) == 1:
            (self._only,) = self._many.values()
            self._many = None
        return False

    def shards(self) -> Shards:
        if self._shards is None:
            self._shards = _sharded([subscription.grant() for subscription in self.subscriptions()])
        return self._shards


class SubscriptionTable:
    """All subscriptions of the node's clients."""

    __slots__ = ("_by_subscriber", "_cache", "_exact", "_misses", "_subscriptions", "_wildcard")

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._exact: dict[str, _Entry] = {}
        self._wildcard: FilterTrie[_Entry] = FilterTrie()
        self._by_subscriber: dict[Subscriber, dict[str, Subscription]] = {}
        self._cache: MatchCache[Shards] = MatchCache(names_max)
        self._subscriptions = 0
        self._misses = 0

    def add(self, subscription: Subscription) -> bool:
        """Add a subscription, or replace the subscriber's one to the same filter [MQTT5-3.8.4-3].

        Returns whether the filter is new on this node. The filter must have passed ``check_topic_filter``.
        """
        topic_filter = subscription.topic_filter
        own = self._by_subscriber.setdefault(subscription.subscriber, {})
        self._subscriptions += topic_filter not in own
        own[topic_filter] = subscription
        entry = self._entry(topic_filter)
        if entry is not None:
            entry.put(subscription)
        elif has_wildcard(topic_filter):
            self._wildcard.put(topic_filter, _Entry(subscription))
        else:
            self._exact[topic_filter] = _Entry(subscription)
        self._changed(topic_filter)
        return entry is None

    def remove(self, topic_filter: str, subscriber: Subscriber) -> Subscription | None:
        """Remove and return the subscriber's subscription to the filter; None when there is none.

        ``has_filter`` tells whether somebody else on the node still has the filter.
        """
        own = self._by_subscriber.get(subscriber)
        subscription = own.pop(topic_filter, None) if own is not None else None
        if subscription is None:
            return None
        if not own:
            del self._by_subscriber[subscriber]
        self._subscriptions -= 1
        entry = self._entry(topic_filter)
        assert entry is not None, topic_filter
        if entry.take(subscriber):
            if has_wildcard(topic_filter):
                self._wildcard.remove(topic_filter)
            else:
                del self._exact[topic_filter]
        self._changed(topic_filter)
        return subscription

    def lift_not_before(self, topic_filter: str, subscriber: Subscriber) -> None:
        """Once the node has passed the bounds: deliveries need not look at them any more. Harmless when not there."""
        subscription = self.subscription(topic_filter, subscriber)
        if subscription is not None and subscription.not_before is not None:
            self.add(replace(subscription, not_before=None))

    def has_filter(self, topic_filter: str) -> bool:
        """Whether any subscriber has this filter."""
        return self._entry(topic_filter) is not None

    def filters_of(self, subscriber: Subscriber) -> tuple[str, ...]:
        """The filters that the subscriber has, in the order it subscribed."""
        return tuple(self._by_subscriber.get(subscriber, ()))

    def subscription(self, topic_filter: str, subscriber: Subscriber) -> Subscription | None:
        """The subscriber's subscription to exactly this filter."""
        return self._by_subscriber.get(subscriber, {}).get(topic_filter)

    def match(self, topic_name: str) -> Shards:
        """The grants of all subscribers to the name, each subscriber once, in shards; do not change the lists.

        Raises RecordError when this is no valid Topic Name.
        """
        try:
            return self.match_bytes(topic_name.encode())
        except UnicodeEncodeError:
            raise RecordError("Topic Name holds a surrogate") from None

    def match_bytes(self, topic_name_utf8: bytes) -> Shards:
        """``match`` for the name as it stands in a record: the hot path, a single lookup when it was asked before."""
        shards = self._cache.young.get(topic_name_utf8)
        return shards if shards is not None else self._match_miss(topic_name_utf8)

    def statistics(self) -> dict[str, int]:
        """Sizes now, and how often the cache did not know a name."""
        return {
            "subscriptions": self._subscriptions,
            "subscribers": len(self._by_subscriber),
            "filters_exact": len(self._exact),
            "filters_wildcard": len(self._wildcard),
            "trie_nodes": self._wildcard.nodes,
            "cached_names": len(self._cache),
            "cache_misses": self._misses,
        }

    def _entry(self, topic_filter: str) -> _Entry | None:
        if has_wildcard(topic_filter):
            return self._wildcard.get(topic_filter)
        return self._exact.get(topic_filter)

    def _changed(self, topic_filter: str) -> None:
        if has_wildcard(topic_filter):
            self._cache.drop_matched(topic_filter)
        else:
            self._cache.drop_name(topic_filter)

    def _match_miss(self, topic_name_utf8: bytes) -> Shards:
        shards = self._cache.recall(topic_name_utf8)
        if shards is not None:
            return shards
        self._misses += 1
        topic_name = _decoded_name(topic_name_utf8)
        entries = self._wildcard.match(topic_name)
        exact = self._exact.get(topic_name)
        if exact is not None:
            entries.append(exact)
        shards, weight = _combined(entries)
        self._cache.store(topic_name_utf8, shards, weight)
        return shards


def _decoded_name(topic_name_utf8: bytes) -> str:
    try:
        topic_name = topic_name_utf8.decode()
        check_topic_name(topic_name)
    except UnicodeDecodeError:
        raise RecordError("Topic Name is not valid UTF-8") from None
    except TopicError as error:
        raise RecordError(str(error)) from None
    return topic_name


def _combined(entries: list[_Entry]) -> tuple[Shards, int]:
    """The shards of the matching filters together, and how many references they hold that no filter's own shards do."""
    if not entries:
        return (), 0
    if len(entries) == 1:
        return entries[0].shards(), 0
    entries.sort(key=len)
    biggest = entries[-1]
    if len(biggest) >= SHARED_LISTS_MIN:
        rest = _grants_by_subscriber(entries[:-1])
        if not any(subscriber in biggest for subscriber in rest):
            return biggest.shards() + _sharded(list(rest.values())), len(rest)
    grants = _grants_by_subscriber(entries)
    return _sharded(list(grants.values())), len(grants)


def _grants_by_subscriber(entries: list[_Entry]) -> dict[Subscriber, Grant]:
    single: dict[Subscriber, Subscription] = {}
    several: dict[Subscriber, list[Subscription]] = {}
    for entry in entries:
        for subscription in entry.subscriptions():
            first = single.setdefault(subscription.subscriber, subscription)
            if first is not subscription:
                several.setdefault(subscription.subscriber, [first]).append(subscription)
    grants = {subscriber: subscription.grant() for subscriber, subscription in single.items()}
    for subscriber, subscriptions in several.items():
        grants[subscriber] = _merged(subscriptions)
    return grants


def narrowed(grant: Grant, takes: Callable[[Any], bool]) -> Grant | None:
    """The grant without the subscriptions whose selector does not take the message; None: nothing is left."""
    parts = grant.parts
    if parts is None:
        return grant
    left = [each for each in parts if each.selector is None or takes(each.selector)]
    if len(left) == len(parts):
        return grant
    return _merged(left) if left else None


def _merged(subscriptions: Sequence[Subscription]) -> Grant:
    first = subscriptions[0]
    selects = any(subscription.selector is not None for subscription in subscriptions)
    bounds = _lowest_bounds([subscription.not_before for subscription in subscriptions])
    return Grant(
        first.subscriber,
        max(subscription.qos for subscription in subscriptions),  # [MQTT5-3.3.4-2]
        all(subscription.no_local for subscription in subscriptions),
        any(subscription.retain_as_published for subscription in subscriptions),
        _distinct_ids(subscriptions),
        bounds,
        first.not_before if len(subscriptions) == 1 else bounds and dict(bounds),
        hasattr(first.subscriber, "deliver_run") and not selects,
        tuple(subscriptions) if selects else None,
    )


def _distinct_ids(subscriptions: Sequence[Subscription]) -> tuple[int, ...]:
    """All Subscription Identifiers [MQTT5-3.3.4-3] [MQTT5-3.3.4-4]; several subscriptions may share one."""
    ids = dict.fromkeys(subscription.subscription_id for subscription in subscriptions)
    return tuple(subscription_id for subscription_id in ids if subscription_id is not None)


def _lowest_bounds(bounds: Sequence[NotBefore | None]) -> NotBefore | None:
    """From where on at least one of the subscriptions wants records: no bound when one of them has none."""
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return None
    everywhere = set(known[0]).intersection(*known[1:])
    return {partition: min(bound[partition] for bound in known) for partition in everywhere} or None


def _sharded(grants: list[Grant]) -> Shards:
    return tuple(grants[start : start + SHARD_GRANTS_MAX] for start in range(0, len(grants), SHARD_GRANTS_MAX))
