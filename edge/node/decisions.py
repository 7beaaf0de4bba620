"""What operators decide through `headwater.control`, put into force on this node (`bridge.control` brings it here).

A ban and other rules hold for whoever asks from that moment on; who is here already is looked at by a sweep, in
portions, so that a node with many clients keeps serving them meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edge.access.acl import Acl, load_rules
from edge.handler.services import EdgeServices
from edge.handler.subscribing import filters_of
from edge.rules.auto_subscriptions import load_auto_subscriptions
from edge.session.transitions import ConnectionState
from edge.wire import ReasonCode
from schemas.control import ACL_KEY, AUTO_KEY, DRAIN, AclRules, AutoSubscriptionTables, Ban, ControlEntry, NodeCommand
from schemas.errors import ConfigurationError, RecordError
from schemas.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler

log = logging.getLogger(__name__)

PORTION: Final = 200  # connections between two turns of the loop: about a millisecond with many rules
EXPIRE_EVERY: Final = 60  # ticks: a ban that has ended shuts nobody out, it only takes room
UNSETTLED_S, UNSETTLED_ROUNDS = 0.5, 40  # a CONNECT under way is looked at again until it is through or given up


class Decisions:
    """Takes what `bridge.control.Control` reads. `drain` is called with the rate that a drain command names, if any."""

    def __init__(self, services: EdgeServices, incarnation: str, drain: Callable[[float | None], None]) -> None:
        self._services = services
        self._incarnation = incarnation
        self._drain = drain
        self._from_file = services.access.authorizer
        self._auto_subscriptions_from_file = services.rules.auto_subscriptions
        self._sweep_is_due = self._rights_are_due = False
        self._task: asyncio.Task[None] | None = None
        self._ticks = 0

    def take(self, key: str, entry: ControlEntry | None) -> None:
        """Put one decision into force. Raises RecordError when that cannot be done; nothing has changed then."""
        if key.startswith("ban/"):
            assert entry is None or isinstance(entry, Ban)
            self._take_ban(key, entry)
        elif key == ACL_KEY:
            assert entry is None or isinstance(entry, AclRules)
            self._take_rules(entry)
        elif key == AUTO_KEY:
            assert entry is None or isinstance(entry, AutoSubscriptionTables)
            self._take_auto_subscriptions(entry)
        elif isinstance(entry, NodeCommand):
            self._take_command(entry)

    def tick(self) -> None:
        """Called about every second."""
        self._ticks += 1
        if not self._ticks % EXPIRE_EVERY:
            self._services.access.bans.expire(self._services.wall_ms() / 1000)

    async def stop(self) -> None:
        """End a sweep that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _take_ban(self, key: str, ban: Ban | None) -> None:
        bans = self._services.access.bans
        if ban is None or ban.is_over(self._services.wall_ms() / 1000):
            bans.lift(key)
            return
        bans.put(ban)
        self._sweep_soon()

    def _take_rules(self, entry: AclRules | None) -> None:
        if entry is None:
            self._services.access.authorizer = self._from_file
        else:
            try:
                self._services.access.authorizer = Acl(load_rules(entry.rules))
            except ConfigurationError as error:
                raise RecordError(str(error)) from None
        log.info("the ACL is now %s", "the one of the file" if entry is None else f"{len(entry.rules)} rules")
        self._rights_are_due = True
        self._sweep_soon()

    def _take_auto_subscriptions(self, entry: AutoSubscriptionTables | None) -> None:
        """For whoever connects from now on."""
        rules = self._services.rules
        try:
            rules.auto_subscriptions = (
                load_auto_subscriptions(entry.tables) if entry is not None else self._auto_subscriptions_from_file
            )
        except ConfigurationError as error:
            raise RecordError(str(error)) from None

    def _take_command(self, entry: NodeCommand) -> None:
        if entry.node_id != self._services.node_id or entry.incarnation != self._incarnation:
            return
        if entry.command == DRAIN:
            log.info("this node is drained, as %s has said", entry.created_by or "somebody")
            self._drain(entry.clients_per_s)

    # Who is here already

    def _sweep_soon(self) -> None:
        self._sweep_is_due = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._sweep(), name="headwater-decisions")

    async def _sweep(self) -> None:
        unsettled: set[EdgeProtocolHandler] = set()
        rounds = 0
        while self._sweep_is_due or unsettled:
            if self._sweep_is_due:
                with_rights, self._rights_are_due, self._sweep_is_due = self._rights_are_due, False, False
                handlers = tuple(self._services.connections)
                rounds = 0
            else:
                with_rights, handlers = True, tuple(unsettled)
                rounds += 1
            unsettled = set() if with_rights else unsettled
            for number, handler in enumerate(handlers):
                if number and not number % PORTION:
                    await asyncio.sleep(0)
                if self._is_banned(handler) or not with_rights:
                    continue
                if handler.durable is not None:
                    take_rights(handler)
                elif handler.principal is not None and handler.is_open and rounds < UNSETTLED_ROUNDS:
                    unsettled.add(handler)  # it may have been granted its old subscriptions by the old rules
            if unsettled and not self._sweep_is_due:
                await asyncio.sleep(UNSETTLED_S)

    def _is_banned(self, handler: EdgeProtocolHandler) -> bool:
        services, principal = self._services, handler.principal
        if principal is None:  # it is asked for when its CONNECT comes
            return False
        ban = services.access.bans.banned(principal, services.wall_ms() / 1000)
        if ban is None:
            return False
        services.event("denied", principal.client_id, action="ban", ban=ban.key, peer=handler.peer)
        if handler.engine.state is ConnectionState.CONNECTED:  # DISCONNECT has no 0x8A [MQTT5-3.14.2-1]
            handler.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, "this client is banned")
        else:
            handler.refuse(ReasonCode.BANNED, "this client is banned for a time")
        return True


def take_rights(handler: EdgeProtocolHandler) -> None:
    """The rules have changed: what the client may no longer receive goes, from its stored session, too."""
    services, durable = handler.services, handler.durable
    before = filters_of(handler)
    handler.rights_changed()
    left = set(filters_of(handler))
    gone = [topic_filter for topic_filter in before if topic_filter not in left]
    if not gone:
        return
    services.forget_shared(each for each in gone if each.startswith(SHARE_PREFIX))
    services.event("unsubscribed", handler.client_id, topic_filters=gone, reason="the ACL has changed")
    if durable is not None and durable.is_stored:
        services.sessions.write(durable.client_id, durable.epoch, durable.records(connected=True), None, None)
