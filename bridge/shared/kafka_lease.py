"""Leases by Kafka's classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup on aiokafka's connections.

Why not `AIOKafkaConsumer` with paused partitions: it brings a fetcher and a connection of its own per group, stops
everything at each rebalance, and its coordinator does not know error 82. Here a group at rest costs a heartbeat per
second on the connection that all groups share.

A rebalance is cooperative (as in KIP-429, see `bridge.shared.assignor`): each node goes on with what it has; a node
that has to give something up stores its low-water marks, and joins again without it. A node that dies is noticed when
its session times out, a node that cannot reach Kafka stops by itself before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from typing import Any

import aiokafka.errors as errors
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import DeleteGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from bridge.kafka_connection import KafkaConnection
from bridge.kafka_protocol import StableOffsetsRequest
from bridge.log import LogUnavailable, Mark, Position
from bridge.shared.assignor import NO_GENERATION, NodeClaim, assign, decode_claim, encode_claim
from bridge.shared.lease import LeaseHolder, LeaseLost
from schemas.errors import RecordError

log = logging.getLogger(__name__)

ASSIGNOR = "headwater-weighted-1"
SESSION_TIMEOUT_S = 6.0  # Kafka's own minimum: how long the partitions of a node that died stay unserved
REBALANCE_TIMEOUT_S = 5.0  # how long the others wait for a node that does not join again
HEARTBEAT_S = 1.0  # how soon a node hears of a rebalance
REWEIGH_AFTER_S = 3.0  # members come and go: the others hear of it together
REWEIGH_RATIO = 0.1  # a smaller difference moves no partition worth the rebalance
SETTLE_S = 4.0  # giving up and taking over partitions, before the next round; shorter than REBALANCE_TIMEOUT_S
LEAVE_S = 2.0
RETRY_S = 0.1
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCE, _MEMBER_ID_REQUIRED = 22, 25, 27, 79
_NON_EMPTY_GROUP, _GROUP_NOT_FOUND = 68, 69
_NOT_A_MEMBER = frozenset((_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCE))
_ANY_VERSION = 0  # of the consumer protocol: what Kafka's group tools read


class _Failed(Exception):  # noqa: N818
    """Kafka answered with this error code."""

    def __init__(self, code: int) -> None:
        super().__init__(errors.for_code(code).__name__ if code >= 0 else "unknown")
        self.code = code


class KafkaLeases:
    """All leases of a node: one connection for their heartbeats, and one more while a group is being joined."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection

    def lease(self, group_id: str, partitions: Set[Position]) -> KafkaLease:
        return KafkaLease(self._connection, group_id, partitions)

    async def delete(self, group_id: str) -> bool:
        answer = await self._connection.ask_coordinator(
            group_id, "deletion", DeleteGroupsRequest([group_id]), _deletion_codes
        )
        return all(not code for _, code in answer.results)


