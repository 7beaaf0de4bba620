"""Selectors: an expression that decides, message by message, what a subscription takes. Pure.

The language is CEL (Common Expression Language), by `common-expression-language`: it has no loops, no side effects, and
linear-time regular expressions. It is compiled once and checked when the subscription is made. What an expression sees:

=============  ===============================================================
`name`         the Topic Name
`levels`       its levels, a list: `levels[1] == "kitchen"`
`qos`          0, 1 or 2: what it was published with
`retain`       whether it has the RETAIN flag
`client_id`    of its publisher, empty where no device has published it
`user`         its User Properties, a map: `user["unit"] == "C"`
`headers`      all headers of its Kafka record, a map
`payload`      the payload as JSON: `payload.temperature > 30.0`
=============  ===============================================================

An evaluation that fails (a field that is not there, a payload that is no JSON or too large, a result that is neither
true nor false) is no match, and counted. One that is slow several times is stopped for good.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import cel
import orjson

from bridge.delivery import Delivery
from edge.access.principal import Principal
from edge.rules.placeholders import substitute
from schemas.errors import ConfigurationError, HeadwaterError, TopicError
from schemas.topics import check_topic_filter, covers

SELECTOR_PROPERTY: Final = "selector"  # the User Property of SUBSCRIBE
EXPRESSION_LENGTH_MAX: Final = 1_024
PAYLOAD_BYTES_MAX: Final = 16 * 1024  # about 10 us for each of its fields
COMPILED_MAX: Final = 1_000
REMEMBERED_MAX: Final = 64  # deliveries whose verdicts are kept: a fan-out in shards comes back to one
SLOW_S: Final = 0.05
SLOW_MAX: Final = 5  # evaluations of one expression; then it is stopped
RULES_MAX: Final = 200

_VARIABLES: Final = frozenset(("name", "levels", "qos", "retain", "client_id", "user", "headers", "payload"))
_FUNCTIONS: Final = frozenset(
    ("size", "string", "int", "uint", "double", "bool", "type", "dyn", "contains", "startsWith", "endsWith", "matches")
)
_OPERATOR: Final = re.compile(r"[^a-zA-Z]")
_MACRO: Final = re.compile(r"\.\s*(all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)?")
_KEYS: Final = ("filter", "expression", "client_id", "user")


class SelectorError(HeadwaterError):
    """The expression cannot be a selector; the text says why."""


@dataclass(slots=True, eq=False)
class Selector:
    """One expression, compiled; subscriptions with the same expression share it."""

    expression: str
    program: Any
    variables: frozenset[str]
    slow: int = 0

    @property
    def is_stopped(self) -> bool:
        """It was too slow too often: it matches nothing any more."""
        return self.slow >= SLOW_MAX


def compile_selector(expression: str) -> Selector:
    """Compile and check. Raises SelectorError."""
    if not expression or len(expression) > EXPRESSION_LENGTH_MAX:
        raise SelectorError(f"a selector has 1 to {EXPRESSION_LENGTH_MAX} characters")
    try:
        program = cel.compile(expression)
    except ValueError as error:
        raise SelectorError(f"the selector does not compile: {_first_line(error)}") from None
    macros = _MACRO.findall(expression)
    if len(macros) > 1 or any(macro in ("map", "filter") for macro, _ in macros):
        raise SelectorError("a selector has one of all, exists, exists_one at most; map and filter are too slow for it")
    used = frozenset(program.variables()) - {variable for _, variable in macros if variable}
    if unknown := sorted(used - _VARIABLES):
        raise SelectorError(f"the selector uses {unknown[0]!r}; there are {', '.join(sorted(_VARIABLES))}")
    named = (each for each in program.functions() if not _OPERATOR.match(each))
    if unknown := sorted(frozenset(named) - _FUNCTIONS):
        raise SelectorError(f"the selector uses {unknown[0]}(); there are {', '.join(sorted(_FUNCTIONS))}")
    return Selector(expression, program, used)


class Selectors:
    """The expressions in use on one edge, and what they have said of the last messages."""

    def __init__(self, clock: Callable[[], float], payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self._clock = clock
        self._payload_bytes_max = payload_bytes_max
        self._compiled: OrderedDict[str, Selector] = OrderedDict()
        self._verdicts: OrderedDict[tuple[str, int, int], dict[Selector, bool]] = OrderedDict()
        self._context: tuple[Delivery, dict[str, Any]] | None = None
        self._counts = dict.fromkeys(("evaluations", "matches", "errors", "slow", "stopped", "refused"), 0)

    def compiled(self, expression: str) -> Selector:
        """The selector of this expression. Raises SelectorError."""
        selector = self._compiled.get(expression)
        if selector is None:
            try:
                selector = compile_selector(expression)
            except SelectorError:
                self._counts["refused"] += 1
                raise
            self._compiled[expression] = selector
            if len(self._compiled) > COMPILED_MAX:  # those who use it keep it
                self._compiled.popitem(last=False)
        return selector

    def stored(self, expression: str) -> Selector | None:
        """The selector of a stored subscription; one that this release does not take any more takes nothing."""
        if not expression:
            return None
        try:
            return self.compiled(expression)
        except SelectorError:
            return self.compiled("false")

    def takes(self, selector: Selector, delivery: Delivery) -> bool:
        """Whether the message matches; asked once per message and expression, however many subscribers there are."""
        place = (delivery.kafka_topic, delivery.partition, delivery.offset)
        verdicts = self._verdicts.get(place)
        if verdicts is None:
            verdicts = self._verdicts[place] = {}
            if len(self._verdicts) > REMEMBERED_MAX:
                self._verdicts.popitem(last=False)
        verdict = verdicts.get(selector)
        if verdict is None:
            verdict = verdicts[selector] = self._evaluate(selector, delivery)
        return verdict

    def statistics(self) -> dict[str, int]:
        """Totals since the start of the node."""
        return {**self._counts, "compiled": len(self._compiled)}

    def _evaluate(self, selector: Selector, delivery: Delivery) -> bool:
        if selector.is_stopped:
            self._counts["stopped"] += 1
            return False
        self._counts["evaluations"] += 1
        began_s = self._clock()
        try:
            verdict = selector.program.execute(self._values(selector.variables, delivery))
        except Exception:  # the library raises what it likes: KeyError, TypeError, ZeroDivisionError, RuntimeError
            verdict = None
        if self._clock() - began_s > SLOW_S:
            selector.slow += 1
            self._counts["slow"] += 1
        self._counts["errors"] += not isinstance(verdict, bool)
        self._counts["matches"] += verdict is True
        return verdict is True

    def _values(self, variables: frozenset[str], delivery: Delivery) -> dict[str, Any]:
        """What the expression sees; made once per message and variable."""
        if self._context is None or self._context[0] is not delivery:
            self._context = (delivery, {})
        values = self._context[1]
        for variable in variables - values.keys():
            values[variable] = self._value(variable, delivery)
        return {variable: values[variable] for variable in variables}

    def _value(self, variable: str, delivery: Delivery) -> Any:
        if variable == "payload":
            if len(delivery.payload) > self._payload_bytes_max:
                raise ValueError("the payload is too large to be looked into")
            return orjson.loads(delivery.payload)
        if variable == "name":
            return delivery.topic_name
        if variable == "levels":
            return delivery.topic_name.split("/")
        if variable == "user":
            return dict(delivery.properties.user_properties) if delivery.properties is not None else {}
        if variable == "headers":
            found = ((name, value) for name, value in delivery.headers if value is not None)
            return {name: value.decode(errors="replace") for name, value in found}
        return getattr(delivery, variable)


@dataclass(frozen=True, slots=True)
class SelectorRule:
    """`[[selectors]]`: for clients that cannot send a User Property. None: whatever client id, whatever user."""

    topic_filter: str
    expression: str
    client_id: str | None = None
    user: str | None = None

    def is_about(self, principal: Principal, topic_filter: str) -> bool:
        """Whether the subscription gets this selector: its filter lies within the rule's."""
        if self.client_id not in (None, principal.client_id) or self.user not in (None, principal.name):
            return False
        ruled = substitute(self.topic_filter, principal)
        return ruled is not None and covers(ruled, topic_filter)


