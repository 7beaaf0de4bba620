"""The records of ``headwater.control``: what operators decide, in force on every edge within moments. Compacted.

=============================  =========================================================================================
key                            value, JSON with ``"version": 1``; a tombstone takes it back
=============================  =========================================================================================
``ban/client_id/<client id>``  `Ban`; likewise ``ban/user/<user name>`` and ``ban/address/<address or network>``
``acl/rules``                  `AclRules`: the whole rule set, instead of the one in the edges' files
``auto/subscriptions``         `AutoSubscriptionTables`: all of them, likewise
``node/<node id>``             `NodeCommand`: what this process of the node is to do
``layout/<kafka topic>``       `schemas.layouts.Layout`: how its Topic Names are spread over partitions, after a resize
=============================  =========================================================================================

Unknown fields are ignored. A record of another kind is somebody else's: no fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final, TypeAlias

import orjson

from schemas.errors import ConfigurationError, RecordError
from schemas.layouts import LAYOUT_KIND, Layout, decode_layout
from schemas.nodes import json_object

CONTROL_VERSION: Final = 1
CONTROL_KINDS: Final = ("ban", "acl", "auto", "node", "layout")
BAN_KINDS: Final = ("client_id", "user", "address")
ACL_KEY: Final = "acl/rules"
AUTO_KEY: Final = "auto/subscriptions"
DRAIN: Final = "drain"


@dataclass(frozen=True, slots=True)
class Ban:
    """Who is shut out, until when and why. The value of an address ban is an address or a network in its one spelling:
    use `Ban.of` where somebody else has written it."""

    kind: str
    value: str
    expires_at: float | None = None
    """Seconds since the epoch; None: until it is lifted."""
    reason: str = ""
    created_by: str = ""

    @classmethod
    def of(cls, kind: str, value: str, expires_at: float | None = None, reason: str = "", created_by: str = "") -> Ban:
        """A ban as an operator says it. Raises ConfigurationError when there can be no such ban."""
        if kind not in BAN_KINDS:
            raise ConfigurationError(f"a ban is by {', '.join(BAN_KINDS)}, not by {kind!r}")
        if not value or "\0" in value:
            raise ConfigurationError(f"whom does the ban hit? Its {kind} must not be empty or hold U+0000")
        if kind == "address":
            try:
                value = normal_address(value)
            except ValueError as error:
                raise ConfigurationError(f"{value!r} is no address and no network: {error}") from None
        return cls(kind, value, expires_at, reason, created_by)

    @property
    def key(self) -> str:
        """The key of its record."""
        return f"ban/{self.kind}/{self.value}"

    def to_json(self) -> bytes:
        """The value of its record."""
        return orjson.dumps(
            {
                "version": CONTROL_VERSION,
                "expires_at": self.expires_at,
                "reason": self.reason,
                "created_by": self.created_by,
            }
        )

    def is_over(self, now: float) -> bool:
        """Whether it has ended, `now` in seconds since the epoch: bans outlive processes and cross nodes."""
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class AclRules:
    """A rule set, each rule a table as under ``[[acl]]``. What is wrong with a rule is found by `edge.access.acl`."""

    rules: tuple[dict[str, Any], ...]
    created_by: str = ""

    @property
    def key(self) -> str:
        """The key of its record."""
        return ACL_KEY

    def to_json(self) -> bytes:
        """The value of its record."""
        return orjson.dumps({"version": CONTROL_VERSION, "rules": self.rules, "created_by": self.created_by})


@dataclass(frozen=True, slots=True)
class AutoSubscriptionTables:
    """Auto-subscriptions, each a table as under ``[[auto_subscriptions]]``. `edge.rules.auto_subscriptions` finds what
    is wrong with one."""

    tables: tuple[dict[str, Any], ...]
    created_by: str = ""

    @property
    def key(self) -> str:
        """The key of its record."""
        return AUTO_KEY

    def to_json(self) -> bytes:
        """The value of its record."""
        return orjson.dumps({"version": CONTROL_VERSION, "rules": self.tables, "created_by": self.created_by})


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """A command for one process, which its incarnation names: the next process of the node does not obey it again."""

    node_id: str
    incarnation: str
    command: str = DRAIN
    clients_per_s: float | None = None
    created_by: str = ""

    @property
    def key(self) -> str:
        """The key of its record."""
        return f"node/{self.node_id}"

    def to_json(self) -> bytes:
        """The value of its record."""
        return orjson.dumps(
            {
                "version": CONTROL_VERSION,
                "incarnation": self.incarnation,
                "command": self.command,
                "clients_per_s": self.clients_per_s,
                "created_by": self.created_by,
            }
        )


ControlEntry: TypeAlias = Ban | AclRules | AutoSubscriptionTables | NodeCommand | Layout


def control_key(key: bytes | None) -> tuple[str, str]:
    """(kind, id) of a record's key. Raises RecordError."""
    try:
        kind, slash, of = (key or b"").decode().partition("/")
    except UnicodeDecodeError:
        raise RecordError("control: the key is not UTF-8") from None
    if not slash or not kind or not of:
        raise RecordError(f"control: the key {key!r} is not <kind>/<id>")
    return kind, of


