"""mosquitto_pub and mosquitto_sub: one process is one connection, lines are messages. MQTT 3.1, 3.1.1 and 5.

They are given text: a line ends a message. They know no WebSocket here (mosquitto 2.0).
"""

from __future__ import annotations

import functools
import json
import queue
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from typing import Any

from checks import (
    ABSENT_S,
    COUNT,
    TRIES,
    USER_PROPERTIES,
    WAIT_S,
    CheckFailed,
    Message,
    Unsupported,
    arguments,
    expect,
    expect_equal,
    new_prefix,
    run_all,
)

ARGS = arguments()
A, B = ("-h", ARGS.host_a, "-p", str(ARGS.port_a)), ("-h", ARGS.host_b, "-p", str(ARGS.port_b))
TLS = ("-h", ARGS.host_a, "-p", str(ARGS.tls_port), "--cafile", str(ARGS.ca))
# mosquitto 2.0.11 may send the 21st of QoS 2 too early to its own client, which closes then: Receive Maximum 20
LINES = [f"{number}: naïve Grüße, {number:04x}" for number in range(min(COUNT, ARGS.window))]
FORMAT = '{"name": "%t", "qos": %q, "retain": %r, "hex": "%x"}'
PROPERTIES = " ".join(f"{name}=<%{letter}>" for name, letter in zip("FECRDPS", "FECRDPS", strict=True))


def version_option(version: int) -> tuple[str, str]:
    return "-V", {3: "mqttv31", 4: "mqttv311", 5: "mqttv5"}[version]


def new_id() -> str:
    return f"tools-{uuid.uuid4().hex[:12]}"


