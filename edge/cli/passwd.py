"""`headwater passwd`: users of a password file, added, changed and removed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from edge.access.passwords import add_user, remove_user
from edge.cli.console import output
from schemas.errors import ConfigurationError


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file; made where it is missing.")],
    user: Annotated[str, typer.Argument(metavar="USER")],
    delete: Annotated[bool, typer.Option("--delete", help="Take the user out of the file.")] = False,
) -> None:
    """Add a user, or change the password; a running edge takes the change over. The password is asked for, or read as
    one line from standard input."""
    if delete:
        if not remove_user(file, user):
            raise ConfigurationError(f"{file} has no user {user!r}")
        output().print(f"{user} is out of {file}")
        return
    password = _ask() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        raise ConfigurationError("an empty password is refused")
    add_user(file, user, password)
    output().print(f"{user} is in {file}")


def _ask() -> str:
    answer: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return answer
