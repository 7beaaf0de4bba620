"""Who is shut out, until when, and why; and the layout of a ban in `headwater.control`. Pure.

A ban is a record with the key `ban/<kind>/<value>` (kind: client_id, user, address) and a JSON value; a tombstone lifts
it. Every edge applies the records as they come, so a ban holds everywhere within the time a record takes. `now` is wall
clock time, in seconds since the epoch: bans outlive processes and cross nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

import orjson

from edge.access.principal import Credentials, Principal
from schemas.errors import RecordError

_PREFIX: Final = "ban/"
_VERSION: Final = 1
KINDS: Final = ("client_id", "user", "address")
BANS_MAX: Final = 100_000  # about 50 MiB; at the bound the ban that would end first goes
NETWORKS_MAX: Final = 1_000  # every CONNECT is held against each of them: 0.3 ms at worst


@dataclass(frozen=True, slots=True)
class Ban:
    """One ban. `value` of an address ban is an address or a network (`198.51.100.0/24`)."""

    kind: str
    value: str
    expires_at: float | None = None
    """Seconds since the epoch; None: until it is lifted."""
    reason: str = ""
    created_by: str = ""

    @property
    def key(self) -> str:
        """The key of its record in `headwater.control`."""
        return f"{_PREFIX}{self.kind}/{self.value}"

    def to_json(self) -> bytes:
        """The value of its record."""
        return orjson.dumps(
            {"version": _VERSION, "expires_at": self.expires_at, "reason": self.reason, "created_by": self.created_by}
        )

    def applies_to(self, subject: Credentials | Principal) -> bool:
        """Whether this ban is about that client (its end is not looked at)."""
        if self.kind == "client_id":
            return subject.client_id == self.value
        if self.kind == "user":
            return _user_of(subject) == self.value
        address = _address_or_text(subject.peer)
        if "/" not in self.value:
            return address == self.value
        try:
            return ip_address(address) in ip_network(self.value)
        except ValueError:
            return False

    @classmethod
    def from_record(cls, key: str, value: bytes) -> Ban:
        """The ban of a record. Raises RecordError when key or value is not one of a ban. Unknown fields are ignored."""
        kind, found = _parse_key(key)
        try:
            fields = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise RecordError(f"{key}: not JSON") from error
        if not isinstance(fields, dict) or fields.get("version") != _VERSION:
            raise RecordError(f"{key}: not a ban of version {_VERSION}")
        expires_at, reason, created_by = (fields.get(name) for name in ("expires_at", "reason", "created_by"))
        if isinstance(expires_at, bool) or not isinstance(expires_at, int | float | None):
            raise RecordError(f"{key}: expires_at is no time")
        if not isinstance(reason, str | None) or not isinstance(created_by, str | None):
            raise RecordError(f"{key}: reason and created_by must be text")
        return cls(kind, found, expires_at, reason or "", created_by or "")


def _parse_key(key: str) -> tuple[str, str]:
    kind, _, value = key.removeprefix(_PREFIX).partition("/")
    if not key.startswith(_PREFIX) or kind not in KINDS or not value:
        raise RecordError(f"{key!r} is not the key of a ban")
    if kind != "address":
        return kind, value
    try:
        return kind, _normal_address(value)
    except ValueError as error:
        raise RecordError(f"{key!r}: {error}") from error


def _normal_address(value: str) -> str:
    """An address or network in its one spelling. Raises ValueError."""
    if "/" in value:
        network = ip_network(value, strict=False)
        return str(network.network_address) if network.num_addresses == 1 else str(network)
    address = ip_address(value)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


class BanList:
    """The bans in force."""

    __slots__ = ("_bans", "_networks", "evicted", "generation")

    def __init__(self) -> None:
        self._bans: dict[tuple[str, str], Ban] = {}
        self._networks: dict[str, IPv4Network | IPv6Network] = {}
        self.generation = 0
        self.evicted = 0

    def apply(self, key: str, value: bytes | None) -> Ban | None:
        """Take over one record of `headwater.control`; None: the tombstone that lifts a ban.

        Returns the new ban (its clients are to be disconnected now: `Ban.applies_to`), None when one was lifted. Raises
        RecordError, with nothing changed, for a record that is no ban or is one too many.
        """
        if value is None:
            self._drop(_parse_key(key))
            self.generation += 1
            return None
        ban = Ban.from_record(key, value)
        is_network = ban.kind == "address" and "/" in ban.value
        if is_network and ban.value not in self._networks and len(self._networks) >= NETWORKS_MAX:
            raise RecordError(f"{key}: more than {NETWORKS_MAX} banned networks")
        if (ban.kind, ban.value) not in self._bans and len(self._bans) >= BANS_MAX:
            self._make_room()
        self._bans[ban.kind, ban.value] = ban
        if is_network:
            self._networks[ban.value] = ip_network(ban.value)
        self.generation += 1
        return ban

    def banned(self, subject: Credentials | Principal, now: float) -> Ban | None:
        """The ban that shuts this client out, if any.

        Asked with the credentials before anything is verified, and with the principal after: a certificate or a token
        may name another user than CONNECT does.
        """
        if not self._bans:
            return None
        user = _user_of(subject)
        address = _address_or_text(subject.peer)
        keys = [("client_id", subject.client_id), ("address", address)]
        if user is not None:
            keys.append(("user", user))
        for key in keys:
            if (ban := self._in_force(key, now)) is not None:
                return ban
        return self._banned_network(address, now) if self._networks else None

    def expire(self, now: float) -> int:
        """Forget the bans that have ended; how many. Called now and then: `banned` does not need it."""
        ended = [key for key, ban in self._bans.items() if ban.expires_at is not None and ban.expires_at <= now]
        for key in ended:
            self._drop(key)
        return len(ended)

    def bans(self) -> tuple[Ban, ...]:
        """Every ban held, for the administrator."""
        return tuple(self._bans.values())

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        return {"bans": len(self._bans), "networks": len(self._networks), "evicted": self.evicted}

    def _in_force(self, key: tuple[str, str], now: float) -> Ban | None:
        ban = self._bans.get(key)
        if ban is None or (ban.expires_at is not None and ban.expires_at <= now):
            return None
        return ban

    def _banned_network(self, address: str, now: float) -> Ban | None:
        try:
            parsed = ip_address(address)
        except ValueError:
            return None
        for value, network in self._networks.items():
            if parsed in network and (ban := self._in_force(("address", value), now)) is not None:
                return ban
        return None

    def _make_room(self) -> None:
        ending = [(ban.expires_at, key) for key, ban in self._bans.items() if ban.expires_at is not None]
        if not ending:
            raise RecordError(f"more than {BANS_MAX} bans without an end")
        self._drop(min(ending)[1])
        self.evicted += 1

    def _drop(self, key: tuple[str, str]) -> None:
        self._bans.pop(key, None)
        if key[0] == "address":
            self._networks.pop(key[1], None)


def _user_of(subject: Credentials | Principal) -> str | None:
    return subject.name if isinstance(subject, Principal) else subject.user_name


def _address_or_text(peer: str) -> str:
    try:
        return _normal_address(peer.partition("%")[0])
    except ValueError:
        return peer  # a Unix socket
