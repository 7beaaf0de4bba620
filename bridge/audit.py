"""The audit record of what an administrator does: written, and acknowledged by Kafka, before it is done."""

from __future__ import annotations

import time
from typing import Any, Final

from bridge.membership import AppendFuture
from bridge.murmur2 import partition_for_key
from bridge.partitioning import Destination
from schemas.catalogue import EVENTS, catalogue
from schemas.events import Event

_PARTITIONS: Final = next(spec.partitions for spec in catalogue() if spec.name == EVENTS)
_CONTENT_TYPE: Final = (("content-type", b"application/json"),)
FROM_COMMAND_LINE: Final = "command line"


async def audit(
    append_future: AppendFuture, node_id: str, by: str, action: str, client_id: str = "", **more: Any
) -> None:
    """Append an event of the kind ``admin``: who does what, on which node (or `FROM_COMMAND_LINE`); ``client_id`` where
    it is done to a client.

    Raises:
        LogError: it was refused, or nobody knows: what it speaks of must not be done.
    """
    detail = {"by": by, "action": action, **more}
    event = Event("admin", client_id, node_id, time.time_ns() // 1_000_000, detail)
    key = client_id.encode(errors="replace")
    destination = Destination(EVENTS, partition_for_key(key, _PARTITIONS), key)
    await append_future(destination, event.to_json(), _CONTENT_TYPE)
