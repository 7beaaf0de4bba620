"""What the tests of 3.1.1 do again and again: a client that finishes its flows, fresh names, raw packets."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar

from support.wire_client import WAIT_S, Link, Transport, WireClient, dial

from edge.wire import (
    Connack,
    Packet,
    Pingreq,
    Pingresp,
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
)

P = TypeVar("P")
Address = tuple[str, int]
Filter = str | tuple[str, int]

_packet_ids = count(1)


def fresh_id() -> str:
    """A client identifier that every server takes: 1 to 23 letters and digits [MQTT311-3.1.3-5]."""
    return "c" + secrets.token_hex(8)


def fresh_name(rest: str = "") -> str:
    """A Topic Name nobody has used."""
    return "t" + secrets.token_hex(8) + (f"/{rest}" if rest else "")


def packet_id() -> int:
    """A packet identifier no flow of this test uses."""
    return next(_packet_ids) % 0xFFFF + 1


def binary(data: bytes) -> bytes:
    """A length of two bytes and the data (§1.5.3)."""
    return len(data).to_bytes(2, "big") + data


def frame(first_byte: int, body: bytes) -> bytes:
    """A packet whose body is what the test says (§2.2)."""
    size, length = len(body), bytearray()
    while True:
        size, low = divmod(size, 0x80)
        length.append(low | 0x80 * (size > 0))
        if not size:
            return bytes((first_byte,)) + bytes(length) + body


def raw_connect(
    flags: int = 0x02,
    *fields: bytes,
    name: bytes = b"MQTT",
    level: int = 4,
    keep_alive_s: int = 60,
    first_byte: int = 0x10,
    tail: bytes = b"",
) -> bytes:
    """A CONNECT with these flags; the fields of the payload get their lengths, ``tail`` does not."""
    head = binary(name) + bytes((level, flags)) + keep_alive_s.to_bytes(2, "big")
    return frame(first_byte, head + b"".join(map(binary, fields)) + tail)


class Client(WireClient):
    """A client of 3.1.1 that can carry a flow to its end, whatever comes between."""

    async def pick(self, kind: type[P], wait_s: float = WAIT_S) -> P:
        """The first packet of this kind; the others wait their turn."""
        async with asyncio.timeout(wait_s):
            while not (found := [each for each in self._packets if isinstance(each, kind)]) and not self.is_closed:
                await self._read()
        assert found, f"closed; no {kind.__name__} came, but {self._packets}"
        del self._packets[next(index for index, each in enumerate(self._packets) if each is found[0])]
        return found[0]

    async def subscribe(self, *filters: Filter, qos: int = 0) -> Suback:
        """SUBSCRIBE and its SUBACK; every filter must be granted."""
        wanted = tuple(
            SubscriptionRequest(*((each, qos) if isinstance(each, str) else each))  # a filter may bring its own QoS
            for each in filters
        )
        request = Subscribe(packet_id(), wanted)
        await self.send(request)
        suback = await self.pick(Suback)
        assert suback.packet_id == request.packet_id
        assert not any(code.is_error for code in suback.reason_codes), suback
        return suback

    async def unsubscribe(self, *filters: str) -> None:
        """UNSUBSCRIBE and its UNSUBACK."""
        request = Unsubscribe(packet_id(), filters)
        await self.send(request)
        assert (await self.pick(Unsuback)).packet_id == request.packet_id

    async def publish(
        self, topic_name: str, payload: bytes = b"", qos: int = 0, *, retain: bool = False, dup: bool = False
    ) -> None:
        """A message, its flow carried to the end."""
        identifier = packet_id() if qos else 0
        await self.send(Publish(topic_name.encode(), payload, qos, retain, dup, identifier))
        await self.published(identifier, qos)

    async def published(self, identifier: int, qos: int) -> None:
        """The rest of an outgoing flow."""
        if qos == 1:
            assert (await self.pick(Puback)).packet_id == identifier
        if qos == 2:
            assert (await self.pick(Pubrec)).packet_id == identifier
            await self.send(Pubrel(identifier))
            assert (await self.pick(Pubcomp)).packet_id == identifier

    async def message(self) -> Publish:
        """The next message, its flow carried to the end."""
        message = await self.pick(Publish)
        await self.answer(message)
        return message

    async def answer(self, message: Publish) -> None:
        """The rest of an incoming flow [MQTT311-3.3.4-1]."""
        if message.qos == 1:
            await self.send(Puback(message.packet_id))
        if message.qos == 2:
            await self.send(Pubrec(message.packet_id))
            assert (await self.pick(Pubrel)).packet_id == message.packet_id
            await self.send(Pubcomp(message.packet_id))

    async def messages(self, number: int) -> list[Publish]:
        """The next messages, flows carried to the end."""
        return [await self.message() for _ in range(number)]

    async def payloads_until(self, last: bytes) -> list[bytes]:
        """What comes up to and with the message of this payload."""
        payloads = [(await self.message()).payload]
        while payloads[-1] != last:
            payloads.append((await self.message()).payload)
        return payloads

    async def ping(self) -> None:
        """PINGREQ and its PINGRESP."""
        await self.send(Pingreq())
        await self.pick(Pingresp)

    async def waiting(self) -> list[Packet]:
        """What the server has sent up to the answer of a PINGREQ, taken."""
        await self.ping()
        packets, self._packets = self._packets, []
        return packets


@asynccontextmanager
async def dialled(address: Address, version: int = 4, transport: Transport = "tcp") -> AsyncIterator[Client]:
    """A network connection; no CONNECT was sent yet."""
    async with dial(address, version, transport) as plain:
        link: Link = plain.link
        yield (client := Client(link, version))
        plain.is_closed = client.is_closed


@asynccontextmanager
async def joined(
    address: Address,
    client_id: str = "",
    *,
    clean: bool = True,
    present: bool | None = None,
    version: int = 4,
    transport: Transport = "tcp",
    **fields: object,
) -> AsyncIterator[Client]:
    """A client that has been accepted, and told of a session as ``present`` says. It hangs up without DISCONNECT."""
    async with dialled(address, version, transport) as client:
        connack = await client.connect(client_id or fresh_id(), clean_start=clean, **fields)
        assert connack.reason_code is ReasonCode.SUCCESS, connack
        assert present in (None, connack.session_present), connack
        yield client


async def closes_without(client: Client, *kinds: type[Packet]) -> None:
    """The server closes, and has sent none of these before."""
    packets = await client.until_closed()
    assert not [each for each in packets if isinstance(each, kinds)], packets


async def refuses(address: Address, data: bytes, version: int = 4) -> None:
    """What was sent instead of a CONNECT gets no answer but the end of the connection [MQTT311-3.1.4-1]."""
    async with dialled(address, version) as client:
        await client.send(data)
        assert await client.until_closed() == []


async def until_over(address: Address, condition: Callable[[Connack], bool], client_id: str) -> None:
    """Connect with Clean Session 1: nothing of the session is left."""
    async with dialled(address) as client:
        assert condition(await client.connect(client_id))
