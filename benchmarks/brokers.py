"""The three brokers as child processes: started, stopped, started afresh, never left behind."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from benchmarks.processes import BenchmarkError, GuardedProcess, await_port, cpu_s
from benchmarks.scenarios import AMQTT, BROKERS, HEADWATER, MOSQUITTO
from bridge import topics_admin
from bridge.embedded_kafka import EmbeddedKafka
from bridge.embedded_kafka.jars import KAFKA_VERSION
from bridge.embedded_kafka.server import free_port
from edge.access.passwords import add_user
from edge.cli.children import Child
from edge.node.config import make_config
from schemas.catalogue import catalogue
from schemas.routes import DEFAULT_ROUTES

HERE = Path(__file__).resolve().parent
USER_NAME = "bench"
_SBIN = "/usr/sbin:/usr/local/sbin"  # where Debian puts mosquitto; not on every PATH

# Authentication, ACL check, limits and keep alive are on. Rates are 0 (none), for one client sends here what a site
# does, and the counters of failures and of flapping clients are raised, for all clients come from one address.
ACL = (
    {"permit": "deny", "action": "all", "filter": "bench/secret/#"},
    {"permit": "allow", "action": "all", "filter": "devices/%u/#"},
    {"permit": "allow", "action": "all", "filter": "bench/#", "user": USER_NAME},
)
LIMITS = {
    "messages_per_s": 0,
    "bytes_per_s": 0,
    "connects_per_s": 0,
    "unauthenticated_per_address_per_s": 0,
    "unauthenticated_per_address_max": 1_000,
    "flapping_per_min": 100_000,
}

# What mosquitto would drop when a subscriber lags for a moment counts as lost here, so it is allowed to queue more.
MOSQUITTO_CONFIG = """listener {port} 127.0.0.1
allow_anonymous true
max_queued_messages 100000
connection_messages false
log_dest stderr
log_type error
log_type warning
"""


class Broker(Protocol):
    """One broker. `user_name` and `password` are what clients must show, if anything."""

    name: str
    user_name: str
    password: str

    async def start(self) -> None:
        """Return when clients are served. Raises BenchmarkError or what the parts raise."""
        ...

    async def restart(self) -> None:
        """A fresh process (for Headwater: of the edge; its Kafka goes on)."""
        ...

    async def stop(self) -> None:
        """Stop all of it. Idempotent."""
        ...

    @property
    def address(self) -> str:
        """host:port."""
        ...

    @property
    def pid(self) -> int:
        """The process whose CPU and memory count."""
        ...

    @property
    def kafka_pid(self) -> int | None:
        """The JVM behind it."""
        ...

    @property
    def version(self) -> str: ...


class _PlainBroker:
    """A broker that is one command."""

    name = ""
    user_name = ""
    password = ""
    kafka_pid: int | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._process: GuardedProcess | None = None

    def _command(self) -> list[str]:
        raise NotImplementedError

    async def start(self) -> None:
        self._port = free_port()
        self._process = GuardedProcess(self._command(), self._folder / f"{self.name}.log")
        await await_port(self._port, self._process)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid


class MosquittoBroker(_PlainBroker):
    """The mosquitto of this machine, in memory, anonymous."""

    name = MOSQUITTO

    def _command(self) -> list[str]:
        config = self._folder / "mosquitto.conf"
        config.write_text(MOSQUITTO_CONFIG.format(port=self._port))
        return [_find_mosquitto(), "-c", str(config)]

    @property
    def version(self) -> str:
        answer = subprocess.run([_find_mosquitto(), "-h"], capture_output=True, text=True, timeout=10, check=False)
        return answer.stdout.partition("\n")[0].removeprefix("mosquitto version ").strip()


class AmqttBroker(_PlainBroker):
    """amqtt's own broker, in memory, anonymous."""

    name = AMQTT

    def _command(self) -> list[str]:
        return [sys.executable, str(HERE / "amqtt_broker.py"), str(self._port)]

    @property
    def version(self) -> str:
        return version("amqtt")


class HeadwaterBroker:
    """One edge and a real Kafka of its own; clients need a password and pass the ACL."""

    name = HEADWATER
    user_name = USER_NAME

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kafka: EmbeddedKafka | None = None
        self._edge: Child | None = None
        self._address = ""
        self.password = secrets.token_urlsafe(16)

    async def start(self) -> None:
        self._kafka = EmbeddedKafka(self._folder / "kafka")
        await asyncio.to_thread(self._kafka.start)
        await topics_admin.apply(self._kafka.bootstrap, catalogue(DEFAULT_ROUTES), 1)
        add_user(self._folder / "passwords", USER_NAME, self.password)
        await self._start_edge()

    async def restart(self) -> None:
        if self._edge is not None:
            await self._edge.stop()
        await self._start_edge()

    async def stop(self) -> None:
        edge, self._edge = self._edge, None
        kafka, self._kafka = self._kafka, None
        if edge is not None:
            await edge.stop()
        if kafka is not None:
            await asyncio.to_thread(kafka.stop)

    async def _start_edge(self) -> None:
        assert self._kafka is not None
        table: dict[str, Any] = {
            "node_id": "bench",
            "kafka": {"bootstrap_servers": self._kafka.bootstrap},
            "listeners": [{"host": "127.0.0.1", "port": 0}],
            "http": {"host": "127.0.0.1", "port": 0},
            "authentication": {"password_file": str(self._folder / "passwords")},
            "acl": ACL,
            "limits": LIMITS,
        }
        self._edge = Child.edge(make_config(table, "benchmarks"), log_path=self._folder / "edge.log")
        await self._edge.start()
        self._address = (await self._edge.ready())["mqtt"]

    @property
    def address(self) -> str:
        return self._address

    @property
    def pid(self) -> int:
        assert self._edge is not None, "not started"
        return self._edge.pid

    @property
    def kafka_pid(self) -> int | None:
        return self._kafka.pid if self._kafka is not None else None

    @property
    def version(self) -> str:
        return f"{version('headwater')}, Kafka {KAFKA_VERSION}" if _is_installed() else f"tree, Kafka {KAFKA_VERSION}"


_MAKERS: dict[str, Callable[[Path], Broker]] = {
    HEADWATER: HeadwaterBroker,
    MOSQUITTO: MosquittoBroker,
    AMQTT: AmqttBroker,
}


def available(wanted: tuple[str, ...] = BROKERS) -> tuple[list[str], list[str]]:
    """The brokers that can run here, and a plain statement about each that cannot."""
    present, missing = [], []
    for name in wanted:
        if name == MOSQUITTO and not _find_mosquitto():
            missing.append("mosquitto is not installed (apt-get install mosquitto): nothing is compared with it")
        else:
            present.append(name)
    return present, missing


def make_broker(name: str, folder: Path) -> Broker:
    """A broker that keeps its files in a folder of its own below `folder`."""
    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    return _MAKERS[name](own)


def is_alive(broker: Broker) -> bool:
    """Whether its process is there."""
    try:
        cpu_s(broker.pid)
    except (OSError, AssertionError, BenchmarkError):
        return False
    return True


def _find_mosquitto() -> str:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=_SBIN) or ""


def _is_installed() -> bool:
    try:
        version("headwater")
    except ModuleNotFoundError:  # PackageNotFoundError is one
        return False
    return True
