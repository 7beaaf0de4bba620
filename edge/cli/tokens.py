"""`headwater tokens`: who may use the HTTP API. A running edge takes a change of its file over within a second."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from edge.access.api_tokens import ROLES, add_token, list_tokens, remove_token
from edge.cli.console import JsonOption, output, print_json
from schemas.errors import ConfigurationError

app = typer.Typer(help="Make and revoke tokens of the HTTP API.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file that http.tokens names.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is, as audit records show it.")]


@app.command("add")
def add_command(
    file: FileArgument,
    name: NameArgument,
    role: Annotated[str, typer.Option(help=f"{', '.join(ROLES)}: each may do what those before it may.")] = ROLES[0],
) -> None:
    """Make a token and print it, this once: the file has only its digest. A token of the same name is replaced."""
    typer.echo(add_token(file, name, role))


@app.command("remove")
def remove_command(file: FileArgument, name: NameArgument) -> None:
    """Revoke a token."""
    if not remove_token(file, name):
        raise ConfigurationError(f"{file} has no token {name!r}")
    output().print(f"{name} is out of {file}", markup=False)


@app.command("list")
def list_command(file: FileArgument, as_json: JsonOption = False) -> None:
    """Show names and roles."""
    tokens = list_tokens(file)
    if as_json:
        print_json([{"name": token.name, "role": token.role} for token in tokens])
        return
    table = Table("name", "role")
    for token in tokens:
        table.add_row(token.name, token.role)
    output().print(table)
