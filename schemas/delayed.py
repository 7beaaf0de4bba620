"""The records of ``headwater.delayed``: messages that wait until they are due. Compacted; a tombstone: published.

The key is unique per message, the value the payload. The headers are those of a message record
(``schemas.records``) with the Topic Name that the message will have, and

=====================  =====================================================
``headwater.delay_s``  seconds from the record's own time (LogAppendTime) on
=====================  =====================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.errors import RecordError
from schemas.records import HEADER_TOPIC, Header, decode_headers

HEADER_DELAY_S: Final = "headwater.delay_s"
DELAY_S_MAX: Final = 4_294_967  # EMQX's: 49 days, the milliseconds of 32 bits


def decode_delayed(headers: Iterable[tuple[str, bytes | None]]) -> tuple[int, tuple[Header, ...]]:
    """The delay in seconds, and the headers of the message record, ``mqtt.topic`` first. Raises RecordError."""
    delay: bytes | None = None
    first: list[Header] = []
    rest: list[Header] = []
    for name, value in headers:
        if value is None:
            continue
        if name == HEADER_DELAY_S:
            delay = value
        else:
            (first if name == HEADER_TOPIC else rest).append((name, value))
    if delay is None or not delay.isdigit() or len(delay) > 7 or int(delay) > DELAY_S_MAX:
        raise RecordError(f"delayed: the header {HEADER_DELAY_S} must be seconds up to {DELAY_S_MAX}")
    if not decode_headers((*first, *rest)).topic_name:
        raise RecordError(f"delayed: no {HEADER_TOPIC} header")
    return int(delay), (*first[-1:], *rest)
