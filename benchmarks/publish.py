"""Putting a report between the marks of docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path

from benchmarks.processes import BenchmarkError
from benchmarks.report import Document, markdown

BEGIN = "<!-- results: written by `--publish` -->"
END = "<!-- end of results -->"


def publish(document: Document, path: Path) -> None:
    """Replace what stands between the marks. Raises BenchmarkError when they are not there."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchmarkError(f"{path.name} has no place for results: it needs the lines {BEGIN} and {END}")
    path.write_text(f"{before}{begin}\n\n{markdown(document)}\n{end}{after}", encoding="utf-8")
