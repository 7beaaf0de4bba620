"""Publishing a will: by the edge whose client is gone, by the next owner of its session, or by the one that adopts it.

A will is appended like any message of its QoS and waited for. The caller stores the session without the will after
that: a will of QoS 2 could only be there twice if an edge died in between, as one of QoS 1 may be.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bridge.log import RecordRefused
from bridge.partitioning import RouteTable
from bridge.publisher import FUTURE_SINK, Publisher
from schemas.sessions import StoredWill

if TYPE_CHECKING:
    from bridge.retained import RetainedMessages

log = logging.getLogger(__name__)


async def publish_will(
    will: StoredWill, routes: RouteTable, publisher: Publisher, retained: RetainedMessages | None
) -> None:
    """Append the will [MQTT5-3.1.2-8] [MQTT311-3.1.2-8], retained if it says so [MQTT5-3.1.2-15] [MQTT311-3.1.2-17].

    What Kafka refuses for good is logged: nobody is left to hear of it.

    Raises:
        LogUnavailable: nobody knows whether it is in the log.
    """
    destination = routes.destination(will.topic_name)
    if will.qos == 2:
        destination = destination.twin()
    try:
        if will.retain and retained is not None:
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            retained.publish(destination, will.payload, will.headers, FUTURE_SINK, done)
            await done
        else:
            await publisher.append_future(destination, will.payload, will.headers)
    except RecordRefused as error:
        log.error("the will on %r was refused by Kafka: %s", will.topic_name, error.reason)
