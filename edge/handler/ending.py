"""The end of a connection: what becomes of its session, its subscriptions and its will.

1. at once, in one step: subscriptions go, the node gives back what nobody needs; what the session keeps is taken down
2. then, beside: the will if it is due, the session's records without it, and last the claim is released, so that a next
   owner finds everything (or forgotten, when the session is over)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bridge.log import LogError, PendingRecord, Position
from bridge.session_store import SessionLost, session_position
from bridge.wills import store_with_will
from edge.handler import subscribing
from edge.handler.opening import Opened, close_filters
from schemas.sessions import KIND_PROGRESS, KIND_STATE, StoredWill, deletion_records, session_key

if TYPE_CHECKING:
    from edge.handler.durable import DurableSession
    from edge.handler.protocol import EdgeProtocolHandler
    from edge.handler.services import EdgeServices

log = logging.getLogger(__name__)

Records = list[tuple[Position, PendingRecord]]


def end_session(handler: EdgeProtocolHandler) -> None:
    """The connection has ended; called as often as one likes."""
    services = handler.services
    durable, handler.durable = handler.durable, None
    if handler.retaining is not None:
        handler.retaining.close()
    if durable is None:
        return
    if durable.is_stored:
        for packet_id in handler.engine.outgoing.unsent_shared() if handler.engine.outgoing is not None else ():
            durable.entries.pop(packet_id, None)  # nothing of it was sent: another member gets the message
        _end_stored(handler, durable)
    elif services.ownership.is_owner(durable.client_id, durable.epoch):
        services.ownership.forget(durable.client_id, durable.epoch)
    if handler.sharing is not None:
        handler.sharing.gone(for_ever=not handler.engine.session_expiry_s)
        handler.sharing = None
    if handler.exclusive is not None:
        handler.exclusive.gone(for_ever=not handler.engine.session_expiry_s)
    if handler.replaying is not None:
        handler.replaying.gone()
        handler.replaying = None
    services.catch_up.forget(handler)
    handler.behind = None
    subscribing.remove_all(handler)
    if services.clients.get(handler.client_id) is handler:
        del services.clients[handler.client_id]
    if handler.engine.outgoing is not None:
        services.counters.messages_dropped += handler.engine.outgoing.dropped
    services.event("disconnected", handler.client_id, reason=handler.engine.reason, peer=handler.peer)


def abandon_session(handler: EdgeProtocolHandler, opened: Opened) -> None:
    """The client did not stay for CONNACK: the session stays as it was found."""
    services, durable = handler.services, opened.durable
    services.catch_up.forget(handler)
    handler.behind = None
    if handler.exclusive is not None:
        handler.exclusive.gone(for_ever=False)
    if services.table.filters_of(handler):
        subscribing.remove_all(handler)
    else:
        close_filters(handler, opened.ordinary)
    records = None
    if opened.expiry_s:
        records = durable.unchanged_records(opened.subscriptions, opened.progress, opened.expiry_s)
    _finish_beside(services, durable, records, None)


def _end_stored(handler: EdgeProtocolHandler, durable: DurableSession) -> None:
    services, expiry_s = handler.services, handler.engine.session_expiry_s
    will, due_ms = durable.will, None
    if will is None or not handler.will_is_due:
        will = durable.will = None  # [MQTT5-3.1.2-10] [MQTT311-3.1.2-10]
    elif delay_s := min(will.delay_s, expiry_s):  # no later than the session's end [MQTT5-3.1.3-9]
        will, due_ms = None, services.wall_ms() + delay_s * 1000
    else:
        durable.will = None
    records = durable.records(connected=False, will_due_ms=due_ms) if expiry_s else None
    _finish_beside(services, durable, records, will)


def _finish_beside(
    services: EdgeServices, durable: DurableSession, records: Records | None, will: StoredWill | None
) -> None:
    task = services.loop.create_task(_finish(services, durable, records, will), name="headwater-session-end")
    services.endings.add(task)
    task.add_done_callback(services.endings.discard)


async def _finish(
    services: EdgeServices, durable: DurableSession, records: Records | None, will: StoredWill | None
) -> None:
    client_id, epoch = durable.client_id, durable.epoch
    is_over = False  # and all of it is gone from the log
    keeps = records is not None
    try:
        if will is not None:
            services.counters.wills_published += 1
        if records is None:
            position = session_position(client_id)
            keys = services.sessions.stale_keys(client_id, epoch + 1)
            if durable.is_stored:  # what was written just now may not be in the view yet
                own = [session_key(client_id, epoch, kind) for kind in (KIND_STATE, KIND_PROGRESS)]
                keys += [key for key in own if key not in keys]
            records = [(position, record) for record in deletion_records(keys)]
        await store_with_will(
            will,
            records,
            lambda records: services.sessions.write_now(client_id, epoch, records),
            services.routes,
            services.publisher,
            services.retained,
        )
        is_over = not keeps
    except SessionLost:
        log.warning("client %s: this edge was too slow: the session went on without its last steps here", client_id)
    except LogError as error:
        log.error("client %s: the end of its session could not be stored: %s", client_id, error)
    except Exception:
        log.exception("client %s: the end of its session failed", client_id)
    finally:
        if is_over and services.ownership.is_owner(client_id, epoch):
            services.ownership.forget(client_id, epoch)
        else:
            services.ownership.release(client_id, epoch)
