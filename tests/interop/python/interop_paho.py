"""paho-mqtt: callbacks on its own thread, a queue to wait at. MQTT 3.1, 3.1.1 and 5."""

from __future__ import annotations

import functools
import queue
import socket
import sys
import threading
import uuid
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as paho
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
    payload_of,
    run_all,
)
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

ARGS = arguments()
A, B = (ARGS.host_a, ARGS.port_a), (ARGS.host_b, ARGS.port_b)


def properties(packet_type: int, **values: Any) -> Properties:
    made = Properties(packet_type)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Link:
    """One connection; `with` disconnects it properly."""

    def __init__(
        self,
        address: tuple[str, int],
        version: int,
        *,
        client_id: str = "",
        clean: bool = True,
        expiry_s: int = 0,
        will: tuple[str, bytes] | None = None,
        transport: Any = "tcp",
        ws_path: str = "",
        ca: str = "",
    ) -> None:
        self.version = version
        self.inbox: queue.Queue[Message] = queue.Queue()
        self.session_present = False
        self.refusal = ""
        self._connected, self._acknowledged = threading.Event(), threading.Event()
        self._granted: list[ReasonCode] = []
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id or f"paho-{uuid.uuid4().hex[:12]}",
            clean_session=clean if version < 5 else None,
            protocol=MQTTProtocolVersion(version),
            transport=transport,
            reconnect_on_failure=False,
        )
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_subscribe
        self.client.on_disconnect = self._on_disconnect
        self.client.max_inflight_messages_set(ARGS.window)
        if will is not None:
            self.client.will_set(*will, qos=1)
        if ws_path:
            self.client.ws_set_options(ws_path)
        if ca:
            self.client.tls_set(ca)
        more: dict[str, Any] = {}
        if version == 5:
            more["clean_start"] = clean
            more["properties"] = properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s)
        self.client.connect(*address, keepalive=30, **more)
        self.client.loop_start()
        if not self._connected.wait(WAIT_S) or self.refusal:
            self.client.loop_stop()
            raise CheckFailed(f"not connected to {address}: {self.refusal or 'no CONNACK'}")

    def _on_connect(self, _: Any, __: Any, flags: Any, reason: ReasonCode, ___: Any) -> None:
        self.session_present = flags.session_present
        self.refusal = str(reason) if reason.is_failure else ""
        self._connected.set()

    def _on_message(self, _: Any, __: Any, message: paho.MQTTMessage) -> None:
        found = message.properties.__dict__ if message.properties else {}
        self.inbox.put(Message(message.topic, message.payload, message.qos, message.retain, found))

    def _on_subscribe(self, _: Any, __: Any, ___: int, granted: list[ReasonCode], ____: Any) -> None:
        self._granted = granted
        self._acknowledged.set()

    def _on_disconnect(self, _: Any, __: Any, ___: Any, reason: ReasonCode, ____: Any) -> None:
        self.refusal = str(reason)
        self._acknowledged.set()

    def subscribe(self, topic_filter: str, qos: int, subscription_id: int = 0) -> int:
        """The reason code of the SUBACK."""
        self._acknowledged.clear()
        if self.version == 5:
            with_id = {"SubscriptionIdentifier": subscription_id} if subscription_id else {}
            self.client.subscribe(
                topic_filter, options=SubscribeOptions(qos), properties=properties(PacketTypes.SUBSCRIBE, **with_id)
            )
        else:
            self.client.subscribe(topic_filter, qos)
        expect(self._acknowledged.wait(WAIT_S), f"no SUBACK for {topic_filter}")
        if not self._granted:
            raise CheckFailed(f"closed instead of a SUBACK for {topic_filter}: {self.refusal}")
        return self._granted[0].value

    def subscribed(self, topic_filter: str, qos: int, subscription_id: int = 0) -> None:
        expect_equal(self.subscribe(topic_filter, qos, subscription_id), qos, f"granted for {topic_filter}")

    def publish(self, topic_name: str, *payloads: bytes, qos: int = 1, retain: bool = False, **more: Any) -> None:
        """All of them at once, then wait for every acknowledgement."""
        made = properties(PacketTypes.PUBLISH, **more) if more else None
        infos = [self.client.publish(topic_name, each, qos, retain, made) for each in payloads]
        for info in infos:
            info.wait_for_publish(WAIT_S)
            expect(info.is_published(), f"QoS {qos} message to {topic_name} was not acknowledged")

    def get(self, wait_s: float = WAIT_S) -> Message:
        try:
            return self.inbox.get(timeout=wait_s)
        except queue.Empty:
            raise CheckFailed(f"no message within {wait_s:.0f} s; {self.refusal or 'still connected'}") from None

    def get_many(self, topic_name: str, payloads: list[bytes], qos: int) -> None:
        """Exactly these, in this order."""
        for number, payload in enumerate(payloads):
            expect_equal(self.get(), Message(topic_name, payload, qos, False), f"message {number} of {len(payloads)}")

    def cut(self) -> None:
        """Close the socket without a DISCONNECT."""
        below = self.client.socket()
        assert below is not None
        below.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def connect(version: int, prefix: str) -> None:
    for address in (A, B):
        with Link(address, version) as link:
            expect(not link.session_present, "session present for a new client")