class KafkaLease:
    """This node's membership of one group: a task that joins, and then says once a second that it is there."""

    def __init__(self, connection: KafkaConnection, group_id: str, partitions: Set[Position]) -> None:
        self.group_id = group_id
        self._connection = connection
        self._partitions = frozenset(partitions)
        self._holder: LeaseHolder | None = None
        self._coordinator: int | None = None
        self._member_id = ""
        self._generation = NO_GENERATION  # in which we got what we have
        self._round = NO_GENERATION  # which the coordinator knows us in, from its answer to JoinGroup on
        self._refused_round = NO_GENERATION
        self._given_up: str | None = None  # the member id of one that has forfeited everything
        self._owned: frozenset[Position] = frozenset()
        self._weight = self._told_weight = 0
        self._valid_until_s = 0.0
        self._rejoin = asyncio.Event()  # there is something to tell the group
        self._reweigh_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None

    def start(self, holder: LeaseHolder, weight: int) -> None:
        assert self._task is None, "started once"
        self._holder, self._weight = holder, weight
        self._task = asyncio.get_running_loop().create_task(self._run(), name="headwater-lease")

    def is_valid(self) -> bool:
        return asyncio.get_running_loop().time() < self._valid_until_s

    def repartition(self, partitions: Set[Position]) -> None:
        self._partitions = frozenset(partitions)
        self._rejoin.set()

    def reweigh(self, weight: int) -> None:
        self._weight = weight
        if self._reweigh_timer is None:
            self._reweigh_timer = asyncio.get_running_loop().call_later(REWEIGH_AFTER_S, self._tell_weight)

    def membership(self) -> tuple[str, int] | None:
        if not self._member_id or self._round in (NO_GENERATION, self._refused_round):
            return None
        return self._member_id, self._round

    def refused(self, generation: int) -> None:
        if generation == self._round != self._refused_round:
            self._refused_round = generation
            self._rejoin.set()

    def forfeit(self) -> None:
        if self._member_id:
            log.warning("%s: what was stored last is not known: this node begins anew", self.group_id)
            self._given_up = self._member_id
            self._lose()
            self._rejoin.set()

    async def commit(self, marks: Mapping[Position, Mark]) -> None:
        membership = self.membership()
        if membership is None:
            raise LeaseLost(f"{self.group_id}: not joined")
        by_topic: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for (kafka_topic, partition), (offset, beyond) in marks.items():
            by_topic[kafka_topic].append((partition, offset, beyond))
        member_id, generation = membership
        request = OffsetCommitRequest(self.group_id, generation, member_id, -1, list(by_topic.items()))
        try:
            answer = await self._ask(request)
            _raise_first(code for _, partitions in answer.topics for _, code in partitions)
        except _Failed as error:
            if error.code in _NOT_A_MEMBER:
                raise LeaseLost(f"{self.group_id}: {error}") from None
            raise LogUnavailable(f"{self.group_id}: low-water marks: {error}") from None
        except (KafkaError, OSError) as error:
            raise LogUnavailable(f"{self.group_id}: low-water marks: {error!r}") from error

    async def committed(self) -> dict[Position, Mark]:
        """An open transaction with marks of the group is an error, too: it was begun by who served the partition before
        us, and decides what that has handed out."""
        answer = await self._connection.ask_coordinator(
            self.group_id, "low-water marks", StableOffsetsRequest(self.group_id), _offset_codes
        )
        return {
            (kafka_topic, partition): Mark(offset, beyond or "")
            for kafka_topic, partitions, _ in answer.topics
            for partition, offset, _, beyond, _, _ in partitions
            if offset >= 0
        }

    async def leave(self) -> None:
        await self.die()
        if not self._member_id:
            return
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._ask(LeaveGroupRequest(self.group_id, self._member_id))
        except (KafkaError, OSError, TimeoutError) as error:
            log.warning(
                "%s: left without a word, the others notice in %.0f s: %r", self.group_id, SESSION_TIMEOUT_S, error
            )

    async def die(self) -> None:
        """Stop without a word: what a crash is to the others."""
        self._valid_until_s = 0.0
        if self._reweigh_timer is not None:
            self._reweigh_timer.cancel()
        tasks = [task for task in (self._task, self._settling) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Joining and staying

    async def _run(self) -> None:
        while True:
            try:
                await self._end_settling()
                await self._leave_behind()
                await self._join()
                await self._stay()
            except _Failed as error:
                self._failed(error)
                await asyncio.sleep(RETRY_S)
            except (KafkaError, OSError, LogUnavailable) as error:
                log.warning("%s: the coordinator does not answer: %r", self.group_id, error)
                self._coordinator = None
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("%s: the lease goes on after an unexpected error", self.group_id)
                self._lose()
                await asyncio.sleep(HEARTBEAT_S)

    async def _join(self) -> None:
        """One round: tell the claim, get what is ours; on a connection of its own, as Kafka answers when all joined."""
        self._rejoin.clear()
        loop = asyncio.get_running_loop()
        lane = self._connection.new_lane()
        try:
            self._told_weight = self._weight
            claim = NodeClaim(self._weight, self._partitions, self._owned, self._generation)
            answer = await self._ask_to_join(claim, lane)
            self._member_id, generation = answer.member_id, answer.generation_id
            self._known_in(generation)
            assignments = _assignments(answer) if answer.leader_id == answer.member_id else []
            synced_s = loop.time()
            sync = SyncGroupRequest(self.group_id, generation, self._member_id, None, assignments)
            synced = await self._ask(sync, lane)
            _raise_first([synced.error_code])
        finally:
            self._connection.close_lanes({lane})
        self._generation = generation
        self._renew(synced_s)
        self._settling = loop.create_task(
            self._settle(_assigned(synced.member_assignment)), name="headwater-lease-settle"
        )

    async def _leave_behind(self) -> None:
        """The member that has forfeited everything: else the others wait for it."""
        if self._given_up is not None:
            member_id, self._given_up = self._given_up, None
            await self._ask(LeaveGroupRequest(self.group_id, member_id))

    async def _ask_to_join(self, claim: NodeClaim, lane: int) -> Any:
        kafka_topics = sorted({kafka_topic for kafka_topic, _ in self._partitions})
        metadata = ConsumerProtocolMemberMetadata(_ANY_VERSION, kafka_topics, encode_claim(claim)).encode()
        while True:
            request = JoinGroupRequest(
                self.group_id,
                int(SESSION_TIMEOUT_S * 1000),
                int(REBALANCE_TIMEOUT_S * 1000),
                self._member_id,
                None,
                "consumer",
                [(ASSIGNOR, metadata)],
            )
            answer = await self._ask(request, lane)
            if answer.error_code == _MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
                continue
            _raise_first([answer.error_code])
            return answer

    async def _stay(self) -> None:
        """Heartbeats, until there is a new round."""
        while not await self._has_news():
            sent_s = asyncio.get_running_loop().time()
            answer = await self._ask(HeartbeatRequest(self.group_id, self._generation, self._member_id))
            if answer.error_code == _REBALANCE:
                return
            _raise_first([answer.error_code])
            self._renew(sent_s)

    async def _has_news(self) -> bool:
        """Whether there is something to tell the group before the next heartbeat is due."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._rejoin.wait()
        except TimeoutError:
            return False
        return True

    async def _settle(self, assigned: frozenset[Position]) -> None:
        """Take over what is new, give up what goes; the one that gives up tells it in a round of its own."""
        assert self._holder is not None
        gained, revoked = assigned - self._owned, self._owned - assigned
        try:
            if revoked:
                try:
                    await self._holder.revoked(revoked)
                finally:
                    self._owned -= revoked
                    self._rejoin.set()
            if gained:
                await self._holder.gained(gained)
                self._owned |= gained
            self._holder.settled()
        except Exception:
            log.exception("%s: partitions could not be taken over; the next round tries again", self.group_id)
            self._rejoin.set()

    async def _end_settling(self) -> None:
        if self._settling is not None:
            await asyncio.wait([self._settling], timeout=SETTLE_S)
            self._settling.cancel()
            await asyncio.wait([self._settling])
            self._settling = None

    # What happens to it

    def _renew(self, sent_s: float) -> None:
        """The coordinator heard of us after `sent_s`: it does not give us up before the session's time is over."""
        assert self._holder is not None
        was_valid = self.is_valid()
        self._valid_until_s = sent_s + SESSION_TIMEOUT_S
        if self._owned and not was_valid:
            self._holder.renewed()

    def _known_in(self, generation: int) -> None:
        assert self._holder is not None
        was_refused = self._round == self._refused_round != NO_GENERATION
        self._round, self._refused_round = generation, NO_GENERATION
        if was_refused and self._owned:
            self._holder.renewed()

    def _failed(self, error: _Failed) -> None:
        if error.code in (_UNKNOWN_MEMBER, _ILLEGAL_GENERATION):
            log.warning("%s: this node was given up by the others: %s", self.group_id, error)
            self._lose()
        elif error.code != _REBALANCE:
            log.warning("%s: %s", self.group_id, error)
            self._coordinator = None

    def _lose(self) -> None:
        assert self._holder is not None
        if self._settling is not None:
            self._settling.cancel()
        self._member_id, self._generation, self._owned = "", NO_GENERATION, frozenset()
        self._round = self._refused_round = NO_GENERATION
        self._valid_until_s = 0.0
        self._holder.lost()

    def _tell_weight(self) -> None:
        self._reweigh_timer = None
        if abs(self._weight - self._told_weight) > REWEIGH_RATIO * max(self._told_weight, 1):
            self._rejoin.set()

    async def _ask(self, request: Any, lane: int = ConnectionGroup.COORDINATION) -> Any:
        client = self._connection.client
        if self._coordinator is None:
            self._coordinator = await client.coordinator_lookup(CoordinationType.GROUP, self.group_id)
        return await client.send(self._coordinator, request, group=lane)


def _raise_first(codes: Iterable[int]) -> None:
    for code in codes:
        if code:
            raise _Failed(code)


def _assignments(answer: Any) -> list[tuple[str, bytes]]:
    """What the group's leader makes of everybody's claims."""
    claims: dict[str, NodeClaim] = {}
    for member_id, *_, metadata in answer.members:
        try:
            claims[member_id] = decode_claim(ConsumerProtocolMemberMetadata.decode(metadata).user_data)
        except (RecordError, ValueError) as error:
            log.error("a stranger in our group gets nothing: %s: %s", member_id, error)
            claims[member_id] = NodeClaim(0, frozenset())
    return [(member_id, _encoded_assignment(positions)) for member_id, positions in assign(claims).items()]


def _encoded_assignment(positions: frozenset[Position]) -> bytes:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for kafka_topic, partition in sorted(positions):
        by_topic[kafka_topic].append(partition)
    encoded: bytes = ConsumerProtocolMemberAssignment(_ANY_VERSION, list(by_topic.items()), b"").encode()
    return encoded


def _assigned(raw: bytes | None) -> frozenset[Position]:
    if not raw:
        return frozenset()
    decoded = ConsumerProtocolMemberAssignment.decode(raw)
    return frozenset(
        (kafka_topic, partition) for kafka_topic, partitions in decoded.assignment for partition in partitions
    )


def _offset_codes(answer: Any) -> list[int]:
    return [answer.error_code, *(each[4] for _, partitions, _ in answer.topics for each in partitions)]


def _deletion_codes(answer: Any) -> list[int]:
    return [code for _, code in answer.results if code not in (_NON_EMPTY_GROUP, _GROUP_NOT_FOUND)]
