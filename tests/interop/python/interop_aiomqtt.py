"""aiomqtt: `async with`, `async for`, everything awaited. MQTT 3.1.1 and 5."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiomqtt
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
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

ARGS = arguments()
A, B = (ARGS.host_a, ARGS.port_a), (ARGS.host_b, ARGS.port_b)


def properties(packet_type: int, **values: Any) -> Properties:
    made = Properties(packet_type)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Link:
    """A connected `aiomqtt.Client` and what a check asks of it."""

    def __init__(self, client: aiomqtt.Client, version: int) -> None:
        self.client = client
        self.version = version

    async def subscribe(self, topic_filter: str, qos: int, subscription_id: int = 0) -> int:
        """The reason code of the SUBACK."""
        if self.version == 5:
            with_id = {"SubscriptionIdentifier": subscription_id} if subscription_id else {}
            asked: dict[str, Any] = {"options": SubscribeOptions(qos)}
            asked["properties"] = properties(PacketTypes.SUBSCRIBE, **with_id)
        else:
            asked = {"qos": qos}
        [granted] = await self.client.subscribe(topic_filter, **asked)
        return granted if isinstance(granted, int) else granted.value

    async def subscribed(self, topic_filter: str, qos: int, subscription_id: int = 0) -> None:
        expect_equal(await self.subscribe(topic_filter, qos, subscription_id), qos, f"granted for {topic_filter}")

    async def publish(self, topic_name: str, *payloads: bytes, qos: int = 1, retain: bool = False, **more: Any) -> None:
        """All of them at once, then wait for every acknowledgement."""
        made = properties(PacketTypes.PUBLISH, **more) if more else None
        await asyncio.gather(
            *(self.client.publish(topic_name, each, qos, retain, made, timeout=WAIT_S) for each in payloads)
        )

    async def get(self, wait_s: float = WAIT_S) -> Message:
        try:
            got = await asyncio.wait_for(anext(self.client.messages), wait_s)
        except TimeoutError:
            raise CheckFailed(f"no message within {wait_s:.1f} s") from None
        assert isinstance(got.payload, bytes)
        found = got.properties.__dict__ if got.properties else {}
        return Message(str(got.topic), got.payload, got.qos, got.retain, found)

    async def get_many(self, topic_name: str, payloads: list[bytes], qos: int) -> None:
        """Exactly these, in this order."""
        for number, payload in enumerate(payloads):
            wanted = Message(topic_name, payload, qos, False)
            expect_equal(await self.get(), wanted, f"message {number} of {len(payloads)}")


@asynccontextmanager
async def connected(
    address: tuple[str, int], version: int, *, client_id: str = "", clean: bool = True, expiry_s: int = 0, **more: Any
) -> AsyncIterator[Link]:
    """One connection, disconnected properly at the end."""
    if version == 5:
        more["clean_start"] = clean
        more["properties"] = properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s)
    else:
        more["clean_session"] = clean
    name = client_id or f"aiomqtt-{uuid.uuid4().hex[:12]}"
    protocol = aiomqtt.ProtocolVersion(version)
    more |= {"identifier": name, "protocol": protocol, "timeout": WAIT_S, "max_inflight_messages": ARGS.window}
    async with aiomqtt.Client(*address, **more) as client:
        yield Link(client, version)


async def connect(version: int, prefix: str) -> None:
    for address in (A, B):
        async with connected(address, version):
            pass


async def exchange(version: int, prefix: str, qos: int) -> None:
    payloads = [payload_of(number) for number in range(COUNT)]
    for way, (there, here) in {"a-b": (A, B), "b-a": (B, A)}.items():
        name = f"{prefix}/qos{qos}/{way}"
        async with connected(here, version) as reader, connected(there, version) as writer:
            await reader.subscribed(name, qos)
            await writer.publish(name, *payloads, qos=qos)
            await reader.get_many(name, payloads, qos)


async def retained(version: int, prefix: str) -> None:
    name = f"{prefix}/retained/x"
    async with connected(A, version) as writer:
        await writer.publish(name, b"kept", retain=True)
        for left in reversed(range(TRIES)):
            async with connected(B, version) as reader:
                await reader.subscribed(name, 1)
                try:
                    expect_equal(await reader.get(2), Message(name, b"kept", 1, True), "a new subscriber's message")
                except CheckFailed:
                    if not left:
                        raise
                    continue
                await writer.publish(name, b"live", retain=True)
                expect_equal(await reader.get(), Message(name, b"live", 1, False), "a live message")
                break
        await writer.publish(name, b"", retain=True)
        for left in reversed(range(TRIES)):
            async with connected(B, version) as reader:
                await reader.subscribed(f"{prefix}/retained/+", 1)
                await writer.publish(f"{prefix}/retained/end", b"end")
                if (await reader.get()).payload == b"end":
                    return
                expect(left, "a deleted retained message is still sent")


async def cut_off(version: int, last_will: aiomqtt.Will) -> None:
    """A client whose socket is closed without a DISCONNECT."""
    try:
        async with connected(A, version, will=last_will) as victim:
            below = victim.client._client.socket()
            assert below is not None
            below.shutdown(socket.SHUT_RDWR)
            async for _ in victim.client.messages:
                pass
    except aiomqtt.MqttError:
        return


async def will(version: int, prefix: str) -> None:
    name = f"{prefix}/will"
    async with connected(B, version) as watcher, connected(A, version) as writer:
        await watcher.subscribed(name, 1)
        await asyncio.wait_for(cut_off(version, aiomqtt.Will(name, b"gone", 1)), WAIT_S)
        expect_equal(await watcher.get(), Message(name, b"gone", 1, False), "the will")
        async with connected(A, version, will=aiomqtt.Will(name, b"never", 1)):
            pass
        await writer.publish(name, b"end")
        expect_equal((await watcher.get()).payload, b"end", "after a proper DISCONNECT")


async def shared(version: int, prefix: str) -> None:
    name = f"{prefix}/shared"
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def collect(member: Link) -> None:
        async for message in member.client.messages:
            assert isinstance(message.payload, bytes)
            got.put_nowait(message.payload)

    async with connected(A, version) as one, connected(B, version) as two, connected(A, version) as writer:
        for member in (one, two):
            granted = await member.subscribe(f"$share/g/{name}", 1)
            if granted == 0x9E:
                raise Unsupported("SUBACK 0x9E: shared subscriptions not supported")
            expect_equal(granted, 1, "granted for the shared subscription")
        collecting = [asyncio.ensure_future(collect(member)) for member in (one, two)]
        try:
            payloads = [payload_of(number) for number in range(COUNT)]
            await writer.publish(name, *payloads)
            async with asyncio.timeout(WAIT_S):
                found = [await got.get() for _ in payloads]
            expect_equal(sorted(found), sorted(payloads), "all messages, each once")
            await asyncio.wait(collecting, timeout=ABSENT_S)
            expect(got.empty(), "more messages than were published")
        finally:
            for each in collecting:
                each.cancel()
            await asyncio.wait(collecting)


async def v5_properties(version: int, prefix: str) -> None:
    name = f"{prefix}/properties"
    async with connected(B, version) as reader, connected(A, version) as writer:
        await reader.subscribed(name, 1, subscription_id=7)
        sent = {
            "PayloadFormatIndicator": 1,
            "ContentType": "text/plain",
            "ResponseTopic": f"{prefix}/answers",
            "CorrelationData": b"\x00\xff",
            "UserProperty": USER_PROPERTIES,
        }
        await writer.publish(name, "é".encode(), MessageExpiryInterval=600, **sent)
        got = (await reader.get()).properties
        left = got.get("MessageExpiryInterval")
        expect(isinstance(left, int) and 590 <= left <= 600, f"message expiry {left} of 600")
        expect_equal({key: got.get(key) for key in sent}, sent, "properties")
        expect_equal(got.get("SubscriptionIdentifier"), [7], "subscription identifier")


async def session(version: int, prefix: str) -> None:
    again = functools.partial(connected, version=version, client_id=f"aiomqtt-{uuid.uuid4().hex[:12]}", expiry_s=300)
    names = {qos: f"{prefix}/session/{qos}" for qos in (1, 2)}
    payloads = [payload_of(number) for number in range(COUNT)]
    async with again(B, clean=False) as reader:
        for qos, name in names.items():
            await reader.subscribed(name, qos)
    async with connected(A, version) as writer:
        for qos, name in names.items():
            await writer.publish(name, *payloads, qos=qos)
    async with again(A, clean=False) as reader:
        got = [await reader.get() for _ in range(2 * COUNT)]
        for qos, name in names.items():
            mine = [(each.payload, each.qos) for each in got if each.topic_name == name]
            expect_equal(mine, [(payload, qos) for payload in payloads], f"offline messages of QoS {qos}")
    async with connected(A, version, client_id=again.keywords["client_id"]):
        pass  # a clean start ends the session


async def over(version: int, prefix: str, near: Any, far: tuple[str, int]) -> None:
    """A transport: both ways, and a message larger than one frame."""
    payloads = [payload_of(0), payload_of(1) * 400]
    async with near(version=version) as link, connected(far, version) as other:
        await link.subscribed(f"{prefix}/to", 1)
        await other.subscribed(f"{prefix}/from", 1)
        await other.publish(f"{prefix}/to", *payloads)
        await link.get_many(f"{prefix}/to", payloads, 1)
        await link.publish(f"{prefix}/from", *payloads)
        await other.get_many(f"{prefix}/from", payloads, 1)


async def websocket(version: int, prefix: str) -> None:
    url = urlsplit(ARGS.ws_url)
    near = functools.partial(
        connected, (url.hostname, url.port), transport="websockets", websocket_path=url.path or "/"
    )
    await over(version, f"{prefix}/ws", near, A)


async def tls(version: int, prefix: str) -> None:
    context = ssl.create_default_context(cafile=ARGS.ca)
    near = functools.partial(connected, (ARGS.host_a, ARGS.tls_port), tls_context=context)
    await over(version, f"{prefix}/tls", near, B)


def checks_of(version: int) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[..., Awaitable[None]]] = {"connect": connect}
    found |= {f"qos{qos}": functools.partial(exchange, qos=qos) for qos in (0, 1, 2)}
    found |= {"retained": retained, "will": will, "session": session}
    if version == 5:
        found |= {"shared": shared, "properties": v5_properties}
    if ARGS.ws_url:
        found["websocket"] = websocket
    if ARGS.tls_port:
        found["tls"] = tls
    prefix = new_prefix(version)

    def blocking(check: Callable[..., Any]) -> Callable[[], None]:
        return lambda: asyncio.run(check(version, prefix))

    return {name: blocking(check) for name, check in found.items()}


if __name__ == "__main__":
    sys.exit(run_all({version: checks_of(version) for version in (4, 5)}))
