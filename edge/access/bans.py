"""Who is shut out now: the bans of `headwater.control` (`schemas.control.Ban`), made quick to ask. Pure.

`now` is wall clock time, in seconds since the epoch: bans outlive processes and cross nodes.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from edge.access.principal import Credentials, Principal
from schemas.control import Ban, normal_address
from schemas.errors import RecordError

BANS_MAX: Final = 100_000  # about 50 MiB; at the bound the ban that would end first goes
NETWORKS_MAX: Final = 1_000  # every CONNECT is held against each of them: 0.3 ms at worst


def applies_to(ban: Ban, subject: Credentials | Principal) -> bool:
    """Whether this ban is about that client (its end is not looked at)."""
    if ban.kind == "client_id":
        return subject.client_id == ban.value
    if ban.kind == "user":
        return _user_of(subject) == ban.value
    address = _address_or_text(subject.peer)
    if "/" not in ban.value:
        return address == ban.value
    try:
        return ip_address(address) in ip_network(ban.value)
    except ValueError:
        return False


class BanList:
    """The bans in force."""

    __slots__ = ("_bans", "_networks", "evicted", "generation")

    def __init__(self) -> None:
        self._bans: dict[tuple[str, str], Ban] = {}
        self._networks: dict[str, IPv4Network | IPv6Network] = {}
        self.generation = 0
        self.evicted = 0

    def put(self, ban: Ban) -> None:
        """Put a ban into force. Raises RecordError, with nothing changed, for one too many."""
        is_network = ban.kind == "address" and "/" in ban.value
        if is_network and ban.value not in self._networks and len(self._networks) >= NETWORKS_MAX:
            raise RecordError(f"{ban.key}: more than {NETWORKS_MAX} banned networks")
        if (ban.kind, ban.value) not in self._bans and len(self._bans) >= BANS_MAX:
            self._make_room()
        self._bans[ban.kind, ban.value] = ban
        if is_network:
            self._networks[ban.value] = ip_network(ban.value)
        self.generation += 1

    def lift(self, key: str) -> None:
        """Lift the ban of this key (`Ban.key`), if there is one."""
        _, kind, value = key.split("/", 2)
        self._drop((kind, value))
        self.generation += 1

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
        ended = [key for key, ban in self._bans.items() if ban.is_over(now)]
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
        return None if ban is None or ban.is_over(now) else ban

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
        return normal_address(peer.partition("%")[0])
    except ValueError:
        return peer  # a Unix socket