class Subscriber:
    """A mosquitto_sub; `with` ends it by SIGTERM, on which it disconnects."""

    def __init__(
        self,
        address: Sequence[str],
        version: int,
        *more: str,
        inbox: queue.Queue[Message] | None = None,
        wanted: str = FORMAT,
    ) -> None:
        self.inbox = inbox or queue.Queue()
        self.raw: queue.Queue[str] = queue.Queue()
        self.granted: queue.Queue[int] = queue.Queue()
        command = ["stdbuf", "-oL", "mosquitto_sub", *address, *version_option(version), "-d", "-F", wanted, *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found = json.loads(line)
                payload = bytes.fromhex(found["hex"])
                self.inbox.put(Message(found["name"], payload, found["qos"], bool(found["retain"])))
            elif line.startswith("Subscribed"):
                self.granted.put(int(line.rpartition(":")[2]))
            elif line.startswith("F=<"):
                self.raw.put(line)

    def subscribed(self, qos: int) -> Subscriber:
        """Wait for the SUBACK."""
        try:
            granted = self.granted.get(timeout=WAIT_S)
        except queue.Empty:
            raise CheckFailed("no SUBACK") from None
        if granted == 0x9E:
            raise Unsupported("SUBACK 0x9E: shared subscriptions not supported")
        expect_equal(granted, qos, "granted")
        return self

    def get(self, wait_s: float = WAIT_S) -> Message:
        try:
            return self.inbox.get(timeout=wait_s)
        except queue.Empty:
            raise CheckFailed(f"no message within {wait_s:.1f} s") from None

    def get_many(self, topic_name: str, lines: Sequence[str], qos: int) -> None:
        """Exactly these, in this order."""
        for number, line in enumerate(lines):
            expect_equal(self.get(), Message(topic_name, line.encode(), qos, False), f"message {number}")

    def end(self) -> None:
        """Wait for the process to end by itself."""
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise CheckFailed("mosquitto_sub does not end") from None
        expect_equal(code, 0, "exit code of mosquitto_sub")

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._reading.join(WAIT_S)


def publish(
    address: Sequence[str], version: int, topic_name: str, *more: str, lines: Sequence[str] | None = None
) -> None:
    """mosquitto_pub: the message of `more`, or one a line."""
    command = ["mosquitto_pub", *address, *version_option(version), "-t", topic_name, *more]
    told = None
    if lines is not None:
        command.append("-l")
        told = "".join(line + "\n" for line in lines)
    ran = subprocess.run(command, input=told, text=True, capture_output=True, timeout=2 * WAIT_S)
    expect(ran.returncode == 0, f"mosquitto_pub ended with {ran.returncode}: {ran.stderr.strip()}")


def connect(version: int, prefix: str) -> None:
    for address in (A, B):
        publish(address, version, f"{prefix}/connect", "-m", "x", "-q", "1")


def exchange(version: int, prefix: str, qos: int) -> None:
    for way, (there, here) in {"a-b": (A, B), "b-a": (B, A)}.items():
        name = f"{prefix}/qos{qos}/{way}"
        with Subscriber(here, version, "-t", name, "-q", str(qos)) as reader:
            reader.subscribed(qos)
            publish(there, version, name, "-q", str(qos), lines=LINES)
            reader.get_many(name, LINES, qos)


def retained(version: int, prefix: str) -> None:
    name = f"{prefix}/retained/x"
    publish(A, version, name, "-q", "1", "-r", "-m", "kept")
    for left in reversed(range(TRIES)):
        with Subscriber(B, version, "-t", name, "-q", "1") as reader:
            reader.subscribed(1)
            try:
                expect_equal(reader.get(2), Message(name, b"kept", 1, True), "a new subscriber's message")
            except CheckFailed:
                if not left:
                    raise
                continue
            publish(A, version, name, "-q", "1", "-r", "-m", "live")
            expect_equal(reader.get(), Message(name, b"live", 1, False), "a live message")
            break
    publish(A, version, name, "-q", "1", "-r", "-n")
    for left in reversed(range(TRIES)):
        with Subscriber(B, version, "-t", f"{prefix}/retained/+", "-q", "1") as reader:
            reader.subscribed(1)
            publish(A, version, f"{prefix}/retained/end", "-q", "1", "-m", "end")
            if reader.get().payload == b"end":
                return
            expect(left, "a deleted retained message is still sent")


def will(version: int, prefix: str) -> None:
    name = f"{prefix}/will"

    def victim(payload: str) -> Subscriber:
        with_will = ("--will-topic", name, "--will-payload", payload, "--will-qos", "1")
        return Subscriber(A, version, "-t", f"{prefix}/last", "-q", "1", "-C", "1", *with_will)

    with Subscriber(B, version, "-t", name, "-q", "1") as watcher:
        watcher.subscribed(1)
        with victim("gone") as killed:
            killed.subscribed(1)
            killed.process.kill()
        expect_equal(watcher.get(), Message(name, b"gone", 1, False), "the will")
        if version == 5:  # on SIGTERM it says 0x04, Disconnect with Will Message
            with victim("by request") as asking:
                asking.subscribed(1)
            expect_equal(watcher.get().payload, b"by request", "after a DISCONNECT with will")
        with victim("never") as polite:
            polite.subscribed(1)
            publish(A, version, f"{prefix}/last", "-q", "1", "-m", "enough")
            polite.end()
        publish(A, version, name, "-q", "1", "-m", "end")
        expect_equal(watcher.get().payload, b"end", "after a proper DISCONNECT")


def shared(version: int, prefix: str) -> None:
    name = f"{prefix}/shared"
    inbox: queue.Queue[Message] = queue.Queue()
    with (
        Subscriber(A, version, "-t", f"$share/g/{name}", "-q", "1", inbox=inbox) as one,
        Subscriber(B, version, "-t", f"$share/g/{name}", "-q", "1", inbox=inbox) as two,
    ):
        one.subscribed(1)
        two.subscribed(1)
        publish(A, version, name, "-q", "1", lines=LINES)
        got = sorted(two.get().payload for _ in LINES)
        expect_equal(got, sorted(line.encode() for line in LINES), "all messages, each once")
        try:
            extra = inbox.get(timeout=ABSENT_S)
        except queue.Empty:
            return
        raise CheckFailed(f"one more than was published: {extra}")


def v5_properties(version: int, prefix: str) -> None:
    name = f"{prefix}/properties"
    with_id = ("-D", "subscribe", "subscription-identifier", "7")
    with Subscriber(B, version, "-t", name, "-q", "1", *with_id, wanted=PROPERTIES) as reader:
        reader.subscribed(1)
        more = ["payload-format-indicator 1", "message-expiry-interval 600", "content-type text/plain"]
        more += [f"response-topic {prefix}/answers", "correlation-data c7"]
        more += [f"user-property {key} {value}" for key, value in USER_PROPERTIES]
        options = [word for each in more for word in ("-D", "publish", *each.split())]
        publish(A, version, name, "-q", "1", "-m", "é", *options)
        try:
            got = dict(re.findall(r"(\w)=<(.*?)>", reader.raw.get(timeout=WAIT_S)))
        except queue.Empty:
            raise CheckFailed("no message") from None
        left = int(got.pop("E") or 0)
        expect(590 <= left <= 600, f"message expiry {left} of 600")
        wanted = {"F": "1", "C": "text/plain", "R": f"{prefix}/answers", "D": "c7", "S": "7"}
        wanted["P"] = " ".join(f"{key}:{value}" for key, value in USER_PROPERTIES)
        expect_equal(got, wanted, "properties")


def session(version: int, prefix: str) -> None:
    names = {qos: f"{prefix}/session/{qos}" for qos in (1, 2)}
    lasting = ["-i", new_id(), "-c", *(["-x", "300"] if version == 5 else [])]
    for qos, name in names.items():
        with Subscriber(B, version, *lasting, "-t", name, "-q", str(qos), "-E") as first:
            first.subscribed(qos)
            first.end()
    for qos, name in names.items():
        publish(A, version, name, "-q", str(qos), lines=LINES)
    other = f"{prefix}/session/nothing"  # it always subscribes to something: the two are the session's
    with Subscriber(A, version, *lasting, "-t", other, "-q", "0", "-C", str(2 * len(LINES))) as reader:
        got = [reader.get() for _ in range(2 * len(LINES))]
        for qos, name in names.items():
            mine = [(each.payload, each.qos) for each in got if each.topic_name == name]
            expect_equal(mine, [(line.encode(), qos) for line in LINES], f"offline messages of QoS {qos}")
        reader.end()
    publish(A, version, other, "-i", lasting[1], "-m", "a clean start ends the session")


def tls(version: int, prefix: str) -> None:
    lines = [LINES[0], LINES[1] * 2_000]
    for name, near, far in ((f"{prefix}/to", TLS, B), (f"{prefix}/from", B, TLS)):
        with Subscriber(near, version, "-t", name, "-q", "1") as reader:
            reader.subscribed(1)
            publish(far, version, name, "-q", "1", lines=lines)
            reader.get_many(name, lines, 1)


def checks_of(version: int) -> dict[str, Any]:
    found: dict[str, Any] = {"connect": connect}
    found |= {f"qos{qos}": functools.partial(exchange, qos=qos) for qos in (0, 1, 2)}
    found |= {"retained": retained, "will": will, "session": session}
    if version == 5:
        found |= {"shared": shared, "properties": v5_properties}
    if ARGS.tls_port:
        found["tls"] = tls
    prefix = new_prefix(version)
    return {name: functools.partial(check, version, prefix) for name, check in found.items()}


if __name__ == "__main__":
    sys.exit(run_all({version: checks_of(version) for version in (3, 4, 5)}))
