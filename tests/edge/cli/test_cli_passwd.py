"""`headwater passwd --scram`; the argon2id file is in test_cli.py."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from edge.access.scram_file import parse_scram_file
from edge.cli.app import app


def test_headwater_passwd_scram(tmp_path: Path) -> None:
    file = tmp_path / "scram"
    command = ["passwd", str(file), "ann", "--scram"]
    made = CliRunner().invoke(app, [*command, "--iterations", "4096"], input="pencil\n")
    assert made.exit_code == 0, made.output
    [keys] = parse_scram_file(file.read_text()).keys.values()
    assert keys.iterations == 4_096
    assert CliRunner().invoke(app, command, input="pencil\n").exit_code == 0
    [keys] = parse_scram_file(file.read_text()).keys.values()
    assert keys.iterations == 600_000
    assert CliRunner().invoke(app, [*command, "--iterations", "1000"], input="pencil\n").exit_code == 2
    assert CliRunner().invoke(app, [*command, "--delete"]).exit_code == 0
    assert parse_scram_file(file.read_text()).keys == {}
    assert CliRunner().invoke(app, [*command, "--delete"]).exit_code != 0
