"""Messages on their way in from one client: topic aliases, targets, and answers in the order of the packets."""

from collections import deque
from collections.abc import Callable
from itertools import islice
from struct import Struct

from edge.session.effects import AppendRecord, AppendRun, Effect, PublishTarget, RecordHeaders
from edge.session.errors import TopicAliasInvalid
from edge.wire import ProtocolError, Publish, ReasonCode

Resolve = Callable[[bytes], "PublishTarget | ReasonCode"]
"""Topic name (UTF-8) -> where it goes, or the definite refusal; raises `ProtocolViolation` for an invalid name."""

_new = tuple.__new__  # a named tuple's own constructor costs three times as much
_PUBACK = Struct(">HH").pack  # `edge.wire.puback` without the call: one per message
_PUBACKS = [_PUBACK(0x4002, packet_id) for packet_id in range(0x10000)]
TARGETS_MAX = 256  # topic names whose target one session keeps; a device rarely publishes to more than a handful


class Incoming:
    """Turns PUBLISH packets into `AppendRecord` effects and lets their answers out in order; made at first need."""

    __slots__ = (
        "_alias_maximum",
        "_aliases",
        "_answers",
        "_known",
        "_out",
        "_resolve",
        "_targets",
        "received",
        "refused",
    )

    def __init__(self, out: list[bytes], resolve: Resolve, alias_maximum: int) -> None:
        self._out = out
        self._resolve = resolve
        self._targets: dict[bytes, PublishTarget | ReasonCode] = {}
        self._answers: deque[int] = deque()  # packet identifiers, in the order of their PUBLISH packets
        self._known: dict[int, deque[bytes]] = {}  # answers that wait for an earlier one
        self._aliases: dict[int, bytes] | None = None
        self._alias_maximum = alias_maximum
        self.received = 0
        self.refused = 0

    def take_plain(self, data: bytes, is_5: bool, answers_max: int, effects: list[Effect]) -> int:
        """The short way for nearly all traffic: the plain PUBLISH packets at the front of a read, and how many bytes
        they were.

        Plain is: whole, below 16 KiB, QoS 0 or 1, a Topic Name that is known, no DUP, no RETAIN, no properties. It
        stops before anything else and before anything wrong; the long way (frame, decode, `target`, `append`) goes on
        there and finds out which. Both ways make the same records; here those of one Topic Name and QoS that follow one
        another are one `AppendRun`.
        """
        answers = self._answers
        room = answers_max - len(answers)
        end, position = len(data), 0
        packet_ids: list[int] = []
        values: list[bytes] = []
        name, run_byte, name_bytes = b"", 0, 0  # of the run: Topic Name with its length, first byte of its packets
        target: PublishTarget | ReasonCode | None = None
        while end - position > 4:
            first_byte = data[position]
            if first_byte != 0x32 and first_byte != 0x30:
                break
            start = position + 2
            size = data[position + 1]
            if size >= 0x80:
                high = data[start]
                if not 0 < high < 0x80:
                    break
                size = size & 0x7F | high << 7
                start += 1
            stop = start + size
            if size < 3 or stop > end:
                break
            if first_byte != run_byte or not data.startswith(name, start):
                if values:
                    self._end_run(run_byte, packet_ids, target, values, effects)
                    packet_ids, values = [], []
                at = start + 2 + (data[start] << 8 | data[start + 1])
                target = self._targets.get(data[start + 2 : at])
                if target.__class__ is not PublishTarget:
                    break
                name, run_byte, name_bytes = data[start:at], first_byte, at - start
            at = start + name_bytes
            packet_id = 0
            if first_byte == 0x32:
                if at + 2 > stop or room <= 0:
                    break
                packet_id = data[at] << 8 | data[at + 1]
                if not packet_id:
                    break
                at += 2
            if is_5:
                if at >= stop or data[at]:
                    break
                at += 1
            if at > stop:
                break
            values.append(data[at:stop])
            if packet_id:
                packet_ids.append(packet_id)
                room -= 1
            position = stop
        if values:
            self._end_run(run_byte, packet_ids, target, values, effects)
        return position

    def _end_run(
        self,
        first_byte: int,
        packet_ids: list[int],
        target: PublishTarget | ReasonCode | None,
        values: list[bytes],
        effects: list[Effect],
    ) -> None:
        assert isinstance(target, PublishTarget)
        headers = target.headers[first_byte >> 1 & 1]
        self._answers += packet_ids
        self.received += len(values)
        if len(values) == 1:
            packet_id = packet_ids[0] if packet_ids else 0
            effects.append(_new(AppendRecord, (packet_id, target, values[0], headers)))
        else:
            effects.append(_new(AppendRun, (packet_ids, target, values, headers)))

    def target(self, packet: Publish) -> PublishTarget | ReasonCode:
        """Where the packet's topic name goes; kept per session so that routing and ACL cost one dict hit."""
        raw = packet.topic_name_utf8
        properties = packet.properties
        if properties is not None and properties.topic_alias is not None:
            raw = self._aliased(raw, properties.topic_alias)
        elif not raw:
            raise ProtocolError("a PUBLISH without topic name needs a Topic Alias", "MQTT5-3.3.2-8")
        target = self._targets.get(raw)
        if target is None:
            target = self._resolve(raw)
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets[raw] = target
        return target

    def append(self, packet: Publish, target: PublishTarget, headers: RecordHeaders) -> AppendRecord:
        """The effect for one accepted PUBLISH; with QoS 1 it takes its place among the answers."""
        if packet.packet_id:
            self._answers.append(packet.packet_id)
        return AppendRecord(packet.packet_id, target, packet.payload, headers)

    def acknowledge(self, packet_id: int) -> None:
        """PUBACK, success, in its turn."""
        answers = self._answers
        if answers[0] == packet_id:  # the common case: they become known in order
            answers.popleft()
            self._out.append(_PUBACK(0x4002, packet_id))
            if self._known:
                self._let_out()
        else:
            self.answer(packet_id, _PUBACK(0x4002, packet_id))

    def acknowledge_run(self, packet_ids: list[int]) -> None:
        """The same for a run, in one step when nothing is in front of it."""
        answers = self._answers
        if not self._known and list(islice(answers, len(packet_ids))) == packet_ids:
            for _ in packet_ids:
                answers.popleft()
            self._out.append(b"".join([_PUBACKS[packet_id] for packet_id in packet_ids]))
        else:
            for packet_id in packet_ids:
                self.acknowledge(packet_id)

    def answer(self, packet_id: int, answer: bytes) -> None:
        """An answer is known: it goes out with all that are known at the head [MQTT311-4.6.0-2]."""
        self._known.setdefault(packet_id, deque()).append(answer)
        self._let_out()

    def refuse(self, packet: Publish, answer: bytes | None) -> None:
        """A definite refusal: nothing is appended; with QoS 1 the answer still waits for its turn."""
        self.refused += 1
        if answer is not None:
            self._answers.append(packet.packet_id)
            self.answer(packet.packet_id, answer)

    def _let_out(self) -> None:
        answers, known = self._answers, self._known
        while answers and answers[0] in known:
            packet_id = answers.popleft()
            waiting = known[packet_id]  # several only for a client that uses an identifier twice at a time
            self._out.append(waiting.popleft())
            if not waiting:
                del known[packet_id]

    def forget_targets(self) -> None:
        """Routes or rights changed: resolve again."""
        self._targets.clear()

    def let_go(self, resolve: Resolve) -> None:
        """Nothing comes in any more."""
        self._resolve = resolve

    @property
    def unacknowledged(self) -> int:
        """PUBLISH packets with QoS 1 that have no answer yet."""
        return len(self._answers)

    def _aliased(self, raw: bytes, alias: int) -> bytes:
        if alias > self._alias_maximum:  # [MQTT5-3.3.2-9]: 0x94
            raise TopicAliasInvalid(f"Topic Alias {alias} is above {self._alias_maximum}", "MQTT5-3.3.2-9")
        if self._aliases is None:
            self._aliases = {}
        if raw:
            self._aliases[alias] = raw  # [MQTT5-3.3.2-12]
            return raw
        known = self._aliases.get(alias)
        if known is None:
            raise ProtocolError(f"Topic Alias {alias} was never set on this connection", "MQTT5-3.3.2-7")
        return known
