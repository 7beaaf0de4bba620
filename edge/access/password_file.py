"""Authentication by a password file, off the event loop and at the same cost for every answer.

A password that is not in the cache costs one argon2 verification in the worker pool, whoever the user is: an unknown
user is held against a hash that no password fits. The cache holds a keyed digest of user, hash in force and password,
never the password; its key is random and lives as long as the process. With the hash in the digest, a change of the
file needs no clearing: what was verified against another hash is no longer found.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from edge.access.authentication import ANSWER_TIMEOUT_S, AuthenticatorUnavailable
from edge.access.passwords import (
    hash_password,
    read_password_file,
    verify_password,
)
from edge.access.principal import Credentials, Principal
from edge.access.watching import RELOAD_S, Fingerprint, Watcher, file_fingerprint

WORKERS_MAX: Final = 4  # 19 MiB each; the event loop wants a core, too
QUEUE_MAX: Final = 128  # verifications at a time: at 30 ms each on two workers the last one waits the 2 s it has
CACHE_S: Final = 60.0  # a reconnect storm after a restart of the network is over by then
CACHE_MAX: Final = 10_000  # about 3 MiB


class PasswordFileAuthenticator:
    """Users from a file of `user:hash` lines; a change of the file is taken over within about a second.

    Connections that are up stay up: to end them, ban the user.
    """

    def __init__(
        self,
        path: Path,
        *,
        superusers: Iterable[str] = (),
        timeout_s: float = ANSWER_TIMEOUT_S,
        queue_max: int = QUEUE_MAX,
        cache_s: float = CACHE_S,
        cache_max: int = CACHE_MAX,
        reload_s: float = RELOAD_S,
        clock: Callable[[], float] = time.monotonic,
        verify: Callable[[str, bytes], bool] = verify_password,
    ) -> None:
        assert queue_max > 0
        assert cache_max > 0
        self._path = path
        self._superusers = frozenset(superusers)
        self._timeout_s = timeout_s
        self._queue_max = queue_max
        self._cache_s = cache_s
        self._cache_max = cache_max
        self._clock = clock
        self._verify = verify
        self._digest_key = secrets.token_bytes(32)
        self._users: dict[str, str] = {}
        self._fingerprint: Fingerprint | None = None
        self._nobody_hash = ""
        self._verified: OrderedDict[bytes, float] = OrderedDict()  # until when; in the order of entry, so of expiry
        self._running: dict[bytes, asyncio.Future[bool]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._watcher = Watcher("password file", self.reload_if_changed, reload_s)
        self._figures = dict.fromkeys(("accepted", "refused", "cached", "overloaded", "late", "failed", "reloads"), 0)

    async def start(self) -> None:
        """Read the file and start the workers. Raises ConfigurationError when the file is not there or not right."""
        assert self._pool is None, "started twice"
        self._users, self._fingerprint = await asyncio.to_thread(read_password_file, self._path)
        self._nobody_hash = await asyncio.to_thread(hash_password, secrets.token_bytes(32))
        workers = min(WORKERS_MAX, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="headwater-passwords")
        self._watcher.start()

    async def stop(self) -> None:
        """End the workers; what they had not begun is refused."""
        await self._watcher.stop()
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        self._verified.clear()

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The user whose password this is; None: refused. Raises AuthenticatorUnavailable on overload."""
        user, password = credentials.user_name, credentials.password
        if not user or password is None:
            self._figures["refused"] += 1
            return None
        password_hash = self._users.get(user, self._nobody_hash)
        key = self._digest(user, password_hash, password)
        if self._is_cached(key):
            self._figures["cached"] += 1
        elif not await self._is_right(key, password_hash, password):
            self._figures["refused"] += 1
            return None
        if self._users.get(user) != password_hash:  # unknown, or the file has changed meanwhile
            self._figures["refused"] += 1
            return None
        self._figures["accepted"] += 1
        return Principal(user, credentials.client_id, credentials.peer, superuser=user in self._superusers)

    async def reload_if_changed(self) -> bool:
        """Take over a changed file; False when it is as it was.

        Raises ConfigurationError when it cannot be read: the users in force stay in force.
        """
        if file_fingerprint(self._path) == self._fingerprint:
            return False
        self._users, self._fingerprint = await asyncio.to_thread(read_password_file, self._path)
        self._figures["reloads"] += 1
        return True

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        sizes = {"users": len(self._users), "cache": len(self._verified), "running": len(self._running)}
        return self._figures | sizes | {"reload_failures": self._watcher.failures}

    def _digest(self, user: str, password_hash: str, password: bytes) -> bytes:
        text = f"{user}\0{password_hash}\0".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text + password, key=self._digest_key, digest_size=32).digest()

    def _is_cached(self, key: bytes) -> bool:
        until = self._verified.get(key)
        return until is not None and until > self._clock()

    async def _is_right(self, key: bytes, password_hash: str, password: bytes) -> bool:
        """One verification in the pool, shared by all who ask the same at the same time."""
        running = self._running.get(key)
        if running is None:
            running = self._begin(key, password_hash, password)
        await asyncio.wait({running}, timeout=self._timeout_s)
        if not running.done():
            self._figures["late"] += 1
            raise AuthenticatorUnavailable("the password workers are behind")
        if running.cancelled() or running.exception() is not None:
            self._figures["failed"] += 1
            raise AuthenticatorUnavailable("a password could not be verified")
        return running.result()

    def _begin(self, key: bytes, password_hash: str, password: bytes) -> asyncio.Future[bool]:
        if self._pool is None or len(self._running) >= self._queue_max:
            self._figures["overloaded"] += 1
            raise AuthenticatorUnavailable("too many passwords to verify")
        running = asyncio.get_running_loop().run_in_executor(self._pool, self._verify, password_hash, password)
        self._running[key] = running
        running.add_done_callback(lambda done: self._finish(key, done))
        return running

    def _finish(self, key: bytes, done: asyncio.Future[bool]) -> None:
        self._running.pop(key, None)
        if done.cancelled() or done.exception() is not None or not done.result():
            return
        now = self._clock()
        self._verified[key] = now + self._cache_s
        self._verified.move_to_end(key)
        while self._verified and (len(self._verified) > self._cache_max or next(iter(self._verified.values())) <= now):
            self._verified.popitem(last=False)
