"""Connecting, where the answer and the end of the time for it fall together."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

from edge.client import MqttClient, ReconnectPolicy
from edge.wire import Connack, encode

TIMEOUT_S = 0.2
WAIT_S = 20.0


async def test_a_connack_in_the_last_moment_is_one() -> None:
    """Left alone, its connection would live on beside that of the next attempt, and each that is lost be made anew."""
    connections: list[socket.socket] = []
    answer = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_S)

        def serve() -> None:
            connection, _ = listening.accept()
            connections.append(connection)
            connection.recv(1_000)
            answer.wait(WAIT_S)
            connection.sendall(encode(Connack(), 5))

        server = threading.Thread(target=serve)
        server.start()

        def stand_still() -> None:
            answer.set()
            time.sleep(2 * TIMEOUT_S)  # CONNACK comes and the time ends; then the loop sees both at once

        port = listening.getsockname()[1]
        client = MqttClient(
            "127.0.0.1", port, "c", connect_timeout_s=TIMEOUT_S, reconnect=ReconnectPolicy(attempts_max=1)
        )
        asyncio.get_running_loop().call_later(TIMEOUT_S / 2, stand_still)
        connack = await client.connect()
        assert connack.reason_code == 0
        assert client.is_connected
        await asyncio.to_thread(server.join)
        client.abort()
        for connection in connections:
            connection.close()
