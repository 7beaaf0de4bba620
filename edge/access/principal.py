"""Who a client says it is (`Credentials`) and who it has been found to be (`Principal`). Pure.

`peer` is the address alone, without the port: `192.0.2.7`, `2001:db8::1`, `unix` for a Unix socket. Limits, bans and
failure counts go by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ANONYMOUS = "anonymous"
"""The name of every principal of `--dev`: a name that nobody has verified is never taken over."""

_SAN_KINDS = ("DNS", "URI", "email")


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated client. A session belongs to `name`: the same client id under another name gets 0x87."""

    name: str
    client_id: str
    peer: str
    superuser: bool = False
    expires_at: float | None = None
    """Seconds since the epoch at which the connection ends (a token's `exp`); None: never."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What CONNECT and the transport say about a client; nothing in it has been verified but `tls_*`."""

    client_id: str
    user_name: str | None
    password: bytes | None = field(repr=False)
    peer: str
    protocol_version: int
    tls_subject: str | None = None
    """`principal_from_certificate` of a client certificate that the TLS layer has verified (CERT_REQUIRED)."""
    tls_certificate: bytes | None = field(default=None, repr=False)
    """The same certificate in DER, for plugins that read it themselves."""


def has_control_characters(value: str) -> bool:
    """Whether the value holds C0 or C1 control characters or DEL."""
    return any(character < " " or "\x7f" <= character <= "\x9f" for character in value)


def principal_from_certificate(peer_certificate: Mapping[str, Any] | None) -> str | None:
    """The principal's name in a verified certificate, as `ssl.SSLObject.getpeercert()` gives it.

    The first DNS, URI or e-mail entry of the Subject Alternative Name; without any, the Common Name when there is
    exactly one. None: the certificate names nobody (or with control characters), so nobody is authenticated by it.
    """
    if not peer_certificate:
        return None
    alternatives = [value for kind, value in peer_certificate.get("subjectAltName", ()) if kind in _SAN_KINDS]
    name = alternatives[0] if alternatives else _only_common_name(peer_certificate.get("subject", ()))
    if not name or has_control_characters(name):
        return None
    return name


def _only_common_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str | None:
    names = [value for relative_name in subject for kind, value in relative_name if kind == "commonName"]
    return names[0] if len(names) == 1 else None
