"""Programs of others that some tests need beside them: `@pytest.mark.peers("kcat", "mosquitto_pub")`.

A machine may lack them: `make test` must work where nothing was installed by hand. There the tests of a missing program
are left out, and the last lines say which and why. CI=true leaves none out: there they fail, unless the program is one
of NOT_IN_EVERY_CI, which .ci/run does not install.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping

import pytest

DEBIAN_PACKAGES = {
    "cargo": "cargo",
    "chromium": "chromium",
    "go": "golang-go",
    "javac": "openjdk-17-jdk-headless",
    "kcat": "kcat",
    "mosquitto": "mosquitto",
    "mosquitto_pub": "mosquitto-clients",
    "mosquitto_sub": "mosquitto-clients",
    "mvn": "maven",
    "node": "nodejs",
    "npm": "npm",
}
NOT_IN_EVERY_CI = {"cargo", "go"}  # Debian 12 has them too old for today's MQTT clients, Debian 13 has not
_OLDEST = {"cargo": ("--version", (1, 78)), "go": ("version", (1, 24))}  # what tests/interop/{rust,go} ask for
_OTHER_NAMES = {"chromium": ("chromium-browser", "google-chrome")}
_SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin"  # Debian puts mosquitto where an ordinary user's PATH does not look


def is_here(program: str) -> bool:
    """The program, or another of its names, can be started."""
    names = (program, *_OTHER_NAMES.get(program, ()))
    paths = [shutil.which(name) or shutil.which(name, path=_SYSTEM_FOLDERS) for name in names]
    return any(path is not None and _is_new_enough(program, path) for path in paths)


def _is_new_enough(program: str, path: str) -> bool:
    """Whether what it says of its version will do; True where any will."""
    if program not in _OLDEST:
        return True
    argument, oldest = _OLDEST[program]
    said = subprocess.run([path, argument], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= oldest


def wanted_by(item: pytest.Item) -> set[str]:
    """The programs that a test names in its `peers` markers; the fixture `mosquitto` is one of them."""
    wanted = {str(program) for marker in item.iter_markers("peers") for program in marker.args}
    assert wanted <= DEBIAN_PACKAGES.keys(), f"{item.nodeid}: unknown peers {sorted(wanted - DEBIAN_PACKAGES.keys())}"
    if "mosquitto" in getattr(item, "fixturenames", ()):
        wanted.add("mosquitto")
    return wanted


def without_absent_peers(
    items: list[pytest.Item], environ: Mapping[str, str] = os.environ, there: Callable[[str], bool] = is_here
) -> tuple[list[pytest.Item], list[pytest.Item], str]:
    """The tests that can run, those that are left out, and what to say of it (empty when none is)."""
    wanted = {id(item): wanted_by(item) for item in items}
    absent = {program for program in set[str]().union(*wanted.values()) if not there(program)}
    if environ.get("CI") == "true":
        absent &= NOT_IN_EVERY_CI
    if not absent:
        return items, [], ""
    left_out = [item for item in items if wanted[id(item)] & absent]
    packages = " ".join(sorted({DEBIAN_PACKAGES[program] for program in absent}))
    names = ", ".join(sorted(absent))
    said = f"{len(left_out)} tests against {names} were left out; to run them: apt-get install {packages}"
    return [item for item in items if not wanted[id(item)] & absent], left_out, said