def exchange(version: int, prefix: str, qos: int) -> None:
    payloads = [payload_of(number) for number in range(COUNT)]
    for way, (there, here) in {"a-b": (A, B), "b-a": (B, A)}.items():
        name = f"{prefix}/qos{qos}/{way}"
        with Link(here, version) as reader, Link(there, version) as writer:
            reader.subscribed(name, qos)
            writer.publish(name, *payloads, qos=qos)
            reader.get_many(name, payloads, qos)


def retained(version: int, prefix: str) -> None:
    name = f"{prefix}/retained/x"
    with Link(A, version) as writer:
        writer.publish(name, b"kept", retain=True)
        for left in reversed(range(TRIES)):
            with Link(B, version) as reader:
                reader.subscribed(name, 1)
                try:
                    expect_equal(reader.get(2), Message(name, b"kept", 1, True), "a new subscriber's message")
                except CheckFailed:
                    if not left:
                        raise
                    continue
                writer.publish(name, b"live", retain=True)
                expect_equal(reader.get(), Message(name, b"live", 1, False), "a live message")
                break
        writer.publish(name, b"", retain=True)
        for left in reversed(range(TRIES)):
            with Link(B, version) as reader:
                reader.subscribed(f"{prefix}/retained/+", 1)
                writer.publish(f"{prefix}/retained/end", b"end")
                if reader.get().payload == b"end":
                    return
                expect(left, "a deleted retained message is still sent")


def will(version: int, prefix: str) -> None:
    name = f"{prefix}/will"
    with Link(B, version) as watcher, Link(A, version) as writer:
        watcher.subscribed(name, 1)
        Link(A, version, will=(name, b"gone")).cut()
        expect_equal(watcher.get(), Message(name, b"gone", 1, False), "the will")
        with Link(A, version, will=(name, b"never")):
            pass
        writer.publish(name, b"end")
        expect_equal(watcher.get().payload, b"end", "after a proper DISCONNECT")


def shared(version: int, prefix: str) -> str:
    name = f"{prefix}/shared"
    with Link(A, version) as one, Link(B, version) as two, Link(A, version) as writer:
        for member in (one, two):
            granted = member.subscribe(f"$share/g/{name}", 1)
            if granted == 0x9E:
                raise Unsupported("SUBACK 0x9E: shared subscriptions not supported")
            expect_equal(granted, 1, "granted for the shared subscription")
        inbox = one.inbox = two.inbox  # before anything is published
        payloads = [payload_of(number) for number in range(COUNT)]
        writer.publish(name, *payloads)
        got = [two.get().payload for _ in payloads]
        expect_equal(sorted(got), sorted(payloads), "all messages, each once")
        try:
            extra = inbox.get(timeout=ABSENT_S)
        except queue.Empty:
            return ""
        raise CheckFailed(f"one more than was published: {extra}")


