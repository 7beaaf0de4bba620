"""Messages on their way to one client: the in-flight window, packet identifiers, and the bounded buffer behind it."""

from collections import deque

from bridge.delivery import Delivery
from bridge.subscriptions import Grant
from edge.session.connect import PACKET_BYTES_UNLIMITED
from edge.session.frames import Frame, frame_key, publish_frame

PACKET_ID_MAX = 65_535
_PACKET_IDS = [packet_id.to_bytes(2, "big") for packet_id in range(PACKET_ID_MAX + 1)]

Queued = tuple[Delivery, int, bool, tuple[int, ...]]
"""A delivery that waits, with its QoS, RETAIN flag and Subscription Identifiers."""


class Outgoing:
    """Sends deliveries to one client, `window` unacknowledged at most [MQTT5-3.3.4-9]; made at its first subscription.

    What cannot be sent now waits in a buffer of `queue_length_max` messages and `queue_bytes_max` bytes. A QoS 0
    message that does not fit is dropped and counted; a QoS 1 message that does not fit sets `overflowed`, on which
    the engine acts: it and what follows is read from the log again, later.
    """

    __slots__ = (
        "_bytes_max",
        "_frame_key",
        "_is_limited",
        "_last_id",
        "_length_max",
        "_out",
        "_packet_bytes_max",
        "_queue",
        "_queue_bytes",
        "_version",
        "_window",
        "dropped",
        "inflight",
        "overflowed",
        "sent",
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
    ) -> None:
        self._out = out
        self._version = protocol_version
        self._window = window
        self._packet_bytes_max = packet_bytes_max
        self._is_limited = packet_bytes_max < PACKET_BYTES_UNLIMITED
        self._frame_key = frame_key(protocol_version, 0, False)
        self._length_max = queue_length_max
        self._bytes_max = queue_bytes_max
        self._queue: deque[Queued] | None = None
        self._queue_bytes = 0
        self._last_id = 0
        self.inflight: dict[int, Delivery] = {}
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
        if not self.writable or self._queue or self._is_limited or grant.no_local or delivery.expiry_s is not None:
            return False
        qos = delivery.qos if delivery.qos < grant.qos else grant.qos
        inflight = self.inflight
        if qos and len(inflight) >= self._window:
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
        if packet_id > PACKET_ID_MAX or packet_id in inflight:
            packet_id = self._free_packet_id()
        self._last_id = packet_id
        inflight[packet_id] = delivery
        self._out += (frame[0], _PACKET_IDS[packet_id], frame[1])
        return True

    def take_acknowledgements(self, data: bytes, now: float, wall_offset_ms: float) -> int:
        """The short way: the plain PUBACK packets at the front of a read that acknowledge something in flight, and how
        many bytes they were. The long way goes on behind them."""
        inflight = self.inflight
        position, end = 0, len(data) - 3
        while position < end and data[position] == 0x40 and data[position + 1] == 2:
            if inflight.pop(data[position + 2] << 8 | data[position + 3], None) is None:
                break
            position += 4
        if position and self._queue:
            self.drain(int(now * 1000 + wall_offset_ms))
        return position

    def acknowledged(self, packet_id: int, now: float, wall_offset_ms: float) -> bool:
        """PUBACK: the identifier is free again and the window moves; False if it was not in flight."""
        if self.inflight.pop(packet_id, None) is None:
            return False
        if self._queue:
            self.drain(int(now * 1000 + wall_offset_ms))
        return True

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

    @property
    def queue_length(self) -> int:
        """Messages that wait for the window or the socket."""
        return len(self._queue) if self._queue else 0

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics, $SYS and the dashboard."""
        return {
            "inflight": len(self.inflight),
            "queue_length": self.queue_length,
            "queue_bytes": self._queue_bytes,
            "sent": self.sent,
            "dropped": self.dropped,
            "too_large": self.too_large,
        }

    def _send(
        self, delivery: Delivery, qos: int, retain: bool, subscription_ids: tuple[int, ...], wall_ms: int
    ) -> None:
        frames = delivery.frames
        frame: Frame | None = None
        if frames is not None and not subscription_ids:
            frame = frames.get(self._frame_key | qos | (4 if retain else 0))
        if frame is None:
            frame = publish_frame(delivery, self._version, qos, retain, subscription_ids, wall_ms)
        head, tail = frame
        if self._is_limited and len(head) + len(tail) + (2 if qos else 0) > self._packet_bytes_max:
            self.too_large += 1  # [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]
            return
        self.sent += 1
        if not qos:
            self._out.append(head)
            return
        self._last_id = packet_id = self._free_packet_id()
        self.inflight[packet_id] = delivery
        self._out += (head, _PACKET_IDS[packet_id], tail)

    def _free_packet_id(self) -> int:
        packet_id = self._last_id + 1
        while packet_id > PACKET_ID_MAX or packet_id in self.inflight:  # bounded: the window is below 65,535
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
