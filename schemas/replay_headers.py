"""What a replayed message says of its original: two User Properties that devices see, and one header for ourselves.

====================================  ======================================================  ==========================
header                                value                                                   who reads it
====================================  ======================================================  ==========================
``mqtt.user.headwater.timestamp_ms``  when the original was appended, milliseconds            MQTT 5.0 clients
``mqtt.user.headwater.source``        ``<kafka topic>/<partition>/<offset>`` of the original  MQTT 5.0 clients, resuming
``headwater.replay``                  the run that wrote it                                   resuming
====================================  ======================================================  ==========================
"""

from __future__ import annotations

import re

from schemas.records import HEADER_USER_PREFIX

PROPERTY_TIMESTAMP = "headwater.timestamp_ms"
PROPERTY_SOURCE = "headwater.source"
HEADER_REPLAY_TIMESTAMP = HEADER_USER_PREFIX + PROPERTY_TIMESTAMP
HEADER_REPLAY_SOURCE = HEADER_USER_PREFIX + PROPERTY_SOURCE
HEADER_REPLAY_RUN = "headwater.replay"

_SOURCE = re.compile(rb"([A-Za-z0-9._-]{1,249})/(\d{1,10})/(\d{1,19})")


def source_text(kafka_topic: str, partition: int, offset: int) -> str:
    """The value of ``headwater.source``."""
    return f"{kafka_topic}/{partition}/{offset}"


def parse_source(value: bytes) -> tuple[str, int, int] | None:
    """Kafka topic, partition and offset; None when the value is something else."""
    found = _SOURCE.fullmatch(value)
    if found is None:
        return None
    return found[1].decode(), int(found[2]), int(found[3])
