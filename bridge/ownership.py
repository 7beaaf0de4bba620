"""One owner per session in the whole cluster: claims in `headwater.claims`, followed by every edge.

1. `claim` appends a claim and waits until the tail has come to it: its offset is the owner epoch
2. every edge that had the session sees it: ``on_lost`` ends the older connection, which stores its state and `release`s
3. `released` waits for that; who does not release in time is left to the caller, who fences it (`bridge.session_store`)
4. the connection ends: `release` when the session stays, `forget` when it is over

Read-repair: what counts for a client is written again when something older, or void, landed behind it. Its owner does
so at once, the other nodes a little later if it has not been done: the owner may be dead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge.claims import ClaimsView, OpenClaim
from bridge.log import Log, LogUnavailable, Record
from bridge.membership import AppendFuture
from bridge.murmur2 import murmur2, partition_for_key
from bridge.partitioning import Destination
from bridge.topic_tail import LOAD_TIMEOUT_S, TICK_S, TopicTail
from schemas.catalogue import CLAIMS, catalogue
from schemas.claims import Claim, Forgotten, decode_claim
from schemas.errors import RecordError

logger = logging.getLogger(__name__)

CLAIM_TIMEOUT_S = 30.0  # as long as the publisher tries; by then a client has gone
REPAIR_AFTER_MS = 1_000  # the others leave a repair to the owner for that long
REPAIR_SPREAD_MS = 1_000  # nodes repair at different moments, so that mostly one of them does
AGAIN_MS = 5_000  # a repair or an end of ours that has not come back by then is written again
PER_TICK_MAX = 1_000
MAX_EPOCH = 1 << 63  # above every offset
EXCLUSIVE_KEY = "\0exclusive\0"  # in front of a Topic Filter: no client id holds U+0000 [MQTT5-1.5.4-2]


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a claim. ``predecessors``: the durable ones before it that are not released, in their order."""

    epoch: int
    is_void: bool
    predecessors: tuple[OpenClaim, ...]
    had_session: bool


