"""Finding out who a client is: the interface, and the authenticators that need no outside help.

An authenticator answers with a `Principal` or refuses with None. When it cannot say (overload, a failing back end, no
answer within 2 s) it raises `AuthenticatorUnavailable`, its only error: the client is refused all the same, but by
"server unavailable" (0x88, 3.1.1 code 3) and without a failure being counted against its address, since a device that
is told "bad password" gives up for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from edge.access.principal import ANONYMOUS, Credentials, Principal
from schemas.errors import HeadwaterError

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 2.0  # the default of limits.authentication_timeout_s


class AuthenticatorUnavailable(HeadwaterError):  # noqa: N818 (as LogUnavailable: a state, not a fault)
    """Nobody could say who the client is: refuse it, do not hold it against it."""


class Authenticator(Protocol):
    """Who is this?"""

    async def start(self) -> None:
        """Read files, start workers. Raises ConfigurationError when it can never work."""
        ...

    async def stop(self) -> None:
        """End what `start` started."""
        ...

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The principal, or None: refused. Raises AuthenticatorUnavailable."""
        ...

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        ...


class AnonymousAuthenticator:
    """Takes everybody, under one name: for `--dev` on loopback only. What a client says of itself is not taken over."""

    __slots__ = ("_accepted",)

    def __init__(self) -> None:
        self._accepted = 0

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Everybody is `anonymous`."""
        self._accepted += 1
        return Principal(ANONYMOUS, credentials.client_id, credentials.peer)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        return {"accepted": self._accepted}


class CertificateAuthenticator:
    """mTLS: the principal is the subject of the client certificate that the TLS layer has verified.

    User name and password are not looked at. Without a certificate: refused.
    """

    __slots__ = ("_accepted", "_refused")

    def __init__(self) -> None:
        self._accepted = 0
        self._refused = 0

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The certificate's subject."""
        if not credentials.tls_subject:
            self._refused += 1
            return None
        self._accepted += 1
        return Principal(credentials.tls_subject, credentials.client_id, credentials.peer)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        return {"accepted": self._accepted, "refused": self._refused}


class ChainAuthenticator:
    """Several authenticators in order; the first that accepts decides.

    Each has `timeout_s` for its answer. One that fails or is late accepts nobody and the next is asked, which can only
    accept whom it would have accepted anyway. Without any link, everybody is refused.
    """

    __slots__ = ("_failed", "_late", "_links", "_silent", "_started", "_timeout_s")

    def __init__(self, links: Sequence[Authenticator], timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._links = tuple(links)
        self._timeout_s = timeout_s
        self._started: list[Authenticator] = []
        self._silent: set[int] = set()  # links whose trouble has been logged and that have not answered since
        self._failed = 0
        self._late = 0

    async def start(self) -> None:
        """Start every link; if one cannot start, those before it are stopped again and its error is raised."""
        for link in self._links:
            try:
                await link.start()
            except BaseException:
                await self.stop()
                raise
            self._started.append(link)

    async def stop(self) -> None:
        """Stop what was started, last first; the first error is raised when all have been tried."""
        errors: list[Exception] = []
        while self._started:
            try:
                await self._started.pop().stop()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The answer of the first link that accepts; None when all have refused.

        Raises AuthenticatorUnavailable when none accepted and at least one could not say.
        """
        unavailable = False
        for number, link in enumerate(self._links):
            try:
                async with asyncio.timeout(self._timeout_s):
                    principal = await link.authenticate(credentials)
            except Exception as error:  # somebody else's code: whatever goes wrong in it lets nobody in
                self._note(number, error)
                unavailable = True
                continue
            self._silent.discard(number)
            if principal is not None:
                return principal
        if unavailable:
            raise AuthenticatorUnavailable("no authenticator accepted, and at least one could not say")
        return None

    def _note(self, number: int, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            self._late += 1
        else:
            self._failed += 1
        if number not in self._silent:
            self._silent.add(number)
            # Not the error's text: it may hold a secret.
            name = type(self._links[number]).__name__
            logger.warning("%s does not answer (%s): its clients are refused", name, type(error).__name__)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS; those of the links under their place in the chain."""
        figures = {"failed": self._failed, "late": self._late}
        for number, link in enumerate(self._links):
            figures |= {f"{number}_{name}": value for name, value in link.statistics().items()}
        return figures
