"""`headwater passwd`: users of a password file or a SCRAM file, added, changed and removed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from edge.access.passwords import add_user, remove_user
from edge.access.scram import ITERATIONS, ITERATIONS_MAX, ITERATIONS_MIN
from edge.access.scram_file import add_scram_user, remove_scram_user
from edge.cli.console import output
from schemas.errors import ConfigurationError


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of users; made where it is missing.")],
    user: Annotated[str, typer.Argument(metavar="USER")],
    delete: Annotated[bool, typer.Option("--delete", help="Take the user out of the file.")] = False,
    scram: Annotated[bool, typer.Option("--scram", help="The file is one of [authentication.scram].")] = False,
    iterations: Annotated[
        int,
        typer.Option(
            min=ITERATIONS_MIN,
            max=ITERATIONS_MAX,
            help="With --scram: a client's work at each connect; fewer for microcontrollers with random secrets.",
        ),
    ] = ITERATIONS,
) -> None:
    """Add a user, or change the password; a running edge takes the change over. The password is asked for, or read as
    one line from standard input."""
    if delete:
        if not (remove_scram_user if scram else remove_user)(file, user):
            raise ConfigurationError(f"{file} has no user {user!r}")
        output().print(f"{user} is out of {file}")
        return
    password = _ask() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        raise ConfigurationError("an empty password is refused")
    if scram:
        user = add_scram_user(file, user, password, iterations)
    else:
        add_user(file, user, password)
    output().print(f"{user} is in {file}")


def _ask() -> str:
    answer: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return answer
