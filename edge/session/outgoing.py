"""Messages on their way to one client: the in-flight window, packet identifiers, and the bounded buffer behind it."""

from collections import deque
from collections.abc import Callable, Iterable
from struct import Struct

from bridge.delivery import Delivery, SharedDelivery
from bridge.log import Position
from bridge.retained_view import RetainedDelivery
from bridge.subscriptions import Grant
from edge.session.connect import PACKET_BYTES_UNLIMITED
from edge.session.effects import Effect, StoreDone, StoreOutgoing, StoreReleased
from edge.session.exactly_once import Outbound, OutgoingFlow
from edge.session.frames import MQTT_5, Alias, Frame, frame_key, publish_frame
from edge.session.resuming import InFlight, Resuming
from edge.wire import publish_head, pubrel

PACKET_ID_MAX = 65_535
_PACKET_IDS = [packet_id.to_bytes(2, "big") for packet_id in range(PACKET_ID_MAX + 1)]
_WORDS = Struct(">I").iter_unpack
_PUBACK_0 = 0x4002_0000  # PUBACK of packet identifier 0, as a number

Queued = tuple[Delivery, int, bool, tuple[int, ...]]
"""A delivery that waits, with its QoS, RETAIN flag and Subscription Identifiers."""


class Outgoing:
    """Sends deliveries to one client, `window` unacknowledged at most [MQTT5-3.3.4-9]; made at its first subscription.

    What cannot be sent now waits in a buffer of `queue_length_max` messages and `queue_bytes_max` bytes. A QoS 0
    message that does not fit is dropped and counted; a QoS 1 or 2 message that does not fit sets `overflowed`, on which
    the engine acts: it and what follows is read from the log again, later.

    `inflight` has the QoS 1 messages, `flows` the QoS 2 ones. Of a session that is stored (`emit` is given) the steps
    of a QoS 2 flow are stored before the client hears of them: `emit` takes the effects that ask for it. `hand_over`
    takes that of a shared subscription's message, which is stored for every session.
    """

    __slots__ = (
        "_alias_maximum",
        "_aliases",
        "_bytes_max",
        "_emit",
        "_frame_key",
        "_hand_over",
        "_is_limited",
        "_is_plain",
        "_last_id",
        "_length_max",
        "_out",
        "_packet_bytes_max",
        "_queue",
        "_queue_bytes",
        "_reserved",
        "_version",
        "_window",
        "dropped",
        "flows",
        "inflight",
        "overflowed",
        "resuming",
        "sent",
        "sent_to",
        "shared_done",
        "too_large",
        "writable",
    )

    def __init__(
        self,
        out: list[bytes],
        protocol_version: int,
        window: int,
        packet_bytes_max: int,
        queue_length_max: int,
        queue_bytes_max: int,
        alias_maximum: int = 0,
        emit: Callable[[Effect], None] | None = None,
        hand_over: Callable[[Effect], None] | None = None,
    ) -> None:
        self._out = out
        self._version = protocol_version
        self._window = window  # what is left beside `flows` and `_reserved`: the short way looks at `inflight` alone
        self._alias_maximum = alias_maximum
        self._aliases: dict[bytes, int] = {}
        self._emit = emit
        self._hand_over = hand_over or emit
        self._packet_bytes_max = packet_bytes_max
        self._is_limited = packet_bytes_max < PACKET_BYTES_UNLIMITED
        self._is_plain = not (self._is_limited or alias_maximum)
        self._frame_key = frame_key(protocol_version, 0, False)
        self._length_max = queue_length_max
        self._bytes_max = queue_bytes_max
        self._queue: deque[Queued] | None = None
        self._queue_bytes = 0
        self._last_id = 0
        self.inflight: dict[int, Delivery] = {}
        self.flows: dict[int, OutgoingFlow] = {}
        self._reserved: set[int] = set()
        self.resuming: Resuming | None = None  # what an earlier connection of the session has left in flight
        self.shared_done: list[SharedDelivery] = []  # the shared subscriptions are to hear of these
        self.sent_to: dict[Position, int] = {}  # behind the last QoS 2 message that was begun, per partition
        self.writable = True
        self.overflowed = False
        self.sent = 0
        self.dropped = 0
        self.too_large = 0

    def deliver(self, delivery: Delivery, grant: Grant, wall_ms: int) -> None:
        """Send one matched message at the lower of the two QoS [MQTT311-3.8.4-6], or put it into the buffer.

        `wall_ms` (milliseconds since the epoch) is needed only for a message that expires.
        """
        qos = delivery.qos if delivery.qos < grant.qos else grant.qos
        retain = delivery.retain and grant.retain_as_published  # [MQTT5-3.3.1-12] [MQTT5-3.3.1-13]
        if not self.writable or self._queue or (qos and len(self.inflight) >= self._window):
            self._enqueue((delivery, qos, retain, grant.subscription_ids))
        else:
            self._send(delivery, qos, retain, grant.subscription_ids, wall_ms)

    def take_live(self, delivery: Delivery, grant: Grant) -> bool:
        """The short way for nearly all deliveries: sent at once, or False, and `deliver` goes the long way.

        Nothing waits, the window and the socket have room, the client takes packets of any size, the message does not
        expire, and nobody minds who sent it. Both ways send the same bytes.
        """
        if not (self.writable and self._is_plain) or self._queue:
            return False
        if grant.is_conditional or delivery.expiry_s is not None:
            return False
        qos = delivery.qos if delivery.qos < grant.qos else grant.qos
        inflight = self.inflight
        if qos and (len(inflight) >= self._window or qos == 2):
            return False
        retain = delivery.retain and grant.retain_as_published
        frames = delivery.frames
        frame: Frame | None = None
        if frames is not None and not grant.subscription_ids:
            frame = frames.get(self._frame_key | qos | (4 if retain else 0))
        if frame is None:
            frame = publish_frame(delivery, self._version, qos, retain, grant.subscription_ids, 0)
        self.sent += 1
        if not qos:
            self._out.append(frame[0])
            return True
        packet_id = self._last_id + 1
        if packet_id > PACKET_ID_MAX or packet_id in inflight or self.flows or self.resuming is not None:
            packet_id = self._free_packet_id()
        self._last_id = packet_id
        inflight[packet_id] = delivery
        self._out += (frame[0], _PACKET_IDS[packet_id], frame[1])
        return True

    def take_live_run(self, deliveries: list[Delivery], grant: Grant) -> int:
        """The same for deliveries that have all their headers in common, how many of them from the front; 0 also where
        `take_live` would take some."""
        first = deliveries[0]
        if (
            not (self.writable and self._is_plain)
            or self._queue
            or grant.no_local
            or grant.subscription_ids
            or first.properties is not None
            or first.expiry_s is not None
            or self.flows
            or self.resuming is not None
        ):
            return 0
        qos = first.qos if first.qos < grant.qos else grant.qos
        if qos == 2:
            return 0
        inflight, out = self.inflight, self._out
        room = min(len(deliveries), self._window - len(inflight)) if qos else len(deliveries)
        retain = first.retain and grant.retain_as_published
        before = b"\x00" if self._version == MQTT_5 else b""  # no properties
        packet_id, size, head = self._last_id, -1, b""
        for delivery in deliveries if room == len(deliveries) else deliveries[: max(0, room)]:
            payload = delivery.payload
            if len(payload) != size:
                size = len(payload)
                head = publish_head(first.topic_name_utf8, size, qos, retain, False, b"", self._version)
            if not qos:
                out.append(head + before + payload)
                continue
            packet_id += 1
            if packet_id > PACKET_ID_MAX or packet_id in inflight:
                self._last_id = packet_id - 1
                packet_id = self._free_packet_id()
            inflight[packet_id] = delivery
            out += (head, _PACKET_IDS[packet_id], before + payload)
        self._last_id = packet_id
        self.sent += max(0, room)
        return max(0, room)

    def take_acknowledgements(self, data: bytes, now: float, wall_offset_ms: float) -> int:
        """The short way: the plain PUBACK packets at the front of a read that acknowledge something in flight, and how
        many bytes they were. The long way goes on behind them."""
        if len(data) < 4 or data[0] != 0x40:
            return 0
        take, position = self.inflight.pop, 0
        for (word,) in _WORDS(data if not len(data) & 3 else data[: len(data) & ~3]):
            delivery = take(word - _PUBACK_0, None)  # what is no plain PUBACK is no identifier, either
            if delivery is None:
                break
            if delivery.__class__ is SharedDelivery:
                self.shared_done.append(delivery)
            position += 4
        if position and self._queue:
            self.drain(int(now * 1000 + wall_offset_ms))
        return position

    def acknowledged(self, packet_id: int, now: float, wall_offset_ms: float) -> bool:
        """PUBACK: the identifier is free again and the window moves; False if it was not in flight."""
        delivery = self.inflight.pop(packet_id, None)
        if delivery is None:
            return False
        if isinstance(delivery, SharedDelivery):
            self.shared_done.append(delivery)
        if self._queue:
            self.drain(int(now * 1000 + wall_offset_ms))
        return True

    # QoS 2 ----------------------------------------------------------------------------------------------------------

    def stored(self, packet_id: int, wall_ms: int) -> None:
        """Identifier and position are stored: PUBLISH."""
        flow = self.flows.get(packet_id)
        if flow is None or flow.state is not Outbound.STORING:
            return
        flow.state = Outbound.SENT
        delivery = flow.delivery
        if delivery is None:  # purged meanwhile
            self.completed(packet_id, wall_ms)
            return
        self._put_out(delivery, 2, flow.retain, flow.subscription_ids, wall_ms, packet_id, flow.dup)
        self._keep_if_shared(delivery)

    def refused(self, packet_id: int, wall_ms: int) -> None:
        """It is not this session's: another member of the shared subscription gets it."""
        flow = self.flows.get(packet_id)
        if flow is None or flow.state is not Outbound.STORING:
            return
        del self.flows[packet_id]
        self._window += 1
        self.sent -= 1
        if self._queue:
            self.drain(wall_ms)

    def flow_state(self, packet_id: int) -> Outbound | None:
        """How far the QoS 2 message with this identifier is; None: the client has not been sent one yet."""
        flow = self.flows.get(packet_id)
        return flow.state if flow is not None and flow.state is not Outbound.STORING else None

    def received(self, packet_id: int) -> bool:
        """PUBREC of success: PUBREL follows, once that is stored [MQTT5-4.3.3-4] [MQTT311-4.3.3-1]; False: not in
        flight."""
        flow = self.flows.get(packet_id)
        if flow is None or flow.state is Outbound.STORING:
            return False
        if flow.state is Outbound.RELEASED:
            self._out.append(pubrel(packet_id))
        elif flow.state is Outbound.SENT:
            flow.state = Outbound.RELEASING
            flow.delivery = None
            if self._emit is not None:
                self._emit(StoreReleased(packet_id))
            else:
                self.release_stored(packet_id)
        return True

    def release_stored(self, packet_id: int) -> None:
        """That the client has the message is stored: PUBREL."""
        flow = self.flows.get(packet_id)
        if flow is not None and flow.state is Outbound.RELEASING:
            flow.state = Outbound.RELEASED
            self._out.append(pubrel(packet_id))

    def completed(self, packet_id: int, wall_ms: int) -> bool:
        """PUBCOMP, or a PUBREC that refuses: the identifier is free again; False: not in flight."""
        flow = self.flows.get(packet_id)
        if flow is None or flow.state is Outbound.STORING:
            return False
        del self.flows[packet_id]
        self._window += 1
        if self._emit is not None:
            self._emit(StoreDone(packet_id))
        if self._queue:
            self.drain(wall_ms)
        return True

    # Resumption -----------------------------------------------------------------------------------------------------

    def resume(self, resuming: Resuming) -> None:
        """Go on with what an earlier connection left in flight: PUBREL at once, PUBLISH when it has been read again
        [MQTT5-4.4.0-1] [MQTT311-4.4.0-1]."""
        for packet_id in resuming.released:
            self.flows[packet_id] = OutgoingFlow(Outbound.RELEASED, None)
            self._window -= 1
            self._out.append(pubrel(packet_id))
        if resuming.packet_ids:
            self.resuming = resuming

    def resend(
        self, delivery: Delivery, entry: InFlight, retain: bool, subscription_ids: tuple[int, ...], wall_ms: int
    ) -> None:
        """Send a message again: DUP, and its old identifier [MQTT5-3.3.1-1] [MQTT311-3.3.1-1]."""
        packet_id, qos = entry.packet_id, entry.qos
        assert self.resuming is not None
        if not self._put_out(delivery, qos, retain, subscription_ids, wall_ms, packet_id, dup=True):
            self.give_up([entry])  # as if delivered [MQTT5-3.1.2-25]
            return
        self.resuming.packet_ids.discard(packet_id)
        self._give_back({packet_id})
        self.sent += 1
        if qos == 1:
            self.inflight[packet_id] = delivery
        else:
            self.flows[packet_id] = OutgoingFlow(Outbound.SENT, delivery, retain, subscription_ids, dup=True)
            self._window -= 1

    def reserve(self, packet_ids: set[int]) -> None:
        """These are looked up one by one and sent again as soon as they may: nothing new takes their place in the
        window [MQTT5-3.3.4-9]."""
        self._window -= len(packet_ids - self._reserved)
        self._reserved |= packet_ids

    def may_resend(self, packet_id: int) -> bool:
        """Whether the window has a place for one that was reserved, or was given up since."""
        if packet_id not in self._reserved:
            return True
        return self.writable and len(self.inflight) < self._window + len(self._reserved)

    def _give_back(self, packet_ids: set[int]) -> None:
        self._window += len(self._reserved & packet_ids)
        self._reserved -= packet_ids

    def give_up(self, entries: Iterable[InFlight]) -> None:
        """These cannot be sent again: they have expired, are gone from the log, or too large for the client now.

        A client may have had the PUBLISH of a QoS 2 one: it is told PUBREL, or it would take the next message under
        this identifier for a repetition [MQTT5-4.3.3-10].
        """
        assert self.resuming is not None
        for entry in entries:
            packet_id = entry.packet_id
            self.resuming.packet_ids.discard(packet_id)
            self._give_back({packet_id})
            if entry.qos == 2:
                self.flows[packet_id] = OutgoingFlow(Outbound.RELEASING, None)
                self._window -= 1
                if self._emit is not None:
                    self._emit(StoreReleased(packet_id))
                else:
                    self.release_stored(packet_id)
            elif self._emit is not None:
                self._emit(StoreDone(packet_id))
        if self.resuming.is_over:
            self.resuming = None

    def partition_resumed(self, position: Position | None) -> None:
        """All of a partition (None: of every one) has been read again: what did not come is given up."""
        resuming = self.resuming
        if resuming is not None:
            left = resuming.left(position)
            resuming.partition_resumed(position)
            self.give_up(left)

    # The buffer ------------------------------------------------------------------------------------------------------

    def drain(self, wall_ms: int) -> None:
        """Send what waits as far as the window and the socket allow."""
        queue = self._queue
        while queue and self.writable:
            delivery, qos, retain, subscription_ids = queue[0]
            if qos and len(self.inflight) >= self._window:
                return
            queue.popleft()
            self._queue_bytes -= len(delivery.payload)
            if delivery.remaining_expiry_s(wall_ms) != 0:  # [MQTT5-3.3.2-5]
                self._send(delivery, qos, retain, subscription_ids, wall_ms)

    def purge(self, may_be_sent: Callable[[bytes], bool]) -> None:
        """The client's rights have changed: what has not been sent goes if its Topic Name may not be any more. What is
        being stored before its PUBLISH is through when that is done; with a shared subscription it is sent."""
        if self._queue:
            kept = deque(queued for queued in self._queue if may_be_sent(queued[0].topic_name_utf8))
            self.dropped += len(self._queue) - len(kept)
            self._queue = kept
            self._queue_bytes = sum(len(delivery.payload) for delivery, _, _, _ in kept)
        for flow in self.flows.values():
            delivery = flow.delivery
            if flow.state is not Outbound.STORING or delivery is None or isinstance(delivery, SharedDelivery):
                continue
            if not may_be_sent(delivery.topic_name_utf8):
                flow.delivery = None
                self.dropped += 1

    @property
    def has_room(self) -> bool:
        """Whether one more message would be sent at once."""
        return self.writable and not self._queue and len(self.inflight) < self._window

    @property
    def is_low(self) -> bool:
        """Whether so little waits (a quarter of the buffer) that reading the log again is worth its while."""
        queue = self._queue
        return not queue or (len(queue) * 4 < self._length_max and self._queue_bytes * 4 < self._bytes_max)

    def has_room_for(self, payload_bytes: int, share: int = 1) -> bool:
        """Whether one more message is sent, or fits into the buffer or the given part of it; an empty one takes any."""
        queue = self._queue
        return not queue or (
            len(queue) < self._length_max // share and self._queue_bytes + payload_bytes <= self._bytes_max // share
        )

    def first_waiting(self) -> dict[Position, int]:
        """The first offset that waits in the buffer, per partition; QoS 0 and retained messages do not count."""
        waiting: dict[Position, int] = {}
        for delivery, qos, _, _ in self._queue or ():
            if qos and not isinstance(delivery, RetainedDelivery | SharedDelivery):
                waiting.setdefault((delivery.kafka_topic, delivery.partition), delivery.offset)
        return waiting

    @property
    def queue_length(self) -> int:
        """Messages that wait for the window or the socket."""
        return len(self._queue) if self._queue else 0

    def let_go(self) -> None:
        """Nothing goes out any more, so nothing is asked for."""
        self._emit = self._hand_over = None

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics, $SYS and the dashboard."""
        return {
            "inflight": len(self.inflight) + len(self.flows),
            "queue_length": self.queue_length,
            "queue_bytes": self._queue_bytes,
            "sent": self.sent,
            "dropped": self.dropped,
            "too_large": self.too_large,
        }

    def _send(
        self, delivery: Delivery, qos: int, retain: bool, subscription_ids: tuple[int, ...], wall_ms: int
    ) -> None:
        if qos == 2 and (self._emit is not None or (isinstance(delivery, SharedDelivery) and delivery.handover)):
            self._begin_stored(delivery, retain, subscription_ids, wall_ms)
            return
        packet_id = self._free_packet_id() if qos else 0
        if not self._put_out(delivery, qos, retain, subscription_ids, wall_ms, packet_id):
            return
        self.sent += 1
        if qos == 1:
            self._last_id = packet_id
            self.inflight[packet_id] = delivery
        elif qos == 2:
            self._last_id = packet_id
            self.flows[packet_id] = OutgoingFlow(Outbound.SENT, delivery)
            self._window -= 1
            self._keep_if_shared(delivery)

    def _begin_stored(self, delivery: Delivery, retain: bool, subscription_ids: tuple[int, ...], wall_ms: int) -> None:
        if self._is_limited and self._is_too_large(
            publish_frame(delivery, self._version, 2, retain, subscription_ids, wall_ms), 2
        ):
            self._skip(delivery)
            return
        self._last_id = packet_id = self._free_packet_id()
        self.flows[packet_id] = OutgoingFlow(Outbound.STORING, delivery, retain, subscription_ids)
        self._window -= 1
        self.sent += 1
        if not isinstance(delivery, RetainedDelivery | SharedDelivery):
            self.sent_to[delivery.kafka_topic, delivery.partition] = delivery.offset + 1
        assert self._hand_over is not None
        self._hand_over(StoreOutgoing(packet_id, delivery))

    def _put_out(
        self,
        delivery: Delivery,
        qos: int,
        retain: bool,
        subscription_ids: tuple[int, ...],
        wall_ms: int,
        packet_id: int,
        dup: bool = False,
    ) -> bool:
        """The PUBLISH; False: the client takes no packet of that size, so the message is skipped
        [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]."""
        frames = delivery.frames
        frame: Frame | None = None
        alias = self._alias(delivery.topic_name_utf8) if self._alias_maximum else None
        if frames is not None and not subscription_ids and not dup and alias is None:
            frame = frames.get(self._frame_key | qos | (4 if retain else 0))
        if frame is None:
            frame = publish_frame(delivery, self._version, qos, retain, subscription_ids, wall_ms, dup, alias)
        if self._is_limited and self._is_too_large(frame, qos):
            if alias is not None:  # it makes a packet larger whose Topic Name is new to the client, or short
                alias = None
                frame = publish_frame(delivery, self._version, qos, retain, subscription_ids, wall_ms, dup)
            if self._is_too_large(frame, qos):
                self._skip(delivery)
                return False
        head, tail = frame
        if alias is not None and alias.is_new:
            self._aliases[delivery.topic_name_utf8] = alias.number
        if qos:
            self._out += (head, _PACKET_IDS[packet_id], tail)
        else:
            self._out.append(head)
        return True

    def _is_too_large(self, frame: Frame, qos: int) -> bool:
        return len(frame[0]) + len(frame[1]) + (2 if qos else 0) > self._packet_bytes_max

    def _skip(self, delivery: Delivery) -> None:
        """The client takes no packet of that size: as if it were delivered [MQTT5-3.1.2-25]."""
        self.too_large += 1
        if isinstance(delivery, SharedDelivery):
            self.shared_done.append(delivery)

    def _keep_if_shared(self, delivery: Delivery) -> None:
        """With QoS 2 it is this session's from its PUBLISH on, and nobody else's [MQTT5-4.8.2-4] [MQTT5-4.8.2-5]."""
        if isinstance(delivery, SharedDelivery):
            self.shared_done.append(delivery)

    def shared_flows(self) -> list[tuple[Position, int]]:
        """Where the QoS 2 messages lie that came by shared subscriptions and were sent: nobody else gets them
        [MQTT5-4.8.2-4] [MQTT5-4.8.2-5]."""
        deliveries = [
            flow.delivery
            for flow in self.flows.values()
            if isinstance(flow.delivery, SharedDelivery)
            and flow.delivery.handover is not None  # by a replay there is none, and no group waits for it
            and flow.state is not Outbound.STORING
        ]
        return [((each.kafka_topic, each.partition), each.offset) for each in deliveries]

    def unsent_shared(self) -> list[int]:
        """The packet identifiers of the others: their messages go to other members."""
        return [
            packet_id
            for packet_id, flow in self.flows.items()
            if isinstance(flow.delivery, SharedDelivery) and flow.state is Outbound.STORING
        ]

    def _alias(self, topic_name_utf8: bytes) -> Alias | None:
        """The alias for the Topic Name, at most as many as the client takes [MQTT5-3.3.2-8] [MQTT5-3.1.2-26]."""
        number = self._aliases.get(topic_name_utf8)
        if number is not None:
            return Alias(number, False)
        number = len(self._aliases) + 1
        return Alias(number, True) if number <= self._alias_maximum else None

    def _free_packet_id(self) -> int:
        packet_id = self._last_id + 1
        reserved = self.resuming.packet_ids if self.resuming is not None else ()
        # bounded: the window is below 65,535 [MQTT5-2.2.1-4] [MQTT311-2.3.1-4]
        while (
            packet_id > PACKET_ID_MAX or packet_id in self.inflight or packet_id in self.flows or packet_id in reserved
        ):
            packet_id = 1 if packet_id >= PACKET_ID_MAX else packet_id + 1
        return packet_id

    def _enqueue(self, queued: Queued) -> None:
        queue = self._queue
        if queue is None:
            queue = self._queue = deque()
        payload_bytes = len(queued[0].payload)
        if len(queue) >= self._length_max or (queue and self._queue_bytes + payload_bytes > self._bytes_max):
            if queued[1]:
                self.overflowed = True
            else:
                self.dropped += 1
            return
        queue.append(queued)
        self._queue_bytes += payload_bytes
