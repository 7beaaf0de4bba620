"""Options, checkpoints, the resolver and the spark-submit call: no JVM."""

from __future__ import annotations

import hashlib
import http.server
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigurationError
from schemas.events import Event
from schemas.routes import Route
from spark_streaming import connector
from spark_streaming.checkpoint import Standing, lost_records, next_records, positions_of, standings, words_for_loss
from spark_streaming.control import ControlServer, watch_control
from spark_streaming.durations import Duration, parse_duration
from spark_streaming.errors import CheckpointMismatch, JarsUnavailable, JavaUnusable
from spark_streaming.events import EventWriter
from spark_streaming.fingerprint import check_fingerprint, kept_start
from spark_streaming.java import Java, find_java
from spark_streaming.jobs.device_stats import read_options, stateful_shape
from spark_streaming.metrics import JobMetrics
from spark_streaming.options import start_time_ms
from spark_streaming.progress import progress_line
from spark_streaming.registry import descriptions, job_file, job_names
from spark_streaming.runner import explain
from spark_streaming.session import slots_needed
from spark_streaming.sources.kafka import KafkaSettings, input_kafka_topics
from spark_streaming.submit import main, spark_call

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_durations() -> None:
    assert parse_duration("10 seconds", "--window") == parse_duration("10s", "--window") == Duration(10, "s")
    assert (Duration(5, "m").label, Duration(5, "m").spark, Duration(5, "m").seconds) == ("5m", "5 minutes", 300.0)
    for text in ("", "10", "s", "-1s", "0s", "10 fortnights", "1.5s"):
        with pytest.raises(ConfigurationError, match="--window"):
            parse_duration(text, "--window")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trigger", "often"], "realtime:5m, micro:5s or available-now"),
        (["--trigger", "realtime:1s"], "at least 5 s"),
        (["--trigger", "micro:"], "--trigger"),
        (["--emit", "final"], "--trigger micro"),
        (["--state", "memory"], "needs rocksdb"),
        (["--shuffle-partitions", "0"], "between 1 and 1000"),
        (["--topic-filter", "a/#/b"], "--topic-filter"),
        (["--device-levels", "3-2"], "--device-levels"),
        (["--device-levels", "x"], "write for example"),
        (["--routes", "absent.toml"], "--routes"),
        (["--kafka-properties", "absent"], "--kafka-properties"),
        (["--watermark", "soon"], "--watermark"),
        (["--slide", "11s"], "--slide"),
        (["--window", "1h", "--slide", "1s"], "1/60"),
        (["--percentiles", "50,100", "--trigger", "micro"], "50,95,99"),
        (["--percentiles", "50"], "--trigger micro:5s"),
        (["--idle-after", "1m"], "--emit final"),
        (["--metrics-port", "70000"], "--metrics-port"),
        (["--kafka", "nowhere"], "host:port"),
    ],
)
def test_wrong_options_say_what_to_write(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read_options(["--kafka", "h:1", *arguments])


def test_files_of_options(tmp_path: Path) -> None:
    routes = tmp_path / "routes.toml"
    routes.write_text(
        '[[routes]]\nfilter = "a/#"\nkafka_topic = "mqtt.a"\n[[routes]]\nfilter = "#"\nkafka_topic = "m"\n'
    )
    properties = tmp_path / "kafka.properties"
    properties.write_text("# TLS\nsecurity.protocol = SSL\n\nssl.x=a=b\n")
    found = read_options(["--kafka", "h:1", "--routes", str(routes), "--kafka-properties", str(properties)]).common
    assert input_kafka_topics(found.routes) == ("mqtt.a", "m")
    assert found.kafka.spark_options == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.x": "a=b",
        "kafka.bootstrap.servers": "h:1",
    }
    properties.write_text("nonsense\n")
    with pytest.raises(ConfigurationError, match="line 1"):
        read_options(["--kafka", "h:1", "--kafka-properties", str(properties)])


