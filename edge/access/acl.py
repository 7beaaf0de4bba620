"""What a principal may publish, subscribe to and receive. Pure.

An ordered list of rules; the first that matches decides; where none matches, the answer is no. A subscription is
granted when *every* name it can match is allowed: an allow rule covers it and no earlier deny rule overlaps it. So a
granted subscription never matches a name that the check at delivery would deny.

`%c` in a filter stands for the client id, `%u` for the user name. A value that is empty, starts with `$` or holds `+`,
`#`, `/` or a control character never takes part: an allow rule that needs it grants nothing, a deny rule that needs it
denies everything from there on.

Names under `$SYS` are read only by a rule whose own text starts with `$SYS`; `#` and `+` never match them. Nobody
publishes to `$SYS` or `$CONTROL`.
"""

from __future__ import annotations

import re
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from edge.access.principal import Principal, has_control_characters
from schemas.errors import ConfigurationError, TopicError
from schemas.replay_filter import ReplayFilter, parse_replay
from schemas.topics import BESIDE_PREFIXES, SharedFilter, check_topic_filter, covers, matches, overlaps, parse_shared

_ACTIONS: Final = ("publish", "subscribe", "all")
_KEYS: Final = frozenset({"permit", "action", "filter", "user", "client_id"})
_PLACEHOLDER: Final = re.compile("%[cu]")
_CLOSED_TO_PUBLISHERS: Final = ("$SYS", "$CONTROL")

RULES_MAX: Final = 1_000  # a decision walks the list; configuration beyond this belongs into user names
COMPILED_MAX: Final = 10_000  # principals whose rules are kept compiled: a list of pointers each, about 200 bytes


class Authorizer(Protocol):
    """What the handler asks; `Acl` and `DevAcl` answer."""

    @property
    def generation(self) -> int:
        """Grows with every change of the rules: a decision cached under another generation is void."""
        ...

    def may_publish(self, principal: Principal, topic_name: str) -> bool:
        """Whether the principal may publish to this name (also asked for its will)."""
        ...

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        """Whether every name that the filter can match may be received."""
        ...

    def may_receive(self, principal: Principal, topic_name: str) -> bool:
        """Whether a message under this name may be delivered."""
        ...


@dataclass(frozen=True, slots=True)
class AclRule:
    """One rule. `user` and `client_id` None: it applies to everybody."""

    allow: bool
    action: str
    topic_filter: str
    user: str | None = None
    client_id: str | None = None


def load_rules(tables: Iterable[Mapping[str, Any]]) -> tuple[AclRule, ...]:
    """Rules from dicts with the keys permit ("allow"/"deny"), action, filter and, optional, user and client_id.

    Raises ConfigurationError that names the rule's number and what is wrong with it.
    """
    rules = tuple(_load_rule(number, table) for number, table in enumerate(tables, start=1))
    if len(rules) > RULES_MAX:
        raise ConfigurationError(f"{len(rules)} ACL rules; at most {RULES_MAX} are taken")
    return rules


