"""A record as a line of JSON, and back, byte for byte. Pure.

::

    {"timestamp_ms": 1795248000123, "topic_name": "sensors/a/t1/temp", "qos": 1, "client_id": "t1",
     "kafka_topic": "mqtt.sensors", "partition": 3, "key": "a/t1",
     "headers": [["mqtt.topic", "sensors/a/t1/temp"], ["mqtt.client_id", "t1"]],
     "offset": 41, "payload": "{\\"temp\\": 21.5}"}

``headers`` and ``key`` are the record's own, complete; ``topic_name``, ``qos``, ``retain`` (when it is 1) and
``client_id`` repeat what they mean. Bytes that are no valid UTF-8 are ``{"base64": "..."}`` in the place of the text;
null stays null. The last line is the end marker, ``{"end": {...}}``.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from bridge.log import Headers, Position
from bridge.replay.selection import Item
from schemas.errors import RecordError
from schemas.records import (
    HEADER_CLIENT_ID,
    HEADER_QOS,
    HEADER_RETAIN,
)

_MIDDLES_MAX = 50_000  # what is the same for all records of a device and Topic Name is encoded once
_dumps: Callable[[Any], bytes] = orjson.dumps


class LineRecord:
    """A record that was read from a line; it has what `bridge.log.Record` asks for."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers


class LineEncoder:
    """Encodes many records; each line ends in a line feed."""

    def __init__(self) -> None:
        self._middles: dict[tuple[Position, bytes | None, tuple[tuple[str, bytes | None], ...]], bytes] = {}

    def encode(self, items: Sequence[Item]) -> bytes:
        """The lines of these records."""
        lines: list[bytes] = []
        middles = self._middles
        for _, position, record, name in items:
            shape = (position, record.key, tuple(record.headers))
            middle = middles.get(shape)
            if middle is None:
                if len(middles) >= _MIDDLES_MAX:
                    middles.clear()
                middle = middles[shape] = _middle(position, name, record.key, record.headers)
            value = record.value
            try:
                payload = _dumps(None if value is None else value.decode())
            except UnicodeDecodeError:
                payload = _dumps(_as_json(value))
            lines.append(
                b'{"timestamp_ms":%d,%b,"offset":%d,"payload":%b}\n'
                % (record.timestamp, middle, record.offset, payload)
            )
        return b"".join(lines)


def end_line(end: dict[str, Any]) -> bytes:
    """The line that says that the replay is complete, and what was in it."""
    return _dumps({"end": end}) + b"\n"


def decode_line(line: bytes) -> Item | dict[str, Any]:
    """The record of a line, or what its end marker says. Raises RecordError."""
    try:
        values = orjson.loads(line)
        if isinstance(values.get("end"), dict):
            end: dict[str, Any] = values["end"]
            return end
        position = (str(values["kafka_topic"]), int(values["partition"]))
        headers = [(str(name), _as_bytes(value)) for name, value in values["headers"]]
        key, payload = _as_bytes(values["key"]), _as_bytes(values["payload"])
        record = LineRecord(int(values["offset"]), int(values["timestamp_ms"]), key, payload, headers)
        return record.timestamp, position, record, _as_bytes(values["topic_name"]) or b""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"no line of a replay: {error!r}") from None


def qos_of(header: bytes | None) -> int:
    """What the header ``mqtt.qos`` says; 1 when it is not there, or wrong."""
    return {b"0": 0, b"2": 2}.get(header or b"", 1)


def _middle(position: Position, name: bytes, key: bytes | None, headers: Headers) -> bytes:
    """The fields that a device's records have in common, without the braces."""
    found = dict(headers)
    values: dict[str, Any] = {"topic_name": _as_json(name), "qos": qos_of(found.get(HEADER_QOS))}
    if found.get(HEADER_RETAIN) == b"1":
        values["retain"] = 1
    values["client_id"] = _as_json(found.get(HEADER_CLIENT_ID) or b"")
    values["kafka_topic"], values["partition"] = position
    values["key"] = _as_json(key)
    values["headers"] = [(header, _as_json(value)) for header, value in headers]
    return _dumps(values)[1:-1]


def _as_json(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _as_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return b64decode(value["base64"], validate=True)
