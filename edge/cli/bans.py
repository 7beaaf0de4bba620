"""`headwater bans`: who is shut out, on every edge, and for how long."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Annotated

import typer
from rich.table import Table

from edge.cli.console import ConfigOption, JsonOption, KafkaOption, cluster, output, print_json
from edge.cli.control import operator
from edge.node.http_state import ban as told
from schemas.control import Ban
from schemas.errors import ConfigurationError

app = typer.Typer(help="Shut clients out, on every edge.", no_args_is_help=True)

_DURATION = re.compile(r"(\d{1,9})([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

KindArgument = Annotated[str, typer.Argument(metavar="KIND", help="client_id, user or address.")]
ValueArgument = Annotated[
    str, typer.Argument(metavar="VALUE", help="The client id, the user name, or an address or network (192.0.2.0/24).")
]


@app.command("add")
def add_command(
    kind: KindArgument,
    value: ValueArgument,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="30m", help="How long (s, m, h, d); else until it is removed.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever reads the list.")] = "",
    kafka: KafkaOption = None,
    config: ConfigOption = None,
) -> None:
    """Close a client's connections within 2 s and let it in no more. A ban of the same value is replaced."""
    expires_at = time.time() + seconds(duration) if duration is not None else None

    async def add() -> Ban:
        async with operator(cluster(kafka, config)) as who:
            ban = Ban.of(kind, value, expires_at, reason, who.name)
            client_id = ban.value if kind == "client_id" else ""
            await who.put("ban", ban, client_id, ban=ban.key, expires_at=expires_at)
            return ban

    ban = asyncio.run(add())
    output().print(f"{ban.kind} {ban.value} is banned {_until(ban)}", markup=False)


@app.command("remove")
def remove_command(
    kind: KindArgument, value: ValueArgument, kafka: KafkaOption = None, config: ConfigOption = None
) -> None:
    """Let a client in again."""
    ban = Ban.of(kind, value)

    async def remove() -> None:
        async with operator(cluster(kafka, config)) as who:
            if who.control.view.get(ban.key) is None:
                raise ConfigurationError(f"there is no ban of {kind} {ban.value}; `headwater bans list` shows them")
            await who.remove("unban", ban.key, ban.value if kind == "client_id" else "", ban=ban.key)

    asyncio.run(remove())
    output().print(f"{ban.kind} {ban.value} is banned no more", markup=False)


@app.command("list")
def list_command(kafka: KafkaOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the bans in force."""

    async def read() -> list[Ban]:
        async with operator(cluster(kafka, config)) as who:
            now = time.time()
            return sorted((ban for ban in who.control.view.bans() if not ban.is_over(now)), key=lambda ban: ban.key)

    bans = asyncio.run(read())
    if as_json:
        print_json([told(ban) for ban in bans])
    elif bans:
        output().print(_table(bans))
    else:
        output().print("nobody is banned")


def seconds(duration: str) -> int:
    """The seconds of a duration such as 90s, 30m, 12h or 7d. Raises ConfigurationError."""
    found = _DURATION.fullmatch(duration)
    if found is None or int(found[1]) == 0:
        raise ConfigurationError(f"--for {duration}: write a number and s, m, h or d, as in 30m")
    return int(found[1]) * _UNITS_S[found[2]]


def _table(bans: list[Ban]) -> Table:
    table = Table("kind", "value", "until", "reason", "by")
    for ban in bans:
        table.add_row(ban.kind, _plain(ban.value), _until(ban), _plain(ban.reason), _plain(ban.created_by))
    return table


def _plain(text: str) -> str:
    """What a client chose must not colour, or steer, the operator's terminal."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text).replace("[", "\\[")


def _until(ban: Ban) -> str:
    return f"until {told(ban)['expires_at']}" if ban.expires_at is not None else "until it is removed"