def load_rules_toml(text: str) -> tuple[AclRule, ...]:
    """Rules from TOML: an array of tables `[[rule]]`. Raises ConfigurationError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the ACL is not TOML: {error}") from error
    if set(document) - {"rule"} or not isinstance(document.get("rule", []), list):
        raise ConfigurationError("the ACL consists of [[rule]] tables and nothing else")
    return load_rules(document.get("rule", []))


def _load_rule(number: int, table: Mapping[str, Any]) -> AclRule:
    def refuse(why: str) -> ConfigurationError:
        return ConfigurationError(f"ACL rule {number}: {why}")

    if not isinstance(table, Mapping):
        raise refuse(f"must be a table, not {table!r}")
    if unknown := sorted(set(table) - _KEYS):
        raise refuse(f"has no key {unknown[0]!r}; it has {', '.join(sorted(_KEYS))}")
    for key in ("permit", "action", "filter"):
        if key not in table:
            raise refuse(f"needs {key}")
    if wrong := sorted(key for key, value in table.items() if not isinstance(value, str) or not value):
        raise refuse(f"{wrong[0]} must be text, not {table[wrong[0]]!r}")
    if table["permit"] not in ("allow", "deny"):
        raise refuse(f"permit must be allow or deny, not {table['permit']!r}")
    if table["action"] not in _ACTIONS:
        raise refuse(f"action must be one of {', '.join(_ACTIONS)}, not {table['action']!r}")
    topic_filter = table["filter"]
    try:
        check_topic_filter(topic_filter)
    except TopicError as error:
        raise refuse(f"filter {topic_filter!r}: {error}") from error
    if topic_filter.startswith(BESIDE_PREFIXES):
        raise refuse(
            f"filter {topic_filter!r}: write the filter without its prefix, which is stripped before the decision"
        )
    if topic_filter.startswith("$") and "%" in topic_filter.partition("/")[0]:
        raise refuse(f"filter {topic_filter!r}: no placeholder in a first level that starts with $")
    return AclRule(table["permit"] == "allow", table["action"], topic_filter, table.get("user"), table.get("client_id"))


def underlying_filter(topic_filter: str) -> str | None:
    """The filter without `$share/<group>/` and `$replay/<from>[/<to>]/`, in this order; None: nothing is left of it."""
    parsers: tuple[Callable[[str], SharedFilter | ReplayFilter | None], ...] = (parse_shared, parse_replay)
    for parse in parsers:
        try:
            inside = parse(topic_filter)
        except TopicError:
            return None
        if inside is not None:
            topic_filter = inside.topic_filter
    return topic_filter or None


def is_closed_to_publishers(topic_name: str) -> bool:
    """Whether the name is under `$SYS` or `$CONTROL`, where no client publishes whatever the rules say."""
    return topic_name.startswith("$") and topic_name.partition("/")[0] in _CLOSED_TO_PUBLISHERS


class _Compiled:
    """The rules that concern one principal, values substituted: (allow, filter) in order; filter None: deny all."""

    __slots__ = ("publish", "subscribe")

    def __init__(self, rules: tuple[AclRule, ...], principal: Principal) -> None:
        self.publish: list[tuple[bool, str | None]] = []
        self.subscribe: list[tuple[bool, str | None]] = []
        for rule in rules:
            if rule.user not in (None, principal.name) or rule.client_id not in (None, principal.client_id):
                continue
            topic_filter = _substitute(rule.topic_filter, principal)
            if topic_filter is None and rule.allow:
                continue
            if rule.action != "subscribe":
                self.publish.append((rule.allow, topic_filter))
            if rule.action != "publish":
                self.subscribe.append((rule.allow, topic_filter))


def _substitute(topic_filter: str, principal: Principal) -> str | None:
    values = {"%c": principal.client_id, "%u": principal.name}
    used = set(_PLACEHOLDER.findall(topic_filter))
    if any(not _is_usable(values[placeholder]) for placeholder in used):
        return None
    # One pass: a client id that reads "%u" stays as it is.
    return _PLACEHOLDER.sub(lambda found: values[found.group()], topic_filter) if used else topic_filter


def _is_usable(value: str) -> bool:
    if not value or value.startswith("$") or has_control_characters(value):
        return False
    return not any(character in value for character in "+#/")


class Acl:
    """Rules and the decisions that follow from them."""

    __slots__ = ("_compiled", "_generation", "_rules")

    def __init__(self, rules: Iterable[AclRule] = ()) -> None:
        self._rules = tuple(rules)
        self._compiled: OrderedDict[tuple[str, str], _Compiled] = OrderedDict()
        self._generation = 0

    @property
    def generation(self) -> int:
        """Grows with every `replace`."""
        return self._generation

    @property
    def rules(self) -> tuple[AclRule, ...]:
        """The rules in force, in order."""
        return self._rules

    def replace(self, rules: Iterable[AclRule]) -> None:
        """Put other rules into force at once; what was decided by the old ones must be asked again."""
        self._rules = tuple(rules)
        self._compiled.clear()
        self._generation += 1

    def may_publish(self, principal: Principal, topic_name: str) -> bool:
        """Whether the principal may publish to this name (also asked for its will)."""
        if topic_name.startswith("$") and is_closed_to_publishers(topic_name):
            return False
        return principal.superuser or _first_match(self._rules_of(principal).publish, topic_name)

    def may_receive(self, principal: Principal, topic_name: str) -> bool:
        """Whether a message under this name may be delivered to the principal."""
        return principal.superuser or _first_match(self._rules_of(principal).subscribe, topic_name)

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        """Whether every name that the filter can match may be received; a malformed filter: no."""
        underlying = underlying_filter(topic_filter)
        if underlying is None:
            return False
        try:
            check_topic_filter(underlying)
        except TopicError:
            return False
        return principal.superuser or _first_decision(self._rules_of(principal).subscribe, underlying)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        return {"rules": len(self._rules), "compiled": len(self._compiled), "generation": self._generation}

    def _rules_of(self, principal: Principal) -> _Compiled:
        key = (principal.name, principal.client_id)
        compiled = self._compiled.get(key)
        if compiled is None:
            if len(self._compiled) >= COMPILED_MAX:
                self._compiled.popitem(last=False)
            compiled = self._compiled[key] = _Compiled(self._rules, principal)
        return compiled


def _first_match(rules: list[tuple[bool, str | None]], topic_name: str) -> bool:
    for allow, topic_filter in rules:
        if topic_filter is None:
            return False
        if matches(topic_filter, topic_name):
            return allow
    return False


def _first_decision(rules: list[tuple[bool, str | None]], topic_filter: str) -> bool:
    for allow, ruled in rules:
        if ruled is None:
            return False
        if allow:
            if covers(ruled, topic_filter):
                return True
        elif overlaps(ruled, topic_filter):
            return False
    return False


class DevAcl:
    """For `--dev`: everything but publishing to `$SYS` and `$CONTROL`."""

    __slots__ = ()

    generation = 0

    def may_publish(self, principal: Principal, topic_name: str) -> bool:
        """Whether the name is not closed to publishers."""
        return not is_closed_to_publishers(topic_name)

    def may_receive(self, principal: Principal, topic_name: str) -> bool:
        """Always."""
        return True

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        """Always (the caller has checked the filter's form)."""
        return True
