"""A real single-node Apache Kafka (KRaft) as a child process, with its data in a folder that survives restarts.

Blocking calls: from asyncio, use `asyncio.to_thread`. The data folder holds `log/` (Kafka's own), `kafka.log`, the two
property files and `.lock`, which is held for as long as a Kafka runs on the folder, even past the end of its parent.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from bridge.embedded_kafka import supervisor
from bridge.embedded_kafka.errors import DataFolderInUse, EmbeddedKafkaError, KafkaDidNotStart
from bridge.embedded_kafka.jars import Progress, ensure_jars
from bridge.embedded_kafka.java import find_java
from bridge.embedded_kafka.probe import answers_metadata
from bridge.embedded_kafka.settings import HOST, log_properties, server_properties, write_properties

START_TIMEOUT_S = 90.0  # 3 s on a quiet machine, 13 s on a busy one, and room for slow disks
STOP_GRACE_S = 10.0  # then SIGKILL: what was acknowledged is in the page cache and survives that
LOCK_WAIT_S = 12.0  # a Kafka whose parent was killed needs up to STOP_GRACE_S to end
LOG_TAIL_LINES = 25
PORT_ATTEMPTS = 3  # a port found free can be taken before Kafka binds it
_POLL_S = 0.05
_PROBE_TIMEOUT_S = 2.0
# Serial GC and the first compiler only: ready after 2.4 s and 3.2 CPU seconds instead of 3.7 s and 6.3, and still
# 300,000 records/s at 1.3 CPU microseconds each on two cores.
_JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true")


class EmbeddedKafka:
    """One Kafka on one data folder. Not for use from several threads at once.

    Args:
        data: the folder; made where it is missing, formatted on the first start.
        port: where clients connect on 127.0.0.1; a free one when None.
        heap_mb: the JVM's -Xmx.
        properties: more lines for server.properties, or other values.

    `kill -9` of the process that called `start` ends the Kafka, too: see supervisor.py.
    """

    def __init__(
        self,
        data: Path,
        port: int | None = None,
        *,
        heap_mb: int = 768,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data.expanduser().resolve()
        self.log_file = self.data / "kafka.log"
        self._asked_port = port
        self._heap_mb = heap_mb
        self._properties = dict(properties or {})
        self._port: int | None = None
        self._pid: int | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port of the running Kafka."""
        assert self._port is not None, "not started"
        return self._port

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:<port>`, what clients call bootstrap_servers."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The JVM's process id, for tests that stop it (SIGSTOP) or kill it."""
        assert self._pid is not None, "not started"
        return self._pid

    @property
    def is_running(self) -> bool:
        return self._supervisor is not None and self._supervisor.poll() is None

    def start(
        self,
        timeout_s: float = START_TIMEOUT_S,
        progress: Progress | None = None,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        """Return when clients are served.

        Raises:
            JavaNotFound, JarsUnavailable: something is missing on this machine.
            DataFolderInUse: another Kafka keeps running on the folder.
            KafkaDidNotStart: it ended or gave no answer in time; the text holds the tail of its log.
        """
        assert not self.is_running, "already started"
        command = self._java_command(progress)
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            lock = self._lock(lock_wait_s)
        except OSError as error:
            raise EmbeddedKafkaError(f"cannot use the data folder {self.data}: {error}") from error
        with lock:
            for attempt in range(1, PORT_ATTEMPTS + 1):
                try:
                    self._start_once(command, lock, timeout_s)
                    return
                except KafkaDidNotStart:
                    self.stop(grace_s=0)
                    if self._asked_port is not None or attempt == PORT_ATTEMPTS or not self._is_port_taken():
                        raise
                except BaseException:
                    self.stop(grace_s=0)
                    raise

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM, and SIGKILL after the grace. Returns when the process is gone; the data stays."""
        if self._supervisor is None:
            return
        if self._pid is not None and self._supervisor.poll() is None:
            self._signal(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._supervisor.wait(max(grace_s, 1.0))
            self._signal(signal.SIGKILL)
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        self._supervisor.wait(STOP_GRACE_S + 5.0)
        self._supervisor = self._pid = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of Kafka's log and of what the JVM printed."""
        tails: list[str] = []
        for path in (self.log_file, self.data / "jvm.out"):
            with suppress(OSError):
                tails += path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        return "\n".join(tails)

    def _signal(self, number: signal.Signals) -> None:
        """To the JVM, only while its supervisor lives: then the id cannot have gone to another process."""
        assert self._supervisor is not None
        if self._pid is not None and self._supervisor.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _java_command(self, progress: Progress | None) -> list[str]:
        java = find_java()
        jars = ensure_jars(progress=progress)
        logging = f"-Dlog4j2.configurationFile=file:{self.data / 'log4j2.properties'}"
        return [str(java.executable), f"-Xmx{self._heap_mb}m", *_JVM_FLAGS, logging, "-cp", f"{jars}/*"]

    def _lock(self, wait_s: float) -> IO[str]:
        """The folder's lock, to be inherited by the supervisor: the kernel gives it back when the last holder ends."""
        file = (self.data / ".lock").open("a+")
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                    continue
                file.seek(0)
                holder = file.read().strip() or "unknown"
                file.close()
                raise DataFolderInUse(
                    f"the data folder {self.data} is in use by another Kafka (started by process {holder}):"
                    " stop that one, or name another folder with --data"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            return file

    def _start_once(self, command: list[str], lock: IO[str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self._port = free_port() if self._asked_port is None else self._asked_port
        if not is_port_free(self._port):  # asked before: another Kafka there would answer our probe
            raise KafkaDidNotStart(f"port {self._port} is in use by another program: name another one")
        properties = server_properties(self.data, self._port, free_port()) | self._properties
        write_properties(self.data / "server.properties", properties)
        write_properties(self.data / "log4j2.properties", log_properties(self.log_file))
        self.log_file.unlink(missing_ok=True)
        if not (self.data / "log" / "meta.properties").exists():
            self._format(command, timeout_s)
        self._spawn(command, lock)
        self._await_ready(deadline)

    def _format(self, command: list[str], timeout_s: float) -> None:
        """Kafka's own tool writes the cluster id into an empty folder."""
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
        arguments = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.data / "server.properties")]
        try:
            done = subprocess.run(
                [*command, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise KafkaDidNotStart(f"formatting {self.data} took more than {timeout_s:.0f} s") from None
        if done.returncode != 0:
            raise KafkaDidNotStart(f"cannot format {self.data}: {done.stdout.strip()} {done.stderr.strip()}")

    def _spawn(self, command: list[str], lock: IO[str]) -> None:
        guarded = [sys.executable, "-I", "-S", supervisor.__file__, str(STOP_GRACE_S), *command]
        with (self.data / "jvm.out").open("wb") as output:
            self._supervisor = subprocess.Popen(
                [*guarded, "kafka.Kafka", str(self.data / "server.properties")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                pass_fds=(lock.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal is for us; we stop Kafka last
            )
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as first_line:
            answer = first_line.readline()
        if not answer.strip().isdigit():
            raise KafkaDidNotStart(f"cannot run {command[0]}:\n{self.log_tail()}")
        self._pid = int(answer)

    def _await_ready(self, deadline: float) -> None:
        while not answers_metadata(HOST, self.port, _PROBE_TIMEOUT_S):
            if not self.is_running:
                raise KafkaDidNotStart(f"Kafka ended instead of serving on {self.bootstrap}\n{self.log_tail()}")
            if time.monotonic() >= deadline:
                raise KafkaDidNotStart(f"Kafka gave no answer on {self.bootstrap} in time\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def _is_port_taken(self) -> bool:
        return "Address already in use" in self.log_tail(200)


def free_port(host: str = HOST) -> int:
    """A TCP port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_port_free(port: int, host: str = HOST) -> bool:
    """Whether a listener could bind the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
