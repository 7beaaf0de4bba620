"""Where a replay writes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bridge.replay.selection import Item


class Sink(Protocol):
    """One writer. ``open`` comes first, ``finish`` after the last record; ``close`` always, also after an error."""

    async def open(self, saved: dict[str, Any] | None) -> None:
        """Begin, or go on where ``saved``, an earlier ``checkpoint``, stood.

        Raises:
            HeadwaterError: it cannot be written to, or not gone on with.
        """
        ...

    async def write(self, items: Sequence[Item]) -> None:
        """Write these; they may wait in a bounded buffer."""
        ...

    async def checkpoint(self) -> dict[str, Any] | None:
        """Everything written so far is safe now; what ``open`` needs to go on from here, None: not just now."""
        ...

    async def finish(self, end: dict[str, Any]) -> None:
        """Write the end marker; everything is safe."""
        ...

    async def close(self) -> None: ...
