"""One shared subscription on one node: its members, its leased partitions, and who gets what. Pure.

* Every message goes to one member; what a member that leaves has not acknowledged goes to another one, first.
* A member without room is skipped; nobody free, or too much unacknowledged: the partition waits, and nothing more of it
  is read until a member is woken or acknowledges.
* What is stored says what is done; a message that is not acknowledged is handed out again, whoever serves the
  partition then.
* A QoS 2 message is given to a session for good by one transaction that stores the session's record of it and the
  group's mark (`Handover`), before the client hears of it. So it is one session's, whoever dies when.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from bridge.delivery import Delivery
from bridge.log import Mark, Position
from bridge.shared.strategies import Candidate, Strategy
from bridge.shared.window import BYTES_MAX, RECORDS_MAX, LeasedPartition
from bridge.subscriptions import Grant, Subscription
from schemas.errors import RecordError

if TYPE_CHECKING:
    from bridge.session_writer import MarksSource

log = logging.getLogger(__name__)


class ShareMember(Candidate, Protocol):
    """A client's session that has the shared subscription and is connected. Hashable."""

    def deliver_shared(self, delivery: Delivery, grant: Grant, group: ShareGroup, /) -> None:
        """Take one message, now and without waiting: `has_room` has just said yes.

        When its effective QoS (the lower of the delivery's and the grant's) is not 0, `group.acknowledged` follows, at
        the latest with `ShareGroup.leave`. A message that cannot be sent to this member is acknowledged at once. With
        QoS 2 the member asks for a `group.hand_over`, and sends it only when that is committed.
        """
        ...


class Handover:
    """One QoS 2 message on its way from the group to a member's session; `bridge.session_writer.MarksStep`.

    Its write has one outcome: `committed` (the message is the session's), `failed` (others get it) or `doubtful`.
    """

    __slots__ = ("_group", "_partition", "member", "offset")

    def __init__(self, group: ShareGroup, partition: LeasedPartition, offset: int, member: ShareMember) -> None:
        self._group = group
        self._partition = partition
        self.offset = offset
        self.member = member

    def begin(self) -> bool:
        """It is about to be written; False: it is not the member's any more."""
        if not self._is_held():
            return False
        self._partition.giving.add(self.offset)
        return True

    @property
    def source(self) -> MarksSource:
        """Who has the marks that are to be stored with it."""
        source = self._group.source
        assert source is not None, "handed over by a group with a lease"
        return source

    @property
    def position(self) -> Position:
        return self._partition.position

    def is_possible(self) -> bool:
        """Whether the message is still ours to give: the partition was not lost in between."""
        return self.offset in self._partition.giving and self._is_held()

    def _is_held(self) -> bool:
        held = self._partition.holders.get(self.offset)
        return held is not None and held[0] is self.member and self._group.serves(self._partition)

    def committed(self) -> None:
        if self.is_possible():
            self._group.acknowledged(self.member, self.position, self.offset)

    def failed(self) -> None:
        if self.is_possible():
            self._group.give_back(self.member, self.position, self.offset)

    def doubtful(self) -> None:
        """Nobody knows whether it was stored: the stored marks will tell, when the partition is taken over anew."""
        if self.is_possible():
            self.source.marks_doubtful()