def test_outputs_are_never_read() -> None:
    assert input_kafka_topics(read_options(["--kafka", "h:1"]).common.routes) == ("mqtt.sensors", "mqtt.messages")
    twins = ("mqtt.sensors.q2", "mqtt.messages.q2")
    assert input_kafka_topics(read_options(["--qos2"]).common.routes, qos2=True)[2:] == twins
    with pytest.raises(ConfigurationError, match="nothing to read"):
        input_kafka_topics((Route("#", "mqtt.analytics"),))


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    shape = stateful_shape(read_options(["--kafka", "h:1"]))
    check_fingerprint(tmp_path, shape)
    check_fingerprint(tmp_path, shape)
    other = stateful_shape(read_options(["--kafka", "h:1", "--window", "1m"]))
    with pytest.raises(CheckpointMismatch, match=r"window was '10s' and is '1m'.*new --checkpoint"):
        check_fingerprint(tmp_path, other)
    assert kept_start(tmp_path, '{"a":{"0":5}}') == kept_start(tmp_path, '{"a":{"0":9}}') == '{"a":{"0":5}}'


def checkpoint_of(folder: Path, query: str, *batches: dict[str, dict[str, int]]) -> None:
    for number, positions in enumerate(batches):
        for kind, text in (
            ("offsets", ["v1", '{"batchWatermarkMs":5,"conf":{}}', json.dumps(positions)]),
            ("commits", ["v1"]),
        ):
            file = folder / query / kind / str(number)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(text))


