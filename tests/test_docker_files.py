"""docker/: what can be said of it without a container engine; docker/smoke.sh says the rest."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.embedded_kafka.jars import KAFKA_VERSION
from bridge.embedded_kafka.settings import MESSAGE_BYTES_MAX
from edge.access.acl import load_rules
from edge.node.config import load_config

ROOT = Path(__file__).resolve().parents[1]
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("edge-0", "edge-1", "topics", "credentials", "spark")


def test_the_edges_configuration_is_one_that_an_edge_takes() -> None:
    config = load_config(DOCKER / "edge.toml")
    assert not config.dev
    assert not config.authentication.anonymous
    assert len(load_rules(config.acl)) == len(config.acl)
    assert config.kafka.bootstrap_servers == "kafka:9092"


@pytest.mark.parametrize("name", [*OURS, "haproxy", "smoke"])
def test_services_have_a_read_only_root_and_no_capabilities(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert not {"privileged", "cap_add", "pid", "ipc"} & service.keys()
    assert "host" not in (service.get("network_mode"), service.get("pid"))


@pytest.mark.parametrize("file", ["Dockerfile.edge", "Dockerfile.spark"])
def test_images_run_as_another_user_and_say_when_they_are_healthy(file: str) -> None:
    text = (DOCKER / file).read_text(encoding="utf-8")
    last_stage = text[text.rindex("\nFROM ") :]
    assert text.count("\nFROM ") == 2
    assert re.findall(r"^USER (\S+)$", last_stage, re.MULTILINE) == ["headwater"]
    assert "useradd --uid 10001" in last_stage
    assert "\nHEALTHCHECK " in last_stage
    assert all("--require-hashes" in step for step in re.split(r"&& |\nRUN ", text) if " -r requirements/" in step)


def test_only_the_load_balancer_is_published_and_only_to_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"haproxy"}
    assert all(port.startswith("127.0.0.1:") for port in published["haproxy"])


def test_kafka_is_the_one_that_the_tests_know() -> None:
    kafka = SERVICES["kafka"]
    assert kafka["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert kafka["environment"]["KAFKA_MESSAGE_MAX_BYTES"] == MESSAGE_BYTES_MAX
    assert kafka["environment"]["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_haproxy_asks_every_edge_whether_it_is_ready() -> None:
    text = (DOCKER / "haproxy.cfg").read_text(encoding="utf-8")
    backends = re.findall(r"^backend (\S+)\n((?: .*\n)+)", text, re.MULTILINE)
    assert [name for name, _ in backends] == ["edges_mqtt", "edges_http"]
    for _, lines in backends:
        assert "option httpchk GET /readyz" in lines
        assert re.findall(r"server (\S+) ", lines) == ["edge-0", "edge-1"]


@pytest.mark.parametrize("script", sorted(DOCKER.rglob("*.sh")), ids=lambda path: path.name)
def test_scripts_parse(script: Path) -> None:
    first_line = script.read_text(encoding="utf-8").splitlines()[0]
    shell = "bash" if "bash" in first_line else "sh"
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
