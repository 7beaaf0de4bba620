"""The shared subscriptions of one node. What an edge calls, and calls back.

SUBSCRIBE: `subscribe`, and when it returns SUBACK. A message: `ShareMember.deliver_shared(delivery, grant, group)`.
PUBACK or PUBCOMP: `group.acknowledged(member, position, offset)`. Room again: `wake`. UNSUBSCRIBE: `unsubscribe`. The
connection has ended: `member_gone`. The last session that had the subscription has ended: `forget`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from bridge.log import Log, LogError, LogUnavailable, Position, Record
from bridge.partitioning import RouteTable
from bridge.shared.group import ShareGroup, ShareMember
from bridge.shared.lease import Leases, group_id_of, shared_filter_of
from bridge.shared.reader import DeadLetter, SharedReader
from bridge.shared.share import MarksWriter, Share
from bridge.shared.strategies import STRATEGIES, Strategy, make_strategy
from bridge.subscriptions import Subscription
from schemas.routes import Q2_SUFFIX

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S = 0.5  # what a node that dies leaves to be handed out again, at most, of what was acknowledged


def partitions_of(routes: RouteTable, topic_filter: str) -> frozenset[Position]:
    """Where messages lie that the filter matches: those of QoS 0 and 1, and the QoS 2 twins."""
    plain = routes.partitions(topic_filter)
    return plain | {(kafka_topic + Q2_SUFFIX, partition) for kafka_topic, partition in plain}


class SharedSubscriptions:
    """Opens a shared subscription with its first member on this node, closes it with the last one.

    Args:
        source: where records are read.
        leases: `KafkaLeases`.
        after_batch: runs after each batch of deliveries: an edge flushes its writes there.
        is_held: whether a stored session, offline or not, has this shared subscription's filter. When none has and no
            node is in the Kafka group, the group is deleted: with its last member, or, if its last node died, before
            the next one joins.
        strategy: the strategy's name, by share name and topic filter.
        dead_letter: gets records that cannot be read.
        writer: stores marks in the transactions in which messages are given to sessions. Without: by themselves, which
            is for tests, as no QoS 2 message can be handed over then.
    """

    def __init__(
        self,
        source: Log,
        routes: RouteTable,
        leases: Leases,
        *,
        after_batch: Callable[[], None],
        is_held: Callable[[str], bool],
        strategy: Callable[[str], str] | None = None,
        dead_letter: DeadLetter | None = None,
        rng: random.Random | None = None,
        writer: MarksWriter | None = None,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self._log = source
        self._routes = routes
        self._leases = leases
        self._is_held = is_held
        self._strategy = strategy or (lambda share_filter: STRATEGIES[0])
        self._writer = writer
        self._rng = rng or random.Random()
        self._commit_interval_s = commit_interval_s
        self._clock_ms = clock_ms or (lambda: int(time.time() * 1000))
        self._reader = SharedReader(
            source, routes, after_batch, dead_letter or _no_dead_letter, clock_ms=self._clock_ms
        )
        self._shares: dict[str, Share] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._groups_of: dict[ShareMember, set[Share]] = {}  # also those unsubscribed from, until the member is gone
        self._committer: asyncio.Task[None] | None = None
        self._stopped = False
        self._counts = dict.fromkeys(("groups_deleted", "deletion_errors"), 0)

    async def stop(self) -> None:
        """Store the low-water marks and leave all groups; those that no session holds any more are deleted."""
        self._stopped = True
        if self._committer is not None:
            self._committer.cancel()
            await asyncio.wait([self._committer])
        for share_filter in list(self._shares):
            self._close(share_filter)
        await asyncio.gather(*self._closing)
        await self._reader.stop()

    # What members say

    async def subscribe(
        self,
        member: ShareMember,
        share_filter: str,
        qos: int,
        *,
        retain_as_published: bool = False,
        subscription_id: int | None = None,
    ) -> None:
        """The member takes part; when this returns, nothing that is published is missed: SUBACK.

        Called again for the same filter it changes the options. May be cancelled: then call `member_gone` or
        `unsubscribe`. The filter must have passed ``check_topic_filter``; No Local is an error in it [MQTT5-3.8.3-4].

        Raises:
            LogUnavailable: the subscription was closed meanwhile, or the node is about to stop.
        """
        if self._stopped:
            raise LogUnavailable("shared subscriptions are stopped")
        topic_filter = shared_filter_of(share_filter).topic_filter
        share = self._shares.get(share_filter)
        is_new = share is None
        if share is None:
            share = self._open(share_filter, topic_filter)
        self._groups_of.setdefault(member, set()).add(share)
        share.group.join(
            member,
            Subscription(
                member,  # type: ignore[arg-type]  # its deliveries come by deliver_shared
                topic_filter,
                qos,
                retain_as_published=retain_as_published,
                subscription_id=subscription_id,
            ),
        )
        if is_new:
            share.start()
        else:
            share.members_changed()
        await share.ready()

    def unsubscribe(self, member: ShareMember, share_filter: str) -> bool:
        """Nothing new comes; what the member has it may acknowledge [MQTT5-3.10.4-3]. Whether it had the filter."""
        share = self._shares.get(share_filter)
        if share is None or member not in share.group.members:
            return False
        share.group.unsubscribe(member)
        self._member_left(share)
        return True

    def member_gone(self, member: ShareMember, keeps: Collection[tuple[Position, int]] = ()) -> None:
        """The connection has ended, whether the session goes on or not: others get what was not acknowledged.

        ``keeps`` are the (position, offset) of QoS 2 messages that were sent to it and not completed: these are its
        session's, which completes them when the client returns, or nobody's [MQTT5-4.8.2-4] [MQTT5-4.8.2-5].
        """
        for share in self._groups_of.pop(member, ()):
            share.group.leave(member, keeps)
            self._member_left(share)

    def wake(self, member: ShareMember) -> None:
        """The member has room again."""
        for share in self._groups_of.get(member, ()):
            share.group.hand_out()

    async def forget(self, share_filter: str) -> None:
        """A session that had the filter has ended or gave it up elsewhere: delete the group if it was the last one."""
        if share_filter not in self._shares:
            await self._delete_unless_held(share_filter)

    async def _delete_unless_held(self, share_filter: str) -> None:
        if self._is_held(share_filter):
            return
        try:
            self._counts["groups_deleted"] += await self._leases.delete(group_id_of(share_filter))
        except LogError as error:
            self._counts["deletion_errors"] += 1
            log.warning("the group of %s stays: %s", share_filter, error)

    def filters_of(self, member: ShareMember) -> tuple[str, ...]:
        """The shared subscriptions that the member has."""
        shares = self._groups_of.get(member, ())
        return tuple(sorted(share.share_filter for share in shares if member in share.group.members))

    def groups(self) -> dict[str, ShareGroup]:
        """The shared subscriptions with members on this node."""
        return {share_filter: share.group for share_filter, share in self._shares.items()}

    def statistics(self) -> dict[str, Any]:
        """Figures for /metrics; `groups` has those of each shared subscription."""
        return {
            **self._counts,
            "shared_subscriptions": len(self._shares),
            "reader": self._reader.statistics(),
            "groups": {share_filter: share.statistics() for share_filter, share in self._shares.items()},
        }

    # Resize

    async def relayout(self, kafka_topic: str) -> None:
        """The layout of the Kafka topic has changed: the groups serve the partitions that their filters need now; done
        when each partition has its mark. A group that is closed meanwhile needs nothing."""
        shares = list(self._shares.values())
        for share in shares:
            share.relayout(partitions_of(self._routes, shared_filter_of(share.share_filter).topic_filter))
        for share in shares:
            with suppress(LogUnavailable):
                await share.ready()

    def pause(self, kafka_topic: str) -> None:
        """Hand out nothing that is read from now on, of the Kafka topic and its twin, until `go_on`."""
        for share in self._shares.values():
            share.pause((kafka_topic, kafka_topic + Q2_SUFFIX))

    def go_on(self) -> None:
        """Undo `pause`, in the order of the layouts' generations."""
        for share in self._shares.values():
            share.keep_order(self._routes.barriers)

    def is_ordering(self) -> bool:
        """Whether a group here still has something from before a resize, as far as is known."""
        return any(share.is_ordering for share in self._shares.values())

    # How

    def _open(self, share_filter: str, topic_filter: str) -> Share:
        partitions = partitions_of(self._routes, topic_filter)
        share = self._shares[share_filter] = Share(
            share_filter,
            partitions,
            self._log,
            self._leases.lease(group_id_of(share_filter), partitions),
            self._make_strategy(share_filter),
            self._writer,
            prepare=lambda: self._delete_unless_held(share_filter),
            on_hungry=self._reader.changed,
            clock_ms=self._clock_ms,
        )
        self._reader.add(share.group, topic_filter)
        share.keep_order(self._routes.barriers)
        if self._committer is None:
            self._committer = asyncio.get_running_loop().create_task(
                self._commit_regularly(), name="headwater-shared-commits"
            )
        return share

    def _make_strategy(self, share_filter: str) -> Strategy:
        return make_strategy(self._strategy(share_filter), self._rng.randrange)

    def _member_left(self, share: Share) -> None:
        if share.group.members:
            share.members_changed()
        elif self._shares.get(share.share_filter) is share:
            self._close(share.share_filter)

    def _close(self, share_filter: str) -> None:
        share = self._shares.pop(share_filter)
        task = asyncio.get_running_loop().create_task(self._close_share(share), name="headwater-share-close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_share(self, share: Share) -> None:
        try:
            await share.close()
        except Exception:
            log.exception("%s did not close as it should", share.share_filter)
        self._reader.remove(share.group)
        await self.forget(share.share_filter)

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval_s)
            await asyncio.gather(*(share.commit() for share in self._shares.values()))


def _no_dead_letter(position: Position, record: Record, error: Exception) -> None:
    log.warning("%s[%d]@%d cannot be read and is skipped: %s", *position, record.offset, error)
