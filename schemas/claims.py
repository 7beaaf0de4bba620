"""The layout of a record in `headwater.claims`: who owns a client's session.

The key is the client id in UTF-8. There are three kinds of records; all of one client share its key, so that compaction
keeps the last one only. Each of them therefore says everything that must be known:

=========  ==============================================  ====================================================
kind       value                                           means
=========  ==============================================  ====================================================
claim      JSON without ``epoch``                          a CONNECT; its offset is the owner epoch
claim      JSON with ``epoch``                             the claim of that epoch, written again (read-repair)
released   JSON with ``epoch`` and ``released``: true      the owner of that epoch has gone, the session stays
forgotten  null; header ``headwater.epoch``                the session of that epoch (and any before) is over
=========  ==============================================  ====================================================

``seen`` (in JSON, or as the header ``headwater.seen``) is written by read-repair: the offset of a claim that was void.
A reader to whom compaction left only the void one learns by it that it never counted.

A null value without the header, as Kafka's own tools write it, forgets whatever was there before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from schemas.errors import RecordError
from schemas.nodes import json_object
from schemas.records import Header

CLAIM_VERSION = 1
HEADER_EPOCH = "headwater.epoch"
HEADER_SEEN = "headwater.seen"
CLIENT_ID_BYTES_MAX = 65_535  # [MQTT5-1.5.4]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim or, with ``is_released``, the end of one.

    ``durable`` says that something is stored in `headwater.sessions`, so that a later owner must wait for this one.
    ``nonce`` tells the claims of one incarnation apart; a record that repeats a claim needs none.
    """

    principal: str
    node_id: str
    incarnation: str
    durable: bool
    nonce: str = ""
    at_ms: int = 0
    epoch: int | None = None
    is_released: bool = False
    seen: int | None = None

    def to_json(self) -> bytes:
        """The record value."""
        values: dict[str, Any] = {
            "v": CLAIM_VERSION,
            "principal": self.principal,
            "node_id": self.node_id,
            "incarnation": self.incarnation,
            "durable": self.durable,
            "nonce": self.nonce,
            "at_ms": self.at_ms,
        }
        if self.epoch is not None:
            values["epoch"] = self.epoch
        if self.is_released:
            values["released"] = True
        if self.seen is not None:
            values["seen"] = self.seen
        return orjson.dumps(values)

    @classmethod
    def from_json(cls, data: bytes) -> Claim:
        """Read a record value; unknown fields are ignored. Raises RecordError when a needed one is missing or wrong."""
        values = json_object(data, "claim")
        get = values.get
        claim = cls(
            get("principal"),  # type: ignore[arg-type]
            get("node_id"),  # type: ignore[arg-type]
            get("incarnation"),  # type: ignore[arg-type]
            get("durable"),  # type: ignore[arg-type]
            get("nonce", ""),
            get("at_ms", 0),
            get("epoch"),
            get("released", False),
            get("seen"),
        )
        _check(claim)
        return claim


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A tombstone: the session of ``epoch`` and all before are over; None: whatever was there."""

    epoch: int | None
    seen: int | None = None

    def headers(self) -> list[Header]:
        """The record headers; the value is null."""
        headers: list[Header] = []
        if self.epoch is not None:
            headers.append((HEADER_EPOCH, b"%d" % self.epoch))
        if self.seen is not None:
            headers.append((HEADER_SEEN, b"%d" % self.seen))
        return headers


def decode_claim(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> tuple[str, Claim | Forgotten]:
    """The client id and what the record says of it; raises RecordError when it cannot be read."""
    client_id = _client_id(key)
    if value is not None:
        return client_id, Claim.from_json(value)
    epoch = seen = None
    for name, field in headers:
        if field is None:
            continue
        if name == HEADER_EPOCH:
            epoch = _offset(name, field)
        elif name == HEADER_SEEN:
            seen = _offset(name, field)
    return client_id, Forgotten(epoch, seen)


def _client_id(key: bytes | None) -> str:
    if not key or len(key) > CLIENT_ID_BYTES_MAX:
        raise RecordError("claim: the key is no client id")
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise RecordError("claim: the key is no client id: not UTF-8") from None


def _offset(name: str, field: bytes) -> int:
    if not field.isdigit() or len(field) > 19:
        raise RecordError(f"header {name} must be an offset")
    return int(field)


def _check(claim: Claim) -> None:
    for text in (claim.principal, claim.node_id, claim.incarnation, claim.nonce):
        if type(text) is not str:
            raise RecordError("claim: principal, node_id, incarnation and nonce must be texts")
    if type(claim.durable) is not bool or type(claim.is_released) is not bool:
        raise RecordError("claim: durable and released must be true or false")
    if type(claim.at_ms) is not int:
        raise RecordError("claim: at_ms must be an integer")
    for offset in (claim.epoch, claim.seen):
        if offset is not None and (type(offset) is not int or offset < 0):
            raise RecordError("claim: epoch and seen must be offsets")
    if claim.is_released and claim.epoch is None:
        raise RecordError("claim: released needs its epoch")
