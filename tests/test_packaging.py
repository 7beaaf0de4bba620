"""The wheel is what it should be, and the repository says nothing of the machine it was written on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import bridge
import edge
import schemas
import spark_streaming

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = {"schemas", "bridge", "edge", "spark_streaming"}
LOCKS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "requirements").glob("*.lock")}


def files_of_the_tree() -> set[str]:
    found: set[str] = set()
    for package in PACKAGES:
        found |= {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    return found


def committed_files() -> list[Path]:
    """What git tracks; every file where this is no clone."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"git ls-files: {done.stderr}")
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this tree, built as `make` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_four_packages_whole_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in inside} == PACKAGES
    assert inside == files_of_the_tree()


def test_the_wheel_has_what_is_read_at_run_time(wheel: zipfile.ZipFile) -> None:
    inside = set(wheel.namelist())
    assert {
        "bridge/embedded_kafka/jars.lock",
        "spark_streaming/connector.lock",
        "spark_streaming/log4j2.properties",
        "edge/page/static/index.html",
        "edge/page/static/app.js",
        "edge/page/static/mqtt.js",
        *(f"{package}/py.typed" for package in PACKAGES),
    } <= inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)


def test_the_wheel_has_the_console_script(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "headwater = edge.cli.app:main" in wheel.read(entry_points).decode()


@pytest.mark.parametrize("package", [bridge, edge, schemas, spark_streaming], ids=lambda package: package.__name__)
def test_make_test_tests_the_wheel(package: object) -> None:
    """`make test` sets HEADWATER_TESTS_WHEEL: then nothing comes from the working tree."""
    file = getattr(package, "__file__", None)
    assert file is not None
    if os.environ.get("HEADWATER_TESTS_WHEEL"):
        assert Path(file).is_relative_to(sysconfig.get_path("purelib"))


def test_docker_is_no_package() -> None:
    """`docker/__init__.py` would shadow the SDK that testcontainers imports."""
    assert (ROOT / "docker" / "compose.yaml").is_file()
    assert not list((ROOT / "docker").rglob("__init__.py"))


MACHINE_WORDS = {
    "a path of one machine": r"(?<![\w./$}-])/(?:work/|root/|home/\w+/|opt/hw|opt/wheels|Users/)",
    "an address of a registry": r"files\.pythonhosted\.org|pypi\.org/simple|registry\.npmjs\.org|crates\.io/api",
    "a tool of one workplace": r"\bfarm-\w+|issues show \d|heavy\.lock",
}


@pytest.mark.parametrize("what", MACHINE_WORDS)
def test_no_committed_file_tells_of_the_machine(what: str) -> None:
    pattern = re.compile(MACHINE_WORDS[what])
    found = []
    for path in committed_files():
        if path == Path(__file__) or b"\0" in (content := path.read_bytes()):
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


def versions(lock: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", LOCKS[lock], re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize("lock", sorted(LOCKS))
def test_every_lock_is_hashed_and_agrees_with_the_others(lock: str) -> None:
    pinned, all_of_them = versions(lock), versions("dev.lock")
    assert pinned
    assert all(all_of_them.get(name) == version for name, version in pinned.items())
    for requirement in re.split(r"\n(?=\S)", LOCKS[lock]):
        if "==" in requirement.splitlines()[0]:
            assert "--hash=sha256:" in requirement, requirement.splitlines()[0]


def test_the_locks_hold_everything_that_pyproject_asks_for() -> None:
    name_of = re.compile(r"[A-Za-z0-9._-]+")

    def names(requirements: list[object]) -> set[str]:
        found = {match[0] for text in requirements if isinstance(text, str) and (match := name_of.match(text))}
        return {name.lower().replace("_", "-") for name in found}

    extras, groups = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
    base = names(PROJECT["project"]["dependencies"]) | names(extras["jwt"])
    assert base <= versions("edge.lock").keys()
    assert base | names(extras["spark"]) <= versions("spark.lock").keys()
    assert base | names(extras["spark"]) | names(extras["demo"]) <= versions("demo.lock").keys()
    assert names(groups["build"]) <= versions("build.lock").keys()
    assert names(groups["test"]) | names(groups["lint"]) <= versions("dev.lock").keys()


def test_every_import_contract_is_kept() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
