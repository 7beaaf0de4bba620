"""Topic Names in order, and a search that jumps over what a filter cannot match. Pure.

Names are UTF-8 bytes in plain byte order, so all names below a level are neighbours: what starts with ``a/`` lies
between ``a/`` and ``a0`` ('0' follows '/'). A search is a key to go on at, nothing else: it can be left and taken up
again while names come and go, and "has this search passed that name" is one comparison.
"""

from __future__ import annotations

from bisect import bisect_left

BLOCK_NAMES_MAX = 1_024  # inserting moves at most 8 KiB of pointers, however many names there are
_AFTER_SLASH = b"0"
_AFTER_DOLLAR = b"%"


class NamePattern:
    """A Topic Filter, compiled to find the names that it matches."""

    __slots__ = ("_is_leading_wildcard", "_is_open", "_levels", "start")

    def __init__(self, topic_filter: str) -> None:
        levels = topic_filter.encode().split(b"/")
        self._is_leading_wildcard = levels[0] in (b"+", b"#")
        self._is_open = levels[-1] == b"#"
        self._levels = levels[:-1] if self._is_open else levels
        fixed = self._levels[: self._levels.index(b"+")] if b"+" in self._levels else self._levels
        self.start = b"/".join(fixed)  # no name before it matches

    def matches(self, name: bytes) -> bool:
        """Whether the filter matches the name."""
        return self.examine(name) is name

    def examine(self, name: bytes) -> bytes | None:
        """``name`` itself when it matches; else a later key before which no name matches; None: none after it does."""
        if self._is_leading_wildcard and name.startswith(b"$"):  # [MQTT5-4.7.2-1] [MQTT311-4.7.2-1]
            return _AFTER_DOLLAR
        levels = self._levels
        if not levels:
            return name
        own = name.split(b"/")
        for index, level in enumerate(levels):
            if index == len(own):
                return after(name)  # too short: what is below it may match
            if level != own[index] and level != b"+":
                return self._beyond(name, own, index)
        if self._is_open or len(own) == len(levels):
            return name
        return b"/".join(own[: len(levels)]) + _AFTER_SLASH

    def _beyond(self, name: bytes, own: list[bytes], index: int) -> bytes | None:
        """Where to go on when the name's level at ``index`` is not the one that the filter wants."""
        wanted = b"/".join((*own[:index], self._levels[index]))
        if wanted > name:
            return wanted
        below = wanted + b"/"
        if below > name:  # the name's level starts with the wanted one: a/b-c lies between a/b and a/b/c
            return below
        for last in range(index - 1, -1, -1):
            if self._levels[last] == b"+":
                return b"/".join(own[: last + 1]) + _AFTER_SLASH
        return None


def after(name: bytes) -> bytes:
    """The smallest key greater than the name: no name holds U+0000."""
    return name + b"\0"


class SortedNames:
    """A set of names in order, in blocks."""

    __slots__ = ("_blocks", "_lasts", "_size")

    def __init__(self) -> None:
        self._blocks: list[list[bytes]] = []
        self._lasts: list[bytes] = []  # the last name of each block
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, name: bytes) -> None:
        """Put in a name that is not here."""
        self._size += 1
        if not self._blocks:
            self._blocks.append([name])
            self._lasts.append(name)
            return
        at = min(bisect_left(self._lasts, name), len(self._blocks) - 1)
        block = self._blocks[at]
        block.insert(bisect_left(block, name), name)
        if len(block) > BLOCK_NAMES_MAX:
            half = len(block) // 2
            self._blocks.insert(at + 1, block[half:])
            del block[half:]
            self._lasts.insert(at, block[-1])
            at += 1
            block = self._blocks[at]
        self._lasts[at] = block[-1]

    def remove(self, name: bytes) -> None:
        """Take out a name that is here."""
        at, index = self._locate(name)
        block = self._blocks[at]
        assert block[index] == name, name
        self._size -= 1
        del block[index]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def search(
        self, pattern: NamePattern, start: bytes, names_max: int, visits_max: int
    ) -> tuple[list[bytes], bytes | None]:
        """The next names at or after ``start`` that match, in order, and the key to go on at; None: that was all.

        Ends after ``names_max`` of them, or when ``visits_max`` names have been looked at.
        """
        found: list[bytes] = []
        at, index = self._locate(start)
        for _ in range(visits_max):
            if at == len(self._blocks):
                return found, None
            block = self._blocks[at]
            name = block[index]
            key = pattern.examine(name)
            if key is None:
                return found, None
            if key is name:
                found.append(name)
                if len(found) == names_max:
                    return found, after(name)
            index += 1
            if index == len(block):
                at, index = at + 1, 0
            elif key is not name and block[index] < key:
                at, index = self._locate(key)
        return found, self._blocks[at][index] if at < len(self._blocks) else None

    def _locate(self, key: bytes) -> tuple[int, int]:
        """Block and index of the first name at or after the key; one block too far when there is none."""
        at = bisect_left(self._lasts, key)
        return (at, bisect_left(self._blocks[at], key)) if at < len(self._blocks) else (at, 0)