class Ownership:
    """This node's view of all claims, and its own. Belongs to one event loop.

    Args:
        append_future: `Publisher.append_future`.
        is_live: whether this incarnation of the node is there.
        on_lost: called with client id and epoch when a claim of ours is not in force any more and we have neither
            released nor forgotten it. The claimant may not have been told of its epoch yet: it asks `is_owner`.
        is_replaced: whether a later incarnation of the node has announced itself. It has fenced the earlier one then,
            which is waited for by nobody.
    """

    def __init__(
        self,
        source: Log,
        append_future: AppendFuture,
        node_id: str,
        incarnation: str,
        is_live: Callable[[str, str], bool],
        on_lost: Callable[[str, int], None],
        *,
        is_replaced: Callable[[str, str], bool] = lambda node_id, incarnation: False,
        kafka_topic: str = CLAIMS,
        partitions: int | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.view = ClaimsView()
        self.node_id = node_id
        self.incarnation = incarnation
        self._append_future = append_future
        self._is_live = is_live
        self._is_replaced = is_replaced
        self._on_lost = on_lost
        self._kafka_topic = kafka_topic
        self._partitions = partitions or next(spec.partitions for spec in catalogue() if spec.name == CLAIMS)
        self._clock_ms = clock_ms
        self._tail = TopicTail(
            source, kafka_topic, self._partitions, self._take, tick=self._tick, on_truncated=self._truncated
        )
        self._last_nonce = 0
        self._claimants: dict[str, asyncio.Future[Claimed]] = {}  # by nonce
        self._release_waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._repairs: dict[str, int] = {}  # misplaced clients with the time of their next repair
        self._ends: dict[tuple[str, int], tuple[Claim | Forgotten, int]] = {}  # ours on their way, and when to repeat
        self._counts = dict.fromkeys(("claimed", "lost", "repairs", "append_failures", "unreadable", "abandoned"), 0)
        self.load_ms = 0

    # Lifecycle

    async def start(self, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Load the whole Kafka topic, then follow it.

        Raises:
            LogUnavailable: it could not be read to its end in time.
        """
        began_s = time.monotonic()
        await self._tail.start(timeout_s)
        self.load_ms = round((time.monotonic() - began_s) * 1000)
        logger.info("%d claims loaded in %d ms", len(self.view), self.load_ms)

    async def stop(self) -> None:
        """Follow no longer. What was appended is the publisher's to finish."""
        await self._tail.stop()
        for claimant in self._claimants.values():
            claimant.cancel()
        for waiters in self._release_waiters.values():
            for waiter in waiters:
                waiter.cancel()

    def statistics(self) -> dict[str, int]:
        return {
            **self.view.statistics(),
            **self._counts,
            "claiming": len(self._claimants),
            "log_errors": self._tail.errors,
            "load_ms": self.load_ms,
        }

    # Asking

    def owner(self, client_id: str) -> OpenClaim | None:
        """The claim in force, released or not; None: there is no session."""
        return self.view.owner(client_id)

    def is_owner(self, client_id: str, epoch: int) -> bool:
        """Whether the claim of this epoch is in force and not released, as far as this node knows."""
        claim = self.view.owner(client_id)
        return claim is not None and claim.epoch == epoch and not claim.is_released

    def may_write(self, client_id: str, epoch: int) -> bool:
        """Whether the session may be stored under this epoch: its claim has neither ended nor been renounced.

        A superseded owner stores what its connection has come to; the next one waits for its release, or fences it.
        """
        claim = self.view.find(client_id, epoch)
        return claim is not None and not claim.is_released and (client_id, epoch) not in self._ends

    def orphans(self) -> list[tuple[str, OpenClaim]]:
        """Claims of nodes that are not there any more, with their clients: a live node has to look after these."""
        return [each for each in self.view.orphans(self._is_there) if not each[0].startswith(EXCLUSIVE_KEY)]

    def exclusive_without_connection(self) -> list[tuple[str, OpenClaim]]:
        """The claims of exclusive filters that no connection holds now: released, or their node is not there."""
        return [
            (key, claim)
            for key, claim in self.view.starting_with(EXCLUSIVE_KEY)
            if claim.is_released or not self._is_there(claim.node_id, claim.incarnation)
        ]

    async def caught_up(self) -> None:
        """Until the view has every claim that was in the log before this call.

        Raises:
            LogUnavailable: Kafka does not answer.
        """
        await self._tail.caught_up()

    # Claiming

    async def claim(self, client_id: str, principal: str, durable: bool) -> Claimed:
        """Append a claim; done when the tail has come to it. A claim that the caller gives up is released.

        Raises:
            RecordRefused: definite, there is no claim.
            LogUnavailable: Kafka does not answer; if the claim is in the log all the same, it will be released.
        """
        self._last_nonce += 1
        nonce = str(self._last_nonce)
        claim = Claim(principal, self.node_id, self.incarnation, durable, nonce, self._clock_ms())
        claimant: asyncio.Future[Claimed] = asyncio.get_running_loop().create_future()
        self._claimants[nonce] = claimant
        self._counts["claimed"] += 1

        def appended(future: asyncio.Future[int]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None and not claimant.done():
                claimant.set_exception(error)

        try:
            self._append_future(self._destination(client_id), claim.to_json(), ()).add_done_callback(appended)
            async with asyncio.timeout(CLAIM_TIMEOUT_S):
                return await claimant
        except BaseException as error:
            if claimant.done() and not claimant.cancelled() and claimant.exception() is None:
                self.release(client_id, claimant.result().epoch)  # it came when the caller had just given up
            if isinstance(error, TimeoutError):
                raise LogUnavailable(f"no claim within {CLAIM_TIMEOUT_S:.0f} s") from None
            raise
        finally:
            del self._claimants[nonce]

    async def released(self, client_id: str, epoch: int, timeout_s: float = 1.5) -> tuple[OpenClaim, ...]:
        """Wait until the durable claims before this epoch are released; which of them are not.

        Only those of live nodes are waited for; the others are returned as they are.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while any(self._is_live(each.node_id, each.incarnation) for each in self._unreleased(client_id, epoch)):
                    await self._next_release(client_id)
        except TimeoutError:
            pass
        return self._unreleased(client_id, epoch)

    async def ended(self, client_id: str, epoch: int, timeout_s: float) -> None:
        """Wait until this node has seen that the claim does not count any more, or for so long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.view.find(client_id, epoch) is not None:
                    await self._next_release(client_id)
        except TimeoutError:
            pass

    def release(self, client_id: str, epoch: int) -> None:
        """The session stays, its owner has gone. Also for a claim that was given up before it came to a connection."""
        claim = self.view.find(client_id, epoch)
        if claim is None or claim.is_released or (client_id, epoch) in self._ends:
            return  # void, forgotten, on its way already, or nobody would wait for it
        record = Claim(claim.principal, claim.node_id, claim.incarnation, claim.durable, epoch=epoch, is_released=True)
        self._end(client_id, epoch, record)

    def forget(self, client_id: str, epoch: int) -> None:
        """The session is over. What is stored of it must have been deleted before: nothing is written after this."""
        if self.view.find(client_id, epoch) is not None:
            self._end(client_id, epoch, Forgotten(epoch))

    def renounce(self, client_id: str) -> None:
        """Release each claim of ours that was superseded: nothing more is written for it."""
        for claim in self.view.earlier(client_id, MAX_EPOCH):
            if self._is_ours(claim) and (client_id, claim.epoch) not in self._ends:
                self.release(client_id, claim.epoch)

    async def renounce_superseded(self) -> None:
        """After this node was fenced: read the claims to their end, and renounce those that were superseded.

        Raises:
            LogUnavailable: Kafka does not answer.
        """
        await self.caught_up()
        for client_id in self.view.superseded():
            self.renounce(client_id)

    def _end(self, client_id: str, epoch: int, record: Claim | Forgotten) -> None:
        self._ends[client_id, epoch] = (record, self._clock_ms() + AGAIN_MS)
        self._append(client_id, record)

    def _is_there(self, node_id: str, incarnation: str) -> bool:
        """We are, whatever has become of our heartbeat."""
        is_ours = node_id == self.node_id and incarnation == self.incarnation
        return is_ours or self._is_live(node_id, incarnation)

    def _unreleased(self, client_id: str, epoch: int) -> tuple[OpenClaim, ...]:
        return tuple(claim for claim in self.view.earlier(client_id, epoch) if not self._was_replaced(claim))

    def _was_replaced(self, claim: OpenClaim) -> bool:
        if claim.node_id == self.node_id:
            return claim.incarnation != self.incarnation
        return self._is_replaced(claim.node_id, claim.incarnation)

    async def _next_release(self, client_id: str) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._release_waiters.setdefault(client_id, [])
        waiters.append(waiter)
        try:
            await waiter
        finally:
            waiters.remove(waiter)
            if not waiters and self._release_waiters.get(client_id) is waiters:
                del self._release_waiters[client_id]

    # Writing

    def _destination(self, client_id: str) -> Destination:
        key = client_id.encode()
        return Destination(self._kafka_topic, partition_for_key(key, self._partitions), key)

    def _append(self, client_id: str, record: Claim | Forgotten) -> None:
        destination = self._destination(client_id)
        if isinstance(record, Claim):
            future = self._append_future(destination, record.to_json(), ())
        else:
            future = self._append_future(destination, None, record.headers())
        future.add_done_callback(self._appended)

    def _appended(self, future: asyncio.Future[int]) -> None:
        """Success is seen when the record comes back; without, it is written again."""
        if not future.cancelled() and (error := future.exception()) is not None:
            self._counts["append_failures"] += 1
            logger.warning("%s: %s", self._kafka_topic, error)

    # Reading

    def _take(self, partition: int, record: Record) -> None:
        try:
            client_id, entry = decode_claim(record.key, record.value, record.headers)
        except RecordError as error:
            self._counts["unreadable"] += 1
            logger.warning("%s[%d]@%d is skipped: %s", self._kafka_topic, partition, record.offset, error)
            return
        before = self.view.owner(client_id)
        outcome = self.view.apply(client_id, entry, record.offset, record.timestamp)
        after = self.view.owner(client_id)
        if isinstance(entry, Claim) and entry.epoch is None and self._is_ours(entry):
            self._take_own(client_id, entry, record.offset, outcome == "void", before)
        if before is not None and before is not after:
            self._superseded(client_id, before)
        if entry.epoch is not None and (isinstance(entry, Forgotten) or entry.is_released):
            self._ends.pop((client_id, entry.epoch), None)
        for waiter in self._release_waiters.get(client_id, ()):
            _resolve(waiter)
        if client_id in self.view.misplaced and client_id not in self._repairs:
            self._repairs[client_id] = self._clock_ms() + self._repair_delay_ms(client_id, after)

    def _take_own(self, client_id: str, claim: Claim, epoch: int, is_void: bool, before: OpenClaim | None) -> None:
        claimant = self._claimants.get(claim.nonce)
        if claimant is not None and not claimant.done():
            had_session = before is not None and before.durable and not is_void
            predecessors = () if is_void else self._unreleased(client_id, epoch)
            claimant.set_result(Claimed(epoch, is_void, predecessors, had_session))
        elif not is_void:
            self._counts["abandoned"] += 1  # given up before it came, or in the log a second time
            self.release(client_id, epoch)

    def _superseded(self, client_id: str, claim: OpenClaim) -> None:
        if self._is_ours(claim) and not claim.is_released and (client_id, claim.epoch) not in self._ends:
            self._counts["lost"] += 1
            self._on_lost(client_id, claim.epoch)

    def _is_ours(self, claim: Claim | OpenClaim) -> bool:
        return claim.node_id == self.node_id and claim.incarnation == self.incarnation

    def _truncated(self, partition: int) -> None:
        """The Kafka topic was made anew: what was known of the partition is gone, our claims in it, too."""
        ours = [
            (client_id, claim)
            for client_id, claim in self.view.claims_of(self.node_id)
            if self._is_in(client_id, partition)
        ]
        self.view.discard(lambda client_id: self._is_in(client_id, partition))
        for client_id, claim in ours:
            self._superseded(client_id, claim)

    def _is_in(self, client_id: str, partition: int) -> bool:
        return partition_for_key(client_id.encode(), self._partitions) == partition

    # Read-repair

    def _repair_delay_ms(self, client_id: str, claim: OpenClaim | None) -> int:
        if claim is not None and self._is_ours(claim):
            return 0
        spread = murmur2((self.node_id + client_id).encode()) & 0x7FFF_FFFF
        return REPAIR_AFTER_MS + spread % REPAIR_SPREAD_MS

    def _tick(self) -> float:
        now_ms = self._clock_ms()
        self.view.expire(now_ms)
        if self._repairs:
            due = [client_id for client_id, at in self._repairs.items() if at <= now_ms]
            for client_id in due[:PER_TICK_MAX]:
                self._repair(client_id, now_ms)
        if self._ends:
            late = [end for end, (_, at) in self._ends.items() if at <= now_ms]
            for client_id, epoch in late[:PER_TICK_MAX]:
                self._end_again(client_id, epoch, now_ms)
        return min(TICK_S, max(0.01, (min(self._repairs.values()) - now_ms) / 1000)) if self._repairs else TICK_S

    def _repair(self, client_id: str, now_ms: int) -> None:
        record = self.view.repair(client_id)
        if record is None:
            del self._repairs[client_id]
            return
        self._repairs[client_id] = now_ms + AGAIN_MS
        self._counts["repairs"] += 1
        self._append(client_id, record)

    def _end_again(self, client_id: str, epoch: int, now_ms: int) -> None:
        record, _ = self._ends.pop((client_id, epoch))
        if self.view.find(client_id, epoch) is not None:
            self._ends[client_id, epoch] = (record, now_ms + AGAIN_MS)
            self._append(client_id, record)


def _resolve(waiter: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_result(None)
