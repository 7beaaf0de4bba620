"""How much a client may do: every limit with its reason, and the counters that hold clients to the rates. Pure.

Time is an argument (`now`, seconds of any clock that never goes back). Every table is bounded; when one is full the
entry that has not been touched for longest goes, and is counted.

A rate of 0 in `Limits` means "no limit"; every other number must be at least 1.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any

from schemas.errors import ConfigurationError

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit of an edge; the field's name is its configuration key under `[limits]`."""

    # Packets
    packet_bytes_max: int = 1_000_000  # told to v5 clients in CONNACK; below Kafka's 2 MiB with room for headers
    topic_name_bytes_max: int = 1_024  # it becomes a Kafka header and often the key of every record
    topic_levels_max: int = 32  # matching and the subscription trie cost per level
    client_id_bytes_max: int = 128  # key of claims and sessions; UUIDs, URNs and serial numbers fit three times
    user_properties_max: int = 32  # each becomes a Kafka header, which every reader pays for
    user_properties_bytes_max: int = 8 * 1024  # all names and values of one packet, as HTTP servers bound headers
    filters_per_subscribe_max: int = 100  # one SUBSCRIBE is worked off in one turn of the event loop
    subscriptions_per_client_max: int = 1_000  # memory of the table, and of the durable session's record

    # Flow
    receive_maximum_in: int = 100  # unacknowledged QoS 1/2 publishes of one client: 100 MB of packets at worst
    receive_maximum_out: int = 32  # in flight to one client; what a 3.1.1 client, which cannot say, is given
    topic_alias_maximum: int = 16  # 16 names of 1 KiB per connection
    buffer_messages_max: int = 1_000  # waiting for one client; beyond it QoS 0 drops and QoS 1/2 re-reads the log
    buffer_bytes_max: int = 1024 * 1024  # the same in bytes: 1,000 slow clients cost 1 GiB and no more
    retained_messages_max: int = 1_000_000  # topic names with one, on all edges together: 600 MB with small payloads
    retained_bytes_max: int = 512 * 1024 * 1024  # their names, payloads and headers; each edge holds all of them
    keep_alive_factor: float = 1.5  # [MQTT5-3.1.2-22]: closed after one and a half times the keep alive
    server_keep_alive_s: int = 600  # for clients that say 0: a dead peer must not be held for ever

    # Before authentication
    connect_packet_bytes_max: int = 64 * 1024  # a stranger makes us buffer no more than a will and a token need
    connect_timeout_s: float = 10.0  # from accept to a whole CONNECT: slow devices need 2-3 s, slow-loris needs minutes
    tls_handshake_timeout_s: float = 10.0  # the same for the TLS handshake before it
    authentication_timeout_s: float = 2.0  # a back end that has not answered by then has refused
    unauthenticated_per_address_max: int = 50  # open at the same time; devices behind one NAT address fit
    unauthenticated_per_address_per_s: float = 20.0  # new ones; one that authenticates is given back
    unauthenticated_max: int = 1_000  # in all: descriptors and 64 KiB buffers of strangers stay under 64 MiB

    # Replay
    replays_per_client_max: int = 4  # each reads the log beside the live flow
    replay_messages_per_s: float = 10_000.0  # of history, to one replay: one fast client leaves room for others

    # Rates
    messages_per_s: float = 1_000.0  # per client; reading pauses, nothing is dropped
    bytes_per_s: float = 1024.0 * 1024  # per client; reading pauses, nothing is dropped
    connects_per_s: float = 500.0  # per node; each CONNECT is a claim in Kafka. A CONNECT waits its turn
    connect_wait_s_max: float = 5.0  # for its turn; longer is refused (0x9F): clients give up after 5-10 s anyway
    failures_per_min: int = 10  # refused CONNECTs of one address: guessing a password stays hopeless
    failure_block_s: float = 300.0  # how long the address then waits
    flapping_per_min: int = 15  # connects of one client: two devices with one client id fight at this pace and faster
    flapping_ban_s: float = 300.0  # how long the client id is then banned
    tracked_addresses_max: int = 10_000  # entries of each table below: about 4 MiB each

    def __post_init__(self) -> None:
        for item in fields(self):
            _check_number(item.name, getattr(self, item.name), int if item.type == "int" else float)


