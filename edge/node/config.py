"""The configuration of one edge: a TOML file, checked once, immutable after; `docs/configuration.md` has every key."""

from __future__ import annotations

import ipaddress
import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from edge.access.limits import Limits, development_limits, load_limits
from edge.rules.auto_subscriptions import load_auto_subscriptions
from edge.rules.payload_schemas import load_payload_schemas
from edge.rules.rewrite import load_rewrites
from edge.rules.rules import Rules
from edge.rules.selectors import PAYLOAD_BYTES_MAX, load_selectors
from schemas.errors import ConfigurationError
from schemas.routes import DEFAULT_ROUTES, Route, load_routes
from schemas.sampling import PER_MILLE_MAX


def resolve_secret(value: str) -> str:
    """`file:///path` and `env:NAME` are looked up; anything else is the secret itself."""
    if value.startswith("file://"):
        path = Path(value.removeprefix("file://"))
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ValueError(f"the secret's file {path} cannot be read: {error.strerror}") from None
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if name not in os.environ:
            raise ValueError(f"the secret's environment variable {name} is not set")
        return os.environ[name]
    return value


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsConfig(_Table):
    """`[listeners.tls]`: TLS 1.2 or later; with `client_ca`, clients must show a certificate (mTLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _check_proxies(proxy_protocol: bool, trusted_proxies: tuple[Network, ...]) -> None:
    if proxy_protocol != bool(trusted_proxies):
        raise ValueError(
            "proxy_protocol and trusted_proxies belong together: only proxies of named networks are believed, "
            'trusted_proxies = ["10.0.0.0/8"]'
        )
    if any(network.prefixlen == 0 for network in trusted_proxies):
        raise ValueError("trusted_proxies holds every address there is: anybody could claim to be anybody")


class ListenerConfig(_Table):
    """`[[listeners]]`: where devices speak MQTT: an address, or with `unix` a Unix socket instead of one.

    WebSocket is served by `[http]` under `/mqtt`. With `proxy_protocol`, every connection comes from one of
    `trusted_proxies` and begins with a PROXY header (version 2) that says for whom.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=1883, ge=0, le=65_535)
    unix: Path | None = None
    mode: int = Field(default=0o660, ge=0, le=0o777)
    tls: TlsConfig | None = None
    allow_plaintext: bool = False
    proxy_protocol: bool = False
    trusted_proxies: tuple[Network, ...] = ()

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.unix is not None or is_loopback(self.host)

    @model_validator(mode="after")
    def _a_unix_socket_is_local(self) -> ListenerConfig:
        if self.unix is not None and (self.tls is not None or self.proxy_protocol):
            raise ValueError(f"the Unix socket {self.unix} takes no TLS and no PROXY header: its mode says who comes")
        return self

    @model_validator(mode="after")
    def _proxies_are_named(self) -> ListenerConfig:
        _check_proxies(self.proxy_protocol, self.trusted_proxies)
        return self

    @model_validator(mode="after")
    def _plaintext_stays_at_home(self) -> ListenerConfig:
        if self.tls is None and not self.is_loopback and not self.allow_plaintext:
            raise ValueError(
                f"plaintext MQTT on {self.host} is refused: give the listener a [listeners.tls], or say "
                "allow_plaintext = true when TLS ends in front of it"
            )
        return self


_LOOPBACK = (ipaddress.IPv4Network("127.0.0.0/8"), ipaddress.IPv6Network("::1/128"))


class HttpConfig(_Table):
    """`[http]`: `/livez`, `/readyz`, `/metrics`, the live page, MQTT over WebSocket under `/mqtt`, and the state API
    under `/api/v1`, which answers `api_networks` only, and only to those who have one of the `tokens` (a file or
    `env:NAME`). `proxy_protocol` and `trusted_proxies` as in `[[listeners]]`."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    tls: TlsConfig | None = None
    allow_plaintext: bool = False
    proxy_protocol: bool = False
    trusted_proxies: tuple[Network, ...] = ()
    page: bool = True
    tokens: str | None = None
    api_networks: tuple[Network, ...] = _LOOPBACK

    @model_validator(mode="after")
    def _proxies_are_named(self) -> HttpConfig:
        _check_proxies(self.proxy_protocol, self.trusted_proxies)
        return self

    @model_validator(mode="after")
    def _plaintext_stays_at_home(self) -> HttpConfig:
        if self.tls is None and not is_loopback(self.host) and not self.allow_plaintext:
            raise ValueError(
                f"plaintext HTTP on {self.host} is refused: give [http.tls], or say allow_plaintext = true"
            )
        return self


class KafkaConfig(_Table):
    """`[kafka]`: the cluster. The password may be `file:///path` or `env:NAME`, so that it is in no file of yours."""

    bootstrap_servers: str = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_user_name: str | None = None
    sasl_password: str | None = Field(default=None, repr=False)
    ca_file: Path | None = None

    @field_validator("sasl_password")
    @classmethod
    def _resolve_secret(cls, value: str | None) -> str | None:
        return resolve_secret(value) if value is not None else None


class JwtConfig(_Table):
    """`[authentication.jwt]`: tokens as passwords, checked against a JWKS file (extra `headwater[jwt]`)."""

    jwks_file: Path
    issuer: str
    audience: str


class ScramConfig(_Table):
    """`[authentication.scram]`: MQTT 5's enhanced authentication by SCRAM-SHA-256, users from a file."""

    file: Path


