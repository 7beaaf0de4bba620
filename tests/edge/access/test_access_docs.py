"""docs/security.md says what the code does: every limit with its default, and only tests that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from edge.access.limits import Limits

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\|[^|]*\| `limits\.(\w+)` \| ([^|]*) \|", TEXT, re.MULTILINE))


def test_every_limit_is_documented_once() -> None:
    assert set(ROWS) == {item.name for item in fields(Limits)}
    assert len(ROWS) == TEXT.count("| `limits.")


@pytest.mark.parametrize("name", [item.name for item in fields(Limits)])
def test_the_documented_default_is_the_default(name: str) -> None:
    assert ROWS[name].strip() == str(getattr(Limits(), name))


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    existing: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        existing |= set(re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8")))
    assert len(named) > 30
    assert named <= existing, named - existing
