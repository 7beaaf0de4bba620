"""From an edge's `[kafka]` table to the options of the Kafka client."""

from __future__ import annotations

import ssl
from typing import Any

from edge.node.config import KafkaConfig
from schemas.errors import ConfigurationError


def client_options(config: KafkaConfig) -> dict[str, Any]:
    """aiokafka's options for TLS and SASL, as `KafkaLog` and `topics_admin` take them. Raises ConfigurationError."""
    options: dict[str, Any] = {"security_protocol": config.security_protocol}
    if config.security_protocol in ("SSL", "SASL_SSL"):
        options["ssl_context"] = _tls_context(config)
    if config.security_protocol.startswith("SASL"):
        if not config.sasl_user_name or config.sasl_password is None:
            raise ConfigurationError(
                f"kafka: {config.security_protocol} needs sasl_user_name and sasl_password"
                ' (as "file:///path" or "env:NAME")'
            )
        options["sasl_mechanism"] = config.sasl_mechanism
        options["sasl_plain_username"] = config.sasl_user_name
        options["sasl_plain_password"] = config.sasl_password
    return options


def _tls_context(config: KafkaConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"kafka: ca_file {config.ca_file} cannot be used: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
