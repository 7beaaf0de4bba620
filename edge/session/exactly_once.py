"""QoS 2: the two state machines of section 4.3.3, one per direction. Pure.

In (method A of figure 4.3: the message goes on when PUBLISH comes, the identifier is kept until PUBREL):

    PUBLISH -> PENDING -> committed, PUBREC -> RECEIVED -> PUBREL -> RELEASING -> removal stored, PUBCOMP -> forgotten

Out, of a session that is stored (another edge may have to go on from any of these):

    STORING -> stored, PUBLISH -> SENT -> PUBREC -> RELEASING -> stored, PUBREL -> RELEASED -> PUBCOMP -> forgotten

Of a session that is not stored nothing is waited for: STORING and RELEASING are passed at once.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bridge.delivery import Delivery
from edge.wire import ProtocolError, ReasonCode, pubcomp, pubrec

Negative = Callable[[int, ReasonCode, str], bytes]
"""(packet identifier, reason code, reason) -> an encoded packet."""


class Inbound(Enum):
    """Where the flow of one packet identifier of the client stands."""

    PENDING = "the commit of message and identifier is under way"
    RECEIVED = "PUBREC was sent"
    RELEASING = "PUBREL came; the identifier's removal is under way"


class Outbound(Enum):
    """Where the flow of one packet identifier of ours stands."""

    STORING = "the commit of identifier and position is under way"
    SENT = "PUBLISH was sent"
    RELEASING = "PUBREC came; its commit is under way"
    RELEASED = "PUBREL was sent"


class OrderedAnswers:
    """Answers that go out in the order of the packets they answer, whenever each becomes known
    [MQTT5-4.6.0-3] [MQTT311-4.6.0-3]."""

    __slots__ = ("_known", "_order", "_out")

    def __init__(self, out: list[bytes]) -> None:
        self._out = out
        self._order: deque[int] = deque()
        self._known: dict[int, bytes] = {}

    def expect(self, packet_id: int) -> None:
        """A packet came that will be answered; its identifier is not among those expected."""
        self._order.append(packet_id)

    def is_known(self, packet_id: int) -> bool:
        """Whether its answer only waits for those in front of it."""
        return packet_id in self._known

    def answer(self, packet_id: int, answer: bytes) -> None:
        """Its answer is known: it goes out with all that are known at the head."""
        self._known[packet_id] = answer
        order, known = self._order, self._known
        while order and order[0] in known:
            self._out.append(known.pop(order.popleft()))

    def __len__(self) -> int:
        return len(self._order)


class IncomingFlows:
    """The identifiers of a client's QoS 2 messages, and their answers.

    `negative` encodes a PUBREC that refuses; without it (3.1.1 has none) a refused message is answered as if it had
    been appended [MQTT311-3.3.5-2].
    """

    __slots__ = ("_answers", "_early", "_negative", "_out", "_states", "begun")

    def __init__(self, out: list[bytes], negative: Negative | None, received: frozenset[int] = frozenset()) -> None:
        self._out = out
        self._negative = negative
        self._states = dict.fromkeys(received, Inbound.RECEIVED)
        self._answers = OrderedAnswers(out)
        self._early: dict[int, None] = {}  # PUBREL came before PUBREC was sent, in the order of PUBREL
        self.begun = 0  # flows that began on this connection and are not through: they count to the Receive Maximum

    def let_go(self) -> None:
        """Nothing is refused any more: what encodes a refusal refers back to the engine."""
        self._negative = None

    def is_known(self, packet_id: int) -> bool:
        """PUBLISH: whether its identifier is under way, so that it is answered and not appended again
        [MQTT5-4.3.3-10] [MQTT311-4.3.3-2]."""
        if self._answers.is_known(packet_id):
            return True
        state = self._states.get(packet_id)
        if state is Inbound.RECEIVED:
            self._out.append(pubrec(packet_id))
        elif state is Inbound.RELEASING:
            raise ProtocolError("the packet identifier is in use until PUBCOMP", "MQTT5-2.2.1-3")
        return state is not None

    def begin(self, packet_id: int) -> None:
        """A PUBLISH with a new identifier is to be appended."""
        self._states[packet_id] = Inbound.PENDING
        self.begun += 1
        self._answers.expect(packet_id)

    def committed(self, packet_id: int) -> None:
        """Message and identifier are in the log: PUBREC in its turn [MQTT5-4.3.3-8] [MQTT311-4.3.3-2]."""
        self._states[packet_id] = Inbound.RECEIVED
        self._answers.answer(packet_id, pubrec(packet_id))

    def refused(self, packet_id: int, reason_code: ReasonCode, reason: str) -> None:
        """The message was refused for good: in 5.0 the identifier is free again [MQTT5-4.3.3-9]."""
        if self._negative is None:
            self.committed(packet_id)
        else:
            self._end(packet_id)
            self._answers.answer(packet_id, self._negative(packet_id, reason_code, reason))

    def withdraw(self, packet_id: int) -> None:
        """The message was refused for good and nobody can be told: it is new when it is sent again."""
        self._end(packet_id)

    def release(self, packet_id: int) -> bool:
        """PUBREL: whether the identifier is known, so that its removal has to be stored before PUBCOMP."""
        state = self._states.get(packet_id)
        if state is Inbound.PENDING or self._answers.is_known(packet_id):  # it does not wait for PUBREC; all in turn
            self._early[packet_id] = None
            return False
        if state is Inbound.RECEIVED:
            self._states[packet_id] = Inbound.RELEASING
        return state is Inbound.RECEIVED

    def take_early(self) -> list[int]:
        """The identifiers whose PUBREL came before their PUBREC, which has been sent now."""
        if not self._early:
            return []
        states, answers = self._states, self._answers
        taken = [each for each in self._early if states[each] is Inbound.RECEIVED and not answers.is_known(each)]
        for packet_id in taken:
            del self._early[packet_id]
        return taken

    def is_under_way(self, packet_id: int) -> bool:
        """Whether the identifier is known, wherever its flow stands."""
        return packet_id in self._states

    def forgotten(self, packet_id: int) -> None:
        """The removal is stored: PUBCOMP [MQTT5-4.3.3-11] [MQTT5-4.3.3-12] [MQTT311-4.3.3-2]."""
        self._end(packet_id)
        self._out.append(pubcomp(packet_id))

    def received(self) -> frozenset[int]:
        """What the session has to remember: every identifier whose message is in the log and whose PUBREL has not
        come."""
        return self._in(Inbound.RECEIVED)

    def unsettled(self) -> frozenset[int]:
        """The identifiers whose message is on its way to the log: whether it comes there is not known yet."""
        return self._in(Inbound.PENDING)

    def _in(self, state: Inbound) -> frozenset[int]:
        return frozenset(packet_id for packet_id, each in self._states.items() if each is state)

    @property
    def pending(self) -> int:
        """Messages whose commit is under way."""
        return len(self._answers)

    def _end(self, packet_id: int) -> None:
        del self._states[packet_id]
        self._early.pop(packet_id, None)
        self.begun = max(0, self.begun - 1)


@dataclass(slots=True)
class OutgoingFlow:
    """One QoS 2 message on its way to the client; `delivery` is None once only its identifier matters."""

    state: Outbound
    delivery: Delivery | None
    retain: bool = False
    subscription_ids: tuple[int, ...] = ()
    dup: bool = False
