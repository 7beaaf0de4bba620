"""What a client is told once: who it is, how it connects, how it comes back."""

from __future__ import annotations

from dataclasses import dataclass

from edge.wire.packets import Will
from edge.wire.properties import Properties

RECEIVE_MAXIMUM_DEFAULT = 65_535  # what an absent Receive Maximum means (MQTT 5.0 §3.2.2.3.3)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The protocol side of a client. ``in_flight_max`` bounds it further than the server's Receive Maximum.

    ``republish_lost_session``: when the server has forgotten the session, messages in flight are published as new ones
    (they may then arrive twice); False: they fail with ``SessionLost`` (they may then be missing). The user chooses.
    """

    client_id: str = ""
    protocol_version: int = 5
    clean_start: bool = True
    session_expiry_s: int = 0
    user_name: str | None = None
    password: bytes | None = None
    keep_alive_s: int = 60
    will: Will | None = None
    receive_maximum: int = 1_000
    topic_alias_maximum: int = 0
    packet_bytes_max: int = 1 << 20
    in_flight_max: int = RECEIVE_MAXIMUM_DEFAULT
    queue_messages_max: int = 100_000
    republish_lost_session: bool = True

    def __post_init__(self) -> None:
        if self.protocol_version not in (4, 5):
            raise ValueError(f"protocol_version is 4 (MQTT 3.1.1) or 5, not {self.protocol_version}")
        if not 1 <= self.in_flight_max <= RECEIVE_MAXIMUM_DEFAULT:
            raise ValueError("in_flight_max is 1 to 65,535")

    def connect_properties(self) -> Properties:
        """The properties of CONNECT; none in 3.1.1."""
        if self.protocol_version != 5:
            return Properties()
        return Properties(
            session_expiry_interval_s=self.session_expiry_s or None,
            receive_maximum=self.receive_maximum,
            topic_alias_maximum=self.topic_alias_maximum or None,
            maximum_packet_size_bytes=self.packet_bytes_max,
        )


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """How to come back: exponential backoff with full jitter over the addresses in turn.

    ``attempts_max`` 0 means for ever; it counts attempts since the last connection. ``addresses`` are tried after the
    first one given to the client, round robin.
    """

    addresses: tuple[tuple[str, int], ...] = ()
    wait_first_s: float = 0.2
    wait_max_s: float = 15.0
    attempts_max: int = 0

    def wait_s(self, attempt: int, jitter: float) -> float:
        """How long to wait before attempt 1, 2, ...; ``jitter`` is a random number of 0 to 1."""
        ceiling = min(self.wait_max_s, self.wait_first_s * 2.0 ** min(attempt - 1, 30))
        return float(ceiling * (0.5 + jitter / 2))


@dataclass(slots=True)
class Counters:
    """What a client has done since it was made."""

    published: int = 0
    acknowledged: int = 0
    refused: int = 0
    dropped: int = 0
    resent: int = 0
    received: int = 0
    connects: int = 0
    reconnects: int = 0
    pings: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