def v5_properties(version: int, prefix: str) -> None:
    name = f"{prefix}/properties"
    with Link(B, version) as reader, Link(A, version) as writer:
        reader.subscribed(name, 1, subscription_id=7)
        sent = {
            "PayloadFormatIndicator": 1,
            "MessageExpiryInterval": 600,
            "ContentType": "text/plain",
            "ResponseTopic": f"{prefix}/answers",
            "CorrelationData": b"\x00\xff",
            "UserProperty": USER_PROPERTIES,
        }
        writer.publish(name, "é".encode(), **sent)
        got = reader.get().properties
        left = got.pop("MessageExpiryInterval", None)
        expect(isinstance(left, int) and 590 <= left <= 600, f"message expiry {left} of 600")
        sent.pop("MessageExpiryInterval")
        expect_equal({key: got.get(key) for key in sent}, sent, "properties")
        expect_equal(got.get("SubscriptionIdentifier"), [7], "subscription identifier")


def session(version: int, prefix: str) -> None:
    again = functools.partial(Link, version=version, client_id=f"paho-{uuid.uuid4().hex[:12]}")
    names = {qos: f"{prefix}/session/{qos}" for qos in (1, 2)}
    payloads = [payload_of(number) for number in range(COUNT)]
    with again(B, clean=False, expiry_s=300) as reader:
        expect(not reader.session_present, "session present at the first connection")
        for qos, name in names.items():
            reader.subscribed(name, qos)
    with Link(A, version) as writer:
        for qos, name in names.items():
            writer.publish(name, *payloads, qos=qos)
    with again(A, clean=False, expiry_s=300) as reader:
        if version > 3:
            expect(reader.session_present, "no session present on the other edge")
        got = [reader.get() for _ in range(2 * COUNT)]
        for qos, name in names.items():
            mine = [(each.payload, each.qos) for each in got if each.topic_name == name]
            expect_equal(mine, [(payload, qos) for payload in payloads], f"offline messages of QoS {qos}")
    with again(A, clean=True) as reader:
        expect(not reader.session_present, "session present after a clean start")


def over(version: int, prefix: str, near: Any, far: tuple[str, int]) -> None:
    """A transport: both ways, and a message larger than one frame."""
    payloads = [payload_of(0), payload_of(1) * 400]
    with near() as link, Link(far, version) as other:
        link.subscribed(f"{prefix}/to", 1)
        other.subscribed(f"{prefix}/from", 1)
        other.publish(f"{prefix}/to", *payloads)
        link.get_many(f"{prefix}/to", payloads, 1)
        link.publish(f"{prefix}/from", *payloads)
        other.get_many(f"{prefix}/from", payloads, 1)


def websocket(version: int, prefix: str) -> None:
    url = urlsplit(ARGS.ws_url)
    near = functools.partial(Link, (url.hostname, url.port), version, transport="websockets", ws_path=url.path or "/")
    over(version, f"{prefix}/ws", near, A)


def tls(version: int, prefix: str) -> None:
    over(version, f"{prefix}/tls", functools.partial(Link, (ARGS.host_a, ARGS.tls_port), version, ca=ARGS.ca), B)


def checks_of(version: int) -> dict[str, Any]:
    found: dict[str, Any] = {"connect": connect}
    found |= {f"qos{qos}": functools.partial(exchange, qos=qos) for qos in (0, 1, 2)}
    found |= {"retained": retained, "will": will}
    if version == 5:
        found |= {"shared": shared, "properties": v5_properties}
    found["session"] = session
    if ARGS.ws_url:
        found["websocket"] = websocket
    if ARGS.tls_port:
        found["tls"] = tls
    prefix = new_prefix(version)
    return {name: functools.partial(check, version, prefix) for name, check in found.items()}


if __name__ == "__main__":
    sys.exit(run_all({version: checks_of(version) for version in (3, 4, 5)}))
