"""The subscribers of the demo: one per edge for what devices of *another* edge send, one for what Spark computes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import orjson

from edge.client import MqttClient, MqttClientError, Publish, ReasonCode, ReconnectPolicy
from edge.demo.ledger import Ledger
from edge.demo.schedule import TOPIC_FILTER, sequence_of

RESULTS_FILTER = "analytics/stats/#"
WINDOWS_MAX = 1_000_000  # identifiers kept to count windows once


class Observers:
    """Checks delivery into a ledger. With one edge only, that edge is its own other one."""

    def __init__(self, addresses: Sequence[tuple[str, int]], home: Mapping[str, int], ledger: Ledger) -> None:
        self._home = home
        self._ledger = ledger
        self._edges = len(addresses)
        again = ReconnectPolicy(wait_first_s=0.2, wait_max_s=3.0, attempts_max=20)
        self._clients = [
            MqttClient(*address, client_id=f"demo-observer-{index + 1}", keep_alive_s=60, reconnect=again)
            for index, address in enumerate(addresses)
        ]
        self._results = MqttClient(*addresses[-1], client_id="demo-results", keep_alive_s=60, reconnect=again)
        self.received_at = [0] * len(addresses)
        self.unreadable = 0
        self.results = 0
        self.windows: set[str] = set()

    async def start(self) -> None:
        """Connect and subscribe; what is published afterwards is seen.

        Raises:
            MqttClientError: an edge cannot be reached or refuses the filter.
        """
        for index, client in enumerate(self._clients):
            client.on_message(lambda message, index=index: self._received(index, message))  # type: ignore[misc]
            await client.connect()
            _expect_granted(await client.subscribe(TOPIC_FILTER, qos=1), TOPIC_FILTER)
        self._results.on_message(self._result)
        await self._results.connect()
        _expect_granted(await self._results.subscribe(RESULTS_FILTER, qos=1), RESULTS_FILTER)

    async def stop(self) -> None:
        """Disconnect."""
        for client in (*self._clients, self._results):
            await client.disconnect()

    def publish_status(self, topic_name: str, payload: bytes) -> None:
        """Publish the demo's own figures, QoS 0, through the first edge; not while it is being reconnected."""
        if self._results.is_connected:
            self._results.publish(topic_name, payload)

    def _received(self, index: int, message: Publish) -> None:
        self.received_at[index] += 1
        try:
            device, seq, sent_ms = sequence_of(message.payload)
        except ValueError:
            self.unreadable += 1
            return
        home = self._home.get(device)
        if home is not None and (home + 1) % self._edges == index:
            self._ledger.record_delivered(device, seq, time.time() * 1000.0 - sent_ms)

    def _result(self, message: Publish) -> None:
        self.results += 1
        try:
            identifier = str(orjson.loads(message.payload)["id"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            self.unreadable += 1
            return
        if len(self.windows) < WINDOWS_MAX:
            self.windows.add(identifier)


def _expect_granted(reason_codes: Sequence[ReasonCode], topic_filter: str) -> None:
    if reason_codes[0] >= 0x80:
        raise MqttClientError(f"the edge refused {topic_filter}: {reason_codes[0].name}")
