"""What clients do while faults happen: publishers with sessions, durable subscribers that come and go, a shared
subscription, wills, retained messages, messages that expire, and what the ACL forbids.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from support.chaos_client import RecordedClient
from support.chaos_site import Site
from support.simulation_checks import EdgeLeft

from edge.client import MqttClientError, Properties, Publish
from edge.wire import Will

PUBLISHERS = 20
SUBSCRIBERS = 10
MEMBERS = 3
ALL = 3  # subscribers that want everything; the others want one of `KINDS`
KINDS = 5
GROUP = "$share/g/c/#"
PAUSE_S = (0.3, 0.9)  # of a publisher
STAYS_S = (3.0, 9.0)  # a subscriber, before it goes
AWAY_S = (0.2, 2.5)
UNACKNOWLEDGED_MAX = 40
EXPIRY_S = 2
QUIET_S = 3.0
WILLS_S = 9.0  # an edge is held for dead after 6 s, then its wills are published
SETTLE_S = 150.0


class Workload:
    """All clients of a run."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.rng = random.Random(seed)
        self.publishers = [self._publisher(number) for number in range(PUBLISHERS)]
        self.subscribers = [self._client(f"s{number}", number, 4 + number % 2) for number in range(SUBSCRIBERS)]
        self.members = [self._client(f"m{number}", number, 5) for number in range(MEMBERS)]
        self.guests: list[RecordedClient] = []  # of the scenario: they come to rest and leave with the others
        self.resting: set[str] = set()  # subscribers that are left alone
        self.receipts = 0
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        for client in self.clients:
            client.on_message(self._received)

    @property
    def clients(self) -> list[RecordedClient]:
        return [*self.subscribers, *self.members, *self.publishers, *self.guests]

    def guest(self, name: str, edge: int, **settings: object) -> RecordedClient:
        """One more client, of the scenario."""
        client = self._client(name, edge, 5, **settings)
        client.on_message(self._received)
        self.guests.append(client)
        return client

    def wanted(self) -> dict[str, frozenset[str]]:
        """The Topic Filters of each durable client."""
        filters = {client.client_id: frozenset(self._filters(n)) for n, client in enumerate(self.subscribers)}
        return filters | {client.client_id: frozenset({GROUP}) for client in self.members}

    async def start(self) -> None:
        """Connect all, subscribe; then publishers publish and subscribers come and go, until `stop`."""
        for client in self.clients:
            await client.connect()
        for number, client in enumerate(self.subscribers):
            await client.subscribe([(each, 2) for each in self._filters(number)])
        await self.subscribers[0].subscribe("secret/#", 2)
        for client in self.members:
            await client.subscribe(GROUP, 2)
        self._tasks = [asyncio.create_task(self._publish(client)) for client in self.publishers]
        self._tasks += [asyncio.create_task(self._come_and_go(client)) for client in self.subscribers]

    async def stop(self) -> list[str]:
        """Publishers stop, all come back, what is under way comes to its end; what did not."""
        self._over.set()
        await asyncio.gather(*self._tasks)
        loop = asyncio.get_running_loop()
        began, quiet_since, before = loop.time(), loop.time(), self.receipts
        while loop.time() - began < SETTLE_S:
            await asyncio.sleep(0.1)
            if self.receipts != before or self._busy():
                before, quiet_since = self.receipts, loop.time()
            if loop.time() - quiet_since > QUIET_S and loop.time() - began > WILLS_S:
                return []
        return [f"not at rest after {SETTLE_S:.0f} s: {', '.join(self._busy()) or 'messages keep coming'}"]

    async def probe(self) -> list[EdgeLeft]:
        """What each edge retains."""
        return [await self._retained(number) for number in range(len(self.site.edges))]

    async def leave(self) -> None:
        """All say goodbye."""
        await asyncio.gather(*(client.disconnect() for client in self.clients), return_exceptions=True)

    def storm(self) -> None:
        """Every subscriber and member leaves its connection open and connects to another edge."""
        for client in [*self.subscribers, *self.members]:
            if client.is_connected:
                client.prefer(self.site.addresses(self.rng.randrange(len(self.site.edges))))
                client.vanish()

    def _busy(self) -> list[str]:
        return [
            f"{client.client_id} ({client.unacknowledged} in flight{'' if client.is_connected else ', not connected'})"
            for client in self.clients
            if not client.is_connected or client.unacknowledged
        ]

    def _received(self, _: Publish) -> None:
        self.receipts += 1

    def _client(self, name: str, edge: int, version: int, **settings: object) -> RecordedClient:
        addresses = self.site.addresses(edge % len(self.site.edges))
        settings = self.site.credentials | settings
        return RecordedClient(self.site.recorder, name, addresses, protocol_version=version, **settings)

    def _publisher(self, number: int) -> RecordedClient:
        will = Will(f"will/p{number}", b"", 2 if number % 2 else 1) if number < PUBLISHERS // 2 else None
        return self._client(f"p{number}", number, 4 + number % 2, will=will)

    def _filters(self, number: int) -> list[str]:
        if number < ALL:
            return ["c/#", "will/#"] if number == 0 else ["c/#"]
        return [f"c/{number % KINDS}/+", "kept/#"]

    async def _publish(self, client: RecordedClient) -> None:
        name, number = client.client_id, 0
        kind, version = int(name[1:]) % KINDS, 4 + int(name[1:]) % 2
        while not self._over.is_set():
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))
            if client.unacknowledged > UNACKNOWLEDGED_MAX:
                continue
            number += 1
            topic_name, is_retained = f"c/{kind}/{name}", number % 7 == 0
            properties = None
            if is_retained:
                topic_name = f"kept/{name}/{number % 2}"
            elif number % 5 == 0 and version == 5:
                properties = Properties(message_expiry_interval_s=EXPIRY_S)
            elif number % 23 == 0:
                topic_name = "secret/x"
            with suppress(MqttClientError):
                qos = self.rng.choice((1, 1, 2, 2, 0))
                client.publish(topic_name, f"{name}:{number}", qos, is_retained, properties)
            if self.rng.random() < 0.004:
                client.drop_connection()

    async def _come_and_go(self, client: RecordedClient) -> None:
        while not self._over.is_set():
            await self._wait(self.rng.uniform(*STAYS_S))
            if self._over.is_set() or client.client_id in self.resting or not client.is_connected:
                continue
            client.prefer(self.site.addresses(self.rng.randrange(len(self.site.edges))))
            if self.rng.random() < 0.5:
                client.drop_connection()
                continue
            await client.disconnect()
            await asyncio.sleep(self.rng.uniform(*AWAY_S))
            await client.connect()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def _retained(self, number: int) -> EdgeLeft:
        edge = self.site.edges[number]
        address = edge.to_clients.address
        probe = RecordedClient(
            self.site.recorder,
            f"probe-{number}",
            [address],
            session_expiry_s=0,
            clean_start=True,
            **self.site.credentials,
        )
        retained: dict[bytes, tuple[bytes, tuple[str, int], int]] = {}

        def take(packet: Publish) -> None:
            retained[packet.topic_name_utf8] = (packet.payload, ("", 0), 0)

        probe.on_message(take)
        await probe.connect()
        await probe.subscribe("kept/#", 2)
        before = -1
        for _ in range(20):  # until nothing comes any more
            await asyncio.sleep(0.5)
            if len(retained) == before:
                break
            before = len(retained)
        await probe.disconnect()
        return EdgeLeft(edge.node_id, retained=retained)
