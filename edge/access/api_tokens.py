"""Tokens of the HTTP API: who calls, and what the role of the token allows.

A token is 256 random bits, made here and shown once; what is kept is its SHA-256. That is enough: a slow hash protects
what people think up, and nobody guesses 256 random bits.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge.access.user_file import Secrets, drop_user, parse_users, put_user, read_text
from edge.access.watching import RELOAD_S, Fingerprint, Watcher, file_fingerprint
from schemas.errors import ConfigurationError

ROLES: Final = ("viewer", "operator", "admin")
"""Each may do what those before it may: read; close connections and drain nodes; say who may do what."""
TOKENS_MAX: Final = 1_000  # each request is held against all of them: 0.2 ms
TOKEN_LENGTH_MAX: Final = 1_024  # what is longer is none of ours
_ENVIRONMENT: Final = "env:"
_SECRET = re.compile(r"(viewer|operator|admin):[0-9a-f]{64}")
_FILE = Secrets(
    "the token file",
    "role and digest of a token",
    lambda text: _SECRET.fullmatch(text) is not None,
    "headwater tokens add FILE NAME",
)


@dataclass(frozen=True, slots=True)
class ApiToken:
    """Whose token it is."""

    name: str
    role: str

    def may(self, role: str) -> bool:
        """Whether it may do what needs this role."""
        return ROLES.index(self.role) >= ROLES.index(role)


class ApiTokens:
    """The tokens of a file, which is looked at again every second, or of an environment variable (``env:NAME``), with
    commas or newlines between them. Raises ConfigurationError when they cannot be read."""

    def __init__(self, source: str, every_s: float = RELOAD_S) -> None:
        self._path = None if source.startswith(_ENVIRONMENT) else Path(source)
        self._fingerprint: Fingerprint | None = None
        self._tokens: list[tuple[bytes, ApiToken]] = []
        self._watcher = Watcher(f"API tokens {source}", self._look, every_s)
        if self._path is not None:
            self._read_file()
            return
        name = source.removeprefix(_ENVIRONMENT)
        if name not in os.environ:
            raise ConfigurationError(f"http.tokens: the environment variable {name} is not set")
        self._tokens = _parse(os.environ[name].replace(",", "\n"))

    def start(self) -> None:
        """Look at the file from now on."""
        if self._path is not None:
            self._watcher.start()

    async def stop(self) -> None:
        """Look no longer."""
        await self._watcher.stop()

    def find(self, token: str) -> ApiToken | None:
        """Whose it is; takes as long whether it is one or not."""
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        found = None
        for stored, whose in self._tokens:
            if hmac.compare_digest(stored, digest):
                found = whose
        return found

    async def _look(self) -> bool:
        assert self._path is not None
        if file_fingerprint(self._path) == self._fingerprint:
            return False
        await asyncio.to_thread(self._read_file)
        return True

    def _read_file(self) -> None:
        assert self._path is not None
        text, fingerprint = read_text(self._path, _FILE)
        self._tokens = _parse(text)
        self._fingerprint = fingerprint


def add_token(path: Path, name: str, role: str) -> str:
    """Make a token, put its digest into the file and return it: it cannot be found again. A token of the same name is
    replaced. Raises ConfigurationError."""
    if role not in ROLES:
        raise ConfigurationError(f"the role {role!r} is none of {', '.join(ROLES)}")
    token = f"hw_{secrets.token_urlsafe(32)}"
    put_user(path, _FILE, name, f"{role}:{hashlib.sha256(token.encode()).hexdigest()}")
    return token


def remove_token(path: Path, name: str) -> bool:
    """Take a token out of the file; whether it was in it. Raises ConfigurationError."""
    return drop_user(path, _FILE, name)


def list_tokens(path: Path) -> list[ApiToken]:
    """Names and roles. Raises ConfigurationError."""
    return [whose for _, whose in _parse(read_text(path, _FILE)[0])]


def _parse(text: str) -> list[tuple[bytes, ApiToken]]:
    tokens: list[tuple[bytes, ApiToken]] = []
    for name, secret in parse_users(text, _FILE).items():
        role, _, digest = secret.partition(":")
        tokens.append((bytes.fromhex(digest), ApiToken(name, role)))
    if len(tokens) > TOKENS_MAX:
        raise ConfigurationError(f"{_FILE.file}: {len(tokens)} tokens; at most {TOKENS_MAX} are taken")
    return tokens
