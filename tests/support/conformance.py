"""What the conformance suite speaks with: a broker somewhere, and clients that keep every frame they were sent.

A test knows its broker by a socket only. Client ids and topic names are fresh in each test, so that what a broker
remembers of another test, or of another run, does not matter.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from support.wire_client import TcpLink, Transport, WebSocketLink, WireClient

from edge.wire import (
    Connack,
    Connect,
    Disconnect,
    Frame,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    decode_for_client,
    variable_bytes,
)

WAIT_S = 5.0  # for what must come
CONNECTION_REFUSED = tuple(range(0x80, 0x100))
RUN = uuid.uuid4().hex[:8]
_numbers = itertools.count(1)
P = TypeVar("P")


def new_client_id() -> str:
    """One that no session has: 1 to 23 letters and digits, which every server must accept."""
    return f"c{RUN}x{next(_numbers)}"


def new_topic_name() -> str:
    """One that nobody has published to or subscribed to."""
    return f"conformance/{RUN}/{next(_numbers)}"


@dataclass(frozen=True)
class Broker:
    """Where the broker under test listens; `websocket_port` is None if it has none."""

    host: str
    port: int
    websocket_port: int | None = None
    scram: tuple[str, str] | None = None  # a user name and its password for SCRAM-SHA-256

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def websocket_url(self) -> str:
        return f"http://{self.host}:{self.websocket_port}/mqtt"


class Client(WireClient):
    """A wire client with the usual exchanges, and a memory: `frames` is all that came, as it came."""

    connack = Connack()  # what its CONNECT was answered
    client_id = ""  # that of its CONNECT, or the one assigned

    def __init__(self, link: TcpLink | WebSocketLink, protocol_version: int) -> None:
        super().__init__(link, protocol_version)
        self.frames: list[Frame] = []
        self.decodes = True  # False: for answers of no known version; `frames` alone has them
        self._packet_ids = itertools.count(1)

    def new_packet_id(self) -> int:
        """1, 2, 3 ...: free as long as a test needs fewer than 65,535."""
        return next(self._packet_ids)

    # What CONNACK says of the features that a server may limit

    @property
    def maximum_qos(self) -> int:
        said = self.connack.properties.maximum_qos
        return 2 if said is None else said

    @property
    def has_retain(self) -> bool:
        return self.connack.properties.retain_available is not False

    @property
    def has_shared(self) -> bool:
        return self.connack.properties.shared_subscription_available is not False

    @property
    def has_wildcards(self) -> bool:
        return self.connack.properties.wildcard_subscription_available is not False

    @property
    def has_subscription_ids(self) -> bool:
        return self.connack.properties.subscription_identifier_available is not False

    def session_expiry_s(self, requested: int) -> int:
        """What was asked for, unless the server has said something else."""
        said = self.connack.properties.session_expiry_interval_s
        return requested if said is None else said

    # Packets

    async def take(self, kind: type[P], where: Callable[[P], bool] = lambda packet: True, wait_s: float = WAIT_S) -> P:
        """The first packet of this kind; those of other kinds keep their places."""
        seen = 0
        while True:
            for index in range(seen, len(self._packets)):
                packet = self._packets[index]
                if isinstance(packet, kind) and where(packet):
                    del self._packets[index]
                    return packet
            seen = len(self._packets)
            assert not self.is_closed, f"closed; no {kind.__name__} came, but {self._packets}"
            await self._more(kind.__name__, wait_s)

    async def receive(self, kind: type[P], wait_s: float = WAIT_S) -> P:
        """The next packet, which must be of this kind."""
        while not self._packets and not self.is_closed:
            await self._more(kind.__name__, wait_s)
        return await super().receive(kind)

    async def until_closed(self, wait_s: float = WAIT_S) -> list[Packet]:
        """Read until the server closes; what came before that."""
        while not self.is_closed:
            await self._more("close", wait_s)
        return await super().until_closed()

    async def _more(self, awaited: str, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._read()
        except TimeoutError:
            raise AssertionError(f"no {awaited} within {wait_s} s, but {self._packets}") from None

    async def message(self) -> Publish:
        """The next PUBLISH, which must be the next packet; nothing is sent in answer."""
        return await self.receive(Publish)

    def waiting(self, kind: type[P]) -> P | None:
        """The first packet of this kind that has come and was not taken; nothing is waited for."""
        for index, packet in enumerate(self._packets):
            if isinstance(packet, kind):
                del self._packets[index]
                return packet
        return None

    async def take_message(self) -> Publish:
        """The next PUBLISH, whatever else has come; its QoS 1 or 2 flow is finished."""
        message = await self.take(Publish)
        await self.finish(message)
        return message

    async def finish(self, message: Publish) -> None:
        """Acknowledge a PUBLISH to the end."""
        if message.qos == 1:
            await self.send(Puback(message.packet_id))
        elif message.qos == 2:
            await self.send(Pubrec(message.packet_id))
            await self.take(Pubrel, lambda packet: packet.packet_id == message.packet_id)
            await self.send(Pubcomp(message.packet_id))

    async def subscribe(self, *filters: str | SubscriptionRequest, qos: int = 0, **properties: Any) -> Suback:
        """SUBSCRIBE, and the SUBACK to it; filters given as strings are asked for with `qos`."""
        requests = tuple(SubscriptionRequest(each, qos) if isinstance(each, str) else each for each in filters)
        packet_id = self.new_packet_id()
        await self.send(Subscribe(packet_id, requests, Properties(**properties) if properties else None))
        return await self.take(Suback, lambda packet: packet.packet_id == packet_id)

    async def unsubscribe(self, *topic_filters: str) -> Unsuback:
        """UNSUBSCRIBE, and the UNSUBACK to it."""
        packet_id = self.new_packet_id()
        await self.send(Unsubscribe(packet_id, topic_filters))
        return await self.take(Unsuback, lambda packet: packet.packet_id == packet_id)

    async def publish(
        self, topic_name: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **properties: Any
    ) -> ReasonCode:
        """PUBLISH, and its flow to the end; the reason code of the PUBACK or PUBREC. QoS 0: nothing is waited for."""
        packet = Publish(
            topic_name.encode(), payload, qos, retain, properties=Properties(**properties) if properties else None
        )
        packet.packet_id = self.new_packet_id() if qos else 0
        await self.send(packet)
        if qos == 0:
            return ReasonCode.SUCCESS
        if qos == 1:
            puback = await self.take(Puback, lambda answer: answer.packet_id == packet.packet_id)
            return puback.reason_code
        pubrec = await self.take(Pubrec, lambda answer: answer.packet_id == packet.packet_id)
        if not pubrec.reason_code.is_error:
            await self.send(Pubrel(packet.packet_id))
            await self.take(Pubcomp, lambda answer: answer.packet_id == packet.packet_id)
        return pubrec.reason_code

    async def ping(self) -> None:
        """PINGREQ; the next packet is the PINGRESP: the server is there, and has sent nothing else."""
        await self.send(Pingreq())
        await self.receive(Pingresp)

    async def take_ping(self) -> None:
        """PINGREQ and its PINGRESP, whatever else has come: what was sent before has been read by the server."""
        await self.send(Pingreq())
        await self.take(Pingresp)

    async def silent_for(self, seconds: float) -> None:
        """Time passes for the server; nothing comes meanwhile, and the connection stays."""
        try:
            async with asyncio.timeout(seconds):
                while not self._packets and not self.is_closed:
                    await self._read()
        except TimeoutError:
            return
        raise AssertionError(f"within {seconds} s came {self._packets or 'the end'}")

    async def disconnect(self, reason_code: int = 0, **properties: Any) -> None:
        """DISCONNECT, and wait for the server's close."""
        await self.send(Disconnect(ReasonCode(reason_code), Properties(**properties) if properties else None))
        await self.until_closed()

    async def closed_for(self, *reason_codes: int, wait_s: float | None = None) -> Disconnect | None:
        """The server closes; it may say why before, in a DISCONNECT of 5.0 with one of these codes (none: any error).

        Nothing but that DISCONNECT comes after what was received before. `wait_s` is for what the client has not
        brought about itself; without it a server that is still answering after 2 s has not closed.
        """
        try:
            packets = await self.until_closed(wait_s or 2)
        except AssertionError:
            if wait_s or not self.decodes:
                raise
            await self.send(Pingreq())
            while not self.is_closed:
                await self._more("close", WAIT_S)
                assert not any(isinstance(packet, Pingresp) for packet in self._packets), f"open: {self._packets}"
            packets = await self.until_closed()
        if not packets:
            return None
        assert len(packets) == 1, packets
        assert isinstance(packets[0], Disconnect), packets
        assert self.protocol_version == 5, "only a client disconnects in 3.1.1"
        assert packets[0].reason_code in (reason_codes or CONNECTION_REFUSED), packets[0]
        return packets[0]

    async def refused_for(self, *reason_codes: int) -> Connack | None:
        """The server closes before any CONNACK, or after one that refuses with one of these codes (none: any)."""
        packets = await self.until_closed()
        if not packets:
            return None
        assert len(packets) == 1, packets
        assert isinstance(packets[0], Connack), packets
        assert packets[0].reason_code in (reason_codes or CONNECTION_REFUSED), packets[0]
        return packets[0]

    async def _read(self) -> None:
        data = await self.link.read()
        self.is_closed = not data
        frames = self._framer.feed(data)
        self.frames += frames
        for first_byte, body in frames if self.decodes else ():
            self._packets.append(decode_for_client(first_byte, body, self.protocol_version))
        assert self._framer.error is None, self._framer.error


