"""The embedded Kafka: starts, keeps its data, says what is wrong, and never outlives its parent."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import psutil
import pytest

from bridge.embedded_kafka import (
    DataFolderInUse,
    EmbeddedKafka,
    JarsUnavailable,
    JavaNotFound,
    KafkaDidNotStart,
    jars,
    java,
)
from bridge.embedded_kafka.jars import Jar, cache_folder, ensure_jars, locked_jars, maven_base_url
from bridge.embedded_kafka.java import find_java
from bridge.embedded_kafka.probe import answers_metadata
from bridge.embedded_kafka.server import free_port, is_port_free
from bridge.embedded_kafka.settings import write_properties
from bridge.topics_admin import apply
from schemas.catalogue import catalogue

PARENT = """
import sys, time
from pathlib import Path
from bridge.embedded_kafka import EmbeddedKafka
kafka = EmbeddedKafka(Path(sys.argv[1]))
kafka.start()
print(kafka.pid, kafka.port, flush=True)
time.sleep(600)
"""


def await_true(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll a thing of the operating system that nothing notifies us of."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def append(bootstrap: str, kafka_topic: str, value: bytes) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        await producer.send_and_wait(kafka_topic, value, partition=0)


async def read(bootstrap: str, kafka_topic: str, count: int) -> list[bytes | None]:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    async with consumer:
        partition = aiokafka.TopicPartition(kafka_topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        return [(await consumer.getone()).value for _ in range(count)]


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.slow
async def test_data_survives_restart_and_kill(tmp_path: Path) -> None:
    spec = catalogue()[-1]
    kafka = EmbeddedKafka(tmp_path)
    kafka.start()
    try:
        await apply(kafka.bootstrap, [spec], 1)
        await append(kafka.bootstrap, spec.name, b"before the restart")
        first_port = kafka.port
        kafka.stop()
        assert is_port_free(first_port)
        kafka.start()
        await append(kafka.bootstrap, spec.name, b"before the kill")
        os.kill(kafka.pid, signal.SIGKILL)
        kafka.stop()
        kafka.start()
        assert await read(kafka.bootstrap, spec.name, 2) == [b"before the restart", b"before the kill"]
    finally:
        kafka.stop()


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("paused", [False, True], ids=["running", "stopped JVM"])
def test_nothing_remains_after_kill_9_of_the_parent(tmp_path: Path, paused: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            jvm, port = map(int, parent.stdout.readline().split())
            supervisor = psutil.Process(jvm).ppid()
            assert psutil.Process(supervisor).ppid() == parent.pid
            if paused:
                os.kill(jvm, signal.SIGSTOP)
        finally:
            parent.kill()
    assert await_true(lambda: is_gone(jvm), 20.0)
    assert await_true(lambda: is_gone(supervisor), 5.0)
    assert is_port_free(port)


@pytest.mark.kafka
def test_jvm_dies_with_a_killed_supervisor(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path) as kafka:
        jvm = kafka.pid
        os.kill(psutil.Process(jvm).ppid(), signal.SIGKILL)
        assert await_true(lambda: is_gone(jvm), 5.0)
        assert await_true(lambda: not kafka.is_running, 5.0)


@pytest.mark.kafka
def test_data_folder_in_use_is_refused(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path) as kafka:
        second = EmbeddedKafka(tmp_path)
        with pytest.raises(DataFolderInUse, match=f"started by process {os.getpid()}"):
            second.start(lock_wait_s=0.0)
        assert kafka.is_running
        assert answers_metadata("127.0.0.1", kafka.port, 2.0)
    assert not kafka.is_running


def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(KafkaDidNotStart, match=f"port {port} is in use"):
            EmbeddedKafka(tmp_path, port).start()


@pytest.mark.kafka
def test_a_kafka_that_ends_shows_its_log(tmp_path: Path) -> None:
    kafka = EmbeddedKafka(tmp_path, properties={"log.retention.bytes": "many"})
    with pytest.raises(KafkaDidNotStart, match=r"log\.retention\.bytes"):
        kafka.start()
    assert not kafka.is_running


def test_probe_takes_no_stranger_for_kafka() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]

        def answer_nonsense() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(b"SSH-2.0-whatever\r\n")

        thread = threading.Thread(target=answer_nonsense)
        thread.start()
        assert not answers_metadata("127.0.0.1", port, 2.0)
        thread.join(5.0)
    assert not answers_metadata("127.0.0.1", free_port(), 2.0)


def test_properties_hold_backslashes_and_refuse_line_breaks(tmp_path: Path) -> None:
    path = write_properties(tmp_path / "x.properties", {"a.b": "c\\d e"})
    assert path.read_text() == "a.b=c\\\\d e\n"
    with pytest.raises(ValueError, match="line break"):
        write_properties(path, {"a": "b\nc=d"})


# --- Java -------------------------------------------------------------------------------------------------------------


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    executable.chmod(0o755)
    return executable


def test_java_home_comes_first(tmp_path: Path) -> None:
    wanted = fake_java(tmp_path / "home", "21.0.2")
    other = fake_java(tmp_path / "path", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert (found.executable, found.version, found.source) == (wanted, 21, "JAVA_HOME")


def test_old_java_home_falls_back_to_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "1.8.0_392")
    newer = fake_java(tmp_path / "path", "17-ea")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(newer.parent)})
    assert (found.executable, found.version, found.source) == (newer, 17, "PATH")


def test_no_java_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    fake_java(tmp_path, "11.0.2")
    with pytest.raises(JavaNotFound, match=r"is Java 11.*pip install 'headwater\[jre\]'"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


# --- jars -------------------------------------------------------------------------------------------------------------


class Repository(http.server.BaseHTTPRequestHandler):
    """A Maven repository with what is in `content`."""

    content: dict[str, bytes]
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        body = self.content.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Repository]]]:
    """Two small jars in a repository on loopback, pinned instead of Kafka's."""
    contents = {"a/one.jar": b"one" * 1000, "b/two.jar": b"two" * 2000}
    pinned = tuple(Jar(hashlib.sha256(data).hexdigest(), len(data), path) for path, data in contents.items())
    monkeypatch.setattr(jars, "locked_jars", lambda: pinned)
    served = {f"/maven/{path}": data for path, data in contents.items()}
    handler = type("Served", (Repository,), {"content": served, "requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/maven/", handler
        server.shutdown()
        thread.join(5.0)


def environment(home: Path, url: str) -> dict[str, str]:
    return {"HOME": str(home), "HEADWATER_MAVEN_URL": url}


def test_lock_file_pins_kafka_and_its_log_binding() -> None:
    pinned = locked_jars()
    names = {jar.name for jar in pinned}
    assert len(names) == len(pinned) == 46
    assert "kafka_2.13-4.3.1.jar" in names
    assert any(name.startswith("log4j-slf4j-impl") for name in names)
    assert all(len(jar.sha256) == 64 and jar.size_bytes > 0 for jar in pinned)


def test_jars_are_fetched_once(repository: tuple[str, type[Repository]], tmp_path: Path) -> None:
    url, handler = repository
    variables = environment(tmp_path, url)
    progress: list[tuple[int, int]] = []
    folder = ensure_jars(environ=variables, progress=lambda done, total: progress.append((done, total)))
    assert folder == cache_folder(variables)
    assert sorted(path.name for path in folder.glob("*.jar")) == ["one.jar", "two.jar"]
    assert progress[-1] == (9000, 9000)
    assert len(handler.requests) == 2
    ensure_jars(environ=variables)
    assert len(handler.requests) == 2


def test_only_what_is_missing_or_damaged_is_fetched(repository: tuple[str, type[Repository]], tmp_path: Path) -> None:
    url, handler = repository
    variables = environment(tmp_path, url)
    folder = ensure_jars(environ=variables)
    (folder / "two.jar").write_bytes(b"two" * 1999 + b"TWO")
    ensure_jars(environ=variables)
    assert handler.requests[2:] == ["/maven/b/two.jar"]
    assert (folder / "two.jar").read_bytes() == b"two" * 2000


def test_wrong_checksum_is_refused(repository: tuple[str, type[Repository]], tmp_path: Path) -> None:
    url, handler = repository
    handler.content["/maven/a/one.jar"] = b"evil" * 750
    with pytest.raises(JarsUnavailable, match="SHA-256"):
        ensure_jars(environ=environment(tmp_path, url))
    assert not list(tmp_path.rglob("one.jar*"))


def test_missing_jar_and_missing_network_say_what_to_do(
    repository: tuple[str, type[Repository]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "ATTEMPTS", 1)
    url, handler = repository
    del handler.content["/maven/a/one.jar"]
    with pytest.raises(JarsUnavailable, match=r"404.*HEADWATER_MAVEN_URL"):
        ensure_jars(environ=environment(tmp_path, url))
    with pytest.raises(JarsUnavailable, match="connect to the network"):
        ensure_jars(environ=environment(tmp_path, f"http://127.0.0.1:{free_port()}"))


def test_concurrent_calls_download_once(repository: tuple[str, type[Repository]], tmp_path: Path) -> None:
    url, handler = repository
    threads = [threading.Thread(target=ensure_jars, args=(None, environment(tmp_path, url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert sorted(handler.requests) == ["/maven/a/one.jar", "/maven/b/two.jar"]


def test_jars_of_mavens_own_repository_are_taken(repository: tuple[str, type[Repository]], tmp_path: Path) -> None:
    url, handler = repository
    local = tmp_path / ".m2" / "repository" / "a" / "one.jar"
    local.parent.mkdir(parents=True)
    local.write_bytes(b"one" * 1000)
    ensure_jars(environ=environment(tmp_path, url))
    assert handler.requests == ["/maven/b/two.jar"]


def test_base_url_comes_from_the_variable_then_mavens_mirror_then_central(tmp_path: Path) -> None:
    variables = {"HOME": str(tmp_path)}
    assert maven_base_url(variables) == "https://repo1.maven.org/maven2"
    settings = tmp_path / ".m2" / "settings.xml"
    settings.parent.mkdir()
    mirrors = "<mirror><mirrorOf>other</mirrorOf><url>http://o/</url></mirror>"
    mirrors += "<mirror><mirrorOf>*,!snapshots</mirrorOf><url>http://m/r/</url></mirror>"
    settings.write_text(
        f'<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors>{mirrors}</mirrors></settings>'
    )
    assert maven_base_url(variables) == "http://m/r"
    assert maven_base_url(variables | {"HEADWATER_MAVEN_URL": "http://h/"}) == "http://h"
    settings.write_text("<not xml")
    assert maven_base_url(variables) == "https://repo1.maven.org/maven2"