class ShareGroup:
    """`$share/<share name>/<topic filter>` on this node; a subscriber in the reader's table (`deliver` is not used).

    ``is_leased`` is asked before anything is handed out, ``may_give`` before a QoS 2 message is:
    whether there can be a hand-over now; ``on_hungry`` is called when more can be read; ``clock_ms`` is the wall
    clock in ms, for Message Expiry.
    """

    def __init__(
        self,
        share_filter: str,
        strategy: Strategy,
        *,
        is_leased: Callable[[], bool],
        may_give: Callable[[], bool] = lambda: True,
        on_hungry: Callable[[], None],
        clock_ms: Callable[[], int],
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.share_filter = share_filter
        self.on_settled: Callable[[], None] | None = None
        self.limits: dict[Position, int] = {}  # nothing is read past these (over a resize)
        self.source: MarksSource | None = None
        self._strategy = strategy
        self._is_leased = is_leased
        self._may_give = may_give
        self._on_hungry = on_hungry
        self._clock_ms = clock_ms
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._grants: dict[ShareMember, Grant] = {}
        self._members: list[ShareMember] = []
        self._partitions: dict[Position, LeasedPartition] = {}
        self._waiting: dict[Position, LeasedPartition] = {}  # the one that got something last at its end
        self._is_handing_out = False
        self._counts = dict.fromkeys(
            ("deliveries", "acknowledged", "taken_back", "expired", "member_errors", "truncated_records", "waits"), 0
        )

    def deliver(self, delivery: Any, grant: Grant, /) -> object:
        """A group is fed by `feed`, partition by partition."""
        raise NotImplementedError

    # Members

    @property
    def members(self) -> Collection[ShareMember]:
        """Who may get messages, in the order they joined."""
        return self._grants.keys()

    def join(self, member: ShareMember, subscription: Subscription) -> None:
        """From now on the member gets its share; a second time: with other options."""
        if member not in self._grants:
            self._members.append(member)
        self._grants[member] = subscription.grant()
        self._strategy.members_changed()
        self.hand_out()

    def unsubscribe(self, member: ShareMember) -> None:
        """Nothing new goes to the member; what it has it may still acknowledge [MQTT5-3.10.4-3]."""
        if self._grants.pop(member, None) is not None:
            self._members.remove(member)
            self._strategy.members_changed()

    def leave(self, member: ShareMember, keeps: Collection[tuple[Position, int]] = ()) -> None:
        """The member is gone: others get what it has not acknowledged.

        What is in ``keeps`` is the member's own for good, though: QoS 2 that was sent to it is completed by its
        session or not at all [MQTT5-4.8.2-4] [MQTT5-4.8.2-5]. Whose is what is being handed over to its session is not
        known yet.
        """
        self.unsubscribe(member)
        for position, partition in self._partitions.items():
            for offset in [offset for offset, (holder, _) in partition.holders.items() if holder is member]:
                if offset in partition.giving:
                    continue
                self._strategy.settled(member, partition.holders[offset][1])
                if (position, offset) in keeps:
                    partition.settle(offset)
                else:
                    partition.take_back(offset)
                    self._counts["taken_back"] += 1
                if not partition.is_revoked:
                    self._waiting[position] = partition
        self._settled()
        self.hand_out()

    def has_held(self, member: ShareMember) -> bool:
        """Whether the member has messages of this group that it did not acknowledge."""
        return any(holder is member for each in self._partitions.values() for holder, _ in each.holders.values())

    def acknowledged(self, member: ShareMember, position: Position, offset: int) -> None:
        """PUBACK or PUBCOMP came, or an error code in either [MQTT5-4.8.2-6]: the message is done.

        What is not known (any more) is ignored: the partition may have gone to another node.
        """
        partition = self._partitions.get(position)
        held = partition.holders.get(offset) if partition is not None else None
        if partition is None or held is None or held[0] is not member:
            return
        self._strategy.settled(member, held[1])
        partition.settle(offset)
        self._counts["acknowledged"] += 1
        self._settled()
        if self._waiting:
            self.hand_out()

    def hand_over(self, member: ShareMember, delivery: Delivery) -> Handover | None:
        """The member has just got this with QoS 2, and its session is to have it for good; None: it is not its any
        more."""
        partition = self._partitions.get((delivery.kafka_topic, delivery.partition))
        held = partition.holders.get(delivery.offset) if partition is not None else None
        if partition is None or held is None or held[0] is not member:
            return None
        return Handover(self, partition, delivery.offset, member)

    def give_back(self, member: ShareMember, position: Position, offset: int) -> None:
        """The member does not have it, and will not."""
        partition = self._partitions[position]
        self._strategy.settled(member, partition.holders[offset][1])
        partition.take_back(offset)
        self._counts["taken_back"] += 1
        if not partition.is_revoked:
            self._waiting[position] = partition
        self._settled()
        self.hand_out()

    # Partitions

    def gain(self, position: Position, mark: Mark) -> None:
        """This node serves the partition from the stored mark on."""
        assert position not in self._partitions, position
        try:
            partition = LeasedPartition(position, mark, self._records_max, self._bytes_max)
        except RecordError as error:
            log.error("%s, %s[%d]: what is above %d may come again: %s", self.share_filter, *position, mark[0], error)
            partition = LeasedPartition(position, Mark(mark.offset), self._records_max, self._bytes_max)
        self._partitions[position] = partition
        self._on_hungry()

    def serves(self, partition: LeasedPartition) -> bool:
        """Whether this is the partition that the node serves now, and not one that it lost and has again."""
        return self._partitions.get(partition.position) is partition

    def revoke(self, positions: Iterable[Position]) -> None:
        """Hand out nothing more of these: they go to another node soon."""
        for position in positions:
            self._partitions[position].is_revoked = True
            self._waiting.pop(position, None)

    def lose(self, positions: Iterable[Position]) -> None:
        """These are another node's, who begins at the committed low-water mark; acknowledgements come to nothing."""
        for position in positions:
            partition = self._partitions.pop(position)
            self._waiting.pop(position, None)
            for member, delivery in partition.holders.values():
                self._strategy.settled(member, delivery)
        self._settled()
        if self._waiting:
            self.hand_out()

    @property
    def positions(self) -> Collection[Position]:
        """The partitions that this node serves."""
        return self._partitions.keys()

    def marks(self, given: Sequence[Handover] = ()) -> dict[Position, Mark]:
        """What may be stored if these are: of their partitions, or, without any, of all."""
        done: dict[Position, set[int]] = defaultdict(set)
        for each in given:
            done[each.position].add(each.offset)
        wanted = done or {position: set[int]() for position in self._partitions}
        return {position: self._partitions[position].mark(offsets) for position, offsets in wanted.items()}

    def has_open(self, positions: Iterable[Position]) -> bool:
        """Whether a member of this node still has to acknowledge something of them."""
        return any(self._partitions[position].holders for position in positions)

    def wants(self, position: Position) -> int | None:
        """Where to read on; None when nothing is needed of the partition now."""
        partition = self._partitions.get(position)
        wanted = partition.wants if partition is not None and self._is_leased() else None
        if wanted is not None and self.limits and wanted >= self.limits.get(position, inf):
            return None
        return wanted

    def feed(self, position: Position, deliveries: Iterable[Delivery], read_offset: int) -> None:
        """What was read from `wants` on: the matching messages, and where to read on; they are handed out at once."""
        partition = self._partitions[position]
        if self.limits and read_offset > (limit := self.limits.get(position, read_offset)):
            deliveries, read_offset = [each for each in deliveries if each.offset < limit], limit
        partition.feed(deliveries, read_offset)
        if partition.next() is not None:
            self._waiting[position] = partition
            self.hand_out()

    def skip_to(self, position: Position, offset: int) -> None:
        """The log has nothing before (or behind) `offset`."""
        partition = self._partitions[position]
        self._counts["truncated_records"] += max(0, offset - partition.read_offset)
        partition.skip_to(offset)

    @property
    def buffered_bytes(self) -> int:
        return sum(partition.buffered_bytes for partition in self._waiting.values())

    def drop_buffers(self) -> None:
        """Memory is short: what waits is read again when somebody has room."""
        for partition in self._waiting.values():
            partition.drop_buffer()

    # Handing out

    def hand_out(self) -> None:
        """Give what waits to members that have room, one partition after the other."""
        if self._is_handing_out:
            return  # a member acknowledged what it was just given: the loop below goes on anyway
        self._is_handing_out = True
        try:
            while self._waiting and self._is_leased() and self._hand_out_round():
                pass
        finally:
            self._is_handing_out = False

    def _hand_out_round(self) -> bool:
        """One message of every partition that waits; False when nothing more can go now."""
        progress = False
        for position in list(self._waiting):
            partition = self._waiting.get(position)
            if partition is None:
                continue
            outcome = self._hand_one(partition)
            if outcome is None:  # nobody is free, for no message
                self._wait(partition)
                return False
            progress = progress or outcome
        return progress

    def _hand_one(self, partition: LeasedPartition) -> bool | None:
        """Whether something was done; None: no member is free."""
        delivery = partition.next()
        if delivery is None:  # its buffer was dropped
            if partition.has_room():
                self._be_hungry(partition)
            return False
        if delivery.expiry_s is not None and delivery.timestamp_ms + delivery.expiry_s * 1000 <= self._clock_ms():
            partition.drop_next()  # I15 [MQTT5-3.3.2-5]
            self._counts["expired"] += 1
            return True
        if not partition.has_room() or (delivery.qos == 2 and not self._may_give()):
            self._wait(partition)
            return False
        member = self._strategy.choose(self._members, delivery)
        if member is None:
            self._wait(partition)
            return False if self._strategy.by_key else None
        assert member in self._grants
        self._hand(partition, member, delivery)
        if partition.next() is None:
            self._be_hungry(partition)
        elif partition.position in self._waiting:
            self._waiting[partition.position] = self._waiting.pop(partition.position)
        return True

    def _hand(self, partition: LeasedPartition, member: ShareMember, delivery: Delivery) -> None:
        grant = self._grants[member]
        partition.hand(member, delivery)
        self._strategy.handed(member, delivery)
        self._counts["deliveries"] += 1
        try:
            member.deliver_shared(delivery, grant, self)
        except Exception:
            self._counts["member_errors"] += 1
            log.exception("a member of %s raised: it is one no more, and others get what it has", self.share_filter)
            self.leave(member)
            return
        if not (delivery.qos and grant.qos):
            self.acknowledged(member, partition.position, delivery.offset)  # QoS 0: nobody will

    def _wait(self, partition: LeasedPartition) -> None:
        self._counts["waits"] += not partition.is_waiting
        partition.is_waiting = True

    def _be_hungry(self, partition: LeasedPartition) -> None:
        partition.is_waiting = False
        self._waiting.pop(partition.position, None)
        self._on_hungry()

    def _settled(self) -> None:
        if self.on_settled is not None:
            self.on_settled()

    def statistics(self) -> Mapping[str, int]:
        """Figures for /metrics."""
        return {
            **self._counts,
            "members": len(self._members),
            "partitions": len(self._partitions),
            "partitions_waiting": sum(each.is_waiting for each in self._waiting.values()),
            "open": sum(len(each.holders) for each in self._partitions.values()),
        }