def decode_control(key: bytes | None, value: bytes | None) -> ControlEntry | None:
    """The entry of a record whose kind is one of `CONTROL_KINDS`; None: a tombstone. Raises RecordError."""
    kind, of = control_key(key)
    if kind == "ban":
        ban_kind, ban_value = _parse_ban(of)
    elif kind == "acl" and of != "rules":
        raise RecordError(f"acl/{of}: the one ACL is {ACL_KEY}")
    elif kind == "auto" and of != "subscriptions":
        raise RecordError(f"auto/{of}: the one list is {AUTO_KEY}")
    if value is None:
        return None
    if kind == LAYOUT_KIND:
        return decode_layout(of, value)
    what = f"{kind}/{of}"
    fields = json_object(value, what)
    if fields.get("version") != CONTROL_VERSION:
        raise RecordError(f"{what}: its version is not {CONTROL_VERSION}")
    by = _text(fields, "created_by", what)
    if kind == "ban":
        return Ban(ban_kind, ban_value, _number(fields, "expires_at", what), _text(fields, "reason", what), by)
    if kind == "acl":
        return AclRules(_rules(fields, what), by)
    if kind == "auto":
        return AutoSubscriptionTables(_rules(fields, what), by)
    incarnation, command = _text(fields, "incarnation", what), _text(fields, "command", what)
    clients_per_s = _number(fields, "clients_per_s", what)
    if not incarnation or not command or (clients_per_s is not None and clients_per_s <= 0):
        raise RecordError(f"{what}: needs incarnation and command, and clients_per_s above 0 if any")
    return NodeCommand(of, incarnation, command, clients_per_s, by)


def normal_address(value: str) -> str:
    """An address or network in its one spelling. Raises ValueError."""
    if "/" in value:
        network = ip_network(value, strict=False)
        return str(network.network_address) if network.num_addresses == 1 else str(network)
    address = ip_address(value)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _parse_ban(of: str) -> tuple[str, str]:
    kind, _, value = of.partition("/")
    if kind not in BAN_KINDS or not value:
        raise RecordError(f"ban/{of} is not the key of a ban")
    if kind == "address":
        try:
            normal = normal_address(value)
        except ValueError as error:
            raise RecordError(f"ban/{of}: {error}") from None
        if normal != value:  # under two keys one could not be lifted by the other's tombstone
            raise RecordError(f"ban/{of}: write the address as {normal}")
    return kind, value


def _rules(fields: dict[str, Any], what: str) -> tuple[dict[str, Any], ...]:
    rules = fields.get("rules")
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise RecordError(f"{what}: rules must be a list of objects")
    return tuple(rules)


def _text(fields: dict[str, Any], name: str, what: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise RecordError(f"{what}: {name} must be text")
    return value or ""


def _number(fields: dict[str, Any], name: str, what: str) -> float | None:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise RecordError(f"{what}: {name} must be a number")
    return value
