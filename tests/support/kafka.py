"""One Kafka for a whole test run, and a word on where it came from.

KAFKA_BOOTSTRAP_SERVERS names an existing one; else a container is started where a container engine answers; else the
embedded one. There is always a real Kafka: a machine that can run none of them fails the tests instead of skipping.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.embedded_kafka import EmbeddedKafka
from bridge.embedded_kafka.jars import KAFKA_VERSION
from bridge.embedded_kafka.probe import answers_metadata
from bridge.embedded_kafka.server import free_port

BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
IMAGE = f"apache/kafka:{KAFKA_VERSION}"
CONTAINER_READY_S = 90.0
_chosen: list[str] = []


@dataclass(frozen=True)
class KafkaForTests:
    """The Kafka of this run; `server` is there only when it is the embedded one."""

    bootstrap: str
    server: EmbeddedKafka | None
    why: str


def engine_refusal() -> str | None:
    """Why no container engine is used, or None when one answers."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=5)
    except DockerException as error:
        return f"no container engine answers ({str(error).splitlines()[0][:80]})"
    with_image = True
    try:
        client.images.get(IMAGE)
    except DockerException:
        try:
            client.images.pull(IMAGE)
        except DockerException as error:
            with_image = False
            reason = str(error).splitlines()[0][:80]
    finally:
        client.close()
    return None if with_image else f"the container engine has no {IMAGE} ({reason})"


@contextmanager
def container_kafka() -> Iterator[str]:
    """A Kafka of the official image on a free port of this machine."""
    from testcontainers.core.container import DockerContainer

    port = free_port()
    container = DockerContainer(IMAGE).with_bind_ports(9092, port)
    for name, value in _container_environment(port).items():
        container = container.with_env(name, value)
    with container:
        _await_container(port)
        yield f"127.0.0.1:{port}"


def _container_environment(port: int) -> dict[str, str]:
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_MESSAGE_MAX_BYTES": str(2 * 1024 * 1024),
    }


def _await_container(port: int) -> None:
    deadline = time.monotonic() + CONTAINER_READY_S
    while not answers_metadata("127.0.0.1", port, 2.0):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{IMAGE} gave no answer within {CONTAINER_READY_S:.0f} s")
        time.sleep(0.1)


@contextmanager
def kafka_for_tests(
    data: Path,
    environ: Mapping[str, str] = os.environ,
    refusal: Callable[[], str | None] = engine_refusal,
) -> Iterator[KafkaForTests]:
    """The existing Kafka, the container or the embedded one, in this order."""
    if bootstrap := environ.get(BOOTSTRAP_VARIABLE):
        yield KafkaForTests(bootstrap, None, f"{bootstrap}, named by {BOOTSTRAP_VARIABLE}")
        return
    reason = refusal()
    if reason is None:
        with container_kafka() as bootstrap:
            yield KafkaForTests(bootstrap, None, f"container of {IMAGE} on {bootstrap}: a container engine answers")
        return
    with EmbeddedKafka(data) as server:
        why = f"embedded {KAFKA_VERSION} on {server.bootstrap}: {BOOTSTRAP_VARIABLE} is not set, {reason}"
        yield KafkaForTests(server.bootstrap, server, why)


def chosen() -> str | None:
    """Which Kafka this run used and why; None as long as no test needed one."""
    return _chosen[-1] if _chosen else None


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaForTests]:
    with kafka_for_tests(tmp_path_factory.mktemp("kafka")) as found:
        _chosen.append(found.why)
        yield found


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka: KafkaForTests) -> str:
    """`host:port` of a real Kafka that all tests of this run share: use topics of your own."""
    return kafka.bootstrap


@pytest.fixture(scope="session")
def kafka_server(kafka: KafkaForTests) -> EmbeddedKafka | None:
    """The embedded Kafka when it is that one; None otherwise."""
    return kafka.server
