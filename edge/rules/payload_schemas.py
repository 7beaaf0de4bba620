"""What payloads of a route must be: a JSON Schema in the route's `payload_schema`, compiled once at the start.

Only the route that a Topic Name goes to counts, as with everything that a route says. Names of routes without a schema
are not looked at, and cost nothing: see `edge.session.effects.CheckedTarget`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from schemas.errors import ConfigurationError
from schemas.routes import Route
from schemas.topics import matches

Fault: TypeAlias = Callable[[bytes], str | None]
"""Why a payload is refused; None: it is accepted. Nothing of the payload is in the answer."""

_MISSING = "payload_schema needs the package jsonschema: pip install 'headwater[validation]'"


@dataclass(frozen=True, slots=True)
class PayloadSchemas:
    """The routes in their order, each with its check, if it has one."""

    rows: tuple[tuple[str, Fault | None], ...] = ()

    def check_of(self, topic_name: str) -> Fault | None:
        """The check of the route that this (valid) Topic Name goes to."""
        for topic_filter, fault in self.rows:
            if topic_filter == "#" or matches(topic_filter, topic_name):
                return fault
        return None


def load_payload_schemas(routes: Sequence[Route], folder: Path | None = None) -> PayloadSchemas:
    """Compile the schemas that routes name, relative to `folder`. Raises ConfigurationError."""
    if not any(route.payload_schema for route in routes):
        return PayloadSchemas()
    return PayloadSchemas(
        tuple(
            (route.topic_filter, _load((folder or Path()) / route.payload_schema) if route.payload_schema else None)
            for route in routes
        )
    )


def compile_schema(schema: Any) -> Fault:
    """The check of one schema. Raises ConfigurationError for what is no schema, or refers to somewhere else."""
    try:
        from jsonschema import SchemaError  # type: ignore[import-untyped]
        from jsonschema.validators import Draft202012Validator, validator_for  # type: ignore[import-untyped]
        from referencing import Registry, Resource
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012
    except ImportError:
        raise ConfigurationError(_MISSING) from None
    outside = [reference for reference in _references(schema) if not reference.startswith("#")]
    if outside:
        raise ConfigurationError(f"$ref {outside[0]!r} leads elsewhere: put it under $defs and write #/$defs/<name>")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
        nothing: Registry[Any] = Registry()  # holds nothing and fetches nothing
        itself = nothing.with_resource("", Resource.from_contents(schema, default_specification=DRAFT202012))
        for reference in _references(schema):
            itself.resolver().lookup(reference)
    except SchemaError as error:
        raise ConfigurationError(f"it is no JSON Schema: {error.message} at {error.json_path}") from None
    except Unresolvable as error:
        raise ConfigurationError(f"$ref {error.ref!r} leads nowhere") from None

    validator = kind(schema, registry=nothing)

    def fault(payload: bytes) -> str | None:
        try:
            error = next(validator.iter_errors(orjson.loads(payload)), None)
        except orjson.JSONDecodeError:
            return "it is no JSON"
        except (RecursionError, Unresolvable):  # the schema is recursive, or two of its parts have an $id
            return "it cannot be held against the schema"
        return None if error is None else f"{error.validator} at {error.json_path}"[:200]

    return fault


def _references(schema: Any) -> Iterator[str]:
    """Every `$ref` and `$dynamicRef` in it."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _load(path: Path) -> Fault:
    try:
        return compile_schema(json.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"payload_schema {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"payload_schema {path}: no valid JSON: {error}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"payload_schema {path}: {error}") from None
