"""Publishing a will: by the edge whose client is gone, by the next owner of its session, or by the one that adopts it.

A will of QoS 2 and the session without it are one transaction: it is there once, whoever fails or is fenced. One of
QoS 0 or 1 is appended like any message and waited for, then the session is stored without it: it is there twice if the
edge dies, or loses the session, in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bridge.log import PendingRecord, Position, RecordRefused
from bridge.partitioning import RouteTable
from bridge.publisher import FUTURE_SINK, Publisher
from schemas.sessions import StoredWill

if TYPE_CHECKING:
    from bridge.retained import RetainedMessages

log = logging.getLogger(__name__)

Records = list[tuple[Position, PendingRecord]]


async def store_with_will(
    will: StoredWill | None,
    records: Records,
    write: Callable[[Records], Awaitable[list[int]]],
    routes: RouteTable,
    publisher: Publisher,
    retained: RetainedMessages | None,
) -> None:
    """Publish the will, if there is one, and `write` the session's records, which do not have it any more.

    Raises:
        SessionLost: the session has another owner now, who has the will.
        RecordRefused: definite, the session is not stored.
        LogUnavailable: nobody knows.
    """
    if will is None or will.qos < 2:
        if will is not None:
            await publish_will(will, routes, publisher, retained)
        await write(records)
        return
    destination = routes.destination(will.topic_name).twin()
    message: tuple[Position, PendingRecord] = (
        destination.position,
        (destination.key, will.payload, will.headers),
    )
    try:
        offset = (await write([message, *records]))[0]
    except RecordRefused as error:
        log.error("the will on %r was refused by Kafka: %s", will.topic_name, error.reason)
        await write(records)
        return
    if will.retain and retained is not None:
        destination = routes.destination(will.topic_name).twin()  # it may have moved while it waited to be written
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        retained.retain(destination, offset, will.payload, will.headers, FUTURE_SINK, done)
        await done


async def publish_will(
    will: StoredWill, routes: RouteTable, publisher: Publisher, retained: RetainedMessages | None
) -> None:
    """Append a will of QoS 0 or 1 [MQTT5-3.1.2-8] [MQTT311-3.1.2-8], retained if it says so [MQTT5-3.1.2-15]
    [MQTT311-3.1.2-17].

    What Kafka refuses for good is logged: nobody is left to hear of it.

    Raises:
        LogUnavailable: nobody knows whether it is in the log.
    """
    destination = routes.destination(will.topic_name)
    try:
        if will.retain and retained is not None:
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            retained.publish(destination, will.payload, will.headers, FUTURE_SINK, done)
            await done
        else:
            await publisher.append_future(destination, will.payload, will.headers)
    except RecordRefused as error:
        log.error("the will on %r was refused by Kafka: %s", will.topic_name, error.reason)
