"""`headwater spark`: what it hands to the package of the jobs, and that it becomes that process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from edge.cli.app import app
from schemas.errors import ConfigurationError


class Replaced(Exception):
    """Stands for the process that would have been replaced."""


@pytest.fixture
def handed_on(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []

    def execv(path: str, command: list[str]) -> None:
        assert path == command[0] == sys.executable
        calls.append(command[1:])
        raise Replaced

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    return calls


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["run", "device_stats", "--window", "1m", "--json"], ["device_stats", "--window", "1m", "--json"]),
        (["run", "device_stats", "--help"], ["device_stats", "--help"]),
        (["run", "./my_job.py", "--from=-1h"], ["./my_job.py", "--from=-1h"]),
        (["run", "--help"], ["--help"]),
        (["list"], ["--list"]),
        (["checkpoint", "kept/x"], ["--checkpoint-info", "kept/x"]),
    ],
)
def test_options_are_handed_on(handed_on: list[list[str]], given: list[str], expected: list[str]) -> None:
    result = CliRunner().invoke(app, ["spark", *given])
    assert isinstance(result.exception, Replaced), result.output
    assert handed_on == [["-P", "-m", "spark_streaming.submit", *expected]]


def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    result = CliRunner().invoke(app, ["spark", "list"])
    assert isinstance(result.exception, ConfigurationError)
    assert "headwater[spark]" in str(result.exception)


def test_the_exit_code_and_the_words_are_the_jobs() -> None:
    command = [sys.executable, "-m", "edge.cli.app", "spark", "run", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no job 'nonsense': there is anomaly" in done.stderr