class Clients:
    """Opens clients for one test, and hangs them up after it."""

    def __init__(self, broker: Broker, protocol_version: int, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.protocol_version = protocol_version
        self._stack = stack

    async def dial(self, version: int | None = None, transport: Transport = "tcp") -> Client:
        """A network connection; no CONNECT was sent yet."""
        link: TcpLink | WebSocketLink
        if transport == "tcp":
            link = TcpLink(*await asyncio.open_connection(*self.broker.address))
        else:
            session = aiohttp.ClientSession()
            self._stack.push_async_callback(session.close)
            link = WebSocketLink(session, await session.ws_connect(self.broker.websocket_url, protocols=("mqtt",)))
        client = Client(link, version or self.protocol_version)
        self._stack.push_async_callback(client.close)
        return client

    async def connect(
        self,
        client_id: str | None = None,
        version: int | None = None,
        transport: Transport = "tcp",
        properties: Properties | None = None,
        **fields: Any,
    ) -> Client:
        """A client that was accepted; a client id of its own if none is given."""
        client = await self.dial(version, transport)
        client.client_id = new_client_id() if client_id is None else client_id
        packet = Connect(client.protocol_version, client.client_id, properties=properties or Properties(), **fields)
        await client.send(packet)
        client.connack = await client.receive(Connack)
        assert client.connack.reason_code is ReasonCode.SUCCESS, client.connack
        client.client_id = client.connack.properties.assigned_client_identifier or client.client_id
        return client


def frame(first_byte: int, *parts: bytes) -> bytes:
    """A control packet by hand: its first byte, and the body's parts."""
    body = b"".join(parts)
    return bytes((first_byte,)) + variable_bytes(len(body)) + body


def string(text: str | bytes) -> bytes:
    """A UTF-8 Encoded String, or Binary Data, by hand: whatever it holds."""
    raw = text if isinstance(text, bytes) else text.encode()
    return len(raw).to_bytes(2, "big") + raw


def properties(*parts: bytes) -> bytes:
    """Properties by hand, behind their length."""
    body = b"".join(parts)
    return variable_bytes(len(body)) + body


def connect_frame(
    *payload: bytes,
    name: bytes = b"MQTT",
    level: int = 5,
    flags: int = 0x02,
    more: bytes = b"\0",
    first_byte: int = 0x10,
) -> bytes:
    """A CONNECT by hand, keep alive 60 s; `more` is the properties with their length (b"" in 3.1.1)."""
    return frame(first_byte, string(name), bytes((level, flags)), b"\0\x3c", more, *payload)


def publish_frame(
    topic_name: str | bytes, payload: bytes = b"", first_byte: int = 0x30, packet_id: int = 0, more: bytes = b"\0"
) -> bytes:
    """A PUBLISH by hand; a packet identifier is put in if its QoS has one, be it 0."""
    identified = packet_id.to_bytes(2, "big") if first_byte & 0x06 else b""
    return frame(first_byte, string(topic_name), identified, more, payload)
