"""The client against mosquitto: a peer that was written without knowing of it."""

import asyncio
import time
from typing import Any

import pytest
from support.mosquitto import Mosquitto

from edge.client import (
    ConnectFailed,
    ConnectionLost,
    MqttClient,
    NotConnected,
    Properties,
    ReasonCode,
    ReconnectPolicy,
    SubscriptionRequest,
    Will,
)

VERSIONS = pytest.mark.parametrize("protocol_version", [4, 5])
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "websocket"])


def client_of(mosquitto: Mosquitto, client_id: str, transport: str = "tcp", **options: Any) -> MqttClient:
    port = mosquitto.websocket_port if transport == "websocket" else mosquitto.port
    return MqttClient(mosquitto.host, port, client_id, transport=transport, **options)


@VERSIONS
@TRANSPORTS
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_arrives_as_it_was_sent(
    mosquitto: Mosquitto, protocol_version: int, transport: str, qos: int
) -> None:
    name = f"there/{protocol_version}/{transport}/{qos}"
    receiver = client_of(mosquitto, f"receiver/{name}", transport, protocol_version=protocol_version)
    sender = client_of(mosquitto, f"sender/{name}", transport, protocol_version=protocol_version)
    inbox = receiver.inbox()
    async with receiver, sender:
        assert await receiver.subscribe(name, qos=qos) == (ReasonCode(qos),)
        future = sender.publish(name, b"\x00\xffpayload", qos=qos)
        if future is not None:
            assert await future < 0x80
        message = await inbox.get()
        assert (message.topic_name_utf8, message.payload, message.qos) == (name.encode(), b"\x00\xffpayload", qos)
    assert sender.statistics().published == 1
    assert sender.unacknowledged == 0


@pytest.mark.parametrize("qos", [1, 2])
async def test_ten_thousand_messages_arrive_once_and_in_order(mosquitto: Mosquitto, qos: int) -> None:
    name, count = f"many/{qos}", 10_000
    receiver, sender = client_of(mosquitto, f"many-r{qos}"), client_of(mosquitto, f"many-s{qos}")
    inbox = receiver.inbox()
    async with receiver, sender:
        await receiver.subscribe([(name, qos)])
        futures = [sender.publish(name, str(number).encode(), qos=qos) for number in range(count)]
        received = [int(message.payload) for message in await inbox.get_many(count)]
        await asyncio.gather(*(future for future in futures if future is not None))
    assert received == list(range(count))
    assert sender.statistics().acknowledged == count


async def test_properties_travel_in_version_5(mosquitto: Mosquitto) -> None:
    sent = Properties(content_type="text/plain", response_topic="answers", user_properties=(("a", "1"), ("a", "2")))
    receiver, sender = client_of(mosquitto, "props-r"), client_of(mosquitto, "props-s")
    inbox = receiver.inbox()
    async with receiver, sender:
        await receiver.subscribe("props", subscription_id=77)
        sender.publish("props", "x", properties=sent)
        properties = (await inbox.get()).properties
    assert properties is not None
    assert properties.content_type == "text/plain"
    assert properties.user_properties == (("a", "1"), ("a", "2"))
    assert properties.subscription_identifiers == (77,)


async def test_no_local_and_unsubscribe(mosquitto: Mosquitto) -> None:
    client = client_of(mosquitto, "no-local")
    inbox = client.inbox()
    async with client:
        await client.subscribe([SubscriptionRequest("own/a", qos=1, no_local=True), ("own/b", 1)])
        client.publish("own/a", b"not for me", qos=1)
        client.publish("own/b", b"for me", qos=1)
        assert (await inbox.get()).payload == b"for me"
        assert await client.unsubscribe("own/b") == (ReasonCode.SUCCESS,)
        await client.publish("own/b", b"gone", qos=1)
    assert len(inbox) == 0


@VERSIONS
async def test_the_will_comes_after_an_abort_and_not_after_a_disconnect(
    mosquitto: Mosquitto, protocol_version: int
) -> None:
    name = f"will/{protocol_version}"
    watcher = client_of(mosquitto, f"watch-{protocol_version}")
    inbox = watcher.inbox()
    async with watcher:
        await watcher.subscribe(name, qos=1)
        options = {"protocol_version": protocol_version, "will": Will(name, b"gone", 1)}
        polite = client_of(mosquitto, f"polite-{protocol_version}", **options)
        await polite.connect()
        await polite.disconnect()
        rude = client_of(mosquitto, f"rude-{protocol_version}", **options)
        await rude.connect()
        rude.abort()
        assert (await inbox.get()).payload == b"gone"
    assert len(inbox) == 0


async def test_the_server_names_a_client_without_a_name(mosquitto: Mosquitto) -> None:
    async with client_of(mosquitto, "") as client:
        assert client.client_id.startswith("auto-")


