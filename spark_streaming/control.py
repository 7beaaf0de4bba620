"""The line between `submit` and the job it started: a Unix socket that says "stop", and whose end says "I am gone".

Between them stand a shell and a JVM that pass on neither signals nor file descriptors, and that mix the job's stderr
into its stdout: so the job says here, too, what ended it. The kernel closes the socket
whatever ends `submit`, kill -9 included, so a job never outlives it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

CONTROL_VARIABLE = "HEADWATER_SPARK_CONTROL"
STOP_GRACE_S = 20.0  # a real-time query stops within 2 s; a batch may have to be finished
_CONNECT_TIMEOUT_S = 5.0
_LAST_WORDS_S = 2.0
_ERROR_BYTES_MAX = 16_384
_lines: list[socket.socket] = []  # at most one: the line of this process


class ControlServer:
    """The submitting side."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "control"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(1)
        self._job: socket.socket | None = None
        self._stopping = False
        self._said = b""
        self._lock = threading.RLock()  # a second signal may come while the first is handled
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the job to stop, now or as soon as it connects."""
        with self._lock:
            self._stopping = True
            self._tell()

    def error(self) -> str:
        """What the job said about its end, once it has ended; empty when it said nothing."""
        self._thread.join(_LAST_WORDS_S if self._job is not None else 0.0)
        return self._said.decode(errors="replace").strip()

    def close(self) -> None:
        """Close the line: for the job this is the end of `submit`."""
        with self._lock, suppress(OSError):
            self._listener.close()
            if self._job is not None:
                self._job.close()

    def _serve(self) -> None:
        with suppress(OSError):
            job, _ = self._listener.accept()
            with self._lock:
                self._job = job
                self._tell()
            while len(self._said) < _ERROR_BYTES_MAX and (part := job.recv(4096)):
                self._said += part

    def _tell(self) -> None:
        if self._job is not None and self._stopping:
            with suppress(OSError):
                self._job.sendall(b"stop\n")


def watch_control(stop: Callable[[], None], environ: Mapping[str, str] | None = None) -> None:
    """In the job: call `stop` when told to or when `submit` is gone, and end by force what has not ended in time."""
    path = (os.environ if environ is None else environ).get(CONTROL_VARIABLE)
    if path is None:
        return  # started by hand with spark-submit
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(_CONNECT_TIMEOUT_S)
    try:
        line.connect(path)
    except OSError:
        os._exit(1)  # submit ended while the JVM started
    line.settimeout(None)
    _lines.append(line)
    threading.Thread(target=_watch, args=(line, stop, os.getppid()), daemon=True).start()


def report_error(text: str) -> bool:
    """In the job: hand an error to `submit`, which writes it to stderr; False when there is none."""
    for line in _lines:
        with suppress(OSError):
            line.sendall(text.encode()[:_ERROR_BYTES_MAX])
            return True
    return False


def _watch(line: socket.socket, stop: Callable[[], None], jvm_pid: int) -> None:
    with line, suppress(OSError):
        line.recv(16)
    stop()
    threading.Event().wait(STOP_GRACE_S)
    with suppress(OSError):
        os.kill(jvm_pid, signal.SIGKILL)
    os._exit(1)
