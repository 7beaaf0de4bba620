"""Tests against programs of others: left out and told of where one is missing, never in CI."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.peers import DEBIAN_PACKAGES, NOT_IN_EVERY_CI, is_here, wanted_by, without_absent_peers


class Item:
    """As much of a `pytest.Item` as `support.peers` looks at."""

    nodeid = "test"

    def __init__(self, *programs: str, fixtures: tuple[str, ...] = ()) -> None:
        self.fixturenames = fixtures
        self._programs = programs

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        assert name == "peers"
        return [pytest.mark.peers(*self._programs).mark] if self._programs else []


ALONE, WITH_KCAT, WITH_MOSQUITTO = Item(), Item("kcat", "mosquitto_pub"), Item(fixtures=("mosquitto",))
ITEMS = [ALONE, WITH_KCAT, WITH_MOSQUITTO]


def left(environ: dict[str, str], absent: set[str]) -> tuple[list[Item], list[Item], str]:
    return without_absent_peers(ITEMS, environ, lambda program: program not in absent)  # type: ignore[arg-type,return-value]


def test_all_run_where_all_is_there() -> None:
    assert left({}, set()) == (ITEMS, [], "")
    assert left({}, {"chromium"}) == (ITEMS, [], "")


def test_what_needs_a_missing_program_is_left_out_and_told() -> None:
    kept, out, said = left({}, {"kcat", "mosquitto"})
    assert (kept, out) == ([ALONE], [WITH_KCAT, WITH_MOSQUITTO])
    assert said == "2 tests against kcat, mosquitto were left out; to run them: apt-get install kcat mosquitto"


def test_nothing_is_left_out_in_ci() -> None:
    assert left({"CI": "true"}, set(DEBIAN_PACKAGES)) == (ITEMS, [], "")


def test_what_ci_does_not_install_is_left_out_there_too() -> None:
    items = [ALONE, WITH_KCAT, Item("go")]
    kept, out, said = without_absent_peers(items, {"CI": "true"}, lambda _: False)  # type: ignore[arg-type]
    assert (kept, out) == (items[:2], items[2:])
    assert said == "1 tests against go were left out; to run them: apt-get install golang-go"
    assert DEBIAN_PACKAGES.keys() >= NOT_IN_EVERY_CI


@pytest.mark.parametrize(("version", "is_new"), [("1.19.8", False), ("1.24.0", True), ("1.26.8", True), ("", False)])
def test_a_program_that_is_too_old_is_not_there(
    version: str, is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "go"
    program.write_text(f"#!/bin/sh\necho go version go{version} linux/amd64\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert is_here("go") is is_new


def test_an_unknown_program_is_a_mistake_in_the_test() -> None:
    with pytest.raises(AssertionError, match="unknown peers"):
        wanted_by(Item("mosquito"))  # type: ignore[arg-type]
