"""The jobs that there are: every module of `spark_streaming/jobs` is one, its docstring's first line says what it does.

A file of one's own is a job as well. A job module has `main(arguments) -> exit code`, ends with
`sys.exit(run_main(lambda: main(sys.argv[1:])))` under `__main__`, and may have `read_options(arguments)`, which is
called before a JVM is started, so that a wrong option is answered at once.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import ConfigurationError

JOBS_FOLDER = Path(__file__).resolve().parent / "jobs"


def job_names() -> tuple[str, ...]:
    """The jobs that come with Headwater."""
    return tuple(sorted(file.stem for file in JOBS_FOLDER.glob("*.py") if not file.stem.startswith("_")))


def descriptions() -> dict[str, str]:
    """What each job does, in a line; nothing is imported for it."""
    found = {}
    for name in job_names():
        text = ast.get_docstring(ast.parse((JOBS_FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
        found[name] = text.split("\n", 1)[0]
    return found


def job_file(job: str) -> Path:
    """The file of a job: one of ours by its name, or one's own by its path. Raises ConfigurationError."""
    if job in job_names():
        return JOBS_FOLDER / f"{job}.py"
    path = Path(job)
    if path.suffix == ".py" and path.is_file():
        return path.resolve()
    raise ConfigurationError(f"no job {job!r}: there is {', '.join(job_names())}; or name a file with a job, my_job.py")


def check_options(job: str, arguments: Sequence[str]) -> None:
    """Let a job read its options, without a JVM. Raises ConfigurationError; SystemExit after --help and usage."""
    file = job_file(job)
    spec = importlib.util.spec_from_file_location(f"_headwater_job_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if read := getattr(module, "read_options", None):
        read(arguments)
