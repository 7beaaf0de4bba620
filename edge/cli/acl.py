"""`headwater acl`: one rule set for every edge, instead of the `[[acl]]` tables in their files."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from bridge.control import Held
from edge.access.acl import load_rules
from edge.cli.console import ConfigOption, JsonOption, KafkaOption, cluster, output, print_json
from edge.cli.control import operator
from edge.node.http_state import time_text
from schemas.control import ACL_KEY, AclRules
from schemas.errors import ConfigurationError

app = typer.Typer(help="Say who may do what, on every edge.", no_args_is_help=True)


@app.command("apply")
def apply_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML with [[acl]] tables; an edge's file will do.")],
    kafka: KafkaOption = None,
    config: ConfigOption = None,
) -> None:
    """Put the rules of a file into force on every edge, within 2 s, instead of what was in force."""
    rules = rules_from_file(file)

    async def apply() -> int:
        async with operator(cluster(kafka, config)) as who:
            return await who.put("acl_apply", AclRules(rules, who.name), rules=len(rules))

    revision = asyncio.run(apply())
    output().print(f"{len(rules)} rules are in force, revision {revision}")


@app.command("show")
def show_command(kafka: KafkaOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the rules that every edge has from Kafka."""

    async def read() -> tuple[AclRules, Held] | None:
        async with operator(cluster(kafka, config)) as who:
            return who.control.view.acl()

    found = asyncio.run(read())
    if found is None:
        if as_json:
            print_json(None)
        else:
            output().print("no rules are in Kafka: each edge follows the [[acl]] tables of its file")
        return
    entry, held = found
    at = time_text(held.at_ms / 1000)
    if as_json:
        told = {"revision": held.revision, "applied_at": at, "created_by": entry.created_by, "rules": entry.rules}
        print_json(told)
    else:
        output().print(f"revision {held.revision}, applied at {at} by {entry.created_by}", markup=False)
        output().print(_table(entry.rules))


@app.command("reset")
def reset_command(kafka: KafkaOption = None, config: ConfigOption = None) -> None:
    """Take the rules out of Kafka: each edge follows its file again."""

    async def reset() -> None:
        async with operator(cluster(kafka, config)) as who:
            await who.remove("acl_reset", ACL_KEY)

    asyncio.run(reset())
    output().print("each edge follows the [[acl]] tables of its file again")


def rules_from_file(file: Path) -> tuple[dict[str, Any], ...]:
    """The `[[acl]]` tables of a TOML file, each checked. Raises ConfigurationError."""
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8")).get("acl")
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: no valid TOML: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise ConfigurationError(f"{file}: has no [[acl]], so nobody could do anything; add a rule")
    try:
        load_rules(rows)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from None
    return tuple(rows)


def _table(rules: tuple[dict[str, Any], ...]) -> Table:
    columns = ("permit", "action", "filter", "user", "client_id")
    table = Table("", *columns)
    for number, rule in enumerate(rules, start=1):
        table.add_row(str(number), *(escape(str(rule.get(column, ""))) for column in columns))
    return table
