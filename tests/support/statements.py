"""The statement ledger's data: the statements of both specifications, the tests that show them, why some do not apply.

Ids are the specifications' with the version put in: `MQTT5-3.1.2-4`, `MQTT311-3.1.2-4`.
"""

from __future__ import annotations

import ast
import gc
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "conformance"
VERSIONS = {"mqtt5": "MQTT 5.0", "mqtt311": "MQTT 3.1.1"}
_LINE = re.compile(r"MQTT(-\S+) ([SBC]) (.+)")


@dataclass(frozen=True)
class Statement:
    """One normative statement: `binds` is S (server), B (both) or C (client)."""

    statement_id: str
    binds: str
    text: str

    @property
    def section(self) -> str:
        """`3.1` of `MQTT5-3.1.2-4`."""
        numbers = re.findall(r"\d+", self.statement_id.partition("-")[2])
        return ".".join(numbers[:2])


def statements(version: str) -> dict[str, Statement]:
    """`version` is a key of VERSIONS. Raises AssertionError on a line that is none."""
    found: dict[str, Statement] = {}
    for line in (FOLDER / "statements" / f"{version}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line:
            continue
        match = _LINE.fullmatch(line)
        assert match, f"{version}.txt: no statement: {line}"
        statement_id = version.upper() + match[1]
        assert statement_id not in found, f"{version}.txt: {statement_id} twice"
        found[statement_id] = Statement(statement_id, match[2], match[3])
    return found


def not_applicable(version: str) -> dict[str, str]:
    """Why a statement has no test: its id -> the reason."""
    table = tomllib.loads((FOLDER / "statements" / f"{version}_not_applicable.toml").read_text(encoding="utf-8"))
    return dict(table)


@cache
def suite() -> dict[str, list[str]]:
    """Every test, as `v5/test_v5_connect.py::test_name` -> the ids in its `@pytest.mark.statement(...)`.

    Read once per process, and without garbage collections: what one of them destroys may print a traceback, which
    parses source lines itself, and some CPythons cannot parse while they parse (its issue 106905).
    """
    with _no_collection():
        return {
            f"{path.relative_to(FOLDER)}::{function.name}": _marks(function)
            for path in sorted(FOLDER.glob("v*/test_*.py"))
            for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_")
        }


def cited() -> dict[str, list[str]]:
    """Every id that a test cites -> its tests."""
    found: dict[str, list[str]] = {}
    for test, ids in suite().items():
        for statement_id in ids:
            found.setdefault(statement_id, []).append(test)
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The ids of its markers, also of those inside a parametrize."""
    found: list[str] = []
    for decorator in function.decorator_list:
        for call in ast.walk(decorator):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.statement":
                for argument in call.args:
                    assert isinstance(argument, ast.Constant), f"{function.name}: ids are written out"
                    assert isinstance(argument.value, str), f"{function.name}: ids are strings"
                    if argument.value not in found:
                        found.append(argument.value)
    return found
