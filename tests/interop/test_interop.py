"""Clients of five languages against two edges, and against mosquitto, which holds the scripts to the protocol.

What is run and what a script must do: README.md beside this file. A check is one test; a script runs once per server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from support.interop import Program, Results, Servers, edge_servers, mosquitto_servers, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first one builds

EVERY_VERSION = ("connect", "qos0", "qos1", "qos2", "retained", "will", "session", "websocket", "tls")
VERSION_5 = (*EVERY_VERSION, "shared", "properties")
PIP = ("{python}", "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes")
NPM = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
GO = ("go", "build", "-o", "bin/", "./paho5", "./paho311")
MAVEN = ("mvn", "-q", "-B", "compiler:compile", "dependency:copy-dependencies", "-DoutputDirectory=lib")
CARGO = ("cargo", "install", "--quiet", "--locked", "--debug", "--path=.", "--root=.", "--target-dir=../rust-target")
JAVA = ("java", "-Xmx256m", "-cp", "target/classes:lib/*", "Interop")
PYTHON = ("python", (*PIP, "--target=lib", "-r", "requirements.txt"))


@dataclass(frozen=True)
class Client:
    """A client library, the programs that its script needs, and what it does not offer."""

    program: Program
    versions: tuple[int, ...]
    peers: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def checks(self) -> list[tuple[str, int]]:
        """Every line that its script must print."""
        return [
            (check, version)
            for version in self.versions
            for check in (VERSION_5 if version == 5 else EVERY_VERSION)
            if check not in self.lacks
        ]


CLIENTS = {
    "paho-mqtt": Client(Program(*PYTHON, ("{python}", "interop_paho.py")), (3, 4, 5)),
    "aiomqtt": Client(Program(*PYTHON, ("{python}", "interop_aiomqtt.py")), (4, 5)),
    "mosquitto-tools": Client(
        Program(*PYTHON, ("{python}", "interop_mosquitto.py")),
        (3, 4, 5),
        ("mosquitto_pub", "mosquitto_sub"),
        lacks=("websocket",),
    ),
    "mqttjs": Client(Program("node", NPM, ("node", "interop.mjs")), (3, 4, 5), ("node", "npm")),
    "paho.golang": Client(Program("go", GO, ("bin/paho5",)), (5,), ("go",)),
    "paho.mqtt.golang": Client(Program("go", GO, ("bin/paho311",)), (4,), ("go",)),
    "rumqttc": Client(Program("rust", CARGO, ("bin/interop",)), (4, 5), ("cargo",)),
    "hivemq": Client(Program("java", MAVEN, JAVA), (4, 5), ("javac", "mvn")),
}
CHECKS = [
    pytest.param(name, check, version, marks=pytest.mark.peers(*client.peers), id=f"{name}-v{version}-{check}")
    for name, client in CLIENTS.items()
    for check, version in client.checks
]
Run = Callable[[str], Results]


def runner(servers: Servers) -> Run:
    """Runs a client's script the first time it is asked for."""
    done: dict[str, Results] = {}

    def results(name: str) -> Results:
        if name not in done:
            done[name] = run(CLIENTS[name].program, servers)
        return done[name]

    return results


@pytest.fixture(scope="module")
def on_mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with mosquitto_servers(tmp_path_factory.mktemp("interop_mosquitto")) as servers:
        yield runner(servers)


@pytest.fixture(scope="module")
def on_edges(tmp_path_factory: pytest.TempPathFactory, kafka_bootstrap: str) -> Iterator[Run]:
    with edge_servers(tmp_path_factory.mktemp("interop_edges"), kafka_bootstrap) as servers:
        yield runner(servers)


def assert_passed(results: Results, check: str, version: int) -> None:
    line = results.lines.get((check, version))
    assert line is not None, f"the script said nothing of {check} in version {version}:\n{results.stderr[-4000:]}"
    assert line["ok"], f"{line['detail']}\n{results.stderr[-4000:]}"


@pytest.mark.peers("mosquitto")
@pytest.mark.parametrize(("client", "check", "version"), CHECKS)
def test_mosquitto(on_mosquitto: Run, client: str, check: str, version: int) -> None:
    assert_passed(on_mosquitto(client), check, version)


@pytest.mark.parametrize(("client", "check", "version"), CHECKS)
def test_two_edges(on_edges: Run, client: str, check: str, version: int) -> None:
    assert_passed(on_edges(client), check, version)


@pytest.mark.peers("mosquitto")
@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=pytest.mark.peers(*CLIENTS[name].peers)) for name in CLIENTS]
)
def test_a_script_runs_every_check_that_its_client_has_and_no_other(on_mosquitto: Run, client: str) -> None:
    results = on_mosquitto(client)
    assert set(results.lines) == set(CLIENTS[client].checks)
    assert results.code == 0
