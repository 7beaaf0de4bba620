"""What `headwater replay`, `tail` and `get` show: records as JSON lines, pretty or as a table, and the progress bar."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from bridge.replay.lines import LineEncoder, end_line
from bridge.replay.run import Progress as ReplayProgress
from bridge.replay.run import time_text
from bridge.replay.selection import Item
from schemas.records import HEADER_CLIENT_ID, HEADER_QOS, HEADER_RETAIN

_WIDTH = 160  # without a terminal nobody says how wide
_COLUMNS = (("time", 24), ("QoS", 3), ("client", 20), ("topic name", 40))  # and the payload takes what is left
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


class OutputForm(StrEnum):
    """How records are shown."""

    JSON = "json"
    PRETTY = "pretty"
    TABLE = "table"


class ScreenSink:
    """Standard output. Nothing that a device has sent can steer the terminal: only printable characters come through,
    save in JSON, which has its own way to write the others."""

    def __init__(self, form: OutputForm, *, end_marker: bool = True) -> None:
        self._form = form
        self._end_marker = end_marker
        self._encoder = LineEncoder()
        self._width = shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH
        self._colour = sys.stdout.isatty()

    async def open(self, saved: dict[str, Any] | None) -> None:
        if self._form is OutputForm.TABLE:
            self._print(self._row([name for name, _ in _COLUMNS] + ["payload"]) + "\n")

    async def write(self, items: Sequence[Item]) -> None:
        if self._form is OutputForm.JSON:
            self._print(self._encoder.encode(items).decode())
        elif self._form is OutputForm.PRETTY:
            self._print("".join(map(self._pretty, items)))
        else:
            self._print("".join(self._row(_cells(item)) + "\n" for item in items))

    async def checkpoint(self) -> None:
        return None

    async def finish(self, end: dict[str, Any]) -> None:
        if self._form is OutputForm.JSON and self._end_marker:
            self._print(end_line(end).decode())

    async def close(self) -> None:
        """Standard output stays open."""

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _pretty(self, item: Item) -> str:
        time, qos, client_id, topic_name, payload = _cells(item)
        flags = f"QoS {qos}" + (", retained" if dict(item[2].headers).get(HEADER_RETAIN) == b"1" else "")
        who = f" from {client_id}" if client_id else ""
        if not self._colour:
            return f"{time}  {topic_name}  ({flags}{who})\n    {payload}\n"
        return f"{_DIM}{time}{_PLAIN}  {_BOLD}{topic_name}{_PLAIN}  {_DIM}({flags}{who}){_PLAIN}\n    {payload}\n"

    def _row(self, cells: Sequence[str]) -> str:
        pieces = [_fitted(cell, width) for cell, (_, width) in zip(cells, _COLUMNS, strict=False)]
        left = max(20, self._width - sum(width + 2 for _, width in _COLUMNS))
        return "  ".join((*pieces, _fitted(cells[-1], left).rstrip()))


def printable(text: str) -> str:
    """What a client chose must not steer, or colour, the operator's terminal."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)


def default_form() -> OutputForm:
    """Pretty for people, JSON for programs."""
    return OutputForm.PRETTY if sys.stdout.isatty() else OutputForm.JSON


def _cells(item: Item) -> list[str]:
    _, _, record, name = item
    headers = dict(record.headers)
    client_id = (headers.get(HEADER_CLIENT_ID) or b"").decode(errors="replace")
    qos = (headers.get(HEADER_QOS) or b"1").decode(errors="replace")
    texts = (time_text(record.timestamp) or "", qos, client_id, name.decode(errors="replace"), _payload(record.value))
    return [printable(text) for text in texts]


def _payload(value: bytes | None) -> str:
    if value is None:
        return "(null)"
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"({len(value)} bytes) {value[:64].hex(' ')}"


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"


class ProgressBar:
    """On standard error; nothing when that is no terminal."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, at="", records="0") if bar is not None else None

    def show(self, progress: ReplayProgress) -> None:
        """Where it is now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                total=progress.total,
                completed=progress.done,
                at=time_text(progress.time_ms) if progress.time_ms else "",
                records=f"{progress.records:,}",
            )


@contextmanager
def progress_bar(wanted: bool) -> Iterator[ProgressBar]:
    """A bar with the position in time, how much is done and how long it will take."""
    if not wanted or not sys.stderr.isatty():
        yield ProgressBar(None)
        return
    columns = (
        TextColumn("{task.fields[at]}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[records]} records"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield ProgressBar(bar)
