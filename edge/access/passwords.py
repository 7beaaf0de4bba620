"""Password hashes, and the file that holds them: one `user:hash` a line, `#` for comments.

Hashes are argon2id with 19 MiB, t=2, p=1 (OWASP's first choice for password storage). The functions here block for
about 30 ms: never call them on an event loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from edge.access.user_file import Secrets, drop_user, parse_users, put_user, read_text
from edge.access.watching import Fingerprint
from schemas.errors import ConfigurationError

MEMORY_COST_KIB: Final = 19 * 1024
TIME_COST: Final = 2
PARALLELISM: Final = 1

_HASHER: Final = PasswordHasher(time_cost=TIME_COST, memory_cost=MEMORY_COST_KIB, parallelism=PARALLELISM, type=Type.ID)


def hash_password(password: str | bytes) -> str:
    """The argon2id hash to store for a password."""
    return _HASHER.hash(password)


def verify_password(password_hash: str, password: bytes) -> bool:
    """Whether the password belongs to the hash. Raises argon2's VerificationError when it could not be computed."""
    try:
        return _HASHER.verify(password_hash, password)
    except VerifyMismatchError:
        return False


def _is_argon2id(password_hash: str) -> bool:
    try:
        return extract_parameters(password_hash).type is Type.ID
    except InvalidHashError:
        return False


_HASHES: Final = Secrets("password file", "an argon2id hash", _is_argon2id, "headwater passwd")


def parse_password_file(text: str) -> dict[str, str]:
    """Users and hashes. Raises ConfigurationError with the line's number (never its text)."""
    return parse_users(text, _HASHES)


def read_password_file(path: Path) -> tuple[dict[str, str], Fingerprint]:
    """The users of the file, and its fingerprint. Raises ConfigurationError when it cannot be read."""
    text, fingerprint = read_text(path, _HASHES)
    return parse_password_file(text), fingerprint


def add_user(path: Path, user: str, password: str | bytes) -> None:
    """Add a user to the file or replace its password; see `put_user`."""
    if not password:
        raise ConfigurationError("an empty password protects nothing")
    put_user(path, _HASHES, user, hash_password(password))


def remove_user(path: Path, user: str) -> bool:
    """Take a user out of the file; whether it was in it. Raises ConfigurationError when the file cannot be read."""
    return drop_user(path, _HASHES, user)
