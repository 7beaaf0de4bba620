"""Spark's schema of a Variant (``OBJECT<a: BIGINT, b: ARRAY<STRING>>``) as field paths with plain JSON types."""

from __future__ import annotations

from collections.abc import Iterator

NUMBER, TEXT, BOOLEAN, MIXED, NOTHING = "number", "text", "boolean", "mixed", "null"
_PLAIN = {"BOOLEAN": BOOLEAN, "STRING": TEXT, "VOID": NOTHING, "VARIANT": MIXED}


def field_types(schema: str) -> dict[str, str]:
    """Each field's path and type, the root as ``""``: number, text, boolean, null, object, array or mixed."""
    found: dict[str, str] = {}
    rest = _type("", schema, found)
    assert not rest, f"{schema!r} ends with {rest!r}"
    return found


def merged(one: str, other: str) -> str:
    """The type that holds both."""
    if one == other or other == NOTHING:
        return one
    return other if one == NOTHING else MIXED


def _type(path: str, text: str, found: dict[str, str]) -> str:
    """Read a type at the front of `text`; what follows it."""
    if text.startswith("OBJECT<"):
        found[path] = "object"
        return _fields(path, text.removeprefix("OBJECT<"), found)
    if text.startswith("ARRAY<"):
        found[path] = "array"
        return _type(f"{path}[]", text.removeprefix("ARRAY<"), found).removeprefix(">")
    name = next(_names(text))
    found[path] = _PLAIN.get(name, NUMBER)
    rest = text[len(name) :]
    return rest.partition(")")[2] if rest.startswith("(") else rest  # DECIMAL(3,1)


def _fields(path: str, text: str, found: dict[str, str]) -> str:
    while text and not text.startswith(">"):
        name, text = _field_name(text.removeprefix(", "))
        name = name or '""'  # the root is called ""
        text = _type(f"{path}.{name}" if path else name, text.removeprefix(": "), found)
    return text.removeprefix(">")


def _field_name(text: str) -> tuple[str, str]:
    if not text.startswith("`"):
        name, _, rest = text.partition(":")
        return name, f":{rest}"
    name, at = "", 1
    while text[at] != "`" or text[at + 1 : at + 2] == "`":  # a back quote in a name is doubled
        name += text[at]
        at += 2 if text[at] == "`" else 1
    return name, text[at + 1 :]


def _names(text: str) -> Iterator[str]:
    """The letters at the front."""
    end = next((index for index, character in enumerate(text) if not (character.isalpha() or character == "_")), None)
    yield text[:end]
