"""`headwater spark`: the analytics jobs. Their code is a package of its own that edges never import: it is run."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated

import typer

from schemas.errors import ConfigurationError

app = typer.Typer(help="Run the Spark jobs (needs headwater\\[spark] and a JDK 17 or 21).", no_args_is_help=True)
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("run", context_settings=_PASS_ON)
def run_command(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(help="A job's name (headwater spark list), or a file with your own.")
    ] = "--help",
) -> None:
    """Run a job until it is told to stop: `headwater spark run device_stats --window 1m`; --help lists its options."""
    _become(job, *context.args)


@app.command("list")
def list_command() -> None:
    """Name the jobs and say what each does."""
    _become("--list")


@app.command("checkpoint", context_settings=_PASS_ON)
def checkpoint_command(context: typer.Context) -> None:
    """Say where a checkpoint stands and how a changed job goes on from there: `headwater spark checkpoint DIR`."""
    _become("--checkpoint-info", *context.args)


def _become(*arguments: str) -> None:
    """Replace this process by the job's: signals, output and exit code need nobody to pass them on."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigurationError("Spark jobs need pyspark: pip install 'headwater[spark]'")
    sys.stdout.flush()
    # -P: the installed package, not what happens to lie in the working folder
    command = [sys.executable, "-P", "-m", "spark_streaming.submit", *arguments]
    os.execv(sys.executable, command)  # noqa: S606
