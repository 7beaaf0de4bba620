"""Raw packets, and what the tests of 3.1.1 do again and again."""

from __future__ import annotations

import pytest
from support.conformance import Client, Clients

from edge.wire import Packet, Pingreq, Pingresp, Publish, Suback, SubscriptionRequest, variable_bytes


def string(raw: bytes) -> bytes:
    """A length of two bytes, and the bytes (§1.5.3)."""
    return len(raw).to_bytes(2, "big") + raw


def frame(first_byte: int, *parts: bytes) -> bytes:
    """A packet whose body is what the test says (§2.2)."""
    body = b"".join(parts)
    return bytes((first_byte,)) + variable_bytes(len(body)) + body


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
    head = string(name) + bytes((level, flags)) + keep_alive_s.to_bytes(2, "big")
    return frame(first_byte, head, *map(string, fields), tail)


async def is_cut(clients: Clients, *data: bytes) -> None:
    """An accepted client sends this, and the server closes without any answer to it [MQTT311-4.8.0-1]."""
    client = await clients.connect()
    await client.send(*data, Pingreq())
    with pytest.raises(AssertionError, match=r"closed; no Pingresp came, but \[\]"):
        await client.take(Pingresp)


async def subscribed(clients: Clients, *topic_filters: str, qos: int = 0, client_id: str | None = None) -> Client:
    """A client whose subscriptions are granted; with a client id it has a durable session."""
    client = await clients.connect(client_id, clean_start=client_id is None)
    await grant(client, *topic_filters, qos=qos)
    return client


async def grant(client: Client, *topic_filters: str | SubscriptionRequest, qos: int = 0) -> Suback:
    """SUBSCRIBE, granted."""
    suback = await client.subscribe(*topic_filters, qos=qos)
    refused = [number for number, code in enumerate(suback.reason_codes) if code.is_error]
    assert not refused, f"of {len(topic_filters)} filters these were refused: {refused}"
    return suback


async def is_answered(client: Client, kind: type[Packet]) -> bool:
    """Whether this comes, or the end: the server has made up its mind."""
    try:
        await client.take(kind)
    except AssertionError:
        assert client.is_closed
        return False
    return True


async def messages_until(client: Client, last: bytes) -> list[Publish]:
    """What comes before the message of this payload, flows finished."""
    messages: list[Publish] = []
    while (message := await client.take_message()).payload != last:
        messages.append(message)
    return messages


async def forget(clients: Clients, client_id: str) -> None:
    """Nothing of the session is left [MQTT311-3.1.2-6]."""
    await (await clients.connect(client_id)).disconnect()


def bodies(client: Client, first_byte: int) -> list[bytes]:
    """What came behind each of these first bytes, from the beginning."""
    return [body for first, body in client.frames if first == first_byte]
