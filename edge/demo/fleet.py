"""The devices of the demo: each an MQTT client of its own, spread over all edges, publishing QoS 1 by the schedule."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import islice

from edge.client import MqttClient, MqttClientError, ReasonCode, ReconnectPolicy
from edge.demo.ledger import Ledger
from edge.demo.schedule import Planned, Schedule, payload_of

CONNECTING_MAX = 32  # at a time: an edge lets 50 unauthenticated connections of one address stand open
KEEP_ALIVE_S = 300
DISCONNECTING_MAX = 500


class Fleet:
    """All devices. ``home`` tells which edge (by index) a device is connected to first."""

    def __init__(self, schedule: Schedule, addresses: Sequence[tuple[str, int]], ledger: Ledger) -> None:
        self._schedule = schedule
        self._ledger = ledger
        self.home = {device: index % len(addresses) for index, device in enumerate(schedule.devices)}
        self._clients = {device: self._client(device, addresses) for device in schedule.devices}
        self.refused = 0
        self.acknowledged_at = [0] * len(addresses)

    def _client(self, device: str, addresses: Sequence[tuple[str, int]]) -> MqttClient:
        index = self.home[device]
        others = (*addresses[index + 1 :], *addresses[:index])
        return MqttClient(
            *addresses[index],
            client_id=device,
            keep_alive_s=KEEP_ALIVE_S,
            reconnect=ReconnectPolicy(addresses=others, wait_first_s=0.2, wait_max_s=3.0, attempts_max=20),
        )

    @property
    def connected(self) -> int:
        return sum(client.is_connected for client in self._clients.values())

    def connected_at(self, edge: int) -> int:
        """How many devices of this edge are connected."""
        return sum(client.is_connected for device, client in self._clients.items() if self.home[device] == edge)

    @property
    def reconnects(self) -> int:
        return sum(client.statistics().reconnects for client in self._clients.values())

    async def connect(self, on_progress: Callable[[int], None]) -> None:
        """Connect all devices, some at a time.

        Raises:
            MqttClientError: an edge refuses them, or cannot be reached.
        """
        waiting = iter(self._clients.values())
        done = 0

        async def connect_some() -> None:
            nonlocal done
            for client in waiting:
                await client.connect()
                done += 1
                on_progress(done)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTING_MAX):
                group.create_task(connect_some())

    async def publish_all(self, started_s: float, stop: asyncio.Event) -> None:
        """Publish each message when its time has come (``started_s`` on the monotonic clock), until ``stop``."""
        for planned in self._schedule.planned():
            delay_s = started_s + planned.at_s - time.monotonic()
            if delay_s > 0:
                try:
                    async with asyncio.timeout(delay_s):
                        await stop.wait()
                except TimeoutError:
                    pass
            if stop.is_set():
                return
            self._publish(planned)

    def _publish(self, planned: Planned) -> None:
        device, ledger = planned.device, self._ledger
        seq = ledger.next_sequence(device)
        payload = payload_of(planned, seq, time.time() * 1000.0)

        def settled(future: asyncio.Future[ReasonCode]) -> None:
            if future.cancelled() or future.exception() is not None:
                self.refused += 1
            else:
                ledger.record_acknowledged(device, seq)
                self.acknowledged_at[self.home[device]] += 1

        try:
            future = self._clients[device].publish(planned.topic_name, payload, qos=1)
        except MqttClientError:
            self.refused += 1
            return
        assert future is not None, "QoS 1 has an answer"
        future.add_done_callback(settled)

    async def disconnect(self) -> None:
        """Say goodbye, all of them."""
        clients = iter(self._clients.values())
        while some := list(islice(clients, DISCONNECTING_MAX)):
            await asyncio.gather(*(client.disconnect() for client in some))
