"""Exclusive subscriptions: a Topic Filter that one session in the whole cluster has at a time.

Decided by the log, with what decides who owns a session (`bridge.ownership`): an exclusive filter is claimed in
`headwater.claims` under a key of its own, and the claim's principal is the client that has the filter. Another client's
claim is void on every edge while that claim stands; the same client's claim, on whatever edge it is now, replaces it.

1. SUBSCRIBE, or a stored session that is resumed: `take`
2. UNSUBSCRIBE, or the end of the session: `forget`
3. the connection ends, the session stays: `leave`; the claim keeps others away
4. an edge dies: nothing happens to the claim. Whoever ends the session does not know of it, so one live edge looks
   after claims that no connection holds: where no stored session has the filter (any more), it gives them back
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from bridge.claims import OpenClaim
from bridge.log import LogError
from bridge.ownership import EXCLUSIVE_KEY, Ownership
from bridge.session_keeper import chosen
from bridge.session_store import SessionStore
from schemas.topics import EXCLUSIVE_PREFIX

log = logging.getLogger(__name__)

SETTLE_TIMEOUT_S = 1.5  # for our own record to come back; it comes later, too


class ExclusiveFilters:
    """This edge's part. ``live`` names the live nodes, this one among them."""

    def __init__(self, ownership: Ownership, sessions: SessionStore, live: Callable[[], Iterable[str]]) -> None:
        self._ownership = ownership
        self._sessions = sessions
        self._live = live
        self._counts = dict.fromkeys(("taken", "refused", "given_back", "settled"), 0)

    async def take(self, client_id: str, topic_filter: str) -> int | None:
        """Claim the filter for the client's session: the claim's epoch, or None: another session has it.

        Raises:
            LogError: nobody knows.
        """
        ownership, key = self._ownership, EXCLUSIVE_KEY + topic_filter
        await ownership.caught_up()
        held = ownership.owner(key)
        if held is None or held.principal == client_id:
            claimed = await ownership.claim(key, client_id, True)
            if not claimed.is_void:
                self._counts["taken"] += 1
                return claimed.epoch
        self._counts["refused"] += 1
        return None

    async def given_back(self, topic_filter: str, epoch: int) -> None:
        """Until this edge has seen that the filter is free, after `forget`, so that the others soon do, too."""
        await self._ownership.ended(EXCLUSIVE_KEY + topic_filter, epoch, SETTLE_TIMEOUT_S)

    def forget(self, topic_filter: str, epoch: int) -> None:
        """The session has the filter no more."""
        self._counts["given_back"] += 1
        self._ownership.forget(EXCLUSIVE_KEY + topic_filter, epoch)

    def forget_all(self, client_id: str, topic_filters: Iterable[str]) -> None:
        """The client's stored session is over: whatever it had of these."""
        for topic_filter in topic_filters:
            held = self._ownership.owner(EXCLUSIVE_KEY + topic_filter)
            if held is not None and held.principal == client_id:
                self.forget(topic_filter, held.epoch)

    def leave(self, topic_filter: str, epoch: int) -> None:
        """The connection has ended, the session has the filter."""
        self._ownership.release(EXCLUSIVE_KEY + topic_filter, epoch)

    def holder(self, topic_filter: str) -> str | None:
        """The client id of the session that has the filter."""
        held = self._ownership.owner(EXCLUSIVE_KEY + topic_filter)
        return held.principal if held is not None else None

    async def settle_due(self) -> None:
        """Give back what no session has: its edge, or the one that ended its session, has not done it."""
        if not (due := self._unheld()):
            return
        try:
            await self._ownership.caught_up()
            await self._sessions.caught_up()
        except LogError as error:
            log.warning("exclusive subscriptions are not looked after now: %s", error)
            return
        for topic_filter, claim in self._unheld():
            if (topic_filter, claim.epoch) in {(each, held.epoch) for each, held in due}:
                log.info("the exclusive subscription to %s is free: its session is over", topic_filter)
                self._counts["settled"] += 1
                self._ownership.forget(EXCLUSIVE_KEY + topic_filter, claim.epoch)

    def statistics(self) -> dict[str, int]:
        """Totals since the start of the node."""
        return dict(self._counts)

    def _unheld(self) -> list[tuple[str, OpenClaim]]:
        nodes = sorted(self._live())
        mine = self._ownership.node_id
        return [
            (key[len(EXCLUSIVE_KEY) :], claim)
            for key, claim in self._ownership.exclusive_without_connection()
            if chosen(key, nodes) == mine and not self._is_stored(claim.principal, key[len(EXCLUSIVE_KEY) :])
        ]

    def _is_stored(self, client_id: str, topic_filter: str) -> bool:
        stored = self._sessions.view.get(client_id)
        name = EXCLUSIVE_PREFIX + topic_filter
        return stored is not None and any(each.topic_filter == name for each in stored.state.subscriptions)
