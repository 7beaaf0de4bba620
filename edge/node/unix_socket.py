"""A Unix socket to listen on: bound with its mode, and gone when it is closed."""

from __future__ import annotations

import contextlib
import socket
import stat
from pathlib import Path

from schemas.errors import ConfigurationError


def bind_unix_socket(path: Path, mode: int) -> socket.socket:
    """A socket bound to `path`, not listening yet; what a dead process has left there is replaced.

    Nobody gets in before the mode is right: a socket that does not listen refuses.
    Raises ConfigurationError when another process listens there, or something else than a socket has the name.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        made.bind(str(path))
        path.chmod(mode)
    except OSError as error:
        made.close()
        raise ConfigurationError(f"cannot listen on {path}: {error.strerror or error}") from None
    except ConfigurationError:
        made.close()
        raise
    return made


def inode_of(path: Path) -> int | None:
    """Which file has the name now."""
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def remove_unix_socket(path: Path, inode: int | None) -> None:
    """Take our socket's name away, unless somebody else's has it by now."""
    if inode is not None and inode_of(path) == inode:
        with contextlib.suppress(OSError):
            path.unlink()


def _remove_stale(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigurationError(f"cannot listen on {path}: there is a file of this name that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)  # a listener whose queue is full answers "try again": it lives
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise ConfigurationError(f"cannot listen on {path}: another process listens there")
