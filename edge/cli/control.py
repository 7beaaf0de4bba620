"""What the commands share that write to `headwater.control`: the view of it, and who is at the keyboard."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bridge.audit import FROM_COMMAND_LINE, audit
from bridge.control import Control
from bridge.kafka_log import KafkaLog
from bridge.log import Headers
from bridge.partitioning import Destination
from edge.cli.console import Cluster
from schemas.control import ControlEntry

LOAD_TIMEOUT_S = 30.0


class Operator:
    """Reads and decides, over one connection to Kafka."""

    def __init__(self, log: KafkaLog) -> None:
        self.log = log
        self.name = who_am_i()
        self.control = Control(log, self._append_future, keeps_dead_letters=False)

    async def put(self, action: str, entry: ControlEntry, client_id: str = "", **detail: Any) -> int:
        """Decide something, written down first. Raises LogError, ControlRefused."""
        await self.write_down(action, client_id, **detail)
        return await self.control.put(entry)

    async def remove(self, action: str, key: str, client_id: str = "", **detail: Any) -> None:
        """Take a decision back, likewise."""
        await self.write_down(action, client_id, **detail)
        await self.control.remove(key)

    async def write_down(self, action: str, client_id: str = "", **detail: Any) -> None:
        """That this operator is about to do something. Raises LogError."""
        await audit(self._append_future, FROM_COMMAND_LINE, self.name, action, client_id, **detail)

    def _append_future(self, destination: Destination, value: bytes | None, headers: Headers) -> asyncio.Future[int]:
        return self.log.submit(destination.kafka_topic, destination.partition, [(destination.key, value, headers)])


def who_am_i() -> str:
    """Who is at the keyboard, and of which machine."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


@asynccontextmanager
async def operator(target: Cluster) -> AsyncIterator[Operator]:
    """Connected, and what has been decided so far is read. Raises LogUnavailable."""
    log = KafkaLog(target.bootstrap, client_id="headwater-control", options=target.client_options)
    await log.start()
    try:
        found = Operator(log)
        await found.control.start(LOAD_TIMEOUT_S)
        try:
            yield found
        finally:
            await found.control.stop()
    finally:
        await log.stop()
