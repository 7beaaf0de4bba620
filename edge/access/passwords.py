"""Password hashes, and the file that holds them: one `user:hash` a line, `#` for comments.

Hashes are argon2id with 19 MiB, t=2, p=1 (OWASP's first choice for password storage). The functions here block for
about 30 ms: never call them on an event loop.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from edge.access.principal import has_control_characters
from edge.access.watching import Fingerprint, read_file
from schemas.errors import ConfigurationError

MEMORY_COST_KIB: Final = 19 * 1024
TIME_COST: Final = 2
PARALLELISM: Final = 1
PASSWORD_FILE_MODE: Final = 0o600
PASSWORD_FILE_BYTES_MAX: Final = 64 * 1024 * 1024  # half a million users; more belong into a token service

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


def check_user_name(user: str) -> None:
    """Raise ConfigurationError unless the name can stand in a password file."""
    if not user or ":" in user or user.startswith("#") or user != user.strip() or has_control_characters(user):
        raise ConfigurationError(
            f"user name {user!r}: must not be empty, hold ':' or control characters, start with '#' or stand in blanks"
        )


def parse_password_file(text: str) -> dict[str, str]:
    """Users and hashes. Raises ConfigurationError with the line's number (never its text)."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, colon, password_hash = line.partition(":")
        if not colon or not user or has_control_characters(user):
            raise ConfigurationError(f"password file, line {number}: not user:hash")
        if user in users:
            raise ConfigurationError(f"password file, line {number}: this user has a line already")
        if not _is_argon2id(password_hash):
            raise ConfigurationError(
                f"password file, line {number}: not an argon2id hash; make it with `headwater passwd`"
            )
        users[user] = password_hash
    return users


def _is_argon2id(password_hash: str) -> bool:
    try:
        return extract_parameters(password_hash).type is Type.ID
    except InvalidHashError:
        return False


def read_password_file(path: Path) -> tuple[dict[str, str], Fingerprint]:
    """The users of the file, and its fingerprint. Raises ConfigurationError when it cannot be read."""
    content, fingerprint = read_file(path, "password file", PASSWORD_FILE_BYTES_MAX, "make one with `headwater passwd`")
    try:
        return parse_password_file(content.decode()), fingerprint
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"password file {path}: not UTF-8") from error


def add_user(path: Path, user: str, password: str | bytes) -> None:
    """Add a user to the file or replace its password. The file is replaced in one step and readable by its owner only.

    Raises ConfigurationError for a user name that cannot stand in the file, or a file that is not a password file.
    """
    check_user_name(user)
    if not password:
        raise ConfigurationError("an empty password protects nothing")
    _rewrite(path, user, f"{user}:{hash_password(password)}")


def remove_user(path: Path, user: str) -> bool:
    """Take a user out of the file; whether it was in it. Raises ConfigurationError when the file cannot be read."""
    users, _ = read_password_file(path)
    if user in users:
        _rewrite(path, user, None)
    return user in users


def _rewrite(path: Path, user: str, new_line: str | None) -> None:
    lines: list[str] = []
    if path.exists():
        read_password_file(path)  # nothing is written over a file that is something else
        lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.strip().startswith("#") or line.strip().partition(":")[0] != user]
    if new_line is not None:
        kept.append(new_line)
    _replace_file(path, "".join(f"{line}\n" for line in kept))


def _replace_file(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), PASSWORD_FILE_MODE)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
