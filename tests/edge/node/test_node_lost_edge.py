"""What another edge says of the clients of one that is gone."""

from __future__ import annotations

import pytest
from support.edges import memory_edge, until, values_of

from bridge.memory_log import MemoryLog
from bridge.murmur2 import partition_for_key
from schemas.catalogue import CLAIMS
from schemas.claims import Claim
from schemas.events import Event


@pytest.mark.parametrize("durable", [False, True])
async def test_the_connections_of_a_lost_edge_are_told_to_be_over(durable: bool) -> None:
    log = MemoryLog()
    claim = Claim("user", "ghost", "ghost-1", durable, nonce="1")
    await log.submit(CLAIMS, partition_for_key(b"c", 12), [(b"c", claim.to_json(), ())])
    async with memory_edge(log, node_id="alive") as node:

        def told() -> list[Event]:
            events = [Event.from_json(value) for value in values_of(log, "headwater.events", "")]
            return [event for event in events if event.kind == "disconnected" and event.client_id == "c"]

        await until(told, "an event")
        await until(lambda: not node.services.ownership.orphans(), "the claim is settled")
        assert told()[0].detail == {"reason": "its edge is gone", "of_node": "ghost"}
        assert told()[0].node_id == "alive"
