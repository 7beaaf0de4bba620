"""examples/README.md, run as it stands: what a newcomer pastes works, and shows what the page says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TEXT = (EXAMPLES / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(sh|text)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"setup", "docker"}  # what is installed already; what needs a container engine
START = "headwater up --edges 2 --dev --kafka-port 9092"


def consecutive_ports() -> int:
    """The first of two that nobody has, below the ephemeral ones."""
    for port in range(20_000 + os.getpid() % 5_000, 30_000, 2):
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports")


def script() -> tuple[str, list[str]]:
    """The blocks in one, and the lines that the page shows as their output."""
    commands, shown = ["set -eu"], []
    for language, kind, body in BLOCK.findall(TEXT):
        if language == "text":
            shown += body.strip().splitlines()
        elif kind.strip() not in ELSEWHERE:
            commands.append(body)
    return "\n".join(commands), shown


@pytest.mark.timeout(450)
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.peers("mosquitto_pub", "mosquitto_sub")
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    text, shown = script()
    mqtt, kafka = consecutive_ports(), consecutive_ports() + 2
    assert START in text
    text = text.replace(START, f"{START} --mqtt-port {mqtt} --http-port 0")
    for default, free in (("9092", kafka), ("1883", mqtt), ("1884", mqtt + 1)):
        text = text.replace(default, str(free))
    shutil.copy(EXAMPLES / "fever.py", tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
    log = tmp_path / "tutorial.log"
    with log.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            start_new_session=True,
        )
        try:
            code: int | str = shell.wait(400)
        except subprocess.TimeoutExpired:
            code = "none after 400 s"
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    said = "\n".join(f"{each.name}: {each.read_text()}" for each in sorted(tmp_path.glob("*.log")))
    assert code in (0, 143), f"exit code {code}\n{said}"
    missing = [line for line in shown if line not in log.read_text()]
    assert not missing, f"the tutorial shows what does not come: {missing}\n{said}"
