"""Two indexes over topic levels: wildcard filters by the name they match, cached names matching them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")

VISITS_MAX = 1_024  # levels a search for cached names may look at before it gives up: about a millisecond


class _Node(Generic[V]):
    """One level of a filter. ``value`` belongs to the filter that ends here, ``hash_value`` to this one + ``/#``."""

    __slots__ = ("hash_value", "literals", "plus", "value")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[V]] | None = None
        self.plus: _Node[V] | None = None
        self.value: V | None = None
        self.hash_value: V | None = None

    @property
    def is_empty(self) -> bool:
        return not self.literals and self.plus is None and self.value is None and self.hash_value is None

    def child(self, level: str) -> _Node[V] | None:
        if level == "+":
            return self.plus
        return None if self.literals is None else self.literals.get(level)

    def add_child(self, level: str) -> _Node[V]:
        child: _Node[V] = _Node()
        if level == "+":
            self.plus = child
        elif self.literals is None:
            self.literals = {level: child}
        else:
            self.literals[level] = child
        return child

    def drop_child(self, level: str) -> None:
        if level == "+":
            self.plus = None
        elif self.literals is not None:
            del self.literals[level]
            self.literals = self.literals or None


class FilterTrie(Generic[V]):
    """Topic Filters, each with a value; ``match`` finds the values of all filters that match a name."""

    __slots__ = ("_root", "_size", "nodes")

    def __init__(self) -> None:
        self._root: _Node[V] = _Node()
        self._size = 0
        self.nodes = 0  # without the root: 0 again when every filter is gone

    def __len__(self) -> int:
        return self._size

    def get(self, topic_filter: str) -> V | None:
        """The filter's value, None when it is not here."""
        levels, is_hash = _split(topic_filter)
        node: _Node[V] | None = self._root
        for level in levels:
            node = node.child(level) if node is not None else None
        if node is None:
            return None
        return node.hash_value if is_hash else node.value

    def put(self, topic_filter: str, value: V) -> None:
        """Set the filter's value."""
        levels, is_hash = _split(topic_filter)
        node = self._root
        for level in levels:
            child = node.child(level)
            if child is None:
                child = node.add_child(level)
                self.nodes += 1
            node = child
        if is_hash:
            self._size += node.hash_value is None
            node.hash_value = value
        else:
            self._size += node.value is None
            node.value = value

    def remove(self, topic_filter: str) -> None:
        """Forget a filter that is here, and every node that only it needed."""
        levels, is_hash = _split(topic_filter)
        path = [self._root]
        for level in levels:
            child = path[-1].child(level)
            assert child is not None, topic_filter
            path.append(child)
        if is_hash:
            path[-1].hash_value = None
        else:
            path[-1].value = None
        self._size -= 1
        for parent, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            if not path.pop().is_empty:
                break
            parent.drop_child(level)
            self.nodes -= 1

    def match(self, topic_name: str) -> list[V]:
        """The values of all filters that match the name, level by level; '#' also matches its parent level."""
        levels = iter(topic_name.split("/"))
        root = self._root
        found: list[V] = []
        if topic_name.startswith("$"):  # [MQTT5-4.7.2-1] [MQTT311-4.7.2-1]
            child = root.child(next(levels))
            frontier = [child] if child is not None else []
        else:
            frontier = [root]
        for level in levels:
            if not frontier:
                return found
            frontier = _step(frontier, level, found)
        for node in frontier:
            if node.value is not None:
                found.append(node.value)
            if node.hash_value is not None:
                found.append(node.hash_value)
        return found


def _step(frontier: list[_Node[V]], level: str, found: list[V]) -> list[_Node[V]]:
    """One level down; a '#' met on the way is found, whatever follows."""
    below: list[_Node[V]] = []
    for node in frontier:
        if node.hash_value is not None:
            found.append(node.hash_value)
        if node.literals is not None:
            child = node.literals.get(level)
            if child is not None:
                below.append(child)
        if node.plus is not None:
            below.append(node.plus)
    return below


def _split(topic_filter: str) -> tuple[list[str], bool]:
    levels = topic_filter.split("/")
    if levels[-1] == "#":
        levels.pop()
        return levels, True
    return levels, False


_Levels = dict["bytes | None", "bytes | _Levels"]


class NameIndex:
    """Topic Names (UTF-8) by level, to find the ones that a changed filter matches.

    A level leads to a dict of the next levels, or straight to the name when nothing longer starts with it; in a dict,
    None leads to the name that ends there.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Levels = {}

    def add(self, topic_name: bytes) -> None:
        """Remember a name; harmless when it is here already."""
        *levels, last = topic_name.split(b"/")
        node = self._root
        for level in levels:
            child = node.get(level)
            if not isinstance(child, dict):
                below: _Levels = {} if child is None else {None: child}
                node[level] = child = below
            node = child
        child = node.get(last)
        if isinstance(child, dict):
            child[None] = topic_name
        else:
            node[last] = topic_name

    def discard(self, topic_name: bytes) -> None:
        """Forget a name and what only it needed; harmless when it is not here."""
        path: list[tuple[_Levels, bytes]] = []
        node: bytes | _Levels | None = self._root
        for level in topic_name.split(b"/"):
            if not isinstance(node, dict):
                return
            path.append((node, level))
            node = node.get(level)
        if isinstance(node, dict):
            node.pop(None, None)
        elif node is None:
            return
        for parent, level in reversed(path):
            if isinstance(node, dict) and node:
                return
            del parent[level]
            node = parent

    def matched(self, topic_filter: bytes) -> list[bytes] | None:
        """The names that the filter matches ('$' rule aside); None when finding them would take too long."""
        found: list[bytes] = []
        visits = 0
        stack: list[tuple[_Levels, int]] = [(self._root, 0)]
        levels = topic_filter.split(b"/")
        while stack:
            node, depth = stack.pop()
            for child, child_depth in _children(node, levels, depth):
                visits += 1
                if visits > VISITS_MAX:
                    return None
                if isinstance(child, dict):
                    stack.append((child, child_depth))
                elif levels[child_depth:] in ([], [b"#"]):
                    found.append(child)
        return found


def _children(node: _Levels, levels: list[bytes], depth: int) -> Iterator[tuple[bytes | _Levels, int]]:
    """Where the filter's level at ``depth`` leads to, with the depth that goes on there ('#' stays at itself)."""
    ended = node.get(None)
    if ended is not None:
        yield ended, depth
    level = levels[depth] if depth < len(levels) else None
    if level in (b"+", b"#"):
        below = depth if level == b"#" else depth + 1
        for name, child in node.items():
            if name is not None:
                yield child, below
    elif level is not None and level in node:
        yield node[level], depth + 1
