"""Enhanced authentication of one connection (MQTT 5.0, section 4.12): whose turn it is, and what may be said. Pure.

    CONNECT, method and data  -> step -> AUTH 0x18 -> the client's AUTH 0x18 -> step ... -> CONNACK with data
    AUTH 0x19, the same method -> step -> AUTH 0x18 -> the client's AUTH 0x18 -> step ... -> AUTH 0x00 with data

What is in the data is the mechanism's (`edge.access.enhanced`); the handler asks it and brings its answer back. An
exchange before CONNACK ends with the time for CONNECT. One after it needs no end: the client stays who it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from edge.access.enhanced import Continue, Done, Step
from edge.wire import Auth, Disconnect, Packet, Properties, ProtocolError, ReasonCode


class Turn(Enum):
    """Who speaks next."""

    MECHANISM = "the mechanism works on what the client sent"
    CLIENT = "the client is to answer"
    NOBODY = "authenticated, and no exchange under way"


@dataclass(slots=True)
class StepAuthentication:
    """Effect: ask the mechanism; `Authentication.stepped` takes its answer. `begins`: a new exchange."""

    data: bytes | None = field(repr=False)
    begins: bool


@dataclass(frozen=True, slots=True)
class Denied:
    """CONNACK before the client is connected, DISCONNECT after; then close [MQTT5-4.12.0-4] [MQTT5-4.12.1-2]."""

    reason_code: ReasonCode
    reason: str


class Authentication:
    """The AUTH packets of a connection whose CONNECT named an Authentication Method.

    `data` is for CONNACK, once `stepped` has said yes. Methods raise ProtocolError for what the client does wrong.
    """

    __slots__ = ("_is_connected", "_principal_name", "_turn", "data", "method")

    def __init__(self, method: str) -> None:
        self.method = method
        self.data: bytes | None = None
        self._principal_name: str | None = None
        self._is_connected = False
        self._turn = Turn.MECHANISM  # CONNECT's data

    def received(self, packet: Auth) -> StepAuthentication:
        """AUTH from the client. Raises ProtocolError."""
        method = packet.properties.authentication_method if packet.properties is not None else None
        is_new = packet.reason_code is ReasonCode.RE_AUTHENTICATE
        if method != self.method:  # [MQTT5-4.12.0-5]
            raise ProtocolError("AUTH with another method than CONNECT's", _clause(is_new))
        if is_new and not self._is_connected:
            raise ProtocolError("re-authentication before CONNACK", "MQTT5-4.12.1-1")
        if self._turn is not (Turn.NOBODY if is_new else Turn.CLIENT):
            raise ProtocolError("AUTH out of turn", _clause(is_new))  # [MQTT5-4.12.0-3]
        self._turn = Turn.MECHANISM
        assert packet.properties is not None
        return StepAuthentication(packet.properties.authentication_data, is_new)

    def stepped(self, step: Step) -> Auth | Denied | None:
        """The mechanism's answer -> what to send; None: the client is known, and CONNACK is next."""
        assert self._turn is Turn.MECHANISM, "an answer to no question"
        if isinstance(step, Continue):
            self._turn = Turn.CLIENT
            return self._auth(ReasonCode.CONTINUE_AUTHENTICATION, step.data)  # [MQTT5-4.12.0-2]
        if not isinstance(step, Done):
            return Denied(ReasonCode.NOT_AUTHORIZED, "authentication failed")
        if self._is_connected and step.principal_name != self._principal_name:
            return Denied(ReasonCode.NOT_AUTHORIZED, "a session belongs to its user: connect anew as another")
        self._turn = Turn.NOBODY
        self._principal_name = step.principal_name
        if self._is_connected:
            return self._auth(ReasonCode.SUCCESS, step.data)
        self.data = step.data
        return None

    def connected(self, properties: Properties) -> None:
        """CONNACK 0x00 is about to be sent: it names the method [MQTT5-4.12.0-5]."""
        assert self._turn is Turn.NOBODY, "CONNACK before the end of the authentication"
        self._is_connected = True
        properties.authentication_method = self.method
        properties.authentication_data, self.data = self.data, None

    def _auth(self, reason_code: ReasonCode, data: bytes | None) -> Auth:
        # no Reason String and no User Property: nothing to leave out [MQTT5-3.15.2-2] [MQTT5-3.15.2-3]
        return Auth(reason_code, Properties(authentication_method=self.method, authentication_data=data))


def check_before_connack(packet: Packet) -> None:
    """Raise ProtocolError for a packet that must wait for CONNACK, where CONNECT has named a method."""
    if not isinstance(packet, Auth | Disconnect):
        raise ProtocolError("only AUTH and DISCONNECT before CONNACK", "MQTT5-3.1.2-30")


def received_auth(authentication: Authentication | None, packet: Auth) -> StepAuthentication:
    """AUTH from any client. Raises ProtocolError, always where CONNECT named no method."""
    if authentication is None:
        raise ProtocolError("AUTH without a method in CONNECT", "MQTT5-4.12.0-7")
    return authentication.received(packet)


def _clause(is_new: bool) -> str:
    return "MQTT5-4.12.1-1" if is_new else "MQTT5-4.12.0-5"
