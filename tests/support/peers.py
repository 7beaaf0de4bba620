"""Programs of others that some tests need beside them: `@pytest.mark.peers("kcat", "mosquitto_pub")`.

A machine may lack them: `make test` must work where nothing was installed by hand. There the tests of a missing program
are left out, and the last lines say which and why. CI=true leaves none out: there they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping

import pytest

DEBIAN_PACKAGES = {
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
_OTHER_NAMES = {"chromium": ("chromium-browser", "google-chrome")}
_SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin"  # Debian puts mosquitto where an ordinary user's PATH does not look


def is_here(program: str) -> bool:
    """The program, or another of its names, can be started."""
    names = (program, *_OTHER_NAMES.get(program, ()))
    return any(shutil.which(name) or shutil.which(name, path=_SYSTEM_FOLDERS) for name in names)


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
    absent = {program for programs in wanted.values() for program in programs if not there(program)}
    if not absent or environ.get("CI") == "true":
        return items, [], ""
    left_out = [item for item in items if wanted[id(item)] & absent]
    packages = " ".join(sorted({DEBIAN_PACKAGES[program] for program in absent}))
    names = ", ".join(sorted(absent))
    said = f"{len(left_out)} tests against {names} were left out; to run them: apt-get install {packages}"
    return [item for item in items if not wanted[id(item)] & absent], left_out, said
