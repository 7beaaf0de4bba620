"""The command line: what it prints, its exit codes, and no traceback for an operator's mistake."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from bridge.embedded_kafka import JavaNotFound
from bridge.embedded_kafka.probe import answers_metadata
from bridge.embedded_kafka.server import free_port, is_port_free
from bridge.kafka_log import KafkaLog
from bridge.topics_admin import apply
from edge.cli import doctor
from edge.cli.app import app
from edge.cli.doctor import Finding, State
from edge.cli.edge import check_kafka_topics
from edge.cli.kafka_options import client_options
from edge.node.config import EdgeConfig, KafkaConfig, make_config
from schemas.catalogue import NODES, catalogue
from schemas.errors import ConfigurationError
from schemas.nodes import NodeHeartbeat

ROUTES = """
[[routes]]
filter = "#"
kafka_topic = "mqtt.{name}"
partitions = 3
"""


def invoke(*arguments: str) -> Result:
    """In this process; an exception that `main` would turn into one line is in `result.exception`."""
    return CliRunner(env={"KAFKA_BOOTSTRAP_SERVERS": None}).invoke(app, arguments)


def headwater(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As a user runs it."""
    variables = {name: value for name, value in os.environ.items() if name != "KAFKA_BOOTSTRAP_SERVERS"} | environment
    return subprocess.run(
        [sys.executable, "-m", "edge.cli.app", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=variables,
        check=False,
    )


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_no_kafka_is_one_line() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    for command in (["topics", "check"], ["nodes"]):
        done = headwater(*command, "--kafka", bootstrap)
        assert done.returncode == 1
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert "cannot" in done.stderr
        assert bootstrap.split(":")[1] in done.stderr


@pytest.mark.parametrize("address", ["nonsense:port", "host:99999999"])
def test_a_bad_address_is_one_line(address: str) -> None:
    for command in (["topics", "check"], ["nodes"]):
        done = headwater(*command, "--kafka", address)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "No such file"),
        ("routes = 5", "has no [[routes]]"),
        ("[[routes]", "no valid TOML"),
        ('[[routes]]\nfilter = "a/#"\nkafka_topic = "mqtt.a"', "is the last but not '#'"),
    ],
)
def test_a_bad_routes_file_is_named(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "routes.toml"
    if text is not None:
        path.write_text(text)
    done = invoke("topics", "check", "--routes", str(path))
    assert isinstance(done.exception, ConfigurationError)
    assert str(path) in str(done.exception)
    assert expected in str(done.exception)


def test_version_and_help() -> None:
    assert invoke("--version").output.startswith("headwater")
    for command in ("kafka", "topics", "nodes", "doctor"):
        assert command in invoke("--help").output


# --- the Kafka of an edge's configuration -----------------------------------------------------------------------------


def test_client_options_of_each_protocol() -> None:
    assert client_options(KafkaConfig()) == {"security_protocol": "PLAINTEXT"}
    tls = client_options(KafkaConfig(security_protocol="SSL"))
    assert tls["ssl_context"].verify_mode.name == "CERT_REQUIRED"
    sasl = KafkaConfig(security_protocol="SASL_SSL", sasl_user_name="edge", sasl_password="secret")
    assert client_options(sasl) | {"ssl_context": None} == {
        "security_protocol": "SASL_SSL",
        "ssl_context": None,
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "edge",
        "sasl_plain_password": "secret",
    }


def test_incomplete_security_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="sasl_user_name"):
        client_options(KafkaConfig(security_protocol="SASL_PLAINTEXT"))
    with pytest.raises(ConfigurationError, match="ca_file"):
        client_options(KafkaConfig(security_protocol="SSL", ca_file=tmp_path / "none.pem"))


# --- topics and nodes on a real Kafka ---------------------------------------------------------------------------------


def test_topics_apply_check_show(kafka_bootstrap: str, tmp_path: Path) -> None:
    name = f"cli{os.getpid()}"
    path = tmp_path / "routes.toml"
    path.write_text(ROUTES.format(name=name))
    options = ["--kafka", kafka_bootstrap, "--routes", str(path), "--dev"]

    missing = invoke("topics", "check", *options)
    assert missing.exit_code == 1
    assert f"mqtt.{name}.q2: the Kafka topic is missing" in missing.output

    applied = invoke("topics", "apply", *options)
    assert applied.exit_code == 0, applied.output
    assert f"created mqtt.{name}\n" in applied.output
    again = invoke("topics", "apply", *options, "--json")
    assert json.loads(again.output) == {"created": [], "altered": [], "remaining": []}
    assert "as they should be" in invoke("topics", "check", *options).output

    shown = json.loads(invoke("topics", "show", *options[:4], "--json").output)
    (state,) = (state for state in shown if state["name"] == f"mqtt.{name}")
    assert (state["partitions"], state["replication_factor"]) == (3, 1)
    assert state["config"]["min.insync.replicas"] == "1"
    assert f"mqtt.{name}.q2" in invoke("topics", "show", *options[:4]).output

    path.write_text(ROUTES.replace("partitions = 3", "partitions = 4").format(name=name))
    differs = invoke("topics", "apply", *options)
    assert differs.exit_code == 1
    assert f"mqtt.{name}: the partition count is 3, should be 4" in differs.output


