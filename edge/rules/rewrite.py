"""Topic rewrite: other names and filters than the client has sent, before anything else looks at them. Pure.

Like EMQX: a rule has a filter that says what it is about, a regular expression that takes the text apart, and a
destination that puts it together again: `$1` to `$9` for the groups, `%c` client id, `%u` user name. Of the rules whose
filter and regular expression match, the one that stands last in the configuration counts; there is no second round.

The regular expressions are RE2's: linear in the length of the text, whatever a device sends; no look-around, no
back-references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import re2  # type: ignore[import-untyped, unused-ignore]

from edge.access.principal import Principal
from edge.rules.placeholders import substitute
from schemas.errors import ConfigurationError, TopicError
from schemas.replay_filter import parse_replay
from schemas.topics import BESIDE_PREFIXES, EXCLUSIVE_PREFIX, check_topic_filter, matches, parse_shared

RULES_MAX: Final = 200  # tried one after the other, once per session and Topic Name
REGEX_LENGTH_MAX: Final = 1_024
REGEX_BYTES_MAX: Final = 1024 * 1024  # of RE2's compiled program
_ACTIONS: Final = ("publish", "subscribe", "all")
_KEYS: Final = ("action", "filter", "regex", "destination")
_KEPT_PREFIXES: Final = (*BESIDE_PREFIXES, EXCLUSIVE_PREFIX)  # what stands in front of the filter proper
_GROUP: Final = re.compile(r"\$([1-9])")


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """One rule; `regex` is compiled and is searched for in the text."""

    action: str
    topic_filter: str
    regex: Any
    destination: str

    def rewritten(self, text: str, principal: Principal) -> str | None:
        """What becomes of the text; None: the rule does not apply to it, or not to this client."""
        if not matches(self.topic_filter, text):
            return None
        found = self.regex.search(text)
        if found is None:
            return None
        destination = substitute(self.destination, principal)
        if destination is None:
            return None
        return _GROUP.sub(lambda group: found.group(int(group[1])) or "", destination)


class Rewrites:
    """The rules of one edge."""

    __slots__ = ("_publish", "_subscribe")

    def __init__(self, rules: Iterable[RewriteRule] = ()) -> None:
        last_first = tuple(rules)[::-1]
        self._publish = tuple(rule for rule in last_first if rule.action != "subscribe")
        self._subscribe = tuple(rule for rule in last_first if rule.action != "publish")

    @property
    def changes_filters(self) -> bool:
        """Whether any rule is about SUBSCRIBE and UNSUBSCRIBE."""
        return bool(self._subscribe)

    def topic_name(self, topic_name: str, principal: Principal) -> str:
        """The Topic Name that counts for a PUBLISH or a will. It has to be checked: a group may make it a wrong one."""
        return _first(self._publish, topic_name, principal)

    def topic_filter(self, topic_filter: str, principal: Principal) -> str:
        """The Topic Filter that counts; `$share/<group>/`, `$exclusive/` and `$replay/<from>/` stay in front of it."""
        if not self._subscribe:
            return topic_filter
        prefix, inner = _split(topic_filter)
        return prefix + _first(self._subscribe, inner, principal) if inner else topic_filter


def load_rewrites(tables: Iterable[Mapping[str, Any]]) -> Rewrites:
    """Rules from tables as under `[[rewrite]]`. Raises ConfigurationError that names the rule's number."""
    rules = [_load(number, table) for number, table in enumerate(tables, start=1)]
    if len(rules) > RULES_MAX:
        raise ConfigurationError(f"{len(rules)} [[rewrite]] rules; at most {RULES_MAX} are taken")
    return Rewrites(rules)


def _load(number: int, table: Mapping[str, Any]) -> RewriteRule:
    def refuse(why: str) -> ConfigurationError:
        return ConfigurationError(f"[[rewrite]] rule {number}: {why}")

    if set(table) != set(_KEYS) or not all(isinstance(value, str) and value for value in table.values()):
        raise refuse(f"needs exactly {', '.join(_KEYS)}, all of them text")
    action, topic_filter, text, destination = (table[key] for key in _KEYS)
    if action not in _ACTIONS:
        raise refuse(f"action must be one of {', '.join(_ACTIONS)}, not {action!r}")
    try:
        check_topic_filter(topic_filter)
    except TopicError as error:
        raise refuse(f"filter {topic_filter!r}: {error}") from None
    if topic_filter.startswith(_KEPT_PREFIXES):
        raise refuse(f"filter {topic_filter!r}: write it without its prefix, which is left alone")
    if action != "subscribe" and ("+" in destination or "#" in destination):
        raise refuse(f'destination {destination!r}: nobody can publish to wildcards; use action = "subscribe"')
    regex = _compiled(text, refuse)
    if (highest := max((int(each) for each in _GROUP.findall(destination)), default=0)) > regex.groups:
        raise refuse(f"destination {destination!r} has ${highest}, the regular expression has {regex.groups} groups")
    return RewriteRule(action, topic_filter, regex, destination)


def _compiled(text: str, refuse: Any) -> Any:
    if len(text) > REGEX_LENGTH_MAX:
        raise refuse(f"its regular expression is longer than {REGEX_LENGTH_MAX} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = REGEX_BYTES_MAX
    try:
        return re2.compile(text, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise refuse(f"RE2 does not take the regular expression {text!r}: {why}") from None


def _first(rules: tuple[RewriteRule, ...], text: str, principal: Principal) -> str:
    for rule in rules:
        rewritten = rule.rewritten(text, principal)
        if rewritten is not None:
            return rewritten
    return text


def _split(topic_filter: str) -> tuple[str, str]:
    """The prefix and the filter proper; of a malformed one, which is refused later, nothing is the filter proper."""
    inner = topic_filter.removeprefix(EXCLUSIVE_PREFIX)
    try:
        shared = parse_shared(inner)
        inner = shared.topic_filter if shared is not None else inner
        replay = parse_replay(inner)
        inner = replay.topic_filter if replay is not None else inner
    except TopicError:
        return topic_filter, ""
    return topic_filter[: len(topic_filter) - len(inner)], inner
