"""mosquitto as a reference peer: TCP and WebSocket listeners on free ports of loopback."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Mosquitto:
    host: str
    port: int
    websocket_port: int


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def running_mosquitto(folder: Path) -> Iterator[Mosquitto]:
    """One mosquitto process, ready; a missing one fails with what to install."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    assert found, "these tests need mosquitto as a reference peer: apt-get install mosquitto"
    port, websocket_port = free_ports(2)
    config = folder / "mosquitto.conf"
    config.write_text(
        "per_listener_settings false\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 20\n"
        f"listener {port} 127.0.0.1\nprotocol mqtt\nlistener {websocket_port} 127.0.0.1\nprotocol websockets\n"
    )
    process = subprocess.Popen([found, "-c", str(config)], stderr=subprocess.PIPE, text=True)
    running = threading.Event()
    assert process.stderr is not None
    threading.Thread(target=_read_log, args=(process.stderr, running), daemon=True).start()
    try:
        assert running.wait(10), "mosquitto did not start"
        yield Mosquitto("127.0.0.1", port, websocket_port)
    finally:
        process.terminate()
        process.wait(timeout=10)


def _read_log(lines: IO[str], running: threading.Event) -> None:
    """Read to the end: mosquitto stands still when nobody empties its pipe."""
    with lines:
        for line in lines:
            if "running" in line:
                running.set()
