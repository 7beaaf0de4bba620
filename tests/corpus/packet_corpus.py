"""The packet corpus: every annotated packet of ``tests/corpus/*.toml`` as a value."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge import wire
from edge.wire.packets import SubscriptionRequest, Will
from edge.wire.properties import Properties
from edge.wire.reason_codes import ReasonCode

_BYTES_FIELDS = {"payload", "password", "topic_name_utf8", "correlation_data", "authentication_data"}


@dataclass(frozen=True, slots=True)
class CorpusPacket:
    """One packet on the wire, and either the value it decodes to or the violation it is."""

    name: str
    protocol_version: int
    sender: str
    data: bytes
    expected: wire.Packet | None
    error: type[wire.ProtocolViolation] | None
    clause: str
    is_canonical: bool  # our encoder writes exactly these bytes


def _bytes(annotated: str) -> bytes:
    return bytes.fromhex(" ".join(line.partition("#")[0] for line in annotated.splitlines()))


def _value(name: str, value: Any) -> Any:
    if name in _BYTES_FIELDS:
        return bytes.fromhex(value[4:]) if value.startswith("hex:") else value.encode()
    if name == "properties":
        return Properties(**{key: _value(key, item) for key, item in value.items()})
    if name == "will":
        return Will(**{key: _value(key, item) for key, item in value.items()})
    if name == "subscriptions":
        return tuple(SubscriptionRequest(**request) for request in value)
    if name == "reason_code":
        return ReasonCode(value)
    if name == "reason_codes":
        return tuple(ReasonCode(code) for code in value)
    if isinstance(value, list):
        return tuple(_value("", item) for item in value)
    return value


def _packet(fields: dict[str, Any]) -> wire.Packet:
    packet_class = getattr(wire, fields.pop("packet"))
    packet: wire.Packet = packet_class(**{name: _value(name, value) for name, value in fields.items()})
    return packet


def _load() -> Iterator[CorpusPacket]:
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["packet"]:
            error = row.get("error")
            yield CorpusPacket(
                row["name"],
                row["version"],
                row["sender"],
                _bytes(row["bytes"]),
                _packet(row["expect"]) if "expect" in row else None,
                getattr(wire, error["type"]) if error else None,
                error["clause"] if error else "",
                "expect" in row and row.get("canonical", True),
            )


CORPUS = tuple(_load())