def test_an_edge_without_its_kafka_topics_stops_with_a_hint(kafka_bootstrap: str) -> None:
    """That Kafka is away is another matter: the edge itself says so."""
    routes = [{"filter": "#", "kafka_topic": f"none.{uuid.uuid4().hex}", "partitions": 1}]

    def config(bootstrap: str) -> EdgeConfig:
        table = {"node_id": "n", "dev": True, "kafka": {"bootstrap_servers": bootstrap}, "routes": routes}
        return make_config(table, "test")

    with pytest.raises(ConfigurationError, match=r"none\..*headwater topics apply --config edge.toml"):
        asyncio.run(check_kafka_topics(config(kafka_bootstrap), "edge.toml"))
    asyncio.run(check_kafka_topics(config(f"127.0.0.1:{free_port()}"), "edge.toml"))


def test_nodes_shows_lag(kafka_bootstrap: str) -> None:
    kafka_topic = f"mqtt.nodes{os.getpid()}"
    specs = [replace(catalogue()[-1], name=kafka_topic), *(spec for spec in catalogue() if spec.name == NODES)]
    beat = NodeHeartbeat(f"cli-{os.getpid()}", "1", 0, 0, "127.0.0.1:18830", "127.0.0.1:18080", connections=42)

    async def prepare() -> None:
        await apply(kafka_bootstrap, specs, 1)
        log = KafkaLog(kafka_bootstrap)
        await log.start()
        try:
            await log.submit(kafka_topic, 2, [(b"k", b"v", ())] * 5)
            heard = replace(beat, consumed=((kafka_topic, 2, 1),))
            await log.submit(NODES, 0, [(beat.node_id.encode(), heard.to_json(), ())])
        finally:
            await log.stop()

    asyncio.run(prepare())
    nodes = json.loads(invoke("nodes", "--kafka", kafka_bootstrap, "--json").output)
    (node,) = (node for node in nodes if node["node_id"] == beat.node_id)
    assert (node["state"], node["connections"]) == ("up", 42)
    assert node["consumed"] == [{"kafka_topic": kafka_topic, "partition": 2, "position": 1, "lag_records": 4}]
    table = invoke("nodes", "--kafka", kafka_bootstrap).output
    assert beat.node_id in table
    assert f"{kafka_topic} [2]" in table


# --- kafka ------------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_kafka_runs_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "edge.cli.app", "kafka", "--data", str(tmp_path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            ready = json.loads(running.stdout.readline())
            port = int(ready["bootstrap"].split(":")[1])
            assert answers_metadata("127.0.0.1", port, 5.0)
            assert psutil.pid_exists(ready["pid"])
            assert ready["data"] == str(tmp_path)
            started = time.monotonic()
            running.send_signal(number)
            assert running.wait(30.0) == 0
            assert time.monotonic() - started < 20.0
        finally:
            running.kill()
    assert not psutil.pid_exists(ready["pid"])
    assert is_port_free(port)


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_fails_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java() -> None:
        raise JavaNotFound("no Java 17 or newer found")

    monkeypatch.setattr(doctor, "find_java", no_java)
    done = invoke("doctor")
    assert done.exit_code == 1
    (line,) = (line for line in done.output.splitlines() if " Java " in line and "missing" in line)
    assert "pip install 'headwater[jre]'" in line


def test_doctor_notes_what_is_not_necessary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "is_port_free", lambda port: port != 1883)
    found = {finding.what: finding for finding in doctor.examine()}
    assert found["port 1883"].state is State.NOTE
    assert found["Kafka 4.3.1"].state is State.NOTE
    assert "45 MB" in found["Kafka 4.3.1"].remedy
    assert found["Python"].state is State.OK
    assert invoke("doctor").exit_code == int(any(finding.state is State.MISSING for finding in found.values()))


def test_doctor_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: (Finding("X", State.MISSING, "gone", "get it"),))
    done = invoke("doctor", "--json")
    assert done.exit_code == 1
    assert json.loads(done.output) == [{"what": "X", "state": "missing", "text": "gone", "remedy": "get it"}]
