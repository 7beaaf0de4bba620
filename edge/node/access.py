"""From configuration to the parts of `edge.access`."""

from __future__ import annotations

from edge.access.acl import Acl, Authorizer, DevAcl, load_rules
from edge.access.amqtt_plugins import AmqttPluginAuthenticator
from edge.access.authentication import (
    AnonymousAuthenticator,
    Authenticator,
    CertificateAuthenticator,
    ChainAuthenticator,
)
from edge.access.bans import BanList
from edge.access.enhanced import EnhancedAuthenticator
from edge.access.limits import ConnectionGate, FailureTracker, FlappingTracker, Limits
from edge.access.password_file import PasswordFileAuthenticator
from edge.access.scram_file import ScramAuthenticator
from edge.handler.services import Access
from edge.node.config import EdgeConfig, JwtConfig
from schemas.errors import ConfigurationError


def build_access(config: EdgeConfig, limits: Limits) -> Access:
    """Who may connect and what they may do; raises ConfigurationError for rules that cannot be read."""
    failures = FailureTracker(limits)
    return Access(
        authenticator=_authenticator(config, limits),
        authorizer=_authorizer(config),
        gate=ConnectionGate(limits, failures),
        failures=failures,
        flapping=FlappingTracker(limits),
        bans=BanList(),
        enhanced=enhanced_authenticator(config),
    )


def enhanced_authenticator(config: EdgeConfig) -> EnhancedAuthenticator | None:
    """The authentication methods of MQTT 5's AUTH packets; None: every method is refused with 0x8C."""
    wanted = config.authentication
    return ScramAuthenticator(wanted.scram.file, superusers=wanted.superusers) if wanted.scram is not None else None


def _authorizer(config: EdgeConfig) -> Authorizer:
    return DevAcl() if config.dev and not config.acl else Acl(load_rules(config.acl))


def _jwt_authenticator(config: JwtConfig) -> Authenticator:
    try:
        from edge.access.jwt_tokens import JwtAuthenticator
    except ImportError:
        raise ConfigurationError("[authentication.jwt] needs PyJWT: pip install 'headwater[jwt]'") from None
    return JwtAuthenticator(config.jwks_file, issuer=config.issuer, audience=config.audience)


def _authenticator(config: EdgeConfig, limits: Limits) -> Authenticator:
    wanted = config.authentication
    links: list[Authenticator] = []
    if wanted.client_certificates:
        links.append(CertificateAuthenticator())
    if wanted.password_file is not None:
        links.append(
            PasswordFileAuthenticator(
                wanted.password_file, superusers=wanted.superusers, timeout_s=limits.authentication_timeout_s
            )
        )
    if wanted.jwt is not None:
        links.append(_jwt_authenticator(wanted.jwt))
    if wanted.amqtt_plugins:
        links.append(AmqttPluginAuthenticator(wanted.amqtt_plugins, timeout_s=limits.authentication_timeout_s))
    if wanted.anonymous or (config.dev and wanted.is_empty):
        links.append(AnonymousAuthenticator())
    if len(links) == 1 and isinstance(links[0], AnonymousAuthenticator):
        return links[0]
    return ChainAuthenticator(links, limits.authentication_timeout_s)
