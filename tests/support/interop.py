"""Servers and client programs for tests/interop: two edges or one mosquitto, builds in a cache, results."""

from __future__ import annotations

import datetime
import fcntl
import getpass
import hashlib
import ipaddress
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SOURCES = Path(__file__).resolve().parent.parent / "interop"
BUILD_TIMEOUT_S = 600.0  # the first one on a machine: packages are fetched and compiled
RUN_TIMEOUT_S = 240.0
READY_TIMEOUT_S = 60.0
HEADWATER = (sys.executable, "-m", "edge.cli.app")
NOT_SOURCES = {
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    "node_modules",
    "target",
}  # of somebody who tried a program by hand
STOP_TIMEOUT_S = 30.0
WINDOW = 100  # messages that a client may have unacknowledged: more than any check sends
MOSQUITTO_WINDOW = 20  # at 21 of QoS 2 it closes, in version 3.1.1, too, where no client can know
CERTIFICATE_LIFE = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """PEM files of a server on this machine, and of the authority that signed it."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Servers:
    """Edge A and edge B: what a script is told on its command line."""

    a: tuple[str, int]
    b: tuple[str, int]
    ws_url: str
    tls_port: int
    ca: Path
    window: int

    @property
    def arguments(self) -> list[str]:
        """The command line that tests/interop/README.md describes."""
        found = [f"--{name}-{edge}={value}" for edge in "ab" for name, value in self._address(edge)]
        return [
            *found,
            f"--ws-url={self.ws_url}",
            f"--tls-port={self.tls_port}",
            f"--ca={self.ca}",
            f"--window={self.window}",
        ]

    def _address(self, edge: str) -> list[tuple[str, object]]:
        return list(zip(("host", "port"), self.a if edge == "a" else self.b, strict=True))


@dataclass(frozen=True)
class Program:
    """A client of tests/interop: its folder, how it is built in a copy of it, how it is started there."""

    folder: str
    build: tuple[str, ...]
    run: tuple[str, ...]


@dataclass(frozen=True)
class Results:
    """The JSON lines of one run by (check, version), and what it wrote to standard error."""

    lines: dict[tuple[str, int], dict[str, Any]]
    stderr: str
    code: int


def make_certificate(folder: Path) -> Certificate:
    """An authority and a server certificate for 127.0.0.1 and localhost, made on the fly."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in ("interop authority", "localhost")
    )

    def builder(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(ca_name, subject, public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CERTIFICATE_LIFE)
            .not_valid_after(now + CERTIFICATE_LIFE)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )

    usage = dict.fromkeys(("content_commitment", "data_encipherment", "key_agreement", "key_encipherment"), False)
    usage |= {"encipher_only": False, "decipher_only": False}
    authority = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=True, **usage), True)
        .sign(ca_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        builder(name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **usage), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    made = Certificate(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    made.ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    made.key.write_bytes(key.private_bytes(*form))
    return made


def free_port() -> int:
    """A port below those that the kernel hands out by itself: nobody takes it while a server starts."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("100 ports were tried and none was free")


@contextmanager
def mosquitto_servers(folder: Path) -> Iterator[Servers]:
    """One mosquitto as A and B: the scripts themselves are held to it."""
    made = make_certificate(folder)
    port, ws_port, tls_port = (free_port() for _ in range(3))
    config = folder / "mosquitto.conf"
    config.write_text(
        f"allow_anonymous true\nmax_queued_messages 0\npersistence false\nuser {getpass.getuser()}\n"
        f"listener {port} 127.0.0.1\nlistener {ws_port} 127.0.0.1\nprotocol websockets\n"
        f"listener {tls_port} 127.0.0.1\ncertfile {made.certificate}\nkeyfile {made.key}\n"
    )
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    assert found, "mosquitto is not here: apt-get install mosquitto"
    log = folder / "mosquitto.log"
    with _process([found, "-c", str(config)], log, stdout=None) as process:
        _until_running(log, process)
        address = ("127.0.0.1", port)
        yield Servers(address, address, f"ws://127.0.0.1:{ws_port}/mqtt", tls_port, made.ca, MOSQUITTO_WINDOW)


@contextmanager
def edge_servers(folder: Path, bootstrap: str) -> Iterator[Servers]:
    """Two real edges on a real Kafka, each with TCP, TLS and WebSocket."""
    made = make_certificate(folder)
    apply = [*HEADWATER, "topics", "apply", "--dev", "--kafka", bootstrap]
    subprocess.run(apply, check=True, timeout=READY_TIMEOUT_S, stdout=subprocess.DEVNULL)
    tls_ports = [free_port(), free_port()]
    with ExitStack() as stack:
        a, b = (
            stack.enter_context(_edge(folder, f"interop-{name}", bootstrap, made, port))
            for name, port in zip("ab", tls_ports, strict=True)
        )
        yield Servers(_address(a["mqtt"]), _address(b["mqtt"]), f"ws://{b['http']}/mqtt", tls_ports[0], made.ca, WINDOW)


@contextmanager
def _edge(folder: Path, node_id: str, bootstrap: str, made: Certificate, tls_port: int) -> Iterator[dict[str, Any]]:
    """One `headwater edge` process; what it says of itself when it is ready."""
    tls = {"certificate": str(made.certificate), "key": str(made.key)}
    config = {
        "node_id": node_id,
        "dev": True,
        "kafka": {"bootstrap_servers": bootstrap},
        "listeners": [{"port": 0}, {"port": tls_port, "tls": tls}],
        "http": {"port": 0},
    }
    log = folder / f"{node_id}.log"
    command = [*HEADWATER, "edge", "--config", "-", "--json"]
    with _process(command, log, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(config).encode() + b"\n")
        process.stdin.flush()
        late = threading.Timer(READY_TIMEOUT_S, process.kill)
        late.start()
        line = process.stdout.readline()
        late.cancel()
        assert line, f"edge {node_id} did not start:\n{log.read_text()[-2000:]}"
        yield json.loads(line)


@contextmanager
def _process(
    command: Sequence[str], log: Path, *, stdin: int | None = None, stdout: int | None = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that ends with the test: SIGTERM, patience, SIGKILL."""
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr)
        with process:
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def _until_running(log: Path, process: subprocess.Popen[bytes]) -> None:
    """Its log says when it is ready; bounded by 10 s."""
    pause = threading.Event()
    for _ in range(1_000):
        if b" running" in log.read_bytes():
            return
        assert process.poll() is None, f"mosquitto ended at its start:\n{log.read_text()}"
        pause.wait(0.01)
    raise AssertionError("mosquitto was not ready within 10 s")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/headwater/interop`, or below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater" / "interop"


def built(program: Program) -> Path:
    """The folder of a build of the program's sources as they are; made once, in the user's cache."""
    sources = SOURCES / program.folder
    files = [path for path in sorted(sources.rglob("*")) if path.is_file() and not NOT_SOURCES & set(path.parts)]
    digest = hashlib.sha256(repr((program.build, sys.version_info[:2])).encode())
    for path in files:
        digest.update(f"{path.relative_to(sources)}\0".encode() + path.read_bytes() + b"\0")
    target = cache_folder() / f"{program.folder}-{digest.hexdigest()[:16]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be building it
        if not target.exists():
            _build(program, sources, target)
    return target


def _build(program: Program, sources: Path, target: Path) -> None:
    """Copy and build beside `target`; it gets its name only when all of it is there."""
    making = target.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(sources, making, ignore=shutil.ignore_patterns(*NOT_SOURCES))
    command = [part.replace("{python}", sys.executable) for part in program.build]
    ran = subprocess.run(
        command, cwd=making, timeout=BUILD_TIMEOUT_S, env=_environment(), stdin=subprocess.DEVNULL, **_CAPTURED
    )
    assert ran.returncode == 0, f"{' '.join(command)} failed:\n{(ran.stdout + ran.stderr)[-4000:]}"
    making.rename(target)


def run(program: Program, servers: Servers) -> Results:
    """Build the program if that was not done, run it against the servers, read its lines."""
    folder = built(program)
    command = [part.replace("{python}", sys.executable) for part in program.run] + servers.arguments
    ran = subprocess.run(
        command, cwd=folder, timeout=RUN_TIMEOUT_S, env=_environment(), stdin=subprocess.DEVNULL, **_CAPTURED
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return Results({(line["check"], line["version"]): line for line in lines}, ran.stderr, ran.returncode)


_CAPTURED: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}


def _environment() -> dict[str, str]:
    """The programs' own libraries, not this project's; Go takes the toolchain that is there."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return ours | {"PYTHONPATH": "lib", "GOTOOLCHAIN": "local"}