class AuthenticationConfig(_Table):
    """`[authentication]`: every method that is named is asked, in this order; without any, nobody gets in."""

    client_certificates: bool = False
    password_file: Path | None = None
    superusers: tuple[str, ...] = ()
    jwt: JwtConfig | None = None
    scram: ScramConfig | None = None
    amqtt_plugins: dict[str, dict[str, Any]] = Field(default_factory=dict)
    anonymous: bool = False

    @property
    def is_empty(self) -> bool:
        """Nobody can be authenticated."""
        ways = (self.password_file, self.client_certificates, self.jwt, self.scram, self.amqtt_plugins, self.anonymous)
        return not any(ways)


class DelayedConfig(_Table):
    """`[delayed]`: `$delayed/<seconds>/<topic name>`; how much may wait, all in all, before an edge takes no more."""

    enabled: bool = True
    messages_max: int = Field(default=100_000, ge=1)
    bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024)


class EventsConfig(_Table):
    """`[events]`: what goes to `headwater.events` beside what happens to clients: of so many of a thousand messages
    every delivery and acknowledgement (the delivery ledger, for the Spark job `slo`)."""

    delivery_sample: float = Field(default=0.0, ge=0, le=PER_MILLE_MAX)


class SysConfig(_Table):
    """`[sys]`: how often `$SYS/brokers/<node>/...` is published (0: never), and whether it tells of clients."""

    interval_s: float = Field(default=60.0, ge=0)
    client_events: bool = True

    @field_validator("interval_s")
    @classmethod
    def _never_or_seconds(cls, value: float) -> float:
        if 0 < value < 1:
            raise ValueError("interval_s is at least 1, or 0 for never")
        return value


class EdgeConfig(_Table):
    """One edge. `dev` is for this machine alone: anonymous, plaintext, replication factor 1, no rate limits."""

    node_id: str = Field(default_factory=lambda: socket.gethostname().split(".")[0] or "edge")
    dev: bool = False
    kafka: KafkaConfig = KafkaConfig()
    listeners: tuple[ListenerConfig, ...] = (ListenerConfig(),)
    http: HttpConfig | None = HttpConfig()
    authentication: AuthenticationConfig = AuthenticationConfig()
    acl: tuple[dict[str, Any], ...] = ()
    limits: dict[str, Any] = Field(default_factory=dict)
    routes: tuple[dict[str, Any], ...] = ()
    events: EventsConfig = EventsConfig()
    rewrite: tuple[dict[str, Any], ...] = ()
    auto_subscriptions: tuple[dict[str, Any], ...] = ()
    exclusive_subscriptions: bool = True
    selectors: tuple[dict[str, Any], ...] = ()
    selector_payload_bytes_max: int = Field(default=PAYLOAD_BYTES_MAX, ge=0)
    delayed: DelayedConfig = DelayedConfig()
    sys: SysConfig = SysConfig()
    reuse_port: bool = False
    drain_clients_per_s: float = Field(default=100.0, gt=0)
    advertised_mqtt: str | None = None
    advertised_http: str | None = None

    @field_validator("node_id")
    @classmethod
    def _node_id_is_a_topic_level(cls, value: str) -> str:
        if not value or len(value) > 64 or not all(c.isalnum() or c in "-_." for c in value):
            raise ValueError("node_id is 1 to 64 letters, digits, '-', '_' or '.': it names a topic level and a group")
        return value

    @model_validator(mode="after")
    def _hardened_by_default(self) -> EdgeConfig:
        if self.dev:
            local = [listener.is_loopback for listener in self.listeners]
            if not all(local) or (self.http is not None and not is_loopback(self.http.host)):
                raise ValueError(
                    "--dev serves loopback only: bind 127.0.0.1, or configure authentication without --dev"
                )
            return self
        if self.authentication.anonymous and not all(listener.is_loopback for listener in self.listeners):
            raise ValueError("anonymous clients on an address that others can reach are refused")
        if self.authentication.is_empty:
            raise ValueError(
                'nobody could connect: name an authenticator in [authentication] (password_file = "…"), or start with '
                "--dev on this machine alone"
            )
        return self

    def effective_limits(self) -> Limits:
        """The limits of SECURITY.md, or the development ones, with what `[limits]` changes."""
        return load_limits(self.limits, development_limits() if self.dev else None)

    def effective_routes(self) -> tuple[Route, ...]:
        """The routes of the file, or the default ones."""
        return load_routes(list(self.routes)) if self.routes else DEFAULT_ROUTES

    def effective_rules(self) -> Rules:
        """Rewrites, auto-subscriptions, payload schemas, selectors; raises ConfigurationError."""
        return Rules(
            load_rewrites(self.rewrite),
            load_auto_subscriptions(self.auto_subscriptions),
            payload_schemas=load_payload_schemas(self.effective_routes()),
            selectors=load_selectors(self.selectors),
        )


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> EdgeConfig:
    """Read one edge's TOML file; raises ConfigurationError with file, key and remedy."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: no valid TOML: {error}") from None
    return make_config(table | dict(overrides or {}), str(path))


def make_config(table: Mapping[str, Any], source: str) -> EdgeConfig:
    """An `EdgeConfig` from a table; raises ConfigurationError that names `source` and the key."""
    try:
        config = EdgeConfig.model_validate(table)
        config.effective_limits()
        config.effective_routes()
        config.effective_rules()
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'edge'}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise ConfigurationError(f"{source}: {faults}") from None
    return config
