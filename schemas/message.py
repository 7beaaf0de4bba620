"""The application message as it crosses process boundaries: neither an MQTT packet nor a Kafka record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Message:
    """One MQTT application message with the properties that travel with it [MQTT5-3.3.2].

    ``expiry_s`` None means that the message never expires; ``payload_format`` is the Payload Format Indicator
    (0 bytes, 1 UTF-8). Not frozen: it is built on the hot path.
    """

    topic_name: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    client_id: str = ""
    expiry_s: int | None = None
    payload_format: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