async def test_a_second_client_of_the_same_name_ends_the_first(mosquitto: Mosquitto) -> None:
    first, ended = client_of(mosquitto, "twin"), asyncio.get_running_loop().create_future()
    first.on_close(ended.set_result)
    await first.connect()
    async with client_of(mosquitto, "twin"):
        error = await asyncio.wait_for(ended, 10)
    assert isinstance(error, ConnectionLost)
    with pytest.raises(NotConnected):
        first.publish("a", b"", qos=1)
    await first.disconnect()


async def test_pings_keep_a_silent_connection(mosquitto: Mosquitto) -> None:
    pinged = client_of(mosquitto, "silent", keep_alive_s=1)
    inbox = pinged.inbox()
    async with pinged, client_of(mosquitto, "clock") as clock:
        await pinged.subscribe("later")
        while pinged.statistics().pings < 3:
            await clock.publish("tick", b"", qos=1)
            await asyncio.sleep(0.05)
        clock.publish("later", b"still here")
        assert (await inbox.get()).payload == b"still here"


async def test_nobody_listens(mosquitto: Mosquitto) -> None:
    with pytest.raises(ConnectFailed):
        await MqttClient("127.0.0.1", 1, "nobody").connect()


async def test_an_http_server_is_no_broker() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for transport in ("tcp", "websocket"):
            with pytest.raises(ConnectFailed):
                await MqttClient("127.0.0.1", port, "lost", transport=transport).connect()  # type: ignore[arg-type]


async def test_a_silent_server_times_out() -> None:
    done = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        done.set()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectFailed, match="no answer in time"):
            await MqttClient("127.0.0.1", port, "lost", connect_timeout_s=0.2).connect()
        await asyncio.wait_for(done.wait(), 10)


@VERSIONS
async def test_a_lost_connection_comes_back_with_its_session(mosquitto: Mosquitto, protocol_version: int) -> None:
    """QoS 2 and a kept session: whatever happens to the connection, every message arrives exactly once."""
    name, count = f"storm/{protocol_version}", 600
    receiver, dropper = (
        client_of(mosquitto, f"storm-r{protocol_version}"),
        client_of(
            mosquitto,
            f"storm-s{protocol_version}",
            protocol_version=protocol_version,
            clean_start=False,
            session_expiry_s=300 if protocol_version == 5 else 0,
            reconnect=ReconnectPolicy(addresses=(("127.0.0.1", 1),), wait_first_s=0.01, wait_max_s=0.02),
            republish_lost_session=False,
            in_flight_max=20,  # 3.1.1 has no Receive Maximum to tell it, and mosquitto queues no more
        ),
    )
    inbox = receiver.inbox()
    async with receiver, dropper:
        await receiver.subscribe(name, qos=2)
        futures = []
        for number in range(count):
            future = dropper.publish(name, str(number).encode(), qos=2)
            assert future is not None
            futures.append(future)
            if number % 100 == 50:
                await futures[number - 30]
                dropper.drop_connection()
        await asyncio.gather(*futures)
        received = [int(message.payload) for message in await inbox.get_many(count)]
        assert dropper.statistics().reconnects >= 3
    assert received == list(range(count))
    assert len(inbox) == 0


async def test_a_lost_session_is_published_again_and_subscribed_again(mosquitto: Mosquitto) -> None:
    name = "again"
    client = client_of(mosquitto, "again", reconnect=ReconnectPolicy(wait_first_s=0.01, wait_max_s=0.02))
    inbox = client.inbox()
    connacks = []
    client.on_connect(connacks.append)
    async with client:
        await client.subscribe(name, qos=1)
        client.drop_connection()
        await asyncio.sleep(0)
        future = client.publish(name, b"kept", qos=1)
        assert future is not None
        assert await asyncio.wait_for(future, 10) == ReasonCode.SUCCESS
        assert (await inbox.get()).payload == b"kept"
    assert [connack.session_present for connack in connacks] == [False, False]


async def test_a_thousand_clients_in_one_process(mosquitto: Mosquitto) -> None:
    clients = [client_of(mosquitto, f"crowd-{number}") for number in range(1_000)]
    inbox_client = client_of(mosquitto, "crowd-inbox")
    inbox = inbox_client.inbox()
    tasks_before = len(asyncio.all_tasks())
    started_s = time.perf_counter()
    async with inbox_client:
        await inbox_client.subscribe("crowd/#", qos=1)
        for first in range(0, len(clients), 100):
            await asyncio.gather(*(client.connect() for client in clients[first : first + 100]))
        assert len(asyncio.all_tasks()) == tasks_before, "no task per client"
        for client in clients:
            client.publish(f"crowd/{client.client_id}", b"x", qos=1)
        await inbox.get_many(len(clients))
        await asyncio.gather(*(client.disconnect() for client in clients))
    assert time.perf_counter() - started_s < 30
