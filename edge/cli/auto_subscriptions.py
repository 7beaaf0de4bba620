"""`headwater auto-subscriptions`: one list for every edge, instead of the `[[auto_subscriptions]]` in their files."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.control import Held
from edge.cli.console import ConfigOption, JsonOption, KafkaOption, cluster, output, print_json
from edge.cli.control import operator
from edge.node.http_state import time_text
from edge.rules.auto_subscriptions import load_auto_subscriptions
from schemas.control import AUTO_KEY, AutoSubscriptionTables
from schemas.errors import ConfigurationError

app = typer.Typer(help="Say what every client is subscribed to, on every edge.", no_args_is_help=True)


@app.command("apply")
def apply_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML with [[auto_subscriptions]] tables.")],
    kafka: KafkaOption = None,
    config: ConfigOption = None,
) -> None:
    """Put the list of a file into force on every edge, within 2 s, for clients that connect from then on."""
    tables = tables_from_file(file)

    async def apply() -> int:
        async with operator(cluster(kafka, config)) as who:
            return await who.put(
                "auto_subscriptions_apply", AutoSubscriptionTables(tables, who.name), rules=len(tables)
            )

    revision = asyncio.run(apply())
    output().print(f"{len(tables)} auto-subscriptions are in force, revision {revision}")


@app.command("show")
def show_command(kafka: KafkaOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the list that every edge has from Kafka."""

    async def read() -> Held | None:
        async with operator(cluster(kafka, config)) as who:
            return who.control.view.get(AUTO_KEY)

    held = asyncio.run(read())
    if held is None or not isinstance(held.entry, AutoSubscriptionTables):
        if as_json:
            print_json(None)
        else:
            output().print("none are in Kafka: each edge follows the [[auto_subscriptions]] of its file", markup=False)
        return
    entry, at = held.entry, time_text(held.at_ms / 1000)
    if as_json:
        told = {"revision": held.revision, "applied_at": at, "created_by": entry.created_by}
        print_json(told | {"auto_subscriptions": entry.tables})
        return
    output().print(f"revision {held.revision}, applied at {at} by {entry.created_by}", markup=False)
    for table in entry.tables:
        output().print(", ".join(f"{key} = {value}" for key, value in table.items()), markup=False)


@app.command("reset")
def reset_command(kafka: KafkaOption = None, config: ConfigOption = None) -> None:
    """Take the list out of Kafka: each edge follows its file again."""

    async def reset() -> None:
        async with operator(cluster(kafka, config)) as who:
            await who.remove("auto_subscriptions_reset", AUTO_KEY)

    asyncio.run(reset())
    output().print("each edge follows the [[auto_subscriptions]] of its file again", markup=False)


def tables_from_file(file: Path) -> tuple[dict[str, Any], ...]:
    """The `[[auto_subscriptions]]` tables of a TOML file, each checked. Raises ConfigurationError."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("auto_subscriptions")
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: no valid TOML: {error}") from None
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigurationError(f"{file}: has no [[auto_subscriptions]]; reset takes the list out of Kafka")
    try:
        load_auto_subscriptions(tables)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from None
    return tuple(tables)
