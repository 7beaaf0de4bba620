"""A bounded cache of match results by the raw bytes of the Topic Name, from which a changed filter's names are dropped.

It has two generations: a name that is asked for lives in the young one; when that is full it becomes the old one, and
what was not asked for meanwhile is forgotten. So a hit is one dict lookup, and forgetting costs nothing per name.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from bridge.topic_trie import NameIndex

V = TypeVar("V")

NAMES_MAX = 65_536  # in both generations: about 40 MB with names of 40 bytes, and as many names as a busy node sees
NAME_BYTES_MAX = 1_024  # longer names are not cached: an edge takes no longer ones, a Kafka producer might write them
WEIGHT_MAX = 4_000_000  # references held by results that are not shared: 32 MB


class _Generation(Generic[V]):
    __slots__ = ("index", "results", "weight")

    def __init__(self) -> None:
        self.results: dict[bytes, V] = {}
        self.index = NameIndex()
        self.weight = 0

    def drop(self, topic_name: bytes) -> None:
        if self.results.pop(topic_name, None) is not None:
            self.index.discard(topic_name)


class MatchCache(Generic[V]):
    """Topic Name -> result. ``young`` is the dict that the hot path reads."""

    __slots__ = ("_names_max", "_old", "_weight_max", "_young", "young")

    def __init__(self, names_max: int = NAMES_MAX, weight_max: int = WEIGHT_MAX) -> None:
        assert names_max >= 2, names_max
        self._names_max = names_max // 2
        self._weight_max = weight_max // 2
        self.clear()

    def __len__(self) -> int:
        return len(self._young.results) + len(self._old.results)

    def clear(self) -> None:
        """Forget everything."""
        self._old: _Generation[V] = _Generation()
        self._young: _Generation[V] = _Generation()
        self.young: dict[bytes, V] = self._young.results

    def recall(self, topic_name: bytes) -> V | None:
        """The result if it is still in the old generation; it moves to the young one."""
        result = self._old.results.get(topic_name)
        if result is not None:
            self._old.drop(topic_name)
            self.store(topic_name, result, 0)
        return result

    def store(self, topic_name: bytes, result: V, weight: int) -> None:
        """Remember a result that holds ``weight`` references of its own."""
        if len(topic_name) > NAME_BYTES_MAX:
            return
        young = self._young
        if len(young.results) >= self._names_max or young.weight > self._weight_max:
            self._old, self._young = young, _Generation()
            young = self._young
            self.young = young.results
        young.results[topic_name] = result
        young.index.add(topic_name)
        young.weight += weight

    def drop_name(self, topic_name: str) -> None:
        """The result of this one name has changed."""
        name = topic_name.encode()
        self._young.drop(name)
        self._old.drop(name)

    def drop_matched(self, topic_filter: str) -> None:
        """The results of the names that this wildcard filter matches have changed."""
        pattern = topic_filter.encode()
        for generation in (self._young, self._old):
            names = generation.index.matched(pattern)
            if names is None:
                self.clear()
                return
            for name in names:
                generation.drop(name)
