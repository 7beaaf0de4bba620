"""JSON Web Tokens in CONNECT's password field, checked against the public keys of a JWKS file.

Needs PyJWT with cryptography (the extra `jwt`). Only asymmetric algorithms are taken, and only the one that belongs to
the key: whoever holds a public key must not be able to sign with it. Nothing a token's header points at is fetched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from edge.access.principal import Credentials, Principal, has_control_characters
from edge.access.watching import RELOAD_S, Fingerprint, Watcher, file_fingerprint, read_file
from schemas.errors import ConfigurationError

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
LIFETIME_S_MAX: Final = 24 * 3_600.0  # a stolen token is of use for a day at most
LEEWAY_S: Final = 10.0  # clocks of issuer and edge; not for `exp`, at which the connection ends
TOKEN_BYTES_MAX: Final = 8 * 1024  # as HTTP servers bound the header that usually carries a token
JWKS_BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 100  # old and new keys of a handful of issuers
RSA_BITS_MIN: Final = 2_048  # NIST SP 800-131A
_REQUIRED: Final = ["exp", "iss", "aud", "sub"]


def parse_jwks(content: bytes) -> dict[str, jwt.PyJWK]:
    """The keys of a JWKS by their `kid`. Raises ConfigurationError: every key must be public and asymmetric."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"JWKS: not JSON ({error})") from error
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not 0 < len(entries) <= KEYS_MAX:
        raise ConfigurationError(f'JWKS: needs a list "keys" of 1 to {KEYS_MAX} keys')
    keys: dict[str, jwt.PyJWK] = {}
    for number, entry in enumerate(entries, start=1):
        key_id, key = _parse_key(number, entry)
        if key_id in keys:
            raise ConfigurationError(f"JWKS, key {number}: a second key with the kid {key_id!r}")
        keys[key_id] = key
    return keys


def _parse_key(number: int, entry: Any) -> tuple[str, jwt.PyJWK]:
    if not isinstance(entry, dict) or not isinstance(entry.get("kid", ""), str):
        raise ConfigurationError(f"JWKS, key {number}: not a key")
    if "d" in entry:
        raise ConfigurationError(f"JWKS, key {number}: a private key; give edges the public one only")
    try:
        key = jwt.PyJWK(entry)
    except jwt.PyJWTError as error:
        raise ConfigurationError(f"JWKS, key {number}: {type(error).__name__}") from error
    if key.algorithm_name not in ALGORITHMS:
        raise ConfigurationError(
            f"JWKS, key {number}: algorithm {key.algorithm_name} is not one of {', '.join(sorted(ALGORITHMS))}"
        )
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < RSA_BITS_MIN:
        raise ConfigurationError(f"JWKS, key {number}: an RSA key of less than {RSA_BITS_MIN} bits")
    return entry.get("kid", ""), key


class JwtAuthenticator:
    """The principal is the token's `sub`, until its `exp`; CONNECT's user name is not looked at.

    A token needs exp, iss, aud and sub, ends within 24 h, and is signed by the key its `kid` names (without a kid: by
    the only key there is). The JWKS file is read again when it changes.
    """

    def __init__(
        self,
        jwks_path: Path,
        *,
        issuer: str,
        audience: str,
        algorithms: Sequence[str] = tuple(sorted(ALGORITHMS)),
        reload_s: float = RELOAD_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not issuer or not audience:
            raise ConfigurationError("JWT: issuer and audience must be named, else any token of any issuer would do")
        if wrong := sorted(set(algorithms) - ALGORITHMS):
            raise ConfigurationError(f"JWT: algorithm {wrong[0]} is not one of {', '.join(sorted(ALGORITHMS))}")
        self._path = jwks_path
        self._issuer = issuer
        self._audience = audience
        self._algorithms = frozenset(algorithms)
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fingerprint: Fingerprint | None = None
        self._watcher = Watcher("JWKS", self.reload_if_changed, reload_s)
        self._figures = dict.fromkeys(("accepted", "refused", "reloads"), 0)

    async def start(self) -> None:
        """Read the keys. Raises ConfigurationError when they cannot be."""
        self._keys, self._fingerprint = await asyncio.to_thread(self._read)
        self._watcher.start()

    async def stop(self) -> None:
        """Stop looking at the file."""
        await self._watcher.stop()

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The token's subject; None: refused. Costs one signature check (30-100 us)."""
        claims = self._claims(credentials.password)
        if claims is None:
            self._figures["refused"] += 1
            return None
        self._figures["accepted"] += 1
        return Principal(claims["sub"], credentials.client_id, credentials.peer, expires_at=float(claims["exp"]))

    async def reload_if_changed(self) -> bool:
        """Take over a changed file; False when it is as it was. Raises ConfigurationError: the keys in force stay."""
        if file_fingerprint(self._path) == self._fingerprint:
            return False
        self._keys, self._fingerprint = await asyncio.to_thread(self._read)
        self._figures["reloads"] += 1
        return True

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        return self._figures | {"keys": len(self._keys), "reload_failures": self._watcher.failures}

    def _read(self) -> tuple[dict[str, jwt.PyJWK], Fingerprint]:
        remedy = "save the issuer's public keys there"
        content, fingerprint = read_file(self._path, "JWKS", JWKS_BYTES_MAX, remedy)
        return parse_jwks(content), fingerprint

    def _claims(self, token: bytes | None) -> dict[str, Any] | None:
        if token is None or len(token) > TOKEN_BYTES_MAX:
            return None
        try:
            key = self._key_of(jwt.get_unverified_header(token))
            if key is None:
                return None
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[str(key.algorithm_name)],  # the header's must be the key's
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
                options={"require": _REQUIRED, "verify_exp": False},
            )
        except (jwt.PyJWTError, ValueError, TypeError):  # the two: header fields of a wrong kind
            return None
        return claims if self._holds(claims) else None

    def _key_of(self, header: dict[str, Any]) -> jwt.PyJWK | None:
        key_id = header.get("kid")
        if key_id is None and len(self._keys) == 1:
            key = next(iter(self._keys.values()))
        elif isinstance(key_id, str) and key_id in self._keys:
            key = self._keys[key_id]
        else:
            return None
        return key if key.algorithm_name in self._algorithms else None

    def _holds(self, claims: dict[str, Any]) -> bool:
        subject, expires_at = claims["sub"], claims["exp"]
        if not isinstance(subject, str) or not subject or has_control_characters(subject):
            return False
        if isinstance(expires_at, bool) or not isinstance(expires_at, int | float):
            return False
        return 0 < expires_at - self._clock() <= LIFETIME_S_MAX
