"""Tests of a payload: ``temp>30`` on a field of JSON, or a text anywhere in it. Pure; nothing is evaluated as code.

A field is a path of names with ``.`` between, and numbers for the places in a list (``readings.0.temp``). Without a
comparison the field only has to be there. What is compared with is JSON (``30``, ``true``, ``"on"``) or else a plain
text (``on``). ``<`` and ``>`` compare numbers with numbers and texts with texts; ``~`` looks for a text in a text. A
payload that is no JSON, or lacks the field, does not pass.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import orjson

from schemas.errors import ConfigurationError

_EXPRESSION = re.compile(r"\s*([^\s<>=!~]+)\s*(?:(<=|>=|==|!=|=|<|>|~)\s*(.*?)\s*)?", re.DOTALL)
_MISSING = object()


def _contains(found: Any, wanted: Any) -> bool:
    return str(wanted) in found


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": _contains,
}


def parse_grep(text: str) -> Callable[[bytes], bool]:
    """The test of a payload that an expression stands for. Raises ConfigurationError."""
    found = _EXPRESSION.fullmatch(text)
    if found is None or "" in found[1].split(".") or (found[2] is not None and found[3] == ""):
        raise ConfigurationError(f"--grep {text!r}: write a field, a comparison and a value, as in 'temp>30'")
    path, compare = found[1].split("."), _OPERATORS.get(found[2] or "")
    wanted = _value(found[3]) if found[3] is not None else None

    def test(payload: bytes) -> bool:
        try:
            value = _field(orjson.loads(payload), path)
        except orjson.JSONDecodeError:
            return False
        if value is _MISSING or compare is None:
            return value is not _MISSING
        if compare is _contains:
            return isinstance(value, str) and _contains(value, wanted)
        if compare not in (operator.eq, operator.ne) and not _are_ordered(value, wanted):
            return False
        return compare(value, wanted) if isinstance(value, bool) == isinstance(wanted, bool) else compare is operator.ne

    return test


def parse_text(text: str) -> Callable[[bytes], bool]:
    """Whether the text, in UTF-8, is anywhere in the payload. Raises ConfigurationError."""
    if not text:
        raise ConfigurationError("--grep-text: give the text to look for")
    wanted = text.encode()
    return lambda payload: wanted in payload


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _field(value: Any, path: list[str]) -> Any:
    for name in path:
        if isinstance(value, dict):
            value = value.get(name, _MISSING)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10:
            value = value[int(name)] if int(name) < len(value) else _MISSING
        else:
            return _MISSING
    return value


def _are_ordered(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return False
    return (isinstance(a, int | float) and isinstance(b, int | float)) or (isinstance(a, str) and isinstance(b, str))
