"""The console script `headwater`: commands are functions of this package's modules, registered here."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from edge.cli import (
    acl,
    auto_subscriptions,
    bans,
    demo,
    doctor,
    edge,
    get,
    kafka,
    nodes,
    passwd,
    replay,
    spark,
    tail,
    tokens,
    topics,
    up,
)
from schemas.errors import HeadwaterError

app = typer.Typer(
    name="headwater",
    help="An MQTT broker whose backbone is Apache Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(up.run)
app.command("demo")(demo.run)
app.command("edge")(edge.run)
app.command("kafka")(kafka.run)
app.command("passwd")(passwd.run)
app.command("doctor")(doctor.run)
app.command("replay")(replay.run)
app.command("tail")(tail.run)
app.command("get")(get.run)
app.add_typer(topics.app, name="topics")
app.add_typer(nodes.app, name="nodes")
app.add_typer(bans.app, name="bans")
app.add_typer(acl.app, name="acl")
app.add_typer(auto_subscriptions.app, name="auto-subscriptions")
app.add_typer(tokens.app, name="tokens")
app.add_typer(spark.app, name="spark")


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"headwater {version('headwater')}")
        except PackageNotFoundError:
            typer.echo("headwater (not installed)")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """An MQTT broker whose backbone is Apache Kafka."""


def main() -> None:
    """Run the command line. What an operator can put right is one line on standard error, never a traceback."""
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # our own line says it; `edge` sets up logging
    try:
        app()
    except (HeadwaterError, TimeoutError) as error:
        sys.stderr.write(f"headwater: {error or 'no answer in time'}\n")
        sys.exit(1)
    except BrokenPipeError:  # `headwater nodes | head`
        sys.stderr.close()
        sys.exit(1)


if __name__ == "__main__":
    main()