_RATES = frozenset(
    {
        "messages_per_s",
        "replay_messages_per_s",
        "bytes_per_s",
        "connects_per_s",
        "unauthenticated_per_address_per_s",
    }
)


def _check_number(name: str, value: Any, kind: type[int] | type[float]) -> None:
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise ConfigurationError(
            f"limits.{name} must be {'a whole number' if kind is int else 'a number'}, not {value!r}"
        )
    if name in _RATES:
        if value < 0 or not math.isfinite(value):
            raise ConfigurationError(f"limits.{name} must be 0 (no limit) or more, not {value!r}")
    elif value < 1 or not math.isfinite(value):
        raise ConfigurationError(f"limits.{name} must be at least 1, not {value!r}")


def load_limits(table: Mapping[str, Any], base: Limits | None = None) -> Limits:
    """The limits of a `[limits]` table over `base` (the defaults when None).

    Raises ConfigurationError for an unknown key or a value that is no number or too small.
    """
    known = {item.name for item in fields(Limits)}
    if unknown := sorted(set(table) - known):
        raise ConfigurationError(f"limits has no key {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return replace(base or Limits(), **table)


def development_limits() -> Limits:
    """For `--dev` (loopback only): every client comes from one address, as fast as a demo can start them.

    The packet and flow limits stay: a program that passes in development passes in production.
    """
    return Limits(
        unauthenticated_per_address_max=1_000,
        unauthenticated_per_address_per_s=0,
        connects_per_s=0,
        messages_per_s=0,
        bytes_per_s=0,
        failures_per_min=1_000,
        flapping_per_min=1_000,
    )


class TokenBucket:
    """`rate` tokens a second, at most `burst` at once; full at the start. Rate 0: no limit.

    Kept as one number, the time at which the bucket will be full again (GCRA): no refill step, two additions.
    """

    __slots__ = ("_burst_s", "_full_at", "_interval_s")

    def __init__(self, rate: float, burst: float) -> None:
        assert rate >= 0
        assert burst > 0, "a bucket that can never give anything"
        self._interval_s = 1.0 / rate if rate else 0.0
        self._burst_s = burst * self._interval_s
        self._full_at = -math.inf

    def take(self, n: float, now: float) -> float:
        """Take n tokens and return the seconds to wait before the next step (0: go on).

        The tokens are taken in any case, for the caller already holds what they stand for (a message that was read); a
        take larger than the burst is paid off by waiting.
        """
        full_at = self._full_at
        if full_at < now:
            full_at = now
        self._full_at = full_at = full_at + n * self._interval_s
        wait_s = full_at - now - self._burst_s
        return wait_s if wait_s > 0.0 else 0.0

    def try_take(self, n: float, now: float) -> bool:
        """Take n tokens if they are there; False (and nothing taken) otherwise."""
        full_at = max(self._full_at, now) + n * self._interval_s
        if full_at - now > self._burst_s + self._interval_s * 1e-3:  # a thousandth of a token, for rounding
            return False
        self._full_at = full_at
        return True

    def give_back(self, n: float) -> None:
        """Undo a take of n tokens."""
        self._full_at -= n * self._interval_s

    def is_full(self, now: float) -> bool:
        """Whether forgetting this bucket and making a new one would change nothing."""
        return self._full_at <= now


class ClientRate:
    """One client's messages and bytes per second, in one call per read."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, limits: Limits) -> None:
        self._messages = TokenBucket(limits.messages_per_s, max(1.0, limits.messages_per_s))
        self._bytes = TokenBucket(limits.bytes_per_s, max(1.0, limits.bytes_per_s))

    def take(self, messages: int, size_bytes: int, now: float) -> float:
        """Seconds for which reading from this client pauses (0: go on reading)."""
        for_messages_s = self._messages.take(messages, now)
        for_bytes_s = self._bytes.take(size_bytes, now)
        return for_messages_s if for_messages_s > for_bytes_s else for_bytes_s


@lru_cache(maxsize=4_096)  # an entry is about 200 bytes; connects from the same addresses come in bursts
def address_key(peer: str) -> str:
    """What an address is counted under: IPv4 as it is (mapped into IPv6 or not), IPv6 by its /64, else the text itself.

    One IPv6 customer has a whole /64, so counting single addresses would limit nobody.
    """
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)


class Refusal(StrEnum):
    """Why a connection is not even listened to."""

    ADDRESS_BLOCKED = "address blocked after too many failures"
    ADDRESS_RATE = "too many new connections from this address"
    ADDRESS_FULL = "too many unauthenticated connections from this address"
    NODE_FULL = "too many unauthenticated connections on this node"


class _Address:
    __slots__ = ("bucket", "open")

    def __init__(self, limits: Limits) -> None:
        rate = limits.unauthenticated_per_address_per_s
        self.bucket = TokenBucket(rate, max(1.0, rate))
        self.open = 0


class Ticket:
    """A connection's place among the unauthenticated; `release` may be called any number of times."""

    __slots__ = ("_address", "_gate")

    def __init__(self, gate: ConnectionGate, address: _Address) -> None:
        self._gate: ConnectionGate | None = gate
        self._address = address

    def release(self, *, authenticated: bool) -> None:
        """The connection has authenticated (its rate token is given back) or has closed. Idempotent."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate._leave(self._address, authenticated)


class ConnectionGate:
    """Holds strangers to the limits before authentication, and CONNECTs to the node's rate."""

    __slots__ = ("_addresses", "_connects", "_failures", "_limits", "_open", "_refused", "evicted")

    def __init__(self, limits: Limits, failures: FailureTracker | None = None) -> None:
        self._limits = limits
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._connects = TokenBucket(limits.connects_per_s, max(1.0, limits.connects_per_s))
        self._failures = failures
        self._open = 0
        self._refused: dict[Refusal, int] = dict.fromkeys(Refusal, 0)
        self.evicted = 0

    def admit(self, peer: str, now: float) -> Ticket | Refusal:
        """Called when a connection is accepted, before a byte is read (and before TLS)."""
        limits = self._limits
        if self._failures is not None and self._failures.blocked_s(peer, now) > 0:
            return self._refuse(Refusal.ADDRESS_BLOCKED)
        if self._open >= limits.unauthenticated_max:
            return self._refuse(Refusal.NODE_FULL)
        address = self._address(address_key(peer))
        if address.open >= limits.unauthenticated_per_address_max:
            return self._refuse(Refusal.ADDRESS_FULL)
        if not address.bucket.try_take(1, now):
            return self._refuse(Refusal.ADDRESS_RATE)
        address.open += 1
        self._open += 1
        return Ticket(self, address)

    def connect(self, now: float) -> float | None:
        """Called for each CONNECT: seconds until its turn (0: now); None: refuse it with 0x9F, the wait is too long."""
        wait_s = self._connects.take(1, now)
        if wait_s > self._limits.connect_wait_s_max:
            self._connects.give_back(1)
            return None
        return wait_s

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        refused = {f"refused_{reason.name.lower()}": count for reason, count in self._refused.items()}
        return {"unauthenticated": self._open, "addresses": len(self._addresses), "evicted": self.evicted, **refused}

    def _refuse(self, reason: Refusal) -> Refusal:
        self._refused[reason] += 1
        return reason

    def _address(self, key: str) -> _Address:
        address = self._addresses.get(key)
        if address is None:
            self._make_room()
            address = self._addresses[key] = _Address(self._limits)
        self._addresses.move_to_end(key)
        return address

    def _make_room(self) -> None:
        # At most unauthenticated_max entries have a connection open, each looked at once: bounded.
        if len(self._addresses) < max(self._limits.tracked_addresses_max, self._limits.unauthenticated_max):
            return
        for key, address in self._addresses.items():
            if not address.open:
                del self._addresses[key]
                self.evicted += 1
                return

    def _leave(self, address: _Address, authenticated: bool) -> None:
        assert 0 < address.open <= self._open, "more connections left than came"
        address.open -= 1
        self._open -= 1
        if authenticated:
            address.bucket.give_back(1)


class _Window:
    """Happenings per key in the last minute; at `max` of them the key is blocked for `block_s`."""

    __slots__ = ("_block_s", "_blocked", "_entries_max", "_max", "_times", "blocks", "evicted")

    def __init__(self, happenings_max: int, block_s: float, entries_max: int) -> None:
        self._max = happenings_max
        self._block_s = block_s
        self._entries_max = entries_max
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._blocked: OrderedDict[str, float] = OrderedDict()
        self.blocks = 0
        self.evicted = 0

    def happened(self, key: str, now: float) -> bool:
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = deque(maxlen=self._max)
            self._bound(self._times)
        self._times.move_to_end(key)
        times.append(now)
        if len(times) < self._max or now - times[0] >= _MINUTE_S:
            return False
        del self._times[key]
        self._blocked[key] = now + self._block_s
        self._blocked.move_to_end(key)
        self._bound(self._blocked)
        self.blocks += 1
        return True

    def blocked_s(self, key: str, now: float) -> float:
        until = self._blocked.get(key)
        if until is None:
            return 0.0
        if until <= now:
            del self._blocked[key]
            return 0.0
        return until - now

    def _bound(self, table: OrderedDict[str, Any]) -> None:
        if len(table) > self._entries_max:
            table.popitem(last=False)
            self.evicted += 1

    def statistics(self) -> dict[str, int]:
        return {
            "tracked": len(self._times),
            "blocked": len(self._blocked),
            "blocks": self.blocks,
            "evicted": self.evicted,
        }


class FailureTracker:
    """Refused CONNECTs per address: 10 in a minute block it for 5 minutes.

    A success does not clear the count: one valid account must not let its owner guess at the others.
    """

    __slots__ = ("_window",)

    def __init__(self, limits: Limits) -> None:
        self._window = _Window(limits.failures_per_min, limits.failure_block_s, limits.tracked_addresses_max)

    def failed(self, peer: str, now: float) -> bool:
        """An authentication was refused; True when the address is blocked from now on (worth an audit event)."""
        return self._window.happened(address_key(peer), now)

    def blocked_s(self, peer: str, now: float) -> float:
        """Seconds for which this address is still blocked; 0: it is not."""
        return self._window.blocked_s(address_key(peer), now)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        return self._window.statistics()


class FlappingTracker:
    """Connects per client: 15 in a minute ban the client id for 5 minutes.

    Count only authenticated CONNECTs, after the session has been found to belong to their principal: else a stranger
    could have somebody else's client id banned.
    """

    __slots__ = ("_window",)

    def __init__(self, limits: Limits) -> None:
        self._window = _Window(limits.flapping_per_min, limits.flapping_ban_s, limits.tracked_addresses_max)

    def connected(self, client_id: str, now: float) -> bool:
        """A client has connected; True when it is banned from now on (the caller may publish a `bans.Ban`)."""
        return self._window.happened(client_id, now)

    def banned_s(self, client_id: str, now: float) -> float:
        """Seconds for which this client id is still banned; 0: it is not."""
        return self._window.blocked_s(client_id, now)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        return self._window.statistics()
