"""Enhanced authentication (MQTT 5.0, section 4.12): what a mechanism offers, and its answers. Pure.

The engine moves the AUTH packets (`edge.session.authenticating`), the handler asks the mechanism; neither knows what is
in the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Continue:
    """More is needed from the client: AUTH 0x18 with this data."""

    data: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Done:
    """The client is `principal_name`; `data` goes with CONNACK, or AUTH 0x00 after a re-authentication."""

    principal_name: str
    data: bytes | None = field(default=None, repr=False)
    superuser: bool = False
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The client has not shown who it is; the reason is for the log, not for the client."""

    reason: str


Step = Continue | Done | Failed


class EnhancedExchange(Protocol):
    """One authentication of one client."""

    async def step(self, data: bytes | None) -> Step:
        """The client's Authentication Data -> what follows. After `Done` or `Failed` it is not called again."""
        ...


class EnhancedAuthenticator(Protocol):
    """The authentication methods of an edge."""

    @property
    def methods(self) -> frozenset[str]:
        """Every Authentication Method that `begin` takes."""
        ...

    async def start(self) -> None:
        """Read files. Raises ConfigurationError when it can never work."""
        ...

    async def stop(self) -> None:
        """End what `start` started."""
        ...

    def begin(self, method: str, client_id: str) -> EnhancedExchange:
        """An exchange for one client; `method` is one of `methods`."""
        ...

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        ...
