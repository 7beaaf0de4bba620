"""Records that nobody who keeps to the formats would write, for every Kafka topic."""

from __future__ import annotations

from support.chaos_checks import Log

from bridge.log import Headers
from schemas.catalogue import KafkaTopicSpec

MARK = ("chaos-poison", b"1")
_BAD_HEADERS = (("mqtt.topic", b"\xff\x00"), ("mqtt.qos", b"nine"), ("mqtt.expiry", b"soon"), ("mqtt.sub", b""))
_RECORDS: tuple[tuple[bytes | None, bytes | None], ...] = (
    (b"\xff\xfe", b"\xff" * 40),
    (None, b"{"),
    (b"stranger\x0099999999\x00s", b'{"v":1}'),
    (b"stranger\x0099999999\x00p", b'{"v":1,"positions":7}'),
    (b"stranger", b"no JSON"),
    (b"edge-9", b'{"v":"x"}'),
    (b"a" * 30_000, b"[]"),
    (b"", b""),
    (b"stranger", None),
)


def poison_records(spec: KafkaTopicSpec) -> list[tuple[bytes | None, bytes | None, Headers]]:
    """Key, value and headers of each; Kafka itself refuses a compacted record without a key."""
    return [
        (key, value, (MARK, *_BAD_HEADERS) if number % 2 else (MARK,))
        for number, (key, value) in enumerate(_RECORDS)
        if key is not None or spec.cleanup_policy != "compact"
    ]


def without_poison(log: Log) -> Log:
    """Our own poison is no evidence."""
    return {place: [each for each in records if MARK not in each.headers] for place, records in log.items()}