def load_selectors(tables: Iterable[Mapping[str, Any]]) -> tuple[SelectorRule, ...]:
    """From tables as under `[[selectors]]`. Raises ConfigurationError that names the table's number."""
    rules = tuple(_load(number, table) for number, table in enumerate(tables, start=1))
    if len(rules) > RULES_MAX:
        raise ConfigurationError(f"{len(rules)} [[selectors]]; at most {RULES_MAX} are taken")
    return rules


def _load(number: int, table: Mapping[str, Any]) -> SelectorRule:
    def refuse(why: str) -> ConfigurationError:
        return ConfigurationError(f"[[selectors]] {number}: {why}")

    if unknown := sorted(set(table) - set(_KEYS)):
        raise refuse(f"has no key {unknown[0]!r}; it has {', '.join(_KEYS)}")
    values = [table.get(key) for key in _KEYS]
    if not all(isinstance(value, str) and value for value in values[:2]):
        raise refuse("needs filter and expression, both text")
    if not all(value is None or (isinstance(value, str) and value) for value in values[2:]):
        raise refuse("client_id and user must be text")
    rule = SelectorRule(*values)  # type: ignore[arg-type]
    try:
        check_topic_filter(rule.topic_filter)
        compile_selector(rule.expression)
    except (TopicError, SelectorError) as error:
        raise refuse(str(error)) from None
    return rule


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
