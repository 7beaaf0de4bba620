"""Looking at a file again and again, so that a change of it is taken over without a restart."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from schemas.errors import ConfigurationError

logger = logging.getLogger(__name__)

RELOAD_S: Final = 1.0  # between two looks: one stat call

Fingerprint = tuple[int, int, int]


def fingerprint_of(status: os.stat_result) -> Fingerprint:
    """What changes when a file does."""
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def file_fingerprint(path: Path) -> Fingerprint | None:
    """The fingerprint of a file; None when it cannot be looked at."""
    try:
        return fingerprint_of(path.stat())
    except OSError:
        return None


def read_file(path: Path, what: str, bytes_max: int, remedy: str) -> tuple[bytes, Fingerprint]:
    """The file's content and fingerprint. Raises ConfigurationError when it cannot be read or is too long."""
    try:
        with path.open("rb") as file:
            fingerprint = fingerprint_of(os.fstat(file.fileno()))
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigurationError(f"{what} {path}: {error.strerror}; {remedy}") from error
    if len(content) > bytes_max:
        raise ConfigurationError(f"{what} {path}: more than {bytes_max} bytes")
    return content, fingerprint


class Watcher:
    """Calls `look` every `every_s`; it says whether it has taken over a change.

    A look that raises ConfigurationError changes nothing and is logged once, until the reason is another.
    """

    __slots__ = ("_complaint", "_every_s", "_look", "_task", "_what", "failures")

    def __init__(self, what: str, look: Callable[[], Awaitable[bool]], every_s: float) -> None:
        self._what = what
        self._look = look
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._complaint = ""
        self.failures = 0

    def start(self) -> None:
        """Begin, on the running loop."""
        assert self._task is None, "started twice"
        self._task = asyncio.create_task(self._watch(), name=f"watch {self._what}")

    def cancel(self) -> None:
        """End, without waiting for it."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """End; a look that is under way is not waited for."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                if await self._look():
                    logger.info("%s: changed, taken over", self._what)
                self._complaint = ""
            except ConfigurationError as error:
                self.failures += 1
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    logger.warning("%s; what was in force stays in force", error)
