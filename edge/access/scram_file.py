"""SCRAM-SHA-256 by a file of users, beside the password file and of the same form.

    #unknown-users:BASE64                          a secret, made with the file
    user:SCRAM-SHA-256$i:salt$StoredKey:ServerKey  made with `headwater passwd --scram`

A user who is not in the file gets a salt as if he were: derived from the secret, so that it is the same after a restart
and on every edge with this file; and the number of iterations that most users have. So give all users the same number:
those who differ can be told from users who are not there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edge.access.enhanced import Continue, Done, Failed, Step
from edge.access.scram import (
    ITERATIONS,
    METHOD,
    SALT_BYTES,
    ScramError,
    ScramExchange,
    ScramKeys,
    derive_keys,
    keys_of_nobody,
    saslprep,
)
from edge.access.user_file import Secrets, drop_user, parse_users, put_user, read_text
from edge.access.watching import RELOAD_S, Fingerprint, Watcher, file_fingerprint
from schemas.errors import ConfigurationError

NONCE_BYTES: Final = 18  # 24 characters, as other servers take
_SECRET_LINE: Final = "#unknown-users:"  # noqa: S105 - the line's name
_SECRET_BYTES: Final = 32


def _is_keys(text: str) -> bool:
    try:
        ScramKeys.from_text(text)
    except ValueError:
        return False
    return True


_KEYS: Final = Secrets(
    "SCRAM file", f"{METHOD}$iterations:salt$StoredKey:ServerKey", _is_keys, "headwater passwd --scram"
)


@dataclass(frozen=True, slots=True)
class ScramUsers:
    """What a SCRAM file holds."""

    keys: dict[str, ScramKeys]
    secret: bytes = field(repr=False)
    iterations: int = ITERATIONS
    """What most users have, so what a user who is not there is given."""

    def find(self, user: str) -> ScramKeys:
        """The keys of a user, or of nobody; the work is the same."""
        nobody = keys_of_nobody(user, self.secret, self.iterations)
        return self.keys.get(user, nobody)


def parse_scram_file(text: str) -> ScramUsers:
    """The users of a SCRAM file. Raises ConfigurationError with the line's number (never its text)."""
    keys = {user: ScramKeys.from_text(line) for user, line in parse_users(text, _KEYS).items()}
    counted = Counter(each.iterations for each in keys.values()).most_common(1)
    return ScramUsers(keys, _secret_in(text), counted[0][0] if counted else ITERATIONS)


def _secret_in(text: str) -> bytes:
    for line in text.splitlines():
        if line.startswith(_SECRET_LINE):
            try:
                secret = base64.b64decode(line.removeprefix(_SECRET_LINE).strip(), validate=True)
            except (binascii.Error, ValueError):
                secret = b""
            if len(secret) >= _SECRET_BYTES:
                return secret
    raise ConfigurationError(f"SCRAM file: no line {_SECRET_LINE}SECRET; make it with `{_KEYS.make}`")


def read_scram_file(path: Path) -> tuple[ScramUsers, Fingerprint]:
    """The users of the file, and its fingerprint. Raises ConfigurationError when it cannot be read."""
    text, fingerprint = read_text(path, _KEYS)
    return parse_scram_file(text), fingerprint


def add_scram_user(path: Path, user: str, password: str, iterations: int = ITERATIONS) -> str:
    """Add a user to the file or replace the password; the name as it is stored (SASLprep).

    Raises ConfigurationError for a name or password that SASLprep prohibits, or a file that holds something else.
    """
    if not password:
        raise ConfigurationError("an empty password protects nothing")
    try:
        name = saslprep(user)
    except ValueError as error:
        raise ConfigurationError(f"user name: {error}") from None
    try:
        keys = derive_keys(password, secrets.token_bytes(SALT_BYTES), iterations)
    except ValueError as error:
        raise ConfigurationError(f"password: {error}") from None
    first_line = _SECRET_LINE + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    put_user(path, _KEYS, name, keys.to_text(), first_line)
    return name


def remove_scram_user(path: Path, user: str) -> bool:
    """Take a user out of the file; whether it was in it. Raises ConfigurationError when the file cannot be read."""
    try:
        return drop_user(path, _KEYS, saslprep(user, is_query=True))
    except ValueError:
        return False


class ScramAuthenticator:
    """The Authentication Method SCRAM-SHA-256; a change of the file is taken over within about a second.

    Connections that are up stay up: to end them, ban the user.
    """

    def __init__(self, path: Path, *, superusers: Iterable[str] = (), reload_s: float = RELOAD_S) -> None:
        self._path = path
        self._superusers = frozenset(superusers)
        self._fingerprint: Fingerprint | None = None
        self._watcher = Watcher("SCRAM file", self.reload_if_changed, reload_s)
        self.users = ScramUsers({}, secrets.token_bytes(_SECRET_BYTES))
        self.figures = dict.fromkeys(("accepted", "refused", "reloads"), 0)

    @property
    def methods(self) -> frozenset[str]:
        """SCRAM-SHA-256 alone: SHA-1 is not offered."""
        return frozenset((METHOD,))

    async def start(self) -> None:
        """Read the file. Raises ConfigurationError when it is not there or not right."""
        self.users, self._fingerprint = await asyncio.to_thread(read_scram_file, self._path)
        self._watcher.start()

    async def stop(self) -> None:
        """Look at the file no more."""
        await self._watcher.stop()

    def begin(self, method: str, client_id: str) -> _Steps:
        """An exchange with a fresh nonce."""
        assert method == METHOD
        return _Steps(self)

    def is_superuser(self, user: str) -> bool:
        """Whether the ACL does not bind the user."""
        return user in self._superusers

    async def reload_if_changed(self) -> bool:
        """Take over a changed file; False when it is as it was.

        Raises ConfigurationError when it cannot be read: the users in force stay in force.
        """
        if file_fingerprint(self._path) == self._fingerprint:
            return False
        self.users, self._fingerprint = await asyncio.to_thread(read_scram_file, self._path)
        self.figures["reloads"] += 1
        return True

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        return self.figures | {"users": len(self.users.keys), "reload_failures": self._watcher.failures}


class _Steps:
    """One exchange: client-first, client-final. A client may ask without data and say client-first in its AUTH."""

    __slots__ = ("_authenticator", "_exchange", "_keys", "_stage")

    def __init__(self, authenticator: ScramAuthenticator) -> None:
        self._authenticator = authenticator
        self._exchange = ScramExchange(self._find, secrets.token_urlsafe(NONCE_BYTES))
        self._keys: ScramKeys | None = None
        self._stage = 0

    async def step(self, data: bytes | None) -> Step:
        """As `EnhancedExchange`."""
        try:
            return self._step(data)
        except ScramError as error:
            self._authenticator.figures["refused"] += 1
            return Failed(str(error))

    def _step(self, data: bytes | None) -> Step:
        stage = self._stage
        if data is None:
            if stage:
                raise ScramError("no Authentication Data")
            self._stage = 1
            return Continue(None)
        if stage < 2:
            self._stage = 2
            return Continue(self._exchange.first(data))
        answer = self._exchange.final(data)
        user, users = self._exchange.user, self._authenticator.users
        if users.keys.get(user) != self._keys:  # the file has changed meanwhile
            raise ScramError("the user has been changed or removed")
        self._authenticator.figures["accepted"] += 1
        return Done(user, answer, self._authenticator.is_superuser(user))

    def _find(self, user: str) -> ScramKeys:
        self._keys = self._authenticator.users.find(user)
        return self._keys
