"""Two edges as real processes: what an operator decides at one holds at the other, and a drain loses nothing."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from support.edges import Up, until
from support.wire_client import connected

from edge.access.api_tokens import add_token
from edge.client import MqttClient, ReconnectPolicy
from edge.client.errors import MqttClientError
from edge.wire import Disconnect, Publish, ReasonCode

pytestmark = pytest.mark.kafka
CLIENTS = 200


class Operated:
    """`headwater up` with two edges, and the token of an administrator."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.token = add_token(folder / "tokens", "test", "admin")
        config = folder / "edge.toml"
        config.write_text(f'[http]\ntokens = "{folder / "tokens"}"\n')
        self.up = Up(folder, bootstrap, 2, more=["--config", str(config)])

    async def headwater(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edge.cli.app", *arguments, "--kafka", self.bootstrap),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output
        return output.decode()


@pytest.fixture
def operated(tmp_path: Path, kafka_bootstrap: str) -> Iterator[Operated]:
    made = Operated(tmp_path, kafka_bootstrap)
    try:
        yield made
    finally:
        made.up.stop()


async def test_a_ban_on_one_edge_closes_the_client_on_the_other(operated: Operated) -> None:
    """Within 2 s, by the API of the first edge and by the command line."""
    first, second = operated.up.edges
    client_id = f"bad-{uuid.uuid4().hex}"
    headers = {"Authorization": f"Bearer {operated.token}"}
    url = f"http://{first.http[0]}:{first.http[1]}/api/v1/bans"
    async with connected(second.mqtt, client_id) as client, aiohttp.ClientSession(headers=headers) as session:
        began = time.monotonic()
        async with session.post(url, json={"kind": "client_id", "value": client_id}) as response:
            assert response.status == 201
        [packet] = await client.until_closed()
        assert time.monotonic() - began < 2
        assert isinstance(packet, Disconnect)
        assert packet.reason_code is ReasonCode.ADMINISTRATIVE_ACTION
        async with session.delete(f"{url}/client_id/{client_id}") as response:
            assert response.status == 204
    async with connected(second.mqtt, client_id) as client:
        await operated.headwater("bans", "add", "client_id", client_id, "--for", "1h")
        [packet] = await client.until_closed(2)
        assert isinstance(packet, Disconnect)
    await operated.headwater("bans", "remove", "client_id", client_id)


class Moved:
    """A client on the second edge that goes where it is sent, and keeps what it gets."""

    def __init__(self, operated: Operated, number: int, prefix: str) -> None:
        first, second = operated.up.edges
        self.topic_name = f"{prefix}/{number}"
        self.client = MqttClient(
            *second.mqtt,
            client_id=f"{prefix}-{number}",
            clean_start=False,
            session_expiry_s=600,
            reconnect=ReconnectPolicy(addresses=(first.mqtt,), wait_first_s=0.05, wait_max_s=1.0),
        )
        self.got: list[bytes] = []
        self.again: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.client.on_message(self._take)

    def _take(self, message: Publish) -> None:
        (self.again if message.payload in self.got else self.got).append(message.payload)

    async def start(self) -> None:
        await self.client.connect()
        await self.client.subscribe(self.topic_name, 1)

    async def talk(self, stop: asyncio.Event) -> None:
        """Publish to itself until it is told to stop."""
        number = 0
        while not stop.is_set():
            payload = b"%d" % number
            number += 1
            try:
                future = self.client.publish(self.topic_name, payload, 1)
                assert future is not None
                if await future is ReasonCode.SUCCESS:
                    self.acknowledged.append(payload)
            except MqttClientError:
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_drain_moves_200_clients_and_loses_nothing(operated: Operated) -> None:
    """Under traffic: what was acknowledged arrives, the edge ends with 0, and its clients are on the other one."""
    clients = [Moved(operated, number, f"drain-{uuid.uuid4().hex[:8]}") for number in range(CLIENTS)]
    for start in range(0, CLIENTS, 50):
        await asyncio.gather(*(each.start() for each in clients[start : start + 50]))
    stop = asyncio.Event()
    talking = [asyncio.create_task(each.talk(stop)) for each in clients]
    await until(lambda: all(len(each.acknowledged) > 2 for each in clients), "no traffic", 40)
    began = time.monotonic()
    said = await operated.headwater("nodes", "drain", "edge-1", "--rate", "100", "--wait", "60")
    took_s = time.monotonic() - began
    assert "is gone" in said
    stdout = operated.up.process.stdout
    assert stdout is not None
    assert json.loads(await asyncio.to_thread(stdout.readline)) == {"part": "edge", "node": "edge-1", "ended": 0}
    before = {each: len(each.acknowledged) for each in clients}
    await until(lambda: all(len(each.acknowledged) > before[each] + 2 for each in clients), "no come-back", 40)
    stop.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*talking)
    await until(lambda: all(set(each.acknowledged) <= set(each.got) for each in clients), "messages are missing", 20)
    again = sum(len(each.again) for each in clients)
    total = sum(len(each.got) for each in clients)
    print(f"{CLIENTS} clients in {took_s:.1f} s, {total} messages, {again} of them twice")
    assert took_s < 30
    for each in clients:
        assert each.got == sorted(each.got, key=int), "out of order"
        await each.client.disconnect()
