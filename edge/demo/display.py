"""What a person sees on the terminal: a line that moves, or plain lines where there is no terminal, and the table."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from edge.demo.report import Report


class Display(Protocol):
    """Where the run reports."""

    def say(self, text: str) -> None:
        """One line."""

    def progress(self, what: str, done: float, total: float, figures: str) -> None:
        """How far a phase is; phases are told apart by ``what``."""

    def finish(self, report: Report) -> None:
        """The end."""

    def close(self) -> None:
        """Give the terminal back; idempotent."""


class PlainDisplay:
    """Lines, for logs: a phase's progress every five seconds of it or at each tenth, and its end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, int] = {}

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def progress(self, what: str, done: float, total: float, figures: str) -> None:
        tenth = int(done / total * 10) if total else 10
        if self._shown.get(what) != tenth:
            self._shown[what] = tenth
            self.say(f"{what} {min(100, tenth * 10)} %  {figures}")

    def finish(self, report: Report) -> None:
        self._console.print(table_of(report))

    def close(self) -> None:
        """Nothing to give back."""


class RichDisplay(PlainDisplay):
    """Bars that move."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bars = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._bars.start()

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False)

    def progress(self, what: str, done: float, total: float, figures: str) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, figures=figures)
        self._bars.update(self._tasks[what], completed=done, total=total, figures=figures)

    def finish(self, report: Report) -> None:
        self.close()
        super().finish(report)

    def close(self) -> None:
        self._bars.stop()


def display_for(console: Console) -> Display:
    """Bars on a terminal, lines elsewhere."""
    return RichDisplay(console) if console.is_terminal else PlainDisplay(console)


def table_of(report: Report) -> Table:
    """The table at the end."""
    table = Table(show_header=False, title="Headwater demo", title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, value in report.rows():
        style = None
        if name in ("lost", "duplicated", "out of order"):
            style = "green" if value == "0" else "bold red"
        table.add_row(name, value, style=style)
    return table
