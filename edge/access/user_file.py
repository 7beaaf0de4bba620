"""A file of users: one `user:secret` a line, `#` for comments. What a secret looks like is the `Secrets` of the file.

The functions here block: call them in a thread where an event loop runs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge.access.principal import has_control_characters
from edge.access.watching import Fingerprint, read_file
from schemas.errors import ConfigurationError

USER_FILE_MODE: Final = 0o600
USER_FILE_BYTES_MAX: Final = 64 * 1024 * 1024  # half a million users; more belong into a token service


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the lines of one kind of file hold; `make` is the command that writes one."""

    file: str
    secret: str
    is_right: Callable[[str], bool]
    make: str


def check_user_name(user: str) -> None:
    """Raise ConfigurationError unless the name can stand in a file of users."""
    if not user or ":" in user or user.startswith("#") or user != user.strip() or has_control_characters(user):
        raise ConfigurationError(
            f"user name {user!r}: must not be empty, hold ':' or control characters, start with '#' or stand in blanks"
        )


def parse_users(text: str, kind: Secrets) -> dict[str, str]:
    """Users and secrets. Raises ConfigurationError with the line's number (never its text)."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, colon, secret = line.partition(":")
        if not colon or not user or has_control_characters(user):
            raise ConfigurationError(f"{kind.file}, line {number}: not user:hash")
        if user in users:
            raise ConfigurationError(f"{kind.file}, line {number}: this user has a line already")
        if not kind.is_right(secret):
            raise ConfigurationError(f"{kind.file}, line {number}: not {kind.secret}; make it with `{kind.make}`")
        users[user] = secret
    return users


def read_text(path: Path, kind: Secrets) -> tuple[str, Fingerprint]:
    """The file's text, and its fingerprint. Raises ConfigurationError when it cannot be read."""
    content, fingerprint = read_file(path, kind.file, USER_FILE_BYTES_MAX, f"make one with `{kind.make}`")
    try:
        return content.decode(), fingerprint
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{kind.file} {path}: not UTF-8") from error


def put_user(path: Path, kind: Secrets, user: str, secret: str, first_line: str | None = None) -> None:
    """Add a user or replace the secret; `first_line` is a comment for a file that has none that begins like it.

    The file is replaced in one step and readable by its owner only. Raises ConfigurationError for a user name that
    cannot stand in it, or a file that holds something else.
    """
    check_user_name(user)
    lines = [line for line in _lines(path, kind) if _user_of(line) != user]
    if first_line is not None and not any(line.startswith(first_line.partition(":")[0]) for line in lines):
        lines.insert(0, first_line)
    _replace_file(path, [*lines, f"{user}:{secret}"])


def drop_user(path: Path, kind: Secrets, user: str) -> bool:
    """Take a user out of the file; whether it was in it. Raises ConfigurationError when the file cannot be read."""
    is_there = user in parse_users(read_text(path, kind)[0], kind)
    if is_there:
        _replace_file(path, [line for line in _lines(path, kind) if _user_of(line) != user])
    return is_there


def _lines(path: Path, kind: Secrets) -> list[str]:
    if not path.exists():
        return []
    text, _ = read_text(path, kind)
    parse_users(text, kind)  # nothing is written over a file that is something else
    return text.splitlines()


def _user_of(line: str) -> str | None:
    line = line.strip()
    return None if line.startswith("#") else line.partition(":")[0]


def _replace_file(path: Path, lines: list[str]) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), USER_FILE_MODE)
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