def test_where_a_checkpoint_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert next_records(tmp_path) == {}
    checkpoint_of(tmp_path, "results", {"a": {"0": 3}}, {"a": {"0": 9, "1": 4}})
    checkpoint_of(tmp_path, "dead_letters", {"a": {"0": 7, "1": 6}})
    (tmp_path / "results" / "commits" / "1").unlink()  # planned, not done
    (tmp_path / "results" / "commits" / ".1.crc").touch()
    assert standings(tmp_path)[1] == Standing("results", 0, {"a": {"0": 3}}, 5)
    assert next_records(tmp_path) == {"a": {"0": 3, "1": 6}}
    assert main(["--checkpoint-info", str(tmp_path)]) == 2
    check_fingerprint(tmp_path, {"job": "x"})
    assert main(["--checkpoint-info", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["go_on"].endswith(f"--from checkpoint:{tmp_path}")
    with pytest.raises(ConfigurationError, match="no checkpoint of a job"):
        positions_of(tmp_path / "absent")


def test_what_was_lost_is_counted() -> None:
    positions, ends = {"a": {"0": 3, "1": 6, "2": 9}, "gone": {"0": 1}}, {"a": {"0": 20, "1": 5, "2": 10}}
    assert lost_records(positions, {"a": {"0": 8, "1": 0, "2": 0}}, ends) == [
        "a-0: 5 records, 3 to 7",
        "a-1: made anew, it ends at 5 and 6 was the next",
    ]
    assert words_for_loss(["x"] * 20).endswith("and 8 more partitions")


def test_where_to_start() -> None:
    assert start_time_ms("-1h", 10_000_000) == 6_400_000
    assert start_time_ms("1970-01-01T00:00:01", 0) == start_time_ms("1970-01-01T01:00:01+01:00", 0) == 1000
    assert read_options(["--from", "-5m"]).common.starting_offsets == "-5m"
    with pytest.raises(ConfigurationError, match="--from: 'yesterday'"):
        read_options(["--from", "yesterday"])


def test_options_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('window = "1m"\ntopic_filter = ["a/#", "b/#"]\nprogress = true\nevents = false\n')
    with pytest.raises(SystemExit):  # there is --no-events
        read_options(["--config", str(file), "--events"])
    found = read_options(["--config", str(file), "--window", "20s"])
    assert (found.windows.length, found.rules.topic_filters, found.common.progress) == (
        Duration(20, "s"),
        ("a/#", "b/#"),
        True,
    )
    file.write_text("window = {a = 1}\n")
    with pytest.raises(ConfigurationError, match=r"window in .* is no text"):
        read_options(["--config", str(file)])
    file.write_text("window\n")
    with pytest.raises(ConfigurationError, match="no valid TOML"):
        read_options(["--config", str(file)])


def test_a_job_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {"device_stats", "anomaly"} <= set(job_names())
    assert all(text.endswith(".") for text in descriptions().values())
    own = tmp_path / "my_job.py"
    own.write_text("def read_options(arguments):\n    raise SystemExit(7)\n")
    assert job_file(str(own)) == own
    with pytest.raises(SystemExit, match="7"):
        main([str(own)])
    assert main(["--list"]) == 0
    assert "anomaly" in capsys.readouterr().out


PROGRESS: dict[str, Any] = {
    "name": "results",
    "batchId": 3,
    "timestamp": "2026-06-01T12:00:10.000Z",
    "numInputRows": 5,
    "durationMs": {"triggerExecution": 1500},
    "eventTime": {"watermark": "2026-06-01T12:00:00.000Z"},
    "sources": [{"endOffset": {"a": {"0": 5, "1": 7}}, "latestOffset": {"a": {"0": 9, "1": 7}}}, {"endOffset": 3}],
    "sink": {"numOutputRows": 4},
    "stateOperators": [{"numRowsTotal": 2, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 6}],
}


def test_progress_becomes_metrics() -> None:
    line = progress_line(PROGRESS)
    assert (line["lag_records_max"], line["watermark_delay_s"], line["late"]) == (4, 10.0, 6)
    with JobMetrics("device_stats") as metrics:
        metrics(line)
        metrics(line)
        port = metrics.serve("127.0.0.1", 0)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            text = response.read().decode()
        with pytest.raises(ConfigurationError, match="--metrics-port: cannot listen"):
            JobMetrics("other").serve("127.0.0.1", port)
    labels = 'job="device_stats",query="results"'
    for sample in (
        f"headwater_spark_records_in_total{{{labels}}} 10.0",
        f"headwater_spark_records_out_total{{{labels}}} 8.0",
        f"headwater_spark_late_rows_total{{{labels}}} 12.0",
        f"headwater_spark_batch_duration_seconds{{{labels}}} 1.5",
        f"headwater_spark_watermark_delay_seconds{{{labels}}} 10.0",
        f"headwater_spark_state_bytes{{{labels}}} 100.0",
        'headwater_spark_lag_records{job="device_stats",partition="a-0",query="results"} 4.0',
    ):
        assert sample in text


def test_progress_events_are_few() -> None:
    now_s = [0.0]
    sent: list[tuple[str, str]] = []

    class Producer:
        def send(self, key: str, value: str) -> None:
            sent.append((key, value))

        def close(self) -> None: ...

    with EventWriter(KafkaSettings("h:1"), "device_stats", lambda: now_s[0], Producer()) as events:
        for _ in range(25):
            events(progress_line(PROGRESS))
            now_s[0] += 1
        events.record("terminated", reason="stopped")
    assert {key for key, _ in sent} == {"device_stats"}
    found = [Event.from_json(value.encode()) for _, value in sent]
    assert [event.kind for event in found] == ["spark.progress"] * 3 + ["spark.terminated"]
    assert found[0].detail["late"] == 6


def test_data_loss_is_explained() -> None:
    assert "--accept-data-loss" in explain(RuntimeError("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] ..."))
    assert "goes on from its checkpoint" in explain(RuntimeError("something else"))


def test_slots() -> None:
    assert (slots_needed(1, 2), slots_needed(24, 2)) == (6, 28)


def test_progress_line_without_state_or_metrics() -> None:
    line = progress_line({"name": "results", "batchId": 3, "numInputRows": 5, "sources": [{"metrics": None}]})
    assert (line["query"], line["rows"], line["lag_records_max"], line["late"]) == ("results", 5, 0, 0)


def test_spark_submit_call(tmp_path: Path) -> None:
    arguments = ["--kafka", "h:1", "--conf", "spark.x=1", "--master=local[9]", "--window", "5s"]
    call = spark_call(
        "device_stats", arguments, [tmp_path / "a.jar", tmp_path / "b.jar"], Java(tmp_path, 17, ""), {"PATH": "p"}
    )
    command = list(call.command)
    assert command[-4:] == ["--kafka", "h:1", "--window", "5s"]
    assert command[command.index("--master") + 1] == "local[9]"
    assert command[command.index("--jars") + 1] == f"{tmp_path / 'a.jar'},{tmp_path / 'b.jar'}"
    assert "spark.x=1" in command
    assert call.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert call.environ["PATH"].endswith(":p")
    with pytest.raises(ConfigurationError, match="--conf: its value is missing"):
        spark_call("device_stats", ["--conf"], [], Java(tmp_path, 17, ""), {})


def test_unknown_job_and_no_java(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "device_stats" in capsys.readouterr().err
    with pytest.raises(JavaUnusable, match="JAVA_HOME is not set and PATH has no java"):
        find_java({"PATH": str(tmp_path)})
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(JavaUnusable, match="is Java 11"):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.fixture
def maven(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A Maven repository on loopback and an environment that uses it."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    root = tmp_path / "repository"
    root.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    yield root, {"HEADWATER_MAVEN_URL": url, "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    server.shutdown()
    thread.join()
    server.server_close()


def put(root: Path, path: str, content: bytes) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_pinned_jars_are_checked(maven: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    root, environ = maven
    good = connector.Jar("g/a/1/a-1.jar", "sha256", hashlib.sha256(b"good").hexdigest())
    monkeypatch.setattr(connector, "locked_jars", lambda: {connector.pyspark_version(): (good,)})
    put(root, good.path, b"evil")
    with pytest.raises(JarsUnavailable, match=r"a-1.jar.*its sha256 is not"):
        connector.resolve(environ)
    put(root, good.path, b"good")
    found = connector.resolve(environ)
    assert "pinned" in found.why
    assert [path.read_bytes() for path in found.jars] == [b"good"]
    found.jars[0].write_bytes(b"torn")  # a damaged cache is repaired
    assert connector.resolve_jars(environ)[0].read_bytes() == b"good"


def test_the_exact_connector_wins(maven: tuple[Path, dict[str, str]]) -> None:
    root, environ = maven
    version = connector.pyspark_version()
    base = f"org/apache/spark/spark-sql-kafka-0-10_2.13/{version}/spark-sql-kafka-0-10_2.13-{version}"
    companions = {
        "spark-token-provider-kafka-0-10_2.13": ("org.apache.spark", version),
        "kafka-clients": ("org.apache.kafka", "9.9"),
        "commons-pool2": ("org.apache.commons", "2.99"),
    }
    listed = "".join(
        f"<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId><version>{v}</version></dependency>"
        for a, (g, v) in companions.items()
    )
    pom = f'<project xmlns="http://maven.apache.org/POM/4.0.0"><dependencies>{listed}</dependencies></project>'
    put(root, f"{base}.pom", pom.encode())
    paths = [f"{base}.jar", *(f"{g.replace('.', '/')}/{a}/{v}/{a}-{v}.jar" for a, (g, v) in companions.items())]
    for path in paths:
        put(root, path, path.encode())
        put(root, f"{path}.sha1", hashlib.sha1(path.encode()).hexdigest().encode())
    found = connector.resolve(environ)
    assert "the same as pyspark" in found.why
    assert [path.name for path in found.jars] == [path.rsplit("/", 1)[-1] for path in paths]


def test_repository_url(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert connector.repository_url(environ) == connector.MAVEN_CENTRAL
    (tmp_path / ".m2").mkdir()
    mirror = "<mirror><mirrorOf>central</mirrorOf><url>https://mirror.example/maven/</url></mirror>"
    (tmp_path / ".m2" / "settings.xml").write_text(
        f'<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors>{mirror}</mirrors></settings>'
    )
    assert connector.repository_url(environ) == "https://mirror.example/maven"
    assert connector.repository_url({**environ, "HEADWATER_MAVEN_URL": "http://h/"}) == "http://h"


def test_stop_goes_over_the_control_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()
    forced = threading.Event()
    monkeypatch.setattr("spark_streaming.control.STOP_GRACE_S", 0.0)
    monkeypatch.setattr("spark_streaming.control.os.kill", lambda *_: None)
    monkeypatch.setattr("spark_streaming.control.os._exit", lambda _: forced.set())
    server = ControlServer(tmp_path)
    server.stop()  # before the job has connected
    watch_control(stopped.set, {"HEADWATER_SPARK_CONTROL": str(server.path)})
    assert stopped.wait(5)
    assert forced.wait(5)  # what does not end in time is ended
    assert server.error() == ""
    server.close()


def test_the_last_words_of_a_job_reach_submit(tmp_path: Path) -> None:
    server = ControlServer(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as job:
        job.connect(str(server.path))
        server.stop()
        assert job.recv(16) == b"stop\n"
        job.sendall("no Kafka é".encode())
    assert server.error() == "no Kafka é"
    server.close()
